//! Flow control of one connection: pauses reads from a client while its commands do not read their
//! input.
//!
//! SSH has a window for each channel, but russh reopens it when bytes arrive and not when the
//! command has consumed them. So reads of the whole connection pause while too many bytes are
//! queued.
//!
//! A pause alone could deadlock: a command may write before it reads, and its output needs a window
//! adjustment or a key exchange message of the client, which is behind bytes that are not read. So
//! while a channel with queued input is blocked on its output, the connection trickles: a little is
//! read at growing intervals. The same happens one second after a pause begins, to notice a closed
//! peer and to answer keep-alive requests.
//!
//! A channel is closed if its client sends without end to a command that reads nothing for hours.
//! The window becomes small before the pause, so that few bytes precede the expected message, and
//! tiny during the pause.

use russh::ChannelId;
use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// Queued bytes at which reads pause: enough for a fast client to continue while a command is
/// scheduled, and little for a host with many clients.
const PAUSE_LIMIT: usize = 4 << 20;
const SMALL_WINDOW_LIMIT: usize = PAUSE_LIMIT / 2;
/// Queued bytes at which a channel is closed: a day of trickling with a tiny window for one channel
/// every two seconds; with more channels one and a half hours.
const ABORT_LIMIT: usize = 256 << 20;
/// Bytes that each message costs besides its data, so that empty messages count too.
const OVERHEAD: usize = 128;

/// Counters of queued input of one connection.
#[derive(Debug, Default)]
pub(crate) struct FlowControl(Mutex<FlowState>);

#[derive(Debug, Default)]
struct FlowState {
    waiting: usize,
    channels: HashMap<ChannelId, ChannelLoad>,
    /// Task that waits until reads may continue.
    reader: Option<Waker>,
    /// Tasks that wait for the client to send or to receive; woken on abort.
    io_wakers: [Option<Waker>; 2],
    /// Number of finished writes to the client.
    writes_done: u64,
    aborted: bool,
}

/// How a connection may be read now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadMode {
    /// Any number of bytes, at once.
    Open,
    /// A little at growing intervals; the counter changes when a write has finished.
    Trickle(u64),
}

/// Size of the windows that a client gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WindowSize {
    /// Large: few bytes are queued.
    Full,
    /// Two packets: reads will pause soon.
    Small,
    /// A few kilobytes: reads are paused.
    Tiny,
}

/// Direction of I/O that a task waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum IoDirection {
    /// Until the client sends something.
    Read,
    /// Until the client receives something.
    Write,
}

#[derive(Debug, Default)]
struct ChannelLoad {
    waiting: usize,
    writing: bool,
}

impl FlowControl {
    /// Registers a channel without queued bytes.
    pub(crate) fn channel_opened(&self, id: ChannelId) {
        self.state().channels.insert(id, ChannelLoad::default());
    }

    /// Counts input of a channel; false if the connection exceeds its limit.
    pub(crate) fn received(&self, id: ChannelId, bytes: usize) -> bool {
        let mut state = self.state();
        let Some(load) = state.channels.get_mut(&id) else { return true };
        load.waiting += bytes + OVERHEAD;
        state.waiting += bytes + OVERHEAD;
        state.waiting <= ABORT_LIMIT
    }

    /// Window size that fits the queued bytes.
    pub(crate) fn window(&self) -> WindowSize {
        match self.state().waiting {
            0..SMALL_WINDOW_LIMIT => WindowSize::Full,
            SMALL_WINDOW_LIMIT..PAUSE_LIMIT => WindowSize::Small,
            _ => WindowSize::Tiny,
        }
    }

    /// Counts input that the command has consumed.
    pub(crate) fn consumed(&self, id: ChannelId, bytes: usize) {
        let mut state = self.state();
        let Some(load) = state.channels.get_mut(&id) else { return };
        let part = load.waiting.min(bytes + OVERHEAD);
        load.waiting -= part;
        state.waiting -= part;
        state.wake();
    }

    /// Marks whether a channel is blocked on its output.
    pub(crate) fn set_writing(&self, id: ChannelId, writing: bool) {
        let mut state = self.state();
        if let Some(load) = state.channels.get_mut(&id) {
            load.writing = writing;
        }
        match writing {
            true => state.wake(),
            false => state.writes_done += 1,
        }
    }

