//! Writing a tree that a guest sends. Nothing it says is believed.
//!
//! Every path is checked, every directory on the way is opened below the target without
//! following a link, files are made anew, and permissions lose their setuid and setgid bits. Holes
//! stay holes, and a guest that sends more than the file system has space for gets an error.

use crate::connection::Connection;
use crate::files::{Copied, Links, Progress, nonsense, through_a_link, understand_in, went_away};
use msb_spec::{Error, Kind, Result};
use msb_sys::sparse::{Budget, OverBudget, SparseWriter};
use msb_wire::{Entry, EntryKind, FrameKind, Piece};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A tree may not have more entries than this; a hostile one would have no end.
const ENTRY_LIMIT: u64 = 10_000_000;

pub(crate) fn receive(
    connection: &mut Connection,
    place: &str,
    from: &[u8],
    (to, links): (&Path, Links),
    progress: Progress<'_>,
) -> Result<Copied> {
    let mut tree: Option<Tree> = None;
    let mut copied = Copied::default();
    let mut budget = Budget::default();
    loop {
        let frame = connection.next_frame()?.ok_or_else(went_away)?;
        match frame.kind {
            FrameKind::Entry => {}
            FrameKind::Reply => {
                understand_in(place, frame.value().map_err(|_| nonsense())?)?;
                return Err(nonsense());
            }
            _ => return Err(nonsense()),
        }
        let entry: Entry = frame.value().map_err(|_| nonsense())?;
        if !entry.is_safe() || copied.entries >= ENTRY_LIMIT {
            return Err(nonsense());
        }
        if entry.kind == EntryKind::End {
            if let Some(tree) = tree {
                tree.finish();
            }
            return Ok(copied);
        }
        let tree = match &mut tree {
            None if !entry.path.is_empty() => return Err(nonsense()),
            None => tree.insert(Tree::open(from, to, links)?),
            Some(tree) => tree,
        };
        copied.entries += 1;
        match &entry.kind {
            EntryKind::Directory => tree.directory(&entry)?,
            EntryKind::Symlink(target) => tree.link(&entry, target)?,
            EntryKind::File => {
                let file = tree.file(&entry)?;
                let taken = take_bytes(connection, &entry, (&file, &mut budget), progress);
                // Half a file is of no use, and its space may be what others need.
                copied.bytes += taken.inspect_err(|_| tree.remove(&entry))?;
                set_time(&file, &entry);
            }
            EntryKind::Other => copied.left_out += 1,
            EntryKind::End => {}
        }
    }
}

fn take_bytes(
    connection: &mut Connection,
    entry: &Entry,
    (file, budget): (&File, &mut Budget),
    progress: Progress<'_>,
) -> Result<u64> {
    let failed = |error| failed(&entry.path, error);
    let mut writer = SparseWriter::new(file, budget);
    connection.stream(entry.size, |piece| {
        let length = match piece {
            Piece::Bytes(bytes) => writer.data(bytes).map(|()| bytes.len() as u64),
            Piece::Hole(length) => writer.hole(length).map(|()| length),
        };
        progress(length.map_err(failed)?);
        Ok(())
    })?;
    writer.finish().map_err(failed)
}

/// Where the tree goes: a directory that is open, and the name of the tree's root in it.
struct Tree {
    base: OwnedFd,
    root: PathBuf,
    /// Permissions of directories, set at the end so that a closed one can be filled.
    directories: Vec<(PathBuf, u32)>,
}

