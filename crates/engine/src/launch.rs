//! Starting a worker: by forking ourselves, or by executing `msb` for a program that is not it.

use crate::secrets::Value;
use crate::store::Claim;
use msb_spec::{Error, Kind, Plan, Result, Stage, env};
use msb_sys::socket;
use msb_wire::{Decoder, FrameKind, Head, MAX_REQUEST, Reply, encode};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use zeroize::Zeroizing;

/// Everything a worker begins with.
#[derive(Debug)]
pub struct WorkerStart {
    /// What was decided.
    pub plan: Plan,
    /// The sandbox's directory.
    pub directory: PathBuf,
    /// The lock on it.
    pub lock: OwnedFd,
    /// Locks on the volumes that it uses.
    pub held: Vec<OwnedFd>,
    /// The connection to whoever started it.
    pub caller: OwnedFd,
    /// Where the event log ends.
    pub last_event: Head,
    /// The number of the last Exec.
    pub last_exec: u64,
    /// The values of the Plan's Secrets, in order.
    pub secrets: Vec<Value>,
}

/// How a worker comes to be.
#[derive(Debug, Clone)]
pub enum Launcher {
    /// We are `msb`: fork, and call this in the child. The process has one thread.
    Fork(fn(WorkerStart) -> i32),
    /// We are not: execute `msb`, which reads how to begin from its stdin.
    Execute(PathBuf),
}

/// The argument with which `msb` becomes a worker.
pub const WORKER_ARGUMENT: &str = "__worker";

impl Launcher {
    /// Finds `msb` for a program that is not it: by `MSB_PATH`, beside the program, on PATH, in
    /// the state directory.
    pub fn find(home: &Path) -> Result<Self> {
        let named = std::env::var_os(env::PATH).map(PathBuf::from);
        let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("msb")));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).map(|dir| dir.join("msb"));
        if let Some(named) = &named
            && !named.is_file()
        {
            return Err(Error::new(Kind::NotFound, format!("no `msb` at `{}`", named.display()))
                .hint(format!("{} must name the msb executable", env::PATH)));
        }
        let places = named.into_iter().chain(beside).chain(on_path).chain([home.join("bin/msb")]);
        places.into_iter().find(|place| place.is_file()).map(Self::Execute).ok_or_else(|| {
            Error::new(Kind::NotFound, "the `msb` executable was not found")
                .hint(format!("install it on PATH, or set {} to it", env::PATH))
        })
    }
}

/// What travels to an executed worker as JSON; the lock goes beside it.
#[derive(Serialize, Deserialize)]
struct Letter {
    plan: Plan,
    directory: PathBuf,
    last_event: Head,
    last_exec: u64,
    secrets: Vec<Zeroizing<Vec<u8>>>,
    /// How many locks follow, each with a byte of its own.
    held: usize,
    /// The limit of open files that the worker and its commands have, if ours is another.
    files: Option<u64>,
}

/// What the limit of open files was before it was raised.
static FILES: OnceLock<u64> = OnceLock::new();

/// Lets this process have as many files open as the host allows: one that serves many has several for
/// each call. Workers get the limit of before: commands inherit it, and some close all that they could have.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Some(soft) = limit.current.filter(|soft| limit.maximum.is_none_or(|hard| *soft < hard)) {
        FILES.get_or_init(|| soft);
        let raised = Rlimit { current: limit.maximum, ..limit };
        // What it has may be enough; a call that finds none says so.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

fn lower_file_limit(soft: u64) {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(soft), ..limit });
}

/// The connection to a worker that we have started.
#[derive(Debug)]
pub struct Caller {
    stream: UnixStream,
    decoder: Decoder,
}

/// Starts a worker. The answer is read with [`Caller::ready`]. A worker does not hold what others
/// are to listen at: `listener` stays with the caller.
pub(crate) fn launch(
    launcher: &Launcher,
    plan: Plan,
    claim: &Claim,
    last: (Head, u64),
    secrets: Vec<Value>,
    held: Vec<OwnedFd>,
    listener: Option<UnixListener>,
) -> Result<(Caller, Option<UnixListener>)> {
    let directory = claim.directory.clone();
    let lock =
        claim.lock.try_clone().map_err(|error| Error::host("cannot start a worker", error))?;
    let about = |error: io::Error| Error::host("cannot start a worker", error).at(Stage::Boot);
    let (ours, theirs) = socket::pair().map_err(about)?;
    let (last_event, last_exec) = last;
    match launcher {
        Launcher::Fork(work) => {
            if msb_sys::process::fork().map_err(about)? {
                drop((ours, listener));
                let _ = silence();
                let lock = lock.into();
                let start = WorkerStart {
                    plan,
                    directory,
                    lock,
                    held,
                    caller: theirs,
                    last_event,
                    last_exec,
                    secrets,
                };
                msb_sys::process::leave(work(start));
            }
            // We end soon, and init inherits the worker; it is not waited for.
        }
        Launcher::Execute(path) => {
            let mut child = Command::new(path)
                .arg(WORKER_ARGUMENT)
                .stdin(Stdio::from(theirs))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| {
                    Error::host(format!("cannot execute `{}`", path.display()), error)
                        .at(Stage::Boot)
                })?;
            let (files, count) = (FILES.get().copied(), held.len());
            let letter =
                Letter { plan, directory, last_event, last_exec, secrets, held: count, files };
            let text = serde_json::to_vec(&letter).expect("our own types always serialise");
            let text = Zeroizing::new(text);
            let length = (text.len() as u64).to_le_bytes();
            socket::send_all(ours.as_fd(), &length, &[lock.as_fd()]).map_err(about)?;
            socket::send_all(ours.as_fd(), &text, &[]).map_err(about)?;
            for lock in &held {
                socket::send_all(ours.as_fd(), b"!", &[lock.as_fd()]).map_err(about)?;
            }
            // It forks at once and this one ends.
            child.wait().map_err(about)?;
        }
    }
    let decoder = Decoder::new(MAX_REQUEST);
    Ok((Caller { stream: UnixStream::from(ours), decoder }, listener))
}

