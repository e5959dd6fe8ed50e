//! One workspace that is looked at: where its parts are, and what was changed in it.

use crate::baseline::Baseline;
use crate::ignored::Ignored;
use crate::tree::Directory;
use crate::{content, patch, walk};
use msb_api::RelPath;
use msb_api::{Change, Conflict, Depth, ItemKind, What};
use msb_spec::{Error, Kind, PlannedWorkspace, Result};
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Texts longer than this are compared as bytes: nobody reads that much of one file.
const LONGEST_TEXT: u64 = 4 << 20;
/// What all differences together may take.
const MOST_TEXT: usize = 64 << 20;
/// How much is hashed to find out what was renamed.
const MOST_HASHED: u64 = 1 << 30;

/// Where the parts of a workspace are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// The host's directory.
    pub host: PathBuf,
    /// Where overlayfs writes what the sandbox changes.
    pub changes: PathBuf,
    /// What is known of the host's directory, and what is being done to it.
    pub notes: PathBuf,
}

/// A review of a few thousand files takes a second.
const OTHERS_LIMIT: Duration = Duration::from_secs(5);

/// The file that has the [`Baseline`].
pub(crate) const BASELINE: &str = "baseline.json";
const LOCK: &str = "lock";

impl Workspace {
    /// Makes what a new sandbox's workspace needs. Its host's directory is about to be shown.
    pub fn begin(&self) -> Result<()> {
        let about = |error| Error::host("cannot make a place for the changes", error);
        fs::DirBuilder::new().mode(0o700).create(&self.notes).map_err(about)?;
        Baseline::take(&self.host)?.write(&self.notes.join(BASELINE))
    }

    /// Gives a copy of the changes, whose host's directory is the same, what is known of that.
    pub fn carry(&self, clone: &Self) -> Result<()> {
        let held = self.hold()?;
        let about = |error| Error::host("cannot make a place for the changes", error);
        fs::DirBuilder::new().mode(0o700).create(&clone.notes).map_err(about)?;
        let copied = Directory::open(&clone.changes)?.directory(PlannedWorkspace::UPPER.as_bytes());
        let mut baseline = held.baseline.clone();
        if let (Some(upper), Some(copied)) = (held.upper()?, copied?) {
            baseline.carry(|path| Ok((found(&upper, path)?, found(&copied, path)?)))?;
        }
        baseline.write(&clone.notes.join(BASELINE))
    }

    /// What the sandbox has changed, below these paths or at all. What was left half done by
    /// somebody who died is undone or finished first.
    pub fn diff(&self, below: &[RelPath], depth: Depth) -> Result<Vec<Change>> {
        let held = self.hold()?;
        held.look(below, depth)
    }

    /// Finishes or undoes what somebody has left half done, if there is such a thing. Says what it
    /// found.
    pub fn recover(&self) -> Result<Vec<String>> {
        if !crate::journal::Journal::is_left(&self.notes) {
            return Ok(Vec::new());
        }
        self.hold().map(|held| held.recovered)
    }