impl Tree {
    fn open(from: &[u8], to: &Path, links: Links) -> Result<Self> {
        let about = |error: Errno| match (error, links) {
            (Errno::LOOP, Links::Refused) => through_a_link(to),
            _ => Error::host(format!("cannot write to `{}`", to.display()), error),
        };
        let open = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let resolve = match links {
                Links::Followed => ResolveFlags::empty(),
                Links::Refused => ResolveFlags::NO_SYMLINKS,
            };
            rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)
        };
        let (base, name) = match open(to) {
            Ok(base) => {
                let trimmed = Path::new(OsStr::from_bytes(from));
                (base, trimmed.file_name().unwrap_or(OsStr::new("root")).to_owned())
            }
            // What is no directory is replaced, if it is there.
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let name = to.file_name();
                let name = name.ok_or_else(|| Error::invalid("the copy has no name to go by"))?;
                let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
                let base = open(parent.unwrap_or(Path::new("."))).map_err(about)?;
                (base, name.to_owned())
            }
            Err(error) => return Err(about(error)),
        };
        Ok(Self { base, root: PathBuf::from(name), directories: Vec::new() })
    }

    /// Opens the directory that an entry goes into, and gives its name there.
    fn parent_of(&self, entry: &Entry) -> Result<(OwnedFd, PathBuf)> {
        let path = self.root.join(OsStr::from_bytes(&entry.path));
        // Joining nothing adds a slash, which the last part must not have.
        let path: PathBuf = path.components().collect();
        let name = path.file_name().ok_or_else(nonsense)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = rustix::fs::openat2(
            &self.base,
            parent.unwrap_or(Path::new(".")),
            flags,
            Mode::empty(),
            resolve,
        )
        .map_err(|error| failed(&entry.path, error.into()))?;
        Ok((opened, PathBuf::from(name)))
    }

    fn directory(&mut self, entry: &Entry) -> Result<()> {
        let (parent, name) = self.parent_of(entry)?;
        match rustix::fs::mkdirat(&parent, &name, Mode::from_raw_mode(0o700)) {
            Ok(()) => {
                self.directories
                    .push((self.root.join(OsStr::from_bytes(&entry.path)), entry.mode & 0o777));
                Ok(())
            }
            // Merged into a directory that is there, but not into where a link leads.
            Err(Errno::EXIST) => {
                let stat = rustix::fs::statat(&parent, &name, AtFlags::SYMLINK_NOFOLLOW)
                    .map_err(|error| failed(&entry.path, error.into()))?;
                match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
                    rustix::fs::FileType::Directory => Ok(()),
                    _ => Err(failed(&entry.path, Errno::NOTDIR.into())),
                }
            }
            Err(error) => Err(failed(&entry.path, error.into())),
        }
    }

    fn link(&self, entry: &Entry, target: &[u8]) -> Result<()> {
        let (parent, name) = self.parent_of(entry)?;
        clear(&parent, &name);
        rustix::fs::symlinkat(target, &parent, &name)
            .map_err(|error| failed(&entry.path, error.into()))
    }

    fn file(&self, entry: &Entry) -> Result<File> {
        let (parent, name) = self.parent_of(entry)?;
        // Made anew: an old file could be a hard link or a pipe.
        clear(&parent, &name);
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(entry.mode & 0o777 | 0o200);
        let file = rustix::fs::openat(&parent, &name, flags, mode)
            .map_err(|error| failed(&entry.path, error.into()))?;
        let _ = rustix::fs::fchmod(&file, Mode::from_raw_mode(entry.mode & 0o777));
        Ok(File::from(file))
    }

    /// Removes a file that was made and could not be filled.
    fn remove(&self, entry: &Entry) {
        if let Ok((parent, name)) = self.parent_of(entry) {
            clear(&parent, &name);
        }
    }

    fn finish(self) {
        for (path, mode) in self.directories.into_iter().rev() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            let path: PathBuf = path.components().collect();
            if let Ok(fd) = rustix::fs::openat2(&self.base, &path, flags, Mode::empty(), resolve) {
                let _ = rustix::fs::fchmod(fd, Mode::from_raw_mode(mode));
            }
        }
    }
}

/// Removes what a new file or link would replace; a directory is left, and making fails.
fn clear(parent: &OwnedFd, name: &Path) {
    let _ = rustix::fs::unlinkat(parent, name, AtFlags::empty());
}

fn set_time(file: &File, entry: &Entry) {
    let time = Timespec {
        tv_sec: entry.modified.div_euclid(1000),
        tv_nsec: (entry.modified.rem_euclid(1000) * 1_000_000) as _,
    };
    // A time is a nicety.
    let _ = rustix::fs::futimens(file, &Timestamps { last_access: time, last_modification: time });
}

fn failed(path: &[u8], error: std::io::Error) -> Error {
    let shown: String = String::from_utf8_lossy(path).chars().take(300).collect();
    let shown = msb_spec::shown(&shown);
    match OverBudget::of(&error) {
        None => Error::host(format!("cannot write `{shown}`"), error),
        Some(why) => over_budget(format!("cannot write `{shown}`"), why),
    }
}

/// A copy that was stopped before it filled the host.
fn over_budget(message: String, why: OverBudget) -> Error {
    let error = Error::new(Kind::Limit, message).cause(why);
    match why {
        OverBudget::Space => error.hint("free some space, or copy to another file system"),
        OverBudget::Holes => error.hint("leave large sparse files out, or pack them inside first"),
    }
}
