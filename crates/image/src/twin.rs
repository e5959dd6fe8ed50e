//! A second tree like the first, made while somebody may still be writing that.
//!
//! The first pass copies everything and notes when it was. Then the writer is stopped, and the
//! second pass copies only what has changed since. Blocks are shared where the file system can.

use crate::acl;
use crate::unpack::remove;
use msb_spec::{Error, IdRange, Result};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid,
    XattrFlags,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::cell::OnceCell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Deeper than any tree that people make; each level holds two descriptors.
const DEPTH: usize = 400;
/// Clocks of file systems tick this slowly at most, in nanoseconds: what was written at the same
/// moment as it was copied is copied again.
const TICK: i128 = 20_000_000;

/// Ids that become others in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shift {
    /// Those of the tree that is copied.
    pub from: IdRange,
    /// What the first of them becomes.
    pub into: u32,
}

impl Shift {
    fn of(&self, id: u32) -> u32 {
        match id.checked_sub(self.from.start) {
            Some(inside) if inside < self.from.count => self.into.wrapping_add(inside),
            _ => id,
        }
    }
}

/// Copies one tree into another, twice.
#[derive(Debug, Default)]
pub(crate) struct Twin {
    shift: Option<Shift>,
    /// What was copied.
    known: Folder,
    /// Files that have several names, the first of them in this pass, and whether the twin of that
    /// is still the one of the first pass.
    links: HashMap<u64, (PathBuf, bool)>,
    again: bool,
    /// Files and bytes that were copied in this pass.
    pub(crate) copied: (u64, u64),
}

/// What was copied of one directory, by name.
type Folder = HashMap<OsString, Known>;

#[derive(Debug)]
struct Known {
    ino: u64,
    changed: i128,
    begun: i128,
    seen: bool,
    /// Whether it has several names, so that its twin has them too.
    linked: bool,
    /// What lies in it, if it is a directory.
    below: Folder,
}

/// What is known of an entry from the pass before.
#[derive(Debug, Clone, Copy, Default)]
struct Before {
    /// It is still the same thing.
    same: bool,
    /// And nobody has changed it.
    untouched: bool,
    linked: bool,
}

/// What went wrong, and where.
struct Broken(PathBuf, Errno);

/// A directory of the first tree and its twin, which is opened when something of it is to change.
struct Pair<'a> {
    from: BorrowedFd<'a>,
    above: Option<(&'a Pair<'a>, &'a OsStr)>,
    into: OnceCell<OwnedFd>,
}