    /// Takes the workspace for itself, and finishes or undoes what another has left.
    pub(crate) fn hold(&self) -> Result<Held<'_>> {
        let about = |error| Error::host("cannot take hold of the workspace", error);
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.notes.join(LOCK))
            .map_err(about)?;
        let since = Instant::now();
        while !msb_sys::lock::try_lock(&lock).map_err(about)? {
            if since.elapsed() > OTHERS_LIMIT {
                return Err(Error::new(Kind::State, "somebody else looks at this workspace")
                    .hint("try again when `msb diff`, `apply` or `discard` has ended there"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let host = Directory::open(&self.host)?;
        let recovered = crate::recover::recover(&self.notes, &host)?;
        let baseline = Baseline::read(&self.notes.join(BASELINE))?;
        Ok(Held { workspace: self, host, baseline, recovered, _lock: lock })
    }
}

/// A workspace that nobody else looks at.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) host: Directory,
    pub(crate) baseline: Baseline,
    /// What was found left behind.
    pub(crate) recovered: Vec<String>,
    _lock: File,
}

impl Held<'_> {
    /// Where overlayfs writes; none if nothing was ever shown.
    pub(crate) fn upper(&self) -> Result<Option<Directory>> {
        let changes = Directory::open(&self.workspace.changes)?;
        changes.directory(PlannedWorkspace::UPPER.as_bytes())
    }

    pub(crate) fn look(&self, below: &[RelPath], depth: Depth) -> Result<Vec<Change>> {
        self.baseline.check_root(&self.host, &self.workspace.host)?;
        let Some(upper) = self.upper()? else { return Ok(Vec::new()) };
        let mut changes = walk::changes(&self.baseline, &upper, &self.host)?;
        if !below.is_empty() {
            let meant = |change: &Change| below.iter().any(|path| change.path.is_within(path));
            changes.retain(meant);
        }
        let mut ignored = Ignored::of(&self.host);
        for change in &mut changes {
            let item = change.after.as_ref().or(change.before.as_ref());
            let is_directory = item.is_some_and(|item| item.kind == ItemKind::Directory);
            change.ignored = ignored.has(&change.path, is_directory)?;
        }
        let holes = Cell::new(content::HASHED_HOLES);
        let sides = Sides { upper: &upper, host: &self.host, holes };
        if depth.digests {
            sides.add_digests(&mut changes)?;
        }
        sides.find_renames(&mut changes)?;
        if depth.patches {
            sides.add_patches(&mut changes)?;
        }
        Ok(changes)
    }
}

/// What is at a path; none if it is nothing by now.
fn found(root: &Directory, path: &RelPath) -> Result<Option<Stat>> {
    match root.below(path.parent().as_ref())? {
        Some(parent) => parent.stat(path.name().as_bytes()),
        None => Ok(None),
    }
}

/// The two trees.
pub(crate) struct Sides<'a> {
    pub(crate) upper: &'a Directory,
    pub(crate) host: &'a Directory,
    /// Zeros of holes that may still be hashed.
    holes: Cell<u64>,
}

