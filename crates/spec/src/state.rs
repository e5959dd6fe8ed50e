//! Names of the files in a sandbox's directory, for the worker that writes them and the engine
//! that reads them.

/// Held while the worker lives.
pub const LOCK: &str = "lock";
/// The Plan, as JSON.
pub const PLAN: &str = "plan.json";
/// The Plan that is about to take its place.
pub const CHANGED_PLAN: &str = "plan.changed";
/// The Plan of the name that the directory is about to get.
pub const RENAMED_PLAN: &str = "plan.renamed";
/// There until the sandbox is as its Plan wants it: half a sandbox does not outlive its maker.
pub const UNFINISHED: &str = "unfinished";
/// Where the worker listens.
pub const SOCKET: &str = "worker.sock";
/// What commands have said; the one before it has [`ROTATED`] behind its name.
pub const OUTPUT: &str = "output.log";
/// Which commands have run, a JSON line each at start and end.
pub const EXECS: &str = "execs.log";
/// What has happened, a JSON line each.
pub const EVENTS: &str = "events.log";
/// The number and the hash of the last of them, and whose worker wrote it.
pub const HEAD: &str = "events.head";
/// What was decided for its flows, a JSON line each.
pub const NETWORK: &str = "net.log";
/// Behind the name of a log that was full.
pub const ROTATED: &str = ".1";
/// The writable layer, as a directory.
pub const LAYER: &str = "layer";
/// The Plan that comes into force together with a new writable layer.
pub const NEXT_PLAN: &str = "plan.next";
/// The writable layer that was, until it is put where it belongs.
pub const OLD_LAYER: &str = "layer.old";
/// There while the changes in the workspace are to go together with the writable layer.
pub const FORGET_WORKSPACE: &str = "workspace.forget";
/// The changes that were, until they are removed.
pub const OLD_WORKSPACE: &str = "workspace.old";
/// What was changed in the workspace.
pub const WORKSPACE: &str = "workspace";
/// What is known of the workspace's host directory, and what is being done to it.
pub const REVIEW: &str = "review";
/// Before the names of files that say what syncs have sent.
pub const SYNCED: &str = "synced-";
/// Where a sandbox is heard that asks for children.
pub const CTL: &str = "ctl.sock";
/// What is kept about the children of a sandbox.
pub const CHILDREN: &str = "children.json";
/// The writable layer, as a disk.
pub const DISK: &str = "disk.img";
/// What sandboxes of the `process` tier wrote, packed for machines.
pub const PACKED_DISK: &str = "disk.erofs";
/// The disk that was, until it is put where it belongs.
pub const OLD_DISK: &str = "disk.old";
/// What those who come by SSH need: the sandbox's host key, and who may come in.
pub const SSH: &str = "ssh";
