//! Data that survives the server: recent commands, incarnation and background processes of each
//! sandbox.
//!
//! There are two files for each name, in a directory with mode 0700. Each ended command appends a
//! line; the file is rewritten when it has twice as many lines as are shown. Several servers may
//! append at once: a line is one `write(2)`. Without a directory, everything is kept in memory.

use msb_spec::Name;
pub(super) use msb_spec::clock::now;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Commands of a sandbox that are kept.
const MOST: usize = 100;
/// Characters of a command that are kept.
const LONGEST: usize = 200;
/// Largest file in bytes that is read; a larger one was not written by this code.
const SIZE_LIMIT: u64 = 1 << 20;

/// A command that has ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct HistoryEntry {
    /// The first characters of the command.
    pub(super) command: String,
    pub(super) status: i32,
    pub(super) taken_ms: f64,
    /// When it ended, in milliseconds since 1970.
    pub(super) time: u64,
}

/// A background process of a sandbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct BackgroundProcess {
    pub(super) id: String,
    pub(super) exec: u64,
    pub(super) pid: u32,
    pub(super) command: String,
}

/// One incarnation of a sandbox, between two resets.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Incarnation {
    /// The container name in results.
    pub(super) container: String,
    /// When its sandbox was created; a record with another time is stale.
    pub(super) created: u64,
    #[serde(default)]
    pub(super) processes: Vec<BackgroundProcess>,
}

/// The records of all sandboxes.
#[derive(Debug, Default)]
pub(super) struct SandboxRecords {
    directory: Option<PathBuf>,
    /// The contents of the files: commands, and the number of lines in the file.
    known: Mutex<HashMap<Name, RecordCache>>,
}

#[derive(Debug, Default)]
struct RecordCache {
    entries: Vec<HistoryEntry>,
    lines: usize,
    incarnation: Option<Incarnation>,
}

impl SandboxRecords {
    pub(super) fn at(directory: Option<PathBuf>) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Records a command that has ended.
    pub(super) fn add(&self, name: &Name, command: &str, status: i32, taken: Duration) {
        let command = command.chars().take(LONGEST).collect();
        let entry =
            HistoryEntry { command, status, taken_ms: taken.as_secs_f64() * 1000.0, time: now() };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let of_name = known.entry(name.clone()).or_default();
        of_name.entries.push(entry.clone());
        of_name.lines += 1;
        let beyond = of_name.entries.len().saturating_sub(MOST);
        of_name.entries.drain(..beyond);
        // A full disk must not fail the command, so the error is ignored.
        let _ = self.append(name, &entry);
        if of_name.lines > 2 * MOST {
            let entries = self.read(name);
            let _ = self.rewrite(name, &entries);
            of_name.lines = entries.len();
        }
    }

    /// The last commands, the oldest first, of all servers.
    pub(super) fn entries(&self, name: &Name) -> Vec<HistoryEntry> {
        if self.directory.is_some() {
            return self.read(name);
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).map(|known| known.entries.clone()).unwrap_or_default()
    }

    /// Time since the last command, on any server.
    pub(super) fn idle(&self, name: &Name) -> Option<Duration> {
        let path = self.path(name, "log")?;
        fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
    }

    /// The current incarnation of a sandbox, if it is known.
    pub(super) fn incarnation(&self, name: &Name) -> Option<Incarnation> {
        match self.path(name, "json") {
            Some(path) => serde_json::from_slice(&bytes_of(&path)?).ok(),
            None => {
                let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                known.get(name)?.incarnation.clone()
            }
        }
    }

    /// Records the current incarnation of a sandbox.
    pub(super) fn set_incarnation(&self, name: &Name, incarnation: Option<Incarnation>) {
        let path = self.path(name, "json");
        match (&path, &incarnation) {
            (Some(path), Some(incarnation)) => {
                let written = serde_json::to_vec(incarnation).unwrap_or_default();
                let _ = self.replace(path, &written);
            }
            (Some(path), None) => drop(fs::remove_file(path)),
            (None, _) => {}
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(name.clone()).or_default().incarnation = incarnation;
    }

    fn path(&self, name: &Name, kind: &str) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{name}.{kind}")))
    }

    fn append(&self, name: &Name, entry: &HistoryEntry) -> std::io::Result<()> {
        let Some(path) = self.path(name, "log") else { return Ok(()) };
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let open = || {
            let mut options = File::options();
            options.append(true).create(true).mode(0o600).open(&path)
        };
        let file = open().or_else(|_| self.create_directory().and_then(|()| open()));
        file?.write_all(&line)
    }

    fn read(&self, name: &Name) -> Vec<HistoryEntry> {
        let bytes = self.path(name, "log").and_then(|path| bytes_of(&path)).unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        let mut entries: Vec<HistoryEntry> =
            lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let beyond = entries.len().saturating_sub(MOST);
        entries.drain(..beyond);
        entries
    }

    fn rewrite(&self, name: &Name, entries: &[HistoryEntry]) -> std::io::Result<()> {
        let Some(path) = self.path(name, "log") else { return Ok(()) };
        let mut bytes = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut bytes, entry)?;
            bytes.push(b'\n');
        }
        self.replace(&path, &bytes)
    }

    /// Replaces a file atomically, by `rename(2)`.
    fn replace(&self, path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
        self.create_directory()?;
        let beside = path.with_extension(format!("new-{}", std::process::id()));
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        fs::rename(beside, path)
    }

    fn create_directory(&self) -> std::io::Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        fs::create_dir_all(directory)?;
        fs::set_permissions(directory, Permissions::from_mode(0o700))
    }
}

fn bytes_of(path: &std::path::Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(SIZE_LIMIT).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hundred_outlive_the_server() {
        let place = std::env::temp_dir().join(format!("msb-ledger-{}", std::process::id()));
        let name = Name::parse("default").unwrap();
        let records = SandboxRecords::at(Some(place.clone()));
        for number in 0..450 {
            records.add(&name, &format!("echo {number}"), 0, Duration::from_millis(1));
        }
        records.add(&name, &"x".repeat(500), 3, Duration::from_millis(2));
        records.set_incarnation(
            &name,
            Some(Incarnation { container: "mcp-sb-1".to_owned(), ..Incarnation::default() }),
        );
        drop(records);

        let records = SandboxRecords::at(Some(place.clone()));
        let entries = records.entries(&name);
        assert_eq!(entries.len(), MOST);
        assert_eq!(entries[0].command, "echo 351");
        assert_eq!((entries[99].command.len(), entries[99].status), (LONGEST, 3));
        assert_eq!(records.incarnation(&name).unwrap().container, "mcp-sb-1");
        let lines = fs::read_to_string(place.join("default.log")).unwrap().lines().count();
        assert!(lines <= 2 * MOST + 1, "{lines}");
        let mode = fs::metadata(&place).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::remove_dir_all(place).unwrap();
    }
}
