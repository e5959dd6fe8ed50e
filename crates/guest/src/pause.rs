//! Stops all processes by SIGSTOP and resumes them, where there is no cgroup freezer.

use crate::session::stats;
use msb_sys::signal::{self, SIGCONT, SIGSTOP};
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

/// A process stops when it next leaves the kernel; only a hanging disk takes longer.
const LIMIT: Duration = Duration::from_secs(5);
/// After this, a process in uninterruptible sleep counts as stopped: it may wait for a stopped one.
const BLOCKED_LIMIT: Duration = Duration::from_millis(200);

/// A pause, with the processes that were stopped before.
#[derive(Debug, Default)]
pub(crate) struct ProcessPause {
    stopped_before: BTreeSet<i32>,
}

impl ProcessPause {
    /// Stops everything. `proc` is the guest's own /proc, if the mounted one shows another pid
    /// namespace. None if a process cannot be stopped.
    pub(crate) fn stop_all(proc: Option<BorrowedFd<'_>>) -> Option<Self> {
        let stopped_before =
            states(proc).filter(|(_, state)| is_stopped(*state)).map(|(pid, _)| pid).collect();
        let paused = Self { stopped_before };
        let since = Instant::now();
        loop {
            // Sent again each time, for processes that were just forked.
            let _ = signal::send(-1, SIGSTOP);
            let patient = since.elapsed() < BLOCKED_LIMIT;
            let waits =
                |state: u8| is_stopped(state) || state == b'Z' || (state == b'D' && !patient);
            if states(proc).all(|(_, state)| waits(state)) {
                return Some(paused);
            }
            if since.elapsed() > LIMIT {
                paused.resume(proc);
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Resumes what was running before.
    pub(crate) fn resume(&self, proc: Option<BorrowedFd<'_>>) {
        for (pid, _) in states(proc).filter(|(pid, _)| !self.stopped_before.contains(pid)) {
            let _ = signal::send(pid, SIGCONT);
        }
    }
}

fn is_stopped(state: u8) -> bool {
    matches!(state, b'T' | b't')
}

/// Every process but this one, with its state letter.
fn states(proc: Option<BorrowedFd<'_>>) -> impl Iterator<Item = (i32, u8)> {
    stats(proc).filter(|(pid, _)| *pid != 1).filter_map(|(pid, text)| {
        let end = text.iter().rposition(|byte| *byte == b')')?;
        Some((pid, *text.get(end + 2)?))
    })
}
