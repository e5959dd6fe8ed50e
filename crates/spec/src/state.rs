//! Names of the files in a sandbox's directory. The worker writes them, the engine reads them.

/// Lock file, locked while the worker lives.
pub const LOCK: &str = "lock";
/// The Plan of the sandbox, as JSON.
pub const PLAN: &str = "plan.json";
/// New Plan that is about to replace the old one.
pub const CHANGED_PLAN: &str = "plan.changed";
/// Plan with the new name, during a rename.
pub const RENAMED_PLAN: &str = "plan.renamed";
/// Exists until the sandbox is completely created: a partial one is removed.
pub const UNFINISHED: &str = "unfinished";
/// Socket that the worker listens at.
pub const SOCKET: &str = "worker.sock";
/// Output of commands; the previous file has the suffix [`ROTATED`].
pub const OUTPUT: &str = "output.log";
/// Log of Execs: a JSON line at each start and end.
pub const EXECS: &str = "execs.log";
/// Log of events, as JSON lines.
pub const EVENTS: &str = "events.log";
/// Number and hash of the last event, and pid of the worker that wrote it.
pub const HEAD: &str = "events.head";
/// Log of network decisions, as JSON lines.
pub const NETWORK: &str = "net.log";
/// Diagnostic log of the worker and the gateway, with `MSB_LOG`.
pub const DEBUG: &str = "debug.log";
/// Suffix of a log that was rotated.
pub const ROTATED: &str = ".1";
/// The writable layer, as a directory.
pub const LAYER: &str = "layer";
/// Plan that takes effect together with a new writable layer.
pub const NEXT_PLAN: &str = "plan.next";
/// Previous writable layer, until it is archived.
pub const OLD_LAYER: &str = "layer.old";
/// Exists while the changes in the workspace are to be removed with the writable layer.
pub const FORGET_WORKSPACE: &str = "workspace.forget";
/// Previous changes of the workspace, until they are removed.
pub const OLD_WORKSPACE: &str = "workspace.old";
/// Changes that were made in the workspace.
pub const WORKSPACE: &str = "workspace";
/// State of the workspace's host directory, and of a running apply.
pub const REVIEW: &str = "review";
/// Prefix of files with the state of syncs.
pub const SYNCED: &str = "synced-";
/// Socket for requests of the sandbox about children.
pub const CTL: &str = "ctl.sock";
/// Record of the children of a sandbox.
pub const CHILDREN: &str = "children.json";
/// The writable layer, as a disk image.
pub const DISK: &str = "disk.img";
/// Frozen layers of the `process` tier, packed for microVMs.
pub const PACKED_DISK: &str = "disk.erofs";
/// Previous writable disk, until it is archived.
pub const OLD_DISK: &str = "disk.old";
/// Directory for SSH: the sandbox's host key and the authorized keys.
pub const SSH: &str = "ssh";
