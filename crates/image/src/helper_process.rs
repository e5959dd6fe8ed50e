//! A helper process for untrusted trees and archives: it unpacks, copies, packs and removes them.
//! It runs with the ids of the image, without capabilities that the task does not need, and
//! confined to one directory.
//!
//! `msb __image_helper REQUEST` is that process. REQUEST is JSON on the command line. Input comes
//! on stdin. The reply goes to stdout, or to stderr if stdout carries a layer.

use crate::build::UpperPacker;
use crate::build::copy_task::{CopyResult, CopyTask};
use crate::disks::DISK_FILE;
use crate::live_copy::{IdShift, TwoPassCopy};
use crate::owners::Owners;
use crate::pack::{OverlayXattrs, PackedDisk};
use crate::tree_digest::FileDigest;
use crate::unpack::{Bounds, LayerContents, unpack};
use msb_jail::HelperNeeds;
use msb_spec::{Error, Kind, Result, env};
use msb_sys::intrusion;
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// First argument that makes `msb` run as this helper.
pub const IMAGE_HELPER_ARGUMENT: &str = "__image_helper";

/// A reply has numbers, an error, or names in which a byte takes up to four digits.
const REPLY_LIMIT: u64 = 4 << 20;

/// Limit of the list of implied directories of an image; a byte takes up to four digits.
const IMPLIED_DIRS_INPUT_LIMIT: u64 = 64 << 20;

/// What the helper is to do, as JSON.
#[derive(Debug, Serialize, Deserialize)]
struct HelperRequest {
    owners: Owners,
    /// Directory that the helper is confined to with chroot and Landlock.
    root: PathBuf,
    /// Directories outside of `root` to read from. They are opened before confinement.
    #[serde(default)]
    directories: Vec<PathBuf>,
    task: HelperTask,
}

/// The tasks that run in a helper process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HelperTask {
    /// Unpacks the layer on stdin into the root.
    Unpack { bounds: Bounds },
    /// Removes everything in the root.
    Clear,
    /// Creates a layer of implied directories; stdin has the list.
    ImpliedDirs { into: String },
    /// Counts the files in the root and their bytes.
    Measure,
    /// Writes the overlay upper directory at the root to stdout as an image layer.
    Pack { at: String, shift: u32, missing: Vec<String>, covered: Vec<String>, latest: Option<i64> },
    /// Packs the layers on stdin, one after the other, into an EROFS disk in the root.
    Disk { sizes: Vec<u64>, bounds: Bounds, uuid: [u8; 16], marks: Option<OverlayXattrs> },
    /// Runs the copy task on stdin. Writes a layer to stdout if `write` is set.
    Copy { write: bool },
    /// Copies a directory into the root, reports that, waits for a byte on stdin, and copies what
    /// has changed since.
    LiveCopy { shift: Option<IdShift> },
    /// Merges the layers in the directories, topmost first, into one layer in the root.
    Squash { shifts: Vec<Option<IdShift>> },
    /// Writes one line about each file in the root to stdout.
    TreeDigest { shift: u32, digests: FileDigest },
}

impl HelperTask {
    /// Whether stdout carries data, so that the reply goes to stderr.
    fn writes_to_stdout(&self) -> bool {
        matches!(self, Self::Pack { .. } | Self::Copy { .. } | Self::TreeDigest { .. })
    }
}

/// Starts helper processes with one id mapping.
#[derive(Debug, Clone)]
pub(crate) struct Helper {
    /// Path of the `msb` executable.
    pub(crate) program: PathBuf,
    pub(crate) owners: Owners,
}

/// A helper process that is running.
#[derive(Debug)]
pub(crate) struct RunningHelper {
    child: Child,
    /// Its stdin; dropped at the end of the input.
    pub(crate) stdin: Option<ChildStdin>,
    /// Its stdout, if that carries a layer.
    pub(crate) layer: Option<ChildStdout>,
}

impl Helper {
    pub(crate) fn start(&self, root: &Path, task: HelperTask) -> Result<RunningHelper> {
        self.start_reading(root, Vec::new(), task)
    }

