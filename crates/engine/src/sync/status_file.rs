//! The status file of a sync and its bounded log.

use super::{SyncState, SyncStatus};
use crate::planning::now_ms;
use crate::store::create_private_file;
use msb_spec::{Error, state};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The name of the status file, which is replaced as a whole.
pub(crate) const STATUS: &str = "status.json";
/// The name of the error log; its previous part has the suffix [`state::ROTATED`].
const LOG: &str = "sync.log";
/// The size of the log in bytes before it is rotated.
const LOG_LIMIT: u64 = 256 << 10;
/// The least time between two writes that are not urgent.
const WRITE_INTERVAL: Duration = Duration::from_millis(250);

/// The status of one sync. The follower thread updates it; the main thread writes the end.
#[derive(Debug)]
pub(crate) struct StatusFile {
    directory: PathBuf,
    inside: Mutex<StatusState>,
}

#[derive(Debug)]
struct StatusState {
    status: SyncStatus,
    written: Instant,
}

impl StatusFile {
    /// Wraps a status that is on disk already.
    pub(crate) fn new(directory: &Path, status: SyncStatus) -> Self {
        let inside = Mutex::new(StatusState { status, written: Instant::now() });
        Self { directory: directory.to_owned(), inside }
    }

    /// Changes the status. It is written now if `now`, else at most every `WRITE_INTERVAL`.
    pub(crate) fn update(&self, now: bool, change: impl FnOnce(&mut SyncStatus)) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.status.state == SyncState::Ended {
            return;
        }
        change(&mut inside.status);
        if now || inside.written.elapsed() >= WRITE_INTERVAL {
            inside.written = Instant::now();
            // On a full disk the previous status stays.
            msb_log::warn_on_failure!(
                write(&self.directory, &inside.status),
                "cannot write the state of a sync"
            );
        }
    }

    /// Records why the sync ended; later updates are ignored.
    pub(crate) fn end(&self, reason: &str) {
        self.update(true, |status| {
            status.state = SyncState::Ended;
            status.reason = Some(reason.to_owned());
            (status.rate, status.pending) = (0, 0);
        });
        self.log(&format!("ended: {reason}"));
    }

    pub(crate) fn log_error(&self, error: &Error) {
        let mut line = error.message().to_owned();
        error.causes().iter().for_each(|cause| line.push_str(&format!(": {cause}")));
        self.log(&line);
    }

    fn log(&self, line: &str) {
        let path = self.directory.join(LOG);
        let line = format!("{} {}\n", now_ms(), msb_spec::shown(line));
        let append = || -> io::Result<()> {
            if fs::metadata(&path).is_ok_and(|meta| meta.len() > LOG_LIMIT) {
                fs::rename(&path, self.directory.join(format!("{LOG}{}", state::ROTATED)))?;
            }
            File::options().append(true).create(true).open(&path)?.write_all(line.as_bytes())
        };
        // Errors of the log are ignored.
        msb_log::warn_on_failure!(append(), "cannot write the log of a sync");
    }
}

/// Replaces the status file by `rename(2)`.
pub(crate) fn write(directory: &Path, status: &SyncStatus) -> io::Result<()> {
    let text = serde_json::to_vec(status).expect("our own types always serialise");
    let temp = directory.join(".status.json");
    let _ = fs::remove_file(&temp);
    create_private_file(&temp)?.write_all(&text)?;
    fs::rename(temp, directory.join(STATUS))
}
