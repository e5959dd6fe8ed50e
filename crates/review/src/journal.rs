//! What is about to be done to the host's directory, written down before it is done.
//!
//! ```text
//! journal.json    begun: whoever finds it undoes everything that it lists
//! committed.json  the same file under another name: all is done, only tidying up is left
//! baseline.next   becomes baseline.json once that is so
//! ```

use crate::baseline::{Identity, sync_directory, write_synced};
use crate::fault;
use crate::review::BASELINE;
use msb_api::RelPath;
use msb_spec::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Begun, and to be undone.
const BEGUN: &str = "journal.json";
/// Written, and not yet in its place.
const NEXT: &str = "journal.next";
/// Done, and to be tidied up.
const COMMITTED: &str = "committed.json";
/// What is known of the host once it is done.
pub(crate) const NEXT_BASELINE: &str = "baseline.next";

/// What a directory for things on their way is called; random digits follow.
const STAGING: &str = ".msb-apply-";
/// As many as nobody guesses.
const DIGITS: usize = 32;
/// Some hundred bytes for each of a million paths.
const LONGEST: u64 = 1 << 30;

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    /// What is there, if anything, changes places with what was made ready under this number.
    Put {
        path: RelPath,
        number: u64,
        /// The file that was made ready.
        ready: Identity,
        before: Option<Identity>,
    },
    /// What is there goes to the directory for things on their way, under this number.
    Remove { path: RelPath, number: u64, before: Identity },
    /// Other permissions.
    Mode { path: RelPath, before: Identity, from: u32, to: u32 },
}

impl Step {
    pub(crate) fn path(&self) -> &RelPath {
        match self {
            Self::Put { path, .. } | Self::Remove { path, .. } | Self::Mode { path, .. } => path,
        }
    }
}

/// Everything that is to be done together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Journal {
    /// The directory for things on their way, in the root of the workspace.
    pub(crate) staging: String,
    pub(crate) steps: Vec<Step>,
}

/// What was found of another's work.
#[derive(Debug)]
pub(crate) enum Found {
    /// It is to be undone.
    Begun(Journal),
    /// It is done.
    Committed(Journal),
}

impl Journal {
    /// A new one, with a name for things on their way that nobody can guess.
    pub(crate) fn new() -> Result<Self> {
        let mut bytes = [0u8; DIGITS / 2];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::host("cannot get random bytes", error))?;
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { staging: format!("{STAGING}{digits}"), steps: Vec::new() })
    }

    /// Writes down what will be done from now on.
    pub(crate) fn begin(&self, notes: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).expect("our own types always serialise");
        let write = || -> io::Result<()> {
            write_synced(&notes.join(NEXT), &text)?;
            fault::point();
            fs::rename(notes.join(NEXT), notes.join(BEGUN))?;
            sync_directory(notes)
        };
        write().map_err(|error| Error::host("cannot write down what is to be done", error))
    }

    /// Notes that all is done. From here on it is never undone.
    pub(crate) fn commit(notes: &Path) -> Result<()> {
        let rename = || -> io::Result<()> {
            fault::point();
            fs::rename(notes.join(BEGUN), notes.join(COMMITTED))?;
            fault::point();
            sync_directory(notes)
        };
        rename().map_err(|error| Error::host("cannot write down what was done", error))
    }

    /// Whether somebody is at work, or has died at it.
    pub(crate) fn is_left(notes: &Path) -> bool {
        [BEGUN, COMMITTED].iter().any(|name| notes.join(name).exists())
    }

    /// What another has left.
    pub(crate) fn find(notes: &Path) -> Result<Option<Found>> {
        if let Some(journal) = read(&notes.join(COMMITTED))? {
            return Ok(Some(Found::Committed(journal)));
        }
        Ok(read(&notes.join(BEGUN))?.map(Found::Begun))
    }

    /// What is known of the host takes its place, and the journal is closed.
    pub(crate) fn close_committed(notes: &Path) -> Result<()> {
        let close = || -> io::Result<()> {
            match fs::rename(notes.join(NEXT_BASELINE), notes.join(BASELINE)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => sync_directory(notes)?,
            }
            fault::point();
            fs::remove_file(notes.join(COMMITTED))
        };
        close().map_err(|error| Error::host("cannot write down what was done", error))
    }

    /// Nothing was done, and nothing is left to be done.
    pub(crate) fn close_undone(notes: &Path) -> Result<()> {
        for name in [NEXT_BASELINE, NEXT, BEGUN] {
            fault::point();
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

/// Reads a journal back, as something that anybody could have written.
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
    file.take(LONGEST).read_to_end(&mut text).map_err(|error| unreadable(&error))?;
    let journal: Journal = serde_json::from_slice(&text).map_err(|error| unreadable(&error))?;
    let digits = journal.staging.strip_prefix(STAGING).unwrap_or_default();
    if digits.len() != DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(unreadable(&"it names a directory that is not ours"));
    }
    Ok(Some(journal))
}
