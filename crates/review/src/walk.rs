//! Finds what a sandbox has changed: only what overlayfs wrote down is looked at, and what is on
//! the host at the same paths.

use crate::baseline::Baseline;
use crate::tree::{Directory, has_mark, kind};
use crate::{content, risk};
use msb_api::{Change, Conflict, Item, ItemKind, What};
use msb_api::{RelPath, spelled};
use msb_spec::{Error, Kind, Result};
use rustix::fs::{FileType, Stat};
use std::collections::HashMap;

/// What overlayfs marks a directory with that hides what lies below it.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";
/// What overlayfs marks with what it has copied from below. A file that was renamed carries it, too,
/// and it does not say from where.
const ORIGIN: &str = "user.overlay.origin";

/// As long as the kernel takes them. What lies deeper is not looked into.
const LONGEST_PATH: usize = 4095;
/// Some hundred bytes are kept for each.
const MOST: usize = 1_000_000;

/// Set-id and sticky bits never reach the host.
const STRIPPED: u32 = 0o7000;

/// Finds changes. What is left to look at is kept as paths, so that neither a deep tree nor a wide
/// one takes more than two descriptors.
#[derive(Debug)]
struct Walk<'a> {
    baseline: &'a Baseline,
    device: u64,
    changes: Vec<Change>,
    /// Directories of the sandbox that are still to be compared.
    pending: Vec<Pending>,
    /// Directories of the host that the sandbox no longer has.
    leaving: Vec<(RelPath, Option<Conflict>)>,
}

/// A directory that is still to be compared.
#[derive(Debug)]
struct Pending {
    path: Option<RelPath>,
    /// Whether the host has it, too.
    on_host: bool,
    /// Whether nothing of the host's shows through: it lies in one that was made anew.
    hidden: bool,
    /// What holds for everything below.
    conflict: Option<Conflict>,
}

/// The two sides of one directory; the host may have none.
struct Sides<'a> {
    path: Option<&'a RelPath>,
    upper: &'a Directory,
    host: Option<&'a Directory>,
    hidden: bool,
    conflict: Option<Conflict>,
}

