//! What a worker and its guest say to each other.
//!
//! Descriptors travel beside these frames (SCM_RIGHTS): an Exec without a terminal brings three,
//! `Files` and what leads into the sandbox one, `Started` of an Exec with a terminal one.

use crate::links::Target;
use msb_spec::{Rlimit, TermSize, UserRef};
use serde::{Deserialize, Serialize};

/// Which program becomes PID 1, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handover {
    /// Paths to try, in order.
    pub candidates: Vec<String>,
    /// Whether they are guesses, of which the first that can be executed is taken.
    pub guessed: bool,
    /// Its arguments.
    pub args: Vec<String>,
    /// The whole environment; HOME is added if it is missing.
    pub env: Vec<(String, String)>,
    /// Resource limits.
    pub rlimits: Vec<Rlimit>,
    /// Whether it may be systemd.
    pub systemd: bool,
    /// Whether it gets no capabilities.
    pub restricted: bool,
    /// What ends it; without a word it is asked in its own language.
    pub stop_signal: Option<i32>,
}

/// Why there is no init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum InitFailure {
    /// The image has none where they usually are.
    None,
    /// There is nothing at the path.
    NotFound,
    /// It cannot be executed.
    NotExecutable {
        /// Where it is.
        path: String,
        /// What the kernel said.
        errno: i32,
    },
    /// It is systemd, which may not be.
    Systemd {
        /// Where it is.
        path: String,
    },
    /// The guest could not hand over.
    Process {
        /// What the kernel said.
        errno: i32,
    },
}

/// From the worker to the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToGuest {
    /// Start a command.
    Exec {
        /// Its number.
        id: u64,
        /// Program and arguments.
        argv: Vec<String>,
        /// The whole environment; HOME is added if it is missing.
        env: Vec<(String, String)>,
        /// Where it starts; made if it is missing.
        workdir: String,
        /// Who runs it.
        user: Option<UserRef>,
        /// A terminal instead of the three descriptors.
        tty: Option<TermSize>,
        /// Resource limits.
        rlimits: Vec<Rlimit>,
        /// Whether the sandbox ends with it: the guest then leaves by itself, and everything in
        /// the sandbox is gone by the time the worker has read the last output.
        last: bool,
        /// Whether what it leaves in its session is killed when it ends, before that is told.
        sweep: bool,
    },
    /// Send a signal to a command and what it started in its session.
    Signal {
        /// Which.
        id: u64,
        /// Signal number.
        signal: i32,
    },
    /// Send a signal to everything.
    SignalAll {
        /// Signal number.
        signal: i32,
    },
    /// Serve one file operation on the descriptor beside this frame.
    Files {
        /// Who does it.
        user: Option<UserRef>,
    },
    /// Tell what sandboxes wrote before, as the layer of an image: a tar stream in `Bytes` frames on
    /// the descriptor beside this frame, and a `FileReply` behind the last. Only for a machine
    /// that was started for it.
    Layer,
    /// Stop everything where it is.
    Pause,
    /// Let it go on.
    Resume,
    /// Speak SFTP on the descriptor beside this frame.
    Sftp {
        /// Who does it.
        user: Option<UserRef>,
    },
    /// Join the descriptor beside this frame with something that listens.
    Dial {
        /// Who does it.
        user: Option<UserRef>,
        /// Where to.
        to: Target,
    },
    /// Listen until the descriptor beside this frame closes, and tell there of everybody who
    /// connects.
    Listen {
        /// Who does it.
        user: Option<UserRef>,
        /// Where.
        at: Target,
        /// What it is called by.
        id: u64,
    },
    /// Join the descriptor beside this frame with somebody who connected.
    Accept {
        /// Where: what was listened with.
        listener: u64,
        /// Which one.
        number: u64,
    },
    /// Let the image's init become PID 1.
    Init(Handover),
}

/// Why a command could not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SpawnFailure {
    /// The guest could not make a process or a terminal.
    Process,
    /// There is no such user or group inside.
    User,
    /// This sandbox has only root.
    OnlyRoot,
    /// The working directory cannot be entered.
    Workdir,
    /// A resource limit was refused.
    Rlimit,
    /// The program was not found.
    NotFound,
    /// The program cannot be executed.
    NotExecutable,
}

/// A limit that only the guest of a microVM can see being reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hit {
    /// Its kernel killed something for want of memory.
    Memory,
    /// Its kernel refused a process.
    Pids,
    /// The writable layer is full.
    Disk,
}

/// From the guest to the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromGuest {
    /// The command runs.
    Started {
        /// Its number.
        id: u64,
        /// Its pid inside.
        pid: u32,
    },
    /// The command could not start.
    Failed {
        /// Its number.
        id: u64,
        /// Why.
        failure: SpawnFailure,
        /// What the kernel said.
        errno: i32,
    },
    /// The command is over.
    Exited {
        /// Its number.
        id: u64,
        /// Exit code, if it exited.
        code: Option<i32>,
        /// Signal, if one killed it.
        signal: Option<i32>,
        /// Whether nothing but the guest is left. Only then need nobody wait for its end.
        alone: bool,
        /// A limit that something ran into meanwhile, where only the guest can know.
        hit: Option<Hit>,
    },
    /// The answer to being paused or resumed.
    Paused {
        /// Whether everything stands still.
        paused: bool,
    },
    /// The answer to being told to let an init become PID 1.
    Init {
        /// Why it did not.
        failure: Option<InitFailure>,
    },
    /// PID 1 is over, and everything inside with it.
    InitEnded {
        /// Exit code, if it exited.
        code: Option<i32>,
        /// Signal, if one killed it.
        signal: Option<i32>,
    },
}
