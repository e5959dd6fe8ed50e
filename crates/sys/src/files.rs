//! What std does not do with files.

use rustix::fs::{FileType, Mode, OFlags};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// What an ordinary file holds that is no longer than this. A pipe would be waited for, a device
/// might have no end, and files of /proc and /sys are written by the kernel, about this process.
///
/// Every link is followed, magic links of /proc too: only for a process inside a sandbox that holds
/// no descriptor of anything else. Others use [`crate::root_dir::RootDir::read_ordinary`].
pub fn read_ordinary(path: &str, most: usize) -> Option<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    read_if_ordinary(rustix::fs::open(path, flags, Mode::empty()).ok()?, most)
}

/// The same of a file that is open.
pub(crate) fn read_if_ordinary(file: OwnedFd, most: usize) -> Option<Vec<u8>> {
    /// The number by which the kernel knows sysfs.
    const SYSFS_MAGIC: rustix::fs::FsWord = 0x6265_6572;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode);
    let kernels = [rustix::fs::PROC_SUPER_MAGIC, SYSFS_MAGIC];
    if kind != FileType::RegularFile || kernels.contains(&rustix::fs::fstatfs(&file).ok()?.f_type) {
        return None;
    }
    let mut bytes = Vec::new();
    File::from(file).take(most as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() <= most).then_some(bytes)
}

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