impl<'a> Pair<'a> {
    fn twin(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if let (None, Some((above, name))) = (self.into.get(), self.above) {
            let opened = rustix::fs::openat(above.twin()?, name, DIRECTORY, Mode::empty())?;
            let _ = self.into.set(opened);
        }
        self.into.get().map(AsFd::as_fd).ok_or(Errno::BADF)
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Twin {
    pub(crate) fn new(shift: Option<Shift>) -> Self {
        Self { shift, ..Self::default() }
    }

    /// Who something belongs to in the copy.
    fn owner(&self, stat: &Stat) -> (Uid, Gid) {
        let shifted = |id| self.shift.map_or(id, |shift| shift.of(id));
        (Uid::from_raw(shifted(stat.st_uid)), Gid::from_raw(shifted(stat.st_gid)))
    }

    /// Brings `into` up to date with `from`.
    pub(crate) fn pass(&mut self, from: BorrowedFd<'_>, into: BorrowedFd<'_>) -> Result<()> {
        self.again = !self.known.is_empty();
        self.links.clear();
        self.copied = (0, 0);
        let mut known = std::mem::take(&mut self.known);
        let mut pass = || -> std::result::Result<(), Broken> {
            let broken = |error| Broken("/".into(), error);
            let stat = rustix::fs::fstat(from).map_err(broken)?;
            let root = OnceCell::from(into.try_clone_to_owned().map_err(|_| broken(Errno::MFILE))?);
            let pair = Pair { from, above: None, into: root };
            self.directory(&pair, &mut known, Path::new(""), 0)?;
            self.describe(from, into, &stat).map_err(broken)
        };
        let passed = pass();
        self.known = known;
        passed.map_err(|Broken(path, error)| {
            Error::host(format!("cannot copy `{}`", path.display()), std::io::Error::from(error))
        })
    }

    /// Whether anything was done in the twin itself.
    fn directory(
        &mut self,
        pair: &Pair<'_>,
        known: &mut Folder,
        at: &Path,
        depth: usize,
    ) -> std::result::Result<bool, Broken> {
        let broken = |error| Broken(at.to_owned(), error);
        if depth > DEPTH {
            return Err(broken(Errno::NAMETOOLONG));
        }
        let mut touched = false;
        for name in names(pair.from).map_err(broken)? {
            match self.one(pair, known, &name, at, depth) {
                // Removed while we looked at it: not there in the next pass either.
                Err(Broken(_, Errno::NOENT)) if !self.again => {
                    known.remove(&name);
                    match pair.twin().and_then(|into| remove(into, name.as_bytes())) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(error) => return Err(broken(error)),
                    }
                }
                done => touched |= done?,
            }
        }
        let mut gone = Vec::new();
        known.retain(|name, known| {
            let seen = std::mem::take(&mut known.seen);
            if !seen {
                gone.push(name.clone());
            }
            seen
        });
        for name in &gone {
            pair.twin().and_then(|into| remove(into, name.as_bytes())).map_err(broken)?;
        }
        Ok(touched || !gone.is_empty())
    }

    /// Whether anything was done in the twin of the directory.
    fn one(
        &mut self,
        pair: &Pair<'_>,
        folder: &mut Folder,
        name: &OsStr,
        at: &Path,
        depth: usize,
    ) -> std::result::Result<bool, Broken> {
        let broken = |error| Broken(at.join(name), error);
        let begun = now();
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statat(pair.from, name, nofollow).map_err(broken)?;
        let changed = nanoseconds(stat.st_ctime, stat.st_ctime_nsec);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let known = folder.get_mut(name);
        let there = known.is_some();
        let known = known.filter(|known| known.ino == stat.st_ino);
        let before = known.as_ref().map_or_else(Before::default, |known| Before {
            same: true,
            untouched: known.changed == changed && changed < known.begun - TICK,
            linked: known.linked,
        });
        let mut below = known.map(|known| std::mem::take(&mut known.below)).unwrap_or_default();
        if there && !before.same {
            pair.twin().and_then(|into| remove(into, name.as_bytes())).map_err(broken)?;
        }
        let done = match kind {
            FileType::Directory => {
                self.folder(pair, &mut below, (name, &stat), before, &at.join(name), depth)
            }
            _ => self.leaf(pair, (name, &stat), before, at),
        };
        let linked = kind != FileType::Directory && stat.st_nlink > 1;
        let known = Known { ino: stat.st_ino, changed, begun, seen: true, linked, below };
        match folder.get_mut(name) {
            Some(before) => *before = known,
            None => drop(folder.insert(name.to_owned(), known)),
        }
        done
    }

    /// A directory below: whether it is a new one.
    fn folder(
        &mut self,
        pair: &Pair<'_>,
        known: &mut Folder,
        (name, stat): (&OsStr, &Stat),
        before: Before,
        path: &Path,
        depth: usize,
    ) -> std::result::Result<bool, Broken> {
        let broken = |error| Broken(path.to_owned(), error);
        let from = rustix::fs::openat(pair.from, name, DIRECTORY, Mode::empty()).map_err(broken)?;
        if !before.same {
            let into = pair.twin().map_err(broken)?;
            rustix::fs::mkdirat(into, name, Mode::RWXU).map_err(broken)?;
        }
        let below = Pair { from: from.as_fd(), above: Some((pair, name)), into: OnceCell::new() };
        let touched = self.directory(&below, known, path, depth + 1)?;
        if touched || !before.untouched {
            let into = below.twin().map_err(broken)?;
            self.describe(from.as_fd(), into, stat).map_err(broken)?;
        }
        Ok(!before.same)
    }

    /// Anything else: whether it was copied.
    fn leaf(
        &mut self,
        pair: &Pair<'_>,
        (name, stat): (&OsStr, &Stat),
        before: Before,
        at: &Path,
    ) -> std::result::Result<bool, Broken> {
        let broken = |error| Broken(at.join(name), error);
        if stat.st_nlink > 1 {
            let path = at.join(name);
            if let Some((first, kept)) = self.links.get(&stat.st_ino) {
                if *kept && before.same && before.linked {
                    return Ok(false);
                }
                let linked = pair.twin().and_then(|into| link(first, into, name));
                return linked.map(|()| true).map_err(broken);
            }
            self.links.insert(stat.st_ino, (path, before.same && before.linked));
        }
        if before.untouched {
            return Ok(false);
        }
        let into = pair.twin().map_err(broken)?;
        self.copied.0 += 1;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                self.copied.1 += self.file(pair.from, into, name, stat).map_err(broken)?;
            }
            _ => {
                if before.same {
                    remove(into, name.as_bytes()).map_err(broken)?;
                }
                self.special(pair.from, into, name, stat).map_err(broken)?;
            }
        }
        Ok(true)
    }

    /// Copies a file, in place if it is there: its other names stay what they are.
    pub(crate) fn file(
        &self,
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
        self.describe(source.as_fd(), target.as_fd(), stat)?;
        Ok(size)
    }

    pub(crate) fn special(
        &self,
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
        let (uid, gid) = self.owner(stat);
        rustix::fs::chownat(into, name, Some(uid), Some(gid), nofollow)?;
        rustix::fs::utimensat(into, name, &times(stat), nofollow)
    }

    /// Owner, attributes, mode and times, in the order in which none undoes another.
    pub(crate) fn describe(
        &self,
        from: BorrowedFd<'_>,
        into: BorrowedFd<'_>,
        stat: &Stat,
    ) -> rustix::io::Result<()> {
        let (uid, gid) = self.owner(stat);
        rustix::fs::fchown(into, Some(uid), Some(gid))?;
        let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let shifted = |id| self.shift.map_or(id, |shift| shift.of(id));
        let attributes = acl::with_lists(from, shifted).map_err(failed)?;
        let before = acl::with_lists(into, |id| id).map_err(failed)?;
        for (name, _) in
            before.iter().filter(|(name, _)| !attributes.iter().any(|(it, _)| it == name))
        {
            let _ = rustix::fs::fremovexattr(into, name.as_str());
        }
        for (name, value) in &attributes {
            match rustix::fs::fsetxattr(into, name.as_str(), value, XattrFlags::empty()) {
                // What only the host's root may set was not set by the sandbox.
                Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP)
                    if !name.starts_with("user.") => {}
                set => set?,
            }
        }
        rustix::fs::fchmod(into, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
        rustix::fs::futimens(into, &times(stat))
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
pub(crate) fn link(first: &Path, into: BorrowedFd<'_>, name: &OsStr) -> rustix::io::Result<()> {
    let first = Path::new("/").join(first);
    match rustix::fs::linkat(CWD, &first, into, name, AtFlags::empty()) {
        Err(Errno::EXIST) => {
            remove(into, name.as_bytes())?;
            rustix::fs::linkat(CWD, &first, into, name, AtFlags::empty())
        }
        linked => linked,
    }
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
