//! The descriptors that a client is at the other end of: one of a socket, or two of a pair of pipes.

use crate::gate::{Gate, Wait, Way};
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

/// How long nothing is read before somebody looks whether the client has gone. Its kernel says so only behind what
/// it still has to send, so that a little of that must be read.
const LOOK: Duration = Duration::from_secs(1);
/// How long the gate is ajar before something is read: output that moves at all has moved by then.
const FIRST: Duration = Duration::from_millis(5);
/// How seldom it can become. Clients that ask whether we are there (`ServerAliveInterval`) must be heard in time.
const SELDOM: Duration = Duration::from_secs(2);
/// What is read each time: the small window, and what may stand behind it.
const LITTLE: usize = 96 << 10;

type Input = Box<dyn AsyncRead + Send + Unpin>;
type Output = Box<dyn AsyncWrite + Send + Unpin>;

/// A way to a client that is read only while the gate is open.
pub(crate) struct Line {
    input: Input,
    output: Output,
    /// The input once more, to look whether anybody is there.
    watched: OwnedFd,
    gate: Arc<Gate>,
    look: Pin<Box<Sleep>>,
    ajar: Option<Ajar>,
}

/// A gate that is not open.
struct Ajar {
    /// Its number; none where nobody waits to speak.
    number: Option<u64>,
    /// How long until the next time.
    pause: Duration,
    /// How much may still be read of this time.
    left: usize,
}

impl Line {
    /// To the other end of a socket.
    pub(crate) fn tcp(stream: TcpStream, gate: Arc<Gate>) -> io::Result<Self> {
        let watched = rustix::io::dup(&stream)?;
        let (input, output) = stream.into_split();
        Ok(Self::on(Box::new(input), Box::new(output), watched, gate))
    }

    /// To the other ends of two descriptors, each of a pipe or a socket.
    pub(crate) fn pair(input: OwnedFd, output: OwnedFd, gate: Arc<Gate>) -> io::Result<Self> {
        let watched = input.try_clone()?;
        let input: Input = match is_pipe(&input)? {
            true => Box::new(pipe::Receiver::from_owned_fd(input)?),
            false => Box::new(socket(input)?),
        };
        let output: Output = match is_pipe(&output)? {
            true => Box::new(pipe::Sender::from_owned_fd(output)?),
            false => Box::new(socket(output)?),
        };
        Ok(Self::on(input, output, watched, gate))
    }

    fn on(input: Input, output: Output, watched: OwnedFd, gate: Arc<Gate>) -> Self {
        let look = Box::pin(tokio::time::sleep(LOOK));
        Self { input, output, watched, gate, look, ajar: None }
    }

    /// Waits until the client may be read, and tells how much; notices meanwhile when it goes.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            let (number, first) = match self.gate.poll_open(cx)? {
                Poll::Ready(Way::Open) => {
                    self.ajar = None;
                    return Poll::Ready(Ok(usize::MAX));
                }
                Poll::Ready(Way::Ajar(number)) => (Some(number), FIRST),
                Poll::Pending => (None, LOOK),
            };
            match &self.ajar {
                Some(ajar) if ajar.number == number => {
                    if ajar.left > 0 {
                        return Poll::Ready(Ok(ajar.left));
                    }
                }
                _ => {
                    self.ajar = Some(Ajar { number, pause: first, left: 0 });
                    self.look.as_mut().reset(Instant::now() + first);
                }
            }
            ready!(self.look.as_mut().poll(cx));
            if self.has_left() {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            if let Some(ajar) = &mut self.ajar {
                ajar.left = LITTLE;
                ajar.pause = (ajar.pause * 2).min(SELDOM);
                self.look.as_mut().reset(Instant::now() + ajar.pause);
            }
        }
    }

    /// Whether nobody is at the other end, whatever is left to read.
    fn has_left(&self) -> bool {
        let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP;
        let mut wait = [PollFd::new(&self.watched, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut wait, Some(&now)).is_ok() && wait[0].revents().intersects(gone)
    }
}

/// Whether it is a pipe; what is neither that nor a socket cannot be waited for.
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

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = ready!(self.poll_open(cx))?.min(into.remaining());
        let room = into.initialize_unfilled_to(most);
        let mut part = ReadBuf::new(room);
        match Pin::new(&mut self.input).poll_read(cx, &mut part) {
            // Whoever cuts the connection wakes the gate, not the descriptor.
            Poll::Pending => self.gate.poll_cut(Wait::Read, cx),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) => {
                let n = part.filled().len();
                into.advance(n);
                if let Some(ajar) = &mut self.ajar {
                    ajar.left = ajar.left.saturating_sub(n);
                }
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.output).poll_write(cx, bytes) {
            Poll::Pending => self.gate.poll_cut(Wait::Write, cx),
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
