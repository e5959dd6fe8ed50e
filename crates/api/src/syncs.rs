//! Directories of the host that sandboxes have in step.

use crate::operation_types::*;
use msb_spec::Name;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The Operations on syncs.
pub trait Syncs {
    operations!(syncs trait_method);
}

/// What is to be kept in step with what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SyncSpec {
    /// A directory of the host.
    pub source: PathBuf,
    /// A sandbox that runs.
    pub sandbox: Name,
    /// The directory inside, an absolute path; it need not be UTF-8.
    #[serde(with = "crate::bytes")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub target: Vec<u8>,
    /// What to leave out, as lines of a `.gitignore` that come before all others.
    #[serde(default)]
    pub excludes: Vec<String>,
    /// Whether to leave out [`DEFAULT_EXCLUDES`].
    #[serde(default = "yes")]
    pub default_excludes: bool,
}

/// Directories that are large, made by programs, and no use on another system.
pub const DEFAULT_EXCLUDES: [&str; 4] = [".git", "node_modules", "__pycache__", ".venv"];

/// Where a sync is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum SyncState {
    /// Something is on its way.
    Copying,
    /// Both sides are the same, but for what has failed.
    Watching,
    /// The sync has ended.
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SyncStatus {
    /// Where it is in its life.
    pub state: SyncState,
    /// Why it has ended, if it has.
    pub reason: Option<String>,
    /// Files and links that are kept in step.
    pub files: u64,
    /// Files sent since the start, each as often as it was.
    #[serde(default)]
    pub sent: u64,
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct SyncSummary {
    /// What it is called.
    pub id: String,
    /// The directory of the host, as text.
    pub source: String,
    /// The sandbox that is synced to.
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

fn yes() -> bool {
    true
}
