//! What has happened, chained line by line, so that one that is missing is noticed.
//!
//! Events are noted as they happen and written a little later, several at once: before anybody is told
//! of the end of a command, and before the worker waits. Nothing is forced to the disk; whoever
//! kills the host loses what its kernel has not written yet.

use crate::log::{Log, now_ms};
use msb_spec::state;
use msb_wire::Head;
use msb_wire::record::{Event, Happened};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The event log of one sandbox.
#[derive(Debug)]
pub(crate) struct Events {
    log: Log,
    head: Head,
    head_path: PathBuf,
    head_file: Option<File>,
    /// Noted and not written yet.
    noted: Vec<Event>,
    /// The number of the last one that was noted.
    number: u64,
    /// Whether anything is written at all: what goes with the sandbox need not be.
    kept: bool,
}

impl Events {
    pub(crate) fn new(directory: &Path, head: Head, kept: bool) -> Self {
        let number = head.number;
        let log = Log::of_lines(directory, state::EVENTS);
        let head_path = directory.join(state::HEAD);
        Self { log, head, head_path, head_file: None, noted: Vec::new(), number, kept }
    }

    /// Notes that something has happened.
    pub(crate) fn note(&mut self, happened: Happened) {
        self.number += 1;
        if self.kept {
            self.noted.push(Event::new(self.number, now_ms(), happened));
        }
    }

    /// Writes what was noted.
    pub(crate) fn write(&mut self) {
        if self.noted.is_empty() {
            return;
        }
        // Before the first line: a log without a file that says where it ends has lost that.
        if self.head_file.is_none()
            && let Err(error) = self.write_head()
        {
            self.log.fail(error);
        }
        // Commands have at most 4 KiB each, so this is about right; a log may be a little longer.
        let mut begins = self.log.begin(self.noted.len() as u64 * LIKELY_LENGTH);
        let mut lines = Vec::with_capacity(self.noted.len() * LIKELY_LENGTH as usize);
        let mut head = self.head.clone();
        for event in &self.noted {
            head.append(event.clone(), std::mem::take(&mut begins), &mut lines);
        }
        if !self.log.lines(&lines) {
            // The next time there may be room on the disk. Those that are given up are missed by number.
            let unkept = self.noted.len().saturating_sub(MOST_UNWRITTEN);
            self.noted.drain(..unkept);
            return;
        }
        self.noted.clear();
        self.head = head;
        // After the lines: were it before them, who dies between the two would seem to have removed some.
        if let Err(error) = self.write_head() {
            self.log.fail(error);
        }
    }

    /// Where the log ends.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// Why something could not be written.
    pub(crate) fn failure(&self) -> Option<&io::Error> {
        self.log.failure()
    }

    fn write_head(&mut self) -> io::Result<()> {
        let file = match &self.head_file {
            Some(file) => file,
            None => {
                let mut options = File::options();
                let file = options.write(true).create(true).truncate(false).open(&self.head_path);
                self.head_file.insert(file?)
            }
        };
        let pid = std::process::id();
        file.write_all_at(self.head.kept(Some(pid)).as_bytes(), 0)
    }
}

/// A command of a few words.
const LIKELY_LENGTH: u64 = 384;
/// Of events that cannot be written, so many wait for the disk to have room again.
const MOST_UNWRITTEN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use msb_wire::{Link, unchained};

    #[test]
    fn what_was_noted_is_written_at_once_and_in_a_chain() {
        let directory = std::env::temp_dir().join(format!("msb-events-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut events = Events::new(&directory, Head::first(), true);
        events.note(Happened::Created);
        assert!(!directory.join(state::EVENTS).exists());
        events.note(Happened::Draining);
        events.write();
        events.note(Happened::Repaired);
        events.write();
        let text = std::fs::read_to_string(directory.join(state::EVENTS)).unwrap();
        let mut link = Link::first();
        for line in text.lines() {
            let (content, chain) = unchained(line.as_bytes()).unwrap();
            link = link.next(&content);
            assert_eq!(link, chain, "{line}");
        }
        assert_eq!(events.head(), &Head { number: 3, chain: Some(link) });
        let head = std::fs::read_to_string(directory.join(state::HEAD)).unwrap();
        assert_eq!(Head::of_file(&head), Some((events.head().clone(), Some(std::process::id()))));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
