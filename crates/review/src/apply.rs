//! Brings changes to the host: all of the chosen ones, or none.
//!
//! Everything new is made ready aside and synced. Then it is written down what will be done, each
//! thing changes places with what is there, and what came back is looked at: if it is not the file
//! that the sandbox saw, all is taken back. At last it is written down that it is done.

use crate::baseline::{Baseline, Identity, Known};
use crate::content;
use crate::fault;
use crate::journal::{Journal, NEXT_BASELINE, Step};
use crate::recover::{close_undone, finish, undo};
use crate::review::{BASELINE, Held, Workspace};
use crate::selection::Chooser;
use crate::staging::{Staging, set_mode};
use crate::tree::{Directory, kind};
use msb_api::RelPath;
use msb_api::{Applied, Change, Conflict, Depth, Item, ItemKind, LeftOut, Selection, What};
use msb_spec::{Error, Kind, Result};
use msb_sys::sparse::{Budget, OverBudget};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Beyond this many, one call that syncs all is quicker than one for each.
const SYNCED_SINGLY: usize = 32;
/// As many as are named in an error.
const NAMED: usize = 10;

impl Workspace {
    /// Brings the chosen changes to the host. With `dry_run` nothing is written, but everything is
    /// checked.
    pub fn apply(&self, selection: &Selection, dry_run: bool) -> Result<Applied> {
        let held = self.hold()?;
        let chooser = Chooser::new(selection)?;
        let changes = held.look(&[], Depth::default())?;
        if let Some(idle) = chooser.idle(&changes).first() {
            return Err(Error::invalid(format!("nothing that was changed fits `{idle}`"))
                .hint("`msb diff` shows what was changed"));
        }
        let (chosen, left_out) = choose(&chooser, changes);
        let notes = held.recovered.clone();
        refuse_conflicts(&chosen, &chooser)?;
        if !dry_run && !chosen.is_empty() {
            let only = selection.only.as_ref();
            Applying { held, chosen: &chosen, chooser: &chooser, only }.run()?;
        }
        Ok(Applied { applied: chosen, left_out, notes })
    }
}

/// Tells the chosen from the others. What a chosen one cannot do without is chosen, too: the new
/// directories it is in, and whatever goes with a directory that it replaces.
fn choose(chooser: &Chooser<'_>, changes: Vec<Change>) -> (Vec<Change>, Vec<(Change, LeftOut)>) {
    let judged: Vec<Option<LeftOut>> =
        changes.iter().map(|change| chooser.left_out(change)).collect();
    let meant = changes.iter().zip(&judged).filter(|(_, left_out)| left_out.is_none());
    let mut parents: BTreeSet<RelPath> = BTreeSet::new();
    let mut replaced: BTreeSet<&RelPath> = BTreeSet::new();
    for (change, _) in meant.filter(|(change, _)| change.what != What::Deleted) {
        let mut parent = change.path.parent();
        while let Some(path) = parent {
            parent = path.parent();
            if !parents.insert(path) {
                break;
            }
        }
        if change.is_replaced() {
            replaced.insert(&change.path);
        }
    }
    let is_needed = |change: &Change| {
        let is_directory =
            change.after.as_ref().is_some_and(|item| item.kind == ItemKind::Directory);
        let mut above = std::iter::successors(change.path.parent(), RelPath::parent);
        (is_directory && change.what != What::Mode && parents.contains(&change.path))
            || (change.what == What::Deleted && above.any(|path| replaced.contains(&path)))
    };
    let needed: Vec<bool> = changes.iter().map(is_needed).collect();
    let mut chosen = Vec::new();
    let mut left_out = Vec::new();
    for ((change, judged), needed) in changes.into_iter().zip(judged).zip(needed) {
        match judged {
            Some(why) if !needed => left_out.push((change, why)),
            _ => chosen.push(change),
        }
    }
    keep_what_is_not_empty(&mut chosen, &mut left_out);
    (chosen, left_out)
}

/// A directory that was deleted stays if something in it does.
fn keep_what_is_not_empty(chosen: &mut Vec<Change>, left_out: &mut Vec<(Change, LeftOut)>) {
    let staying: BTreeSet<RelPath> = left_out
        .iter()
        .filter(|(change, _)| change.what == What::Deleted)
        .flat_map(|(change, _)| std::iter::successors(change.path.parent(), RelPath::parent))
        .collect();
    let stays =
        |change: &mut Change| change.what == What::Deleted && staying.contains(&change.path);
    left_out.extend(chosen.extract_if(.., stays).map(|change| (change, LeftOut::NotIncluded)));
}

