//! Streams into the sandbox that are open.
//!
//! The worker has passed their sockets to the guest and cannot see the traffic. A peer would hang
//! if the sandbox were paused, so open streams count as activity.

use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, PipeReader, PipeWriter};

/// Further streams are not counted: each takes a descriptor of the worker.
const MAX_STREAMS: usize = 256;

/// Read ends of pipes. Each stream process holds one write end until it exits.
#[derive(Debug, Default)]
pub(crate) struct OpenStreams(Vec<PipeReader>);

impl OpenStreams {
    /// Counts one more stream. Returns the pipe end for its process, or none at the limit.
    pub(crate) fn add(&mut self) -> Option<PipeWriter> {
        if self.count() >= MAX_STREAMS {
            return None;
        }
        let (ours, theirs) = io::pipe().ok()?;
        self.0.push(ours);
        Some(theirs)
    }

    /// Number of open streams.
    pub(crate) fn count(&mut self) -> usize {
        self.0.retain(|stream| !is_closed(stream));
        self.0.len()
    }
}

fn is_closed(stream: &PipeReader) -> bool {
    let mut wait = [PollFd::new(stream, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut wait, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_open_until_its_process_has_gone() {
        let mut streams = OpenStreams::default();
        let (one, other) = (streams.add().unwrap(), streams.add().unwrap());
        assert_eq!(streams.count(), 2);
        drop(one);
        assert_eq!(streams.count(), 1);
        drop(other);
        assert_eq!(streams.count(), 0);
    }
}
