//! Discards changes, so that the sandbox sees the host's files again. The sandbox must not run.

use crate::baseline::Baseline;
use crate::dir_fd::{DirFd, kind};
use crate::workspace::{BASELINE, Workspace};
use msb_api::{Depth, RelPath};
use msb_spec::{Error, Kind, PlannedWorkspace, Result};
use rustix::fs::{AtFlags, FileType, Mode, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Directory that discarded files are moved to by one rename, before they are removed.
const TRASH: &str = "gone";

impl Workspace {
    /// Discards the changes at and below these paths, or all. Returns their number.
    pub fn discard(&self, paths: &[RelPath]) -> Result<usize> {
        let locked = self.lock()?;
        let changes = DirFd::open(&self.changes)?;
        empty_trash(&changes)?;
        if paths.is_empty() {
            let upper = PlannedWorkspace::UPPER;
            // Works also if the host directory was replaced and nothing can be compared.
            let count = locked.changes(&[], Depth::default()).map_or(0, |changes| changes.len());
            move_to_trash(&changes, &changes, OsStr::new(upper))?;
            // Without an upper directory the sandbox starts from the current state of the host.
            let fresh = Baseline::take(&self.host)?;
            let next = self.notes.join("baseline.fresh");
            fresh.write(&next)?;
            std::fs::rename(next, self.notes.join(BASELINE)).map_err(|error| {
                Error::host("cannot write the baseline of the workspace", error)
            })?;
            empty_trash(&changes)?;
            return Ok(count);
        }
        let Some(upper) = locked.upper()? else { return Ok(0) };
        let count = locked.changes(paths, Depth::default())?.len();
        for path in paths {
            let Some(parent_dir) = parent_in_upper(&upper, path)? else { continue };
            move_to_trash(&changes, &parent_dir, path.name())?;
            empty_trash(&changes)?;
        }
        Ok(count)
    }
}

/// The parent directory of a path in the upper directory; none if nothing was changed there. Fails
/// below an opaque directory, where the host's files cannot become visible again.
fn parent_in_upper(upper: &DirFd, path: &RelPath) -> Result<Option<DirFd>> {
    let whole = |above: &RelPath| {
        Error::new(Kind::State, format!("cannot discard a part of `{above}`"))
            .cause("the sandbox has deleted or replaced the whole directory")
            .hint(format!("`msb discard NAME {above}` discards all of it"))
    };
    let mut above: Vec<RelPath> = std::iter::successors(path.parent(), RelPath::parent).collect();
    above.reverse();
    let mut parent_dir = match upper.below(None)? {
        Some(parent_dir) => parent_dir,
        None => return Ok(None),
    };
    for directory in &above {
        let name = directory.name().as_bytes();
        let Some(stat) = parent_dir.stat(name)? else { return Ok(None) };
        if kind(&stat) != FileType::Directory {
            return Err(whole(directory));
        }
        let Some(next) = parent_dir.directory(name)? else { return Ok(None) };
        if next.has_xattr(crate::find_changes::OPAQUE, Some(b"y")) {
            return Err(whole(directory));
        }
        parent_dir = next;
    }
    Ok(parent_dir.stat(path.name().as_bytes())?.map(|_| parent_dir))
}

/// Moves an entry out of the upper directory by one rename.
fn move_to_trash(changes: &DirFd, from: &DirFd, name: &OsStr) -> Result<()> {
    let flags = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(&from.0, name, &changes.0, TRASH, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Error::host("cannot discard changes", error)),
    }
}

/// Removes discarded files, also those of a process that was killed.
fn empty_trash(changes: &DirFd) -> Result<()> {
    let about = |error| Error::host("cannot discard changes", error);
    let name = OsStr::new(TRASH);
    match rustix::fs::unlinkat(&changes.0, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(about(error)),
    }
    let trash = open_accessible(changes, name)?;
    let mut number = 0;
    // At any depth only two directories are open: deeper ones are moved up first.
    loop {
        let names = trash.names()?;
        if names.is_empty() {
            break;
        }
        for name in names {
            remove_entry(&trash, OsStr::from_bytes(&name), &mut number)?;
        }
    }
    rustix::fs::unlinkat(&changes.0, name, AtFlags::REMOVEDIR).map_err(about)
}

/// Removes an entry. Subdirectories are moved up, to be removed later.
fn remove_entry(trash: &DirFd, name: &OsStr, number: &mut u64) -> Result<()> {
    let about = |error| Error::host("cannot discard changes", error);
    match rustix::fs::unlinkat(&trash.0, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(about(error)),
    }
    let directory = open_accessible(trash, name)?;
    for entry in directory.names()? {
        let entry = OsStr::from_bytes(&entry);
        match rustix::fs::unlinkat(&directory.0, entry, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(about(error)),
        }
        loop {
            *number += 1;
            let free = format!(".msb-{number}");
            let flags = RenameFlags::NOREPLACE;
            match rustix::fs::renameat_with(&directory.0, entry, &trash.0, free, flags) {
                Err(Errno::EXIST) => {}
                moved => break moved.map_err(about)?,
            }
        }
    }
    rustix::fs::unlinkat(&trash.0, name, AtFlags::REMOVEDIR).map_err(about)
}

/// Opens a directory of a sandbox, whatever its mode is.
fn open_accessible(parent_dir: &DirFd, name: &OsStr) -> Result<DirFd> {
    let about = |error| Error::host("cannot discard changes", error);
    // Only a directory gets a new mode; other types are refused below.
    if let Ok(Some(stat)) = parent_dir.stat(name.as_bytes())
        && kind(&stat) == FileType::Directory
    {
        let _ = rustix::fs::chmodat(&parent_dir.0, name, Mode::RWXU, AtFlags::empty());
    }
    parent_dir.directory(name.as_bytes())?.ok_or_else(|| about(Errno::NOTDIR))
}
