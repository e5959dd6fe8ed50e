//! What a command has left behind in its session, ended with it.

use msb_sys::signal::{self, SIGKILL};
use rustix::fs::{CWD, Dir, Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;

/// Each look finds who was born during the one before; a fork bomb that outruns this many is held
/// by the limit of processes, and ends with the sandbox.
const LOOKS: usize = 50;

/// Kills everything in the session of a command that has ended. Whoever has made a session of its
/// own has left, and stays. `proc` is where to look if /proc shows others: the leader's number and
/// those that are signalled are ours.
pub(crate) fn end(leader: i32, proc: Option<BorrowedFd<'_>>) {
    for _ in 0..LOOKS {
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

/// Those of a session that have not ended.
fn members(leader: i32, proc: Option<BorrowedFd<'_>>) -> impl Iterator<Item = i32> {
    stats(proc).filter_map(move |(pid, text)| {
        let text = String::from_utf8_lossy(&text);
        let (state, session) = session(&text)?;
        (!matches!(state, "Z" | "X") && session == leader).then_some(pid)
    })
}

/// Every process that is seen there, with what the kernel says of it in a line.
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

/// The state and the session of a line of /proc. The name in it may hold anything.
fn session(stat: &str) -> Option<(&str, i32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    // Parent and process group come before it.
    Some((state, fields.nth(2)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        assert_eq!(session("7 (a) b) S 1 2 42 0 -1"), Some(("S", 42)));
        assert_eq!(session("7 (x) Z 1"), None);
    }
}
