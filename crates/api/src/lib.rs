//! Every Operation: what any surface can ask of sandboxes, wherever they are.
//!
//! `engine` does them on this machine, `client` asks a server for them. Surfaces (the HTTP API, each MCP
//! dialect) know only these traits, so that a missing button is a missing Operation. Calls block;
//! a caller that must not block calls them from a thread.

#[macro_use]
mod operations;

mod bytes;
mod change;
mod children;
mod execs;
mod files;
pub mod http;
mod images;
mod links;
mod login;
mod networks;
mod params;
pub mod prometheus;
mod rel_path;
mod sandboxes;
mod snapshots;
mod syncs;
mod volumes;
mod workspaces;

pub use msb_wire::record::{Event, EventKind, Source};
pub use msb_wire::{
    DiskTraffic, EntryKind, Head, Meta, NetEvent, NetFlow, NetRecord, NetTable, NetUsage, Sample,
    StopResult, Target, WorkerStatus,
};

pub use bytes::{escape_bytes, unescape_bytes};
pub use change::{Change, Conflict, GitGap, GitPatch, Item, ItemKind, Patch, Risk, What};
pub use children::{Child, ChildListing, ChildSpec, Children};
pub use execs::{
    CapturedOutput, CodeEvent, Exec, ExecEntry, ExecEvent, ExecInput, Execs, capture, no_exec,
};
pub use files::{Attributes, CopyCount, Files, Place};
pub use images::{
    BUILD_LIMIT, ClientScope, DiskUsage, ImageInspection, ImageSummary, Images, LayerInspection,
    Login, Registry,
};
pub use links::{AcceptedConn, LinkListener, Links};
pub use login::Account;
pub use networks::Networks;
pub use operations::operation_types;
pub use params::{Arg, Millis, NewSnapshotName, Param, SnapshotName, SyncId};
pub use rel_path::RelPath;
pub use sandboxes::{
    Audit, Create, Damage, EventStream, Holds, Inspection, LogFilter, LogLine, LogStream, Metrics,
    Sandboxes, SettingChange, Status, Summary,
};
pub use snapshots::{Changes, Snapshot, Snapshots, VerifyReport};
pub use syncs::{DEFAULT_EXCLUDES, SyncSpec, SyncState, SyncStatus, SyncSummary, Syncs};
pub use volumes::{PrunedVolumes, Volume, Volumes};
pub use workspaces::{ApplyReport, Depth, LeftOut, Selection, Workspaces};

/// Everything that can be asked.
pub trait Api:
    Sandboxes
    + Execs
    + Files
    + Images
    + Volumes
    + Snapshots
    + Networks
    + Workspaces
    + Syncs
    + Children
    + Links
    + Send
    + Sync
{
}

impl<T> Api for T where
    T: Sandboxes
        + Execs
        + Files
        + Images
        + Volumes
        + Snapshots
        + Networks
        + Workspaces
        + Syncs
        + Children
        + Links
        + Send
        + Sync
{
}

/// Told how long work goes on.
pub trait Watch: Send + Sync {
    /// What is being done now, and how much of it is done if that is known.
    fn step(&self, what: &str, done: Option<Part>);

    /// A command has started that ends when the client of the call is gone.
    fn running(&self, _input: &std::sync::Arc<dyn ExecInput>) {}
}

/// So much of so much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Units of work that are done.
    pub done: u64,
    /// Units of work in all.
    pub of: u64,
}

/// A [`Watch`] that shows nothing.
#[derive(Debug, Clone, Copy)]
pub struct NoProgress;

impl Watch for NoProgress {
    fn step(&self, _: &str, _: Option<Part>) {}
}
