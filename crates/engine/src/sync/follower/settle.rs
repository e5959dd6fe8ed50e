//! Makes one path inside what it is outside.

use super::{Follower, Trouble, no_watch};
use crate::sync::ledger::{Known, join, parent};
use crate::sync::outgoing::FileSent;
use crate::sync::queue::Wanted;
use crate::sync::source::{Look, Sort, Stamp, names, stamp};
use crate::sync::{SyncEvent, rules, text};
use msb_spec::{Error, Kind};
use msb_wire::EntryKind;
use std::collections::HashSet;
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// Two changes this close may bear the same time, on the coarsest file systems.
const FRESH_SECONDS: i64 = 2;

type Done = Result<(), Trouble>;

impl Follower {
    /// Looks at a path, and sends what is different.
    pub(super) fn settle(&mut self, path: &[u8], wanted: Wanted) -> Done {
        self.failures.forget(path, false);
        // What is above it is left out or gone; if that changes, all of it is looked at.
        if !path.is_empty() && !self.ledger.is_directory(parent(path)) {
            return Ok(());
        }
        let look = match self.source.look(path) {
            Ok(look) => look,
            Err(error) if is_gone(&error) => return self.remove(path),
            Err(error) => {
                self.unreadable(path, error);
                return Ok(());
            }
        };
        if !path.is_empty() && self.rules.leave_out(path, look.sort == Sort::Directory) {
            self.forget(path);
            return Ok(());
        }
        match look.sort {
            Sort::Other => self.remove(path),
            Sort::Directory => self.directory(path, &look, wanted),
            Sort::File | Sort::Symlink => {
                if self.ledger.is_directory(path) {
                    self.remove(path)?;
                }
                match look.sort {
                    Sort::File => self.file(path, &look.stamp, wanted),
                    _ => self.link(path, &look),
                }
            }
        }
    }

    fn directory(&mut self, path: &[u8], look: &Look, wanted: Wanted) -> Done {
        if self.ledger.get(path).is_some_and(|known| known.sort != Sort::Directory) {
            self.remove(path)?;
        }
        let known = self.ledger.get(path).and_then(|known| known.stamp);
        let is_same = known.is_some_and(|known| known.is_same_thing(&look.stamp));
        if !is_same {
            let event = SyncEvent::Put(text(path));
            self.send(event, |way| way.put(path, EntryKind::Directory, &look.stamp))?;
        } else if known.is_some_and(|known| known.mode != look.stamp.mode) && !path.is_empty() {
            let event = SyncEvent::Touched(text(path));
            self.send(event, |way| way.touch(path, Sort::Directory, &look.stamp))?;
        }
        let stamp = Some(look.stamp);
        self.ledger.insert(path, Known { sort: Sort::Directory, stamp, fresh: false });
        if wanted.deep || !is_same || !self.watches.has(path) {
            let deep = Wanted { content: wanted.content || !is_same, deep: true };
            return self.list(path, deep);
        }
        Ok(())
    }

