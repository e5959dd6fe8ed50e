//! A connection to a running sandbox's worker.

use msb_spec::{Error, Kind, Name, Result, state};
use msb_wire::{
    ClientError, ClientMessage, Frame, FrameError, FrameKind, MAX_CHUNK, Piece, Reply, Request,
    WorkerClient, WorkerEvent,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// The result of waiting for an event of the worker.
#[derive(Debug)]
pub(crate) enum EventWait {
    Event(WorkerEvent),
    /// The worker has refused the request.
    Refused(Error),
    /// The worker has closed the connection.
    Closed,
    /// No event arrived before the deadline.
    TimedOut,
}

/// The read and write timeout of file operations. Removing a large tree is the slowest step without
/// traffic; a guest that is silent for longer was stopped from inside.
const GUEST_SILENCE: Duration = Duration::from_secs(120);

/// A connection to a worker: one request and its replies.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    client: WorkerClient,
    /// Allocated on first use: callers that take the stream never read here.
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects to the worker of a sandbox and sends the request.
    pub(crate) fn open(directory: &Path, name: &Name, request: &Request) -> Result<Self> {
        let socket = msb_sys::socket::connect(directory, state::SOCKET).map_err(|error| {
            let stopped = Error::new(Kind::State, format!("sandbox `{name}` is not running"))
                .hint(format!("`msb start {name}` starts it"));
            match error.kind() {
                // No listener means that the sandbox does not run; the error adds nothing.
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => stopped,
                _ => stopped.cause(error),
            }
        })?;
        let mut stream = UnixStream::from(socket);
        stream.write_all(&ClientMessage::Hello(request).encode()).map_err(connection_error)?;
        Ok(Self::from_stream(stream))
    }

    /// Wraps a socket to a peer that expects no `Hello` frame.
    pub(crate) fn from_stream(stream: UnixStream) -> Self {
        Self { stream, client: WorkerClient::default(), buffer: Vec::new() }
    }

    /// The next frame of a guest; `None` when it has closed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>> {
        loop {
            let frame = self.client.next_guest_frame();
            if let Some(frame) = frame.map_err(|error| connection_error(io::Error::other(error)))? {
                return Ok(Some(frame));
            }
            if !self.receive(MAX_CHUNK).map_err(connection_error)? {
                return Ok(None);
            }
        }
    }

    /// The next event of the worker; `None` when it has closed.
    pub(crate) fn next_event(&mut self) -> Result<Option<WorkerEvent>, ClientError> {
        self.event_by(|_| MAX_CHUNK)
    }

    /// Like [`Connection::next_event`], without a byte beyond the event: output of the command may
    /// follow, for another reader.
    pub(crate) fn next_event_only(&mut self) -> Result<Option<WorkerEvent>, ClientError> {
        self.event_by(|missing| missing.min(MAX_CHUNK))
    }

    fn event_by(
        &mut self,
        most: impl Fn(usize) -> usize,
    ) -> Result<Option<WorkerEvent>, ClientError> {
        loop {
            if let Some(event) = self.client.next_event()? {
                return Ok(Some(event));
            }
            let most = most(self.client.missing()?);
            if !self.receive(most).map_err(ClientError::Socket)? {
                return self.client.receive_end().map(|()| None);
            }
        }
    }

    /// The next event of the worker, if it arrives before `until`.
    pub(crate) fn event_before(&mut self, until: Instant) -> Result<EventWait> {
        loop {
            match self.client.next_event() {
                Ok(Some(event)) => return Ok(EventWait::Event(event)),
                Ok(None) => {}
                Err(ClientError::Refused(error)) => return Ok(EventWait::Refused(error)),
                Err(error) => return Err(client_error(error)),
            }
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            let mut there = [PollFd::new(&self.stream, PollFlags::IN)];
            match rustix::event::poll(&mut there, left.as_ref()) {
                Ok(0) => return Ok(EventWait::TimedOut),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(connection_error(error.into())),
            }
            if !self.receive(MAX_CHUNK).map_err(connection_error)? {
                return Ok(EventWait::Closed);
            }
        }
    }

    /// Reads at most so many bytes; false when the peer has closed.
    fn receive(&mut self, most: usize) -> io::Result<bool> {
        self.buffer.resize(MAX_CHUNK, 0);
        loop {
            match self.stream.read(&mut self.buffer[..most]) {
                Ok(n) => {
                    self.client.receive(&self.buffer[..n]);
                    return Ok(n > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads `left` bytes of announced content, piece by piece.
    pub(crate) fn stream(
        &mut self,
        left: u64,
        mut take: impl FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let stream = &mut self.stream;
        let read = |buffer: &mut [u8]| {
            stream.read(buffer).map_err(|error| StreamError(connection_error(error)))
        };
        let take = |piece: Piece<'_>| take(piece).map_err(StreamError);
        self.client.stream(left, &mut self.buffer, read, take).map_err(|StreamError(error)| error)
    }

    /// Sends a frame with a payload from a file, by `sendfile(2)`. Returns the bytes sent; fewer
    /// than `length` means that the file has shrunk.
    pub(crate) fn send_file(
        &mut self,
        kind: FrameKind,
        file: &File,
        length: usize,
    ) -> Result<usize> {
        self.send(&msb_wire::header(kind, length))?;
        let mut sent = 0;
        while sent < length {
            match rustix::fs::sendfile(&self.stream, file, None, length - sent) {
                Ok(0) => break,
                Ok(n) => sent += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(connection_error(error.into())),
            }
        }
        Ok(sent)
    }

    /// Reads the reply of the worker; `Reply::Failed` becomes an error.
    pub fn reply(&mut self) -> Result<Reply> {
        match self.next_event().map_err(client_error)? {
            Some(WorkerEvent::Reply(reply)) => Ok(reply),
            _ => Err(Error::new(Kind::Protocol, "the worker went away")),
        }
    }

    /// Reads the reply of the worker, waiting at most `limit`.
    pub(crate) fn reply_within(&mut self, limit: Duration) -> Result<Reply> {
        let limit = limit.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(limit)).map_err(connection_error)?;
        let reply = self.reply();
        self.stream.set_read_timeout(None).map_err(connection_error)?;
        reply
    }

    /// Sets the timeout of every later read.
    pub(crate) fn set_read_timeout(&self, limit: Duration) -> Result<()> {
        self.stream.set_read_timeout(Some(limit)).map_err(connection_error)
    }

    /// Limits every later read from and write to the guest: a hostile guest may stay silent.
    pub(crate) fn set_guest_timeouts(&self) -> Result<()> {
        self.set_read_timeout(GUEST_SILENCE)?;
        self.stream.set_write_timeout(Some(GUEST_SILENCE)).map_err(connection_error)
    }

    /// Sends bytes that are encoded frames.
    pub fn send(&mut self, frames: &[u8]) -> Result<()> {
        self.stream.write_all(frames).map_err(connection_error)
    }

    /// The socket itself. Only valid before the first read, or after events that were read alone.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }
}

/// An error of the connection or of the consumer while bytes are streamed.
struct StreamError(Error);

impl From<FrameError> for StreamError {
    fn from(error: FrameError) -> Self {
        Self(connection_error(io::Error::other(error)))
    }
}

fn client_error(error: ClientError) -> Error {
    match error {
        ClientError::Refused(error) => error,
        ClientError::Socket(error) => connection_error(error),
        error => connection_error(io::Error::other(error)),
    }
}

fn connection_error(error: io::Error) -> Error {
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        return Error::new(Kind::Timeout, "the sandbox does not answer")
            .hint("something in it may have stopped its guest; `msb stop -f` ends it");
    }
    Error::new(Kind::Protocol, "the worker went away").cause(error)
}
