//! SFTP file attributes: encoding, decoding and applying them.

use super::packet::{PacketReader, ReplyBuffer};
use super::status::SftpError;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 0x8000_0000;

/// Encodes the attributes of a file.
pub(super) fn put(out: &mut ReplyBuffer, stat: &Stat) {
    let seconds = |time| u32::try_from(time).unwrap_or(if time < 0 { 0 } else { u32::MAX });
    out.u32(SIZE | OWNER | PERMISSIONS | TIMES);
    out.u64(u64::try_from(stat.st_size).unwrap_or(0));
    out.u32(stat.st_uid);
    out.u32(stat.st_gid);
    out.u32(stat.st_mode);
    out.u32(seconds(stat.st_atime));
    out.u32(seconds(stat.st_mtime));
}

/// Attributes to set; absent ones stay unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SetAttrs {
    size: Option<u64>,
    owner: Option<(u32, u32)>,
    mode: Option<u32>,
    times: Option<(u32, u32)>,
}

impl SetAttrs {
    pub(super) fn read(fields: &mut PacketReader<'_>) -> Result<Self, SftpError> {
        let flags = fields.u32()?;
        let has = |flag| flags & flag != 0;
        let mut attrs = Self::default();
        if has(SIZE) {
            attrs.size = Some(fields.u64()?);
        }
        if has(OWNER) {
            attrs.owner = Some((fields.u32()?, fields.u32()?));
        }
        if has(PERMISSIONS) {
            attrs.mode = Some(fields.u32()?);
        }
        if has(TIMES) {
            attrs.times = Some((fields.u32()?, fields.u32()?));
        }
        if has(EXTENDED) {
            // Each takes at least eight bytes, so a false count ends with the packet.
            for _ in 0..fields.u32()? {
                fields.string()?;
                fields.string()?;
            }
        }
        Ok(attrs)
    }

    /// The mode for a new file.
    pub(super) fn mode_or(&self, usual: u32) -> Mode {
        Mode::from_raw_mode(self.mode.unwrap_or(usual) & 0o7777)
    }

    fn owner(&self) -> Option<(Option<Uid>, Option<Gid>)> {
        // chown(2) leaves an id of -1 unchanged.
        let some = |id: u32| Some(id).filter(|id| *id != u32::MAX);
        self.owner.map(|(uid, gid)| (some(uid).map(Uid::from_raw), some(gid).map(Gid::from_raw)))
    }

    fn times(&self) -> Option<Timestamps> {
        let time = |seconds: u32| Timespec { tv_sec: i64::from(seconds), tv_nsec: 0 };
        self.times.map(|(accessed, modified)| Timestamps {
            last_access: time(accessed),
            last_modification: time(modified),
        })
    }

    /// Applies to an open file. Everything is tried, and the first error is returned.
    pub(super) fn set(&self, fd: BorrowedFd<'_>) -> Result<(), SftpError> {
        let mut first = FirstError::default();
        if let Some(size) = self.size {
            first.keep(rustix::fs::ftruncate(fd, size));
        }
        // chown comes before chmod, because it clears set-id bits.
        if let Some((uid, gid)) = self.owner() {
            first.keep(rustix::fs::fchown(fd, uid, gid));
        }
        if self.mode.is_some() {
            first.keep(rustix::fs::fchmod(fd, self.mode_or(0)));
        }
        if let Some(times) = self.times() {
            first.keep(rustix::fs::futimens(fd, &times));
        }
        first.result()
    }

    /// Applies to a path, following symlinks.
    pub(super) fn set_at(&self, path: &Path) -> Result<(), SftpError> {
        let mut first = FirstError::default();
        if let Some(size) = self.size {
            first.keep(truncate(path, size));
        }
        if let Some((uid, gid)) = self.owner() {
            first.keep(rustix::fs::chown(path, uid, gid));
        }
        if self.mode.is_some() {
            first.keep(rustix::fs::chmod(path, self.mode_or(0)));
        }
        if let Some(times) = self.times() {
            first.keep(rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()));
        }
        first.result()
    }

    /// Applies to a path without following a symlink.
    pub(super) fn set_nofollow(&self, path: &Path) -> Result<(), SftpError> {
        if self.size.is_some() {
            return Err(SftpError::malformed());
        }
        let mut first = FirstError::default();
        if let Some((uid, gid)) = self.owner() {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            first.keep(rustix::fs::chownat(CWD, path, uid, gid, flags));
        }
        if self.mode.is_some() {
            first.keep(chmod_nofollow(path, self.mode_or(0)));
        }
        if let Some(times) = self.times() {
            first.keep(rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW));
        }
        first.result()
    }
}

/// Truncates a regular file. Opening a FIFO would block, so it is refused before.
fn truncate(path: &Path, size: u64) -> rustix::io::Result<()> {
    let kind = FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode);
    match kind {
        FileType::RegularFile => {}
        FileType::Directory => return Err(rustix::io::Errno::ISDIR),
        _ => return Err(rustix::io::Errno::INVAL),
    }
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::ftruncate(rustix::fs::open(path, flags, Mode::empty())?, size)
}

/// chmod without following symlinks. The kernel has no mode of symlinks, and older kernels no such
/// call.
fn chmod_nofollow(path: &Path, mode: Mode) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = rustix::fs::open(path, flags, Mode::empty())?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&found)?.st_mode);
    if kind == FileType::Symlink {
        return Err(rustix::io::Errno::OPNOTSUPP);
    }
    rustix::fs::chmod(format!("/proc/self/fd/{}", found.as_fd().as_raw_fd()), mode)
}

/// Keeps the first error of several calls.
#[derive(Debug, Default)]
struct FirstError(Option<SftpError>);

impl FirstError {
    fn keep(&mut self, done: rustix::io::Result<()>) {
        if let Err(errno) = done {
            self.0.get_or_insert_with(|| errno.into());
        }
    }

    fn result(self) -> Result<(), SftpError> {
        self.0.map_or(Ok(()), Err)
    }
}
