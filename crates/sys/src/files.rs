//! What std does not do with files.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// Begins to write to disk what was written to a file, without waiting for it. Pages of it that
/// are mapped are clean then, so that the next change of one changes the time of the file.
pub fn begin_writeback(file: BorrowedFd<'_>) -> io::Result<()> {
    sync_range(file, libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE)
}

/// Hands what was written to a file to the disk, so that a rename of it that survives a power cut
/// finds it whole. Unlike an fsync it does not wait for the journal, and so for what everybody else
/// writes: shortly after it, a power cut may still undo both.
pub fn write_before_rename(file: &File) -> io::Result<()> {
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    match sync_range(file.as_fd(), all) {
        // Not every file system has it.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EINVAL | libc::ENOSYS | libc::ESPIPE | libc::EOPNOTSUPP)
            ) =>
        {
            file.sync_all()
        }
        written => written,
    }
}

fn sync_range(file: BorrowedFd<'_>, flags: libc::c_uint) -> io::Result<()> {
    // SAFETY: takes a descriptor that is open and three numbers; nothing of ours is read or written.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
