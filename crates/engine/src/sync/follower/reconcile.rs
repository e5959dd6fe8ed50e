//! Reconciles one path: makes it inside what it is in the source.

use super::{Follower, JobError, no_watch};
use crate::sync::baseline::{BaselineEntry, join, parent};
use crate::sync::mirror::FileTransfer;
use crate::sync::queue::CheckFlags;
use crate::sync::source::{FileStamp, SourceEntry, SourceKind, names, stamp};
use crate::sync::{SyncEvent, excludes, text};
use msb_spec::{Error, Kind};
use msb_wire::EntryKind;
use std::collections::HashSet;
use std::io;

/// Changes within this time may have equal timestamps on coarse file systems.
const FRESH_SECONDS: i64 = 2;

type Done = Result<(), JobError>;

impl Follower {
    /// Checks a path, and sends what differs from the baseline.
    pub(super) fn reconcile(&mut self, path: &[u8], flags: CheckFlags) -> Done {
        self.failures.forget(path, false);
        // The parent is excluded or gone; if that changes, everything below it is checked.
        if !path.is_empty() && !self.baseline.is_directory(parent(path)) {
            return Ok(());
        }
        let entry = match self.source.look_up(path) {
            Ok(entry) => entry,
            Err(error) if is_missing(&error) => return self.remove(path),
            Err(error) => {
                self.unreadable(path, error);
                return Ok(());
            }
        };
        if !path.is_empty() && self.excludes.is_excluded(path, entry.kind == SourceKind::Directory)
        {
            self.forget(path);
            return Ok(());
        }
        match entry.kind {
            SourceKind::Other => self.remove(path),
            SourceKind::Directory => self.directory(path, &entry, flags),
            SourceKind::File | SourceKind::Symlink => {
                if self.baseline.is_directory(path) {
                    self.remove(path)?;
                }
                match entry.kind {
                    SourceKind::File => self.file(path, &entry.stamp, flags),
                    _ => self.link(path, &entry),
                }
            }
        }
    }

    fn directory(&mut self, path: &[u8], entry: &SourceEntry, flags: CheckFlags) -> Done {
        if self.baseline.get(path).is_some_and(|known| known.kind != SourceKind::Directory) {
            self.remove(path)?;
        }
        let known = self.baseline.get(path).and_then(|known| known.stamp);
        let is_same = known.is_some_and(|known| known.is_same_inode(&entry.stamp));
        if !is_same {
            let event = SyncEvent::Put(text(path));
            self.send(event, |connection| {
                connection.put(path, EntryKind::Directory, &entry.stamp)
            })?;
        } else if known.is_some_and(|known| known.mode != entry.stamp.mode) && !path.is_empty() {
            let event = SyncEvent::Touched(text(path));
            self.send(event, |connection| {
                connection.touch(path, SourceKind::Directory, &entry.stamp)
            })?;
        }
        let stamp = Some(entry.stamp);
        self.baseline
            .insert(path, BaselineEntry { kind: SourceKind::Directory, stamp, fresh: false });
        if flags.deep || !is_same || !self.inotify.has(path) {
            let deep = CheckFlags { content: flags.content || !is_same, deep: true };
            return self.list(path, deep);
        }
        Ok(())
    }

    /// Watches a directory and queues its entries and those of the baseline.
    fn list(&mut self, path: &[u8], flags: CheckFlags) -> Done {
        let directory = match self.source.directory(path) {
            Ok(directory) => directory,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) if path.is_empty() && !self.ready => {
                return Err(JobError::Fatal(Error::host("cannot read the source", error)));
            }
            Err(error) => {
                self.unreadable(path, error);
                return Ok(());
            }
        };
        // Watched before it is listed: later changes cause events.
        if let Err(error) = self.inotify.add(&directory, path) {
            let error = no_watch(path, error);
            match self.ready {
                false => return Err(JobError::Fatal(error)),
                // Its present entries are sent; later ones are found by the retry.
                true => self.failed(path, error),
            }
        }
        let names = match names(&directory) {
            Ok(names) => names,
            Err(error) => {
                self.unreadable(path, error);
                return Ok(());
            }
        };
        let excludes = join(path, excludes::FILE);
        let excludes =
            names.iter().any(|name| name == excludes::FILE).then(|| self.source.file(&excludes));
        self.excludes.set(path, excludes.and_then(Result::ok).flatten().map(|(file, _)| file));
        let mut there = HashSet::with_capacity(names.len());
        for name in names {
            let child = join(path, &name);
            self.queue.add(&child, flags);
            there.insert(child);
        }
        for child in self.baseline.children(path) {
            if !there.contains(&child) {
                self.queue.add(&child, CheckFlags::PLAIN);
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8], now: &FileStamp, flags: CheckFlags) -> Done {
        if let Some(BaselineEntry { kind: SourceKind::File, stamp: Some(known), fresh }) =
            self.baseline.get(path).copied()
        {
            // An event with an unchanged stamp is about the content that was already read, unless
            // the file is so recent that its timestamp may hide another change.
            if known == *now && !(flags.content && fresh) {
                return Ok(());
            }
            if !flags.content && known.has_same_content(now) {
                if known.mode != now.mode {
                    let event = SyncEvent::Touched(text(path));
                    self.send(event, |connection| connection.touch(path, SourceKind::File, now))?;
                }
                self.baseline.insert(
                    path,
                    BaselineEntry { kind: SourceKind::File, stamp: Some(*now), fresh },
                );
                return Ok(());
            }
        }
        let (mut file, before) = match self.source.file(path) {
            Ok(Some(opened)) => opened,
            // It has become another kind of file, which causes another event.
            Ok(None) => return Ok(()),
            Err(error) if is_missing(&error) => return self.remove(path),
            Err(error) => {
                self.unreadable(path, error);
                return Ok(());
            }
        };
        self.connection()?;
        let Self { mirror: Some(connection), sent, status_file, .. } = self else {
            return Ok(());
        };
        let mut progress = |bytes| {
            sent.bytes += bytes;
            status_file.update(false, |status| status.bytes = sent.bytes);
        };
        match connection.file(path, &mut file, &before, &mut progress) {
            Ok(FileTransfer::Whole) => sent.files += 1,
            Ok(FileTransfer::Unreadable(error)) => {
                self.unreadable(path, error);
                return Ok(());
            }
            Err(error) if error.kind() == Kind::Protocol => return Err(JobError::Lost(error)),
            Err(error) => {
                // The partial file is discarded with the connection.
                self.abandon();
                self.failed(path, error.under(format!("cannot read `{}`", text(path))));
                return Ok(());
            }
        }
        let after = stamp(&file).ok();
        let whole = after == Some(before);
        if !whole {
            self.queue.postpone(path);
        }
        let stamp = whole.then_some(before);
        self.baseline.insert(
            path,
            BaselineEntry { kind: SourceKind::File, stamp, fresh: is_fresh(&before) },
        );
        if self.ready {
            (self.observer)(SyncEvent::Put(text(path)));
        }
        Ok(())
    }

