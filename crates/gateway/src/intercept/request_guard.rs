//! Guards the client's side of an HTTP/1 connection before hyper reads it.
//!
//! A request head is held until it is complete and valid. Bytes after a WebSocket request are held
//! until it is answered. A client that sends a head too slowly, or does not read, is disconnected.

use super::http1_framing::{FramingFault, RequestFraming};
use super::idle_timeout::IdleTimeout;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The limit from the first byte of a head to its last.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that has not read for so long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(600);
/// How long and how many bytes are drained after the last response. Closing a socket with unread
/// data would reset it, and the response would be lost.
const LINGER_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_LINGERED: usize = 1 << 20;
/// Bytes of one read from the client's socket.
const READ_SIZE: usize = 16 << 10;

/// The method of the substitute request that stands for an invalid one.
pub(crate) const FAULT_METHOD: &str = "MSB-FAULTY";

/// State shared by the reading and the answering side of the server.
#[derive(Default)]
pub(crate) struct GuardState(Mutex<GuardFlags>);

#[derive(Default)]
struct GuardFlags {
    fault: Option<FramingFault>,
    websocket: Option<bool>,
    waker: Option<Waker>,
}

impl GuardState {
    /// What was wrong with the last request, if anything.
    pub(crate) fn fault(&self) -> Option<FramingFault> {
        self.flags().fault
    }

    /// Tells the reading side whether the last WebSocket request was granted.
    pub(crate) fn set_websocket_result(&self, granted: bool) {
        let mut flags = self.flags();
        flags.websocket = Some(granted);
        if let Some(waker) = flags.waker.take() {
            waker.wake();
        }
    }

    fn flags(&self) -> std::sync::MutexGuard<'_, GuardFlags> {
        // No update under the lock can be left half done by a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that is read through a [`RequestFraming`].
pub(crate) struct RequestGuard<S> {
    stream: S,
    framing: RequestFraming,
    guard: Arc<GuardState>,
    /// Bytes received and not yet parsed.
    received: Vec<u8>,
    /// Bytes parsed and not yet read, from `handed` on.
    ready: Vec<u8>,
    handed: usize,
    head_timeout: IdleTimeout,
    write_timeout: IdleTimeout,
    linger_timeout: IdleTimeout,
    lingered: usize,
}

impl<S> RequestGuard<S> {
    pub(crate) fn new(stream: S, guard: Arc<GuardState>) -> Self {
        Self {
            stream,
            framing: RequestFraming::default(),
            guard,
            received: Vec::new(),
            ready: Vec::new(),
            handed: 0,
            head_timeout: IdleTimeout::new(HEAD_TIMEOUT),
            write_timeout: IdleTimeout::new(WRITE_TIMEOUT),
            linger_timeout: IdleTimeout::new(LINGER_TIMEOUT),
            lingered: 0,
        }
    }

    /// Parses received bytes; an invalid head becomes the substitute request.
    fn parse_received(&mut self) -> io::Result<()> {
        match self.framing.take(&self.received, &mut self.ready) {
            Ok(taken) => {
                self.received.drain(..taken);
                Ok(())
            }
            Err(_) if self.framing.is_broken_in_body() => Err(io::ErrorKind::InvalidData.into()),
            Err(fault) => {
                // The server answers it in order with other requests.
                self.received.clear();
                self.guard.flags().fault = Some(fault);
                let substitute = format!("{FAULT_METHOD} / HTTP/1.1\r\nconnection: close\r\n\r\n");
                self.ready.extend_from_slice(substitute.as_bytes());
                Ok(())
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for RequestGuard<S> {
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
                let mut flags = this.guard.flags();
                let Some(granted) = flags.websocket.take() else {
                    flags.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                };
                drop(flags);
                this.framing.websocket_answered(granted);
                this.parse_received()?;
                continue;
            }
            let before = this.received.len();
            this.received.resize(before + READ_SIZE, 0);
            let mut piece = ReadBuf::new(&mut this.received[before..]);
            let polled = Pin::new(&mut this.stream).poll_read(cx, &mut piece);
            let length = piece.filled().len();
            this.received.truncate(before + length);
            match polled {
                Poll::Pending if this.framing.is_inside_head() => {
                    let late = this.head_timeout.poll(cx);
                    return late.map(|()| Err(io::ErrorKind::TimedOut.into()));
                }
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) if length == 0 => return Poll::Ready(Ok(())),
                Poll::Ready(Ok(())) => this.parse_received()?,
            }
            if !this.framing.is_inside_head() {
                this.head_timeout.reset();
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> RequestGuard<S> {
    fn with_write_timeout<T>(
        &mut self,
        cx: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match polled {
            Poll::Pending => {
                self.write_timeout.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
            }
            ready => {
                self.write_timeout.reset();
                ready
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for RequestGuard<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.with_write_timeout(cx, polled)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(cx, pieces);
        this.with_write_timeout(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_flush(cx);
        this.with_write_timeout(cx, polled)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        let mut waste = [0; 4096];
        while this.lingered < MAX_LINGERED {
            if this.linger_timeout.poll(cx).is_ready() {
                break;
            }
            let mut piece = ReadBuf::new(&mut waste);
            match ready!(Pin::new(&mut this.stream).poll_read(cx, &mut piece)) {
                Ok(()) if !piece.filled().is_empty() => this.lingered += piece.filled().len(),
                _ => break,
            }
        }
        this.lingered = MAX_LINGERED;
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn paused(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        // The paused clock advances when all tasks wait.
        builder.enable_all().start_paused(true).build().unwrap().block_on(test);
    }

    #[test]
    fn an_unfinished_head_times_out() {
        paused(async {
            let (mut client, server) = tokio::io::duplex(1024);
            let mut guarded = RequestGuard::new(server, Arc::new(GuardState::default()));
            client.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            let begin = tokio::time::Instant::now();
            let error = guarded.read_u8().await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(begin.elapsed() >= HEAD_TIMEOUT && begin.elapsed() < 2 * HEAD_TIMEOUT);
        });
    }

    #[test]
    fn a_client_that_does_not_read_times_out() {
        paused(async {
            let (_client, server) = tokio::io::duplex(16);
            let mut guarded = RequestGuard::new(server, Arc::new(GuardState::default()));
            let error = guarded.write_all(&[0; 17]).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        });
    }

    #[test]
    fn shutdown_drains_the_client_within_the_linger_timeout() {
        paused(async {
            let (mut client, server) = tokio::io::duplex(16);
            let mut guarded = RequestGuard::new(server, Arc::new(GuardState::default()));
            client.write_all(b"unread").await.unwrap();
            let begin = tokio::time::Instant::now();
            guarded.shutdown().await.unwrap();
            assert!(begin.elapsed() >= LINGER_TIMEOUT && begin.elapsed() < 2 * LINGER_TIMEOUT);
        });
    }

    #[test]
    fn broken_chunks_end_the_connection() {
        paused(async {
            let (mut client, server) = tokio::io::duplex(1024);
            let guard = Arc::new(GuardState::default());
            let mut guarded = RequestGuard::new(server, Arc::clone(&guard));
            let start = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
            client.write_all(start).await.unwrap();
            let mut head_timeout = vec![0; start.len()];
            guarded.read_exact(&mut head_timeout).await.unwrap();
            assert_eq!(head_timeout, start);
            client.write_all(b"x\r\n").await.unwrap();
            let error = guarded.read_u8().await.unwrap_err();
            assert_eq!((error.kind(), guard.fault()), (io::ErrorKind::InvalidData, None));
        });
    }
}
