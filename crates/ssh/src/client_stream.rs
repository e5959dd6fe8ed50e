//! Byte stream to a client: a TCP socket, or two descriptors of pipes or sockets.

use crate::flow_control::{FlowControl, IoDirection, ReadMode};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::FileType;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::unix::pipe;
use tokio::time::{Instant, Sleep};

/// Time without reads before the peer is checked. The kernel reports a closed peer only behind its
/// unread bytes, so that some of them must be read.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time in trickle mode before the first read: output that can move at all has moved by then.
const FIRST_TRICKLE: Duration = Duration::from_millis(5);
/// Longest time between two reads in trickle mode. Keep-alive requests of clients
/// (`ServerAliveInterval`) must be answered in time.
const MAX_TRICKLE_INTERVAL: Duration = Duration::from_secs(2);
/// Bytes of one read in trickle mode: a small window and packets behind it.
const TRICKLE_BYTES: usize = 96 << 10;

type Input = Box<dyn AsyncRead + Send + Unpin>;
type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// Byte stream to a client that is read only as [`FlowControl`] allows.
pub(crate) struct ClientStream {
    input: Input,
    output: Output,
    /// Duplicate of the input, to poll for a closed peer.
    poll_fd: OwnedFd,
    flow: Arc<FlowControl>,
    timer: Pin<Box<Sleep>>,
    trickle: Option<Trickle>,
}

/// State while the stream is not read freely.
struct Trickle {
    /// Counter of [`ReadMode::Trickle`]; `None` while reads are paused.
    number: Option<u64>,
    /// Time until the next allowed read.
    pause: Duration,
    /// Bytes that may still be read now.
    left: usize,
}

impl ClientStream {
    /// A stream over a connected TCP socket.
    pub(crate) fn tcp(stream: TcpStream, flow: Arc<FlowControl>) -> io::Result<Self> {
        let poll_fd = rustix::io::dup(&stream)?;
        let (input, output) = stream.into_split();
        Ok(Self::new(Box::new(input), Box::new(output), poll_fd, flow))
    }

    /// A stream over two descriptors, each of a pipe or socket.
    pub(crate) fn pair(
        input: OwnedFd,
        output: OwnedFd,
        flow: Arc<FlowControl>,
    ) -> io::Result<Self> {
        let poll_fd = input.try_clone()?;
        let input: Input = match is_pipe(&input)? {
            true => Box::new(pipe::Receiver::from_owned_fd(input)?),
            false => Box::new(socket(input)?),
        };
        let output: Output = match is_pipe(&output)? {
            true => Box::new(pipe::Sender::from_owned_fd(output)?),
            false => Box::new(socket(output)?),
        };
        Ok(Self::new(input, output, poll_fd, flow))
    }

    fn new(input: Input, output: Output, poll_fd: OwnedFd, flow: Arc<FlowControl>) -> Self {
        let timer = Box::pin(tokio::time::sleep(CHECK_INTERVAL));
        Self { input, output, poll_fd, flow, timer, trickle: None }
    }

    /// Waits until the client may be read, and returns how many bytes; fails if the peer closes
    /// meanwhile.
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            let (number, first) = match self.flow.poll_readable(cx)? {
                Poll::Ready(ReadMode::Open) => {
                    self.trickle = None;
                    return Poll::Ready(Ok(usize::MAX));
                }
                Poll::Ready(ReadMode::Trickle(number)) => (Some(number), FIRST_TRICKLE),
                Poll::Pending => (None, CHECK_INTERVAL),
            };
            match &self.trickle {
                Some(trickle) if trickle.number == number => {
                    if trickle.left > 0 {
                        return Poll::Ready(Ok(trickle.left));
                    }
                }
                _ => {
                    self.trickle = Some(Trickle { number, pause: first, left: 0 });
                    self.timer.as_mut().reset(Instant::now() + first);
                }
            }
            ready!(self.timer.as_mut().poll(cx));
            if self.is_peer_gone() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if let Some(trickle) = &mut self.trickle {
                trickle.left = TRICKLE_BYTES;
                trickle.pause = (trickle.pause * 2).min(MAX_TRICKLE_INTERVAL);
                self.timer.as_mut().reset(Instant::now() + trickle.pause);
            }
        }
    }

    /// Whether the peer has closed, even if bytes are left to read.
    fn is_peer_gone(&self) -> bool {
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        let mut wait = [PollFd::new(&self.poll_fd, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut wait, Some(&now)).is_ok() && wait[0].revents().intersects(gone)
    }
}

/// Whether it is a pipe; fails for anything but pipes and sockets, which cannot be polled.
fn is_pipe(fd: &OwnedFd) -> io::Result<bool> {
    match FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode) {
        FileType::Fifo => Ok(true),
        FileType::Socket => Ok(false),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is neither a pipe nor a socket")),
    }
}

fn socket(fd: OwnedFd) -> io::Result<tokio::net::UnixStream> {
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(true)?;
    tokio::net::UnixStream::from_std(stream)
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let limit = ready!(self.poll_readable(cx))?.min(into.remaining());
        let room = into.initialize_unfilled_to(limit);
        let mut part = ReadBuf::new(room);
        match Pin::new(&mut self.input).poll_read(cx, &mut part) {
            // An abort wakes the flow control, not the descriptor.
            Poll::Pending => self.flow.poll_aborted(IoDirection::Read, cx),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let n = part.filled().len();
                into.advance(n);
                if let Some(trickle) = &mut self.trickle {
                    trickle.left = trickle.left.saturating_sub(n);
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.output).poll_write(cx, bytes) {
            Poll::Pending => self.flow.poll_aborted(IoDirection::Write, cx),
            done => done,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.output).poll_shutdown(cx)
    }
}
