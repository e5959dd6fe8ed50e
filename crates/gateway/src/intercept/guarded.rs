//! The client's side of an HTTP/1 connection, as the server behind it may see it.
//!
//! Heads are held until they are whole and without fault; what follows a request for WebSocket is
//! held until it is answered; whoever sends a head too slowly or does not read is hung up on.

use super::head::{Fault, Framing};
use super::stall::Stall;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// From the first byte of a head to its last.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// A client that has not read for so long has gone.
const UNREAD_LIMIT: Duration = Duration::from_secs(600);
/// How long, and how much, what still comes is thrown away after the last word. To close a socket
/// with something unread in it would take the last word back.
const LINGER_LIMIT: Duration = Duration::from_secs(2);
const MOST_LINGERED: usize = 1 << 20;
/// One reading of the client's socket.
const PIECE: usize = 16 << 10;

/// The method of the request that stands for one with a fault.
pub(crate) const FAULTY: &str = "MSB-FAULTY";

/// What the two sides of the server tell each other: who reads, and who answers.
#[derive(Default)]
pub(crate) struct Gate(Mutex<Told>);

#[derive(Default)]
struct Told {
    fault: Option<Fault>,
    websocket: Option<bool>,
    waiting: Option<Waker>,
}

impl Gate {
    /// What was wrong with the last request.
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.told().fault
    }

    /// Whether WebSocket was granted, to who asked for it last.
    pub(crate) fn answer(&self, granted: bool) {
        let mut told = self.told();
        told.websocket = Some(granted);
        if let Some(waiting) = told.waiting.take() {
            waiting.wake();
        }
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        // Nothing that is written under the lock can be half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream behind a [`Framing`].
pub(crate) struct Guarded<S> {
    stream: S,
    framing: Framing,
    gate: Arc<Gate>,
    /// Received and not yet judged.
    received: Vec<u8>,
    /// Judged and not yet handed on, from `handed` on.
    ready: Vec<u8>,
    handed: usize,
    head: Stall,
    unread: Stall,
    linger: Stall,
    lingered: usize,
}

impl<S> Guarded<S> {
    pub(crate) fn new(stream: S, gate: Arc<Gate>) -> Self {
        Self {
            stream,
            framing: Framing::default(),
            gate,
            received: Vec::new(),
            ready: Vec::new(),
            handed: 0,
            head: Stall::new(HEAD_LIMIT),
            unread: Stall::new(UNREAD_LIMIT),
            linger: Stall::new(LINGER_LIMIT),
            lingered: 0,
        }
    }

    /// Judges what was received.
    fn judge(&mut self) -> io::Result<()> {
        match self.framing.take(&self.received, &mut self.ready) {
            Ok(taken) => {
                self.received.drain(..taken);
                Ok(())
            }
            Err(_) if self.framing.is_broken_in_body() => Err(io::ErrorKind::InvalidData.into()),
            Err(fault) => {
                // The server answers in its place in the row of requests.
                self.received.clear();
                self.gate.told().fault = Some(fault);
                let substitute = format!("{FAULTY} / HTTP/1.1\r\nconnection: close\r\n\r\n");
                self.ready.extend_from_slice(substitute.as_bytes());
                Ok(())
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if this.handed < this.ready.len() {
                let rest = &this.ready[this.handed..];
                let length = rest.len().min(buf.remaining());
                buf.put_slice(&rest[..length]);
                this.handed += length;
                if this.handed == this.ready.len() {
                    this.ready.clear();
                    this.handed = 0;
                }
                return Poll::Ready(Ok(()));
            }
            if this.framing.is_over() {
                return Poll::Ready(Ok(()));
            }
            if this.framing.is_waiting() {
                let mut told = this.gate.told();
                let Some(granted) = told.websocket.take() else {
                    told.waiting = Some(cx.waker().clone());
                    return Poll::Pending;
                };
                drop(told);
                this.framing.answered(granted);
                this.judge()?;
                continue;
            }
            let before = this.received.len();
            this.received.resize(before + PIECE, 0);
            let mut piece = ReadBuf::new(&mut this.received[before..]);
            let polled = Pin::new(&mut this.stream).poll_read(cx, &mut piece);
            let length = piece.filled().len();
            this.received.truncate(before + length);
            match polled {
                Poll::Pending if this.framing.is_inside_head() => {
                    let late = this.head.poll(cx);
                    return late.map(|()| Err(io::ErrorKind::TimedOut.into()));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) if length == 0 => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => this.judge()?,
            }
            if !this.framing.is_inside_head() {
                this.head.reset();
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> Guarded<S> {
    fn written<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match polled {
            Poll::Pending => self.unread.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
            ready => {
                self.unread.reset();
                ready
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(cx, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces);
        this.written(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(cx);
        this.written(cx, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        let mut waste = [0; 4096];
        while this.lingered < MOST_LINGERED {
            if this.linger.poll(cx).is_ready() {
                break;
            }
            let mut piece = ReadBuf::new(&mut waste);
            match ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece)) {
                Ok(()) if !piece.filled().is_empty() => this.lingered += piece.filled().len(),
                _ => break,
            }
        }
        this.lingered = MOST_LINGERED;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn paused(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        // Time goes on by itself when everything waits.
        builder.enable_all().start_paused(true).build().unwrap().block_on(test);
    }

    #[test]
    fn a_head_that_does_not_end_is_hung_up_on() {
        paused(async {
            let (mut client, server) = tokio::io::duplex(1024);
            let mut guarded = Guarded::new(server, Arc::new(Gate::default()));
            client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            let begin = tokio::time::Instant::now();
            let error = guarded.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(begin.elapsed() >= HEAD_LIMIT && begin.elapsed() < 2 * HEAD_LIMIT);
        });
    }

    #[test]
    fn who_does_not_read_is_hung_up_on() {
        paused(async {
            let (_client, server) = tokio::io::duplex(16);
            let mut guarded = Guarded::new(server, Arc::new(Gate::default()));
            let error = guarded.write_all(&[0; 17]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn the_last_word_waits_for_what_still_comes_but_not_for_ever() {
        paused(async {
            let (mut client, server) = tokio::io::duplex(16);
            let mut guarded = Guarded::new(server, Arc::new(Gate::default()));
            client.write_all(b"unread").await.unwrap();
            let begin = tokio::time::Instant::now();
            guarded.shutdown().await.unwrap();
            assert!(begin.elapsed() >= LINGER_LIMIT && begin.elapsed() < 2 * LINGER_LIMIT);
        });
    }

    #[test]
    fn broken_chunks_are_no_request() {
        paused(async {
            let (mut client, server) = tokio::io::duplex(1024);
            let gate = Arc::new(Gate::default());
            let mut guarded = Guarded::new(server, Arc::clone(&gate));
            let start = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.write_all(start).await.unwrap();
            let mut head = vec![0; start.len()];
            guarded.read_exact(&mut head).await.unwrap();
            assert_eq!(head, start);
            client.write_all(b"x\r\n").await.unwrap();
            let error = guarded.read_u8().await.unwrap_err();
            assert_eq!((error.kind(), gate.fault()), (io::ErrorKind::InvalidData, None));
        });
    }
}
