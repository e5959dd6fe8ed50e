//! The client's side of a connection to a worker, without I/O: received bytes in, events out.
//!
//! Every program that talks to a worker uses it, each with its own kind of socket. It checks the
//! order of replies, so that a reader needs to handle the events alone.

use crate::MAX_REQUEST;
use crate::frame::{Decoder, Frame, FrameError, FrameKind, Piece, encode, header};
use crate::request::{Hello, Reply, Request};
use msb_spec::{Error, Exit, TermSize};
use std::fmt::{self, Display};
use std::io;

/// A message of a client to its worker.
#[derive(Debug, Clone, Copy)]
pub enum ClientMessage<'a> {
    /// The first message of a connection, with its request.
    Hello(&'a Request),
    /// Bytes for the stdin of the command; none close it.
    Stdin(&'a [u8]),
    /// The terminal of the client has this size now.
    Resize(TermSize),
    /// A signal for the command, by its number.
    Signal(i32),
    /// The client disconnects and the command goes on.
    Detach,
    /// Patches are applied, and the first command may start.
    Go,
    /// The reader of stdout (1) or stderr (2) is gone.
    CloseOutput(u8),
}

impl ClientMessage<'_> {
    /// The message as one frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        self.append_to(&mut frame);
        frame
    }

    /// Appends the message as one frame to a send queue.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let mut raw = |kind, payload: &[u8]| {
            out.extend_from_slice(&header(kind, payload.len()));
            out.extend_from_slice(payload);
        };
        match *self {
            Self::Stdin(bytes) => raw(FrameKind::Stdin, bytes),
            Self::Detach => raw(FrameKind::Detach, &[]),
            Self::Go => raw(FrameKind::Go, &[]),
            Self::CloseOutput(stream) => raw(FrameKind::CloseOutput, &[stream]),
            Self::Hello(request) => {
                out.extend_from_slice(&encode(FrameKind::Hello, &Hello::new(request.clone())));
            }
            Self::Resize(size) => out.extend_from_slice(&encode(FrameKind::Resize, &size)),
            Self::Signal(number) => out.extend_from_slice(&encode(FrameKind::Signal, &number)),
        }
    }
}

/// A message of a worker to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// The guest of a new sandbox runs.
    Ready,
    /// The command has started.
    Started {
        /// Number of the Exec in its sandbox.
        id: u64,
        /// Pid of the command inside the sandbox.
        pid: u32,
    },
    /// Bytes from stdout, or from the terminal.
    Stdout(Vec<u8>),
    /// Bytes from stderr of the command.
    Stderr(Vec<u8>),
    /// The command has ended; the last event.
    Exited(Exit),
    /// The answer to another request; the last event.
    Reply(Reply),
}

/// Why a connection to a worker cannot go on.
#[derive(Debug)]
pub enum ClientError {
    /// The worker refused the request with this error.
    Refused(Error),
    /// The bytes are no valid frame.
    Malformed(FrameError),
    /// A valid frame that may not come now.
    OutOfTurn(&'static str),
    /// The connection was closed within a frame.
    Truncated,
    /// The socket of the client failed with this error.
    Socket(io::Error),
}

impl ClientError {
    /// The worker's own error, or one that `broken` makes of the reason.
    pub fn into_error(self, broken: impl FnOnce(&dyn Display) -> Error) -> Error {
        match self {
            Self::Refused(error) => error,
            other => broken(&other),
        }
    }
}

impl Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(error) => error.fmt(f),
            Self::Malformed(error) => error.fmt(f),
            Self::OutOfTurn(what) => f.write_str(what),
            Self::Truncated => f.write_str("it closed the connection within a frame"),
            Self::Socket(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<FrameError> for ClientError {
    fn from(error: FrameError) -> Self {
        Self::Malformed(error)
    }
}

/// How far the replies on a connection have come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReplyState {
    Nothing,
    Ready,
    Started,
    Ended,
}

/// The client's side of one connection.
#[derive(Debug)]
pub struct WorkerClient {
    decoder: Decoder,
    state: ReplyState,
}

impl Default for WorkerClient {
    fn default() -> Self {
        Self { decoder: Decoder::new(MAX_REQUEST), state: ReplyState::Nothing }
    }
}

impl WorkerClient {
    /// Takes bytes that were received.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// The worker has closed the connection. An error, if that is within a frame.
    pub fn receive_end(&self) -> Result<(), ClientError> {
        if self.decoder.is_midway() { Err(ClientError::Truncated) } else { Ok(()) }
    }