impl Sides<'_> {
    fn file(root: &Directory, path: &RelPath) -> Result<Option<File>> {
        let parent = root.below(path.parent().as_ref())?;
        parent.map(|parent| parent.file(path.name().as_bytes())).transpose().map(Option::flatten)
    }

    /// The file of a change on the host.
    fn before(&self, change: &Change) -> Result<Option<File>> {
        match &change.before {
            Some(item) if item.kind == ItemKind::File => Self::file(self.host, &change.path),
            _ => Ok(None),
        }
    }

    /// The file of a change in the sandbox.
    fn after(&self, change: &Change) -> Result<Option<File>> {
        match &change.after {
            Some(item) if item.kind == ItemKind::File => Self::file(self.upper, &change.path),
            _ => Ok(None),
        }
    }

    fn add_digests(&self, changes: &mut [Change]) -> Result<()> {
        for change in changes.iter_mut().filter(|change| change.what != What::Special) {
            self.digest(change)?;
        }
        Ok(())
    }

    /// The digests of both sides of a change; none of a file with more holes than may be hashed.
    fn digest(&self, change: &mut Change) -> Result<()> {
        let about = |error| Error::host(format!("cannot read `{}`", change.path), error);
        let of = |file: Option<File>| {
            let Some(file) = file else { return Ok(None) };
            let mut holes = self.holes.get();
            let digest = content::digest(&file, &mut holes).map_err(about);
            self.holes.set(holes);
            digest
        };
        let (before, after) = (of(self.before(change)?)?, of(self.after(change)?)?);
        if let Some(item) = &mut change.before {
            item.sha256 = before;
        }
        if let Some(item) = &mut change.after {
            item.sha256 = after;
        }
        Ok(())
    }

    /// A file that was added and one that was deleted, with the same content, are one that was
    /// given another name. Only what has the same size is read.
    fn find_renames(&self, changes: &mut [Change]) -> Result<()> {
        let is_file = |what: What, change: &Change| {
            let item = change.after.as_ref().or(change.before.as_ref());
            let item = item.filter(|item| item.kind == ItemKind::File && item.size > 0);
            (change.what == what).then_some(item).flatten().map(|item| item.size)
        };
        let mut by_size: HashMap<u64, (Vec<usize>, Vec<usize>)> = HashMap::new();
        for (index, change) in changes.iter().enumerate() {
            if let Some(size) = is_file(What::Added, change) {
                by_size.entry(size).or_default().0.push(index);
            } else if let Some(size) = is_file(What::Deleted, change) {
                by_size.entry(size).or_default().1.push(index);
            }
        }
        let mut left = MOST_HASHED;
        for (size, (added, deleted)) in by_size {
            let all = size.saturating_mul((added.len() + deleted.len()) as u64);
            if added.is_empty() || deleted.is_empty() || all > left {
                continue;
            }
            left -= all;
            let mut gone: HashMap<String, Vec<usize>> = HashMap::new();
            // The first of the same is taken first.
            for index in deleted.into_iter().rev() {
                if let Some(digest) = self.one_digest(&mut changes[index])? {
                    gone.entry(digest).or_default().push(index);
                }
            }
            for index in added {
                let Some(digest) = self.one_digest(&mut changes[index])? else { continue };
                let Some(old) = gone.get_mut(&digest).and_then(Vec::pop) else { continue };
                changes[index].renamed_from = Some(changes[old].path.clone());
                // It never was on the host under this name.
                let conflict = changes[index].conflict;
                changes[index].conflict = conflict.filter(|it| *it != Conflict::RemovedOnHost);
                changes[old].renamed_to = Some(changes[index].path.clone());
            }
        }
        Ok(())
    }

    fn one_digest(&self, change: &mut Change) -> Result<Option<String>> {
        let known = |change: &Change| {
            let item = change.after.as_ref().or(change.before.as_ref());
            item.and_then(|item| item.sha256.clone())
        };
        if known(change).is_none() {
            self.digest(change)?;
        }
        Ok(known(change))
    }

    fn add_patches(&self, changes: &mut [Change]) -> Result<()> {
        let mut left = MOST_TEXT;
        for change in changes.iter_mut() {
            let plain = matches!(change.what, What::Added | What::Changed | What::Deleted);
            let moved = change.renamed_from.is_some() || change.renamed_to.is_some();
            if !plain || moved {
                continue;
            }
            let about = |error| Error::host(format!("cannot read `{}`", change.path), error);
            let read = |file: Option<File>| match file {
                Some(file) => content::text(&file, LONGEST_TEXT).map_err(about),
                None => Ok(Some(Vec::new())),
            };
            let (before, after) = (self.before(change)?, self.after(change)?);
            if before.is_none() && after.is_none() {
                continue;
            }
            match (read(before)?, read(after)?) {
                (Some(before), Some(after)) if before.len() + after.len() <= left => {
                    let made = patch::between(&before, &after);
                    left = left.saturating_sub(made.text.len());
                    change.patch = Some(made);
                }
                // What is not text is told by its size and digest.
                _ => self.digest(change)?,
            }
        }
        Ok(())
    }
}

/// The path that somebody typed, below a workspace: as it is inside, on the host, or from its root.
pub fn typed_path(text: &Path, host: &Path, guest: &Path) -> Result<RelPath> {
    let below = text.strip_prefix(guest).or_else(|_| text.strip_prefix(host)).unwrap_or(text);
    RelPath::from_path(below).ok_or_else(|| {
        Error::invalid(format!("not a path below the workspace: `{}`", text.display()))
            .hint("paths are from the root of the workspace, as `msb diff` shows them")
    })
}
