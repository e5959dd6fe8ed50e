//! Work on trees that others made, done apart: in a process of its own, with the ids of the
//! image, without any right that this work does not need, and locked into one directory.
//!
//! `msb __apart` is that process. What it is to do stands on its command line; a stream comes on
//! stdin; the answer goes to stdout, or to stderr where a layer goes to stdout.

use crate::build::Packer;
use crate::build::errand::{Copied, Errand};
use crate::disks::MAKING;
use crate::owners::Owners;
use crate::pack::{Marks, Packed};
use crate::seal::FileDigest;
use crate::twin::{Shift, Twin};
use crate::unpack::{Bounds, Contents, unpack};
use msb_spec::{Error, Kind, Result};
use rustix::fs::{Mode, OFlags};
use rustix::thread::{CapabilitySet, CapabilitySets};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The argument with which `msb` becomes such a process.
pub const APART_ARGUMENT: &str = "__apart";

/// An answer is some numbers, names with up to four digits a byte, or an error with a few lines.
const ANSWER_LIMIT: u64 = 4 << 20;

/// As much as all layers of an image may imply, with up to four digits a byte.
const MEND_LIMIT: u64 = 64 << 20;

/// What is to be done, and where.
#[derive(Debug, Serialize, Deserialize)]
struct Letter {
    owners: Owners,
    /// The directory that the process is locked into.
    root: PathBuf,
    /// Directories elsewhere that it reads from. They are opened before it is locked in.
    #[serde(default)]
    directories: Vec<PathBuf>,
    task: Task,
}

/// What can be done apart.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Unpacks the layer that comes on stdin into the root.
    Unpack { bounds: Bounds },
    /// Removes everything in the root.
    Clear,
    /// Shows directories as the layers below describe them; which is told on stdin.
    Mend { into: String },
    /// Counts the files in the root and their bytes.
    Measure,
    /// Writes what a sandbox has written into the root, as a layer.
    Pack { at: String, shift: u32, missing: Vec<String>, covered: Vec<String>, latest: Option<i64> },
    /// Packs the layers that come on stdin, one behind the other, into a disk in the root.
    Disk { sizes: Vec<u64>, bounds: Bounds, uuid: [u8; 16], marks: Option<Marks> },
    /// Copies from the directories what the errand on stdin says, as a layer if it is wanted.
    Copy { write: bool },
    /// Copies a directory into the root; says so when that is done, and does it again for what
    /// changed meanwhile when it is told to.
    Twin { shift: Option<Shift> },
    /// Makes one layer in the root of those in the directories, topmost first.
    Squash { shifts: Vec<Option<Shift>> },
    /// Describes everything in the root, a line for each.
    Seal { shift: u32, digests: FileDigest },
}

impl Task {
    /// Whether a layer goes to stdout.
    fn streams(&self) -> bool {
        matches!(self, Self::Pack { .. } | Self::Copy { .. } | Self::Seal { .. })
    }
}

/// Starts such processes.
#[derive(Debug, Clone)]
pub(crate) struct Apart {
    /// The `msb` executable.
    pub(crate) program: PathBuf,
    pub(crate) owners: Owners,
}

/// One such process, at work.
#[derive(Debug)]
pub(crate) struct AtWork {
    child: Child,
    /// What it reads; dropped when all is said.
    pub(crate) stdin: Option<ChildStdin>,
    /// The layer that it writes, if it does.
    pub(crate) layer: Option<ChildStdout>,
}

impl Apart {
    pub(crate) fn start(&self, root: &Path, task: Task) -> Result<AtWork> {
        self.start_reading(root, Vec::new(), task)
    }

