//! The queue of paths to check, each once, however many events named it.

use super::baseline::{below, moved, parent};
use super::excludes;
use super::inotify::FsEvent;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// How long a file that changes while it is read is postponed: a busy log would otherwise be sent
/// all the time.
const POSTPONED: Duration = Duration::from_millis(500);

/// How many of the last renames are searched for one that can be merged.
const RECENT: usize = 64;

/// What to check at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CheckFlags {
    /// Whether the content may have changed though the timestamps are equal.
    pub(crate) content: bool,
    /// Whether everything below a directory is checked as well.
    pub(crate) deep: bool,
}

impl CheckFlags {
    pub(crate) const ALL: Self = Self { content: true, deep: true };
    pub(crate) const DEEP: Self = Self { content: false, deep: true };
    pub(crate) const CONTENT: Self = Self { content: true, deep: false };
    pub(crate) const PLAIN: Self = Self { content: false, deep: false };
}

/// One job of the follower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SyncJob {
    /// A path may have been renamed.
    Rename(Vec<u8>, Vec<u8>),
    /// A path may have changed.
    Check(Vec<u8>, CheckFlags),
}

/// Paths to check. Renames come first; of the others, a directory before its entries.
#[derive(Debug, Default)]
pub(crate) struct PathQueue {
    paths: BTreeMap<Vec<u8>, CheckFlags>,
    renames: VecDeque<(Vec<u8>, Vec<u8>)>,
    postponed: BTreeSet<Vec<u8>>,
    due: Option<Instant>,
}

