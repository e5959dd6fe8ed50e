//! The build context: a directory of the host, without ignored files.
//!
//! The directory is untrusted: symlinks in it may point to private files of the user. Every path is
//! opened from its root with `openat2(2)` and without following symlinks.

use super::file_tree::{Attributes, FileEntry, FileKind, FileTree};
use super::ignore::Ignore;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// A build context directory.
#[derive(Debug)]
pub(crate) struct ContextDir {
    root: OwnedFd,
    ignore: Ignore,
}

impl ContextDir {
    pub(crate) fn new(root: OwnedFd, ignore: Ignore) -> Self {
        Self { root, ignore }
    }

    /// Whether a path exists and is ignored.
    pub(crate) fn excludes(&self, path: &Path) -> bool {
        self.ignore.ignores(path) && matches!(look(self.root.as_fd(), path), Ok(Some(_)))
    }
}

impl FileTree for ContextDir {
    fn entry(&self, path: &Path) -> io::Result<Option<FileEntry>> {
        let Some(found) = look(self.root.as_fd(), path)? else {
            return Ok(None);
        };
        let mut entry = found.entry;
        entry.hard_link_id = None;
        if path.as_os_str().is_empty() || !self.ignore.ignores(path) {
            return Ok(Some(entry));
        }
        entry.parent_only = true;
        let may_hold = entry.kind == FileKind::Directory && self.ignore.brings_back();
        Ok(may_hold.then_some(entry))
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        names(self.root.as_fd(), path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        open_file(self.root.as_fd(), path)
    }

    fn attributes(&self, _: &Path) -> io::Result<Attributes> {
        // Attributes of the host, such as notes of a desktop, are not copied.
        Ok(Vec::new())
    }
}

/// Metadata of a path, with its device number.
pub(crate) struct StatEntry {
    pub(crate) entry: FileEntry,
    /// Device number; 0 for a character device is a whiteout.
    pub(crate) device: u64,
}

/// Gets the metadata of a path without following symlinks; none if it does not exist.
pub(crate) fn look(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<StatEntry>> {
    let opened = match open(root, path, OFlags::PATH | OFlags::NOFOLLOW) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(&opened)?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => {
            let target = rustix::fs::readlinkat(&opened, c"", Vec::new())?;
            FileKind::Link(OsString::from_vec(target.into_bytes()))
        }
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        _ => FileKind::Device,
    };
    let hard_link_id = kind == FileKind::File && stat.st_nlink > 1;
    let entry = FileEntry {
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
        mtime: stat.st_mtime,
        size: u64::try_from(stat.st_size).unwrap_or(0),
        hard_link_id: hard_link_id.then_some((stat.st_dev, stat.st_ino)),
        parent_only: false,
        kind,
    };
    Ok(Some(StatEntry { entry, device: stat.st_rdev }))
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

/// Opens a regular file for reading. Other types are refused: opening them may block or have
/// effects.
pub(crate) fn open_file(root: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let opened = open(root, path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK)?;
    let stat = rustix::fs::fstat(&opened)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is no longer a regular file"));
    }
    Ok(File::from(opened))
}

fn open(root: BorrowedFd<'_>, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), within)
}

/// All `user.` attributes of an open file, sorted by name.
pub(crate) fn attributes_of(file: BorrowedFd<'_>) -> io::Result<Attributes> {
    chosen_attributes(file, |name| name.starts_with("user."))
}

/// The attributes of an open file that `wanted` selects, sorted by name.
pub(crate) fn chosen_attributes(
    file: BorrowedFd<'_>,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<Attributes> {
    /// Limit of the kernel for a list of names and for a value.
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
            // Removed meanwhile, or not readable for us.
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    attributes.sort();
    Ok(attributes)
}
