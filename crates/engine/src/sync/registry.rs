//! The syncs of a state directory: one directory each, locked by its process.

use super::status_file::{self, STATUS};
use super::{SyncSpec, SyncState, SyncStatus, SyncSummary, text};
use crate::planning::now_ms;
use crate::store::{Home, TempDir, create_private_file, remove_tree, temp_name};
use msb_spec::encoding::hex;
use msb_spec::{Error, Kind, Name, Result, state};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, RenameFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The name of the record, which is written once.
const RECORD: &str = "sync.json";
/// The most bytes of a record or status that are read.
const FILE_LIMIT: u64 = 64 << 10;
/// Hex digits of an id: short to type, and unique among dozens of syncs.
const ID_DIGITS: usize = 6;
/// How long a sync may take to end before it is killed.
const STOP_LIMIT: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How long an ended sync stays listed, in milliseconds.
const KEPT_MS: u64 = 24 * 60 * 60 * 1000;

#[derive(Debug, Serialize, Deserialize)]
struct SyncRecord {
    source: String,
    sandbox: Name,
    target: String,
    pid: u32,
    started: u64,
}

/// The directory of a sync, locked by this process. It stays on drop.
#[derive(Debug)]
pub(crate) struct SyncClaim {
    pub(crate) id: String,
    pub(crate) directory: PathBuf,
    _lock: File,
}

/// The initial status of a sync.
pub(crate) fn first_status() -> SyncStatus {
    SyncStatus {
        state: SyncState::Copying,
        reason: None,
        files: 0,
        sent: 0,
        bytes: 0,
        rate: 0,
        pending: 0,
        failures: 0,
        last_error: None,
    }
}

/// Creates the directory of the sync of this process. `rename(2)` makes it visible when it is
/// complete.
pub(crate) fn claim(home: &Home, spec: &SyncSpec, source: &Path) -> Result<SyncClaim> {
    let syncs = home.syncs();
    let about = |error: io::Error| {
        Error::host(format!("cannot keep a sync in `{}`", syncs.display()), error)
    };
    let private =
        |path: &Path, parents| fs::DirBuilder::new().recursive(parents).mode(0o700).create(path);
    private(&syncs, true).map_err(about)?;
    let temp = syncs.join(temp_name("making", "sync"));
    private(&temp, false).map_err(about)?;
    let guard = TempDir(temp.clone());
    let lock = create_private_file(&temp.join(state::LOCK)).map_err(about)?;
    msb_sys::lock::try_lock(&lock).map_err(about)?;
    let record = SyncRecord {
        source: source.to_string_lossy().into_owned(),
        sandbox: spec.sandbox.clone(),
        target: text(&spec.target),
        pid: std::process::id(),
        started: now_ms(),
    };
    let record = serde_json::to_vec(&record).expect("our own types always serialise");
    let mut file = create_private_file(&temp.join(RECORD)).map_err(about)?;
    file.write_all(&record).map_err(about)?;
    status_file::write(&temp, &first_status()).map_err(about)?;
    loop {
        let id = new_id().map_err(about)?;
        let directory = syncs.join(&id);
        match rustix::fs::renameat_with(CWD, &temp, CWD, &directory, RenameFlags::NOREPLACE) {
            Ok(()) => {
                std::mem::forget(guard);
                return Ok(SyncClaim { id, directory, _lock: lock });
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(about(error.into())),
        }
    }
}

fn new_id() -> io::Result<String> {
    let mut bytes = [0u8; ID_DIGITS / 2];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    Ok(hex(bytes))
}

fn is_id(id: &str) -> bool {
    id.len() == ID_DIGITS && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn ids(home: &Home) -> Vec<String> {
    let entries = fs::read_dir(home.syncs()).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|id| is_id(id))
        .collect()
}

fn is_alive(directory: &Path) -> bool {
    let lock = File::options().read(true).write(true).open(directory.join(state::LOCK));
    lock.is_ok_and(|lock| msb_sys::lock::is_locked(&lock).unwrap_or(false))
}

/// The summary of a sync. Its files are untrusted.
fn read(home: &Home, id: &str) -> Option<SyncSummary> {
    let directory = home.syncs().join(id);
    let SyncRecord { source, sandbox, target, pid, started } = parsed(&directory.join(RECORD))?;
    let status = parsed(&directory.join(STATUS))?;
    Some(SyncSummary { id: id.to_owned(), source, sandbox, target, pid, started, status })
}

fn parsed<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    let mut content = Vec::new();
    File::open(path).ok()?.take(FILE_LIMIT).read_to_end(&mut content).ok()?;
    serde_json::from_slice(&content).ok()
}

