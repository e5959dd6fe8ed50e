//! Files of any size, piece by piece, in either direction.

use crate::fs::{nonsense, understood};
use crate::worker::Link;
use msb_spec::{Error, Kind, Result};
use msb_wire::{FileReply, FrameKind, HEADER, MAX_CHUNK, header};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A file inside that is being read: with [`FileReader::next`], or as [`AsyncRead`].
#[derive(Debug)]
pub struct FileReader {
    link: Link,
    piece: Vec<u8>,
    /// How much of the piece was taken.
    taken: usize,
    over: bool,
}

impl FileReader {
    /// Waits for the first piece, so that a file that cannot be read is an error at once.
    pub(crate) async fn open(link: Link) -> Result<Self> {
        let mut reader = Self { link, piece: Vec::new(), taken: 0, over: false };
        poll_fn(|cx| reader.poll_piece(cx)).await?;
        Ok(reader)
    }

    /// The next piece; none at the end of the file.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>> {
        poll_fn(|cx| self.poll_piece(cx)).await?;
        let mut piece = std::mem::take(&mut self.piece);
        piece.drain(..std::mem::take(&mut self.taken));
        Ok(Some(piece).filter(|piece| !piece.is_empty()))
    }

    /// Makes sure that there is something in the piece, or that the file is over.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        if self.taken < self.piece.len() || self.over {
            return Poll::Ready(Ok(()));
        }
        let frame = ready!(self.link.poll_frame(cx))?;
        Poll::Ready(match frame {
            Some(frame) if frame.kind == FrameKind::Bytes => {
                self.over = frame.payload.is_empty();
                self.piece = frame.payload;
                self.taken = 0;
                Ok(())
            }
            frame => {
                self.over = true;
                understood(frame).and_then(|_| Err(nonsense()))
            }
        })
    }
}

impl AsyncRead for FileReader {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_piece(cx)).map_err(io::Error::other)?;
        let rest = &this.piece[this.taken..];
        let n = rest.len().min(buffer.remaining());
        buffer.put_slice(&rest[..n]);
        this.taken += n;
        Poll::Ready(Ok(()))
    }
}

/// A file inside that is being written, as [`AsyncWrite`]. It is whole only after
/// [`FileWriter::finish`] (or `shutdown`); dropped before, what was sent so far stays.
#[derive(Debug)]
pub struct FileWriter {
    link: Link,
    /// One frame: its header is filled in when it goes out.
    frame: Vec<u8>,
    sent: usize,
    state: State,
}

/// Where a written file is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The frame takes bytes.
    Filling,
    /// The frame goes out.
    Sending,
    /// The last, empty frame goes out.
    Ending,
    /// The guest has not answered yet.
    Answering,
    /// The guest has written so many bytes.
    Done(u64),
}

impl FileWriter {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, frame: vec![0; HEADER], sent: 0, state: State::Filling }
    }

    /// Sends the rest and waits until the guest has written it all. Gives how many bytes.
    pub async fn finish(mut self) -> Result<u64> {
        match poll_fn(|cx| self.poll_finish(cx)).await {
            Ok(bytes) => Ok(bytes),
            Err(Broken::Answer(error)) => Err(error),
            Err(Broken::Socket(_)) => Err(self.refusal().await),
        }
    }

    /// Why the guest takes no more.
    pub(crate) async fn refusal(&mut self) -> Error {
        match self.link.next_frame().await {
            Ok(frame) => understood(frame).err().unwrap_or_else(nonsense),
            Err(error) => error,
        }
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<u64, Broken>> {
        loop {
            match self.state {
                State::Filling if self.frame.len() > HEADER => self.seal(State::Sending),
                State::Filling => self.seal(State::Ending),
                State::Sending | State::Ending => {
                    ready!(self.poll_sent(cx)).map_err(Broken::Socket)?;
                }
                State::Answering => {
                    let frame = ready!(self.link.poll_frame(cx)).map_err(Broken::Answer)?;
                    match understood(frame).map_err(Broken::Answer)? {
                        FileReply::Done { bytes, .. } => self.state = State::Done(bytes),
                        _ => return Poll::Ready(Err(Broken::Answer(nonsense()))),
                    }
                }
                State::Done(bytes) => return Poll::Ready(Ok(bytes)),
            }
        }
    }

    /// Makes the frame ready to go out.
    fn seal(&mut self, state: State) {
        let length = self.frame.len() - HEADER;
        self.frame[..HEADER].copy_from_slice(&header(FrameKind::Bytes, length));
        self.state = state;
    }

    /// Sends a sealed frame, and goes on to what follows it.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.frame.len() {
            let rest = &self.frame[self.sent..];
            self.sent += ready!(self.link.socket.poll_write(cx, rest))?;
        }
        self.sent = 0;
        self.frame.truncate(HEADER);
        self.state = if self.state == State::Ending { State::Answering } else { State::Filling };
        Poll::Ready(Ok(()))
    }
}

/// What stopped a write: the guest's own answer tells more than the socket.
#[derive(Debug)]
enum Broken {
    Socket(io::Error),
    Answer(Error),
}

impl From<Broken> for io::Error {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Socket(error) => error,
            Broken::Answer(error) => io::Error::other(error),
        }
    }
}

impl AsyncWrite for FileWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            match this.state {
                State::Filling => {
                    let n = bytes.len().min(HEADER + MAX_CHUNK - this.frame.len());
                    this.frame.extend_from_slice(&bytes[..n]);
                    if this.frame.len() == HEADER + MAX_CHUNK {
                        this.seal(State::Sending);
                    }
                    return Poll::Ready(Ok(n));
                }
                State::Sending => ready!(this.poll_sent(cx))?,
                _ => {
                    let finished = Error::new(Kind::State, "the file is finished");
                    return Poll::Ready(Err(io::Error::other(finished)));
                }
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.state == State::Filling && this.frame.len() > HEADER {
            this.seal(State::Sending);
        }
        match this.state {
            State::Sending => this.poll_sent(cx),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_finish(cx).map_ok(drop).map_err(io::Error::from)
    }
}
