//! Freezes everything in a cgroup but the guest, which goes on reaping and serving files.
//!
//! No process inside gets a signal; only a clock can show that time has passed.

use msb_spec::Freezer;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// A process freezes when it next leaves the kernel; only a hanging disk takes longer. The worker
/// blocks meanwhile, so the limit is short.
const LIMIT: Duration = Duration::from_secs(3);
/// Interval of checks whether all are frozen; usually less than one is needed.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// Whether this kernel has the freezer.
pub(crate) fn exists(freezer: &Freezer) -> bool {
    freezer.inside.join(freezer.switch).exists()
}

/// Freezes everything but the guest. False, with everything thawed, if a process did not freeze.
pub(crate) fn freeze(freezer: &Freezer, guest: u32) -> io::Result<bool> {
    // Processes that a failed thaw has left outside.
    move_back(freezer, Some(guest))?;
    enter(&freezer.outside.join(freezer.members), guest)?;
    let frozen = freeze_inside(freezer);
    if !matches!(frozen, Ok(true)) {
        // A partial freeze must not stay.
        let thawed = thaw(freezer);
        return frozen.and_then(|_| thawed.map(|()| false));
    }
    frozen
}

fn freeze_inside(freezer: &Freezer) -> io::Result<bool> {
    let since = Instant::now();
    while since.elapsed() < LIMIT {
        // Written again each time: on v1 this also freezes processes that were just forked.
        write(&freezer.inside.join(freezer.switch), freezer.freeze)?;
        if is_frozen(freezer)? {
            return Ok(true);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(false)
}

/// Thaws everything, and moves the guest and its new children back in.
pub(crate) fn thaw(freezer: &Freezer) -> io::Result<()> {
    thaw_for_kill(freezer)?;
    move_back(freezer, None)
}

/// Thaws everything inside, so that killed processes die.
pub(crate) fn thaw_for_kill(freezer: &Freezer) -> io::Result<()> {
    write(&freezer.inside.join(freezer.switch), freezer.thaw)
}

/// Moves processes from the outer cgroup into the frozen one; left outside, they would never be
/// frozen again. Children forked during the move are found in the next round.
fn move_back(freezer: &Freezer, except: Option<u32>) -> io::Result<()> {
    let (outside, inside) =
        (freezer.outside.join(freezer.members), freezer.inside.join(freezer.members));
    let since = Instant::now();
    loop {
        let members = fs::read_to_string(&outside)?;
        let left = members.lines().filter_map(|member| member.trim().parse().ok());
        let mut left = left.filter(|member| Some(*member) != except).peekable();
        if left.peek().is_none() {
            return Ok(());
        }
        for member in left {
            match enter(&inside, member) {
                Err(error) if error.raw_os_error() != Some(libc::ESRCH) => return Err(error),
                _ => {}
            }
        }
        if since.elapsed() > LIMIT {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "processes fork without end"));
        }
    }
}

fn is_frozen(freezer: &Freezer) -> io::Result<bool> {
    let (file, line) = freezer.frozen;
    let text = fs::read_to_string(freezer.inside.join(file))?;
    Ok(text.lines().any(|state| state == line))
}

fn enter(members: &Path, pid: u32) -> io::Result<()> {
    write(members, &pid.to_string())
}

/// One write to an existing file, as cgroup files require.
fn write(path: &Path, value: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(value.as_bytes())
}
