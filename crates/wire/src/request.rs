//! Requests of a client to a worker, and the replies.

use crate::chain::Head;
use crate::links::Target;
use crate::machine::MachineUsage;
use crate::network::{FromGateway, NetUsage, ToGateway};
use msb_spec::{CallOrigin, Command, Ending, Error, Exit, HealthStatus, Modification, UserRef};
use serde::{Deserialize, Serialize};

/// Start or end of a code run, reported by the client that feeds an interpreter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodeNote {
    /// Code was sent to the interpreter.
    Began {
        /// The code, cut to the recorded length.
        code: String,
        /// Bytes that were cut off, if any.
        cut: Option<u64>,
        /// Caller that requested it, if known.
        by: Option<CallOrigin>,
    },
    /// The interpreter has run the code.
    Ended {
        /// Exit status as in a shell; `None` if it was interrupted or killed.
        status: Option<i32>,
        /// Run time of the code in milliseconds.
        duration_ms: u64,
    },
}

/// The first frame of every connection to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::VERSION`] of the client. It stays the first field for ever.
    pub version: u32,
    /// The request that this connection is for.
    pub request: Request,
}

impl Hello {
    /// A first frame of this protocol version.
    pub fn new(request: Request) -> Self {
        Self { version: crate::VERSION, request }
    }
}

/// The one request of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Runs a command. `Started`, output and `Exited` follow.
    Exec(Command),
    /// Attaches to a running Exec: its recent output follows, then new output as it comes.
    Attach {
        /// Number of the Exec in this sandbox.
        id: u64,
    },
    /// Sends a signal to an Exec.
    Kill {
        /// Number of the Exec in this sandbox.
        id: u64,
        /// Signal number of Linux, 1 to 64.
        signal: i32,
    },
    /// Lists the Execs that are running.
    List,
    /// One file operation, answered by the guest on this connection.
    Files {
        /// User for the access checks; `None` is root.
        user: Option<UserRef>,
    },
    /// Exports the frozen disks of a microVM that was booted for this, as an image layer: `Bytes`
    /// frames, then a `FileReply`.
    Layer,
    /// Requests the status of the sandbox.
    Status,
    /// Requests the current resource usage.
    Usage,
    /// Requests the resource usage of the last hour.
    History,
    /// Requests the end of the event log.
    Head,
    /// Stops the sandbox: sends the stop signal, waits `grace`, then kills. Answered when it has
    /// stopped.
    Stop {
        /// Time between signal and kill, in milliseconds.
        grace: u64,
    },
    /// Accepts no new Execs and stops with the last one.
    Drain,
    /// Freezes all processes inside. Answered when they are frozen.
    Pause,
    /// Thaws all processes inside the sandbox.
    Resume,
    /// Passes a request to the gateway, which answers.
    Network(ToGateway),
    /// Waits until the sandbox has stopped, for whatever reason.
    Wait,
    /// Ties the sandbox to this connection: it stops when the connection closes.
    Own,
    /// Freezes all processes inside until this connection closes. Answered when they are frozen.
    Hold,
    /// Changes the Plan, in memory and on disk, or only tells what would take effect at once.
    Modify {
        /// Settings to change, and their values.
        change: Box<Modification>,
        /// Whether the change is only evaluated.
        dry_run: bool,
    },
    /// Sets the expiry to now + `left`. Answered with the status.
    Renew {
        /// Milliseconds; `None` removes the expiry.
        left: Option<u64>,
    },
    /// Opens an SFTP session: a [`crate::LinkReply`], then raw SFTP without frames.
    Sftp {
        /// User for the access checks; `None` is the sandbox's own.
        user: Option<UserRef>,
    },
    /// Connects to a listening socket inside: a [`crate::LinkReply`], then raw bytes.
    Dial {
        /// User that connects; `None` is the sandbox's own.
        user: Option<UserRef>,
        /// Address to connect to.
        to: Target,
    },
    /// Listens inside until this connection closes: one [`crate::LinkReply`] for each peer that
    /// connects.
    Listen {
        /// User that listens; `None` is the sandbox's own.
        user: Option<UserRef>,
        /// Address to listen at.
        at: Target,
        /// Number of the listener, chosen at random by the client.
        id: u64,
    },
    /// Takes over a connection of a listener: a [`crate::LinkReply`], then raw bytes.
    Accept {
        /// Number of the listener, as in `Listen`.
        listener: u64,
        /// Number of the connection at that listener.
        number: u64,
    },
}