    /// Bytes that are missing for the next step. A reader that takes no more leaves what follows
    /// the next event in the socket.
    pub fn missing(&self) -> Result<usize, ClientError> {
        Ok(self.decoder.missing()?)
    }

    /// The next event; `None` if more bytes are needed.
    ///
    /// - `Ready` and `Started` come once each, in this order; either may be left out.
    /// - Output may come before `Started`: a short command writes before its start is reported.
    /// - Nothing follows `Exited`, another reply or a refusal.
    pub fn next_event(&mut self) -> Result<Option<WorkerEvent>, ClientError> {
        let Some(frame) = self.decoder.next_frame()? else { return Ok(None) };
        if self.state == ReplyState::Ended {
            return Err(ClientError::OutOfTurn("it sent more than its last reply"));
        }
        match frame.kind {
            FrameKind::Stdout => Ok(Some(WorkerEvent::Stdout(frame.payload))),
            FrameKind::Stderr => Ok(Some(WorkerEvent::Stderr(frame.payload))),
            FrameKind::Reply => self.on_reply(frame.value()?).map(Some),
            _ => Err(ClientError::OutOfTurn("it sent a frame that is no reply")),
        }
    }

    fn on_reply(&mut self, reply: Reply) -> Result<WorkerEvent, ClientError> {
        let (next, event) = match reply {
            Reply::Ready => (ReplyState::Ready, WorkerEvent::Ready),
            Reply::Started { id, pid } => (ReplyState::Started, WorkerEvent::Started { id, pid }),
            Reply::Failed(error) => {
                self.state = ReplyState::Ended;
                return Err(ClientError::Refused(error));
            }
            Reply::Exited(exit) => (ReplyState::Ended, WorkerEvent::Exited(exit)),
            _ if self.state == ReplyState::Started => {
                return Err(ClientError::OutOfTurn(
                    "it sent a reply that is not about the command",
                ));
            }
            reply => (ReplyState::Ended, WorkerEvent::Reply(reply)),
        };
        // An init system takes PID 1 over after the guest was ready: `Ready` comes again then.
        let is_again = next == self.state && next != ReplyState::Ready;
        if next < self.state || is_again {
            return Err(ClientError::OutOfTurn("it reported the start of a command twice"));
        }
        self.state = next;
        Ok(event)
    }

    /// The next frame of a guest, on a connection that was passed to one. The order of its frames
    /// is not checked.
    pub fn next_guest_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        self.decoder.next_frame()
    }

