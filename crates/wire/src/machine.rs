//! What a worker and the guest of a microVM say to each other.
//!
//! The guest opens every connection, to one vsock port of the host. The first is the control
//! connection: [`Boot`] comes down it before anything else, [`FromMachine`] goes up. The others are
//! spare ones. Anybody inside may open a connection to that port, so a spare one begins with a `Hello`
//! frame whose payload is [`Boot::token`]; the worker uses none that does not.
//!
//! The worker uses one up for each Exec (`ToGuest::Exec`, then `Stdin`, `Resize`,
//! `Signal` and `Hush` frames down, `FromGuest`, `Stdout` and `Stderr` up) or file operation
//! (`ToGuest::Files` or `ToGuest::Layer`, then what is said on the client's own connection), and the guest opens another.
//! The guest closes none of them first: the machine between the two drops what it has not passed on.
//! A command whose stdin is closed gets an empty `Stdin` frame at once. When the worker has read
//! `Exited` it closes the connection; after the last Exec the guest waits for that before it
//! switches off.

use crate::{Handover, InitFailure};
use msb_spec::{Bytes, Hostname};
use serde::{Deserialize, Serialize};

/// The vsock port of the host that a guest connects to. There is no other.
pub const MACHINE_PORT: u32 = 1;
/// What a connection begins with that is for whoever answers about children. Anybody inside may
/// open one, so there is no secret in it.
pub const CTL_HELLO: &[u8] = b"ctl";
/// How many spare connections a guest keeps open.
pub const SPARE_CONNECTIONS: usize = 2;

/// How to become the sandbox: the first frame of the control connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// [`crate::VERSION`] of the worker.
    pub version: u32,
    /// Its host name.
    pub hostname: Hostname,
    /// Wall clock in nanoseconds since 1970.
    pub time_ns: u64,
    /// Bytes to begin the random generator with.
    pub seed: [u8; 32],
    /// Which connections are the guest's own: each but this one begins with it.
    pub token: [u8; 16],
    /// What the root is made of.
    pub root: MachineRoot,
    /// Disks that sandboxes wrote before, of which only reading is left, the topmost first.
    pub written: Vec<WrittenDisk>,
    /// Memory file systems inside.
    pub tmpfs: Vec<(String, Bytes)>,
    /// Host paths shown inside, in the order they are mounted.
    pub mounts: Vec<MachineMount>,
    /// Most processes and threads of all commands together.
    pub pids: Option<u32>,
    /// Whether commands get no capabilities.
    pub restricted: bool,
    /// Whether the sandbox ends with its first command and keeps nothing.
    pub ephemeral: bool,
    /// Its network, if it has one.
    pub network: Option<BootNetwork>,
    /// Whether it may ask for children.
    pub ctl: bool,
    /// Whether an init of its own becomes PID 1.
    pub init: bool,
}

/// What a guest cannot know of its network; all else is the same in every sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootNetwork {
    /// The certificate of the gateway's own authority, in PEM, if it looks into anything.
    pub authority: Option<String>,
}

/// What the root of a machine is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineRoot {
    /// A read-only disk below an overlay that is kept on a writable one.
    Image {
        /// The device that holds it, such as `vdb`.
        device: String,
        /// Its file system.
        fstype: String,
        /// The device of what the sandbox writes, an ext4. Nothing runs in a machine without one:
        /// it only tells what sandboxes wrote before.
        upper: Option<String>,
    },
    /// Host directories, shared read-only, below overlays that are kept on a writable disk.
    Shares {
        /// In the order they are mounted; the first is `/`.
        overlays: Vec<ShareOverlay>,
        /// As of an image.
        upper: Option<String>,
    },
}

/// A disk that sandboxes wrote before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenDisk {
    /// Its device.
    pub device: String,
    /// Its file system.
    pub fstype: String,
}

/// One overlay of host directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareOverlay {
    /// Where it appears inside.
    pub at: String,
    /// Tags of the shares below it, topmost first.
    pub tags: Vec<String>,
}

/// A host path or a volume shown inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineMount {
    /// The tag of the share, or the name of the disk.
    pub tag: String,
    /// Whether it is a disk with an ext4 on it, and not a share.
    pub disk: bool,
    /// Where it appears.
    pub guest: String,
    /// Whether writing is refused. The host refuses it too.
    pub read_only: bool,
    /// The share holds one file of this name, which is what is shown.
    pub file: Option<String>,
}

/// From the worker, on the control connection, after [`Boot`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMachine {
    /// Send a signal to everything but the guest.
    SignalAll {
        /// Signal number.
        signal: i32,
    },
    /// Send a signal to a command and what it started in its session. Here, because on the
    /// Exec's own connection it would wait behind bytes that the command does not read.
    Signal {
        /// The number of its Exec.
        id: u64,
        /// Signal number.
        signal: i32,
    },
    /// End everything, write everything to disk and switch off.
    PowerOff,
    /// Say how much is used.
    Measure,
    /// Write everything to the disk that is kept, and let nobody write to it until told.
    Hold,
    /// Let everybody write again.
    Release,
    /// Let the image's init become PID 1.
    Init(Handover),
}

/// From the guest, on the control connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromMachine {
    /// The sandbox is as [`Boot`] wants it.
    Ready,
    /// It cannot be.
    Failed {
        /// What was being done.
        doing: String,
        /// What the kernel said.
        errno: i32,
    },
    /// How much is used, seen from inside.
    Usage(MachineUsage),
    /// The answer to being held or released.
    Held {
        /// Whether nobody writes.
        held: bool,
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

/// How much a machine uses, as its own kernel counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineUsage {
    /// Bytes of memory in use that cannot be had back at once.
    pub memory: u64,
    /// Bytes of memory that it has.
    pub memory_total: u64,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// Processes and threads of commands.
    pub pids: u32,
    /// Bytes that the sandbox has written and kept.
    pub disk: u64,
    /// Bytes read from its disks.
    #[serde(default)]
    pub disk_read: u64,
    /// Bytes written to them.
    #[serde(default)]
    pub disk_written: u64,
}
