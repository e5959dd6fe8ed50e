//! A connection to a running sandbox's worker.

use crate::launch::greet;
use msb_spec::{Error, Kind, Name, Result, state};
use msb_wire::{
    Decoder, Frame, FrameKind, MAX_CHUNK, MAX_REQUEST, Malformed, Piece, Reply, Request,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// What came while somebody waited.
#[derive(Debug)]
pub(crate) enum Waited {
    Frame(Frame),
    /// The other side has closed.
    Closed,
    /// Nothing, in that time.
    TooLong,
}

/// A guest that serves files says or takes something at least this often, unless something inside
/// has stopped it. To remove a large tree takes it a while, too.
const GUEST_SILENCE: Duration = Duration::from_secs(120);

/// One request and what comes back.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects to the worker of a sandbox and says what for.
    pub(crate) fn open(directory: &Path, name: &Name, request: &Request) -> Result<Self> {
        let socket = msb_sys::socket::connect(directory, state::SOCKET).map_err(|error| {
            let stopped = Error::new(Kind::State, format!("sandbox `{name}` is not running"))
                .hint(format!("`msb start {name}` starts it"));
            match error.kind() {
                // That nobody listens is what it means not to run.
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => stopped,
                _ => stopped.cause(error),
            }
        })?;
        let mut stream = UnixStream::from(socket);
        greet(&mut stream, request).map_err(gone)?;
        Ok(Self::on(stream))
    }

    /// One to somebody who needs no greeting.
    pub(crate) fn on(stream: UnixStream) -> Self {
        Self { stream, decoder: Decoder::new(MAX_REQUEST), buffer: Vec::new() }
    }

    /// The next frame; none when the other side has closed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>> {
        loop {
            let frame = self.decoder.next_frame();
            if let Some(frame) = frame.map_err(|error| gone(io::Error::other(error)))? {
                return Ok(Some(frame));
            }
            // Not before it is needed: whoever takes the stream never does, and an Exec is quick.
            self.buffer.resize(MAX_CHUNK, 0);
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Ok(None),
                Ok(n) => self.decoder.push(&self.buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(error)),
            }
        }
    }

    /// The next frame, if it comes before then.
    pub(crate) fn frame_before(&mut self, until: Instant) -> Result<Waited> {
        loop {
            let frame = self.decoder.next_frame();
            if let Some(frame) = frame.map_err(|error| gone(io::Error::other(error)))? {
                return Ok(Waited::Frame(frame));
            }
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).ok();
            let mut there = [PollFd::new(&self.stream, PollFlags::IN)];
            match rustix::event::poll(&mut there, left.as_ref()) {
                Ok(0) => return Ok(Waited::TooLong),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(gone(error.into())),
            }
            self.buffer.resize(MAX_CHUNK, 0);
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Ok(Waited::Closed),
                Ok(n) => self.decoder.push(&self.buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(gone(error)),
            }
        }
    }

    /// Takes bytes that were promised, piece by piece.
    pub(crate) fn stream(
        &mut self,
        left: u64,
        mut take: impl FnMut(Piece<'_>) -> Result<()>,
    ) -> Result<()> {
        let stream = &mut self.stream;
        let read = |buffer: &mut [u8]| stream.read(buffer).map_err(|error| Streaming(gone(error)));
        let take = |piece: Piece<'_>| take(piece).map_err(Streaming);
        self.decoder.stream(left, &mut self.buffer, read, take).map_err(|Streaming(error)| error)
    }

    /// Sends the header of a frame and its bytes from a file, which go through no memory of ours.
    /// Returns how many there were; fewer than promised means that the file has shrunk.
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
                Err(error) => return Err(gone(error.into())),
            }
        }
        Ok(sent)
    }

    /// The worker's answer; a failure is an error.
    pub fn reply(&mut self) -> Result<Reply> {
        match self.next_frame()? {
            Some(frame) if frame.kind == FrameKind::Reply => match frame.value() {
                Ok(Reply::Failed(error)) => Err(error),
                Ok(reply) => Ok(reply),
                Err(error) => Err(gone(io::Error::other(error))),
            },
            _ => Err(Error::new(Kind::Protocol, "the worker went away")),
        }
    }

    /// The same, but no longer than this.
    pub(crate) fn reply_within(&mut self, limit: Duration) -> Result<Reply> {
        let limit = limit.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(limit)).map_err(gone)?;
        let reply = self.reply();
        self.stream.set_read_timeout(None).map_err(gone)?;
        reply
    }

    /// From now on nobody waits longer than this for the next bytes.
    pub(crate) fn wait_at_most(&self, limit: Duration) -> Result<()> {
        self.stream.set_read_timeout(Some(limit)).map_err(gone)
    }

    /// Limits every read from the guest and every write to it from now on: a hostile guest may stay silent.
    pub(crate) fn limit_silence(&self) -> Result<()> {
        self.wait_at_most(GUEST_SILENCE)?;
        self.stream.set_write_timeout(Some(GUEST_SILENCE)).map_err(gone)
    }

    /// Sends bytes that are frames already.
    pub fn send(&mut self, frames: &[u8]) -> Result<()> {
        self.stream.write_all(frames).map_err(gone)
    }

    /// The stream itself, if nothing was read from it yet.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }
}

/// What went wrong while bytes were streamed: theirs or ours.
struct Streaming(Error);

impl From<Malformed> for Streaming {
    fn from(error: Malformed) -> Self {
        Self(gone(io::Error::other(error)))
    }
}

fn gone(error: io::Error) -> Error {
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
        return Error::new(Kind::Timeout, "the sandbox does not answer")
            .hint("something in it may have stopped its guest; `msb stop -f` ends it");
    }
    Error::new(Kind::Protocol, "the worker went away").cause(error)
}
