//! Where a sync tells how it is doing: a small file for whoever asks, and a bounded log.

use super::{SyncState, SyncStatus};
use crate::planning::now_ms;
use crate::store::create_private;
use msb_spec::{Error, state};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How a sync is doing, rewritten as a whole.
pub(crate) const STATUS: &str = "status.json";
/// What went wrong, a line each; the one before it has [`state::ROTATED`] behind its name.
const LOG: &str = "sync.log";
/// Enough to see what has been going on.
const LOG_LIMIT: u64 = 256 << 10;
/// A file that is rewritten more often is only work for the disk.
const BETWEEN: Duration = Duration::from_millis(250);

/// The status of one sync. The thread that follows writes it, and the one that ends it writes last.
#[derive(Debug)]
pub(crate) struct Board {
    directory: PathBuf,
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    status: SyncStatus,
    written: Instant,
}

impl Board {
    /// A status that is on disk already.
    pub(crate) fn new(directory: &Path, status: SyncStatus) -> Self {
        let inside = Mutex::new(Inside { status, written: Instant::now() });
        Self { directory: directory.to_owned(), inside }
    }

    /// Changes the status. It is on disk at once if somebody waits for it, soon otherwise.
    pub(crate) fn update(&self, now: bool, change: impl FnOnce(&mut SyncStatus)) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.status.state == SyncState::Ended {
            return;
        }
        change(&mut inside.status);
        if now || inside.written.elapsed() >= BETWEEN {
            inside.written = Instant::now();
            // Without space for it the last one stays.
            let _ = write(&self.directory, &inside.status);
        }
    }

    /// Says why it is over; nothing changes after that.
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
        // A log that cannot be written is no reason to stop.
        let _ = append();
    }
}

/// Puts a status in the place of the one before.
pub(crate) fn write(directory: &Path, status: &SyncStatus) -> io::Result<()> {
    let text = serde_json::to_vec(status).expect("our own types always serialise");
    let aside = directory.join(".status.json");
    let _ = fs::remove_file(&aside);
    create_private(&aside)?.write_all(&text)?;
    fs::rename(aside, directory.join(STATUS))
}
