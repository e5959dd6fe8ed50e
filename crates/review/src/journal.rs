//! Journal of an apply: the steps are on disk before the first of them runs.
//!
//! ```text
//! journal.json    begun: recovery undoes the steps
//! committed.json  the journal after its rename: all steps are done, cleanup is left
//! baseline.next   becomes baseline.json during cleanup
//! ```

use crate::baseline::{FileIdentity, sync_directory, write_synced};
use crate::failpoint;
use crate::workspace::BASELINE;
use msb_api::RelPath;
use msb_spec::encoding::hex;
use msb_spec::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Name of the journal while steps run; recovery undoes them.
const BEGUN: &str = "journal.json";
/// Temporary name of the journal.
const NEXT: &str = "journal.next";
/// Name of the journal after the commit; recovery finishes the cleanup.
const COMMITTED: &str = "committed.json";
/// Name of the baseline that is valid after the commit.
pub(crate) const NEXT_BASELINE: &str = "baseline.next";

/// Name prefix of the staging directory; random digits follow.
const STAGING: &str = ".msb-apply-";
/// Number of random hexadecimal digits.
const DIGITS: usize = 32;
/// Largest journal that is read, in bytes: some hundred for each of a million paths.
const SIZE_LIMIT: u64 = 1 << 30;

/// One step of an apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JournalStep {
    /// Exchanges the file on the host, if any, with the staged file of this number.
    Put {
        path: RelPath,
        number: u64,
        /// Identity of the staged file.
        ready: FileIdentity,
        before: Option<FileIdentity>,
    },
    /// Moves the file on the host to the staging directory, under this number.
    Remove { path: RelPath, number: u64, before: FileIdentity },
    /// Changes the mode of a file or directory.
    Mode { path: RelPath, before: FileIdentity, from: u32, to: u32 },
}

impl JournalStep {
    pub(crate) fn path(&self) -> &RelPath {
        match self {
            Self::Put { path, .. } | Self::Remove { path, .. } | Self::Mode { path, .. } => path,
        }
    }
}

/// All steps of one apply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    /// Name of the staging directory in the root of the workspace.
    pub(crate) staging: String,
    pub(crate) steps: Vec<JournalStep>,
}

/// An apply that another process has not finished.
#[derive(Debug)]
pub(crate) enum UnfinishedApply {
    /// Not committed: its steps must be undone.
    Begun(Journal),
    /// Committed: only the cleanup is left.
    Committed(Journal),
}

impl Journal {
    /// A new journal, with a random name for the staging directory.
    pub(crate) fn new() -> Result<Self> {
        let mut bytes = [0u8; DIGITS / 2];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::host("cannot get random bytes", error))?;
        let digits = hex(bytes);
        Ok(Self { staging: format!("{STAGING}{digits}"), steps: Vec::new() })
    }

    /// Writes the journal to disk.
    pub(crate) fn begin(&self, notes: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).expect("our own types always serialise");
        let write = || -> io::Result<()> {
            write_synced(&notes.join(NEXT), &text)?;
            failpoint::hit();
            fs::rename(notes.join(NEXT), notes.join(BEGUN))?;
            sync_directory(notes)
        };
        write().map_err(|error| Error::host("cannot write the journal", error))
    }

    /// Commits by renaming the journal. The steps are never undone after this.
    pub(crate) fn commit(notes: &Path) -> Result<()> {
        let rename = || -> io::Result<()> {
            failpoint::hit();
            fs::rename(notes.join(BEGUN), notes.join(COMMITTED))?;
            failpoint::hit();
            sync_directory(notes)
        };
        rename().map_err(|error| Error::host("cannot commit the journal", error))
    }

    /// Whether another process applies, or was killed while it did.
    pub(crate) fn is_left(notes: &Path) -> bool {
        [BEGUN, COMMITTED].iter().any(|name| notes.join(name).exists())
    }

    /// Finds the journal of an unfinished apply.
    pub(crate) fn find(notes: &Path) -> Result<Option<UnfinishedApply>> {
        if let Some(journal) = read(&notes.join(COMMITTED))? {
            return Ok(Some(UnfinishedApply::Committed(journal)));
        }
        Ok(read(&notes.join(BEGUN))?.map(UnfinishedApply::Begun))
    }

    /// Makes the next baseline current and removes the journal.
    pub(crate) fn close_committed(notes: &Path) -> Result<()> {
        let close = || -> io::Result<()> {
            match fs::rename(notes.join(NEXT_BASELINE), notes.join(BASELINE)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => sync_directory(notes)?,
            }
            failpoint::hit();
            fs::remove_file(notes.join(COMMITTED))
        };
        close().map_err(|error| Error::host("cannot close the journal", error))
    }

    /// Removes the journal after all steps were undone.
    pub(crate) fn close_undone(notes: &Path) -> Result<()> {
        for name in [NEXT_BASELINE, NEXT, BEGUN] {
            failpoint::hit();
            match fs::remove_file(notes.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::host("cannot close the journal", error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Reads a journal. Its content is not trusted.
fn read(path: &Path) -> Result<Option<Journal>> {
    let unreadable = |error: &dyn std::fmt::Display| {
        Error::new(Kind::State, "the journal of an unfinished `msb apply` cannot be read")
            .cause(error)
    };
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(|error| unreadable(&error))?,
    };
    let mut text = Vec::new();
    file.take(SIZE_LIMIT).read_to_end(&mut text).map_err(|error| unreadable(&error))?;
    let journal: Journal = serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
    let digits = journal.staging.strip_prefix(STAGING).unwrap_or_default();
    if digits.len() != DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(unreadable(&"its staging directory has an invalid name"));
    }
    Ok(Some(journal))
}
