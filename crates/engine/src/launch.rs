//! Starts a worker: by forking (`msb`), or by executing `msb __worker` (SDK programs).

use crate::connection::Connection;
use crate::secrets::SecretValue;
use crate::store::LockedSandbox;
use msb_spec::{Error, Kind, Plan, Result, Stage, env};
use msb_sys::socket;
use msb_wire::{ClientMessage, Head, WorkerEvent};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use zeroize::Zeroizing;

/// Everything that a new worker is given.
#[derive(Debug)]
pub struct WorkerStart {
    /// The Plan of the sandbox.
    pub plan: Plan,
    /// The directory of the sandbox.
    pub directory: PathBuf,
    /// The lock on the directory.
    pub lock: OwnedFd,
    /// Locks on the volumes of the Plan.
    pub held: Vec<OwnedFd>,
    /// The connection to the process that started the worker.
    pub caller: OwnedFd,
    /// Number and hash of the last event in the log.
    pub last_event: Head,
    /// The id of the last Exec.
    pub last_exec: u64,
    /// The values of the Secrets of the Plan, in its order.
    pub secrets: Vec<SecretValue>,
}

/// How workers are started.
#[derive(Debug, Clone)]
pub enum Launcher {
    /// This program is `msb`: fork and call this function in the child. The process must have one
    /// thread.
    Fork(fn(WorkerStart) -> i32),
    /// This program is not `msb`: execute the one at this path, which reads its start data from
    /// stdin.
    Execute(PathBuf),
}

/// The argument that makes `msb` a worker.
pub const WORKER_ARGUMENT: &str = "__worker";

impl Launcher {
    /// Finds the `msb` executable: `MSB_PATH`, the directory of this program, PATH, `bin/` of the
    /// state directory.
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

/// The start data of an executed worker, as JSON. Locks are sent as descriptors.
#[derive(Serialize, Deserialize)]
struct LaunchRequest {
    plan: Plan,
    directory: PathBuf,
    last_event: Head,
    last_exec: u64,
    secrets: Vec<Zeroizing<Vec<u8>>>,
    /// How many volume locks follow, each as a descriptor with one byte.
    held: usize,
    /// The soft limit of open files for the worker and its commands, if it differs from ours.
    files: Option<u64>,
}

/// The soft limit of open files before it was raised.
static ORIGINAL_NOFILE: OnceLock<u64> = OnceLock::new();

/// Raises the soft limit of open files to the hard limit: a server has several descriptors for each
/// call. Workers get the original limit back, because commands inherit it and some close every
/// possible descriptor.
pub fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Some(soft) = limit.current.filter(|soft| limit.maximum.is_none_or(|hard| *soft < hard)) {
        ORIGINAL_NOFILE.get_or_init(|| soft);
        let raised = Rlimit { current: limit.maximum, ..limit };
        // The original limit may suffice; a call that runs out of descriptors fails.
        msb_log::debug_on_failure!(
            setrlimit(Resource::Nofile, raised),
            "cannot raise the limit of open files"
        );
    }
}

fn lower_file_limit(soft: u64) {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(soft), ..limit });
}

/// The connection to a worker that this process has started.
#[derive(Debug)]
pub(crate) struct Caller(Connection);

