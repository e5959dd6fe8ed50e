//! A workspace: its paths, its lock, and the list of changes.

use crate::baseline::Baseline;
use crate::dir_fd::DirFd;
use crate::gitignore::GitignoreRules;
use crate::{content, find_changes, patch};
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

/// Longest text that gets a line diff, in bytes.
const DIFF_FILE_LIMIT: u64 = 4 << 20;
/// Most bytes of all line diffs together.
const DIFF_TOTAL_LIMIT: usize = 64 << 20;
/// Most bytes that are hashed to detect renames.
const RENAME_HASH_LIMIT: u64 = 1 << 30;

/// The paths of a workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// The host directory that the sandbox works on.
    pub host: PathBuf,
    /// Directory with the upper and work directories of the overlay.
    pub changes: PathBuf,
    /// Directory with the baseline, the journal and the lock.
    pub notes: PathBuf,
}

/// Longest wait for the lock. A review of a few thousand files takes a second.
const LOCK_LIMIT: Duration = Duration::from_secs(5);

/// File name of the [`Baseline`].
pub(crate) const BASELINE: &str = "baseline.json";
const LOCK: &str = "lock";

impl Workspace {
    /// Creates the notes of a new workspace, before the host directory is mounted.
    pub fn begin(&self) -> Result<()> {
        let about = |error| Error::host("cannot create the directory of the changes", error);
        fs::DirBuilder::new().mode(0o700).create(&self.notes).map_err(about)?;
        Baseline::take(&self.host)?.write(&self.notes.join(BASELINE))
    }

    /// Creates the notes of a copy of the changes, for the same host directory.
    pub fn carry(&self, clone: &Self) -> Result<()> {
        let locked = self.lock()?;
        let about = |error| Error::host("cannot create the directory of the changes", error);
        fs::DirBuilder::new().mode(0o700).create(&clone.notes).map_err(about)?;
        let copied = DirFd::open(&clone.changes)?.directory(PlannedWorkspace::UPPER.as_bytes());
        let mut baseline = locked.baseline.clone();
        if let (Some(upper), Some(copied)) = (locked.upper()?, copied?) {
            baseline.carry(|path| Ok((stat_at(&upper, path)?, stat_at(&copied, path)?)))?;
        }
        baseline.write(&clone.notes.join(BASELINE))
    }

    /// Lists the changes below these paths, or all. Recovers an unfinished apply first.
    pub fn diff(&self, below: &[RelPath], depth: Depth) -> Result<Vec<Change>> {
        let locked = self.lock()?;
        locked.changes(below, depth)
    }

    /// Recovers an unfinished apply, if there is one. Returns notes for the user.
    pub fn recover(&self) -> Result<Vec<String>> {
        if !crate::journal::Journal::is_left(&self.notes) {
            return Ok(Vec::new());
        }
        self.lock().map(|locked| locked.recovered)
    }

    /// Locks the workspace, and recovers an unfinished apply.
    pub(crate) fn lock(&self) -> Result<LockedWorkspace<'_>> {
        let about = |error| Error::host("cannot lock the workspace", error);
        let lock = File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.notes.join(LOCK))
            .map_err(about)?;
        let since = Instant::now();
        while !msb_sys::lock::try_lock(&lock).map_err(about)? {
            if since.elapsed() > LOCK_LIMIT {
                return Err(Error::new(Kind::State, "another process uses this workspace")
                    .hint("try again when the other `msb diff`, `apply` or `discard` has ended"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let host = DirFd::open(&self.host)?;
        let recovered = crate::recover::recover(&self.notes, &host)?;
        let baseline = Baseline::read(&self.notes.join(BASELINE))?;
        Ok(LockedWorkspace { workspace: self, host, baseline, recovered, _lock: lock })
    }
}

/// A workspace with an exclusive lock.
#[derive(Debug)]
pub(crate) struct LockedWorkspace<'a> {
    pub(crate) workspace: &'a Workspace,
    pub(crate) host: DirFd,
    pub(crate) baseline: Baseline,
    /// Notes of the recovery, for the user.
    pub(crate) recovered: Vec<String>,
    _lock: File,
}

impl LockedWorkspace<'_> {
    /// The upper directory; none if the workspace was never mounted.
    pub(crate) fn upper(&self) -> Result<Option<DirFd>> {
        let changes = DirFd::open(&self.workspace.changes)?;
        changes.directory(PlannedWorkspace::UPPER.as_bytes())
    }

    pub(crate) fn changes(&self, below: &[RelPath], depth: Depth) -> Result<Vec<Change>> {
        self.baseline.check_root(&self.host, &self.workspace.host)?;
        let Some(upper) = self.upper()? else { return Ok(Vec::new()) };
        let mut changes = find_changes::find_changes(&self.baseline, &upper, &self.host)?;
        if !below.is_empty() {
            let meant = |change: &Change| below.iter().any(|path| change.path.is_within(path));
            changes.retain(meant);
        }
        let mut ignored = GitignoreRules::of(&self.host);
        for change in &mut changes {
            let item = change.after.as_ref().or(change.before.as_ref());
            let is_directory = item.is_some_and(|item| item.kind == ItemKind::Directory);
            change.ignored = ignored.ignores(&change.path, is_directory)?;
        }
        let holes = Cell::new(content::HOLE_HASH_LIMIT);
        let trees = TreePair { upper: &upper, host: &self.host, holes };
        if depth.digests {
            trees.add_digests(&mut changes)?;
        }
        trees.find_renames(&mut changes)?;
        if depth.patches {
            trees.add_patches(&mut changes)?;
        }
        if depth.git {
            trees.add_git_patches(&mut changes)?;
        }
        Ok(changes)
    }
}

