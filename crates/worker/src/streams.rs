//! Streams that lead into the sandbox, while they are open.
//!
//! The worker has handed them on and sees nothing of what they carry. Whoever is at the other end
//! would wait for ever if what they lead to were paused, so they count as something that happens.

use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, PipeReader, PipeWriter};

/// More are not counted: each takes a descriptor of the worker's.
const MOST: usize = 256;

/// The other ends of pipes that the processes of streams keep open until they end.
#[derive(Debug, Default)]
pub(crate) struct Streams(Vec<PipeReader>);

impl Streams {
    /// Counts one more; what its process is to keep open. None if it is not counted.
    pub(crate) fn add(&mut self) -> Option<PipeWriter> {
        if self.open() >= MOST {
            return None;
        }
        let (ours, theirs) = io::pipe().ok()?;
        self.0.push(ours);
        Some(theirs)
    }

    /// How many are open.
    pub(crate) fn open(&mut self) -> usize {
        self.0.retain(|stream| !has_ended(stream));
        self.0.len()
    }
}

fn has_ended(stream: &PipeReader) -> bool {
    let mut wait = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut wait, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_open_until_its_process_has_gone() {
        let mut streams = Streams::default();
        let (one, other) = (streams.add().unwrap(), streams.add().unwrap());
        assert_eq!(streams.open(), 2);
        drop(one);
        assert_eq!(streams.open(), 1);
        drop(other);
        assert_eq!(streams.open(), 0);
    }
}
