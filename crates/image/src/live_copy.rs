//! Copies a directory tree while it is being written: a full pass, then a delta pass while the
//! sandbox is paused.
//!
//! The first pass copies everything and records the ctime of each entry. The second pass copies
//! entries with another ctime. Data blocks are shared with FICLONE where the file system supports
//! it.

use crate::posix_acl;
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

/// Deeper than real trees; each level holds two descriptors.
const DEPTH: usize = 400;
/// Coarsest clock of file systems, in nanoseconds. An entry that changed this close to its copy is
/// copied again.
const CLOCK_GRANULARITY: i128 = 20_000_000;

/// Maps a range of ids to other ids in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdShift {
    /// The ids of the source tree.
    pub from: IdRange,
    /// Id that the first of them becomes.
    pub into: u32,
}

impl IdShift {
    fn of(&self, id: u32) -> u32 {
        match id.checked_sub(self.from.start) {
            Some(inside) if inside < self.from.count => self.into.wrapping_add(inside),
            _ => id,
        }
    }
}

/// Copies one tree into another, in two passes.
#[derive(Debug, Default)]
pub(crate) struct TwoPassCopy {
    shift: Option<IdShift>,
    /// Entries that the first pass has copied.
    state: DirState,
    /// Hard-linked files by inode: path of the first link in this pass, and whether the copy of it
    /// is still from the first pass.
    links: HashMap<u64, (PathBuf, bool)>,
    second_pass: bool,
    /// Files and bytes that were copied in this pass.
    pub(crate) totals: (u64, u64),
}

/// Copied entries of one directory, by name.
type DirState = HashMap<OsString, CopiedEntry>;

#[derive(Debug)]
struct CopiedEntry {
    ino: u64,
    ctime: i128,
    copied_at: i128,
    seen: bool,
    /// Whether the file has several hard links, so that its copy has them too.
    linked: bool,
    /// Entries of a directory.
    below: DirState,
}

/// What the first pass knows about an entry.
#[derive(Debug, Clone, Copy, Default)]
struct PriorState {
    /// The inode is the same.
    same: bool,
    /// The inode is the same, and its ctime too.
    untouched: bool,
    linked: bool,
}

/// Path and error of a failed copy.
struct CopyError(PathBuf, Errno);

/// A source directory and its copy. The copy is opened when it is first needed.
struct DirPair<'a> {
    from: BorrowedFd<'a>,
    parent: Option<(&'a DirPair<'a>, &'a OsStr)>,
    into: OnceCell<OwnedFd>,
}

impl<'a> DirPair<'a> {
    fn target(&self) -> rustix::io::Result<BorrowedFd<'_>> {
        if let (None, Some((parent, name))) = (self.into.get(), self.parent) {
            let opened = rustix::fs::openat(parent.target()?, name, DIRECTORY, Mode::empty())?;
            let _ = self.into.set(opened);
        }
        self.into.get().map(AsFd::as_fd).ok_or(Errno::BADF)
    }
}

