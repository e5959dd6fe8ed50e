//! A directory of the host as a tree, without what is ignored.
//!
//! Whoever made the directory may have put links into it that lead to our own files. Every path
//! is opened from its root without following any.

use super::ignore::Ignore;
use super::tree::{Attributes, Entry, Kind, Tree};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A directory of the host.
#[derive(Debug)]
pub(crate) struct Folder {
    root: OwnedFd,
    ignore: Ignore,
}

impl Folder {
    pub(crate) fn new(root: OwnedFd, ignore: Ignore) -> Self {
        Self { root, ignore }
    }

    /// Whether something is there that is ignored.
    pub(crate) fn hides(&self, path: &Path) -> bool {
        self.ignore.ignores(path) && matches!(look(self.root.as_fd(), path), Ok(Some(_)))
    }
}

impl Tree for Folder {
    fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        let Some(found) = look(self.root.as_fd(), path)? else {
            return Ok(None);
        };
        let mut entry = found.entry;
        entry.shared = None;
        if path.as_os_str().is_empty() || !self.ignore.ignores(path) {
            return Ok(Some(entry));
        }
        entry.passage = true;
        let may_hold = entry.kind == Kind::Directory && self.ignore.brings_back();
        Ok(may_hold.then_some(entry))
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        names(self.root.as_fd(), path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        open_file(self.root.as_fd(), path)
    }

    fn attributes(&self, _: &Path) -> io::Result<Attributes> {
        // What a desktop notes about a file is not the image's.
        Ok(Vec::new())
    }
}

/// What lies at a path of a directory.
pub(crate) struct Found {
    pub(crate) entry: Entry,
    /// The number of the device that it is; zero hides what lies below.
    pub(crate) device: u64,
}

/// Looks at a path without following anything.
pub(crate) fn look(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<Found>> {
    let opened = match open(root, path, OFlags::PATH | OFlags::NOFOLLOW) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&opened)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&opened, c"", Vec::new())?;
            Kind::Link(OsString::from_vec(target.into_bytes()))
        }
        FileType::Fifo => Kind::Fifo,
        FileType::Socket => Kind::Socket,
        _ => Kind::Device,
    };
    let shared = kind == Kind::File && stat.st_nlink > 1;
    let entry = Entry {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: stat.st_mtime,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        shared: shared.then_some((stat.st_dev, stat.st_ino)),
        passage: false,
        kind,
    };
    Ok(Some(Found { entry, device: stat.st_rdev }))
}

/// Names in a directory, sorted.
pub(crate) fn names(root: BorrowedFd<'_>, path: &Path) -> io::Result<Vec<OsString>> {
    let opened = open_directory(root, path)?;
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(&opened)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}

pub(crate) fn open_directory(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    Ok(open(root, path, OFlags::RDONLY | OFlags::DIRECTORY)?)
}

/// A file, to be read; anything else would block or do something.
pub(crate) fn open_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let opened = open(root, path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK)?;
    let stat = rustix::fs::fstat(&opened)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a file any more"));
    }
    Ok(File::from(opened))
}

fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), within)
}

/// Every attribute of users that something has that is open, by name.
pub(crate) fn attributes_of(file: BorrowedFd<'_>) -> io::Result<Attributes> {
    chosen_attributes(file, |name| name.starts_with("user."))
}

/// The same of those that are wanted.
pub(crate) fn chosen_attributes(
    file: BorrowedFd<'_>,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<Attributes> {
    /// The kernel's limit of a list of names and of a value.
    const LIMIT: usize = 64 << 10;
    let mut list = vec![0u8; LIMIT];
    let length = match rustix::fs::flistxattr(file, &mut list[..]) {
        Err(Errno::OPNOTSUPP | Errno::PERM) => return Ok(Vec::new()),
        length => length?,
    };
    let mut attributes = Vec::new();
    for name in list[..length].split(|byte| *byte == 0) {
        let name = String::from_utf8_lossy(name).into_owned();
        if !wanted(&name) {
            continue;
        }
        let mut value = vec![0u8; LIMIT];
        match rustix::fs::fgetxattr(file, name.as_str(), &mut value[..]) {
            Ok(length) => {
                value.truncate(length);
                attributes.push((name, value));
            }
            // It went meanwhile, or is not for us.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    attributes.sort();
    Ok(attributes)
}
