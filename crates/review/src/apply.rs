//! Applies selected changes to the host directory: all of them, or none.
//!
//! New files are staged in a directory of the workspace and synced. The journal is written, then
//! each file is exchanged with the one on the host by `renameat2(2)`. If an exchanged file is not
//! the one that the sandbox saw, all steps are undone. Renaming the journal is the commit point.

use crate::baseline::{AppliedEntry, Baseline, FileIdentity};
use crate::content;
use crate::dir_fd::{DirFd, escape_bytes, kind};
use crate::failpoint;
use crate::journal::{Journal, JournalStep, NEXT_BASELINE};
use crate::recover::{close_undone, finish, undo};
use crate::selection::ChangeFilter;
use crate::staging::{StagingDir, set_mode};
use crate::workspace::{BASELINE, LockedWorkspace, Workspace};
use msb_api::RelPath;
use msb_api::{ApplyReport, Change, Conflict, Depth, Item, ItemKind, LeftOut, Selection, What};
use msb_spec::{Error, Kind, Result};
use msb_sys::sparse::{Budget, OverBudget};
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// Above this number of files, one syncfs(2) is faster than fsync(2) for each.
const FSYNC_LIMIT: usize = 32;
/// Most conflicts that an error lists.
const LISTED_CONFLICTS: usize = 10;

impl Workspace {
    /// Applies the selected changes. With `dry_run` everything is checked and nothing is written.
    pub fn apply(&self, selection: &Selection, dry_run: bool) -> Result<ApplyReport> {
        let locked = self.lock()?;
        let filter = ChangeFilter::new(selection)?;
        let changes = locked.changes(&[], Depth::default())?;
        if let Some(unmatched) = filter.unmatched(&changes).first() {
            return Err(Error::invalid(format!("no change matches `{unmatched}`"))
                .hint("`msb diff` lists the changes"));
        }
        let (chosen, left_out) = choose(&filter, changes);
        let notes = locked.recovered.clone();
        refuse_conflicts(&chosen, &filter)?;
        if !dry_run && !chosen.is_empty() {
            let only = selection.only.as_ref();
            ApplyRun { locked, chosen: &chosen, filter: &filter, only }.run()?;
        }
        Ok(ApplyReport { applied: chosen, left_out, notes })
    }
}

/// Splits changes into selected ones and others. Also selects what a selected change needs: new
/// parent directories, and deletions inside of a directory that it replaces.
fn choose(
    filter: &ChangeFilter<'_>,
    changes: Vec<Change>,
) -> (Vec<Change>, Vec<(Change, LeftOut)>) {
    let reasons: Vec<Option<LeftOut>> =
        changes.iter().map(|change| filter.left_out(change)).collect();
    let meant = changes.iter().zip(&reasons).filter(|(_, left_out)| left_out.is_none());
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
    for ((change, reasons), needed) in changes.into_iter().zip(reasons).zip(needed) {
        match reasons {
            Some(why) if !needed => left_out.push((change, why)),
            _ => chosen.push(change),
        }
    }
    keep_non_empty_dirs(&mut chosen, &mut left_out);
    (chosen, left_out)
}

/// A deleted directory stays if something in it stays.
fn keep_non_empty_dirs(chosen: &mut Vec<Change>, left_out: &mut Vec<(Change, LeftOut)>) {
    let staying: BTreeSet<RelPath> = left_out
        .iter()
        .filter(|(change, _)| change.what == What::Deleted)
        .flat_map(|(change, _)| std::iter::successors(change.path.parent(), RelPath::parent))
        .collect();
    let stays =
        |change: &mut Change| change.what == What::Deleted && staying.contains(&change.path);
    left_out.extend(chosen.extract_if(.., stays).map(|change| (change, LeftOut::NotIncluded)));
}

/// Fails if a selected change has a conflict.
fn refuse_conflicts(chosen: &[Change], filter: &ChangeFilter<'_>) -> Result<()> {
    let conflicts: Vec<(&RelPath, Conflict)> = chosen
        .iter()
        .filter_map(|change| change.conflict.map(|conflict| (&change.path, conflict)))
        .filter(|(path, conflict)| !(conflict.can_be_overwritten() && filter.overwrites(path)))
        .collect();
    if conflicts.is_empty() { Ok(()) } else { Err(conflict_error(&conflicts)) }
}