const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl TwoPassCopy {
    pub(crate) fn new(shift: Option<IdShift>) -> Self {
        Self { shift, ..Self::default() }
    }

    /// Uid and gid of an entry in the copy.
    fn owner(&self, stat: &Stat) -> (Uid, Gid) {
        let shifted = |id| self.shift.map_or(id, |shift| shift.of(id));
        (Uid::from_raw(shifted(stat.st_uid)), Gid::from_raw(shifted(stat.st_gid)))
    }

    /// Makes `into` equal to `from`.
    pub(crate) fn pass(&mut self, from: BorrowedFd<'_>, into: BorrowedFd<'_>) -> Result<()> {
        self.second_pass = !self.state.is_empty();
        self.links.clear();
        self.totals = (0, 0);
        let mut state = std::mem::take(&mut self.state);
        let mut pass = || -> std::result::Result<(), CopyError> {
            let failed = |error| CopyError("/".into(), error);
            let stat = rustix::fs::fstat(from).map_err(failed)?;
            let root = OnceCell::from(into.try_clone_to_owned().map_err(|_| failed(Errno::MFILE))?);
            let pair = DirPair { from, parent: None, into: root };
            self.directory(&pair, &mut state, Path::new(""), 0)?;
            self.copy_metadata(from, into, &stat).map_err(failed)
        };
        let passed = pass();
        self.state = state;
        passed.map_err(|CopyError(path, error)| {
            Error::host(format!("cannot copy `{}`", path.display()), std::io::Error::from(error))
        })
    }

    /// Copies one directory. Returns whether entries were added to or removed from its copy.
    fn directory(
        &mut self,
        pair: &DirPair<'_>,
        state: &mut DirState,
        at: &Path,
        depth: usize,
    ) -> std::result::Result<bool, CopyError> {
        let failed = |error| CopyError(at.to_owned(), error);
        if depth > DEPTH {
            return Err(failed(Errno::NAMETOOLONG));
        }
        let mut touched = false;
        for name in names(pair.from).map_err(failed)? {
            match self.entry(pair, state, &name, at, depth) {
                // Removed while it was copied. It will not be there in the second pass.
                Err(CopyError(_, Errno::NOENT)) if !self.second_pass => {
                    state.remove(&name);
                    match pair.target().and_then(|into| remove(into, name.as_bytes())) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        Err(error) => return Err(failed(error)),
                    }
                }
                done => touched |= done?,
            }
        }
        let mut gone = Vec::new();
        state.retain(|name, entry| {
            let seen = std::mem::take(&mut entry.seen);
            if !seen {
                gone.push(name.clone());
            }
            seen
        });
        for name in &gone {
            pair.target().and_then(|into| remove(into, name.as_bytes())).map_err(failed)?;
        }
        Ok(touched || !gone.is_empty())
    }

    /// Copies one entry. Returns whether the parent in the copy was modified.
    fn entry(
        &mut self,
        pair: &DirPair<'_>,
        state: &mut DirState,
        name: &OsStr,
        at: &Path,
        depth: usize,
    ) -> std::result::Result<bool, CopyError> {
        let failed = |error| CopyError(at.join(name), error);
        let copied_at = now();
        let nofollow = AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statat(pair.from, name, nofollow).map_err(failed)?;
        let ctime = nanoseconds(stat.st_ctime, stat.st_ctime_nsec);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let prior = state.get_mut(name);
        let there = prior.is_some();
        let prior = prior.filter(|prior| prior.ino == stat.st_ino);
        let before = prior.as_ref().map_or_else(PriorState::default, |prior| PriorState {
            same: true,
            untouched: prior.ctime == ctime && ctime < prior.copied_at - CLOCK_GRANULARITY,
            linked: prior.linked,
        });
        let mut below = prior.map(|prior| std::mem::take(&mut prior.below)).unwrap_or_default();
        if there && !before.same {
            pair.target().and_then(|into| remove(into, name.as_bytes())).map_err(failed)?;
        }
        let done = match kind {
            FileType::Directory => {
                self.subdirectory(pair, &mut below, (name, &stat), before, &at.join(name), depth)
            }
            _ => self.non_directory(pair, (name, &stat), before, at),
        };
        let linked = kind != FileType::Directory && stat.st_nlink > 1;
        let copied = CopiedEntry { ino: stat.st_ino, ctime, copied_at, seen: true, linked, below };
        match state.get_mut(name) {
            Some(before) => *before = copied,
            None => drop(state.insert(name.to_owned(), copied)),
        }
        done
    }

    /// Copies a subdirectory. Returns whether it was created.
    fn subdirectory(
        &mut self,
        pair: &DirPair<'_>,
        state: &mut DirState,
        (name, stat): (&OsStr, &Stat),
        before: PriorState,
        path: &Path,
        depth: usize,
    ) -> std::result::Result<bool, CopyError> {
        let failed = |error| CopyError(path.to_owned(), error);
        let from = rustix::fs::openat(pair.from, name, DIRECTORY, Mode::empty()).map_err(failed)?;
        if !before.same {
            let into = pair.target().map_err(failed)?;
            rustix::fs::mkdirat(into, name, Mode::RWXU).map_err(failed)?;
        }
        let below =
            DirPair { from: from.as_fd(), parent: Some((pair, name)), into: OnceCell::new() };
        let touched = self.directory(&below, state, path, depth + 1)?;
        if touched || !before.untouched {
            let into = below.target().map_err(failed)?;
            self.copy_metadata(from.as_fd(), into, stat).map_err(failed)?;
        }
        Ok(!before.same)
    }

    /// Copies anything but a directory. Returns whether it was copied.
    fn non_directory(
        &mut self,
        pair: &DirPair<'_>,
        (name, stat): (&OsStr, &Stat),
        before: PriorState,
        at: &Path,
    ) -> std::result::Result<bool, CopyError> {
        let failed = |error| CopyError(at.join(name), error);
        if stat.st_nlink > 1 {
            let path = at.join(name);
            if let Some((first, kept)) = self.links.get(&stat.st_ino) {
                if *kept && before.same && before.linked {
                    return Ok(false);
                }
                let linked = pair.target().and_then(|into| link(first, into, name));
                return linked.map(|()| true).map_err(failed);
            }
            self.links.insert(stat.st_ino, (path, before.same && before.linked));
        }
        if before.untouched {
            return Ok(false);
        }
        let into = pair.target().map_err(failed)?;
        self.totals.0 += 1;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                self.totals.1 += self.file(pair.from, into, name, stat).map_err(failed)?;
            }
            _ => {
                if before.same {
                    remove(into, name.as_bytes()).map_err(failed)?;
                }
                self.special(pair.from, into, name, stat).map_err(failed)?;
            }
        }
        Ok(true)
    }

    /// Copies a regular file, in place if it exists, so that its other hard links stay.
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
        // Starts writeback: pages that are mapped writable become clean, so that the next write
        // sets the ctime.
        let _ = msb_sys::files::begin_writeback(source.as_fd());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = rustix::fs::openat(into, name, flags, Mode::RUSR | Mode::WUSR)?;
        let size = u64::try_from(found.st_size).unwrap_or(0);
        if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
            rustix::fs::ftruncate(&target, 0)?;
            copy_data_runs(&source, &target, size)?;
        }
        rustix::fs::ftruncate(&target, size)?;
        self.copy_metadata(source.as_fd(), target.as_fd(), stat)?;
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

    /// Sets owner, extended attributes, mode and times, in this order: each may reset a later one.
    pub(crate) fn copy_metadata(
        &self,
        from: BorrowedFd<'_>,
        into: BorrowedFd<'_>,
        stat: &Stat,
    ) -> rustix::io::Result<()> {
        let (uid, gid) = self.owner(stat);
        rustix::fs::fchown(into, Some(uid), Some(gid))?;
        let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let shifted = |id| self.shift.map_or(id, |shift| shift.of(id));
        let attributes = posix_acl::xattrs_with_acls(from, shifted).map_err(failed)?;
        let before = posix_acl::xattrs_with_acls(into, |id| id).map_err(failed)?;
        for (name, _) in
            before.iter().filter(|(name, _)| !attributes.iter().any(|(it, _)| it == name))
        {
            let _ = rustix::fs::fremovexattr(into, name.as_str());
        }
        for (name, value) in &attributes {
            match rustix::fs::fsetxattr(into, name.as_str(), value, XattrFlags::empty()) {
                // Attributes that only root of the host may set cannot come from the sandbox.
                Err(Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP)
                    if !name.starts_with("user.") => {}
                set => set?,
            }
        }
        rustix::fs::fchmod(into, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
        rustix::fs::futimens(into, &times(stat))
    }
}

