//! Paths below a root directory whose content is hostile: an image, a snapshot, a volume.
//!
//! A path string means whatever the links on its way say, and a link to `/proc/self/fd/N/..` says
//! "wherever this process has a descriptor". So nothing in such a root is used by its path: it is
//! resolved once, by `openat2(2)` with `RESOLVE_IN_ROOT` and `RESOLVE_NO_MAGICLINKS`, and what was
//! found is used by its descriptor. [`PathInRoot`] can be made in no other way.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// `openat2` gives up with EAGAIN when something is renamed or mounted meanwhile and `..` is on the
/// way. A process that does that without end gets an error.
const ATTEMPTS: usize = 64;

/// The directory below which paths are resolved.
#[derive(Debug)]
pub struct RootDir {
    directory: OwnedFd,
}

/// Something below a [`RootDir`], resolved and open. Its descriptor is an `O_PATH` one, or that of
/// a directory.
#[derive(Debug)]
pub struct PathInRoot {
    found: OwnedFd,
}

/// Which links a path may lead through. No kind follows a magic link of /proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Links {
    /// Symbolic links, where absolute targets and `..` stay in the root.
    Followed,
    /// The same, but the last name is taken as it is.
    LastKept,
    /// None at all.
    Refused,
}

impl RootDir {
    /// The root directory of this process.
    pub fn current() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: rustix::fs::open("/", flags, Mode::empty())? })
    }

    /// An open directory, as a file system that was just mounted.
    pub fn of(directory: OwnedFd) -> Self {
        Self { directory }
    }

    /// What a path leads to, through links that stay in the root.
    pub fn find(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        self.open(path.as_ref(), OFlags::PATH, Links::Followed)
    }

    /// The same, but the last name may be a link, and is found itself.
    pub fn find_itself(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        self.open(path.as_ref(), OFlags::PATH, Links::LastKept)
    }

    /// The same, where no part of the path is a link: ELOOP if one is.
    pub fn find_unlinked(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        self.open(path.as_ref(), OFlags::PATH, Links::Refused)
    }

    /// Makes one directory in a directory that is there; false if there is something already.
    /// The mode holds whatever the umask is.
    pub fn make_directory(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<bool> {
        let (parent, name) = self.parent(path.as_ref())?;
        let mode = Mode::from_raw_mode(mode);
        match rustix::fs::mkdirat(&parent.found, name, mode) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&parent.found, name, flags, Mode::empty())?;
        rustix::fs::fchmod(&made, mode)?;
        Ok(true)
    }

    /// A directory and those above it, made where they are missing.
    pub fn make_directories(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let mut so_far = PathBuf::from("/");
        let mut at = self.open(&so_far, flags, Links::Followed)?;
        for part in path.as_ref().components() {
            let Component::Normal(name) = part else { continue };
            so_far.push(name);
            // From the root each time: below another directory an absolute link would lead there.
            at = match self.open(&so_far, flags, Links::Followed) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match rustix::fs::mkdirat(&at.found, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    self.open(&so_far, flags, Links::Followed)?
                }
                found => found?,
            };
        }
        Ok(at)
    }

    /// Where a file can be mounted: what is there, or an empty file that is made with the directories
    /// above it. A link there is found itself, wherever it leads.
    pub fn make_file(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        let path = path.as_ref();
        match self.find_itself(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        let above = self.make_directories(path.parent().unwrap_or(Path::new("/")))?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        drop(rustix::fs::openat(&above.found, last(path)?, flags, mode)?);
        self.find_itself(path)
    }

    /// Makes a symbolic link in a directory that is there.
    pub fn make_link(&self, target: &str, path: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = self.parent(path.as_ref())?;
        Ok(rustix::fs::symlinkat(target, &parent.found, name)?)
    }

    /// Makes a file that is not there yet, to be written.
    pub fn write_new(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<File> {
        let (parent, name) = self.parent(path.as_ref())?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let file = rustix::fs::openat(&parent.found, name, flags, mode)?;
        rustix::fs::fchmod(&file, mode)?;
        Ok(file.into())
    }

    /// Removes a name that is not a directory; a link is removed itself.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = self.parent(path.as_ref())?;
        Ok(rustix::fs::unlinkat(&parent.found, name, AtFlags::empty())?)
    }

    /// What an ordinary file holds, as [`crate::files::read_ordinary`] reads it.
    pub fn read_ordinary(&self, path: impl AsRef<Path>, most: usize) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open(path.as_ref(), flags, Links::Followed).ok()?;
        crate::files::read_if_ordinary(file.found, most)
    }

    fn parent<'a>(&self, path: &'a Path) -> io::Result<(PathInRoot, &'a OsStr)> {
        let above = path.parent().unwrap_or(Path::new("/"));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        Ok((self.open(above, flags, Links::Followed)?, last(path)?))
    }

    fn open(&self, path: &Path, flags: OFlags, links: Links) -> io::Result<PathInRoot> {
        let mut within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let mut flags = flags | OFlags::CLOEXEC;
        match links {
            Links::Followed => {}
            Links::LastKept => flags |= OFlags::NOFOLLOW,
            Links::Refused => within |= ResolveFlags::NO_SYMLINKS,
        }
        // The empty path is the root, as it is to `Path::parent`.
        let path = if path.as_os_str().is_empty() { Path::new("/") } else { path };
        for _ in 1..ATTEMPTS {
            match rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), within) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                found => return Ok(PathInRoot { found: found? }),
            }
        }
        let last = rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), within);
        Ok(PathInRoot { found: last? })
    }
}

impl AsFd for RootDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// The name of a path in its directory.
fn last(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl PathInRoot {
    /// Attaches a detached mount over it.
    pub fn cover_with(&self, mount: BorrowedFd<'_>) -> io::Result<()> {
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(rustix::mount::move_mount(mount, "", &self.found, "", flags)?)
    }

    /// A detached mount of it, and of what is mounted below it if asked.
    pub fn detach(&self, recursive: bool) -> io::Result<OwnedFd> {
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        if recursive {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        Ok(rustix::mount::open_tree(&self.found, "", flags)?)
    }

    /// What it is.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.found)?)
    }

    /// Whether it is a symbolic link, which only [`RootDir::find_itself`] finds.
    pub fn is_link(&self) -> bool {
        self.stat().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.stat().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Sets the times of a directory to those that it once had.
    pub fn set_times(&self, once: &Stat) -> io::Result<()> {
        let time = |seconds: i64, nanoseconds: u64| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds.try_into().unwrap_or_default(),
        };
        let times = Timestamps {
            last_access: time(once.st_atime, once.st_atime_nsec),
            last_modification: time(once.st_mtime, once.st_mtime_nsec),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.found, ".", flags, Mode::empty())?;
        Ok(rustix::fs::futimens(directory, &times)?)
    }

    /// Becomes the directory that this process is in.
    pub fn enter(&self) -> io::Result<()> {
        Ok(rustix::process::fchdir(&self.found)?)
    }
}

impl AsFd for PathInRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.found.as_fd()
    }
}

impl From<PathInRoot> for OwnedFd {
    fn from(path: PathInRoot) -> Self {
        path.found
    }
}

#[cfg(test)]
mod tests;
