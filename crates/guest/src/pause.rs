//! Everything in here stopped where it is, and let go again.

use crate::session::stats;
use msb_sys::signal::{self, SIGCONT, SIGSTOP};
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// A process stops when it next leaves the kernel; only a disk that hangs takes longer.
const LIMIT: Duration = Duration::from_secs(5);
/// One that waits in the kernel for another that has stopped will not stop itself.
const PATIENCE: Duration = Duration::from_millis(200);

/// What was stopped, and was not before.
#[derive(Debug, Default)]
pub(crate) struct Paused {
    before: BTreeSet<i32>,
}

impl Paused {
    /// Stops everything; `proc` is where to look if /proc shows others. None if something goes on.
    pub(crate) fn begin(proc: Option<BorrowedFd<'_>>) -> Option<Self> {
        let before =
            states(proc).filter(|(_, state)| is_stopped(*state)).map(|(pid, _)| pid).collect();
        let paused = Self { before };
        let since = Instant::now();
        loop {
            // Again each time: who was just born was not there for the last one.
            let _ = signal::send(-1, SIGSTOP);
            let patient = since.elapsed() < PATIENCE;
            let waits =
                |state: u8| is_stopped(state) || state == b'Z' || (state == b'D' && !patient);
            if states(proc).all(|(_, state)| waits(state)) {
                return Some(paused);
            }
            if since.elapsed() > LIMIT {
                paused.end(proc);
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Lets go on what went on before.
    pub(crate) fn end(&self, proc: Option<BorrowedFd<'_>>) {
        for (pid, _) in states(proc).filter(|(pid, _)| !self.before.contains(pid)) {
            let _ = signal::send(pid, SIGCONT);
        }
    }
}

fn is_stopped(state: u8) -> bool {
    matches!(state, b'T' | b't')
}

/// Every process but this one, with the letter for what it does.
fn states(proc: Option<BorrowedFd<'_>>) -> impl Iterator<Item = (i32, u8)> {
    stats(proc).filter(|(pid, _)| *pid != 1).filter_map(|(pid, text)| {
        let end = text.iter().rposition(|byte| *byte == b')')?;
        Some((pid, *text.get(end + 2)?))
    })
}
