//! The connection to the worker: frames with descriptors.

use msb_sys::socket;
use msb_wire::{Decoder, FrameKind, FromGuest, MAX_REQUEST, ToGuest, encode};
use std::os::fd::{AsFd, OwnedFd};

pub(crate) struct WorkerLink {
    socket: OwnedFd,
    decoder: Decoder,
}

impl WorkerLink {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, decoder: Decoder::new(MAX_REQUEST) }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The next request and its descriptors; none when the worker has closed the connection.
    pub(crate) fn next(&mut self) -> Option<(ToGuest, Vec<OwnedFd>)> {
        let mut fds = Vec::new();
        let mut buffer = [0u8; 4096];
        loop {
            if let Some(frame) = self.decoder.next_frame().ok()? {
                return Some((frame.value().ok()?, fds));
            }
            // Stops at the end of a frame: descriptors of the next one must stay with it.
            let wanted = self.decoder.missing().ok()?.min(buffer.len());
            match socket::receive(self.socket.as_fd(), &mut buffer[..wanted], &mut fds) {
                Ok(0) => return None,
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// Sends a message. A failure means that the connection is closed, which the next read reports.
    /// If the host is out of descriptors in flight, the message is sent without them, and the
    /// worker reports that.
    pub(crate) fn send(&mut self, what: &FromGuest, fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let frame = encode(FrameKind::Control, what);
        let sent = socket::send_or_tell(self.socket.as_fd(), &frame, &fds);
        if !fds.is_empty() && sent.is_err_and(|unsent| unsent.is_shortage()) {
            let _ = socket::send_all(self.socket.as_fd(), &frame, &[]);
        }
    }
}
