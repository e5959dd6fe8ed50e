//! A vsock connection to the guest of a microVM: frames in both directions, never blocking.

use msb_sys::socket::NonblockingSocket;
use msb_wire::{Frame, FrameError, FrameKind, FramedSocket, MAX_FROM_GUEST};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One connection with its send buffer. Everything that arrives is untrusted.
#[derive(Debug)]
pub(crate) struct VsockConn(FramedSocket<NonblockingSocket>);

impl VsockConn {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(FramedSocket::new(socket.into(), MAX_FROM_GUEST))
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.0.socket().as_fd()
    }

    /// The socket, unless part of a frame has been read already.
    pub(crate) fn into_socket(self) -> Option<OwnedFd> {
        self.0.into_socket().map(OwnedFd::from)
    }

    /// Reads what has arrived; false when the other end is closed.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> bool {
        match self.0.receive(buffer) {
            Ok(n) => n > 0,
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        self.0.next_frame()
    }

    /// Sends one or more encoded frames.
    pub(crate) fn send(&mut self, frames: &[u8]) {
        self.0.enqueue(frames);
        self.flush();
    }

    pub(crate) fn send_bytes(&mut self, kind: FrameKind, bytes: &[u8]) {
        self.0.enqueue_payload(kind, bytes);
        self.flush();
    }

    /// Sends what the socket takes. The end of the connection is noticed when reading.
    pub(crate) fn flush(&mut self) {
        let _ = self.0.flush();
    }

    /// Number of buffered bytes that are not sent yet.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.0.unsent()
    }
}
