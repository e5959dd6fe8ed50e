//! Directories of the host and of a sandbox, accessed through descriptors only.
//!
//! Both may change while they are read, and one is controlled by an attacker. Symlinks are not
//! followed, nothing is opened that could block, and file types are checked after opening.

use msb_api::RelPath;
pub(crate) use msb_api::escape_bytes;
use msb_spec::{Error, Result};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Flags to open a directory.
const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Paths are resolved below the root, without symlinks and inside of one file system.
pub(crate) const BENEATH: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);

/// An open directory that is not a symlink.
#[derive(Debug)]
pub(crate) struct DirFd(pub(crate) OwnedFd);

impl DirFd {
    /// Opens a directory by a trusted path.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        rustix::fs::open(path, DIRECTORY, Mode::empty())
            .map(Self)
            .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
    }

    /// Opens a subdirectory; none if it does not exist or is something else.
    pub(crate) fn directory(&self, name: &[u8]) -> Result<Option<Self>> {
        let name = OsStr::from_bytes(name);
        match rustix::fs::openat2(&self.0, name, DIRECTORY, Mode::empty(), BENEATH) {
            Ok(fd) => Ok(Some(Self(fd))),
            Err(error) if is_other(error) => Ok(None),
            Err(error) => Err(cannot_read(name, error)),
        }
    }

    /// Opens a directory at any depth; none if a component does not exist or is something else.
    pub(crate) fn below(&self, path: Option<&RelPath>) -> Result<Option<Self>> {
        let Some(path) = path else {
            let own = self.0.try_clone().map_err(|error| Error::host("cannot open `.`", error))?;
            return Ok(Some(Self(own)));
        };
        self.directory(path.as_path().as_os_str().as_bytes())
    }

    /// Names of its entries, sorted.
    pub(crate) fn names(&self) -> Result<Vec<Vec<u8>>> {
        let read = || -> rustix::io::Result<Vec<Vec<u8>>> {
            // A new descriptor, with its own position.
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

    /// Metadata of an entry; none if it does not exist.
    pub(crate) fn stat(&self, name: &[u8]) -> Result<Option<Stat>> {
        let name = OsStr::from_bytes(name);
        match rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if is_other(error) => Ok(None),
            Err(error) => Err(cannot_read(name, error)),
        }
    }

    /// Opens a regular file for reading; none if it does not exist or is something else.
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

    /// Target of a symlink; none if it does not exist or is something else.
    pub(crate) fn link(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let name = OsStr::from_bytes(name);
        match rustix::fs::readlinkat(&self.0, name, Vec::new()) {
            Ok(target) => Ok(Some(target.into_bytes())),
            Err(error) if is_other(error) || error == Errno::INVAL => Ok(None),
            Err(error) => Err(cannot_read(name, error)),
        }
    }

    /// Whether the directory has this extended attribute with this value, or with any.
    pub(crate) fn has_xattr(&self, name: &str, value: Option<&[u8]>) -> bool {
        has_xattr(&self.0, name, value)
    }

    /// Metadata of the directory itself.
    pub(crate) fn own_stat(&self) -> Result<Stat> {
        rustix::fs::fstat(&self.0).map_err(|error| Error::host("cannot read a directory", error))
    }
}

/// Whether an open file has this extended attribute with this value, or with any.
pub(crate) fn has_xattr(file: impl AsFd, name: &str, value: Option<&[u8]>) -> bool {
    let mut buffer = [0u8; 16];
    match (rustix::fs::fgetxattr(file, name, &mut buffer), value) {
        (Ok(length), Some(value)) => buffer.get(..length) == Some(value),
        (Ok(_) | Err(Errno::RANGE), None) => true,
        (Err(_), _) => false,
    }
}

/// File type in a stat result.
pub(crate) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Whether an error means that the entry is missing or of another type.
fn is_other(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV)
}

pub(crate) fn cannot_read(name: &OsStr, error: Errno) -> Error {
    Error::host(format!("cannot read `{}`", escape_bytes(name.as_bytes())), error)
}
