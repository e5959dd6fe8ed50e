//! Forgets changes, so that the sandbox sees the host's files again. It must not run meanwhile.

use crate::baseline::Baseline;
use crate::review::{BASELINE, Workspace};
use crate::tree::{Directory, kind};
use msb_api::{Depth, RelPath};
use msb_spec::{Error, Kind, PlannedWorkspace, Result};
use rustix::fs::{AtFlags, FileType, Mode, RenameFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Where what is forgotten is put by one rename, before it is removed.
const GONE: &str = "gone";

impl Workspace {
    /// Forgets the changes at and below these paths, or all. Gives how many there were.
    pub fn discard(&self, paths: &[RelPath]) -> Result<usize> {
        let held = self.hold()?;
        let changes = Directory::open(&self.changes)?;
        clear_gone(&changes)?;
        if paths.is_empty() {
            let upper = PlannedWorkspace::UPPER;
            // Also where the host's directory is another by now, and nothing can be compared.
            let count = held.look(&[], Depth::default()).map_or(0, |changes| changes.len());
            put_away(&changes, &changes, OsStr::new(upper))?;
            // Nothing is left of what it saw, and it sees the directory anew.
            let fresh = Baseline::take(&self.host)?;
            let next = self.notes.join("baseline.fresh");
            fresh.write(&next)?;
            std::fs::rename(next, self.notes.join(BASELINE))
                .map_err(|error| Error::host("cannot note what was seen", error))?;
            clear_gone(&changes)?;
            return Ok(count);
        }
        let Some(upper) = held.upper()? else { return Ok(0) };
        let count = held.look(paths, Depth::default())?.len();
        for path in paths {
            let Some(place) = deepest(&upper, path)? else { continue };
            put_away(&changes, &place, path.name())?;
            clear_gone(&changes)?;
        }
        Ok(count)
    }
}

/// The directory in the upper tree that has a path; none if nothing was changed there. One that
/// was made anew has nothing of the host's below it that could be seen again.
fn deepest(upper: &Directory, path: &RelPath) -> Result<Option<Directory>> {
    let whole = |above: &RelPath| {
        Error::new(Kind::State, format!("cannot forget a part of `{above}`"))
            .cause("the sandbox has deleted or replaced the whole directory")
            .hint(format!("`msb discard NAME {above}` forgets all of it"))
    };
    let mut above: Vec<RelPath> = std::iter::successors(path.parent(), RelPath::parent).collect();
    above.reverse();
    let mut place = match upper.below(None)? {
        Some(place) => place,
        None => return Ok(None),
    };
    for directory in &above {
        let name = directory.name().as_bytes();
        let Some(stat) = place.stat(name)? else { return Ok(None) };
        if kind(&stat) != FileType::Directory {
            return Err(whole(directory));
        }
        let Some(next) = place.directory(name)? else { return Ok(None) };
        if next.has_mark(crate::walk::OPAQUE, Some(b"y")) {
            return Err(whole(directory));
        }
        place = next;
    }
    Ok(place.stat(path.name().as_bytes())?.map(|_| place))
}

/// Takes something out of the upper tree by one rename.
fn put_away(changes: &Directory, from: &Directory, name: &OsStr) -> Result<()> {
    let flags = RenameFlags::NOREPLACE;
    match rustix::fs::renameat_with(&from.0, name, &changes.0, GONE, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(Error::host("cannot forget what was changed", error)),
    }
}

/// Removes what was put away, also by somebody who died.
fn clear_gone(changes: &Directory) -> Result<()> {
    let about = |error| Error::host("cannot forget what was changed", error);
    let name = OsStr::new(GONE);
    match rustix::fs::unlinkat(&changes.0, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(about(error)),
    }
    let gone = opened_up(changes, name)?;
    let mut number = 0;
    // However deep it is, only two directories are open: what lies deeper is moved up first.
    loop {
        let names = gone.names()?;
        if names.is_empty() {
            break;
        }
        for name in names {
            empty(&gone, OsStr::from_bytes(&name), &mut number)?;
        }
    }
    rustix::fs::unlinkat(&changes.0, name, AtFlags::REMOVEDIR).map_err(about)
}

/// Removes an entry; what a directory holds becomes its sibling, to be removed later.
fn empty(gone: &Directory, name: &OsStr, number: &mut u64) -> Result<()> {
    let about = |error| Error::host("cannot forget what was changed", error);
    match rustix::fs::unlinkat(&gone.0, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(about(error)),
    }
    let directory = opened_up(gone, name)?;
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
            match rustix::fs::renameat_with(&directory.0, entry, &gone.0, free, flags) {
                Err(Errno::EXIST) => {}
                moved => break moved.map_err(about)?,
            }
        }
    }
    rustix::fs::unlinkat(&gone.0, name, AtFlags::REMOVEDIR).map_err(about)
}

/// A directory of a sandbox, however it was closed.
fn opened_up(place: &Directory, name: &OsStr) -> Result<Directory> {
    let about = |error| Error::host("cannot forget what was changed", error);
    // A link is not followed: what is no directory by now is refused below.
    if let Ok(Some(stat)) = place.stat(name.as_bytes())
        && kind(&stat) == FileType::Directory
    {
        let _ = rustix::fs::chmodat(&place.0, name, Mode::RWXU, AtFlags::empty());
    }
    place.directory(name.as_bytes())?.ok_or_else(|| about(Errno::NOTDIR))
}
