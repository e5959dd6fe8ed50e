//! Messages between a worker and the guest of a microVM.
//!
//! The guest opens all connections, to one vsock port of the host. The first is the control
//! connection: [`Boot`] comes down it before anything else, [`FromMachine`] goes up. The others are
//! spare connections. Any process inside may connect to that port, so a spare connection begins
//! with a `Hello` frame that carries [`Boot::token`]; the worker drops those that do not.
//!
//! The worker takes one spare connection for each Exec or file operation, and the guest opens
//! another:
//! - Exec: `ToGuest::Exec`, then `Stdin`, `Resize`, `Signal` and close-output frames down;
//!   `FromGuest`, `Stdout` and `Stderr` up.
//! - File operation: `ToGuest::Files` or `ToGuest::Layer`, then the frames of the client's own
//!   connection.
//!
//! The guest closes none of them first: the VMM drops what it has not forwarded yet. A command with
//! a closed stdin gets an empty `Stdin` frame at once. When the worker has read `Exited` it closes
//! the connection; after the last Exec the guest waits for that before it powers off.

use crate::{Handover, InitFailure};
use msb_spec::{Bytes, Hostname};
use serde::{Deserialize, Serialize};

/// The only vsock port of the host that a guest can connect to.
pub const MACHINE_PORT: u32 = 1;
/// First payload of a connection for requests about child sandboxes. Any process inside may open
/// one, so it is no secret.
pub const CTL_HELLO: &[u8] = b"ctl";
/// Spare connections that a guest keeps open.
pub const SPARE_CONNECTIONS: usize = 2;

/// Configuration of a microVM: the first frame of the control connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// [`crate::VERSION`] of the worker, compared by the guest.
    pub version: u32,
    /// Host name of the sandbox.
    pub hostname: Hostname,
    /// Wall clock in nanoseconds since 1970.
    pub time_ns: u64,
    /// Seed for the kernel's random generator.
    pub seed: [u8; 32],
    /// Secret that spare connections begin with: proves that the guest opened them.
    pub token: [u8; 16],
    /// Disks or shares of the root file system.
    pub root: MachineRoot,
    /// Frozen writable disks, read-only, topmost first.
    pub written: Vec<WrittenDisk>,
    /// Tmpfs mounts inside the sandbox.
    pub tmpfs: Vec<MachineTmpfs>,
    /// Shares and volumes, in the order they are mounted.
    pub mounts: Vec<MachineMount>,
    /// Limit of processes and threads for all commands together.
    pub pids: Option<u32>,
    /// Whether commands get no capabilities.
    pub restricted: bool,
    /// Whether the sandbox ends with its first command and keeps nothing.
    pub ephemeral: bool,
    /// Network configuration; `None` without a network.
    pub network: Option<BootNetwork>,
    /// Whether it may request child sandboxes.
    pub ctl: bool,
    /// Whether the image's own init becomes PID 1.
    pub init: bool,
}

/// Network configuration that differs between sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootNetwork {
    /// CA certificate of the gateway in PEM, if it intercepts TLS.
    pub authority: Option<String>,
}

/// Root file system of a microVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum MachineRoot {
    /// A read-only disk below an overlay on a writable disk.
    Image {
        /// Device name of the read-only disk, such as `vdb`.
        device: String,
        /// File system type of the read-only disk.
        fstype: String,
        /// Device name of the writable ext4 disk. Without one the microVM runs no command: it only
        /// exports frozen disks.
        upper: Option<String>,
    },
    /// Read-only shares of host directories below overlays on a writable disk.
    Shares {
        /// Overlays in the order they are mounted; the first is `/`.
        overlays: Vec<ShareOverlay>,
        /// Device name of the writable ext4 disk, as in `Image`.
        upper: Option<String>,
    },
}

/// A frozen writable disk of an earlier sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenDisk {
    /// Device name of the disk, such as `vdc`.
    pub device: String,
    /// File system type of the disk.
    pub fstype: String,
}

/// An overlay of shared host directories.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareOverlay {
    /// Mount point inside the sandbox.
    pub at: String,
    /// virtiofs tags of the lower directories, topmost first.
    pub tags: Vec<String>,
}

/// A host path or a volume mounted inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineMount {
    /// virtiofs tag of the share, or device name of the disk.
    pub tag: String,
    /// Whether it is an ext4 disk and not a share.
    pub disk: bool,
    /// Mount point inside the sandbox.
    pub guest: String,
    /// Whether writes are refused. The host refuses them too.
    pub read_only: bool,
    /// Whether its files cannot be executed.
    pub no_exec: bool,
    /// Name of the single file in the share that is mounted; `None` mounts the directory.
    pub file: Option<String>,
}

/// A tmpfs mounted inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineTmpfs {
    /// Mount point inside the sandbox.
    pub guest: String,
    /// Size limit of the file system.
    pub size: Bytes,
    /// Whether writes to it are refused.
    pub read_only: bool,
    /// Whether its files cannot be executed.
    pub no_exec: bool,
}

/// Messages from the worker on the control connection, after [`Boot`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMachine {
    /// Sends a signal to all processes but the guest.
    SignalAll {
        /// Signal number of Linux, 1 to 64.
        signal: i32,
    },
    /// Sends a signal to a command and to the other processes of its session. Not on the Exec's own
    /// connection: there it would wait behind stdin bytes that the command does not read.
    Signal {
        /// Number of the Exec in this sandbox.
        id: u64,
        /// Signal number of Linux, 1 to 64.
        signal: i32,
    },
    /// Kills all processes, syncs all disks and powers off.
    PowerOff,
    /// Requests a `Usage` message from the guest.
    Measure,
    /// Syncs and freezes the writable disk until `Release`.
    Hold,
    /// Thaws the writable disk after `Hold`.
    Release,
    /// Executes the image's init as PID 1.
    Init(Handover),
}

/// Messages from the guest on the control connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromMachine {
    /// The sandbox is set up as [`Boot`] says.
    Ready,
    /// The sandbox could not be set up.
    Failed {
        /// Step that failed, such as a mount.
        doing: String,
        /// Error number of the kernel.
        errno: i32,
    },
    /// Resource usage, measured inside.
    Usage(MachineUsage),
    /// Answer to `Hold` and `Release`.
    Held {
        /// Whether the writable disk is frozen.
        held: bool,
    },
    /// Answer to `ToMachine::Init`.
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

/// Resource usage of a microVM, as its own kernel counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MachineUsage {
    /// Memory in use in bytes: total less available.
    pub memory: u64,
    /// Memory of the microVM in bytes.
    pub memory_total: u64,
    /// CPU time used, in microseconds.
    pub cpu_us: u64,
    /// Processes and threads of all commands.
    pub pids: u32,
    /// Bytes used on the writable disk.
    pub disk: u64,
    /// Bytes read from its disks.
    #[serde(default)]
    pub disk_read: u64,
    /// Bytes written to its disks.
    #[serde(default)]
    pub disk_written: u64,
}