/// Reply of a worker; some requests get several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The guest has started. If the Plan has patches, the worker waits for `Go` before it starts
    /// the first command.
    Ready,
    /// The program of the Exec was executed.
    Started {
        /// Number of the Exec in this sandbox.
        id: u64,
        /// Pid of the command inside the sandbox.
        pid: u32,
    },
    /// The command of the Exec has ended.
    Exited(Exit),
    /// The request failed with this error.
    Failed(Error),
    /// The Execs that are running.
    Execs(Vec<ExecStatus>),
    /// Status of the sandbox and its worker.
    Status(WorkerStatus),
    /// Current resource usage of the sandbox.
    Usage(Usage),
    /// Which parts of a change took effect at once; the rest does at the next start.
    Modified(HoldsNow),
    /// Resource usage over time, oldest first.
    History(Vec<Sample>),
    /// The end of the event log.
    Head(Head),
    /// The answer of the gateway.
    Network(FromGateway),
    /// The sandbox has stopped, and why.
    Stopped(StopResult),
    /// The request succeeded; there is no data.
    Done,
}

/// Which parts of a change took effect at once, where that differs between sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HoldsNow {
    /// Whether the memory limit did.
    pub memory: bool,
    /// Whether the CPU limit did.
    pub cpus: bool,
    /// Whether the limit of processes did.
    pub pids: bool,
    /// Whether the restart policy did.
    pub restart: bool,
}

/// Why and how a sandbox stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Stopped"))]
pub struct StopResult {
    /// Reason why the sandbox stopped.
    pub ending: Ending,
    /// Exit of its first command, if it had one that ended.
    pub exit: Option<Exit>,
}

impl StopResult {
    /// Reason as a text for users; `None` if it exited by itself.
    pub fn reason(&self) -> Option<&'static str> {
        self.ending.reason().or_else(|| self.exit?.reason())
    }
}

/// Whether an Exec runs or has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecState {
    /// The command is still running.
    Running,
    /// The command has ended, and how.
    Exited(Exit),
}

/// State of one Exec, as listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStatus {
    /// Number of the Exec in this sandbox.
    pub id: u64,
    /// Pid of the command inside the sandbox.
    pub pid: u32,
    /// Program name and arguments.
    pub argv: Vec<String>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// Start time in milliseconds since 1970.
    pub started: u64,
    /// Whether it runs or has ended.
    pub state: ExecState,
}

/// Status of a sandbox and its worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerStatus {
    /// Pid of the worker on the host.
    pub pid: u32,
    /// Start time in milliseconds since 1970.
    pub started: u64,
    /// Whether it accepts no new Execs.
    pub draining: bool,
    /// Whether all processes inside are frozen.
    pub paused: bool,
    /// Whether its idle timer paused it: the next request or packet resumes it.
    pub asleep: bool,
    /// Number of Execs that are running.
    pub execs: u32,
    /// Number of restarts of its first command.
    pub restarts: u32,
    /// Health status, if it has a health check.
    pub health: Option<HealthStatus>,
    /// Expiry in milliseconds since 1970; `None` means never.
    pub ends: Option<u64>,
    /// Reason why it is stopping, if it is.
    pub ending: Option<Ending>,
    /// Error because of which logs are incomplete, if any.
    pub log_failure: Option<String>,
}

/// Resource usage of a sandbox now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time used, in microseconds.
    pub cpu_us: u64,
    /// Memory of its processes, in bytes.
    pub memory: u64,
    /// Number of processes and threads.
    pub pids: u32,
    /// Milliseconds since the sandbox started.
    pub uptime_ms: u64,
    /// Disk I/O; `None` where it is not counted.
    pub disk: Option<DiskTraffic>,
    /// Network traffic; `None` without a network.
    pub net: Option<NetUsage>,
    /// Usage as the kernel of its microVM counts it; `None` for the `process` tier.
    pub guest: Option<MachineUsage>,
}

/// Disk I/O of a sandbox since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskTraffic {
    /// Bytes read from disks.
    pub read: u64,
    /// Bytes written to disks.
    pub written: u64,
}

/// Resource usage of a sandbox at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sample {
    /// Time in milliseconds since 1970.
    pub time: u64,
    /// CPU time used so far, in microseconds.
    pub cpu_us: u64,
    /// Memory in bytes, as the host counts it.
    pub memory: u64,
    /// Memory in bytes, as the kernel of its microVM counts it.
    pub guest_memory: Option<u64>,
    /// Number of processes and threads.
    pub pids: u32,
    /// Disk I/O so far; `None` where it is not counted.
    pub disk: Option<DiskTraffic>,
    /// Network traffic so far; `None` without a network.
    pub net: Option<NetUsage>,
}
