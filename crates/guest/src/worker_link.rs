//! The connection to the worker: frames with descriptors.

use msb_sys::socket::{self, DescriptorSocket};
use msb_wire::{FrameKind, FramedSocket, FromGuest, MAX_REQUEST, ToGuest, encode};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub(crate) struct WorkerLink(FramedSocket<DescriptorSocket>);

impl WorkerLink {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(FramedSocket::new(socket.into(), MAX_REQUEST))
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.0.socket().as_fd()
    }

    /// The next request and its descriptors; none when the worker has closed the connection.
    pub(crate) fn next(&mut self) -> Option<(ToGuest, Vec<OwnedFd>)> {
        // Stops at the end of a frame: descriptors of the next one must stay with it.
        let frame = self.0.read_frame_only(&mut [0; 4096]).ok()??;
        let fds = std::mem::take(&mut self.0.socket_mut().fds);
        Some((frame.value().ok()?, fds))
    }

    /// Sends a message. A failure means that the connection is closed, which the next read reports.
    /// If the host is out of descriptors in flight, the message is sent without them, and the
    /// worker reports that.
    pub(crate) fn send(&mut self, what: &FromGuest, fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let frame = encode(FrameKind::Control, what);
        let sent = socket::send_or_tell(self.socket(), &frame, &fds);
        if !fds.is_empty() && sent.is_err_and(|unsent| unsent.is_shortage()) {
            let _ = socket::send_all(self.socket(), &frame, &[]);
        }
    }
}
