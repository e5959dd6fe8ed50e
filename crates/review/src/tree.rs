//! Directories of the host and of a sandbox, reached by descriptors only.
//!
//! Both may change while they are read, and one belongs to an attacker: no link is followed,
//! nothing is opened that could block, and what was opened is looked at again.

use msb_api::RelPath;
use msb_spec::{Error, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How a directory is opened.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Names are resolved below the root, through real directories of its own file system.
pub(crate) const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// A directory that was opened.
#[derive(Debug)]
pub(crate) struct Directory(pub(crate) OwnedFd);

impl Directory {
    /// Opens a directory by the path that somebody has decided on.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        rustix::fs::open(path, DIRECTORY, Mode::empty())
            .map(Self)
            .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
    }

    /// One of its directories; none if the name is something else by now, or nothing.
    pub(crate) fn directory(&self, name: &[u8]) -> Result<Option<Self>> {
        let name = OsStr::from_bytes(name);
        match rustix::fs::openat2(&self.0, name, DIRECTORY, Mode::empty(), BENEATH) {
            Ok(fd) => Ok(Some(Self(fd))),
            Err(error) if is_other(error) => Ok(None),
            Err(error) => Err(cannot_read(name, error)),
        }
    }

    /// A directory any number of steps below; none if one of them is something else.
    pub(crate) fn below(&self, path: Option<&RelPath>) -> Result<Option<Self>> {
        let Some(path) = path else {
            let own = self.0.try_clone().map_err(|error| Error::host("cannot open `.`", error))?;
            return Ok(Some(Self(own)));
        };
        self.directory(path.as_path().as_os_str().as_bytes())
    }

    /// The names in it, sorted.
    pub(crate) fn names(&self) -> Result<Vec<Vec<u8>>> {
        let read = || -> rustix::io::Result<Vec<Vec<u8>>> {
            // A second descriptor, which has a position of its own.
            let own = rustix::fs::openat(&self.0, ".", DIRECTORY, Mode::empty())?;
            let mut names = Vec::new();
            for entry in Dir::new(own)? {
                let name = entry?.file_name().to_bytes().to_vec();
                if name != b"." && name != b".." {
                    names.push(name);
                }
            }
            names.sort();
            Ok(names)
        };
        read().map_err(|error| Error::host("cannot list a directory", error))
    }

    /// What a name is; none if it is nothing.
    pub(crate) fn stat(&self, name: &[u8]) -> Result<Option<Stat>> {
        let name = OsStr::from_bytes(name);
        match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if is_other(error) => Ok(None),
            Err(error) => Err(cannot_read(name, error)),
        }
    }

    /// An ordinary file, for reading; none if the name is something else by now.
    pub(crate) fn file(&self, name: &[u8]) -> Result<Option<File>> {
        let name = OsStr::from_bytes(name);
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat2(&self.0, name, flags, Mode::empty(), BENEATH) {
            Ok(fd) => fd,
            Err(error) if is_other(error) || error == Errno::NXIO => return Ok(None),
            Err(error) => return Err(cannot_read(name, error)),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|error| cannot_read(name, error))?;
        Ok((kind(&stat) == FileType::RegularFile).then(|| File::from(fd)))
    }

    /// Where a link leads; none if the name is something else by now.
    pub(crate) fn link(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let name = OsStr::from_bytes(name);
        match rustix::fs::readlinkat(&self.0, name, Vec::new()) {
            Ok(target) => Ok(Some(target.into_bytes())),
            Err(error) if is_other(error) || error == Errno::INVAL => Ok(None),
            Err(error) => Err(cannot_read(name, error)),
        }
    }

    /// Whether it carries this attribute of overlayfs with this value, or any.
    pub(crate) fn has_mark(&self, mark: &str, value: Option<&[u8]>) -> bool {
        has_mark(&self.0, mark, value)
    }

    /// What it is itself.
    pub(crate) fn own_stat(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.0).map_err(|error| Error::host("cannot read a directory", error))
    }
}

/// Whether something that is open carries this attribute of overlayfs with this value, or any.
pub(crate) fn has_mark(file: impl AsFd, mark: &str, value: Option<&[u8]>) -> bool {
    let mut buffer = [0u8; 16];
    match (rustix::fs::fgetxattr(file, mark, &mut buffer), value) {
        (Ok(length), Some(value)) => buffer.get(..length) == Some(value),
        (Ok(_) | Err(Errno::RANGE), None) => true,
        (Err(_), _) => false,
    }
}

/// The kind of what was looked at.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether a name is not what it was taken for: gone, a link, on another file system.
fn is_other(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV)
}

pub(crate) fn cannot_read(name: &OsStr, error: Errno) -> Error {
    Error::host(format!("cannot read `{}`", msb_api::spelled(name.as_bytes())), error)
}
