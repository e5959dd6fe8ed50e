//! Path lookup below a root directory with hostile content: an image, a snapshot, a volume.
//!
//! A path string means whatever the symbolic links on its way say, and a link to
//! `/proc/self/fd/N/..` leads to a directory that this process has open. So each path is resolved
//! once, by `openat2(2)` with `RESOLVE_IN_ROOT` and `RESOLVE_NO_MAGICLINKS`, and the result is used
//! by its descriptor. [`PathInRoot`] can be created in no other way.

use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// `openat2` fails with EAGAIN if a rename or mount races with a `..` in the path. A process that
/// renames without end causes an error after this many attempts.
const ATTEMPTS: usize = 64;

/// The directory below which paths are resolved.
#[derive(Debug)]
pub struct RootDir {
    directory: OwnedFd,
}

/// A file below a [`RootDir`], resolved and open: an `O_PATH` descriptor, or that of a directory.
#[derive(Debug)]
pub struct PathInRoot {
    fd: OwnedFd,
}

/// Which symbolic links are followed. No variant follows a magic link of /proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LinkPolicy {
    /// All; absolute targets and `..` stay in the root.
    Follow,
    /// All but the last component, which is opened itself (`O_NOFOLLOW`).
    KeepLast,
    /// No link is followed: ELOOP if a component is one.
    Refuse,
}

impl RootDir {
    /// The root directory of this process: `/`.
    pub fn current() -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { directory: rustix::fs::open("/", flags, Mode::empty())? })
    }

    /// Uses an open directory as the root, such as a mount that is not attached yet.
    pub fn of(directory: OwnedFd) -> Self {
        Self { directory }
    }

    /// Resolves a path; symbolic links are followed inside the root.
    pub fn find(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        self.open(path.as_ref(), OFlags::PATH, LinkPolicy::Follow)
    }

    /// Resolves a path; if the last component is a symbolic link, the link itself is opened.
    pub fn find_itself(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        self.open(path.as_ref(), OFlags::PATH, LinkPolicy::KeepLast)
    }

    /// Resolves a path that may contain no symbolic link: ELOOP if it does.
    pub fn find_unlinked(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        self.open(path.as_ref(), OFlags::PATH, LinkPolicy::Refuse)
    }

    /// Creates one directory; false if the name exists. Its parent must exist. `mode` holds
    /// whatever the umask is.
    pub fn make_directory(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<bool> {
        let (parent, name) = self.parent(path.as_ref())?;
        let mode = Mode::from_raw_mode(mode);
        match rustix::fs::mkdirat(&parent.fd, name, mode) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&parent.fd, name, flags, Mode::empty())?;
        rustix::fs::fchmod(&made, mode)?;
        Ok(true)
    }

    /// Opens a directory and creates missing ones on its path, with mode 0755.
    pub fn make_directories(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let mut so_far = PathBuf::from("/");
        let mut at = self.open(&so_far, flags, LinkPolicy::Follow)?;
        for part in path.as_ref().components() {
            let Component::Normal(name) = part else { continue };
            so_far.push(name);
            // Resolved from the root each time: relative to another directory an absolute link
            // would start there.
            at = match self.open(&so_far, flags, LinkPolicy::Follow) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match rustix::fs::mkdirat(&at.fd, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(error.into()),
                    }
                    self.open(&so_far, flags, LinkPolicy::Follow)?
                }
                found => found?,
            };
        }
        Ok(at)
    }

    /// A mount point for a file: the existing file, or an empty file that is created with its
    /// parent directories. A symbolic link there is opened itself.
    pub fn make_file(&self, path: impl AsRef<Path>) -> io::Result<PathInRoot> {
        let path = path.as_ref();
        match self.find_itself(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        let above = self.make_directories(path.parent().unwrap_or(Path::new("/")))?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        drop(rustix::fs::openat(&above.fd, file_name(path)?, flags, mode)?);
        self.find_itself(path)
    }

    /// Creates a symbolic link; its parent directory must exist.
    pub fn make_link(&self, target: &str, path: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = self.parent(path.as_ref())?;
        Ok(rustix::fs::symlinkat(target, &parent.fd, name)?)
    }

    /// Creates a new file for writing; fails with EEXIST if the name exists. `mode` holds whatever
    /// the umask is.
    pub fn write_new(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<File> {
        let (parent, name) = self.parent(path.as_ref())?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let file = rustix::fs::openat(&parent.fd, name, flags, mode)?;
        rustix::fs::fchmod(&file, mode)?;
        Ok(file.into())
    }

    /// Unlinks a file; a symbolic link is removed itself. Fails for a directory.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let (parent, name) = self.parent(path.as_ref())?;
        Ok(rustix::fs::unlinkat(&parent.fd, name, AtFlags::empty())?)
    }

    /// Content of a regular file of at most `limit` bytes, with the checks of
    /// [`crate::files::read_ordinary`].
    pub fn read_ordinary(&self, path: impl AsRef<Path>, limit: usize) -> Option<Vec<u8>> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open(path.as_ref(), flags, LinkPolicy::Follow).ok()?;
        crate::files::read_if_regular(file.fd, limit)
    }

    fn parent<'a>(&self, path: &'a Path) -> io::Result<(PathInRoot, &'a OsStr)> {
        let above = path.parent().unwrap_or(Path::new("/"));
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        Ok((self.open(above, flags, LinkPolicy::Follow)?, file_name(path)?))
    }

    fn open(&self, path: &Path, flags: OFlags, links: LinkPolicy) -> io::Result<PathInRoot> {
        let mut within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let mut flags = flags | OFlags::CLOEXEC;
        match links {
            LinkPolicy::Follow => {}
            LinkPolicy::KeepLast => flags |= OFlags::NOFOLLOW,
            LinkPolicy::Refuse => within |= ResolveFlags::NO_SYMLINKS,
        }
        // The empty path means the root, because `Path::parent` of a single name is empty.
        let path = if path.as_os_str().is_empty() { Path::new("/") } else { path };
        for _ in 1..ATTEMPTS {
            match rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), within) {
                Err(Errno::AGAIN | Errno::INTR) => {}
                found => return Ok(PathInRoot { fd: found? }),
            }
        }
        let result = rustix::fs::openat2(&self.directory, path, flags, Mode::empty(), within);
        Ok(PathInRoot { fd: result? })
    }
}

