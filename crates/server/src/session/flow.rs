//! Flow control: the sender of frames, the credit of each stream, and input that waits.

use super::frame::{SessionFrameKind, header};
use msb_spec::{Error, Kind, Result};
use serde::Serialize;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that each side may send on a stream before it needs credit.
pub(crate) const INITIAL_CREDIT: u64 = 256 << 10;
/// Most bytes of one frame with output, so that streams take turns.
const LARGEST_PIECE: usize = 64 << 10;
/// Credit is granted in steps of this many bytes.
const CREDIT_STEP: u64 = INITIAL_CREDIT / 4;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes frames to the client, one at a time.
pub(crate) struct FrameSender(Mutex<Box<dyn Write + Send>>);

impl FrameSender {
    pub(crate) fn new(out: Box<dyn Write + Send>) -> Self {
        Self(Mutex::new(out))
    }

    /// Writes one frame. Fails if the client is gone.
    pub(crate) fn send(&self, kind: SessionFrameKind, stream: u32, payload: &[u8]) -> Result<()> {
        let mut frame = Vec::with_capacity(16 + payload.len());
        frame.extend_from_slice(&header(kind, stream, payload.len()));
        frame.extend_from_slice(payload);
        let mut out = lock(&self.0);
        let written = out.write_all(&frame).and_then(|()| out.flush());
        written.map_err(|error| Error::new(Kind::State, "the client is gone").cause(error))
    }

    /// Writes a frame with JSON.
    pub(crate) fn send_json(
        &self,
        kind: SessionFrameKind,
        stream: u32,
        value: &impl Serialize,
    ) -> Result<()> {
        let text = serde_json::to_vec(value)
            .map_err(|error| Error::host("cannot encode a message", error))?;
        self.send(kind, stream, &text)
    }
}

/// How many bytes may still be sent on a stream.
#[derive(Debug)]
pub(crate) struct SendCredit {
    state: Mutex<CreditState>,
    changed: Condvar,
}

#[derive(Debug)]
struct CreditState {
    left: u64,
    closed: bool,
}

