//! Writes a tree that a guest sends, which is untrusted.
//!
//! Every path is checked, every directory is opened below the target without following symlinks,
//! files are created anew beside their names, and setuid and setgid bits are dropped. Holes stay holes. A guest that
//! sends more than the file system has space for gets an error.

use crate::connection::Connection;
use crate::files::{
    CopyCount, Progress, SymlinkPolicy, guest_closed, malformed_reply, symlink_in_path,
    understand_in,
};
use msb_spec::{Error, Kind, Result};
use msb_sys::draft_file::DraftFile;
use msb_sys::sparse::{Budget, OverBudget, SparseWriter};
use msb_wire::{Entry, EntryKind, FrameKind, Piece};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The most entries of a tree; a hostile guest would send an endless one.
pub(crate) const ENTRY_LIMIT: u64 = 10_000_000;

pub(crate) fn receive(
    connection: &mut Connection,
    place: &str,
    from: &[u8],
    (to, links): (&Path, SymlinkPolicy),
    progress: Progress<'_>,
) -> Result<CopyCount> {
    let mut tree: Option<TargetTree> = None;
    let mut copied = CopyCount::default();
    let mut budget = Budget::default();
    loop {
        let frame = connection.next_frame()?.ok_or_else(guest_closed)?;
        match frame.kind {
            FrameKind::Entry => {}
            FrameKind::Reply => {
                understand_in(place, frame.value().map_err(|_| malformed_reply())?)?;
                return Err(malformed_reply());
            }
            _ => return Err(malformed_reply()),
        }
        let entry: Entry = frame.value().map_err(|_| malformed_reply())?;
        if !entry.is_safe() || copied.entries >= ENTRY_LIMIT {
            return Err(malformed_reply());
        }
        if entry.kind == EntryKind::End {
            if let Some(tree) = tree {
                tree.finish();
            }
            return Ok(copied);
        }
        let tree = match &mut tree {
            None if !entry.path.is_empty() => return Err(malformed_reply()),
            None => tree.insert(TargetTree::open(from, to, links)?),
            Some(tree) => tree,
        };
        copied.entries += 1;
        match &entry.kind {
            EntryKind::Directory => tree.directory(&entry)?,
            EntryKind::Symlink(target) => tree.link(&entry, target)?,
            EntryKind::File => {
                let draft = tree.file(&entry)?;
                let target = (draft.file(), &mut budget);
                copied.bytes += take_bytes(connection, &entry, target, progress)?;
                set_time(draft.file(), &entry);
                draft.keep().map_err(|error| failed(&entry.path, error))?;
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

/// The target of a copy: an open directory, and the name of the root of the tree in it.
struct TargetTree {
    base: OwnedFd,
    root: PathBuf,
    /// Modes of new directories, set at the end so that read-only ones can be filled.
    directories: Vec<(PathBuf, u32)>,
}

impl TargetTree {
    fn open(from: &[u8], to: &Path, links: SymlinkPolicy) -> Result<Self> {
        let about = |error: Errno| match (error, links) {
            (Errno::LOOP, SymlinkPolicy::Refuse) => symlink_in_path(to),
            _ => Error::host(format!("cannot write to `{}`", to.display()), error),
        };
        let open = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let resolve = match links {
                SymlinkPolicy::Follow => ResolveFlags::empty(),
                SymlinkPolicy::Refuse => ResolveFlags::NO_SYMLINKS,
            };
            rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)
        };
        let (base, name) = match open(to) {
            Ok(base) => {
                let trimmed = Path::new(OsStr::from_bytes(from));
                (base, trimmed.file_name().unwrap_or(OsStr::new("root")).to_owned())
            }
            // A target that is not a directory is replaced.
            Err(Errno::NOENT | Errno::NOTDIR) => {
                let name = to.file_name();
                let name =
                    name.ok_or_else(|| Error::invalid("the target path has no file name"))?;
                let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
                let base = open(parent.unwrap_or(Path::new("."))).map_err(about)?;
                (base, name.to_owned())
            }
            Err(error) => return Err(about(error)),
        };
        Ok(Self { base, root: PathBuf::from(name), directories: Vec::new() })
    }

    /// Opens the parent directory of an entry. Returns it with the name of the entry.
    fn parent_of(&self, entry: &Entry) -> Result<(OwnedFd, PathBuf)> {
        let path = self.root.join(OsStr::from_bytes(&entry.path));
        // Joining an empty path adds a trailing slash.
        let path: PathBuf = path.components().collect();
        let name = path.file_name().ok_or_else(malformed_reply)?.to_owned();
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
            // Merged into an existing directory, but not through a symlink.
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

    /// Creates a file beside its name: an existing one could be a hard link or a FIFO, and a copy
    /// that is killed leaves no half of a file under that name.
    fn file(&self, entry: &Entry) -> Result<DraftFile> {
        let (parent, name) = self.parent_of(entry)?;
        let mode = Mode::from_raw_mode(entry.mode & 0o777 | 0o200);
        let draft = DraftFile::create(parent, name.as_os_str(), mode)
            .map_err(|error| failed(&entry.path, error))?;
        msb_log::debug_on_failure!(
            rustix::fs::fchmod(draft.file(), Mode::from_raw_mode(entry.mode & 0o777)),
            "cannot set the mode of a copied file"
        );
        Ok(draft)
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

/// Removes the file that a new one replaces. A directory stays, and the creation fails.
fn clear(parent: &OwnedFd, name: &Path) {
    let _ = rustix::fs::unlinkat(parent, name, AtFlags::empty());
}

fn set_time(file: &File, entry: &Entry) {
    let time = Timespec {
        tv_sec: entry.modified.div_euclid(1000),
        tv_nsec: (entry.modified.rem_euclid(1000) * 1_000_000) as _,
    };
    // Errors are ignored: the time is not essential.
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

/// The error for a copy that was stopped before it filled the file system.
fn over_budget(message: String, why: OverBudget) -> Error {
    let error = Error::new(Kind::Limit, message).cause(why);
    match why {
        OverBudget::Space => error.hint("free some space, or copy to another file system"),
        OverBudget::Holes => error.hint("leave large sparse files out, or pack them inside first"),
    }
}
