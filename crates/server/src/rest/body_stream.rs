//! Moves bodies between threads that block and async tasks.

use axum::body::{Body, Bytes};
use futures_util::{Stream, StreamExt};
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// A chunk of a body, or the error that ended it.
pub(super) type BodyChunk = io::Result<Bytes>;

/// Most chunks in flight; the writing thread waits for room.
const IN_FLIGHT: usize = 16;
/// Most bytes of one chunk.
const PIECE: usize = 64 << 10;

/// The end of a body that a thread writes to.
pub(super) struct BodyWriter(mpsc::Sender<BodyChunk>);

/// The end of a body that a task reads from.
pub(super) struct BodyChunks(mpsc::Receiver<BodyChunk>);

pub(super) fn pipe() -> (BodyWriter, BodyChunks) {
    let (sender, receiver) = mpsc::channel(IN_FLIGHT);
    (BodyWriter(sender), BodyChunks(receiver))
}

impl BodyWriter {
    /// Waits for room in the channel; false if the reader is gone.
    pub(super) fn send(&self, chunk: BodyChunk) -> bool {
        self.0.blocking_send(chunk).is_ok()
    }
}

impl Write for BodyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(PIECE)];
        match self.send(Ok(Bytes::copy_from_slice(piece))) {
            true => Ok(piece.len()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl BodyChunks {
    /// The next chunk; none at the end.
    pub(super) async fn next_piece(&mut self) -> Option<BodyChunk> {
        self.0.recv().await
    }
}

impl Stream for BodyChunks {
    type Item = BodyChunk;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<BodyChunk>> {
        self.0.poll_recv(context)
    }
}

/// A value that is dropped together with a body.
pub(super) struct BodyGuard<T>(T);

impl<T> BodyGuard<T> {
    pub(super) fn new(what: T) -> Self {
        Self(what)
    }
}

/// A body of chunks, which also drops `kept` when it is dropped.
pub(super) fn body_of<T: Send + 'static>(
    chunks: impl Stream<Item = BodyChunk> + Send + 'static,
    kept: BodyGuard<T>,
) -> Body {
    Body::from_stream(chunks.map(move |chunk| {
        let _ = &kept;
        chunk
    }))
}

/// A request body, as a thread reads it.
pub(super) struct RequestBodyReader {
    chunks: mpsc::Receiver<BodyChunk>,
    left: Bytes,
}

/// Moves a request body to a thread.
pub(super) fn take(body: Body) -> RequestBodyReader {
    let (sender, chunks) = mpsc::channel(IN_FLIGHT);
    tokio::spawn(async move {
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            if sender.send(piece.map_err(io::Error::other)).await.is_err() {
                break;
            }
        }
    });
    RequestBodyReader { chunks, left: Bytes::new() }
}

impl Read for RequestBodyReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.left.is_empty() {
            match self.chunks.blocking_recv() {
                Some(piece) => self.left = piece?,
                None => return Ok(0),
            }
        }
        let count = self.left.len().min(into.len());
        into[..count].copy_from_slice(&self.left.split_to(count));
        Ok(count)
    }
}
