//! Finds the changes of a sandbox. Walks the upper directory only, and compares it with the same
//! paths on the host.

use crate::baseline::Baseline;
use crate::dir_fd::{DirFd, escape_bytes, has_xattr, kind};
use crate::{content, risk};
use msb_api::RelPath;
use msb_api::{Change, Conflict, Item, ItemKind, What};
use msb_spec::{Error, Kind, Result};
use rustix::fs::{FileType, Stat};
use std::collections::HashMap;

/// Extended attribute of a directory that hides the lower one.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";
/// Extended attribute of files that were copied up. A renamed file has it, too, and it does not
/// name the source.
const ORIGIN: &str = "user.overlay.origin";

/// PATH_MAX of the kernel without the NUL. Deeper directories are reported as special.
const PATH_LIMIT: usize = 4095;
/// Most changes of one review; each takes some hundred bytes.
const MAX_CHANGES: usize = 1_000_000;

/// Set-id and sticky bits, which are never applied to the host.
const STRIPPED: u32 = 0o7000;

/// State of the walk. Pending directories are kept as paths, so that only two descriptors are open.
#[derive(Debug)]
struct ChangeWalk<'a> {
    baseline: &'a Baseline,
    device: u64,
    changes: Vec<Change>,
    /// Directories of the sandbox to compare.
    pending: Vec<PendingDir>,
    /// Directories of the host that the sandbox has deleted.
    deleted_dirs: Vec<(RelPath, Option<Conflict>)>,
}

/// A directory to compare.
#[derive(Debug)]
struct PendingDir {
    path: Option<RelPath>,
    /// Whether the host has this directory.
    on_host: bool,
    /// Whether the host directory is hidden: it is inside of an opaque one.
    hidden: bool,
    /// Conflict of all entries below.
    conflict: Option<Conflict>,
}

/// One directory in the upper directory and on the host.
struct DirSides<'a> {
    path: Option<&'a RelPath>,
    upper: &'a DirFd,
    host: Option<&'a DirFd>,
    hidden: bool,
    conflict: Option<Conflict>,
}

/// All changes of the sandbox, sorted by path.
pub(crate) fn find_changes(
    baseline: &Baseline,
    upper: &DirFd,
    host: &DirFd,
) -> Result<Vec<Change>> {
    let device = host.own_stat()?.st_dev;
    let root = PendingDir { path: None, on_host: true, hidden: false, conflict: None };
    let (changes, pending, deleted_dirs) = (Vec::new(), vec![root], Vec::new());
    let mut walk = ChangeWalk { baseline, device, changes, pending, deleted_dirs };
    while let Some(PendingDir { path, on_host, hidden, conflict }) = walk.pending.pop() {
        let below = if on_host { host.below(path.as_ref())? } else { None };
        // Moved or removed by the sandbox meanwhile.
        let Some(above) = upper.below(path.as_ref())? else { continue };
        let (path, host) = (path.as_ref(), below.as_ref());
        // An opaque mark on the root of an overlay has no effect.
        let hidden = hidden || path.is_some() && above.has_xattr(OPAQUE, Some(b"y"));
        walk.directory(&DirSides { path, upper: &above, host, hidden, conflict })?;
    }
    while let Some((path, conflict)) = walk.deleted_dirs.pop() {
        let Some(directory) = host.below(Some(&path))? else { continue };
        for name in directory.names()? {
            walk.deleted_at(RelPath::below(Some(&path), &name), &directory, &name, conflict)?;
        }
    }
    let mut changes = walk.changes;
    changes.sort_by(|one, other| one.path.cmp(&other.path));
    flag_repositories(&mut changes, upper, host)?;
    Ok(changes)
}

