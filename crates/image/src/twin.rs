//! A second tree like the first, made while somebody may still be writing that.
//!
//! The first pass copies everything and notes when it was. Then the writer is stopped, and the
//! second pass copies only what has changed since. Blocks are shared where the file system can.

use crate::build::attributes_of;
use crate::unpack::remove;
use msb_spec::{Error, Result};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Deeper than any tree that people make; each level holds two descriptors.
const DEPTH: usize = 400;
/// Clocks of file systems tick this slowly at most, in nanoseconds: what was written at the same
/// moment as it was copied is copied again.
const TICK: i128 = 20_000_000;

/// Copies one tree into another, twice.
#[derive(Debug, Default)]
pub(crate) struct Twin {
    /// What was copied, by path, with the time of its last change.
    known: BTreeMap<PathBuf, Known>,
    /// Files that have several names, and the first of them in this pass.
    links: HashMap<u64, PathBuf>,
    seen: HashSet<PathBuf>,
    again: bool,
    /// Files and bytes that were copied in this pass.
    pub(crate) copied: (u64, u64),
}

#[derive(Debug, Clone, Copy)]
struct Known {
    ino: u64,
    changed: i128,
    begun: i128,
}

/// What went wrong, and where.
struct Broken(PathBuf, Errno);

impl Twin {
    /// Brings `into` up to date with `from`.
    pub(crate) fn pass(&mut self, from: BorrowedFd<'_>, into: BorrowedFd<'_>) -> Result<()> {
        self.again = !self.known.is_empty();
        self.seen.clear();
        self.links.clear();
        self.copied = (0, 0);
        let told = |Broken(path, error): Broken| {
            Error::host(format!("cannot copy `{}`", path.display()), std::io::Error::from(error))
        };
        let stat = rustix::fs::fstat(from).map_err(|error| told(Broken("/".into(), error)))?;
        self.directory(from, into, Path::new(""), 0).map_err(told)?;
        describe(from, into, &stat).map_err(|error| told(Broken("/".into(), error)))?;
        let gone: Vec<PathBuf> =
            self.known.keys().filter(|path| !self.seen.contains(*path)).cloned().collect();
        // The deepest first, so that what holds them is removed once.
        for path in gone.iter().rev() {
            self.known.remove(path);
        }
        Ok(())
    }

    fn directory(
        &mut self,
        from: BorrowedFd<'_>,
        into: BorrowedFd<'_>,
        at: &Path,
        depth: usize,
    ) -> std::result::Result<(), Broken> {
        let broken = |error| Broken(at.to_owned(), error);
        if depth > DEPTH {
            return Err(broken(Errno::NAMETOOLONG));
        }
        let names = names(from).map_err(broken)?;
        if self.again {
            let there = self::names(into).map_err(broken)?;
            let wanted: HashSet<&OsString> = names.iter().collect();
            for name in there.iter().filter(|name| !wanted.contains(name)) {
                remove(into, name.as_bytes()).map_err(broken)?;
            }
        }
        for name in &names {
            let path = at.join(name);
            match self.one(from, into, name, &path, depth) {
                // Removed while we looked at it: not there in the next pass either.
                Err(Broken(_, Errno::NOENT)) if !self.again => {}
                done => done?,
            }
        }
        Ok(())
    }

    fn one(
        &mut self,
        from: BorrowedFd<'_>,
        into: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
        depth: usize,
    ) -> std::result::Result<(), Broken> {
        let broken = |error| Broken(path.to_owned(), error);
        let begun = now();
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(broken)?;
        let changed = nanoseconds(stat.st_ctime, stat.st_ctime_nsec);
        let known = self.known.get(path).copied();
        let same = known.is_some_and(|known| known.ino == stat.st_ino);
        let untouched = same
            && known.is_some_and(|known| known.changed == changed && changed < known.begun - TICK);
        self.seen.insert(path.to_owned());
        self.known.insert(path.to_owned(), Known { ino: stat.st_ino, changed, begun });
        let kind = FileType::from_raw_mode(stat.st_mode);
        if known.is_some() && !same {
            remove(into, name.as_bytes()).map_err(broken)?;
        }
        if kind == FileType::Directory {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = rustix::fs::openat(from, name, flags, Mode::empty()).map_err(broken)?;
            match rustix::fs::mkdirat(into, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(broken(error)),
            }
            let twin = rustix::fs::openat(into, name, flags, Mode::empty()).map_err(broken)?;
            self.directory(below.as_fd(), twin.as_fd(), path, depth + 1)?;
            return describe(below.as_fd(), twin.as_fd(), &stat).map_err(broken);
        }
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&stat.st_ino).filter(|first| *first != path) {
                return link(first, into, name).map_err(broken);
            }
            self.links.insert(stat.st_ino, path.to_owned());
        }
        if untouched {
            return Ok(());
        }
        self.copied.0 += 1;
        match kind {
            FileType::RegularFile => {
                self.copied.1 += file(from, into, name, &stat).map_err(broken)?;
                Ok(())
            }
            _ => {
                if same {
                    remove(into, name.as_bytes()).map_err(broken)?;
                }
                special(from, into, name, &stat).map_err(broken)
            }
        }
    }
}