    /// Watches a directory and has all that it holds, or held, looked at.
    fn list(&mut self, path: &[u8], wanted: Wanted) -> Done {
        let directory = match self.source.directory(path) {
            Ok(directory) => directory,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) if path.is_empty() && !self.ready => {
                return Err(Trouble::Fatal(Error::host("cannot read the source", error)));
            }
            Err(error) => {
                self.unreadable(path, error);
                return Ok(());
            }
        };
        // Before it is listed: what comes into it from here on is an event.
        if let Err(error) = self.watches.add(&directory, path) {
            let error = no_watch(path, error);
            match self.ready {
                false => return Err(Trouble::Fatal(error)),
                // What it holds now is sent; whether more comes is seen when this is tried again.
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
        let rules = join(path, rules::FILE);
        let rules = names.iter().any(|name| name == rules::FILE).then(|| self.source.file(&rules));
        self.rules.set(path, rules.and_then(Result::ok).flatten().map(|(file, _)| file));
        let mut there = HashSet::with_capacity(names.len());
        for name in names {
            let child = join(path, &name);
            self.queue.add(&child, wanted);
            there.insert(child);
        }
        for child in self.ledger.children(path) {
            if !there.contains(&child) {
                self.queue.add(&child, Wanted::PLAIN);
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &[u8], now: &Stamp, wanted: Wanted) -> Done {
        if let Some(Known { sort: Sort::File, stamp: Some(known), fresh }) =
            self.ledger.get(path).copied()
        {
            // An event after a file was read means a change after it was read, unless the change
            // is so old that the time tells: then the event was of what we have read already.
            if known == *now && !(wanted.content && fresh) {
                return Ok(());
            }
            if !wanted.content && known.has_same_content(now) {
                if known.mode != now.mode {
                    let event = SyncEvent::Touched(text(path));
                    self.send(event, |way| way.touch(path, Sort::File, now))?;
                }
                self.ledger.insert(path, Known { sort: Sort::File, stamp: Some(*now), fresh });
                return Ok(());
            }
        }
        let (mut file, before) = match self.source.file(path) {
            Ok(Some(opened)) => opened,
            // It has become something else, of which we shall hear.
            Ok(None) => return Ok(()),
            Err(error) if is_gone(&error) => return self.remove(path),
            Err(error) => {
                self.unreadable(path, error);
                return Ok(());
            }
        };
        self.way()?;
        let Self { outgoing: Some(way), sent, board, .. } = self else {
            return Ok(());
        };
        let mut progress = |bytes| {
            sent.bytes += bytes;
            board.update(false, |status| status.bytes = sent.bytes);
        };
        match way.file(path, &mut file, &before, &mut progress) {
            Ok(FileSent::Whole) => sent.files += 1,
            Ok(FileSent::Unreadable(error)) => {
                self.unreadable(path, error);
                return Ok(());
            }
            Err(error) if error.kind() == Kind::Protocol => return Err(Trouble::Lost(error)),
            Err(error) => {
                // Half of it is on its way, and is forgotten with the connection.
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
        self.ledger.insert(path, Known { sort: Sort::File, stamp, fresh: is_fresh(&before) });
        if self.ready {
            (self.observer)(SyncEvent::Put(text(path)));
        }
        Ok(())
    }

    fn link(&mut self, path: &[u8], look: &Look) -> Done {
        let known = self.ledger.get(path);
        let is_link = known.is_some_and(|known| known.sort == Sort::Symlink);
        let known = known.and_then(|known| known.stamp).filter(|_| is_link);
        // A link never changes; another one is another thing.
        if known.is_some_and(|known| known.has_same_content(&look.stamp)) {
            return Ok(());
        }
        let says = match look.link() {
            Ok(says) => says,
            Err(error) => {
                self.unreadable(path, error);
                return Ok(());
            }
        };
        let event = SyncEvent::Put(text(path));
        self.send(event, |way| way.put(path, EntryKind::Symlink(says), &look.stamp))?;
        let stamp = Some(look.stamp);
        self.ledger.insert(path, Known { sort: Sort::Symlink, stamp, fresh: false });
        Ok(())
    }

    /// Renames inside what was renamed outside, if it is still so and simple. If not, both names
    /// are looked at, as they are anyway.
    pub(super) fn rename(&mut self, from: &[u8], to: &[u8]) -> Done {
        self.rules.forget(from);
        let Some(stamp) = self.renamed(from, to) else {
            self.queue.add(from, Wanted::ALL);
            self.queue.add(to, Wanted::ALL);
            return Ok(());
        };
        let event = SyncEvent::Renamed(text(from), text(to));
        self.send(event, |way| way.rename(from, to))?;
        self.failures.forget(from, true);
        self.ledger.rename(from, to);
        if let Some(known) = self.ledger.get(to).copied() {
            self.ledger.insert(to, Known { stamp, ..known });
        }
        // Other rules may hold there.
        self.queue.add(to, Wanted::DEEP);
        self.queue.add(from, Wanted::PLAIN);
        Ok(())
    }

    /// The version that is inside at `to` after a renaming there; none if it cannot be done.
    fn renamed(&self, from: &[u8], to: &[u8]) -> Option<Option<Stamp>> {
        let known = self.ledger.get(from)?;
        let before = known.stamp?;
        let look = self.source.look(to).ok()?;
        let is_directory = known.sort == Sort::Directory;
        let replaces = self.ledger.get(to);
        let fits = look.sort == known.sort
            && look.stamp.is_same_thing(&before)
            && self.ledger.is_directory(parent(to))
            && !self.rules.leave_out(to, is_directory)
            && replaces.is_none_or(|other| !is_directory && other.sort != Sort::Directory);
        let same = is_directory || look.stamp.has_same_content(&before);
        // To be renamed is a change, of which nothing else has to be sent.
        let after = Stamp { changed: look.stamp.changed, ..before };
        fits.then(|| same.then_some(after))
    }

    /// Removes inside what we have sent of a path and all below it.
    fn remove(&mut self, path: &[u8]) -> Done {
        if path.is_empty() {
            return Ok(());
        }
        self.watches.forget(path);
        self.rules.forget(path);
        self.failures.forget(path, true);
        let inside = self.ledger.all_below(path);
        for below in inside.iter().rev().map(Vec::as_slice).chain([path]) {
            let Some(known) = self.ledger.get(below).copied() else { continue };
            let directory = known.sort == Sort::Directory;
            self.send(SyncEvent::Removed(text(below)), |way| way.remove(below, directory))?;
            self.ledger.take(below);
            if self.outgoing.as_ref().is_some_and(crate::sync::outgoing::Outgoing::is_full) {
                self.finish()?;
            }
        }
        Ok(())
    }

    /// Follows a path and all below it no more; what is inside stays.
    fn forget(&mut self, path: &[u8]) {
        self.ledger.take(path);
        self.watches.forget(path);
        self.rules.forget(path);
        self.failures.forget(path, true);
    }

    fn unreadable(&mut self, path: &[u8], error: io::Error) {
        self.failed(path, Error::host(format!("cannot read `{}`", text(path)), error));
    }
}

/// Whether a path is no longer there: it, or something above it, was removed or replaced.
fn is_gone(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::LOOP];
    error.raw_os_error().is_some_and(|code| gone.contains(&Errno::from_raw_os_error(code)))
}

/// Whether a change is so recent that another one could bear the same time.
fn is_fresh(stamp: &Stamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let now = i64::try_from(now).unwrap_or(i64::MAX);
    now.saturating_sub(stamp.changed.0) <= FRESH_SECONDS
}
