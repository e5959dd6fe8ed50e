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
mod registry;
mod rules;
mod source;
mod watches;

use crate::sandboxes::Engine;
use msb_spec::{Error, Name, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub(crate) use notes::forget as forget_sent;
pub(crate) use registry::repair;

/// The argument with which `msb` becomes a sync.
pub const SYNC_ARGUMENT: &str = "__sync";

/// What is to be kept in step with what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncSpec {
    /// A directory of the host.
    pub source: PathBuf,
    /// A sandbox that runs.
    pub sandbox: Name,
    /// The directory inside, an absolute path; it need not be UTF-8.
    pub target: Vec<u8>,
    /// What to leave out, as lines of a `.gitignore` that come before all others.
    pub excludes: Vec<String>,
    /// Whether to leave out what nearly everybody does: see [`DEFAULT_EXCLUDES`].
    pub default_excludes: bool,
}

/// Directories that are large, made by programs, and no use on another system.
pub const DEFAULT_EXCLUDES: [&str; 4] = [".git", "node_modules", "__pycache__", ".venv"];

/// Where a sync is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SyncState {
    /// Something is on its way.
    Copying,
    /// Both sides are the same, but for what has failed.
    Watching,
    /// It is over.
    Ended,
}

impl SyncState {
    /// As people read it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Copying => "copying",
            Self::Watching => "watching",
            Self::Ended => "ended",
        }
    }
}

/// How a sync is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncStatus {
    /// Where it is in its life.
    pub state: SyncState,
    /// Why it has ended, if it has.
    pub reason: Option<String>,
    /// Files and links that are kept in step.
    pub files: u64,
    /// Bytes of files sent since the start.
    pub bytes: u64,
    /// Bytes a second of the last time that something was sent.
    pub rate: u64,
    /// Paths that wait to be looked at.
    pub pending: u64,
    /// Paths that could not be sent; they are tried again.
    pub failures: u64,
    /// Why one of them could not.
    pub last_error: Option<String>,
}

/// One sync of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SyncSummary {
    /// What it is called.
    pub id: String,
    /// The directory of the host, as text.
    pub source: String,
    /// The sandbox.
    pub sandbox: Name,
    /// The directory inside, as text.
    pub target: String,
    /// Its process, for showing only.
    pub pid: u32,
    /// When it started, in milliseconds since 1970.
    pub started: u64,
    /// How it is doing.
    #[serde(flatten)]
    pub status: SyncStatus,
}

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
        process::start(self, spec, progress)
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
