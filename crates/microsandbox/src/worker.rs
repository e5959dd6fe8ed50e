//! The way to a sandbox's worker, without blocking the caller's runtime.
//!
//! One connection is one Exec, one file operation or one question, as everywhere in msb.

use msb_engine::Engine;
use msb_spec::{Error, Kind, Name, Result};
use msb_wire::{Frame, Reply, Request, WorkerClient, WorkerEvent};
use std::future::poll_fn;
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use tokio::net::UnixStream;
use tokio::sync::Mutex;

/// The worker of one sandbox, as it is reached from here.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) engine: Engine,
    pub(crate) name: Name,
    /// Held once by every open link, so that they can be counted.
    links: Arc<()>,
}

/// Connecting takes microseconds while the worker's queue of 128 has room. Beyond this many open
/// links it might not have, and a thread of the runtime would wait.
const INLINE_LINKS: usize = 64;
/// A request of this size fits into the socket's buffer at once.
const INLINE_BYTES: usize = 64 << 10;

impl Worker {
    pub(crate) fn new(engine: Engine, name: Name) -> Self {
        Self { engine, name, links: Arc::new(()) }
    }

    /// Runs a call of the engine where it may block.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Engine, &Name) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (engine, name) = (self.engine.clone(), self.name.clone());
        blocking(move || work(&engine, &name)).await
    }

    /// Opens a connection and says what for.
    pub(crate) async fn connect(&self, request: Request) -> Result<Link> {
        let inline = Arc::strong_count(&self.links) < INLINE_LINKS && size(&request) < INLINE_BYTES;
        let now = inline.then(|| self.engine.connect_now(&self.name, &request));
        let connection = match now {
            Some(Ok(connection)) => connection,
            Some(Err(error)) if error.kind() != Kind::State => return Err(error),
            // The worker may be just starting, or busy: waiting for it is for a thread.
            _ => self.blocking(move |engine, name| engine.connect(name, &request)).await?,
        };
        let stream = connection.into_stream();
        stream.set_nonblocking(true).map_err(gone)?;
        let stream = UnixStream::from_std(stream).map_err(gone)?;
        let socket = Socket {
            stream,
            unsent: Mutex::default(),
            over: AtomicBool::new(false),
            _link: Arc::clone(&self.links),
        };
        Ok(Link {
            socket: Arc::new(socket),
            client: WorkerClient::default(),
            buffer: Vec::with_capacity(FIRST_BUFFER),
        })
    }

    /// One question and its answer.
    pub(crate) async fn ask(&self, request: Request) -> Result<Reply> {
        self.connect(request).await?.reply().await
    }
}

/// Runs this where it may block.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(_) => Err(Error::new(Kind::State, "the async runtime is shutting down")),
    }
}

fn size(request: &Request) -> usize {
    let Request::Exec(command) = request else { return 0 };
    let env = command.env.iter().map(|(name, value)| name.len() + value.len());
    command.argv.iter().map(String::len).chain(env).sum()
}

/// Both directions of one connection: frames in, and a [`Socket`] to send on.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: Arc<Socket>,
    client: WorkerClient,
    buffer: Vec<u8>,
}

/// Most commands say little; the buffer grows for those that say much.
const FIRST_BUFFER: usize = 4 << 10;
const LARGEST_BUFFER: usize = 256 << 10;

impl Link {
    /// The next frame of a guest; none when it has closed.
    pub(crate) async fn next_frame(&mut self) -> Result<Option<Frame>> {
        poll_fn(|cx| self.poll_frame(cx)).await
    }