fn conflict_error(conflicts: &[(&RelPath, Conflict)]) -> Error {
    let message = match conflicts.len() {
        1 => "1 conflict, nothing was written".to_owned(),
        count => format!("{count} conflicts, nothing was written"),
    };
    let mut error = Error::new(Kind::State, message);
    for (path, conflict) in conflicts.iter().take(LISTED_CONFLICTS) {
        error = error.cause(format!("`{path}`: {}", conflict.reason()));
    }
    if conflicts.len() > LISTED_CONFLICTS {
        error = error.cause(format!("and {} more", conflicts.len() - LISTED_CONFLICTS));
    }
    error.hint(
        "`--exclude` skips them, `msb discard` keeps the host's files, `--overwrite` the sandbox's",
    )
}

/// One run of `apply`.
struct ApplyRun<'a> {
    locked: LockedWorkspace<'a>,
    chosen: &'a [Change],
    filter: &'a ChangeFilter<'a>,
    only: Option<&'a BTreeMap<RelPath, Option<String>>>,
}

impl ApplyRun<'_> {
    fn run(mut self) -> Result<()> {
        let notes = self.locked.workspace.notes.clone();
        let mut journal = Journal::new()?;
        // The journal must name the staging directory before that exists, so that recovery can
        // remove it.
        journal.begin(&notes)?;
        let done = self
            .stage_all(&mut journal)
            .and_then(|staging| {
                journal.begin(&notes)?;
                self.run_steps(&journal, &staging)
            })
            .and_then(|()| self.write_next_baseline(&journal))
            .and_then(|()| Journal::commit(&notes));
        if let Err(error) = done {
            // Undo restores the old state, so the old baseline is used.
            let undone = Baseline::read(&notes.join(BASELINE)).and_then(|mut baseline| {
                let said = undo(&journal, &self.locked.host, &mut baseline)?;
                close_undone(&baseline, &notes)?;
                Ok(said)
            });
            return Err(match undone {
                Ok(said) => said.into_iter().fold(error, Error::cause),
                Err(worse) => worse.under("cannot undo an incomplete apply").cause(error),
            });
        }
        finish(&journal, &notes, &self.locked.host)
    }

    /// Stages all new files and fills the journal: deletions bottom up, then new files top down,
    /// then modes.
    fn stage_all(&self, journal: &mut Journal) -> Result<StagingDir> {
        let staging = StagingDir::make(&self.locked.host, &journal.staging)?;
        let mut number = 0;
        let gone = self.chosen.iter().rev().filter(|change| change.what == What::Deleted);
        for change in gone {
            number += 1;
            if let Some(before) = self.host_identity(&change.path)? {
                let path = change.path.clone();
                journal.steps.push(JournalStep::Remove { path, number, before });
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
                    let before = self.host_identity(&path)?;
                    if before.is_some() != change.before.is_some() {
                        return Err(conflict_error(&[(&path, Conflict::ChangedOnHost)]));
                    }
                    self.stage((&staging, &mut budget), number, change, after)?;
                    files += 1;
                    let Some(stat) = staging.stat(number)? else {
                        return Err(Error::host("cannot write to the workspace", Errno::NOENT));
                    };
                    let ready = FileIdentity::of(&stat);
                    puts.push(JournalStep::Put { path, number, ready, before });
                }
                What::Mode => {
                    let (Some(before), Some(was)) = (self.host_identity(&path)?, &change.before)
                    else {
                        return Err(conflict_error(&[(&path, Conflict::RemovedOnHost)]));
                    };
                    let (from, to) = (was.mode, after.mode);
                    modes.push(JournalStep::Mode { path, before, from, to });
                }
                What::Deleted | What::Special => {}
            }
        }
        journal.steps.extend(puts.into_iter().chain(modes));
        if files > FSYNC_LIMIT {
            rustix::fs::syncfs(&staging.dir.0)
                .map_err(|error| Error::host("cannot sync the workspace", error))?;
        }
        Ok(staging)
    }

    /// Identity of the file on the host, which must be the one that the sandbox saw.
    fn host_identity(&self, path: &RelPath) -> Result<Option<FileIdentity>> {
        let host = &self.locked.host;
        let Some(parent_dir) = host.below(path.parent().as_ref())? else { return Ok(None) };
        let Some(stat) = parent_dir.stat(path.name().as_encoded_bytes())? else { return Ok(None) };
        let baseline = &self.locked.baseline;
        let is_other = match kind(&stat) {
            FileType::Directory => baseline.is_moved(path, &stat),
            _ => !baseline.is_as_seen(path, &stat) && !self.filter.overwrites(path),
        };
        if is_other {
            return Err(conflict_error(&[(path, Conflict::ChangedOnHost)]));
        }
        if stat.st_dev != host.own_stat()?.st_dev {
            return Err(conflict_error(&[(path, Conflict::Mounted)]));
        }
        Ok(Some(FileIdentity::of(&stat)))
    }

    fn stage(
        &self,
        (staging, budget): (&StagingDir, &mut Budget),
        number: u64,
        change: &Change,
        after: &Item,
    ) -> Result<()> {
        let path = &change.path;
        let changed = || {
            Error::new(Kind::State, format!("changed while it was read: `{path}`"))
                .hint("stop or pause the processes in the sandbox, and run `msb diff` again")
        };
        let upper = self.locked.upper()?.ok_or_else(changed)?;
        let parent_dir = upper.below(path.parent().as_ref())?.ok_or_else(changed)?;
        let name = path.name().as_encoded_bytes();
        let mode = match after.kind {
            ItemKind::File => {
                let from = parent_dir.file(name)?.ok_or_else(changed)?;
                let to = staging.file(number)?;
                let looked_at = self.only.and_then(|only| only.get(path)?.as_ref());
                let (digest, count) = content::copy(&from, &to, budget, looked_at.is_some())
                    .map_err(|error| self.copy_error(path, error))?;
                if count != after.size || looked_at != digest.as_ref() {
                    return Err(changed());
                }
                if self.chosen.len() <= FSYNC_LIMIT {
                    to.sync_all().map_err(|error| self.copy_error(path, error))?;
                }
                Some(after.mode)
            }
            ItemKind::Directory => {
                staging.directory(number)?;
                Some(after.mode)
            }
            ItemKind::Symlink => {
                let target = parent_dir.link(name)?.ok_or_else(changed)?;
                if Some(escape_bytes(&target)) != after.target {
                    return Err(changed());
                }
                staging.link(number, &target)?;
                None
            }
            ItemKind::Special => return Err(changed()),
        };
        staging.set_metadata(number, mode, self.owner(path)?)
    }

    /// Owner of a new file: that of the file it replaces, or of the workspace.
    fn owner(&self, path: &RelPath) -> Result<(u32, u32)> {
        let host = &self.locked.host;
        let parent_dir = host.below(path.parent().as_ref())?;
        let stat: Option<Stat> = match parent_dir {
            Some(parent_dir) => parent_dir.stat(path.name().as_encoded_bytes())?,
            None => None,
        };
        let stat = match stat {
            Some(stat) => stat,
            None => host.own_stat()?,
        };
        Ok((stat.st_uid, stat.st_gid))
    }

    fn copy_error(&self, path: &RelPath, error: io::Error) -> Error {
        let kind = error.kind();
        let message = format!("cannot copy `{path}`");
        let error = match OverBudget::of(&error) {
            Some(why) => Error::new(Kind::Limit, message).cause(why),
            None => Error::host(message, error),
        };
        match kind {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => error.hint(format!(
                "nothing was changed; free some space on the disk of `{}`",
                self.locked.workspace.host.display()
            )),
            io::ErrorKind::FileTooLarge => error.hint("nothing was changed; `--exclude` skips it"),
            _ => error,
        }
    }

    /// Runs the steps of the journal.
    fn run_steps(&self, journal: &Journal, staging: &StagingDir) -> Result<()> {
        let host = &self.locked.host;
        let mut touched: BTreeSet<Option<RelPath>> = BTreeSet::new();
        for step in &journal.steps {
            let path = step.path();
            let moved = || conflict_error(&[(path, Conflict::MovedOnHost)]);
            let parent_dir = host.below(path.parent().as_ref())?.ok_or_else(moved)?;
            run_step(step, staging, &parent_dir)?;
            failpoint::hit();
            touched.insert(path.parent());
        }
        let about = |error: Errno| Error::host("cannot sync the workspace", error);
        if touched.len() > FSYNC_LIMIT {
            return rustix::fs::syncfs(&host.0).map_err(about);
        }
        for path in touched {
            if let Some(directory) = host.below(path.as_ref())? {
                rustix::fs::fsync(&directory.0).map_err(about)?;
            }
        }
        Ok(())
    }

    /// Writes the next baseline with the new state of the host.
    fn write_next_baseline(&mut self, journal: &Journal) -> Result<()> {
        let host = &self.locked.host;
        let upper = self.locked.upper()?;
        let mut parents: BTreeSet<RelPath> = BTreeSet::new();
        let mut known: BTreeMap<RelPath, AppliedEntry> = BTreeMap::new();
        let identity = |root: &DirFd, path: &RelPath| -> Result<Option<FileIdentity>> {
            let Some(parent_dir) = root.below(path.parent().as_ref())? else { return Ok(None) };
            Ok(parent_dir.stat(path.name().as_encoded_bytes())?.map(|stat| FileIdentity::of(&stat)))
        };
        for step in &journal.steps {
            let path = step.path();
            let upper = match (&upper, step) {
                (Some(upper), JournalStep::Put { .. } | JournalStep::Mode { .. }) => {
                    identity(upper, path)?
                }
                _ => None,
            };
            known.insert(path.clone(), AppliedEntry { host: identity(host, path)?, upper });
            parents.extend(path.parent());
        }
        for path in parents {
            // Directories with a step are in the map already. For others only entries have changed.
            if let Entry::Vacant(slot) = known.entry(path) {
                let path = slot.key();
                let upper = self.locked.baseline.applied_entry(path).and_then(|known| known.upper);
                let host = identity(host, path)?;
                slot.insert(AppliedEntry { host, upper });
            }
        }
        for (path, known) in known {
            self.locked.baseline.record(path, known);
        }
        self.locked.baseline.write(&self.locked.workspace.notes.join(NEXT_BASELINE))
    }
}

