//! What outlives the server: the last commands of each sandbox, which life it is in, what runs in it.
//!
//! Two files for each name in a directory that only its owner reads. Lines are added as commands end, and the
//! file is written anew once there are twice as many as are shown. Several servers may write at once;
//! a line is one write. Without a directory everything is kept in memory.

use msb_spec::Name;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Commands of a sandbox that are remembered.
const MOST: usize = 100;
/// Characters of a command that are.
const LONGEST: usize = 200;
/// Larger is not a file of ours.
const SIZE_LIMIT: u64 = 1 << 20;

/// A command that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// Its beginning.
    pub(super) command: String,
    pub(super) status: i32,
    pub(super) taken_ms: f64,
    /// When, in milliseconds since 1970.
    pub(super) time: u64,
}

/// Something that runs in the background.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) id: String,
    pub(super) exec: u64,
    pub(super) pid: u32,
    pub(super) command: String,
}

/// One life of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Life {
    /// How it is called in answers.
    pub(super) container: String,
    /// When the sandbox was made that this is about; another one of that name is none of it.
    pub(super) created: u64,
    #[serde(default)]
    pub(super) processes: Vec<Process>,
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    directory: Option<PathBuf>,
    /// What is in the files, or would be: commands, and how many lines the file has.
    known: Mutex<HashMap<Name, Known>>,
}

#[derive(Debug, Default)]
struct Known {
    entries: Vec<Entry>,
    lines: usize,
    life: Option<Life>,
}

impl Ledger {
    pub(super) fn at(directory: Option<PathBuf>) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Notes a command that ended.
    pub(super) fn add(&self, name: &Name, command: &str, status: i32, taken: Duration) {
        let command = command.chars().take(LONGEST).collect();
        let entry = Entry { command, status, taken_ms: taken.as_secs_f64() * 1000.0, time: now() };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let of_name = known.entry(name.clone()).or_default();
        of_name.entries.push(entry.clone());
        of_name.lines += 1;
        let beyond = of_name.entries.len().saturating_sub(MOST);
        of_name.entries.drain(..beyond);
        // History is worth less than the answer: a disk that is full does not fail the command.
        let _ = self.append(name, &entry);
        if of_name.lines > 2 * MOST {
            let entries = self.read(name);
            let _ = self.rewrite(name, &entries);
            of_name.lines = entries.len();
        }
    }

    /// The last commands, the oldest first, whoever has run them.
    pub(super) fn entries(&self, name: &Name) -> Vec<Entry> {
        if self.directory.is_some() {
            return self.read(name);
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(name).map(|known| known.entries.clone()).unwrap_or_default()
    }

    /// How long ago somebody ran a command, on any server.
    pub(super) fn idle(&self, name: &Name) -> Option<Duration> {
        let path = self.path(name, "log")?;
        fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
    }

    /// Which life a sandbox is in, if that is known.
    pub(super) fn life(&self, name: &Name) -> Option<Life> {
        match self.path(name, "json") {
            Some(path) => serde_json::from_slice(&bytes_of(&path)?).ok(),
            None => {
                let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
                known.get(name)?.life.clone()
            }
        }
    }

    /// Notes which life it is in.
    pub(super) fn set_life(&self, name: &Name, life: Option<Life>) {
        let path = self.path(name, "json");
        match (&path, &life) {
            (Some(path), Some(life)) => {
                let written = serde_json::to_vec(life).unwrap_or_default();
                let _ = self.replace(path, &written);
            }
            (Some(path), None) => drop(fs::remove_file(path)),
            (None, _) => {}
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.entry(name.clone()).or_default().life = life;
    }

    fn path(&self, name: &Name, kind: &str) -> Option<PathBuf> {
        Some(self.directory.as_ref()?.join(format!("{name}.{kind}")))
    }

    fn append(&self, name: &Name, entry: &Entry) -> std::io::Result<()> {
        let Some(path) = self.path(name, "log") else { return Ok(()) };
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let open = || {
            let mut options = File::options();
            options.append(true).create(true).mode(0o600).open(&path)
        };
        let file = open().or_else(|_| self.make().and_then(|()| open()));
        file?.write_all(&line)
    }

    fn read(&self, name: &Name) -> Vec<Entry> {
        let bytes = self.path(name, "log").and_then(|path| bytes_of(&path)).unwrap_or_default();
        let lines = bytes.split(|byte| *byte == b'\n');
        let mut entries: Vec<Entry> =
            lines.filter_map(|line| serde_json::from_slice(line).ok()).collect();
        let beyond = entries.len().saturating_sub(MOST);
        entries.drain(..beyond);
        entries
    }

    fn rewrite(&self, name: &Name, entries: &[Entry]) -> std::io::Result<()> {
        let Some(path) = self.path(name, "log") else { return Ok(()) };
        let mut bytes = Vec::new();
        for entry in entries {
            serde_json::to_writer(&mut bytes, entry)?;
            bytes.push(b'\n');
        }
        self.replace(&path, &bytes)
    }

    /// Whole or not at all.
    fn replace(&self, path: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
        self.make()?;
        let beside = path.with_extension(format!("new-{}", std::process::id()));
        let mut options = File::options();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        fs::rename(beside, path)
    }

    fn make(&self) -> std::io::Result<()> {
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

/// Milliseconds since 1970.
pub(super) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_hundred_outlive_the_server() {
        let place = std::env::temp_dir().join(format!("msb-ledger-{}", std::process::id()));
        let name = Name::parse("default").unwrap();
        let ledger = Ledger::at(Some(place.clone()));
        for number in 0..450 {
            ledger.add(&name, &format!("echo {number}"), 0, Duration::from_millis(1));
        }
        ledger.add(&name, &"x".repeat(500), 3, Duration::from_millis(2));
        ledger.set_life(&name, Some(Life { container: "mcp-sb-1".to_owned(), ..Life::default() }));
        drop(ledger);

        let ledger = Ledger::at(Some(place.clone()));
        let entries = ledger.entries(&name);
        assert_eq!(entries.len(), MOST);
        assert_eq!(entries[0].command, "echo 351");
        assert_eq!((entries[99].command.len(), entries[99].status), (LONGEST, 3));
        assert_eq!(ledger.life(&name).unwrap().container, "mcp-sb-1");
        let lines = fs::read_to_string(place.join("default.log")).unwrap().lines().count();
        assert!(lines <= 2 * MOST + 1, "{lines}");
        let mode = fs::metadata(&place).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        fs::remove_dir_all(place).unwrap();
    }
}