/// The worker's side of an execution: reads from stdin how to begin.
pub fn receive_start() -> Result<WorkerStart> {
    let about = |error: io::Error| Error::host("cannot read how to begin", error);
    let caller = rustix::stdio::stdin().try_clone_to_owned().map_err(about)?;
    let mut fds = Vec::new();
    let mut length = [0u8; 8];
    let received = socket::receive(caller.as_fd(), &mut length, &mut fds).map_err(about)?;
    let (8, Some(lock)) = (received, fds.pop()) else {
        return Err(Error::invalid("this is for msb itself to call"));
    };
    let mut stream = UnixStream::from(caller.try_clone().map_err(about)?);
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(0).min(64 << 20);
    let mut text = Zeroizing::new(vec![0; length]);
    stream.read_exact(&mut text).map_err(about)?;
    let letter: Letter = serde_json::from_slice(&text)
        .map_err(|error| Error::new(Kind::Protocol, "cannot read how to begin").cause(error))?;
    let mut held = Vec::new();
    for _ in 0..letter.held {
        let received = socket::receive(caller.as_fd(), &mut [0], &mut held).map_err(about)?;
        if received == 0 {
            return Err(Error::new(Kind::Protocol, "whoever starts us went away"));
        }
    }
    silence().map_err(about)?;
    if let Some(soft) = letter.files {
        lower_file_limit(soft);
    }
    let Letter { plan, directory, last_event, last_exec, secrets, .. } = letter;
    Ok(WorkerStart { plan, directory, lock, held, caller, last_event, last_exec, secrets })
}

/// Lets go of the caller's terminal and files.
pub(crate) fn silence() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

impl Caller {
    /// Waits until the guest runs, or tells why it does not.
    pub fn ready(&mut self) -> Result<()> {
        match self.next_reply()? {
            Reply::Ready => Ok(()),
            Reply::Failed(error) => Err(error),
            other => Err(Error::new(Kind::Protocol, format!("the worker answered {other:?}"))),
        }
    }

    /// Waits until the first command has started, or tells why it has not.
    pub fn started(&mut self) -> Result<()> {
        match self.next_reply()? {
            Reply::Started { .. } => Ok(()),
            Reply::Failed(error) => Err(error),
            other => Err(Error::new(Kind::Protocol, format!("the worker answered {other:?}"))),
        }
    }

    /// Lets the first command start.
    pub fn go(&mut self) -> Result<()> {
        self.stream
            .write_all(&msb_wire::header(FrameKind::Go, 0))
            .map_err(|error| Error::new(Kind::Protocol, "the worker went away").cause(error))
    }

    /// Lets go of the sandbox: it goes on without us.
    pub fn detach(&mut self) -> Result<()> {
        self.stream
            .write_all(&msb_wire::header(FrameKind::Detach, 0))
            .map_err(|error| Error::new(Kind::Protocol, "the worker went away").cause(error))
    }

    /// The next answer.
    pub fn next_reply(&mut self) -> Result<Reply> {
        let gone = |cause: &dyn std::fmt::Display| {
            Error::new(Kind::Protocol, "the worker went away").cause(cause)
        };
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(|error| gone(&error))? {
                return frame.value().map_err(|error| gone(&error));
            }
            // Not a byte further: what follows may be a command's output, for somebody else.
            let missing = self.decoder.missing().map_err(|error| gone(&error))?.min(4096);
            let mut buffer = [0u8; 4096];
            match self.stream.read(&mut buffer[..missing]) {
                Ok(0) => return Err(gone(&"it closed the connection")),
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(&error)),
            }
        }
    }

    /// The connection itself, from here on: the first command's.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }
}

/// Sends a greeting on a new connection.
pub(crate) fn greet(stream: &mut UnixStream, request: &msb_wire::Request) -> io::Result<()> {
    stream.write_all(&encode(FrameKind::Hello, &msb_wire::Hello::new(request.clone())))
}
