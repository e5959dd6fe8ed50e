//! Keeps a directory inside a running sandbox in step with one of the host, one way, by events.
//!
//! One sync is one process: `process` is its life, `follower` decides what is to be sent, from
//! what `watches` hear and `source` shows, less what `rules` leave out. `ledger` is what was sent,
//! which `notes` keep for the next sync of the same, and `outgoing` the way in. `registry` knows all there are, and `board` tells how each is doing.
//!
//! Events are only hints of where to look: what is sent is decided by what is there when it is
//! looked at. So events can be merged, doubled or lost in an overflow, and the trees still meet.

mod board;
mod follower;
mod ledger;
mod notes;
mod outgoing;
mod process;
mod queue;
pub(crate) mod registry;
mod rules;
mod source;
mod watches;

use crate::files::Links;
use crate::sandboxes::Engine;
use msb_api::{DEFAULT_EXCLUDES, SyncSpec, SyncState, SyncStatus, SyncSummary};
use msb_spec::{Error, Result};

pub(crate) use notes::forget as forget_sent;
pub(crate) use registry::repair;
pub(crate) use source::{Sort, Source, Stamp};

/// The argument with which `msb` becomes a sync.
pub const SYNC_ARGUMENT: &str = "__sync";

/// What a sync does, as it happens. Paths are below the source, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncEvent {
    /// So many bytes of files have been sent since the start.
    Sent {
        /// Files and links that are kept in step.
        files: u64,
        /// Bytes of files.
        bytes: u64,
    },
    /// Everything is inside; from here on changes are followed.
    Ready {
        /// What it is called.
        id: String,
    },
    /// A file, directory or link was made or replaced.
    Put(String),
    /// Permissions were changed.
    Touched(String),
    /// Something was removed.
    Removed(String),
    /// Something was renamed.
    Renamed(String, String),
    /// Something could not be sent; it is tried again.
    Failed(Error),
}

/// How a sync ended that did not fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SyncEnd {
    /// Somebody asked it to.
    Stopped,
    /// For this reason.
    Reason(String),
}

/// Told what a sync does, by a thread of it.
pub type Observer = Box<dyn FnMut(SyncEvent) + Send>;

impl Engine {
    /// Starts a sync in a process of its own, and returns once the first copy is made.
    pub fn start_sync(
        &self,
        spec: &SyncSpec,
        progress: &mut dyn FnMut(SyncEvent),
    ) -> Result<String> {
        process::start(self, spec, Links::Followed, progress)
    }

    /// The same for a source that was judged by where it leads.
    pub(crate) fn start_judged_sync(
        &self,
        spec: &SyncSpec,
        progress: &mut dyn FnMut(SyncEvent),
    ) -> Result<String> {
        process::start(self, spec, Links::Refused, progress)
    }

    /// Is a sync until it ends, or until this process is asked to end.
    pub fn run_sync(&self, spec: &SyncSpec, observer: Observer) -> Result<SyncEnd> {
        process::stay(self, spec, observer)
    }

    /// Every sync of this state directory, the oldest first. One that has ended stays listed until
    /// [`Engine::forget_sync`].
    pub fn syncs(&self) -> Vec<SyncSummary> {
        registry::all(self.home())
    }

    /// One sync.
    pub fn sync(&self, id: &str) -> Result<SyncSummary> {
        registry::one(self.home(), id)
    }

    /// Ends a sync. What it has sent stays.
    pub fn stop_sync(&self, id: &str) -> Result<()> {
        registry::stop(self.home(), id)
    }

    /// Forgets a sync that has ended.
    pub fn forget_sync(&self, id: &str) {
        registry::forget(self.home(), id);
    }
}

/// Is the sync that the process on stdin asks for. Returns the exit code.
pub fn serve_sync() -> i32 {
    process::serve()
}

/// A path below the source as text.
fn text(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
