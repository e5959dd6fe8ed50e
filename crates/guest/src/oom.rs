//! Whom the kernel kills first when the sandbox has no memory left.
//!
//! A process may raise its score without any right, and lower it again as far as it was. Commands are
//! started while ours is raised and inherit that, so that one of them dies and not PID 1, with which
//! the kernel would end all others. The file can only be opened while our memory can be looked into.

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// How much sooner a command is killed: as if it had half of all memory more.
const RAISE: i32 = 500;
/// The highest score there is.
const MOST: i32 = 1000;

/// Our own score.
#[derive(Debug)]
pub(crate) struct OomScore {
    file: OwnedFd,
    own: i32,
}

impl OomScore {
    /// Before anything else runs in here. `proc` is where we see ourselves, if /proc shows others.
    /// None where there is no such file: then no process is preferred.
    pub(crate) fn take(proc: Option<BorrowedFd<'_>>) -> Option<Self> {
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

    /// Does something whose children are killed before us.
    pub(crate) fn raised<T>(own: Option<&Self>, start: impl FnOnce() -> T) -> T {
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
    own.saturating_add(RAISE).min(MOST)
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
