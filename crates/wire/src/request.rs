//! What a client asks a worker, and what it is told.

use crate::chain::Head;
use crate::links::Target;
use crate::machine::MachineUsage;
use crate::network::{FromGateway, NetUsage, ToGateway};
use msb_spec::{Asker, Command, Ending, Error, Exit, HealthStatus, Modification, UserRef};
use serde::{Deserialize, Serialize};

/// What whoever feeds an interpreter has the worker note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum CodeNote {
    /// It is told to run this.
    Began {
        /// What is kept of it.
        code: String,
        /// How many bytes more it had.
        cut: Option<u64>,
        /// Who asked for it.
        by: Option<Asker>,
    },
    /// It has run what it was told.
    Ended {
        /// As a shell counts it; none if it had to be interrupted or killed.
        status: Option<i32>,
        /// How long it took, in milliseconds.
        duration_ms: u64,
    },
}

/// The first frame of every connection to a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`crate::VERSION`] of the client. It stays the first field for ever.
    pub version: u32,
    /// What the connection is for.
    pub request: Request,
}

impl Hello {
    /// A greeting of this version.
    pub fn new(request: Request) -> Self {
        Self { version: crate::VERSION, request }
    }
}

/// What a connection is for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Run this. `Started`, output and `Exited` follow.
    Exec(Command),
    /// Take part in an Exec that runs: what it has said lately, then as it comes.
    Attach {
        /// Which.
        id: u64,
    },
    /// Send a signal to an Exec.
    Kill {
        /// Which.
        id: u64,
        /// Signal number.
        signal: i32,
    },
    /// List the Execs that run.
    List,
    /// One file operation, answered by the guest on this same connection.
    Files {
        /// Who does it; none is root.
        user: Option<UserRef>,
    },
    /// What sandboxes wrote before to the disks of a machine, which was started for this alone,
    /// as the layer of an image: `Bytes` frames, then a `FileReply`.
    Layer,
    /// How the sandbox is.
    Status,
    /// How much it uses.
    Usage,
    /// How much it has used, in the last hour.
    History,
    /// Where its event log ends.
    Head,
    /// End it: ask, wait this long, then kill. Answered when it is over.
    Stop {
        /// Milliseconds.
        grace: u64,
    },
    /// Take no new Execs and end with the last.
    Drain,
    /// Stop everything inside where it is. Answered when it has stopped.
    Pause,
    /// Let it go on.
    Resume,
    /// Something for the gateway, which answers.
    Network(ToGateway),
    /// Answered when the sandbox is over, however it ends.
    Wait,
    /// Keep this connection; the sandbox ends when it closes.
    Own,
    /// Stop everything inside until this connection closes. Answered when it has stopped.
    Hold,
    /// Change what was decided, here and on disk, or only tell what would hold at once.
    Modify {
        /// What.
        change: Box<Modification>,
        /// Whether nothing is to be done.
        dry_run: bool,
    },
    /// End this long from now, whatever was said before. Answered with how the sandbox is.
    Renew {
        /// Milliseconds; none is never.
        left: Option<u64>,
    },
    /// Speak SFTP. A [`crate::LinkReply`], then what is said is SFTP and no frames.
    Sftp {
        /// Who does it; none is the sandbox's own.
        user: Option<UserRef>,
    },
    /// Lead to something that listens. A [`crate::LinkReply`], then what is said is for it and from it.
    Dial {
        /// Who does it; none is the sandbox's own.
        user: Option<UserRef>,
        /// Where to.
        to: Target,
    },
    /// Listen inside until this connection closes. [`crate::LinkReply`]s, one for everybody who
    /// connects there.
    Listen {
        /// Who does it; none is the sandbox's own.
        user: Option<UserRef>,
        /// Where.
        at: Target,
        /// What it is called by, chosen at random.
        id: u64,
    },
    /// Lead to somebody who connected there. A [`crate::LinkReply`], then as with `Dial`.
    Accept {
        /// Where it connected: what was listened with.
        listener: u64,
        /// Which one.
        number: u64,
    },
}

