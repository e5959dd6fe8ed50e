//! Open-file-description locks (`F_OFD_SETLK`): inherited across fork, released with the last copy
//! of the descriptor, and testable without being taken.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Takes the exclusive lock; false if another open file holds a lock.
pub fn try_lock(file: &File) -> io::Result<bool> {
    try_set(file, libc::F_WRLCK)
}

/// Takes the shared lock; false if another open file holds the exclusive one.
pub fn try_share(file: &File) -> io::Result<bool> {
    try_set(file, libc::F_RDLCK)
}

fn try_set(file: &File, kind: libc::c_int) -> io::Result<bool> {
    let mut lock = whole_file(kind);
    // SAFETY: F_OFD_SETLK reads a flock structure, which lives until the call returns.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } == 0 {
        return Ok(true);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        error => Err(error),
    }
}

/// Whether another open file holds a lock, shared or exclusive.
pub fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: F_OFD_GETLK reads and writes a flock structure, which lives until the call returns.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) } == 0 {
        return Ok(i32::from(lock.l_type) != libc::F_UNLCK);
    }
    Err(io::Error::last_os_error())
}

/// Releases the lock for every copy of this descriptor, also those inherited by a fork.
pub fn release(file: &File) -> io::Result<()> {
    let mut lock = whole_file(libc::F_UNLCK);
    // SAFETY: F_OFD_SETLK reads a flock structure, which lives until the call returns.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Releases the lock on drop, also for copies of the descriptor inherited by a fork.
#[derive(Debug)]
pub struct LockGuard(pub File);

impl Drop for LockGuard {
    fn drop(&mut self) {
        let _ = release(&self.0);
    }
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: all-zero is a valid flock: the whole file, from its start.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}