impl PathQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.renames.is_empty()
    }

    /// The number of queued paths, including postponed ones.
    pub(crate) fn len(&self) -> usize {
        self.paths.len() + self.renames.len() + self.postponed.len()
    }

    pub(crate) fn add(&mut self, path: &[u8], flags: CheckFlags) {
        let before = self.paths.entry(path.to_vec()).or_default();
        before.content |= flags.content;
        before.deep |= flags.deep;
    }

    /// Returns a job that failed to the queue.
    pub(crate) fn put_back(&mut self, job: SyncJob) {
        match job {
            SyncJob::Rename(from, to) => self.renames.push_front((from, to)),
            SyncJob::Check(path, flags) => self.add(&path, flags),
        }
    }

    /// Postpones a file for 500 ms.
    pub(crate) fn postpone(&mut self, path: &[u8]) {
        self.postponed.insert(path.to_vec());
        self.due.get_or_insert_with(|| Instant::now() + POSTPONED);
    }

    /// When postponed files are due.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Queues the postponed files that are due.
    pub(crate) fn wake(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            for path in std::mem::take(&mut self.postponed) {
                self.add(&path, CheckFlags::CONTENT);
            }
        }
    }

    /// Queues the paths of an event.
    pub(crate) fn apply(&mut self, event: &FsEvent) {
        match event {
            FsEvent::Written(path) => {
                if !self.postponed.contains(path) {
                    self.add(path, CheckFlags::CONTENT);
                }
                self.recheck_if_ignore_file(path);
            }
            FsEvent::Changed(path) => self.add(path, CheckFlags::PLAIN),
            FsEvent::Appeared(path) => {
                self.add(path, CheckFlags::ALL);
                self.recheck_if_ignore_file(path);
            }
            FsEvent::Vanished(path) => {
                self.add(path, CheckFlags::PLAIN);
                self.recheck_if_ignore_file(path);
            }
            FsEvent::Renamed(from, to) => {
                self.renamed(from, to);
                self.recheck_if_ignore_file(from);
                self.recheck_if_ignore_file(to);
            }
            // Everything is checked, which covers all queued paths.
            FsEvent::Overflow => {
                self.renames.clear();
                self.paths.clear();
                self.add(b"", CheckFlags::ALL);
            }
            FsEvent::Lost => {}
        }
    }

    /// A changed ignore file means that its directory is checked again.
    fn recheck_if_ignore_file(&mut self, path: &[u8]) {
        let name = path.rsplit(|byte| *byte == b'/').next();
        if name == Some(excludes::FILE) {
            self.add(parent(path), CheckFlags::DEEP);
        }
    }

    /// Moves queued paths along with a rename.
    fn renamed(&mut self, from: &[u8], to: &[u8]) {
        let (start, end) = below(from);
        let inside = self.paths.range(start.clone()..end.clone()).map(|(path, _)| path.clone());
        let along: Vec<Vec<u8>> = [from.to_vec()].into_iter().chain(inside).collect();
        for path in along {
            if let Some(flags) = self.paths.remove(&path) {
                self.add(&moved(&path, from, to), flags);
            }
        }
        let inside = self.postponed.range(start..end).cloned();
        let along: Vec<Vec<u8>> = [from.to_vec()].into_iter().chain(inside).collect();
        for path in along {
            if self.postponed.remove(&path) {
                self.add(&moved(&path, from, to), CheckFlags::CONTENT);
            }
        }
        // Two renames in a row are merged: the name in between no longer exists.
        match self.renames.iter_mut().rev().take(RECENT).find(|(_, before)| before == from) {
            Some((_, last)) => *last = to.to_vec(),
            None => self.renames.push_back((from.to_vec(), to.to_vec())),
        }
        // Both names are checked, even if the rename fails.
        self.add(from, CheckFlags::PLAIN);
        self.add(to, CheckFlags::DEEP);
    }

    pub(crate) fn next(&mut self) -> Option<SyncJob> {
        if let Some((from, to)) = self.renames.pop_front() {
            return Some(SyncJob::Rename(from, to));
        }
        self.paths.pop_first().map(|(path, flags)| SyncJob::Check(path, flags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut PathQueue) -> Vec<SyncJob> {
        std::iter::from_fn(|| queue.next()).collect()
    }

    fn look(path: &str, flags: CheckFlags) -> SyncJob {
        SyncJob::Check(path.into(), flags)
    }

    #[test]
    fn a_path_is_queued_once() {
        let mut queue = PathQueue::default();
        for _ in 0..100 {
            queue.apply(&FsEvent::Written(b"a/b".to_vec()));
            queue.apply(&FsEvent::Changed(b"a/b".to_vec()));
        }
        queue.apply(&FsEvent::Appeared(b"a".to_vec()));
        let expected = [look("a", CheckFlags::ALL), look("a/b", CheckFlags::CONTENT)];
        assert_eq!(all(&mut queue), expected);
    }

    #[test]
    fn queued_paths_follow_a_rename() {
        let mut queue = PathQueue::default();
        queue.apply(&FsEvent::Written(b"a/b".to_vec()));
        queue.apply(&FsEvent::Renamed(b"a".to_vec(), b"c".to_vec()));
        queue.apply(&FsEvent::Renamed(b"c".to_vec(), b"d".to_vec()));
        let expected = [
            SyncJob::Rename(b"a".to_vec(), b"d".to_vec()),
            look("a", CheckFlags::PLAIN),
            look("c", CheckFlags::PLAIN),
            look("d", CheckFlags::DEEP),
            look("d/b", CheckFlags::CONTENT),
        ];
        assert_eq!(all(&mut queue), expected);
    }

    #[test]
    fn a_changed_gitignore_rechecks_its_directory() {
        let mut queue = PathQueue::default();
        queue.apply(&FsEvent::Written(b"a/.gitignore".to_vec()));
        let expected = [look("a", CheckFlags::DEEP), look("a/.gitignore", CheckFlags::CONTENT)];
        assert_eq!(all(&mut queue), expected);
        queue.apply(&FsEvent::Vanished(b".gitignore".to_vec()));
        assert_eq!(all(&mut queue)[0], look("", CheckFlags::DEEP));
    }

    #[test]
    fn a_postponed_file_is_checked_when_due() {
        let mut queue = PathQueue::default();
        queue.postpone(b"log");
        queue.apply(&FsEvent::Written(b"log".to_vec()));
        assert!(queue.is_empty() && queue.len() == 1);
        queue.wake(queue.due().unwrap());
        assert_eq!(all(&mut queue), [look("log", CheckFlags::CONTENT)]);
        assert!(queue.due().is_none());
    }

    #[test]
    fn an_overflow_rechecks_everything() {
        let mut queue = PathQueue::default();
        queue.apply(&FsEvent::Written(b"a".to_vec()));
        queue.apply(&FsEvent::Overflow);
        assert_eq!(all(&mut queue), [look("", CheckFlags::ALL)]);
    }
}
