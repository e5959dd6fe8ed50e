//! Every Operation: what any surface can ask of sandboxes, wherever they are.
//!
//! `engine` does them on this machine, `client` asks a server for them. Surfaces (the HTTP API, each MCP
//! dialect) know only these traits, so that a missing button is a missing Operation. Calls block;
//! whoever must not be blocked calls them from a thread.

mod asking;
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
pub mod prometheus;
mod rel_path;
mod sandboxes;
mod snapshots;
mod syncs;
mod volumes;
mod workspaces;

pub use msb_wire::record::{Event, Happened, Source};
pub use msb_wire::{
    DiskTraffic, EntryKind, Head, Meta, NetEvent, NetFlow, NetRecord, NetTable, NetUsage, Sample,
    Stopped, Target, WorkerStatus,
};

pub use asking::{asked_by, asker};
pub use bytes::{spelled, unspelled};
pub use change::{Change, Conflict, Item, ItemKind, Patch, Risk, What};
pub use children::{Brood, Child, ChildSpec, Children};
pub use execs::{
    Captured, CodeEvent, Exec, ExecEntry, ExecEvent, ExecInput, Execs, capture, no_exec,
};
pub use files::{Attributes, Copied, Files, Place};
pub use images::{
    BUILD_LIMIT, ClientScope, DiskUsage, ImageInspection, ImageSummary, Images, LayerInspection,
    Login, Registry,
};
pub use links::{Accepted, LinkListener, Links};
pub use login::Account;
pub use networks::Networks;
pub use rel_path::RelPath;
pub use sandboxes::{
    Audit, Create, Damage, EventStream, Holds, Inspection, LogFilter, LogLine, LogStream, Metrics,
    Modified, Sandboxes, Status, Summary,
};
pub use snapshots::{Changes, Snapshot, Snapshots, Verified};
pub use syncs::{DEFAULT_EXCLUDES, SyncSpec, SyncState, SyncStatus, SyncSummary, Syncs};
pub use volumes::{PrunedVolumes, Volume, Volumes};
pub use workspaces::{Applied, Depth, LeftOut, Selection, Workspaces};

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

    /// A command runs that is to end when nobody waits for the work any more.
    fn running(&self, _input: &std::sync::Arc<dyn ExecInput>) {}
}

/// So much of so much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// So much.
    pub done: u64,
    /// Of so much.
    pub of: u64,
}

/// Nobody looks.
#[derive(Debug, Clone, Copy)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn step(&self, _: &str, _: Option<Part>) {}
}
