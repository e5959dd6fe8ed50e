//! Recovery: undoes or finishes an apply that was killed or that failed halfway.

use crate::baseline::{AppliedEntry, Baseline, FileIdentity};
use crate::dir_fd::{DirFd, kind};
use crate::failpoint;
use crate::journal::{Journal, JournalStep, NEXT_BASELINE, UnfinishedApply};
use crate::staging::{StagingDir, set_mode};
use crate::workspace::BASELINE;
use msb_api::RelPath;
use msb_spec::{Error, Result};
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Recovers an unfinished apply of another process. Returns notes for the user.
pub(crate) fn recover(notes: &Path, host: &DirFd) -> Result<Vec<String>> {
    match Journal::find(notes)? {
        None => Ok(Vec::new()),
        Some(UnfinishedApply::Begun(journal)) => {
            let mut baseline = Baseline::read(&notes.join(BASELINE))?;
            let mut notes_for_user = undo(&journal, host, &mut baseline)?;
            close_undone(&baseline, notes)?;
            notes_for_user.push("undid an `msb apply` that was killed halfway".to_owned());
            Ok(notes_for_user)
        }
        Some(UnfinishedApply::Committed(journal)) => {
            finish(&journal, notes, host)?;
            Ok(Vec::new())
        }
    }
}

/// Closes an undone apply. Restored files have a new ctime, which the baseline records.
pub(crate) fn close_undone(baseline: &Baseline, notes: &Path) -> Result<()> {
    let next = notes.join(NEXT_BASELINE);
    baseline.write(&next)?;
    std::fs::rename(next, notes.join(BASELINE))
        .map_err(|error| Error::host("cannot write the baseline of the workspace", error))?;
    Journal::close_undone(notes)
}

/// Finishes a committed apply: removes the staged old files.
pub(crate) fn finish(journal: &Journal, notes: &Path, host: &DirFd) -> Result<()> {
    if let Some(staging) = StagingDir::open(host, &journal.staging)? {
        staging.remove(host)?;
    }
    Journal::close_committed(notes)
}

/// Undoes all steps that were done, the last first. A file that was changed meanwhile stays, and
/// the old one is placed next to it. Returns notes about such files.
pub(crate) fn undo(
    journal: &Journal,
    host: &DirFd,
    baseline: &mut Baseline,
) -> Result<Vec<String>> {
    let mut notes_for_user = Vec::new();
    if let Some(staging) = StagingDir::open(host, &journal.staging)? {
        undo_steps(journal, host, &staging, &mut notes_for_user)?;
        staging.remove(host)?;
    }
    for step in &journal.steps {
        let path = step.path();
        let Some(parent_dir) = host.below(path.parent().as_ref())? else { continue };
        let there = parent_dir.stat(path.name().as_encoded_bytes())?;
        let before = match step {
            JournalStep::Put { before, .. } => before.as_ref(),
            JournalStep::Remove { before, .. } | JournalStep::Mode { before, .. } => Some(before),
        };
        if let (Some(before), Some(there)) = (before, &there)
            && has_same_content(there, before)
        {
            let upper = baseline.applied_entry(path).and_then(|entry| entry.upper);
            baseline
                .record(path.clone(), AppliedEntry { host: Some(FileIdentity::of(there)), upper });
        }
    }
    Ok(notes_for_user)
}

fn undo_steps(
    journal: &Journal,
    host: &DirFd,
    staging: &StagingDir,
    notes_for_user: &mut Vec<String>,
) -> Result<()> {
    for step in journal.steps.iter().rev() {
        failpoint::hit();
        let path = step.path();
        let Some(parent_dir) = host.below(path.parent().as_ref())? else { continue };
        let name = path.name();
        let there = parent_dir.stat(name.as_encoded_bytes())?;
        match step {
            JournalStep::Put { number, ready, before, .. } => {
                let is_ours = there.as_ref().is_some_and(|stat| has_same_content(stat, ready));
                match before {
                    Some(_) if is_ours => exchange_back(staging, *number, &parent_dir, name)?,
                    None if is_ours => {
                        undo_put(staging, *number, &parent_dir, name, there.as_ref())?
                    }
                    Some(before) => {
                        let kept =
                            staging.stat(*number)?.is_some_and(|stat| is_same_inode(&stat, before));
                        if kept {
                            notes_for_user.extend(keep_old_file(
                                staging,
                                *number,
                                &parent_dir,
                                path,
                            )?);
                        }
                    }
                    None => {}
                }
            }
            JournalStep::Remove { number, .. } => {
                if staging.stat(*number)?.is_none() {
                    continue;
                }
                match staging.move_to_host(*number, &parent_dir, name) {
                    Ok(()) => {}
                    Err(Errno::EXIST) => {
                        notes_for_user.extend(keep_old_file(staging, *number, &parent_dir, path)?)
                    }
                    Err(error) => return Err(crate::dir_fd::cannot_read(name, error)),
                }
            }
            JournalStep::Mode { before, from, .. } => {
                if there.is_some() {
                    set_mode(&parent_dir, name, *from, |stat| is_same_inode(stat, before))?;
                }
            }
        }
    }
    Ok(())
}

/// Whether this is the same file with the same content.
fn has_same_content(stat: &Stat, identity: &FileIdentity) -> bool {
    match kind(stat) {
        // Entries of a directory are checked on their own.
        FileType::Directory => is_same_inode(stat, identity),
        _ => identity.is_same_content(stat),
    }
}

/// Whether this is the same inode.
fn is_same_inode(stat: &Stat, identity: &FileIdentity) -> bool {
    (stat.st_dev, stat.st_ino) == (identity.dev, identity.ino)
}

fn exchange_back(
    staging: &StagingDir,
    number: u64,
    parent_dir: &DirFd,
    name: &OsStr,
) -> Result<()> {
    staging
        .exchange(number, parent_dir, name)
        .map_err(|error| crate::dir_fd::cannot_read(name, error))
}

/// Undoes the creation of a file. A directory with new entries stays.
fn undo_put(
    staging: &StagingDir,
    number: u64,
    parent_dir: &DirFd,
    name: &OsStr,
    there: Option<&Stat>,
) -> Result<()> {
    let done = match there.map(kind) {
        Some(FileType::Directory) => {
            match rustix::fs::unlinkat(&parent_dir.0, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
                removed => removed,
            }
        }
        _ => staging.move_from_host(number, parent_dir, name),
    };
    done.map_err(|error| crate::dir_fd::cannot_read(name, error))
}

/// Places the old file next to the one that was changed meanwhile.
fn keep_old_file(
    staging: &StagingDir,
    number: u64,
    parent_dir: &DirFd,
    path: &RelPath,
) -> Result<Option<String>> {
    let mut sibling: OsString = path.name().to_owned();
    sibling.push(".msb-before");
    match staging.move_to_host(number, parent_dir, &sibling) {
        Ok(()) => Ok(Some(format!(
            "`{path}` was changed meanwhile; the old file is in `{path}.msb-before`"
        ))),
        // The name exists or is too long. The file stays in the staging directory, which then
        // cannot be removed and is named in the error.
        Err(error) => Err(crate::dir_fd::cannot_read(path.name(), error)),
    }
}