    fn link(&mut self, path: &[u8], entry: &SourceEntry) -> Done {
        let known = self.baseline.get(path);
        let is_link = known.is_some_and(|known| known.kind == SourceKind::Symlink);
        let known = known.and_then(|known| known.stamp).filter(|_| is_link);
        // A symlink is immutable; a changed one is another inode.
        if known.is_some_and(|known| known.has_same_content(&entry.stamp)) {
            return Ok(());
        }
        let target = match entry.link() {
            Ok(target) => target,
            Err(error) => {
                self.unreadable(path, error);
                return Ok(());
            }
        };
        let event = SyncEvent::Put(text(path));
        self.send(event, |connection| {
            connection.put(path, EntryKind::Symlink(target), &entry.stamp)
        })?;
        let stamp = Some(entry.stamp);
        self.baseline
            .insert(path, BaselineEntry { kind: SourceKind::Symlink, stamp, fresh: false });
        Ok(())
    }

    /// Renames a path inside, if the rename in the source still holds. Otherwise both names are
    /// queued.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) -> Done {
        self.excludes.forget(from);
        let Some(stamp) = self.renamed(from, to) else {
            self.queue.add(from, CheckFlags::ALL);
            self.queue.add(to, CheckFlags::ALL);
            return Ok(());
        };
        let event = SyncEvent::Renamed(text(from), text(to));
        self.send(event, |connection| connection.rename(from, to))?;
        self.failures.forget(from, true);
        self.baseline.rename(from, to);
        if let Some(known) = self.baseline.get(to).copied() {
            self.baseline.insert(to, BaselineEntry { stamp, ..known });
        }
        // Other exclude rules may apply at the new path.
        self.queue.add(to, CheckFlags::DEEP);
        self.queue.add(from, CheckFlags::PLAIN);
        Ok(())
    }

    /// The stamp for `to` after a rename inside; the outer `None` if the rename is not possible.
    fn renamed(&self, from: &[u8], to: &[u8]) -> Option<Option<FileStamp>> {
        let known = self.baseline.get(from)?;
        let before = known.stamp?;
        let entry = self.source.look_up(to).ok()?;
        let is_directory = known.kind == SourceKind::Directory;
        let replaces = self.baseline.get(to);
        let fits = entry.kind == known.kind
            && entry.stamp.is_same_inode(&before)
            && self.baseline.is_directory(parent(to))
            && !self.excludes.is_excluded(to, is_directory)
            && replaces.is_none_or(|other| !is_directory && other.kind != SourceKind::Directory);
        let same = is_directory || entry.stamp.has_same_content(&before);
        // A rename changes the ctime, which needs no transfer.
        let after = FileStamp { changed: entry.stamp.changed, ..before };
        fits.then(|| same.then_some(after))
    }

    /// Removes a path and everything below it inside, as far as the baseline has it.
    fn remove(&mut self, path: &[u8]) -> Done {
        if path.is_empty() {
            return Ok(());
        }
        self.inotify.forget(path);
        self.excludes.forget(path);
        self.failures.forget(path, true);
        let inside = self.baseline.all_below(path);
        for below in inside.iter().rev().map(Vec::as_slice).chain([path]) {
            let Some(known) = self.baseline.get(below).copied() else { continue };
            let directory = known.kind == SourceKind::Directory;
            self.send(SyncEvent::Removed(text(below)), |connection| {
                connection.remove(below, directory)
            })?;
            self.baseline.take(below);
            if self.mirror.as_ref().is_some_and(crate::sync::mirror::MirrorConnection::is_full) {
                self.finish()?;
            }
        }
        Ok(())
    }

    /// Stops following a path and everything below it; the files inside stay.
    fn forget(&mut self, path: &[u8]) {
        self.baseline.take(path);
        self.inotify.forget(path);
        self.excludes.forget(path);
        self.failures.forget(path, true);
    }

    fn unreadable(&mut self, path: &[u8], error: io::Error) {
        self.failed(path, Error::host(format!("cannot read `{}`", text(path)), error));
    }
}

/// Whether the error means that a path or its parent was removed or replaced.
fn is_missing(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP];
    error.raw_os_error().is_some_and(|code| gone.contains(&Errno::from_raw_os_error(code)))
}

/// Whether a change is so recent that another one may have the same timestamp.
fn is_fresh(stamp: &FileStamp) -> bool {
    let now = msb_spec::clock::now_seconds();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    now.saturating_sub(stamp.changed.0) <= FRESH_SECONDS
}