/// Everything that the sandbox has changed, sorted by path.
pub(crate) fn changes(
    baseline: &Baseline,
    upper: &Directory,
    host: &Directory,
) -> Result<Vec<Change>> {
    let device = host.own_stat()?.st_dev;
    let root = Pending { path: None, on_host: true, hidden: false, conflict: None };
    let (changes, pending, leaving) = (Vec::new(), vec![root], Vec::new());
    let mut walk = Walk { baseline, device, changes, pending, leaving };
    while let Some(Pending { path, on_host, hidden, conflict }) = walk.pending.pop() {
        let below = if on_host { host.below(path.as_ref())? } else { None };
        // Moved or removed by whoever is inside, while we look.
        let Some(above) = upper.below(path.as_ref())? else { continue };
        let (path, host) = (path.as_ref(), below.as_ref());
        // The root of an overlay shows all that is below it.
        let hidden = hidden || path.is_some() && above.has_mark(OPAQUE, Some(b"y"));
        walk.directory(&Sides { path, upper: &above, host, hidden, conflict })?;
    }
    while let Some((path, conflict)) = walk.leaving.pop() {
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

impl Walk<'_> {
    fn directory(&mut self, sides: &Sides<'_>) -> Result<()> {
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

    fn entry(&mut self, sides: &Sides<'_>, name: &[u8], stat: &Stat) -> Result<()> {
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
            FileType::RegularFile | FileType::Symlink => self.leaf(sides, name, path, stat, before),
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
        sides: &Sides<'_>,
        name: &[u8],
        path: RelPath,
        stat: &Stat,
        before: Option<Stat>,
    ) -> Result<()> {
        // Moved or removed by whoever is inside, while we look.
        let Some(upper) = sides.upper.directory(name)? else { return Ok(()) };
        if path.as_path().as_os_str().len() > LONGEST_PATH {
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
                if differs && !self.baseline.is_settled(&path, stat) {
                    let seen = self.judged(&path, before).or(conflict);
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
                    && upper.has_mark(ORIGIN, None)
                    && !self.baseline.was_brought(&path);
                let judged = other.as_ref().and_then(|before| self.judged(&path, before));
                conflict = conflict.or(judged).or(gone.then_some(Conflict::RemovedOnHost));
                let before = other.as_ref().map(|before| self.item(sides.host, name, before));
                let before = before.transpose()?;
                let what = if before.is_some() { What::Changed } else { What::Added };
                let change = change(path.clone(), before, Some(item(stat, None)));
                if !self.baseline.is_settled(&path, stat) {
                    self.push(Change { what, conflict, ..stripped(change, stat) })?;
                }
            }
        }
        let hidden = sides.hidden;
        self.pending.push(Pending { path: Some(path), on_host, hidden, conflict });
        Ok(())
    }

    fn leaf(
        &mut self,
        sides: &Sides<'_>,
        name: &[u8],
        path: RelPath,
        stat: &Stat,
        before: Option<Stat>,
    ) -> Result<()> {
        if self.baseline.is_settled(&path, stat) {
            return Ok(());
        }
        let after = self.item(Some(sides.upper), name, stat)?;
        let Some(host) = before else {
            let removed = self.is_removed(sides, name, &path, stat)?;
            let conflict = sides.conflict.or(removed.then_some(Conflict::RemovedOnHost));
            return self.push_leaf(What::Added, path, None, after, stat, conflict);
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
            self.leaving.push((path.clone(), sides.conflict));
        }
        let conflict = self.judged(&path, &host).or(sides.conflict);
        self.push_leaf(what, path, Some(before), after, stat, conflict)
    }

    fn push_leaf(
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

    /// Whether the host has removed a file that the sandbox then changed, as far as that can be told:
    /// it was brought there by us, or it was copied from below and something has come to or gone from
    /// that directory of the host since. One that the sandbox has given another name is found later.
    fn is_removed(
        &self,
        sides: &Sides<'_>,
        name: &[u8],
        path: &RelPath,
        stat: &Stat,
    ) -> Result<bool> {
        if self.baseline.was_put(path) {
            return Ok(true);
        }
        // Of a file with several names one may be the host's.
        let Some(host) = sides.host.filter(|_| !sides.hidden && stat.st_nlink == 1) else {
            return Ok(false);
        };
        if !self.baseline.is_touched(sides.path, &host.own_stat()?) {
            return Ok(false);
        }
        let file = sides.upper.file(name).ok().flatten();
        Ok(file.is_some_and(|file| has_mark(file, ORIGIN, None)))
    }

    /// What is on the host and not in the sandbox; what is below it is left for later.
    fn deleted_at(
        &mut self,
        path: RelPath,
        host: &Directory,
        name: &[u8],
        conflict: Option<Conflict>,
    ) -> Result<()> {
        let Some(stat) = host.stat(name)? else { return Ok(()) };
        let before = self.item(Some(host), name, &stat)?;
        let mut conflict = conflict.or(self.judged(&path, &stat));
        if kind(&stat) == FileType::Directory {
            if stat.st_dev == self.device {
                self.leaving.push((path.clone(), conflict));
            } else {
                conflict = Some(Conflict::Mounted);
            }
        }
        self.push(Change { what: What::Deleted, conflict, ..change(path, Some(before), None) })
    }

    /// Why something on the host is not what the sandbox has seen, if it is not. What is put into a
    /// directory or taken out of it is judged by itself.
    fn judged(&self, path: &RelPath, host: &Stat) -> Option<Conflict> {
        match kind(host) {
            FileType::Directory => {
                self.baseline.is_moved(path, host).then_some(Conflict::MovedOnHost)
            }
            _ => (!self.baseline.is_seen(path, host)).then_some(Conflict::ChangedOnHost),
        }
    }

    fn item(&self, directory: Option<&Directory>, name: &[u8], stat: &Stat) -> Result<Item> {
        let target = match (kind(stat), directory) {
            (FileType::Symlink, Some(directory)) => directory.link(name)?,
            _ => None,
        };
        Ok(item(stat, target.map(|target| spelled(&target))))
    }

    fn holds_same(&self, sides: &Sides<'_>, name: &[u8]) -> Result<bool> {
        let host = sides.host.map(|host| host.file(name)).transpose()?.flatten();
        let (Some(upper), Some(host)) = (sides.upper.file(name)?, host) else { return Ok(false) };
        content::same(&upper, &host)
            .map_err(|error| Error::host(format!("cannot read `{}`", spelled(name)), error))
    }

    fn push(&mut self, change: Change) -> Result<()> {
        if self.changes.len() >= MOST {
            return Err(Error::new(Kind::Limit, format!("more than {MOST} changes"))
                .hint("`msb discard` forgets some of them"));
        }
        self.changes.push(change);
        Ok(())
    }
}

/// Flags what git obeys in a directory that has a `HEAD`, on the host or in the sandbox: settings that
/// come in one apply make a repository with the `HEAD` that has come in another.
fn flag_repositories(changes: &mut [Change], upper: &Directory, host: &Directory) -> Result<()> {
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

fn has_head(root: &Directory, directory: Option<&RelPath>) -> Result<bool> {
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