impl AsFd for RootDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Last component of a path; fails for `/` and for paths that end in `..`.
fn file_name(path: &Path) -> io::Result<&OsStr> {
    path.file_name().ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

impl PathInRoot {
    /// Attaches a detached mount on top of it (`move_mount(2)`).
    pub fn cover_with(&self, mount: BorrowedFd<'_>) -> io::Result<()> {
        let flags =
            MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
        Ok(rustix::mount::move_mount(mount, "", &self.fd, "", flags)?)
    }

    /// Clones it as a detached mount, with the mounts below it if `recursive`.
    pub fn detach(&self, recursive: bool) -> io::Result<OwnedFd> {
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_EMPTY_PATH;
        if recursive {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        Ok(rustix::mount::open_tree(&self.fd, "", flags)?)
    }

    /// File status (`fstat(2)`): kind, mode, owner, size, times.
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.fd)?)
    }

    /// Whether it is a symbolic link, which only [`RootDir::find_itself`] returns.
    pub fn is_link(&self) -> bool {
        self.stat().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink)
    }

    /// Whether it is a directory; false if that cannot be read.
    pub fn is_directory(&self) -> bool {
        self.stat().is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
    }

    /// Restores access and modification times of a directory from an earlier `stat`.
    pub fn set_times(&self, saved: &Stat) -> io::Result<()> {
        let time = |seconds: i64, nanoseconds: u64| Timespec {
            tv_sec: seconds,
            tv_nsec: nanoseconds.try_into().unwrap_or_default(),
        };
        let times = Timestamps {
            last_access: time(saved.st_atime, saved.st_atime_nsec),
            last_modification: time(saved.st_mtime, saved.st_mtime_nsec),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.fd, ".", flags, Mode::empty())?;
        Ok(rustix::fs::futimens(directory, &times)?)
    }

    /// Changes the working directory of this process to it.
    pub fn enter(&self) -> io::Result<()> {
        Ok(rustix::process::fchdir(&self.fd)?)
    }
}

impl AsFd for PathInRoot {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl From<PathInRoot> for OwnedFd {
    fn from(path: PathInRoot) -> Self {
        path.fd
    }
}

#[cfg(test)]
mod tests;
