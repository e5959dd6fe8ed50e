//! Bodies between threads that wait and tasks that must not.

use axum::body::{Body, Bytes};
use futures_util::{Stream, StreamExt};
use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc;

/// A piece, or why there are no more.
pub(super) type Chunk = io::Result<Bytes>;

/// Pieces that are under way; whoever makes more waits.
const UNDER_WAY: usize = 16;
/// Bytes of one piece.
const PIECE: usize = 64 << 10;

/// Where a thread writes a body.
pub(super) struct Pipe(mpsc::Sender<Chunk>);

/// Where a task takes it.
pub(super) struct Chunks(mpsc::Receiver<Chunk>);

pub(super) fn pipe() -> (Pipe, Chunks) {
    let (sender, receiver) = mpsc::channel(UNDER_WAY);
    (Pipe(sender), Chunks(receiver))
}

impl Pipe {
    /// Waits for room; false if nobody takes it any more.
    pub(super) fn send(&self, chunk: Chunk) -> bool {
        self.0.blocking_send(chunk).is_ok()
    }
}

impl Write for Pipe {
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

impl Chunks {
    /// The next piece; none if there are no more.
    pub(super) async fn next_piece(&mut self) -> Option<Chunk> {
        self.0.recv().await
    }
}

impl Stream for Chunks {
    type Item = Chunk;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Chunk>> {
        self.0.poll_recv(context)
    }
}

/// Dropped with a body.
pub(super) struct Kept<T>(T);

impl<T> Kept<T> {
    pub(super) fn new(what: T) -> Self {
        Self(what)
    }
}

/// A body of pieces, with something that is dropped with it.
pub(super) fn body_of<T: Send + 'static>(
    chunks: impl Stream<Item = Chunk> + Send + 'static,
    kept: Kept<T>,
) -> Body {
    Body::from_stream(chunks.map(move |chunk| {
        let _ = &kept;
        chunk
    }))
}

/// What a thread reads of a body.
pub(super) struct Taken {
    chunks: mpsc::Receiver<Chunk>,
    left: Bytes,
}

/// Hands a body to a thread.
pub(super) fn take(body: Body) -> Taken {
    let (sender, chunks) = mpsc::channel(UNDER_WAY);
    tokio::spawn(async move {
        let mut pieces = body.into_data_stream();
        while let Some(piece) = pieces.next().await {
            if sender.send(piece.map_err(io::Error::other)).await.is_err() {
                break;
            }
        }
    });
    Taken { chunks, left: Bytes::new() }
}

impl Read for Taken {
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