    /// Removes a channel with its queued bytes.
    pub(crate) fn channel_closed(&self, id: ChannelId) {
        let mut state = self.state();
        let load = state.channels.remove(&id).unwrap_or_default();
        state.waiting -= load.waiting;
        state.wake();
    }

    /// Aborts the connection and wakes all tasks.
    pub(crate) fn abort(&self) {
        let mut state = self.state();
        state.aborted = true;
        state.wake();
        state.io_wakers.iter_mut().filter_map(Option::take).for_each(Waker::wake);
    }

    /// Fails if the connection was aborted; otherwise registers the task to be woken then.
    pub(crate) fn poll_aborted<T>(
        &self,
        wait: IoDirection,
        cx: &Context<'_>,
    ) -> Poll<io::Result<T>> {
        let mut state = self.state();
        if state.aborted {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let slot = &mut state.io_wakers[wait as usize];
        if !slot.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *slot = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Waits until the connection may be read.
    pub(crate) fn poll_readable(&self, cx: &Context<'_>) -> Poll<io::Result<ReadMode>> {
        let mut state = self.state();
        if state.aborted {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        match state.read_mode() {
            Some(ReadMode::Open) => Poll::Ready(Ok(ReadMode::Open)),
            other => {
                state.reader = Some(cx.waker().clone());
                other.map_or(Poll::Pending, |mode| Poll::Ready(Ok(mode)))
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, FlowState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FlowState {
    fn read_mode(&self) -> Option<ReadMode> {
        if self.waiting < PAUSE_LIMIT {
            return Some(ReadMode::Open);
        }
        let mut loads = self.channels.values();
        loads
            .any(|load| load.writing && load.waiting > 0)
            .then_some(ReadMode::Trickle(self.writes_done))
    }

    /// Wakes the reader if reads may continue.
    fn wake(&mut self) {
        if (self.aborted || self.read_mode().is_some())
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use russh::keys::ssh_encoding::Decode;

    fn id(number: u32) -> ChannelId {
        ChannelId::decode(&mut &number.to_be_bytes()[..]).unwrap()
    }

    fn is_open(flow: &FlowControl) -> bool {
        flow.poll_readable(&Context::from_waker(Waker::noop())).is_ready()
    }

    fn is_trickling(flow: &FlowControl) -> bool {
        let mode = flow.poll_readable(&Context::from_waker(Waker::noop()));
        matches!(mode, Poll::Ready(Ok(ReadMode::Trickle(_))))
    }

    #[test]
    fn a_command_that_does_not_read_pauses_reads() {
        let flow = FlowControl::default();
        flow.channel_opened(id(1));
        assert!(flow.received(id(1), PAUSE_LIMIT) && !is_open(&flow));
        assert_eq!(flow.window(), WindowSize::Tiny);
        flow.consumed(id(1), PAUSE_LIMIT);
        assert!(is_open(&flow));
        assert_eq!(flow.window(), WindowSize::Full);
    }

    #[test]
    fn a_channel_blocked_on_output_makes_reads_trickle() {
        let flow = FlowControl::default();
        flow.channel_opened(id(1));
        flow.channel_opened(id(2));
        flow.received(id(1), PAUSE_LIMIT);
        flow.set_writing(id(2), true);
        assert!(!is_open(&flow), "the second channel has no queued bytes");
        flow.set_writing(id(1), true);
        assert!(is_trickling(&flow));
        flow.set_writing(id(1), false);
        assert!(!is_open(&flow));
        flow.channel_closed(id(1));
        assert!(is_open(&flow));
    }

    #[test]
    fn the_limit_is_reported_and_empty_messages_count() {
        let flow = FlowControl::default();
        flow.channel_opened(id(1));
        assert!(!flow.received(id(1), ABORT_LIMIT));
        flow.channel_closed(id(1));
        flow.channel_opened(id(1));
        for _ in 0..PAUSE_LIMIT / OVERHEAD {
            flow.received(id(1), 0);
        }
        assert!(!is_open(&flow));
        flow.abort();
        assert!(is_open(&flow), "an abort wakes the reader");
    }
}