/// Copies a file with its holes, or shares its blocks where the file system supports it.
pub fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    let source = rustix::fs::open(from, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let target = rustix::fs::open(to, flags, Mode::RUSR | Mode::WUSR)?;
    let stat = rustix::fs::fstat(&source)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if rustix::fs::ioctl_ficlone(&target, &source).is_err() {
        copy_data_runs(&source, &target, size)?;
    }
    rustix::fs::ftruncate(&target, size)?;
    // The owner is the user that the VMM process runs as.
    let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    rustix::fs::fchown(&target, Some(uid), Some(gid))?;
    Ok(())
}

/// Creates a hard link to a file that was copied before. The root of the copy is `/` of this
/// process.
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

/// Copies data and leaves holes out.
fn copy_data_runs(source: &OwnedFd, target: &OwnedFd, size: u64) -> rustix::io::Result<()> {
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(()),
            // The file system does not report holes.
            Err(_) => at,
        };
        let end = rustix::fs::seek(source, SeekFrom::Hole(data)).unwrap_or(size).min(size);
        let (mut read, mut write) = (data, data);
        while read < end {
            let most = usize::try_from(end - read).unwrap_or(usize::MAX).min(1 << 30);
            let (from, into) = (Some(&mut read), Some(&mut write));
            // Truncated while it was copied. The second pass copies it again.
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