/// Metadata of a path; none if it does not exist any more.
fn stat_at(root: &DirFd, path: &RelPath) -> Result<Option<Stat>> {
    match root.below(path.parent().as_ref())? {
        Some(parent) => parent.stat(path.name().as_bytes()),
        None => Ok(None),
    }
}

/// The upper directory and the host directory.
pub(crate) struct TreePair<'a> {
    pub(crate) upper: &'a DirFd,
    pub(crate) host: &'a DirFd,
    /// Bytes of holes that may still be hashed.
    holes: Cell<u64>,
}

impl TreePair<'_> {
    pub(crate) fn file(root: &DirFd, path: &RelPath) -> Result<Option<File>> {
        let parent = root.below(path.parent().as_ref())?;
        parent.map(|parent| parent.file(path.name().as_bytes())).transpose().map(Option::flatten)
    }

    /// The file of a change, on the host.
    fn before(&self, change: &Change) -> Result<Option<File>> {
        match &change.before {
            Some(item) if item.kind == ItemKind::File => Self::file(self.host, &change.path),
            _ => Ok(None),
        }
    }

    /// The file of a change in the upper directory.
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

    /// Sets the digests of both sides; none for a file with too many holes.
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

    /// Detects renames: an added and a deleted file with the same content. Only files with equal
    /// sizes are read.
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
        let mut left = RENAME_HASH_LIMIT;
        for (size, (added, deleted)) in by_size {
            let all = size.saturating_mul((added.len() + deleted.len()) as u64);
            if added.is_empty() || deleted.is_empty() || all > left {
                continue;
            }
            left -= all;
            let mut gone: HashMap<(String, bool), Vec<usize>> = HashMap::new();
            // Equal files are paired in the order of their paths. One that .gitignore leaves out is
            // not paired with another, so that no listing hides half of a rename.
            for index in deleted.into_iter().rev() {
                if let Some(digest) = self.one_digest(&mut changes[index])? {
                    gone.entry((digest, changes[index].ignored)).or_default().push(index);
                }
            }
            for index in added {
                let Some(digest) = self.one_digest(&mut changes[index])? else { continue };
                let key = (digest, changes[index].ignored);
                let Some(old) = gone.get_mut(&key).and_then(Vec::pop) else { continue };
                changes[index].renamed_from = Some(changes[old].path.clone());
                // The host never had a file with this name.
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
        let mut left = DIFF_TOTAL_LIMIT;
        for change in changes.iter_mut() {
            let plain = matches!(change.what, What::Added | What::Changed | What::Deleted);
            let moved = change.renamed_from.is_some() || change.renamed_to.is_some();
            if !plain || moved {
                continue;
            }
            let about = |error| Error::host(format!("cannot read `{}`", change.path), error);
            let read = |file: Option<File>| match file {
                Some(file) => content::text(&file, DIFF_FILE_LIMIT).map_err(about),
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
                // Binary files have sizes and digests instead of a diff.
                _ => self.digest(change)?,
            }
        }
        Ok(())
    }
}

/// Converts a path that a user typed: absolute inside, absolute on the host, or relative to the
/// workspace.
pub fn typed_path(text: &Path, host: &Path, guest: &Path) -> Result<RelPath> {
    let below = text.strip_prefix(guest).or_else(|_| text.strip_prefix(host)).unwrap_or(text);
    RelPath::from_path(below).ok_or_else(|| {
        Error::invalid(format!("not a path below the workspace: `{}`", text.display()))
            .hint("paths are relative to the workspace, as in `msb diff`")
    })
}
