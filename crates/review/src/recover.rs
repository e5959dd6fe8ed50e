//! Undoes or finishes what somebody began who died, or who was refused half way.

use crate::baseline::{Baseline, Identity, Known};
use crate::fault;
use crate::journal::{Found, Journal, NEXT_BASELINE, Step};
use crate::review::BASELINE;
use crate::staging::{Staging, set_mode};
use crate::tree::{Directory, kind};
use msb_api::RelPath;
use msb_spec::{Error, Result};
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Looks whether another has died half way, and leaves either nothing or all of what it did.
/// Says what it found.
pub(crate) fn recover(notes: &Path, host: &Directory) -> Result<Vec<String>> {
    match Journal::find(notes)? {
        None => Ok(Vec::new()),
        Some(Found::Begun(journal)) => {
            let mut baseline = Baseline::read(&notes.join(BASELINE))?;
            let mut said = undo(&journal, host, &mut baseline)?;
            close_undone(&baseline, notes)?;
            said.push("undid an `msb apply` that was killed half way".to_owned());
            Ok(said)
        }
        Some(Found::Committed(journal)) => {
            finish(&journal, notes, host)?;
            Ok(Vec::new())
        }
    }
}

/// Nothing was done. What was put back was touched by us, and is known again.
pub(crate) fn close_undone(baseline: &Baseline, notes: &Path) -> Result<()> {
    let next = notes.join(NEXT_BASELINE);
    baseline.write(&next)?;
    std::fs::rename(next, notes.join(BASELINE))
        .map_err(|error| Error::host("cannot note what was seen of the workspace", error))?;
    Journal::close_undone(notes)
}

/// Everything is in its place: what was there before goes.
pub(crate) fn finish(journal: &Journal, notes: &Path, host: &Directory) -> Result<()> {
    if let Some(staging) = Staging::open(host, &journal.staging)? {
        staging.remove(host)?;
    }
    Journal::close_committed(notes)
}

/// Takes back every step that was done, the last first. What somebody else has changed meanwhile is
/// theirs: it stays, and what we had taken away lies beside it. Says so.
pub(crate) fn undo(
    journal: &Journal,
    host: &Directory,
    baseline: &mut Baseline,
) -> Result<Vec<String>> {
    let mut said = Vec::new();
    if let Some(staging) = Staging::open(host, &journal.staging)? {
        take_back_steps(journal, host, &staging, &mut said)?;
        staging.remove(host)?;
    }
    for step in &journal.steps {
        let path = step.path();
        let Some(place) = host.below(path.parent().as_ref())? else { continue };
        let there = place.stat(path.name().as_encoded_bytes())?;
        let before = match step {
            Step::Put { before, .. } => before.as_ref(),
            Step::Remove { before, .. } | Step::Mode { before, .. } => Some(before),
        };
        if let (Some(before), Some(there)) = (before, &there)
            && is_untouched(there, before)
        {
            let upper = baseline.known(path).and_then(|known| known.upper);
            baseline.remember(path.clone(), Known { host: Some(Identity::of(there)), upper });
        }
    }
    Ok(said)
}

fn take_back_steps(
    journal: &Journal,
    host: &Directory,
    staging: &Staging,
    said: &mut Vec<String>,
) -> Result<()> {
    for step in journal.steps.iter().rev() {
        fault::point();
        let path = step.path();
        let Some(place) = host.below(path.parent().as_ref())? else { continue };
        let name = path.name();
        let there = place.stat(name.as_encoded_bytes())?;
        match step {
            Step::Put { number, ready, before, .. } => {
                let is_ours = there.as_ref().is_some_and(|stat| is_untouched(stat, ready));
                match before {
                    Some(_) if is_ours => exchange_back(staging, *number, &place, name)?,
                    None if is_ours => take_back(staging, *number, &place, name, there.as_ref())?,
                    Some(before) => {
                        let kept = staging.stat(*number)?.is_some_and(|stat| is(&stat, before));
                        if kept {
                            said.extend(rescue(staging, *number, &place, path)?);
                        }
                    }
                    None => {}
                }
            }
            Step::Remove { number, .. } => {
                if staging.stat(*number)?.is_none() {
                    continue;
                }
                match staging.bring(*number, &place, name) {
                    Ok(()) => {}
                    Err(Errno::EXIST) => said.extend(rescue(staging, *number, &place, path)?),
                    Err(error) => return Err(crate::tree::cannot_read(name, error)),
                }
            }
            Step::Mode { before, from, .. } => {
                if there.is_some() {
                    set_mode(&place, name, *from, |stat| is(stat, before))?;
                }
            }
        }
    }
    Ok(())
}

/// Whether this is that file, and nobody has written to it.
fn is_untouched(stat: &Stat, identity: &Identity) -> bool {
    match kind(stat) {
        // What is put into a directory is looked at by itself.
        FileType::Directory => is(stat, identity),
        _ => identity.is_same_content(stat),
    }
}

/// Whether this is that file, whatever was done to it.
fn is(stat: &Stat, identity: &Identity) -> bool {
    (stat.st_dev, stat.st_ino) == (identity.dev, identity.ino)
}

fn exchange_back(staging: &Staging, number: u64, place: &Directory, name: &OsStr) -> Result<()> {
    staging.exchange(number, place, name).map_err(|error| crate::tree::cannot_read(name, error))
}

/// Takes back what was new. A directory that somebody has put something into is theirs.
fn take_back(
    staging: &Staging,
    number: u64,
    place: &Directory,
    name: &OsStr,
    there: Option<&Stat>,
) -> Result<()> {
    let done = match there.map(kind) {
        Some(FileType::Directory) => {
            match rustix::fs::unlinkat(&place.0, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
                removed => removed,
            }
        }
        _ => staging.fetch(number, place, name),
    };
    done.map_err(|error| crate::tree::cannot_read(name, error))
}

/// Lays what we had taken away beside what is in its place by now.
fn rescue(
    staging: &Staging,
    number: u64,
    place: &Directory,
    path: &RelPath,
) -> Result<Option<String>> {
    let mut beside: OsString = path.name().to_owned();
    beside.push(".msb-before");
    match staging.bring(number, place, &beside) {
        Ok(()) => Ok(Some(format!(
            "`{path}` was changed meanwhile; what was there before is in `{path}.msb-before`"
        ))),
        // There is one already, or the name is too long: it stays in the directory of ours, which
        // can then not be removed and is named in the error.
        Err(error) => Err(crate::tree::cannot_read(path.name(), error)),
    }
}
