//! Files of other programs that we may write: where they really are, and how they are written.
//!
//! A user's own settings may be links into a directory of dotfiles, which are followed. A project
//! may come from another author, so no link in it may lead out of it. Once a path is
//! resolved, it is reached without following a link again, and a file is replaced by rename(2).

use msb_spec::{Error, Kind, Result, env};
use rustix::fs::{self as unix, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

/// As many as the kernel follows.
const LINKS: usize = 40;

/// Larger than any settings that people have; Claude Code keeps histories in its own.
const LARGEST_OF_USER: u64 = 64 << 20;

/// What others have written is not read by the gigabyte.
const LARGEST_OF_PROJECT: u64 = 1 << 20;

/// The home directory of the current user (`HOME`).
pub(crate) fn home() -> Result<PathBuf> {
    absolute(env::USER_HOME).ok_or_else(|| {
        Error::invalid("no home directory: HOME is not set")
            .hint("set HOME, or choose `--project` for the current directory")
    })
}

/// Where programs keep settings below the home directory.
pub(crate) fn config() -> Result<PathBuf> {
    match absolute(env::XDG_CONFIG_HOME) {
        Some(path) => Ok(path),
        None => Ok(home()?.join(".config")),
    }
}

/// A variable that names a directory; one that is not absolute means nothing.
pub(crate) fn absolute(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// A file that may be there or not, by a path that has no link in it.
#[derive(Debug)]
pub(crate) struct SettingsFile {
    base: OwnedFd,
    /// Below the base; only names.
    inside: PathBuf,
    /// The whole, for people.
    path: PathBuf,
    largest: u64,
}

/// A file as it was read.
#[derive(Debug)]
pub(crate) struct FileContents {
    pub(crate) bytes: Vec<u8>,
    mode: Mode,
    owner: (u32, u32),
}

impl SettingsFile {
    /// A file of the user's own, wherever links lead.
    pub(crate) fn of_user(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path).and_then(|path| real(&path));
        let path = path.map_err(|error| Error::host("cannot find the file's directory", error))?;
        Self::below(Path::new("/"), &path, LARGEST_OF_USER)
    }

    /// A file of the project in the current directory, and nowhere else.
    pub(crate) fn of_project(path: &Path) -> Result<Self> {
        let base = std::env::current_dir().and_then(fs::canonicalize);
        let base = base.map_err(|error| Error::host("cannot find this directory", error))?;
        let asked = base.join(path);
        let path = real(&asked).map_err(|error| Error::host(cannot("find", &asked), error))?;
        if !path.starts_with(&base) {
            let message = format!("`{}` leads out of this project", asked.display());
            return Err(Error::invalid(message)
                .cause(format!("it is a link to `{}`", path.display()))
                .hint("remove the link if you do not know why it is there, or use `--user`"));
        }
        Self::below(&base, &path, LARGEST_OF_PROJECT)
    }

    fn below(base: &Path, path: &Path, largest: u64) -> Result<Self> {
        let inside = path.strip_prefix(base).unwrap_or(path).to_owned();
        let named = inside.components().all(|part| matches!(part, Component::Normal(_)));
        if !named || inside.as_os_str().is_empty() {
            return Err(Error::invalid(format!("not a file: `{}`", path.display())));
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = unix::openat(CWD, base, flags, Mode::empty())
            .map_err(|error| Error::host(cannot("open", base), error))?;
        Ok(Self { base, inside, path: path.to_owned(), largest })
    }

    /// Where it really is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its directory is there.
    pub(crate) fn has_directory(&self) -> bool {
        self.directory(false).is_ok()
    }

    /// What is there, if anything.
    pub(crate) fn read(&self) -> Result<Option<FileContents>> {
        let about = |error: io::Error| Error::host(cannot("read", &self.path), error);
        let directory = match self.directory(false) {
            Err(Errno::NOENT) => return Ok(None),
            directory => directory.map_err(|error| about(error.into()))?,
        };
        // Non-blocking: a FIFO under the name of the file must not hold us up.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match unix::openat(&directory, self.name(), flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(None),
            file => file.map_err(|error| about(error.into()))?,
        };
        let stat = unix::fstat(&file).map_err(|error| about(error.into()))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::invalid(format!("not a file: `{}`", self.path.display())));
        }
        let mut bytes = Vec::new();
        File::from(file).take(self.largest + 1).read_to_end(&mut bytes).map_err(about)?;
        if bytes.len() as u64 > self.largest {
            let message = format!("too large to be changed: `{}`", self.path.display());
            return Err(Error::new(Kind::Limit, message));
        }
        Ok(Some(FileContents::of(bytes, &stat)))
    }

    /// Puts new bytes in the place of what was read, with its mode and owner; or makes the file,
    /// with this mode and what directories it needs. Whatever has changed since stays.
    pub(crate) fn write(
        &self,
        before: Option<&FileContents>,
        bytes: &[u8],
        mode: Mode,
    ) -> Result<()> {
        let about = |error: Errno| {
            let wrapped = Error::host(cannot("write", &self.path), error);
            match error {
                Errno::ACCESS | Errno::PERM | Errno::ROFS => wrapped
                    .hint("it or its directory belongs to another user; `ls -l` shows the owner"),
                _ => wrapped,
            }
        };
        let directory = self.directory(true).map_err(about)?;
        let aside = format!(".{}.msb-{}", self.name().to_string_lossy(), std::process::id());
        let filled = self.fill(&directory, &aside, before, bytes, mode).map_err(about);
        let moved = filled.and_then(|()| {
            self.is_still(before)?;
            unix::renameat(&directory, &aside, &directory, self.name()).map_err(about)
        });
        if moved.is_err() {
            let _ = unix::unlinkat(&directory, &aside, AtFlags::empty());
        }
        moved?;
        // It is written; whether it outlasts a power cut is worth trying for and nothing more.
        let _ = unix::openat(&directory, ".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(unix::fsync);
        Ok(())
    }

    fn fill(
        &self,
        directory: &OwnedFd,
        name: &str,
        like: Option<&FileContents>,
        bytes: &[u8],
        mode: Mode,
    ) -> std::result::Result<(), Errno> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        // As closed as can be until it has the owner and mode that it is meant to have.
        let first = if like.is_some() { Mode::RUSR | Mode::WUSR } else { mode };
        let file = match unix::openat(directory, name, flags | OFlags::NOFOLLOW, first) {
            // Left by a killed process that had our pid: no other process uses it.
            Err(Errno::EXIST) => {
                unix::unlinkat(directory, name, AtFlags::empty())?;
                unix::openat(directory, name, flags | OFlags::NOFOLLOW, first)?
            }
            file => file?,
        };
        if let Some(like) = like {
            let stat = unix::fstat(&file)?;
            if (stat.st_uid, stat.st_gid) != like.owner {
                let (uid, gid) = like.owner;
                let (uid, gid) = (unix::Uid::from_raw(uid), unix::Gid::from_raw(gid));
                unix::fchown(&file, Some(uid), Some(gid))?;
            }
            unix::fchmod(&file, like.mode)?;
        }
        let mut file = File::from(file);
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        written.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Programs write their settings while they run; what they wrote meanwhile is not undone.
    fn is_still(&self, before: Option<&FileContents>) -> Result<()> {
        let now = self.read()?;
        if now.map(|found| found.bytes).as_deref() == before.map(|found| found.bytes.as_slice()) {
            return Ok(());
        }
        let message = format!("`{}` was changed meanwhile", self.path.display());
        Err(Error::new(Kind::State, message).hint("nothing was written; do it once more"))
    }

    /// Keeps what was read in a new file beside it, and gives that file's path.
    pub(crate) fn back_up(&self, found: &FileContents, when: &str) -> Result<PathBuf> {
        /// More than anybody installs in one second.
        const TRIES: u32 = 100;
        let about = |error: Errno| Error::host(cannot("keep a copy of", &self.path), error);
        let directory = self.directory(false).map_err(about)?;
        let name = self.name().to_string_lossy();
        for number in 1..=TRIES {
            let end = if number == 1 { String::new() } else { format!("-{number}") };
            let copy = format!("{name}.bak-{when}{end}");
            match unix::statat(&directory, &copy, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => {}
                _ => continue,
            }
            let filled = self.fill(&directory, &copy, Some(found), &found.bytes, found.mode);
            filled.map_err(about)?;
            return Ok(self.path.with_file_name(copy));
        }
        Err(about(Errno::EXIST))
    }

    /// Removes the file if it is there.
    pub(crate) fn remove(&self) -> Result<()> {
        let about = |error: Errno| Error::host(cannot("remove", &self.path), error);
        let directory = self.directory(false).map_err(about)?;
        unix::unlinkat(&directory, self.name(), AtFlags::empty()).map_err(about)
    }

    /// Removes a directory by this name, if it is empty.
    pub(crate) fn remove_directory(&self) -> bool {
        let removed = self
            .directory(false)
            .and_then(|above| unix::unlinkat(above, self.name(), AtFlags::REMOVEDIR));
        removed.is_ok()
    }

    fn name(&self) -> &OsStr {
        self.inside.file_name().unwrap_or_default()
    }

    /// Its directory, by way of directories only.
    fn directory(&self, make: bool) -> std::result::Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = unix::openat(self.base.as_fd(), ".", flags, Mode::empty())?;
        let above = self.inside.parent().into_iter().flat_map(Path::components);
        for part in above {
            let part = part.as_os_str();
            if make {
                match unix::mkdirat(&at, part, Mode::RWXU | Mode::RWXG | Mode::RWXO) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(error),
                }
            }
            at = unix::openat(&at, part, flags, Mode::empty())?;
        }
        Ok(at)
    }
}

impl FileContents {
    fn of(bytes: Vec<u8>, stat: &Stat) -> Self {
        // Set-id bits make no sense on settings and are not kept.
        let mode = Mode::from_raw_mode(stat.st_mode) & (Mode::RWXU | Mode::RWXG | Mode::RWXO);
        Self { bytes, mode, owner: (stat.st_uid, stat.st_gid) }
    }
}

/// Where a path leads, whether or not anything is there.
fn real(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS {
        match fs::canonicalize(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => return found,
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::NOENT.into());
        };
        match fs::read_link(&path) {
            Ok(target) => path = above.join(target),
            Err(_) => return Ok(real(above)?.join(name)),
        }
    }
    Err(Errno::LOOP.into())
}

fn cannot(what: &str, path: &Path) -> String {
    format!("cannot {what} `{}`", path.display())
}
