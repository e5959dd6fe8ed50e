//! The source directory, accessed through one descriptor.
//!
//! Every path is resolved below that descriptor without following symlinks, so nothing outside is
//! read, whatever is renamed meanwhile. The descriptor is closed while the sync is idle: an open
//! directory reports no removal and cannot be unmounted.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The source directory of a sync or a copy.
#[derive(Debug)]
pub(crate) struct SourceDir {
    path: PathBuf,
    /// Device and inode, to recognise the directory when it is reopened.
    stamp: FileStamp,
    root: Option<OwnedFd>,
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceKind {
    File,
    Directory,
    Symlink,
    /// A device, socket or FIFO, which is not copied.
    Other,
}

/// The metadata that identifies a version of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    /// The mtime in seconds and nanoseconds.
    pub(crate) modified: (i64, i64),
    pub(crate) changed: (i64, i64),
}

impl FileStamp {
    /// Whether device and inode are equal.
    pub(crate) fn is_same_inode(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether inode, size and mtime are equal. A process that sets the mtime can defeat this.
    pub(crate) fn has_same_content(&self, other: &Self) -> bool {
        self.is_same_inode(other) && (self.size, self.modified) == (other.size, other.modified)
    }

    /// The mtime in milliseconds since 1970.
    pub(crate) fn modified_ms(&self) -> i64 {
        self.modified.0.saturating_mul(1000).saturating_add(self.modified.1 / 1_000_000)
    }
}

/// A path of the source, opened with O_PATH.
#[derive(Debug)]
pub(crate) struct SourceEntry {
    fd: OwnedFd,
    pub(crate) kind: SourceKind,
    pub(crate) stamp: FileStamp,
}

impl SourceEntry {
    /// The target of a symlink.
    pub(crate) fn link(&self) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.fd, c"", Vec::new())?.into_bytes())
    }
}

impl SourceDir {
    /// Opens a directory by its canonical path.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let root = open(path)?;
        let stamp = stamp(&root)?;
        Ok(Self { path: path.to_owned(), stamp, root: Some(root) })
    }

    /// Wraps an open directory.
    pub(crate) fn from_open(path: &Path, root: OwnedFd, stamp: FileStamp) -> Self {
        Self { path: path.to_owned(), stamp, root: Some(root) }
    }

    /// Kind and stamp of an open file.
    pub(crate) fn described(fd: impl AsFd) -> io::Result<(SourceKind, FileStamp)> {
        Ok(described(&rustix::fs::fstat(fd)?))
    }

    /// Reopens the source if it was closed. False if it is gone.
    pub(crate) fn reopen(&mut self) -> bool {
        if self.root.is_none() {
            let same = |root: &OwnedFd| stamp(root).is_ok_and(|now| now.is_same_inode(&self.stamp));
            self.root = open(&self.path).ok().filter(same);
        }
        self.root.is_some()
    }

    /// Closes the source until [`SourceDir::reopen`].
    pub(crate) fn close(&mut self) {
        self.root = None;
    }

    /// Looks a path up; symlinks are not followed.
    pub(crate) fn look_up(&self, path: &[u8]) -> io::Result<SourceEntry> {
        let fd = self.at(path, OFlags::PATH)?;
        let (kind, stamp) = described(&rustix::fs::fstat(&fd)?);
        Ok(SourceEntry { fd, kind, stamp })
    }

    /// Opens a directory for listing.
    pub(crate) fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// Opens a file with its stamp; `None` if it is not a regular file.
    pub(crate) fn file(&self, path: &[u8]) -> io::Result<Option<(File, FileStamp)>> {
        // O_NONBLOCK: a FIFO that has replaced the file must not block.
        let fd = self.at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let (kind, stamp) = described(&rustix::fs::fstat(&fd)?);
        Ok((kind == SourceKind::File).then(|| (File::from(fd), stamp)))
    }

    fn at(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let root = self.root.as_ref().ok_or_else(|| io::Error::other("the source is closed"))?;
        let path = if path.is_empty() { b"." } else { path };
        let within =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), within)?)
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // The path is canonical, so a symlink in it now is refused.
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

/// The present stamp of an open file.
pub(crate) fn stamp(file: impl AsFd) -> io::Result<FileStamp> {
    Ok(described(&rustix::fs::statat(file, c"", AtFlags::EMPTY_PATH)?).1)
}

/// The names in a directory, without `.` and `..`.
pub(crate) fn names(directory: &OwnedFd) -> io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

fn described(stat: &Stat) -> (SourceKind, FileStamp) {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => SourceKind::File,
        FileType::Directory => SourceKind::Directory,
        FileType::Symlink => SourceKind::Symlink,
        _ => SourceKind::Other,
    };
    let stamp = FileStamp {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o777,
        modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
        changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
    };
    (kind, stamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_link_in_the_way_is_not_followed() {
        let place = std::env::temp_dir().join(format!("msb-source-{}", std::process::id()));
        fs::create_dir_all(place.join("real/deep")).unwrap();
        let place = fs::canonicalize(place).unwrap();
        std::os::unix::fs::symlink("real", place.join("link")).unwrap();
        let opens = |path: &str| SourceDir::open(&place.join(path)).is_ok();
        assert!(opens("real/deep"));
        assert!(!opens("link"));
        assert!(!opens("link/deep"));
        fs::remove_dir_all(place).unwrap();
    }
}