/// Copies a file of our own with its holes, or shares its blocks where the file system can.
pub fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    let source = rustix::fs::open(from, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let target = rustix::fs::open(to, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = rustix::fs::fstat(&source)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
        pieces(&source, &target, size)?;
    }
    rustix::fs::ftruncate(&target, size)?;
    // Whose the machine's process is.
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::fchown(&target, Some(uid), Some(gid))?;
    Ok(())
}

/// Another name for a file that was copied before; the root of the copy is our root.
fn link(first: &Path, into: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    let first = Path::new("/").join(first);
    match rustix::fs::linkat(CWD, &first, into, name, AtFlags::empty()) {
        Err(Errno::EXIST) => {
            remove(into, name.as_bytes())?;
            rustix::fs::linkat(CWD, &first, into, name, AtFlags::empty())
        }
        linked => linked,
    }
}

/// Copies a file, in place if it is there: its other names stay what they are.
fn file(
    from: BorrowedFd<'_>,
    into: BorrowedFd<'_>,
    name: &OsStr,
    stat: &Stat,
) -> rustix::io::Result<u64> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source = rustix::fs::openat(from, name, flags, Mode::empty())?;
    let found = rustix::fs::fstat(&source)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(Errno::NOENT);
    }
    // Written pages that are mapped are marked as clean, so that the next change of one is noted.
    let _ = msb_sys::files::begin_writeback(source.as_fd());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let target = rustix::fs::openat(into, name, flags, Mode::RUSR | Mode::WUSR)?;
    let size = u64::try_from(found.st_size).unwrap_or(0);
    if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
        rustix::fs::ftruncate(&target, 0)?;
        pieces(&source, &target, size)?;
    }
    rustix::fs::ftruncate(&target, size)?;
    describe(source.as_fd(), target.as_fd(), stat)?;
    Ok(size)
}

/// Copies what is not a hole.
fn pieces(source: &OwnedFd, target: &OwnedFd, size: u64) -> rustix::io::Result<()> {
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(()),
            // A file system that knows no holes.
            Err(_) => at,
        };
        let end = rustix::fs::seek(source, SeekFrom::Hole(data)).unwrap_or(size).min(size);
        let (mut read, mut write) = (data, data);
        while read < end {
            let most = usize::try_from(end - read).unwrap_or(usize::MAX).min(1 << 30);
            let (from, into) = (Some(&mut read), Some(&mut write));
            // Cut off meanwhile: the next pass sees it.
            if rustix::fs::copy_file_range(source, from, target, into, most)? == 0 {
                return Ok(());
            }
        }
        at = end.max(data + 1);
    }
    Ok(())
}

fn special(
    from: BorrowedFd<'_>,
    into: BorrowedFd<'_>,
    name: &OsStr,
    stat: &Stat,
) -> rustix::io::Result<()> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind == FileType::Symlink {
        let target = rustix::fs::readlinkat(from, name, Vec::new())?;
        rustix::fs::symlinkat(target, into, name)?;
    } else {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        rustix::fs::mknodat(into, name, kind, mode, stat.st_rdev)?;
    }
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(into, name, Some(uid), Some(gid), nofollow)?;
    rustix::fs::utimensat(into, name, &times(stat), nofollow)
}

/// Owner, attributes, mode and times, in the order in which none undoes another.
fn describe(from: BorrowedFd<'_>, into: BorrowedFd<'_>, stat: &Stat) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::fchown(into, Some(uid), Some(gid))?;
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    let attributes = attributes_of(from).map_err(failed)?;
    let before = attributes_of(into).map_err(failed)?;
    for (name, _) in before.iter().filter(|(name, _)| !attributes.iter().any(|(it, _)| it == name))
    {
        let _ = rustix::fs::fremovexattr(into, name.as_str());
    }
    for (name, value) in &attributes {
        match rustix::fs::fsetxattr(into, name.as_str(), value, XattrFlags::empty()) {
            // What only the host's root may set was not set by the sandbox.
            Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) if !name.starts_with("user.") => {}
            set => set?,
        }
    }
    rustix::fs::fchmod(into, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    rustix::fs::futimens(into, &times(stat))
}

fn times(stat: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: i64::try_from(nanoseconds).unwrap_or(0),
    };
    Timestamps {
        last_access: time(stat.st_atime, stat.st_atime_nsec),
        last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
    }
}

fn nanoseconds(seconds: i64, nanoseconds: u64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds)
}

fn now() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

fn names(directory: BorrowedFd<'_>) -> rustix::io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    names.sort();
    Ok(names)
}
