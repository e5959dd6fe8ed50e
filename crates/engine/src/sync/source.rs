//! The directory that is copied, through one descriptor of it.
//!
//! Every path is resolved below that descriptor and through no link, so that nothing outside is
//! ever read, whatever is renamed meanwhile. It is held only while it is used: the kernel does not
//! tell that a directory was removed while somebody has it open, and does not unmount it.

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A directory of the host.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    /// By which it is known again.
    stamp: Stamp,
    root: Option<OwnedFd>,
}

/// What sort of thing is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    File,
    Directory,
    Symlink,
    /// A device, socket or pipe, which is left out.
    Other,
}

/// What tells a version of a file from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) mode: u32,
    /// Seconds and nanoseconds.
    pub(crate) modified: (i64, i64),
    pub(crate) changed: (i64, i64),
}

impl Stamp {
    /// Whether it is the same thing, whatever has happened to it.
    pub(crate) fn is_same_thing(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// Whether it has the same content, unless somebody has set the time back.
    pub(crate) fn has_same_content(&self, other: &Self) -> bool {
        self.is_same_thing(other) && (self.size, self.modified) == (other.size, other.modified)
    }

    /// Milliseconds since 1970.
    pub(crate) fn modified_ms(&self) -> i64 {
        self.modified.0.saturating_mul(1000).saturating_add(self.modified.1 / 1_000_000)
    }
}

/// Something of the source, held.
#[derive(Debug)]
pub(crate) struct Look {
    fd: OwnedFd,
    pub(crate) sort: Sort,
    pub(crate) stamp: Stamp,
}

impl Look {
    /// What a link says.
    pub(crate) fn link(&self) -> io::Result<Vec<u8>> {
        Ok(rustix::fs::readlinkat(&self.fd, c"", Vec::new())?.into_bytes())
    }
}

impl Source {
    /// Opens a directory by its canonical path.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let root = open(path)?;
        let stamp = stamp(&root)?;
        Ok(Self { path: path.to_owned(), stamp, root: Some(root) })
    }

    /// One that is open.
    pub(crate) fn held(path: &Path, root: OwnedFd, stamp: Stamp) -> Self {
        Self { path: path.to_owned(), stamp, root: Some(root) }
    }

    /// What something open is.
    pub(crate) fn described(fd: impl AsFd) -> io::Result<(Sort, Stamp)> {
        Ok(described(&rustix::fs::fstat(fd)?))
    }

    /// Opens it again if it was let go. False if it is no longer there.
    pub(crate) fn hold(&mut self) -> bool {
        if self.root.is_none() {
            let same = |root: &OwnedFd| stamp(root).is_ok_and(|now| now.is_same_thing(&self.stamp));
            self.root = open(&self.path).ok().filter(same);
        }
        self.root.is_some()
    }

    /// Lets it go until it is held again.
    pub(crate) fn let_go(&mut self) {
        self.root = None;
    }

    /// What is there; a link is one.
    pub(crate) fn look(&self, path: &[u8]) -> io::Result<Look> {
        let fd = self.at(path, OFlags::PATH)?;
        let (sort, stamp) = described(&rustix::fs::fstat(&fd)?);
        Ok(Look { fd, sort, stamp })
    }

    /// A directory that can be listed.
    pub(crate) fn directory(&self, path: &[u8]) -> io::Result<OwnedFd> {
        self.at(path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// A file, with what it is now; none if it is not one.
    pub(crate) fn file(&self, path: &[u8]) -> io::Result<Option<(File, Stamp)>> {
        // A pipe that has just taken its place must not be waited for.
        let fd = self.at(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let (sort, stamp) = described(&rustix::fs::fstat(&fd)?);
        Ok((sort == Sort::File).then(|| (File::from(fd), stamp)))
    }

    fn at(&self, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let root = self.root.as_ref().ok_or_else(|| io::Error::other("the source is not held"))?;
        let path = if path.is_empty() { b"." } else { path };
        let within =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat2(root, path, flags, Mode::empty(), within)?)
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Every link was followed before; one that is there now leads elsewhere.
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
}

/// What a file is now.
pub(crate) fn stamp(file: impl AsFd) -> io::Result<Stamp> {
    Ok(described(&rustix::fs::statat(file, c"", AtFlags::EMPTY_PATH)?).1)
}

/// The names in a directory.
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

fn described(stat: &Stat) -> (Sort, Stamp) {
    let sort = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Sort::File,
        FileType::Directory => Sort::Directory,
        FileType::Symlink => Sort::Symlink,
        _ => Sort::Other,
    };
    let stamp = Stamp {
        device: stat.st_dev,
        inode: stat.st_ino,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o777,
        modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
        changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
    };
    (sort, stamp)
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
        let opens = |path: &str| Source::open(&place.join(path)).is_ok();
        assert!(opens("real/deep"));
        assert!(!opens("link"));
        assert!(!opens("link/deep"));
        fs::remove_dir_all(place).unwrap();
    }
}
