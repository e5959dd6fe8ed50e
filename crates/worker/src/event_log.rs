//! The event log: one JSON line per event, linked by a hash chain so that a missing line is
//! detected.
//!
//! Events are buffered and written together, before a client is told that a command ended and
//! before the worker waits. There is no fsync: a crash of the host loses what the kernel has not
//! written.

use crate::log::{BoundedLog, now_ms};
use msb_spec::state;
use msb_wire::Head;
use msb_wire::record::{Event, EventKind};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The event log of one sandbox.
#[derive(Debug)]
pub(crate) struct EventLog {
    log: BoundedLog,
    head: Head,
    head_path: PathBuf,
    head_file: Option<File>,
    /// Events that are not written yet.
    pending: Vec<Event>,
    /// Number of the last event, written or not.
    number: u64,
    /// False for an ephemeral sandbox: the log would be removed with it.
    kept: bool,
}

impl EventLog {
    pub(crate) fn new(directory: &Path, head: Head, kept: bool) -> Self {
        let number = head.number;
        let log = BoundedLog::of_lines(directory, state::EVENTS);
        let head_path = directory.join(state::HEAD);
        Self { log, head, head_path, head_file: None, pending: Vec::new(), number, kept }
    }

    /// Adds an event to the buffer.
    pub(crate) fn append(&mut self, happened: EventKind) {
        self.number += 1;
        if self.kept {
            self.pending.push(Event::new(self.number, now_ms(), happened));
        }
    }

    /// Writes the buffered events.
    pub(crate) fn flush(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        // The head file comes before the first line: a log without one counts as truncated.
        if self.head_file.is_none()
            && let Err(error) = self.write_head()
        {
            self.log.fail(error);
        }
        // An estimate: a command is recorded with at most 4 KiB. A log may exceed its limit a
        // little.
        let mut is_first = self.log.make_room(self.pending.len() as u64 * EXPECTED_LINE);
        let mut lines = Vec::with_capacity(self.pending.len() * EXPECTED_LINE as usize);
        let mut head = self.head.clone();
        for event in &self.pending {
            head.append(event.clone(), std::mem::take(&mut is_first), &mut lines);
        }
        if !self.log.lines(&lines) {
            // The disk may have room next time. Dropped events are detected by the gap in the
            // numbers.
            let dropped = self.pending.len().saturating_sub(MAX_UNWRITTEN);
            self.pending.drain(..dropped);
            return;
        }
        self.pending.clear();
        self.head = head;
        // The head comes after the lines. The other way round, a crash between the two would look
        // as if lines had been removed.
        if let Err(error) = self.write_head() {
            self.log.fail(error);
        }
    }

    /// Number and hash of the last written event.
    pub(crate) fn head(&self) -> &Head {
        &self.head
    }

    /// The first error while writing.
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

/// Bytes of an event about a short command.
const EXPECTED_LINE: u64 = 384;
/// Events that are buffered while the disk is full; older ones are dropped.
const MAX_UNWRITTEN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use msb_wire::{Link, unchained};

    #[test]
    fn pending_events_are_written_together_as_a_hash_chain() {
        let directory = std::env::temp_dir().join(format!("msb-events-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut events = EventLog::new(&directory, Head::first(), true);
        events.append(EventKind::Created);
        assert!(!directory.join(state::EVENTS).exists());
        events.append(EventKind::Draining);
        events.flush();
        events.append(EventKind::Repaired);
        events.flush();
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