    /// Starts a task that also reads from other directories.
    pub(crate) fn start_reading(
        &self,
        root: &Path,
        directories: Vec<PathBuf>,
        task: HelperTask,
    ) -> Result<RunningHelper> {
        let writes_to_stdout = task.writes_to_stdout();
        let request =
            HelperRequest { owners: self.owners, root: root.to_owned(), directories, task };
        let text = serde_json::to_string(&request).expect("our own types always serialise");
        let mut child = Command::new(&self.program)
            .arg(IMAGE_HELPER_ARGUMENT)
            .arg(text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(if writes_to_stdout { Stdio::piped() } else { Stdio::null() })
            .spawn()
            .map_err(|error| {
                Error::host(format!("cannot execute `{}`", self.program.display()), error)
            })?;
        let stdin = child.stdin.take();
        if let Some(pipe) = &stdin {
            // The largest size that an unprivileged process may set. A smaller pipe is only slower.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, 1 << 20);
        }
        let layer = if writes_to_stdout { child.stdout.take() } else { None };
        Ok(RunningHelper { child, stdin, layer })
    }
}

/// Removes everything in a directory, also files of the ids that `owners` maps.
pub fn clear(program: PathBuf, owners: Owners, directory: &Path) -> Result<()> {
    Helper { program, owners }.start(directory, HelperTask::Clear)?.reply()
}

/// Merges layers, topmost first, into the empty directory `into`.
pub fn squash(
    program: PathBuf,
    owners: Owners,
    layers: Vec<(PathBuf, Option<IdShift>)>,
    into: &Path,
) -> Result<()> {
    let (layers, shifts) = layers.into_iter().unzip();
    let helper = Helper { program, owners };
    helper
        .start_reading(into, layers, HelperTask::Squash { shifts })?
        .reply::<(u64, u64)>()
        .map(|_| ())
}

/// A copy of a directory that is still being written to, between the two passes.
#[derive(Debug)]
pub struct LiveCopy(RunningHelper);

impl LiveCopy {
    /// Runs the first pass: copies everything from `from` to the empty directory `into`. `shift`
    /// maps ids.
    pub fn begin(
        program: PathBuf,
        owners: Owners,
        from: &Path,
        into: &Path,
        shift: Option<IdShift>,
    ) -> Result<Self> {
        let helper = Helper { program, owners };
        let mut running =
            helper.start_reading(into, vec![from.to_owned()], HelperTask::LiveCopy { shift })?;
        let mut byte = [0];
        let reply = running.child.stdout.as_mut().map(|out| out.read(&mut byte));
        match (reply, byte) {
            (Some(Ok(1)), [FIRST_PASS_DONE]) => Ok(Self(running)),
            _ => Err(running
                .reply_after::<()>(&byte)
                .err()
                .unwrap_or_else(|| Error::new(Kind::Protocol, "the copy helper sent no reply"))),
        }
    }

    /// Runs the second pass: copies what has changed since the first. Returns files and bytes.
    pub fn catch_up(mut self) -> Result<(u64, u64)> {
        if let Some(mut stdin) = self.0.stdin.take() {
            let failed = |error| Error::host("the copy helper has exited", error);
            stdin.write_all(b"!").map_err(failed)?;
        }
        self.0.reply()
    }
}

/// Byte that the helper sends after the first pass.
const FIRST_PASS_DONE: u8 = b'\n';

impl RunningHelper {
    /// Waits for the reply, of which these bytes were read already.
    fn reply_after<T: DeserializeOwned>(mut self, read: &[u8]) -> Result<T> {
        let rest = self.child.stdout.take();
        let mut text = read.to_vec();
        if let Some(out) = rest {
            let _ = out.take(REPLY_LIMIT).read_to_end(&mut text);
        }
        drop(self.stdin.take());
        let _ = self.child.wait();
        serde_json::from_slice::<Result<T>>(&text).unwrap_or_else(|error| {
            Err(Error::new(Kind::Host, "the copy helper has died").cause(error))
        })
    }