impl Default for SendCredit {
    fn default() -> Self {
        let state = CreditState { left: INITIAL_CREDIT, closed: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl SendCredit {
    /// Adds credit of the client.
    pub(crate) fn add(&self, bytes: u32) {
        let mut state = lock(&self.state);
        state.left = state.left.saturating_add(u64::from(bytes));
        self.changed.notify_all();
    }

    /// Ends every wait for credit: the stream is cancelled.
    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }

    /// Waits for credit and takes up to `wanted` bytes of it.
    fn take(&self, wanted: usize) -> Result<usize> {
        let mut state = lock(&self.state);
        while state.left == 0 && !state.closed {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return Err(cancelled());
        }
        let taken = usize::try_from(state.left).unwrap_or(usize::MAX).min(wanted);
        state.left -= taken as u64;
        Ok(taken)
    }

    /// Waits for any credit and takes all of `bytes`, even beyond it: JSON is not cut.
    fn take_whole(&self, bytes: usize) -> Result<()> {
        let taken = self.take(bytes)?;
        let mut state = lock(&self.state);
        state.left = state.left.saturating_sub((bytes - taken) as u64);
        Ok(())
    }
}

/// The error of a call that was cancelled.
pub(crate) fn cancelled() -> Error {
    Error::new(Kind::State, "the call was cancelled")
}

/// The output side of one stream.
#[derive(Clone)]
pub(crate) struct StreamSender {
    pub(crate) stream: u32,
    pub(crate) frames: Arc<FrameSender>,
    pub(crate) credit: Arc<SendCredit>,
}

impl StreamSender {
    /// Sends bytes as the client grants credit for them.
    pub(crate) fn bytes(&self, kind: SessionFrameKind, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let (piece, rest) = bytes.split_at(self.credit.take(bytes.len().min(LARGEST_PIECE))?);
            self.frames.send(kind, self.stream, piece)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Sends an event. It waits while the client grants no credit.
    pub(crate) fn event(&self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_vec(value)
            .map_err(|error| Error::host("cannot encode an event", error))?;
        self.credit.take_whole(text.len())?;
        self.frames.send(SessionFrameKind::Event, self.stream, &text)
    }
}

impl Write for StreamSender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.bytes(SessionFrameKind::Data, bytes);
        sent.map(|()| bytes.len()).map_err(|error| io::Error::other(error.to_string()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Input of the client for one stream, in order. What waits is bounded by the granted credit.
pub(crate) struct StreamInput {
    state: Mutex<InputState>,
    changed: Condvar,
}

struct InputState {
    waiting: VecDeque<InputItem>,
    /// Messages that must not wait behind bytes that the command does not read.
    controls: VecDeque<Vec<u8>>,
    /// Starts the thread that applies messages, at the first one.
    start_controls: Option<StartControls>,
    /// Bytes that the client may still send.
    granted: u64,
    /// Consumed bytes for which no credit was granted yet.
    consumed: u64,
    ended: bool,
    /// Whether a reader takes the bytes, or has one piece that it has not passed on yet.
    reader: InputReaderState,
}

/// What the reader of a stream does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputReaderState {
    /// No thread reads this input.
    Absent,
    /// It waits for the next piece.
    Waiting,
    /// It has a piece that the command has not taken yet.
    PassingOn,
}

type StartControls = Box<dyn FnOnce() + Send>;

/// One piece of input.
#[derive(Debug)]
pub(crate) enum InputItem {
    /// Bytes of stdin, a file or an archive.
    Bytes(Vec<u8>),
    /// The client sends no more bytes.
    End,
}

/// Messages for a command that may wait while it does not read.
const MOST_CONTROLS: usize = 256;

impl Default for StreamInput {
    fn default() -> Self {
        let state = InputState {
            waiting: VecDeque::new(),
            controls: VecDeque::new(),
            start_controls: None,
            granted: INITIAL_CREDIT,
            consumed: 0,
            ended: false,
            reader: InputReaderState::Absent,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl StreamInput {
    /// Bytes are going to be read.
    pub(crate) fn expect_reader(&self) {
        lock(&self.state).reader = InputReaderState::Waiting;
    }

    /// Waits until the reader has passed on everything so far, or the stream is over.
    pub(crate) fn wait_until_read(&self) {
        let mut state = lock(&self.state);
        while !state.ended
            && state.reader != InputReaderState::Absent
            && (!state.waiting.is_empty() || state.reader == InputReaderState::PassingOn)
        {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Queues input. Bytes beyond the credit violate the protocol.
    pub(crate) fn push(&self, item: InputItem) -> Result<()> {
        let mut state = lock(&self.state);
        if let InputItem::Bytes(bytes) = &item {
            let length = bytes.len() as u64;
            if length > state.granted {
                return Err(super::frame::violation("more data than there is credit for"));
            }
            state.granted -= length;
        }
        state.waiting.push_back(item);
        self.changed.notify_all();
        Ok(())
    }

    /// Queues a JSON message for a running command.
    pub(crate) fn push_control(&self, message: Vec<u8>) -> Result<()> {
        let mut state = lock(&self.state);
        if state.controls.len() >= MOST_CONTROLS {
            return Err(super::frame::violation("too many messages for one command"));
        }
        state.controls.push_back(message);
        let start = state.start_controls.take();
        drop(state);
        self.changed.notify_all();
        if let Some(start) = start {
            start();
        }
        Ok(())
    }

    /// Sets what starts the reader of messages, and calls it if one waits already.
    pub(crate) fn when_controlled(&self, start: impl FnOnce() + Send + 'static) {
        let mut state = lock(&self.state);
        if state.controls.is_empty() {
            state.start_controls = Some(Box::new(start));
            return;
        }
        drop(state);
        start();
    }

    /// Waits for the next message for a command; none once the stream is over.
    pub(crate) fn next_control(&self) -> Option<Vec<u8>> {
        let mut state = lock(&self.state);
        loop {
            if state.ended {
                return None;
            }
            if let Some(message) = state.controls.pop_front() {
                return Some(message);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the waiting of the reader: the stream is over.
    pub(crate) fn close(&self) {
        let mut state = lock(&self.state);
        state.ended = true;
        // It may hold the last references to the stream.
        let start = state.start_controls.take();
        drop((state, start));
        self.changed.notify_all();
    }

    /// Waits for the next piece of input; none once the stream is over.
    pub(crate) fn next(&self) -> Option<InputItem> {
        let mut state = lock(&self.state);
        state.reader = InputReaderState::Waiting;
        self.changed.notify_all();
        loop {
            if state.ended {
                return None;
            }
            if let Some(item) = state.waiting.pop_front() {
                state.reader = InputReaderState::PassingOn;
                return Some(item);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Grants credit for bytes that were consumed.
    pub(crate) fn consumed(&self, bytes: usize, stream: u32, frames: &FrameSender) -> Result<()> {
        let mut state = lock(&self.state);
        state.consumed += bytes as u64;
        if state.consumed < CREDIT_STEP {
            return Ok(());
        }
        let granted = std::mem::take(&mut state.consumed);
        state.granted += granted;
        drop(state);
        let granted = u32::try_from(granted).unwrap_or(u32::MAX);
        frames.send(SessionFrameKind::Credit, stream, &granted.to_le_bytes())
    }
}

/// Reads the input of a stream as a file: an upload.
pub(crate) struct InputReader {
    pub(crate) input: Arc<StreamInput>,
    pub(crate) stream: u32,
    pub(crate) frames: Arc<FrameSender>,
    rest: Vec<u8>,
    at: usize,
    over: bool,
}

impl InputReader {
    pub(crate) fn new(input: Arc<StreamInput>, stream: u32, frames: Arc<FrameSender>) -> Self {
        Self { input, stream, frames, rest: Vec::new(), at: 0, over: false }
    }
}

impl Read for InputReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.at == self.rest.len() {
            if self.over {
                return Ok(0);
            }
            match self.input.next() {
                Some(InputItem::Bytes(bytes)) => (self.rest, self.at) = (bytes, 0),
                Some(InputItem::End) => self.over = true,
                // A part of a file must not pass for the whole.
                None => return Err(io::Error::other("the call was cancelled")),
            }
        }
        let length = out.len().min(self.rest.len() - self.at);
        out[..length].copy_from_slice(&self.rest[self.at..self.at + length]);
        self.at += length;
        self.input
            .consumed(length, self.stream, &self.frames)
            .map_err(|error| io::Error::other(error.to_string()))?;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that keeps what it is sent.
    #[derive(Clone, Default)]
    struct Received(Arc<Mutex<Vec<u8>>>);

    impl Write for Received {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn sender(received: &Received) -> StreamSender {
        StreamSender {
            stream: 3,
            frames: Arc::new(FrameSender::new(Box::new(received.clone()))),
            credit: Arc::default(),
        }
    }

    #[test]
    fn output_waits_for_credit() {
        let received = Received::default();
        let out = sender(&received);
        let bytes = vec![1_u8; 300 << 10];
        let writer = {
            let out = out.clone();
            std::thread::spawn(move || out.bytes(SessionFrameKind::Stdout, &bytes))
        };
        // Everything that the first credit allows, and its headers.
        while lock(&received.0).len() < (256 << 10) + 4 * 9 {
            std::thread::yield_now();
        }
        assert!(!writer.is_finished());
        out.credit.add(44 << 10);
        assert!(writer.join().expect("it does not panic").is_ok());
        assert_eq!(lock(&received.0).len(), (300 << 10) + 5 * 9);
    }

    #[test]
    fn a_cancelled_stream_waits_for_nothing() {
        let out = sender(&Received::default());
        out.bytes(SessionFrameKind::Data, &vec![0; 256 << 10]).expect("there is credit");
        let waiting = {
            let out = out.clone();
            std::thread::spawn(move || out.event(&"later"))
        };
        out.credit.close();
        assert!(waiting.join().expect("it does not panic").is_err());
    }

    #[test]
    fn input_beyond_the_credit_is_a_violation() {
        let input = StreamInput::default();
        input.push(InputItem::Bytes(vec![0; 200 << 10])).expect("within the credit");
        let beyond = input.push(InputItem::Bytes(vec![0; 57 << 10])).expect_err("beyond");
        assert_eq!(beyond.kind(), Kind::Protocol);
    }

    #[test]
    fn messages_do_not_wait_behind_bytes() {
        let input = Arc::new(StreamInput::default());
        let started = Arc::new(Mutex::new(0));
        input.push(InputItem::Bytes(vec![0; 10])).expect("within the credit");
        let count = Arc::clone(&started);
        input.when_controlled(move || *lock(&count) += 1);
        assert_eq!(*lock(&started), 0);
        for message in [b"1", b"2"] {
            input.push_control(message.to_vec()).expect("a few");
        }
        assert_eq!(*lock(&started), 1);
        assert_eq!(input.next_control().as_deref(), Some(&b"1"[..]));
        assert_eq!(input.next_control().as_deref(), Some(&b"2"[..]));
        for _ in 0..MOST_CONTROLS {
            input.push_control(Vec::new()).expect("within the limit");
        }
        assert!(input.push_control(Vec::new()).is_err());
        input.close();
        assert_eq!(input.next_control(), None);
    }

    #[test]
    fn an_upload_is_whole_or_an_error() {
        let received = Received::default();
        let frames = sender(&received).frames;
        let input = Arc::new(StreamInput::default());
        input.push(InputItem::Bytes(vec![7; 100 << 10])).expect("within the credit");
        input.push(InputItem::End).expect("always");
        let mut read = Vec::new();
        let mut reader = InputReader::new(Arc::clone(&input), 1, Arc::clone(&frames));
        assert_eq!(reader.read_to_end(&mut read).expect("whole"), 100 << 10);
        assert!(!lock(&received.0).is_empty(), "credit is granted for what was consumed");

        let cut = Arc::new(StreamInput::default());
        cut.push(InputItem::Bytes(vec![7; 10])).expect("within the credit");
        let mut reader = InputReader::new(Arc::clone(&cut), 1, frames);
        let mut piece = [0; 10];
        reader.read_exact(&mut piece).expect("ten bytes");
        cut.close();
        assert!(reader.read_to_end(&mut read).is_err());
    }
}
