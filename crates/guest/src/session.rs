//! Kills what an exited command has left in its session.

use msb_sys::signal::{self, SIGKILL};
use rustix::fs::{CWD, Dir, Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;

/// Each round finds processes forked during the last one. A fork bomb that outruns all rounds is
/// bounded by the pids limit and dies with the sandbox.
const MAX_ROUNDS: usize = 50;

/// Kills everything in the session of an exited command. Processes in sessions of their own stay.
/// `proc` is the guest's own /proc, if the mounted one shows another pid namespace; pids are those
/// of the guest's namespace.
pub(crate) fn kill(leader: i32, proc: Option<BorrowedFd<'_>>) {
    for _ in 0..MAX_ROUNDS {
        let mut found = false;
        for pid in members(leader, proc) {
            found = true;
            let _ = signal::send(pid, SIGKILL);
        }
        if !found {
            return;
        }
    }
}

/// Live processes of a session.
fn members(leader: i32, proc: Option<BorrowedFd<'_>>) -> impl Iterator<Item = i32> {
    stats(proc).filter_map(move |(pid, text)| {
        let text = String::from_utf8_lossy(&text);
        let (state, session) = session_of(&text)?;
        (!matches!(state, "Z" | "X") && session == leader).then_some(pid)
    })
}

/// Every process in /proc with its `stat` line.
pub(crate) fn stats(proc: Option<BorrowedFd<'_>>) -> impl Iterator<Item = (i32, Vec<u8>)> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let open = move |path: &str| match proc {
        Some(proc) => rustix::fs::openat(proc, path, flags, Mode::empty()),
        None => rustix::fs::openat(CWD, format!("/proc/{path}"), flags, Mode::empty()),
    };
    let entries = open(".").and_then(Dir::new).into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str().ok()?.parse::<i32>().ok());
    pids.filter_map(move |pid| {
        let mut text = Vec::new();
        File::from(open(&format!("{pid}/stat")).ok()?).read_to_end(&mut text).ok()?;
        Some((pid, text))
    })
}

/// State and session from a `stat` line. The name in it may contain anything.
fn session_of(stat: &str) -> Option<(&str, i32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    // Parent pid and process group come before it.
    Some((state, fields.nth(2)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        assert_eq!(session_of("7 (a) b) S 1 2 42 0 -1"), Some(("S", 42)));
        assert_eq!(session_of("7 (x) Z 1"), None);
    }
}