    /// Closes stdin and waits for the reply.
    pub(crate) fn reply<T: DeserializeOwned>(mut self) -> Result<T> {
        drop((self.stdin.take(), self.layer.take()));
        let mut text = Vec::new();
        if let Some(out) = self.child.stdout.take() {
            let _ = out.take(REPLY_LIMIT).read_to_end(&mut text);
        } else if let Some(reply) = self.child.stderr.take() {
            let _ = reply.take(REPLY_LIMIT).read_to_end(&mut text);
        }
        let ended = self.child.wait();
        serde_json::from_slice::<Result<T>>(&text).unwrap_or_else(|_| {
            let error = Error::new(Kind::Host, "the image helper has died");
            Err(match ended {
                Ok(status) => error.cause(status),
                Err(cause) => error.cause(cause),
            })
        })
    }
}

impl Drop for RunningHelper {
    fn drop(&mut self) {
        // The reply is no longer needed.
        if self.stdin.is_some() || self.layer.is_some() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Runs the task on the command line. Returns the exit code of the process.
pub fn serve(request: &str) -> i32 {
    let HelperRequest { owners, root, directories, task } = match serde_json::from_str(request) {
        Ok(request) => request,
        Err(error) => {
            return send_reply::<()>(
                &Err(Error::invalid("not a request for the image helper").cause(error)),
                false,
            );
        }
    };
    let writes_to_stdout = task.writes_to_stdout();
    let reply = owners.within(|| {
        let reply = open_all(&directories)
            .and_then(|directories| confine(&root, &directories).map(|()| directories))
            .and_then(|directories| match std::env::var_os(env::TEST_COMPROMISED_HELPER) {
                Some(canary) => Err(compromised(Path::new(&canary))),
                None => run_task(&task, directories, owners.many()),
            });
        send_reply(&reply, writes_to_stdout)
    });
    reply.unwrap_or_else(|error| send_reply::<()>(&Err(error), writes_to_stdout))
}

fn send_reply<T: Serialize>(reply: &Result<T>, writes_to_stdout: bool) -> i32 {
    let text = serde_json::to_vec(reply).unwrap_or_default();
    let written = if writes_to_stdout {
        std::io::stderr().lock().write_all(&text)
    } else {
        let mut out = std::io::stdout().lock();
        out.write_all(&text).and_then(|()| out.flush())
    };
    i32::from(written.is_err())
}

fn open_all(directories: &[PathBuf]) -> Result<Vec<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &PathBuf| {
        rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
    };
    directories.iter().map(open).collect()
}

/// Confines the process: chroot into its directory, no network, no programs, no other files. The
/// open directories stay readable.
fn confine(root: &Path, directories: &[OwnedFd]) -> Result<()> {
    let failed = |error| Error::host("cannot confine the image helper", error);
    rustix::process::chdir(root).map_err(failed)?;
    rustix::process::chroot(".").map_err(failed)?;
    rustix::process::umask(Mode::empty());
    // Bounds the memory of decompressors, whatever a layer asks for.
    let memory = MEMORY_LIMIT;
    msb_sys::process::set_rlimit(RLIMIT_AS, memory, memory)
        .map_err(|error| Error::host("cannot confine the image helper", error))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open("/", flags, Mode::empty()).map_err(failed)?;
    msb_jail::confine_helper(&HelperNeeds {
        reads: directories.iter().map(AsFd::as_fd).collect(),
        writes: vec![root.as_fd()],
        // Layers contain set-id files. Only sandboxes see them.
        set_id: true,
    })
}

/// Tries what a compromised task could do; for the tests of the confinement.
fn compromised(canary: &Path) -> Error {
    // A path above the chroot, if it could be reached.
    let above = Path::new("..").join(canary.strip_prefix("/").unwrap_or(canary));
    let mut tried = vec![
        ("a file of the host", std::fs::File::open(canary).is_ok()),
        ("a file above", std::fs::File::open(above).is_ok()),
        ("/etc/passwd", std::fs::File::open("/etc/passwd").is_ok()),
        ("a program", std::fs::File::open("/proc/self/exe").is_ok()),
    ];
    // Creating set-id files is part of unpacking.
    let wanted = |(name, _): &(&str, bool)| !SET_ID_ATTEMPTS.contains(name);
    tried.extend(intrusion::attempts().into_iter().filter(wanted));
    Error::invalid(intrusion::report(&tried))
}

/// Names in [`intrusion::attempts`] that unpacking is allowed to do.
const SET_ID_ATTEMPTS: [&str; 2] = ["a file that runs as its owner", "a directory of its group"];

/// RLIMIT_AS of the kernel.
const RLIMIT_AS: u32 = 9;
/// The largest window of zstd is 128 MiB. The rest is for buffers and names.
const MEMORY_LIMIT: u64 = 1 << 30;

/// The result of a task, as JSON.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum TaskReply {
    LayerContents(LayerContents),
    Tree((u64, u64)),
    ImpliedDirs(bool),
    CopyResult(CopyResult),
    PackedDisk(PackedDisk),
    /// Whether the layer has any entry.
    NotEmpty(bool),
    Done(()),
}

fn run_task(task: &HelperTask, directories: Vec<OwnedFd>, many_owners: bool) -> Result<TaskReply> {
    let failed = |error| Error::host("cannot open a layer", std::io::Error::from(error));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let root = rustix::fs::open("/", flags, Mode::empty()).map_err(failed)?;
    match task {
        HelperTask::Unpack { bounds } => {
            let stdin = std::fs::File::from(layer_input()?);
            let contents = unpack(stdin, root.as_fd(), bounds, many_owners)?;
            Ok(TaskReply::LayerContents(contents))
        }
        HelperTask::Disk { sizes, bounds, uuid, marks } => {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let into = rustix::fs::openat(root, DISK_FILE, flags, mode).map_err(failed)?;
            let stdin = std::fs::File::from(layer_input()?);
            let layers = sizes.iter().map(|size| (&stdin).take(*size));
            crate::pack::pack(layers, into.into(), bounds, *uuid, *marks).map(TaskReply::PackedDisk)
        }
        HelperTask::ImpliedDirs { into } => {
            let mut text = Vec::new();
            std::io::stdin().take(IMPLIED_DIRS_INPUT_LIMIT).read_to_end(&mut text).map_err(
                |error| Error::host("cannot read the list of implied directories", error),
            )?;
            crate::implied_dirs::make_tree(root.as_fd(), into, &text).map(TaskReply::ImpliedDirs)
        }
        HelperTask::Measure => crate::unpack::measure(root.as_fd()).map(TaskReply::Tree),
        HelperTask::Clear => {
            msb_sys::tree::clear(root.as_fd())
                .map_err(|error| Error::host("cannot remove files of other owners", error))?;
            Ok(TaskReply::Done(()))
        }
        HelperTask::Pack { at, shift, missing, covered, latest } => {
            let out = layer_output()?;
            let packer = UpperPacker::new(root.as_fd(), directories, *shift, out, *latest);
            packer.at(Path::new(at)).pack(missing, covered).map(TaskReply::NotEmpty)
        }
        HelperTask::Copy { write } => {
            let mut text = Vec::new();
            let unreadable = |error| Error::host("cannot read the copy task", error);
            std::io::stdin().lock().read_to_end(&mut text).map_err(unreadable)?;
            let copy_task: CopyTask = serde_json::from_slice(&text)
                .map_err(|error| Error::invalid("not a copy task").cause(error))?;
            let copied = match write {
                true => copy_task.run(directories, layer_output()?),
                false => copy_task.run(directories, std::io::sink()),
            };
            copied.map(TaskReply::CopyResult)
        }
        HelperTask::LiveCopy { shift } => {
            let from = directories.first().ok_or_else(|| Error::invalid("nothing to copy"))?;
            let mut copy = TwoPassCopy::new(*shift);
            copy.pass(from.as_fd(), root.as_fd())?;
            let gone = |error| Error::host("the caller of the copy helper has exited", error);
            let mut out = std::io::stdout().lock();
            out.write_all(&[FIRST_PASS_DONE]).and_then(|()| out.flush()).map_err(gone)?;
            std::io::stdin().lock().read_exact(&mut [0]).map_err(gone)?;
            copy.pass(from.as_fd(), root.as_fd())?;
            Ok(TaskReply::Tree(copy.totals))
        }
        HelperTask::Squash { shifts } => {
            crate::squash::squash(directories, shifts, root.as_fd()).map(TaskReply::Tree)
        }
        HelperTask::TreeDigest { shift, digests } => {
            let how = (*shift, *digests);
            crate::tree_digest::write_lines(root.as_fd(), how, layer_output()?).map(TaskReply::Tree)
        }
    }
}

/// Layers come on stdin. Unbuffered, because the pipe is read in large chunks.
fn layer_input() -> Result<OwnedFd> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    stdin.map_err(|error| Error::host("cannot read a layer", error))
}

/// A layer goes to stdout, in large chunks.
fn layer_output() -> Result<impl Write> {
    let stdout = std::io::stdout().as_fd().try_clone_to_owned();
    let stdout = stdout.map_err(|error| Error::host("cannot write a layer", error))?;
    Ok(std::io::BufWriter::with_capacity(256 << 10, std::fs::File::from(stdout)))
}
