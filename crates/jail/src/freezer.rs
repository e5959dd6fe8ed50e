//! Everything in a cgroup frozen where it is, but for the guest that reaps and serves there.
//!
//! Nothing inside sees a signal, and nothing can tell but by a clock.

use msb_spec::Freezer;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// A process freezes when it next leaves the kernel; only a disk that hangs takes longer. The worker
/// waits for it, so it is not long.
const LIMIT: Duration = Duration::from_secs(3);
/// Between two looks at whether all are frozen, which usually takes less than one of these.
const LOOK: Duration = Duration::from_micros(200);

/// Whether this kernel can do it.
pub(crate) fn is_there(freezer: &Freezer) -> bool {
    freezer.inside.join(freezer.switch).exists()
}

/// Freezes everything but the guest. False if something would not, and then everything goes on.
pub(crate) fn freeze(freezer: &Freezer, guest: u32) -> io::Result<bool> {
    // Whom a thaw that failed has left there.
    take_back(freezer, Some(guest))?;
    enter(&freezer.outside.join(freezer.members), guest)?;
    let frozen = freeze_inside(freezer);
    if !matches!(frozen, Ok(true)) {
        // Half of it would stand still otherwise, and nobody would know.
        let thawed = thaw(freezer);
        return frozen.and_then(|_| thawed.map(|()| false));
    }
    frozen
}

fn freeze_inside(freezer: &Freezer) -> io::Result<bool> {
    let since = Instant::now();
    while since.elapsed() < LIMIT {
        // Again each time: on v1 one who was just born is found by that.
        write(&freezer.inside.join(freezer.switch), freezer.freeze)?;
        if is_frozen(freezer)? {
            return Ok(true);
        }
        std::thread::sleep(LOOK);
    }
    Ok(false)
}

/// Lets everything go on, and takes back the guest with whatever it has started meanwhile.
pub(crate) fn thaw(freezer: &Freezer) -> io::Result<()> {
    let_die(freezer)?;
    take_back(freezer, None)
}

/// Lets everything inside go on, or end.
pub(crate) fn let_die(freezer: &Freezer) -> io::Result<()> {
    write(&freezer.inside.join(freezer.switch), freezer.thaw)
}

/// Who stayed outside would never be frozen again. What is born while its parent is moved is found in the
/// next round.
fn take_back(freezer: &Freezer, but: Option<u32>) -> io::Result<()> {
    let (outside, inside) =
        (freezer.outside.join(freezer.members), freezer.inside.join(freezer.members));
    let since = Instant::now();
    loop {
        let members = fs::read_to_string(&outside)?;
        let left = members.lines().filter_map(|member| member.trim().parse().ok());
        let mut left = left.filter(|member| Some(*member) != but).peekable();
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
            return Err(io::Error::new(io::ErrorKind::TimedOut, "somebody forks without end"));
        }
    }
}

fn is_frozen(freezer: &Freezer) -> io::Result<bool> {
    let (file, line) = freezer.frozen;
    let text = fs::read_to_string(freezer.inside.join(file))?;
    Ok(text.lines().any(|said| said == line))
}

fn enter(members: &Path, pid: u32) -> io::Result<()> {
    write(members, &pid.to_string())
}

/// As the kernel wants it: one write, of a file that is there.
fn write(path: &Path, value: &str) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(value.as_bytes())
}