/// With a single conflict among the chosen nothing is written.
fn refuse_conflicts(chosen: &[Change], chooser: &Chooser<'_>) -> Result<()> {
    let conflicts: Vec<(&RelPath, Conflict)> = chosen
        .iter()
        .filter_map(|change| change.conflict.map(|conflict| (&change.path, conflict)))
        .filter(|(path, conflict)| !(conflict.can_be_overwritten() && chooser.overwrites(path)))
        .collect();
    if conflicts.is_empty() { Ok(()) } else { Err(conflicting(&conflicts)) }
}

fn conflicting(conflicts: &[(&RelPath, Conflict)]) -> Error {
    let message = match conflicts.len() {
        1 => "1 conflict, nothing was written".to_owned(),
        count => format!("{count} conflicts, nothing was written"),
    };
    let mut error = Error::new(Kind::State, message);
    for (path, conflict) in conflicts.iter().take(NAMED) {
        error = error.cause(format!("`{path}`: {}", conflict.reason()));
    }
    if conflicts.len() > NAMED {
        error = error.cause(format!("and {} more", conflicts.len() - NAMED));
    }
    error.hint("`--exclude` leaves them out, `msb discard` lets the host's win, `--overwrite` the sandbox's")
}

/// One change to a workspace, as it happens.
struct Applying<'a> {
    held: Held<'a>,
    chosen: &'a [Change],
    chooser: &'a Chooser<'a>,
    only: Option<&'a BTreeMap<RelPath, Option<String>>>,
}