impl ChangeWalk<'_> {
    fn directory(&mut self, sides: &DirSides<'_>) -> Result<()> {
        let names = sides.upper.names()?;
        for name in &names {
            let Some(stat) = sides.upper.stat(name)? else { continue };
            self.entry(sides, name, &stat)?;
        }
        if let (true, Some(host)) = (sides.hidden, sides.host) {
            for name in host.names()? {
                if names.binary_search(&name).is_err() {
                    self.deleted_at(
                        RelPath::below(sides.path, &name),
                        host,
                        &name,
                        sides.conflict,
                    )?;
                }
            }
        }
        Ok(())
    }

    fn entry(&mut self, sides: &DirSides<'_>, name: &[u8], stat: &Stat) -> Result<()> {
        let path = RelPath::below(sides.path, name);
        let before = match sides.host {
            Some(host) => host.stat(name)?,
            None => None,
        };
        match kind(stat) {
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                if let (Some(host), false) = (sides.host, self.baseline.is_deleted(&path)) {
                    self.deleted_at(path, host, name, sides.conflict)?;
                }
                Ok(())
            }
            FileType::Directory => self.subdirectory(sides, name, path, stat, before),
            FileType::RegularFile | FileType::Symlink => {
                self.non_directory(sides, name, path, stat, before)
            }
            _ => {
                let before = before.map(|before| self.item(sides.host, name, &before));
                let after = Some(item(stat, None));
                self.push(Change {
                    what: What::Special,
                    ..change(path, before.transpose()?, after)
                })
            }
        }
    }

    fn subdirectory(
        &mut self,
        sides: &DirSides<'_>,
        name: &[u8],
        path: RelPath,
        stat: &Stat,
        before: Option<Stat>,
    ) -> Result<()> {
        // Moved or removed by the sandbox meanwhile.
        let Some(upper) = sides.upper.directory(name)? else { return Ok(()) };
        if path.as_path().as_os_str().len() > PATH_LIMIT {
            let after = Some(item(stat, None));
            return self.push(Change { what: What::Special, ..change(path, None, after) });
        }
        let mut conflict = sides.conflict;
        let mut on_host = false;
        match &before {
            Some(before) if kind(before) == FileType::Directory => {
                if before.st_dev != self.device {
                    conflict = conflict.or(Some(Conflict::Mounted));
                } else if self.baseline.is_moved(&path, before) {
                    conflict = conflict.or(Some(Conflict::MovedOnHost));
                }
                on_host = true;
                let differs = mode(before) != mode(stat);
                if differs && !self.baseline.is_applied(&path, stat) {
                    let seen = self.host_conflict(&path, before).or(conflict);
                    let (one, other) = (Some(item(before, None)), Some(item(stat, None)));
                    let change = change(path.clone(), one, other);
                    self.push(Change {
                        what: What::Mode,
                        conflict: seen,
                        ..stripped(change, stat)
                    })?;
                }
            }
            other => {
                let gone = other.is_none()
                    && upper.has_xattr(ORIGIN, None)
                    && !self.baseline.was_applied(&path);
                let host_conflict =
                    other.as_ref().and_then(|before| self.host_conflict(&path, before));
                conflict = conflict.or(host_conflict).or(gone.then_some(Conflict::RemovedOnHost));
                let before = other.as_ref().map(|before| self.item(sides.host, name, before));
                let before = before.transpose()?;
                let what = if before.is_some() { What::Changed } else { What::Added };
                let change = change(path.clone(), before, Some(item(stat, None)));
                if !self.baseline.is_applied(&path, stat) {
                    self.push(Change { what, conflict, ..stripped(change, stat) })?;
                }
            }
        }
        let hidden = sides.hidden;
        self.pending.push(PendingDir { path: Some(path), on_host, hidden, conflict });
        Ok(())
    }

    fn non_directory(
        &mut self,
        sides: &DirSides<'_>,
        name: &[u8],
        path: RelPath,
        stat: &Stat,
        before: Option<Stat>,
    ) -> Result<()> {
        if self.baseline.is_applied(&path, stat) {
            return Ok(());
        }
        let after = self.item(Some(sides.upper), name, stat)?;
        let Some(host) = before else {
            let removed = self.is_removed_on_host(sides, name, &path, stat)?;
            let conflict = sides.conflict.or(removed.then_some(Conflict::RemovedOnHost));
            return self.push_non_directory(What::Added, path, None, after, stat, conflict);
        };
        let before = self.item(sides.host, name, &host)?;
        let what = match (before.kind, after.kind) {
            (ItemKind::File, ItemKind::File) => {
                let same = before.size == after.size && self.holds_same(sides, name)?;
                match (same, before.mode == after.mode) {
                    (true, true) => return Ok(()),
                    (true, false) => What::Mode,
                    (false, _) => What::Changed,
                }
            }
            (ItemKind::Symlink, ItemKind::Symlink) if before.target == after.target => {
                return Ok(());
            }
            _ => What::Changed,
        };
        if before.kind == ItemKind::Directory {
            self.deleted_dirs.push((path.clone(), sides.conflict));
        }
        let conflict = self.host_conflict(&path, &host).or(sides.conflict);
        self.push_non_directory(what, path, Some(before), after, stat, conflict)
    }

    fn push_non_directory(
        &mut self,
        what: What,
        path: RelPath,
        before: Option<Item>,
        after: Item,
        stat: &Stat,
        conflict: Option<Conflict>,
    ) -> Result<()> {
        let made = stripped(change(path, before, Some(after)), stat);
        self.push(Change { what, conflict, ..made })
    }

    /// Whether the host has removed a file that the sandbox then changed, as far as it can be
    /// detected: an apply had written it, or it was copied up and the entries of its directory on
    /// the host have changed since. Renames by the sandbox are detected later.
    fn is_removed_on_host(
        &self,
        sides: &DirSides<'_>,
        name: &[u8],
        path: &RelPath,
        stat: &Stat,
    ) -> Result<bool> {
        if self.baseline.was_written(path) {
            return Ok(true);
        }
        // Of several hard links one may belong to the host.
        let Some(host) = sides.host.filter(|_| !sides.hidden && stat.st_nlink == 1) else {
            return Ok(false);
        };
        if !self.baseline.has_changed_entries(sides.path, &host.own_stat()?) {
            return Ok(false);
        }
        let file = sides.upper.file(name).ok().flatten();
        Ok(file.is_some_and(|file| has_xattr(file, ORIGIN, None)))
    }

    /// Adds the deletion of a file of the host. Entries of a directory follow later.
    fn deleted_at(
        &mut self,
        path: RelPath,
        host: &DirFd,
        name: &[u8],
        conflict: Option<Conflict>,
    ) -> Result<()> {
        let Some(stat) = host.stat(name)? else { return Ok(()) };
        let before = self.item(Some(host), name, &stat)?;
        let mut conflict = conflict.or(self.host_conflict(&path, &stat));
        if kind(&stat) == FileType::Directory {
            if stat.st_dev == self.device {
                self.deleted_dirs.push((path.clone(), conflict));
            } else {
                conflict = Some(Conflict::Mounted);
            }
        }
        self.push(Change { what: What::Deleted, conflict, ..change(path, Some(before), None) })
    }

    /// The conflict if a file on the host is not what the sandbox saw. Entries of a directory are
    /// checked on their own.
    fn host_conflict(&self, path: &RelPath, host: &Stat) -> Option<Conflict> {
        match kind(host) {
            FileType::Directory => {
                self.baseline.is_moved(path, host).then_some(Conflict::MovedOnHost)
            }
            _ => (!self.baseline.is_as_seen(path, host)).then_some(Conflict::ChangedOnHost),
        }
    }

    fn item(&self, directory: Option<&DirFd>, name: &[u8], stat: &Stat) -> Result<Item> {
        let target = match (kind(stat), directory) {
            (FileType::Symlink, Some(directory)) => directory.link(name)?,
            _ => None,
        };
        Ok(item(stat, target.map(|target| escape_bytes(&target))))
    }

    fn holds_same(&self, sides: &DirSides<'_>, name: &[u8]) -> Result<bool> {
        let host = sides.host.map(|host| host.file(name)).transpose()?.flatten();
        let (Some(upper), Some(host)) = (sides.upper.file(name)?, host) else { return Ok(false) };
        content::same(&upper, &host)
            .map_err(|error| Error::host(format!("cannot read `{}`", escape_bytes(name)), error))
    }

    fn push(&mut self, change: Change) -> Result<()> {
        if self.changes.len() >= MAX_CHANGES {
            return Err(Error::new(Kind::Limit, format!("more than {MAX_CHANGES} changes"))
                .hint("`msb discard` removes some of them"));
        }
        self.changes.push(change);
        Ok(())
    }
}