/// Runs one step. The exchanged file must be the one that was checked before.
fn run_step(step: &JournalStep, staging: &StagingDir, parent_dir: &DirFd) -> Result<()> {
    let path = step.path();
    let name = path.name();
    let about = |error: Errno| {
        let error = Error::host(format!("cannot write `{path}`"), error);
        error.hint(
            "nothing was changed; the file system must support RENAME_EXCHANGE (ext4, xfs, \
             btrfs, tmpfs)",
        )
    };
    let other = || conflict_error(&[(path, Conflict::ChangedOnHost)]);
    let is_what_was = |number: u64, before: &FileIdentity| -> Result<bool> {
        let Some(stat) = staging.stat(number)? else { return Ok(false) };
        let same = match kind(&stat) {
            // Its entries were moved out before, which has changed its times.
            FileType::Directory => (stat.st_dev, stat.st_ino) == (before.dev, before.ino),
            _ => before.is_same_content(&stat),
        };
        Ok(same && is_empty(staging, number, &stat)?)
    };
    match step {
        JournalStep::Put { number, before: None, .. } => {
            match staging.move_to_host(*number, parent_dir, name) {
                Err(Errno::EXIST) => Err(other()),
                done => done.map_err(about),
            }
        }
        JournalStep::Put { number, before: Some(before), .. } => {
            match staging.exchange(*number, parent_dir, name) {
                Err(Errno::NOENT) => return Err(other()),
                done => done.map_err(about)?,
            }
            if is_what_was(*number, before)? { Ok(()) } else { Err(other()) }
        }
        JournalStep::Remove { number, before, .. } => {
            match staging.move_from_host(*number, parent_dir, name) {
                Err(Errno::NOENT) => return Err(other()),
                done => done.map_err(about)?,
            }
            if is_what_was(*number, before)? { Ok(()) } else { Err(other()) }
        }
        JournalStep::Mode { before, to, .. } => {
            let same = |stat: &Stat| (stat.st_dev, stat.st_ino) == (before.dev, before.ino);
            if set_mode(parent_dir, name, *to, same)? { Ok(()) } else { Err(other()) }
        }
    }
}

/// Whether a removed file is not a directory with entries.
fn is_empty(staging: &StagingDir, number: u64, stat: &Stat) -> Result<bool> {
    if kind(stat) != FileType::Directory {
        return Ok(true);
    }
    let directory = staging.dir.directory(number.to_string().as_bytes())?;
    directory.map_or(Ok(true), |directory| directory.names().map(|names| names.is_empty()))
}