/// A worker's answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The guest runs. With patches in the Plan, `Go` is awaited before the first command.
    Ready,
    /// The Exec runs.
    Started {
        /// Its number in this sandbox.
        id: u64,
        /// Its pid inside.
        pid: u32,
    },
    /// The Exec is over.
    Exited(Exit),
    /// It could not be done.
    Failed(Error),
    /// The Execs that run.
    Execs(Vec<ExecStatus>),
    /// How the sandbox is.
    Status(WorkerStatus),
    /// How much it uses.
    Usage(Usage),
    /// What of a change holds at once; the rest does from the next start on.
    Modified(HoldsNow),
    /// How much it has used, the oldest first.
    History(Vec<Sample>),
    /// Where its event log ends.
    Head(Head),
    /// What the gateway answers.
    Network(FromGateway),
    /// The sandbox is over.
    Stopped(Stopped),
    /// Done, nothing to say.
    Done,
}

/// Which parts of a change hold at once, where that is not true of all sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HoldsNow {
    /// Memory.
    pub memory: bool,
    /// Processors.
    pub cpus: bool,
    /// Processes and threads.
    pub pids: bool,
    /// When the first command is begun again.
    pub restart: bool,
}

/// How a sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Stopped {
    /// Why.
    pub ending: Ending,
    /// How its first command ended, if it had one that did.
    pub exit: Option<Exit>,
}

impl Stopped {
    /// The reason as a person reads it; none for an end of its own.
    pub fn reason(&self) -> Option<&'static str> {
        self.ending.reason().or_else(|| self.exit?.reason())
    }
}

/// Where an Exec is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecState {
    /// It runs.
    Running,
    /// It is over.
    Exited(Exit),
}

/// One Exec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStatus {
    /// Its number in this sandbox.
    pub id: u64,
    /// Its pid inside.
    pub pid: u32,
    /// What was started.
    pub argv: Vec<String>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// When, in milliseconds since 1970.
    pub started: u64,
    /// Where it is in its life.
    pub state: ExecState,
}

/// How a sandbox is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WorkerStatus {
    /// The worker's pid on the host.
    pub pid: u32,
    /// When it started, in milliseconds since 1970.
    pub started: u64,
    /// Whether it takes no new Execs.
    pub draining: bool,
    /// Whether everything inside has been stopped where it was.
    pub paused: bool,
    /// Whether that was its idle clock: whatever comes for it wakes it.
    pub asleep: bool,
    /// How many Execs run.
    pub execs: u32,
    /// How often its first command was begun again.
    pub restarts: u32,
    /// How it is, if it has a health check.
    pub health: Option<HealthStatus>,
    /// When it ends at the latest, in milliseconds since 1970.
    pub ends: Option<u64>,
    /// Why it is ending, if it is.
    pub ending: Option<Ending>,
    /// Why some of its logs are missing, if they are.
    pub log_failure: Option<String>,
}

/// How much a sandbox uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// Memory of its processes, in bytes.
    pub memory: u64,
    /// Processes and threads.
    pub pids: u32,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// Bytes read from and written to disks, where somebody counts them.
    pub disk: Option<DiskTraffic>,
    /// What went through its network, if it has one.
    pub net: Option<NetUsage>,
    /// The same as the kernel of its microVM counts it.
    pub guest: Option<MachineUsage>,
}

/// Bytes that went from disks and to them since the sandbox started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskTraffic {
    /// Read.
    pub read: u64,
    /// Written.
    pub written: u64,
}

/// How much a sandbox had used at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Sample {
    /// When, in milliseconds since 1970.
    pub time: u64,
    /// Processor time used so far, in microseconds.
    pub cpu_us: u64,
    /// Memory in bytes, as the host counts it.
    pub memory: u64,
    /// The same as the kernel of its microVM counts it.
    pub guest_memory: Option<u64>,
    /// Processes and threads.
    pub pids: u32,
    /// Bytes read from disks and written to them so far.
    pub disk: Option<DiskTraffic>,
    /// What went through its network so far.
    pub net: Option<NetUsage>,
}