    pub(crate) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Frame>>> {
        loop {
            if let Some(frame) = self.client.next_guest_frame().map_err(gone)? {
                return Poll::Ready(Ok(Some(frame)));
            }
            if !ready!(self.poll_receive(cx))? {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// The next event of the worker; none when it has closed.
    pub(crate) async fn next_event(&mut self) -> Result<Option<WorkerEvent>> {
        loop {
            let event = self.client.next_event();
            if let Some(event) = event.map_err(|error| error.into_error(|cause| gone(cause)))? {
                return Ok(Some(event));
            }
            if !poll_fn(|cx| self.poll_receive(cx)).await? {
                return self.client.receive_end().map(|()| None).map_err(gone);
            }
        }
    }

    /// Receives some bytes; false when the other side has closed.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool>> {
        loop {
            let stream = &self.socket.stream;
            ready!(stream.poll_read_ready(cx)).map_err(gone)?;
            self.buffer.clear();
            match stream.try_read_buf(&mut self.buffer) {
                Ok(0) => return Poll::Ready(Ok(false)),
                Ok(n) => {
                    self.client.receive(&self.buffer);
                    if n == self.buffer.capacity() && n < LARGEST_BUFFER {
                        self.buffer.reserve(n * 4);
                    }
                    return Poll::Ready(Ok(true));
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Poll::Ready(Err(gone(error))),
            }
        }
    }

    /// The worker's answer; a failure is an error.
    pub(crate) async fn reply(&mut self) -> Result<Reply> {
        match self.next_event().await? {
            Some(WorkerEvent::Reply(reply)) => Ok(reply),
            _ => Err(gone("it closed the connection")),
        }
    }
}

/// The sending side of a connection. Several may send: each frame goes out whole.
#[derive(Debug)]
pub(crate) struct Socket {
    stream: UnixStream,
    unsent: Mutex<Unsent>,
    /// The worker listens no more, though it may not have closed yet.
    over: AtomicBool,
    _link: Arc<()>,
}

/// Frames on their way. What a dropped future leaves here goes out before the next frame.
#[derive(Debug, Default)]
struct Unsent {
    frames: Vec<u8>,
    sent: usize,
}

impl Socket {
    /// Sends bytes that are whole frames.
    pub(crate) async fn send(&self, frames: &[u8]) -> io::Result<()> {
        let mut unsent = self.unsent.lock().await;
        if self.over.load(Ordering::Acquire) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        unsent.frames.extend_from_slice(frames);
        self.drain(&mut unsent).await
    }

    /// Queues frames for the next [`Socket::flush`].
    pub(crate) fn enqueue(&self, frames: &[u8]) {
        if let Ok(mut unsent) = self.unsent.try_lock() {
            unsent.frames.extend_from_slice(frames);
        }
    }

    /// Sends what is left.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        let mut unsent = self.unsent.lock().await;
        self.drain(&mut unsent).await
    }

    async fn drain(&self, unsent: &mut Unsent) -> io::Result<()> {
        while unsent.sent < unsent.frames.len() {
            poll_fn(|cx| self.poll_send(cx, &mut *unsent)).await?;
        }
        unsent.frames.clear();
        unsent.sent = 0;
        Ok(())
    }

    fn poll_send(&self, cx: &mut Context<'_>, unsent: &mut Unsent) -> Poll<io::Result<()>> {
        let sent = ready!(self.poll_write(cx, &unsent.frames[unsent.sent..]))?;
        unsent.sent += sent;
        Poll::Ready(Ok(()))
    }

    /// Sends some of these bytes, as soon as there is room.
    pub(crate) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_write(bytes) {
                Err(error) if is_passing(&error) => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Takes nothing more to send.
    pub(crate) fn finish(&self) {
        self.over.store(true, Ordering::Release);
    }

    /// Closes the connection for every holder of it.
    pub(crate) fn close(&self) {
        self.finish();
        if let Ok(fd) = self.stream.as_fd().try_clone_to_owned() {
            let _ = std::os::unix::net::UnixStream::from(fd).shutdown(Shutdown::Both);
        }
    }
}

/// Nothing is there yet, though it was said to be: asking again waits.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

pub(crate) fn gone(cause: impl std::fmt::Display) -> Error {
    Error::new(Kind::Protocol, "the worker went away").cause(cause)
}