    /// Streams `left` bytes of a guest's file to `take`: first what was received, then from `read`,
    /// which fills the buffer that it is given.
    pub fn stream<E: From<FrameError>>(
        &mut self,
        left: u64,
        buffer: &mut [u8],
        read: impl FnMut(&mut [u8]) -> Result<usize, E>,
        take: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.decoder.stream(left, buffer, read, take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HEADER;
    use msb_spec::{Ending, Kind};

    const EXIT: Exit = Exit { code: Some(3), signal: None, ending: Ending::Own, reached: None };

    fn reply(reply: &Reply) -> Vec<u8> {
        encode(FrameKind::Reply, reply)
    }

    fn raw(kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        [&header(kind, payload.len())[..], payload].concat()
    }

    fn started() -> Vec<u8> {
        reply(&Reply::Started { id: 7, pid: 42 })
    }

    /// The frames of a first command, and the events that they are.
    fn session() -> (Vec<u8>, Vec<WorkerEvent>) {
        let frames = [
            reply(&Reply::Ready),
            started(),
            raw(FrameKind::Stdout, b"out"),
            raw(FrameKind::Stderr, b""),
            raw(FrameKind::Stderr, b"err"),
            reply(&Reply::Exited(EXIT)),
        ];
        let events = [
            WorkerEvent::Ready,
            WorkerEvent::Started { id: 7, pid: 42 },
            WorkerEvent::Stdout(b"out".to_vec()),
            WorkerEvent::Stderr(Vec::new()),
            WorkerEvent::Stderr(b"err".to_vec()),
            WorkerEvent::Exited(EXIT),
        ];
        (frames.concat(), events.to_vec())
    }

    fn events(client: &mut WorkerClient) -> Vec<WorkerEvent> {
        std::iter::from_fn(|| client.next_event().unwrap()).collect()
    }

    /// Feeds the frames; the last result of the client.
    fn last(frames: &[Vec<u8>]) -> Result<Option<WorkerEvent>, ClientError> {
        let mut client = WorkerClient::default();
        client.receive(&frames.concat());
        for _ in 1..frames.len() {
            client.next_event().unwrap().unwrap();
        }
        client.next_event()
    }

    #[test]
    fn a_session_is_the_same_however_its_bytes_are_split() {
        let (bytes, expected) = session();
        for cut in 0..=bytes.len() {
            let mut client = WorkerClient::default();
            client.receive(&bytes[..cut]);
            let mut all = events(&mut client);
            client.receive(&bytes[cut..]);
            all.extend(events(&mut client));
            assert_eq!(all, expected, "cut at {cut}");
            client.receive_end().unwrap();
        }
        for step in 1..bytes.len() {
            let mut client = WorkerClient::default();
            let mut all = Vec::new();
            for piece in bytes.chunks(step) {
                client.receive(piece);
                all.extend(events(&mut client));
            }
            assert_eq!(all, expected, "in pieces of {step}");
        }
    }

    #[test]
    fn a_reader_of_missing_bytes_stops_at_the_end_of_each_event() {
        let (bytes, expected) = session();
        let (mut client, mut at) = (WorkerClient::default(), 0);
        for event in expected {
            let received = loop {
                if let Some(received) = client.next_event().unwrap() {
                    break received;
                }
                let n = client.missing().unwrap();
                assert!(n > 0, "no event, though nothing is missing");
                client.receive(&bytes[at..at + n]);
                at += n;
            };
            assert_eq!(received, event);
            client.receive_end().unwrap();
        }
        assert_eq!(at, bytes.len());
    }

    #[test]
    fn an_end_within_a_frame_is_an_error_and_between_frames_it_is_none() {
        let (bytes, _) = session();
        let mut boundaries = vec![0];
        while let Some(&at) = boundaries.last().filter(|at| **at < bytes.len()) {
            let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            boundaries.push(at + HEADER + length as usize);
        }
        for cut in 0..=bytes.len() {
            let mut client = WorkerClient::default();
            client.receive(&bytes[..cut]);
            events(&mut client);
            let whole = boundaries.contains(&cut);
            assert_eq!(client.receive_end().is_ok(), whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_hostile_length_is_refused_by_its_header() {
        for length in [MAX_REQUEST as u32 + 1, u32::MAX] {
            let [a, b, c, d] = length.to_le_bytes();
            let mut client = WorkerClient::default();
            client.receive(&[a, b, c, d, FrameKind::Stdout as u8]);
            assert!(client.missing().is_err());
            let error = client.next_event().unwrap_err();
            let limit = FrameError::TooLong { length: length as usize, limit: MAX_REQUEST };
            assert!(matches!(error, ClientError::Malformed(error) if error == limit));
        }
        // The longest frame that is allowed only waits for its bytes.
        let mut client = WorkerClient::default();
        client.receive(&header(FrameKind::Stdout, MAX_REQUEST));
        assert_eq!(client.missing().unwrap(), MAX_REQUEST);
        assert_eq!(client.next_event().unwrap(), None);
    }

    #[test]
    fn malformed_replies_are_refused() {
        let trailing = [postcard::to_allocvec(&Reply::Ready).unwrap(), vec![0]].concat();
        for payload in [&[][..], &[0xff; 8], &trailing] {
            let error = last(&[raw(FrameKind::Reply, payload)]).unwrap_err();
            assert!(matches!(error, ClientError::Malformed(FrameError::Payload)), "{payload:?}");
        }
        let error = last(&[vec![0, 0, 0, 0, 99]]).unwrap_err();
        assert!(matches!(error, ClientError::Malformed(FrameError::UnknownKind(99))));
    }

    #[test]
    fn frames_out_of_turn_are_refused() {
        let exited = reply(&Reply::Exited(EXIT));
        let output = raw(FrameKind::Stdout, b"late");
        let ready = reply(&Reply::Ready);
        for frames in [
            vec![started(), started()],
            vec![started(), ready.clone()],
            vec![started(), reply(&Reply::Done)],
            vec![exited.clone(), exited.clone()],
            vec![exited.clone(), output.clone()],
            vec![exited, started()],
            vec![reply(&Reply::Done), output.clone()],
            vec![reply(&Reply::Done), reply(&Reply::Done)],
        ] {
            let error = last(&frames).unwrap_err();
            assert!(matches!(error, ClientError::OutOfTurn(_)), "{frames:?}");
        }
        // With an init system the worker is ready a second time.
        assert!(last(&[ready.clone(), ready, started()]).is_ok());
        for kind in [FrameKind::Hello, FrameKind::Stdin, FrameKind::Control, FrameKind::Link] {
            let error = last(&[raw(kind, b"")]).unwrap_err();
            assert!(matches!(error, ClientError::OutOfTurn(_)), "{kind:?}");
        }
    }

    #[test]
    fn a_refusal_is_the_workers_own_error_and_the_last_word() {
        let refused = reply(&Reply::Failed(Error::new(Kind::NotFound, "no Exec `9` runs")));
        let mut client = WorkerClient::default();
        client.receive(&[refused.clone(), refused].concat());
        let error = client.next_event().unwrap_err().into_error(|_| Error::invalid("broken"));
        assert_eq!((error.kind(), error.message()), (Kind::NotFound, "no Exec `9` runs"));
        let error = client.next_event().unwrap_err().into_error(|_| Error::invalid("broken"));
        assert_eq!(error.message(), "broken");
    }

    #[test]
    fn output_may_come_before_the_start_is_reported() {
        let (output, exit) = (raw(FrameKind::Stdout, b"x"), reply(&Reply::Exited(EXIT)));
        let mut client = WorkerClient::default();
        client.receive(&[output, started(), exit].concat());
        assert_eq!(events(&mut client).len(), 3);
    }

    #[test]
    fn messages_are_the_frames_that_a_worker_decodes() {
        for (message, kind, payload) in [
            (ClientMessage::Stdin(b"in"), FrameKind::Stdin, &b"in"[..]),
            (ClientMessage::Stdin(b""), FrameKind::Stdin, b""),
            (ClientMessage::Detach, FrameKind::Detach, b""),
            (ClientMessage::Go, FrameKind::Go, b""),
            (ClientMessage::CloseOutput(2), FrameKind::CloseOutput, b"\x02"),
        ] {
            assert_eq!(message.encode(), raw(kind, payload), "{message:?}");
        }
        let size = TermSize { rows: 24, cols: 80 };
        assert_eq!(ClientMessage::Resize(size).encode(), encode(FrameKind::Resize, &size));
        assert_eq!(ClientMessage::Signal(15).encode(), encode(FrameKind::Signal, &15i32));
        let hello = Hello::new(Request::List);
        assert_eq!(ClientMessage::Hello(&Request::List).encode(), encode(FrameKind::Hello, &hello));
    }
}