/// Flags git configuration in directories with a `HEAD`, on the host or in the sandbox: two applies
/// could together create a repository.
fn flag_repositories(changes: &mut [Change], upper: &DirFd, host: &DirFd) -> Result<()> {
    let mut known: HashMap<Option<RelPath>, bool> = HashMap::new();
    for change in changes.iter_mut().filter(|change| change.risk.is_none()) {
        let is_directory = |item: &Item| item.kind == ItemKind::Directory;
        if change.after.as_ref().or(change.before.as_ref()).is_some_and(is_directory) {
            continue;
        }
        for directory in risk::repositories(&change.path) {
            let is_one = match known.get(&directory) {
                Some(is_one) => *is_one,
                None => has_head(upper, directory.as_ref())? || has_head(host, directory.as_ref())?,
            };
            known.insert(directory, is_one);
            if is_one {
                change.risk = Some(risk::bare_repository(&change.path));
                break;
            }
        }
    }
    Ok(())
}

fn has_head(root: &DirFd, directory: Option<&RelPath>) -> Result<bool> {
    let Some(directory) = root.below(directory)? else { return Ok(false) };
    Ok(directory.stat(b"HEAD")?.is_some())
}

fn change(path: RelPath, before: Option<Item>, after: Option<Item>) -> Change {
    let risk = risk::of(&path, before.as_ref(), after.as_ref());
    Change {
        path,
        what: What::Changed,
        before,
        after,
        renamed_from: None,
        renamed_to: None,
        risk,
        ignored: false,
        conflict: None,
        stripped: 0,
        patch: None,
        git: None,
    }
}

fn stripped(change: Change, stat: &Stat) -> Change {
    let bits = if kind(stat) == FileType::Symlink { 0 } else { stat.st_mode & STRIPPED };
    Change { stripped: bits, ..change }
}

fn item(stat: &Stat, target: Option<String>) -> Item {
    let kind = match kind(stat) {
        FileType::RegularFile => ItemKind::File,
        FileType::Directory => ItemKind::Directory,
        FileType::Symlink => ItemKind::Symlink,
        _ => ItemKind::Special,
    };
    let size = if kind == ItemKind::File { u64::try_from(stat.st_size).unwrap_or(0) } else { 0 };
    Item { kind, mode: mode(stat), size, sha256: None, target }
}

fn mode(stat: &Stat) -> u32 {
    stat.st_mode & 0o777
}