/// All syncs that run or have recorded their end, the oldest first.
pub(crate) fn all(home: &Home) -> Vec<SyncSummary> {
    let all = ids(home).into_iter().filter_map(|id| {
        let alive = is_alive(&home.syncs().join(&id));
        // The lock is tested first: a sync records its end before it releases the lock.
        read(home, &id).filter(|sync| alive || sync.status.state == SyncState::Ended)
    });
    let mut all: Vec<SyncSummary> = all.collect();
    all.sort_by(|a, b| (a.started, &a.id).cmp(&(b.started, &b.id)));
    all
}

/// One sync by its id.
pub(crate) fn one(home: &Home, id: &str) -> Result<SyncSummary> {
    all(home).into_iter().find(|sync| sync.id == id).ok_or_else(|| unknown(home, id))
}

fn unknown(home: &Home, id: &str) -> Error {
    let error = Error::new(Kind::NotFound, format!("no sync `{id}`"));
    let ids = ids(home);
    match msb_spec::nearest(id, ids.iter().map(String::as_str)) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint("`msb sync ls` lists those there are"),
    }
}

/// Stops a sync and removes its directory.
pub(crate) fn stop(home: &Home, id: &str) -> Result<()> {
    let directory = home.syncs().join(id);
    if !is_id(id) || !directory.exists() {
        return Err(unknown(home, id));
    }
    if is_alive(&directory) {
        end(id, &directory)?;
    }
    remove(home, id).map_err(|error| Error::host(format!("cannot remove sync `{id}`"), error))
}

/// Ends a sync process: SIGTERM, then SIGKILL.
fn end(id: &str, directory: &Path) -> Result<()> {
    let record: Option<SyncRecord> = parsed(&directory.join(RECORD));
    let pid = record.and_then(|record| Pid::from_raw(i32::try_from(record.pid).ok()?));
    let Some(pid) = pid else {
        return Err(Error::new(Kind::State, format!("the record of sync `{id}` cannot be read")));
    };
    let about = |error: rustix::io::Errno| {
        Error::host(format!("cannot end sync `{id}`"), io::Error::from(error))
    };
    let process = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        process => process.map_err(about)?,
    };
    // The pidfd is open now: if the lock is still held, the pid has not been reused.
    if !is_alive(directory) {
        return Ok(());
    }
    for signal in [Signal::TERM, Signal::KILL] {
        match rustix::process::pidfd_send_signal(&process, signal) {
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            sent => sent.map_err(about)?,
        }
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        if poll(&mut fds, Some(&STOP_LIMIT)).is_ok_and(|ended| ended > 0) {
            return Ok(());
        }
    }
    Err(Error::new(Kind::Timeout, format!("sync `{id}` does not end")))
}

/// Removes the directory of a sync that has ended.
pub(crate) fn forget(home: &Home, id: &str) {
    if is_id(id) && !is_alive(&home.syncs().join(id)) {
        msb_log::debug_on_failure!(remove(home, id), "cannot remove the record of a sync");
    }
}

/// Removes the directory of a sync: `rename(2)` first, then the tree.
pub(crate) fn remove(home: &Home, id: &str) -> io::Result<()> {
    let gone = home.syncs().join(temp_name("gone", id));
    match fs::rename(home.syncs().join(id), &gone) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        renamed => renamed.and_then(|()| remove_tree(&gone)),
    }
}

/// Removes directories of killed syncs. Returns one line for each.
pub(crate) fn repair(home: &Home) -> Vec<String> {
    let mut notes = Vec::new();
    for id in ids(home) {
        if is_alive(&home.syncs().join(&id)) {
            continue;
        }
        let note = match read(home, &id) {
            Some(sync) if sync.status.state == SyncState::Ended => {
                if now_ms().saturating_sub(sync.started) > KEPT_MS {
                    msb_log::debug_on_failure!(
                        remove(home, &id),
                        "cannot remove the record of a sync"
                    );
                }
                continue;
            }
            Some(SyncSummary { source, sandbox, target, .. }) => format!(
                "cleaned up after sync `{id}` of `{source}` to `{sandbox}:{target}`, which was killed"
            ),
            None => format!("cleaned up after sync `{id}`, which was killed"),
        };
        if remove(home, &id).is_ok() {
            notes.push(note);
        }
    }
    notes
}
