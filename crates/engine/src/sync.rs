//! One-way sync of a host directory into a running sandbox, driven by inotify events.
//!
//! One sync is one process:
//!
//! - `process` starts and ends it.
//! - `follower` decides what to send: from `inotify` events and the state of `source`, less
//!   `excludes`.
//! - `baseline` is what was sent; `baseline_file` keeps it for the next sync of the same
//!   directories.
//! - `mirror` is the connection to the guest.
//! - `registry` lists all syncs, and `status_file` reports the state of each.
//!
//! Events only say where to look: what is sent is decided by the state of the file at that time.
//! Events can be merged, duplicated or lost in an overflow, and both trees still converge.

mod baseline;
mod baseline_file;
mod excludes;
mod follower;
mod inotify;
mod mirror;
mod process;
mod queue;
pub(crate) mod registry;
mod source;
mod status_file;

use crate::files::SymlinkPolicy;
use crate::sandboxes::Engine;
use msb_api::{DEFAULT_EXCLUDES, SyncSpec, SyncState, SyncStatus, SyncSummary};
use msb_spec::{Error, Result};

pub(crate) use baseline_file::forget as remove_baselines;
pub(crate) use registry::repair;
pub(crate) use source::{FileStamp, SourceDir, SourceKind};

/// The argument that makes `msb` a sync process.
pub const SYNC_ARGUMENT: &str = "__sync";

/// A progress event of a sync. Paths are relative to the source, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncEvent {
    /// Progress of the copy since the start.
    Sent {
        /// Files and symlinks that are in sync.
        files: u64,
        /// Bytes of file content sent.
        bytes: u64,
    },
    /// The first copy is complete; changes are followed from here on.
    Ready {
        /// The id of the sync.
        id: String,
    },
    /// A file, directory or symlink was created or replaced.
    Put(String),
    /// The mode of a path was changed.
    Touched(String),
    /// The path was removed inside.
    Removed(String),
    /// The first path was renamed to the second.
    Renamed(String, String),
    /// A path could not be sent; it is retried.
    Failed(Error),
}

/// How a sync ended without a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncEnd {
    /// It was stopped on request.
    Stopped,
    /// It ended for this reason, such as the end of the sandbox.
    Reason(String),
}

/// Receives the events of a sync, on its thread.
pub type Observer = Box<dyn FnMut(SyncEvent) + Send>;

impl Engine {
    /// Starts a sync process, and returns its id once the first copy is complete.
    pub fn start_sync(
        &self,
        spec: &SyncSpec,
        progress: &mut dyn FnMut(SyncEvent),
    ) -> Result<String> {
        process::start(self, spec, SymlinkPolicy::Follow, progress)
    }

    /// Starts a sync from a source path that was resolved and checked before: symlinks in it are
    /// refused.
    pub(crate) fn start_rechecked_sync(
        &self,
        spec: &SyncSpec,
        progress: &mut dyn FnMut(SyncEvent),
    ) -> Result<String> {
        process::start(self, spec, SymlinkPolicy::Refuse, progress)
    }

    /// Runs a sync in this process until it ends or gets a signal.
    pub fn run_sync(&self, spec: &SyncSpec, observer: Observer) -> Result<SyncEnd> {
        process::run_in_process(self, spec, observer)
    }

    /// All syncs, the oldest first. One that has ended stays listed until [`Engine::forget_sync`].
    pub fn syncs(&self) -> Vec<SyncSummary> {
        registry::all(self.home())
    }

    /// One sync by its id.
    pub fn sync(&self, id: &str) -> Result<SyncSummary> {
        registry::one(self.home(), id)
    }

    /// Stops a sync. Its files inside stay.
    pub fn stop_sync(&self, id: &str) -> Result<()> {
        registry::stop(self.home(), id)
    }

    /// Removes a sync that has ended from the list.
    pub fn forget_sync(&self, id: &str) {
        registry::forget(self.home(), id);
    }
}

/// Runs as the sync process that stdin requests. Returns the exit code.
pub fn serve_sync() -> i32 {
    process::serve()
}

/// A relative path as text, with invalid UTF-8 replaced.
fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