impl Applying<'_> {
    fn run(mut self) -> Result<()> {
        let notes = self.held.workspace.notes.clone();
        let mut journal = Journal::new()?;
        // Whoever finds our directory must know whose it is.
        journal.begin(&notes)?;
        let done = self
            .make_ready(&mut journal)
            .and_then(|staging| {
                journal.begin(&notes)?;
                self.perform(&journal, &staging)
            })
            .and_then(|()| self.note_known(&journal))
            .and_then(|()| Journal::commit(&notes));
        if let Err(error) = done {
            // As it was before: what was noted of what was done is not so.
            let undone = Baseline::read(&notes.join(BASELINE)).and_then(|mut baseline| {
                let said = undo(&journal, &self.held.host, &mut baseline)?;
                close_undone(&baseline, &notes)?;
                Ok(said)
            });
            return Err(match undone {
                Ok(said) => said.into_iter().fold(error, Error::cause),
                Err(worse) => worse.under("cannot take back what was begun").cause(error),
            });
        }
        finish(&journal, &notes, &self.held.host)
    }

    /// Makes everything that is new ready, and lists what is to be done with it: what goes, deepest
    /// first, then what comes, from the top, then permissions.
    fn make_ready(&self, journal: &mut Journal) -> Result<Staging> {
        let staging = Staging::make(&self.held.host, &journal.staging)?;
        let mut number = 0;
        let gone = self.chosen.iter().rev().filter(|change| change.what == What::Deleted);
        for change in gone {
            number += 1;
            if let Some(before) = self.present(&change.path)? {
                let path = change.path.clone();
                journal.steps.push(Step::Remove { path, number, before });
            }
        }
        let mut files = 0;
        let mut budget = Budget::default();
        let (mut puts, mut modes) = (Vec::new(), Vec::new());
        for change in self.chosen {
            let Some(after) = &change.after else { continue };
            let path = change.path.clone();
            match change.what {
                What::Added | What::Changed => {
                    number += 1;
                    let before = self.present(&path)?;
                    if before.is_some() != change.before.is_some() {
                        return Err(conflicting(&[(&path, Conflict::ChangedOnHost)]));
                    }
                    self.stage((&staging, &mut budget), number, change, after)?;
                    files += 1;
                    let Some(stat) = staging.stat(number)? else {
                        return Err(Error::host("cannot write to the workspace", Errno::NOENT));
                    };
                    let ready = Identity::of(&stat);
                    puts.push(Step::Put { path, number, ready, before });
                }
                What::Mode => {
                    let (Some(before), Some(was)) = (self.present(&path)?, &change.before) else {
                        return Err(conflicting(&[(&path, Conflict::RemovedOnHost)]));
                    };
                    let (from, to) = (was.mode, after.mode);
                    modes.push(Step::Mode { path, before, from, to });
                }
                What::Deleted | What::Special => {}
            }
        }
        journal.steps.extend(puts.into_iter().chain(modes));
        if files > SYNCED_SINGLY {
            rustix::fs::syncfs(&staging.place.0)
                .map_err(|error| Error::host("cannot sync the workspace", error))?;
        }
        Ok(staging)
    }

    /// What is on the host now, which must be what the sandbox has seen.
    fn present(&self, path: &RelPath) -> Result<Option<Identity>> {
        let host = &self.held.host;
        let Some(place) = host.below(path.parent().as_ref())? else { return Ok(None) };
        let Some(stat) = place.stat(path.name().as_encoded_bytes())? else { return Ok(None) };
        let baseline = &self.held.baseline;
        let is_other = match kind(&stat) {
            FileType::Directory => baseline.is_moved(path, &stat),
            _ => !baseline.is_seen(path, &stat) && !self.chooser.overwrites(path),
        };
        if is_other {
            return Err(conflicting(&[(path, Conflict::ChangedOnHost)]));
        }
        if stat.st_dev != host.own_stat()?.st_dev {
            return Err(conflicting(&[(path, Conflict::Mounted)]));
        }
        Ok(Some(Identity::of(&stat)))
    }

    fn stage(
        &self,
        (staging, budget): (&Staging, &mut Budget),
        number: u64,
        change: &Change,
        after: &Item,
    ) -> Result<()> {
        let path = &change.path;
        let changed = || {
            Error::new(Kind::State, format!("changed while it was read: `{path}`"))
                .hint("stop or pause what runs in the sandbox, and look at it again")
        };
        let upper = self.held.upper()?.ok_or_else(changed)?;
        let place = upper.below(path.parent().as_ref())?.ok_or_else(changed)?;
        let name = path.name().as_encoded_bytes();
        let mode = match after.kind {
            ItemKind::File => {
                let from = place.file(name)?.ok_or_else(changed)?;
                let to = staging.file(number)?;
                let looked_at = self.only.and_then(|only| only.get(path)?.as_ref());
                let (digest, count) = content::copy(&from, &to, budget, looked_at.is_some())
                    .map_err(|error| self.full(path, error))?;
                if count != after.size || looked_at != digest.as_ref() {
                    return Err(changed());
                }
                if self.chosen.len() <= SYNCED_SINGLY {
                    to.sync_all().map_err(|error| self.full(path, error))?;
                }
                Some(after.mode)
            }
            ItemKind::Directory => {
                staging.directory(number)?;
                Some(after.mode)
            }
            ItemKind::Symlink => {
                let target = place.link(name)?.ok_or_else(changed)?;
                if Some(msb_api::spelled(&target)) != after.target {
                    return Err(changed());
                }
                staging.link(number, &target)?;
                None
            }
            ItemKind::Special => return Err(changed()),
        };
        staging.dress(number, mode, self.owner(path)?)
    }

    /// Who a new file is to belong to: whoever has the one that it replaces, or the workspace.
    fn owner(&self, path: &RelPath) -> Result<(u32, u32)> {
        let host = &self.held.host;
        let place = host.below(path.parent().as_ref())?;
        let stat: Option<Stat> = match place {
            Some(place) => place.stat(path.name().as_encoded_bytes())?,
            None => None,
        };
        let stat = match stat {
            Some(stat) => stat,
            None => host.own_stat()?,
        };
        Ok((stat.st_uid, stat.st_gid))
    }

    fn full(&self, path: &RelPath, error: io::Error) -> Error {
        let kind = error.kind();
        let message = format!("cannot copy `{path}`");
        let error = match OverBudget::of(&error) {
            Some(why) => Error::new(Kind::Limit, message).cause(why),
            None => Error::host(message, error),
        };
        match kind {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => error.hint(format!(
                "nothing was changed; free some space where `{}` is",
                self.held.workspace.host.display()
            )),
            io::ErrorKind::FileTooLarge => {
                error.hint("nothing was changed; `--exclude` leaves it out")
            }
            _ => error,
        }
    }

    /// Does what is written down.
    fn perform(&self, journal: &Journal, staging: &Staging) -> Result<()> {
        let host = &self.held.host;
        let mut touched: BTreeSet<Option<RelPath>> = BTreeSet::new();
        for step in &journal.steps {
            let path = step.path();
            let moved = || conflicting(&[(path, Conflict::MovedOnHost)]);
            let place = host.below(path.parent().as_ref())?.ok_or_else(moved)?;
            perform_step(step, staging, &place)?;
            fault::point();
            touched.insert(path.parent());
        }
        let about = |error: Errno| Error::host("cannot sync the workspace", error);
        if touched.len() > SYNCED_SINGLY {
            return rustix::fs::syncfs(&host.0).map_err(about);
        }
        for path in touched {
            if let Some(directory) = host.below(path.as_ref())? {
                rustix::fs::fsync(&directory.0).map_err(about)?;
            }
        }
        Ok(())
    }

    /// Writes down what is on the host now, so that it is known again.
    fn note_known(&mut self, journal: &Journal) -> Result<()> {
        let host = &self.held.host;
        let upper = self.held.upper()?;
        let mut parents: BTreeSet<RelPath> = BTreeSet::new();
        let mut known: BTreeMap<RelPath, Known> = BTreeMap::new();
        let identity = |root: &Directory, path: &RelPath| -> Result<Option<Identity>> {
            let Some(place) = root.below(path.parent().as_ref())? else { return Ok(None) };
            Ok(place.stat(path.name().as_encoded_bytes())?.map(|stat| Identity::of(&stat)))
        };
        for step in &journal.steps {
            let path = step.path();
            let upper = match (&upper, step) {
                (Some(upper), Step::Put { .. } | Step::Mode { .. }) => identity(upper, path)?,
                _ => None,
            };
            known.insert(path.clone(), Known { host: identity(host, path)?, upper });
            parents.extend(path.parent());
        }
        for path in parents {
            // Made or known already; others only had something put into them by us.
            if let Entry::Vacant(place) = known.entry(path) {
                let path = place.key();
                let upper = self.held.baseline.known(path).and_then(|known| known.upper);
                let host = identity(host, path)?;
                place.insert(Known { host, upper });
            }
        }
        for (path, known) in known {
            self.held.baseline.remember(path, known);
        }
        self.held.baseline.write(&self.held.workspace.notes.join(NEXT_BASELINE))
    }
}