    /// The same for a task that reads from other directories.
    pub(crate) fn start_reading(
        &self,
        root: &Path,
        directories: Vec<PathBuf>,
        task: Task,
    ) -> Result<AtWork> {
        let streams = task.streams();
        let letter = Letter { owners: self.owners, root: root.to_owned(), directories, task };
        let text = serde_json::to_string(&letter).expect("our own types always serialise");
        let mut child = Command::new(&self.program)
            .arg(APART_ARGUMENT)
            .arg(text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(if streams { Stdio::piped() } else { Stdio::null() })
            .spawn()
            .map_err(|error| {
                Error::host(format!("cannot execute `{}`", self.program.display()), error)
            })?;
        let stdin = child.stdin.take();
        if let Some(pipe) = &stdin {
            // As much as an unprivileged process may have; less only costs speed.
            let _ = rustix::pipe::fcntl_setpipe_size(pipe, 1 << 20);
        }
        let layer = if streams { child.stdout.take() } else { None };
        Ok(AtWork { child, stdin, layer })
    }
}

/// Removes everything in a directory, whoever of these it belongs to.
pub fn clear(program: PathBuf, owners: Owners, directory: &Path) -> Result<()> {
    Apart { program, owners }.start(directory, Task::Clear)?.answer()
}

/// Makes one layer in `into`, which is empty, that shows the same as several, topmost first.
pub fn squash(
    program: PathBuf,
    owners: Owners,
    layers: Vec<(PathBuf, Option<Shift>)>,
    into: &Path,
) -> Result<()> {
    let (layers, shifts) = layers.into_iter().unzip();
    let apart = Apart { program, owners };
    apart.start_reading(into, layers, Task::Squash { shifts })?.answer::<(u64, u64)>().map(|_| ())
}

/// A copy of a tree that somebody may still write, to be brought up to date once more.
#[derive(Debug)]
pub struct Following(AtWork);

impl Following {
    /// Copies everything in `from` into `into`, which is empty. The copy may be for other ids.
    pub fn begin(
        program: PathBuf,
        owners: Owners,
        from: &Path,
        into: &Path,
        shift: Option<Shift>,
    ) -> Result<Self> {
        let apart = Apart { program, owners };
        let mut work = apart.start_reading(into, vec![from.to_owned()], Task::Twin { shift })?;
        let mut byte = [0];
        let told = work.child.stdout.as_mut().map(|out| out.read(&mut byte));
        match (told, byte) {
            (Some(Ok(1)), [COPIED]) => Ok(Self(work)),
            _ => Err(work.answer_behind::<()>(&byte).err().unwrap_or_else(|| {
                Error::new(Kind::Protocol, "the process that copies said nothing")
            })),
        }
    }

    /// Copies what has changed since. How many files that were, and bytes.
    pub fn catch_up(mut self) -> Result<(u64, u64)> {
        if let Some(mut stdin) = self.0.stdin.take() {
            let failed = |error| Error::host("the process that copies went away", error);
            stdin.write_all(b"!").map_err(failed)?;
        }
        self.0.answer()
    }
}

/// Said when everything was copied once.
const COPIED: u8 = b'\n';

impl AtWork {
    /// The same where the first of it was read already.
    fn answer_behind<T: DeserializeOwned>(mut self, read: &[u8]) -> Result<T> {
        let rest = self.child.stdout.take();
        let mut text = read.to_vec();
        if let Some(out) = rest {
            let _ = out.take(ANSWER_LIMIT).read_to_end(&mut text);
        }
        drop(self.stdin.take());
        let _ = self.child.wait();
        serde_json::from_slice::<Result<T>>(&text).unwrap_or_else(|error| {
            Err(Error::new(Kind::Host, "the process that copies has died").cause(error))
        })
    }

