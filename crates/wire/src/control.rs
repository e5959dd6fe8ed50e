//! Messages between a worker and its guest.
//!
//! Descriptors travel beside these frames (`SCM_RIGHTS`): an Exec without a terminal brings three,
//! `Files` and the streams into the sandbox one, `Started` of an Exec with a terminal one.

use crate::links::Target;
use msb_spec::{Rlimit, TermSize, UserRef};
use serde::{Deserialize, Serialize};

/// The image's init: the program that becomes PID 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// Absolute paths to try, in this order.
    pub candidates: Vec<String>,
    /// Whether the paths are the usual locations of an init: the first that can be executed is
    /// taken.
    pub guessed: bool,
    /// Arguments after the program name.
    pub args: Vec<String>,
    /// The whole environment; HOME is added if it is missing.
    pub env: Vec<(String, String)>,
    /// Resource limits of the process.
    pub rlimits: Vec<Rlimit>,
    /// Whether systemd is allowed as the init.
    pub systemd: bool,
    /// Whether the process gets no capabilities.
    pub restricted: bool,
    /// Signal that asks the init to shut down; `None` takes the one that the detected init expects.
    pub stop_signal: Option<i32>,
}

/// Why the image's init did not become PID 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InitFailure {
    /// None of the usual paths of an init exists.
    None,
    /// No file exists at the given path.
    NotFound,
    /// The file cannot be executed.
    NotExecutable {
        /// Path of the program inside.
        path: String,
        /// Error number of `execve(2)`.
        errno: i32,
    },
    /// The program is systemd, which was not allowed.
    Systemd {
        /// Path of the program inside.
        path: String,
    },
    /// The guest could not prepare the process.
    Process {
        /// Error number of the kernel.
        errno: i32,
    },
}

/// Messages from the worker to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Starts a command; answered by `Started` or `Failed`.
    Exec {
        /// Number of the Exec in this sandbox.
        id: u64,
        /// Program name and arguments.
        argv: Vec<String>,
        /// The whole environment; HOME is added if it is missing.
        env: Vec<(String, String)>,
        /// Working directory; created if it is missing.
        workdir: String,
        /// User that it runs as; `None` is root.
        user: Option<UserRef>,
        /// Size of a terminal, which replaces the three descriptors.
        tty: Option<TermSize>,
        /// Resource limits of the command.
        rlimits: Vec<Rlimit>,
        /// Whether the sandbox ends with this command: the guest then exits by itself, and all
        /// processes of the sandbox are gone by the time the worker has read the last output.
        last: bool,
        /// Whether processes left in its session are killed when it exits, before `Exited` is sent.
        sweep: bool,
    },
    /// Sends a signal to a command and to the other processes of its session.
    Signal {
        /// Number of the Exec in this sandbox.
        id: u64,
        /// Signal number of Linux, 1 to 64.
        signal: i32,
    },
    /// Sends a signal to all processes of the sandbox.
    SignalAll {
        /// Signal number of Linux, 1 to 64.
        signal: i32,
    },
    /// Serves one file operation on the descriptor beside this frame.
    Files {
        /// User for the access checks; `None` is root.
        user: Option<UserRef>,
    },
    /// Exports the frozen writable disks as an image layer: a tar stream in `Bytes` frames on the
    /// descriptor beside this frame, then a `FileReply`. Only for a microVM that was booted for
    /// this.
    Layer,
    /// Freezes all processes of the sandbox.
    Pause,
    /// Thaws all processes of the sandbox.
    Resume,
    /// Serves SFTP on the descriptor beside this frame.
    Sftp {
        /// User for the access checks; `None` is root.
        user: Option<UserRef>,
    },
    /// Connects the descriptor beside this frame with a listening socket.
    Dial {
        /// User that connects; `None` is root.
        user: Option<UserRef>,
        /// Address to connect to.
        to: Target,
    },
    /// Listens until the descriptor beside this frame closes, and reports each incoming connection
    /// on it.
    Listen {
        /// User that listens; `None` is root.
        user: Option<UserRef>,
        /// Address to listen at.
        at: Target,
        /// Number of this listener, chosen by the client.
        id: u64,
    },
    /// Connects the descriptor beside this frame with an incoming connection.
    Accept {
        /// Number of the listener.
        listener: u64,
        /// Number of the connection at that listener.
        number: u64,
    },
    /// Executes the image's init as PID 1.
    Init(Handover),
}

/// Step at which a command failed to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpawnFailure {
    /// The guest could not create a process or a terminal.
    Process,
    /// There is no such user or group inside.
    User,
    /// Another user than root was requested, and only root is mapped in this sandbox.
    OnlyRoot,
    /// The working directory cannot be entered.
    Workdir,
    /// A resource limit was refused.
    Rlimit,
    /// The program was not found in PATH or at its path.
    NotFound,
    /// The program cannot be executed.
    NotExecutable,
}

/// A limit that only the guest of a microVM can see being reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hit {
    /// The OOM killer of its kernel killed a process.
    Memory,
    /// Its kernel refused to create a process or thread.
    Pids,
    /// The writable layer is full.
    Disk,
}

/// Messages from the guest to the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuest {
    /// The program of a command was executed.
    Started {
        /// Number of the Exec in this sandbox.
        id: u64,
        /// Pid of the command inside the sandbox.
        pid: u32,
    },
    /// A command could not start.
    Failed {
        /// Number of the Exec in this sandbox.
        id: u64,
        /// Step at which it failed.
        failure: SpawnFailure,
        /// Error number of the kernel.
        errno: i32,
    },
    /// A command has exited or was killed.
    Exited {
        /// Number of the Exec in this sandbox.
        id: u64,
        /// Exit code, if it exited by itself.
        code: Option<i32>,
        /// Signal number, if one killed it.
        signal: Option<i32>,
        /// Whether no process but the guest is left, so that the worker need not wait for others.
        alone: bool,
        /// A limit that was reached meanwhile, where only the guest can see it.
        hit: Option<Hit>,
    },
    /// Answer to `Pause` and `Resume`.
    Paused {
        /// Whether all processes are frozen.
        paused: bool,
    },
    /// Answer to `ToGuest::Init`.
    Init {
        /// Why the init did not start; `None` if it did.
        failure: Option<InitFailure>,
    },
    /// The image's init has ended, and with it all processes of its pid namespace.
    InitEnded {
        /// Exit code, if it exited by itself.
        code: Option<i32>,
        /// Signal number, if one killed it.
        signal: Option<i32>,
    },
}