/// One step. What came back in exchange must be what was there when it was decided.
fn perform_step(step: &Step, staging: &Staging, place: &Directory) -> Result<()> {
    let path = step.path();
    let name = path.name();
    let about = |error: Errno| {
        let error = Error::host(format!("cannot write `{path}`"), error);
        error.hint("nothing was changed; the file system must let files change places (ext4, xfs, btrfs, tmpfs)")
    };
    let other = || conflicting(&[(path, Conflict::ChangedOnHost)]);
    let is_what_was = |number: u64, before: &Identity| -> Result<bool> {
        let Some(stat) = staging.stat(number)? else { return Ok(false) };
        let same = match kind(&stat) {
            // What was in it was taken out before, which has changed its times.
            FileType::Directory => (stat.st_dev, stat.st_ino) == (before.dev, before.ino),
            _ => before.is_same_content(&stat),
        };
        Ok(same && is_empty(staging, number, &stat)?)
    };
    match step {
        Step::Put { number, before: None, .. } => match staging.bring(*number, place, name) {
            Err(Errno::EXIST) => Err(other()),
            done => done.map_err(about),
        },
        Step::Put { number, before: Some(before), .. } => {
            match staging.exchange(*number, place, name) {
                Err(Errno::NOENT) => return Err(other()),
                done => done.map_err(about)?,
            }
            if is_what_was(*number, before)? { Ok(()) } else { Err(other()) }
        }
        Step::Remove { number, before, .. } => {
            match staging.fetch(*number, place, name) {
                Err(Errno::NOENT) => return Err(other()),
                done => done.map_err(about)?,
            }
            if is_what_was(*number, before)? { Ok(()) } else { Err(other()) }
        }
        Step::Mode { before, to, .. } => {
            let same = |stat: &Stat| (stat.st_dev, stat.st_ino) == (before.dev, before.ino);
            if set_mode(place, name, *to, same)? { Ok(()) } else { Err(other()) }
        }
    }
}

/// Whether what was taken away is no directory with something in it.
fn is_empty(staging: &Staging, number: u64, stat: &Stat) -> Result<bool> {
    if kind(stat) != FileType::Directory {
        return Ok(true);
    }
    let directory = staging.place.directory(number.to_string().as_bytes())?;
    directory.map_or(Ok(true), |directory| directory.names().map(|names| names.is_empty()))
}