    /// Waits for the answer.
    pub(crate) fn answer<T: DeserializeOwned>(mut self) -> Result<T> {
        drop((self.stdin.take(), self.layer.take()));
        let mut text = Vec::new();
        if let Some(out) = self.child.stdout.take() {
            let _ = out.take(ANSWER_LIMIT).read_to_end(&mut text);
        } else if let Some(told) = self.child.stderr.take() {
            let _ = told.take(ANSWER_LIMIT).read_to_end(&mut text);
        }
        let ended = self.child.wait();
        serde_json::from_slice::<Result<T>>(&text).unwrap_or_else(|_| {
            let error = Error::new(Kind::Host, "the process that unpacks has died");
            Err(match ended {
                Ok(status) => error.cause(status),
                Err(cause) => error.cause(cause),
            })
        })
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        // Nobody waits for its answer any more.
        if self.stdin.is_some() || self.layer.is_some() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Does what the command line says and returns the exit code of the process.
pub fn serve(letter: &str) -> i32 {
    let Letter { owners, root, directories, task } = match serde_json::from_str(letter) {
        Ok(letter) => letter,
        Err(error) => {
            return tell::<()>(&Err(Error::invalid("not a task").cause(error)), false);
        }
    };
    let streams = task.streams();
    let told = owners.within(|| {
        let told = open_all(&directories)
            .and_then(|directories| confine(&root).map(|()| directories))
            .and_then(|directories| perform(&task, directories, owners.many()));
        tell(&told, streams)
    });
    told.unwrap_or_else(|error| tell::<()>(&Err(error), streams))
}

fn tell<T: Serialize>(told: &Result<T>, streams: bool) -> i32 {
    let text = serde_json::to_vec(told).unwrap_or_default();
    let written = if streams {
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

/// What root needs to unpack an image, and nothing besides.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// Locks the process into its directory.
fn confine(root: &Path) -> Result<()> {
    let failed = |error| Error::host("cannot confine the process that unpacks", error);
    rustix::process::chdir(root).map_err(failed)?;
    rustix::process::chroot(".").map_err(failed)?;
    rustix::process::umask(Mode::empty());
    rustix::thread::set_no_new_privs(true).map_err(failed)?;
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Capabilities that this kernel does not have yet.
            Ok(()) | Err(rustix::io::Errno::INVAL) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let sets =
        CapabilitySets { effective: KEPT, permitted: KEPT, inheritable: CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, sets).map_err(failed)?;
    // Decompressors are bounded by what they may hold, whatever a layer makes them want.
    let memory = MEMORY_LIMIT;
    msb_sys::process::set_rlimit(RLIMIT_AS, memory, memory)
        .map_err(|error| Error::host("cannot confine the process that unpacks", error))
}

/// The kernel's number of the limit of address space.
const RLIMIT_AS: u32 = 9;
/// The largest window of zstd is 128 MiB; the rest is buffers and names.
const MEMORY_LIMIT: u64 = 1 << 30;

/// What a task has found out.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Contents(Contents),
    Tree((u64, u64)),
    Mended(bool),
    Copied(Copied),
    Packed(Packed),
    /// Whether a layer holds anything.
    Any(bool),
    Done(()),
}

fn perform(task: &Task, directories: Vec<OwnedFd>, many_owners: bool) -> Result<Answer> {
    let failed = |error| Error::host("cannot open a layer", std::io::Error::from(error));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let root = rustix::fs::open("/", flags, Mode::empty()).map_err(failed)?;
    match task {
        Task::Unpack { bounds } => {
            let stdin = std::fs::File::from(layers_in()?);
            let contents = unpack(stdin, root.as_fd(), bounds, many_owners)?;
            Ok(Answer::Contents(contents))
        }
        Task::Disk { sizes, bounds, uuid, marks } => {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let mode = Mode::RUSR | Mode::WUSR;
            let into = rustix::fs::openat(root, MAKING, flags, mode).map_err(failed)?;
            let stdin = std::fs::File::from(layers_in()?);
            let layers = sizes.iter().map(|size| (&stdin).take(*size));
            crate::pack::pack(layers, into.into(), bounds, *uuid, *marks).map(Answer::Packed)
        }
        Task::Mend { into } => {
            let mut text = Vec::new();
            std::io::stdin()
                .take(MEND_LIMIT)
                .read_to_end(&mut text)
                .map_err(|error| Error::host("cannot read what to mend", error))?;
            crate::mend::perform(root.as_fd(), into, &text).map(Answer::Mended)
        }
        Task::Measure => crate::unpack::measure(root.as_fd()).map(Answer::Tree),
        Task::Clear => {
            msb_sys::tree::clear(root.as_fd())
                .map_err(|error| Error::host("cannot remove what others have made", error))?;
            Ok(Answer::Done(()))
        }
        Task::Pack { at, shift, missing, covered, latest } => {
            let out = layer_out()?;
            let packer = Packer::new(root.as_fd(), directories, *shift, out, *latest);
            packer.at(Path::new(at)).pack(missing, covered).map(Answer::Any)
        }
        Task::Copy { write } => {
            let mut text = Vec::new();
            let unreadable = |error| Error::host("cannot read what to copy", error);
            std::io::stdin().lock().read_to_end(&mut text).map_err(unreadable)?;
            let errand: Errand = serde_json::from_slice(&text)
                .map_err(|error| Error::invalid("not an errand").cause(error))?;
            let copied = match write {
                true => errand.run(directories, layer_out()?),
                false => errand.run(directories, std::io::sink()),
            };
            copied.map(Answer::Copied)
        }
        Task::Twin { shift } => {
            let from = directories.first().ok_or_else(|| Error::invalid("nothing to copy"))?;
            let mut twin = Twin::new(*shift);
            twin.pass(from.as_fd(), root.as_fd())?;
            let gone = |error| Error::host("nobody waits for the copy", error);
            let mut out = std::io::stdout().lock();
            out.write_all(&[COPIED]).and_then(|()| out.flush()).map_err(gone)?;
            std::io::stdin().lock().read_exact(&mut [0]).map_err(gone)?;
            twin.pass(from.as_fd(), root.as_fd())?;
            Ok(Answer::Tree(twin.copied))
        }
        Task::Squash { shifts } => {
            crate::squash::squash(directories, shifts, root.as_fd()).map(Answer::Tree)
        }
        Task::Seal { shift, digests } => {
            let how = (*shift, *digests);
            crate::seal::describe(root.as_fd(), how, layer_out()?).map(Answer::Tree)
        }
    }
}

/// Where layers come from: stdin, and not the buffered one, because the pipe is read in large
/// pieces.
fn layers_in() -> Result<OwnedFd> {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned();
    stdin.map_err(|error| Error::host("cannot read a layer", error))
}

/// Where a layer goes: stdout, in large pieces.
fn layer_out() -> Result<impl Write> {
    let stdout = std::io::stdout().as_fd().try_clone_to_owned();
    let stdout = stdout.map_err(|error| Error::host("cannot write a layer", error))?;
    Ok(std::io::BufWriter::with_capacity(256 << 10, std::fs::File::from(stdout)))
}
