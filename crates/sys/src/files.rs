//! What std does not do with files.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Begins to write to disk what was written to a file, without waiting for it. Pages of it that
/// are mapped are clean then, so that the next change of one changes the time of the file.
pub fn begin_writeback(file: BorrowedFd<'_>) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE;
    // SAFETY: takes a descriptor that is open and three numbers; nothing of ours is read or written.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