/// Starts a worker; its first reply is read with [`Caller::ready`]. Returns the Plan, and `listener`,
/// which the worker does not get.
pub(crate) fn launch(
    launcher: &Launcher,
    plan: Plan,
    claim: &LockedSandbox,
    last: (Head, u64),
    secrets: Vec<SecretValue>,
    held: Vec<OwnedFd>,
    listener: Option<UnixListener>,
) -> Result<(Caller, Plan, Option<UnixListener>)> {
    let directory = claim.directory.clone();
    let lock =
        claim.lock.try_clone().map_err(|error| Error::host("cannot start a worker", error))?;
    let about = |error: io::Error| Error::host("cannot start a worker", error).at(Stage::Boot);
    tracing::debug!(sandbox = %plan.name, tier = ?plan.isolation, "starting a worker");
    let (ours, theirs) = socket::pair().map_err(about)?;
    let (last_event, last_exec) = last;
    let plan = match launcher {
        Launcher::Fork(work) => {
            if msb_sys::process::fork().map_err(about)? {
                drop((ours, listener));
                msb_log::debug_on_failure!(redirect_stdio_to_null(), "cannot open /dev/null");
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
            // This process ends soon and init reaps the worker, so it is not waited for.
            plan
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
            let (files, count) = (ORIGINAL_NOFILE.get().copied(), held.len());
            let request = LaunchRequest {
                plan,
                directory,
                last_event,
                last_exec,
                secrets,
                held: count,
                files,
            };
            if let Err(error) = send_start(&ours, &request, &lock, &held) {
                // It cannot start without all of its data, so it exits.
                drop(ours);
                let _ = child.wait();
                return Err(about(error));
            }
            // It forks at once; the process that we started exits.
            child.wait().map_err(about)?;
            request.plan
        }
    };
    let caller = Caller(Connection::from_stream(UnixStream::from(ours)));
    Ok((caller, plan, listener))
}

/// Sends the start data to an executed worker, as [`receive_start`] reads it.
fn send_start(
    worker: &OwnedFd,
    request: &LaunchRequest,
    lock: &File,
    held: &[OwnedFd],
) -> io::Result<()> {
    let text = serde_json::to_vec(request).expect("our own types always serialise");
    let text = Zeroizing::new(text);
    let length = (text.len() as u64).to_le_bytes();
    socket::send_all(worker.as_fd(), &length, &[lock.as_fd()])?;
    socket::send_all(worker.as_fd(), &text, &[])?;
    held.iter().try_for_each(|lock| socket::send_all(worker.as_fd(), b"!", &[lock.as_fd()]))
}

/// Reads the start data from stdin, in an executed worker.
pub fn receive_start() -> Result<WorkerStart> {
    let about = |error: io::Error| Error::host("cannot read the start data of the worker", error);
    let caller = rustix::stdio::stdin().try_clone_to_owned().map_err(about)?;
    let mut fds = Vec::new();
    let mut length = [0u8; 8];
    let received = socket::receive(caller.as_fd(), &mut length, &mut fds).map_err(about)?;
    let (8, Some(lock)) = (received, fds.pop()) else {
        return Err(Error::invalid("this command is internal to msb"));
    };
    let mut stream = UnixStream::from(caller.try_clone().map_err(about)?);
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(0).min(64 << 20);
    let mut text = Zeroizing::new(vec![0; length]);
    stream.read_exact(&mut text).map_err(about)?;
    let request: LaunchRequest = serde_json::from_slice(&text).map_err(|error| {
        Error::new(Kind::Protocol, "cannot read the start data of the worker").cause(error)
    })?;
    let mut held = Vec::new();
    for _ in 0..request.held {
        let received = socket::receive(caller.as_fd(), &mut [0], &mut held).map_err(about)?;
        if received == 0 {
            return Err(Error::new(
                Kind::Protocol,
                "the process that starts the worker has exited",
            ));
        }
    }
    redirect_stdio_to_null().map_err(about)?;
    if let Some(soft) = request.files {
        lower_file_limit(soft);
    }
    let LaunchRequest { plan, directory, last_event, last_exec, secrets, .. } = request;
    Ok(WorkerStart { plan, directory, lock, held, caller, last_event, last_exec, secrets })
}

/// Points stdin, stdout and stderr at /dev/null.
pub(crate) fn redirect_stdio_to_null() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    Ok(())
}

impl Caller {
    /// Waits until the guest runs; the error says why it does not.
    pub(crate) fn ready(&mut self) -> Result<()> {
        match self.next_event()? {
            WorkerEvent::Ready => {
                tracing::debug!("the guest runs");
                Ok(())
            }
            other => Err(Error::new(Kind::Protocol, format!("the worker answered {other:?}"))),
        }
    }

    /// Waits until the first command has started; the error says why it has not.
    pub(crate) fn started(&mut self) -> Result<()> {
        match self.next_event()? {
            WorkerEvent::Started { .. } => Ok(()),
            other => Err(Error::new(Kind::Protocol, format!("the worker answered {other:?}"))),
        }
    }

    /// Lets the first command start, after patches were applied.
    pub(crate) fn go(&mut self) -> Result<()> {
        self.0.send(&ClientMessage::Go.encode())
    }

    /// Detaches: the sandbox outlives this connection.
    pub(crate) fn detach(&mut self) -> Result<()> {
        self.0.send(&ClientMessage::Detach.encode())
    }

    /// Reads the next event of the worker, and nothing beyond it.
    fn next_event(&mut self) -> Result<WorkerEvent> {
        let gone = |cause: &dyn std::fmt::Display| {
            Error::new(Kind::Protocol, "the worker went away").cause(cause)
        };
        let event = self.0.next_event_only().map_err(|error| error.into_error(gone))?;
        event.ok_or_else(|| gone(&"it closed the connection"))
    }

    /// The connection, which carries the frames of the first command.
    pub(crate) fn connection(&mut self) -> &mut Connection {
        &mut self.0
    }

    /// The socket, which carries the frames of the first command from here on.
    pub(crate) fn into_stream(self) -> UnixStream {
        self.0.into_stream()
    }
}
