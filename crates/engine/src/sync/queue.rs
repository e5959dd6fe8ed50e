//! What is to be looked at: paths, each once, however many events there were.

use super::ledger::{below, moved, parent};
use super::rules;
use super::watches::Heard;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// A file that changes while it is read is left alone for this long: a log that is written all
/// the time would otherwise be sent all the time.
const POSTPONED: Duration = Duration::from_millis(500);

/// A file that gets two names in a row gets them soon after each other.
const RECENT: usize = 64;

/// What to look for at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wanted {
    /// Whether the content of a file may be another though its times are the same.
    pub(crate) content: bool,
    /// Whether everything in a directory is to be looked at, too.
    pub(crate) deep: bool,
}

impl Wanted {
    pub(crate) const ALL: Self = Self { content: true, deep: true };
    pub(crate) const DEEP: Self = Self { content: false, deep: true };
    pub(crate) const CONTENT: Self = Self { content: true, deep: false };
    pub(crate) const PLAIN: Self = Self { content: false, deep: false };
}

/// The next thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Job {
    /// Something may have got another name.
    Rename(Vec<u8>, Vec<u8>),
    /// Something may be different.
    Look(Vec<u8>, Wanted),
}

/// Paths to look at. Renamings come first; of the others, a directory before what it holds.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    paths: BTreeMap<Vec<u8>, Wanted>,
    renames: VecDeque<(Vec<u8>, Vec<u8>)>,
    postponed: BTreeSet<Vec<u8>>,
    due: Option<Instant>,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.renames.is_empty()
    }

    /// How many paths wait.
    pub(crate) fn len(&self) -> usize {
        self.paths.len() + self.renames.len() + self.postponed.len()
    }

    pub(crate) fn add(&mut self, path: &[u8], wanted: Wanted) {
        let before = self.paths.entry(path.to_vec()).or_default();
        before.content |= wanted.content;
        before.deep |= wanted.deep;
    }

    /// Puts a job back that could not be done.
    pub(crate) fn put_back(&mut self, job: Job) {
        match job {
            Job::Rename(from, to) => self.renames.push_front((from, to)),
            Job::Look(path, wanted) => self.add(&path, wanted),
        }
    }

    /// Leaves a file alone for a moment.
    pub(crate) fn postpone(&mut self, path: &[u8]) {
        self.postponed.insert(path.to_vec());
        self.due.get_or_insert_with(|| Instant::now() + POSTPONED);
    }

    /// When files that were left alone are to be looked at again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Takes back the files that were left alone for long enough.
    pub(crate) fn wake(&mut self, now: Instant) {
        if self.due.is_some_and(|due| due <= now) {
            self.due = None;
            for path in std::mem::take(&mut self.postponed) {
                self.add(&path, Wanted::CONTENT);
            }
        }
    }

    /// Takes an event.
    pub(crate) fn hear(&mut self, heard: &Heard) {
        match heard {
            Heard::Written(path) => {
                if !self.postponed.contains(path) {
                    self.add(path, Wanted::CONTENT);
                }
                self.rules(path);
            }
            Heard::Changed(path) => self.add(path, Wanted::PLAIN),
            Heard::Appeared(path) => {
                self.add(path, Wanted::ALL);
                self.rules(path);
            }
            Heard::Vanished(path) => {
                self.add(path, Wanted::PLAIN);
                self.rules(path);
            }
            Heard::Renamed(from, to) => {
                self.renamed(from, to);
                self.rules(from);
                self.rules(to);
            }
            // Everything is compared, which is more than was waiting.
            Heard::Overflow => {
                self.renames.clear();
                self.paths.clear();
                self.add(b"", Wanted::ALL);
            }
            Heard::Lost => {}
        }
    }

    /// Other rules for a directory mean another look at all of it.
    fn rules(&mut self, path: &[u8]) {
        let name = path.rsplit(|byte| *byte == b'/').next();
        if name == Some(rules::FILE) {
            self.add(parent(path), Wanted::DEEP);
        }
    }

    /// What was to be looked at goes along with the name.
    fn renamed(&mut self, from: &[u8], to: &[u8]) {
        let (start, end) = below(from);
        let inside = self.paths.range(start.clone()..end.clone()).map(|(path, _)| path.clone());
        let along: Vec<Vec<u8>> = [from.to_vec()].into_iter().chain(inside).collect();
        for path in along {
            if let Some(wanted) = self.paths.remove(&path) {
                self.add(&moved(&path, from, to), wanted);
            }
        }
        let inside = self.postponed.range(start..end).cloned();
        let along: Vec<Vec<u8>> = [from.to_vec()].into_iter().chain(inside).collect();
        for path in along {
            if self.postponed.remove(&path) {
                self.add(&moved(&path, from, to), Wanted::CONTENT);
            }
        }
        // Two in a row are one: nobody sees the name in between any more.
        match self.renames.iter_mut().rev().take(RECENT).find(|(_, before)| before == from) {
            Some((_, last)) => *last = to.to_vec(),
            None => self.renames.push_back((from.to_vec(), to.to_vec())),
        }
        // Whatever becomes of the renaming, both names are looked at.
        self.add(from, Wanted::PLAIN);
        self.add(to, Wanted::DEEP);
    }

    pub(crate) fn next(&mut self) -> Option<Job> {
        if let Some((from, to)) = self.renames.pop_front() {
            return Some(Job::Rename(from, to));
        }
        self.paths.pop_first().map(|(path, wanted)| Job::Look(path, wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(queue: &mut Queue) -> Vec<Job> {
        std::iter::from_fn(|| queue.next()).collect()
    }

    fn look(path: &str, wanted: Wanted) -> Job {
        Job::Look(path.into(), wanted)
    }

    #[test]
    fn a_path_waits_once_however_often_it_changes() {
        let mut queue = Queue::default();
        for _ in 0..100 {
            queue.hear(&Heard::Written(b"a/b".to_vec()));
            queue.hear(&Heard::Changed(b"a/b".to_vec()));
        }
        queue.hear(&Heard::Appeared(b"a".to_vec()));
        let expected = [look("a", Wanted::ALL), look("a/b", Wanted::CONTENT)];
        assert_eq!(all(&mut queue), expected);
    }

    #[test]
    fn what_waits_goes_along_with_a_renaming() {
        let mut queue = Queue::default();
        queue.hear(&Heard::Written(b"a/b".to_vec()));
        queue.hear(&Heard::Renamed(b"a".to_vec(), b"c".to_vec()));
        queue.hear(&Heard::Renamed(b"c".to_vec(), b"d".to_vec()));
        let expected = [
            Job::Rename(b"a".to_vec(), b"d".to_vec()),
            look("a", Wanted::PLAIN),
            look("c", Wanted::PLAIN),
            look("d", Wanted::DEEP),
            look("d/b", Wanted::CONTENT),
        ];
        assert_eq!(all(&mut queue), expected);
    }

    #[test]
    fn rules_that_change_mean_a_look_at_the_directory() {
        let mut queue = Queue::default();
        queue.hear(&Heard::Written(b"a/.gitignore".to_vec()));
        let expected = [look("a", Wanted::DEEP), look("a/.gitignore", Wanted::CONTENT)];
        assert_eq!(all(&mut queue), expected);
        queue.hear(&Heard::Vanished(b".gitignore".to_vec()));
        assert_eq!(all(&mut queue)[0], look("", Wanted::DEEP));
    }

    #[test]
    fn a_file_that_is_left_alone_is_looked_at_once_it_is_time() {
        let mut queue = Queue::default();
        queue.postpone(b"log");
        queue.hear(&Heard::Written(b"log".to_vec()));
        assert!(queue.is_empty() && queue.len() == 1);
        queue.wake(queue.due().unwrap());
        assert_eq!(all(&mut queue), [look("log", Wanted::CONTENT)]);
        assert!(queue.due().is_none());
    }

    #[test]
    fn too_many_events_mean_a_look_at_everything() {
        let mut queue = Queue::default();
        queue.hear(&Heard::Written(b"a".to_vec()));
        queue.hear(&Heard::Overflow);
        assert_eq!(all(&mut queue), [look("", Wanted::ALL)]);
    }
}
