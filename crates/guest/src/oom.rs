//! OOM scores of the guest and its commands.
//!
//! A process may raise its own score and lower it back without privileges. Commands are started
//! while ours is raised and inherit it, so that the OOM killer picks one of them and not PID 1. The
//! file can only be opened while the process is dumpable.

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Added to the score of commands: they count as if they used half of all memory more.
const RAISE: i32 = 500;
/// The highest score of the kernel.
const MAX_SCORE: i32 = 1000;

/// The guest's own OOM score.
#[derive(Debug)]
pub(crate) struct OomScore {
    file: OwnedFd,
    own: i32,
}

impl OomScore {
    /// Opens the score before anything else runs. `proc` is the guest's own /proc, if the mounted
    /// one shows another pid namespace. None if there is no such file; then no process is
    /// preferred.
    pub(crate) fn open(proc: Option<BorrowedFd<'_>>) -> Option<Self> {
        let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = match proc {
            Some(proc) => rustix::fs::openat(proc, "self/oom_score_adj", flags, Mode::empty()),
            None => rustix::fs::openat(CWD, "/proc/self/oom_score_adj", flags, Mode::empty()),
        };
        let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
        let file = file.ok()?;
        let mut text = [0; 16];
        let read = rustix::io::pread(&file, &mut text, 0).ok()?;
        let own = std::str::from_utf8(&text[..read]).ok()?.trim().parse().ok()?;
        Some(Self { file, own })
    }

    /// Runs `start` with a raised score, which its children inherit.
    pub(crate) fn with_raised<T>(own: Option<&Self>, start: impl FnOnce() -> T) -> T {
        if let Some(score) = own {
            score.write(higher(score.own));
        }
        let started = start();
        if let Some(score) = own {
            score.write(score.own);
        }
        started
    }

    fn write(&self, value: i32) {
        let _ = rustix::io::pwrite(self.file.as_fd(), value.to_string().as_bytes(), 0);
    }
}

fn higher(own: i32) -> i32 {
    own.saturating_add(RAISE).min(MAX_SCORE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_raised_and_never_past_the_highest() {
        for (own, raised) in [(0, 500), (-1000, -500), (200, 700), (900, 1000), (1000, 1000)] {
            assert_eq!(higher(own), raised);
        }
    }
}
