//! The connection to the worker: frames with descriptors beside them.

use msb_sys::socket;
use msb_wire::{Decoder, FrameKind, FromGuest, MAX_REQUEST, ToGuest, encode};
use std::os::fd::{AsFd, OwnedFd};

pub(crate) struct Link {
    socket: OwnedFd,
    decoder: Decoder,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, decoder: Decoder::new(MAX_REQUEST) }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// The next request and its descriptors; none when the worker has gone.
    pub(crate) fn next(&mut self) -> Option<(ToGuest, Vec<OwnedFd>)> {
        let mut fds = Vec::new();
        let mut buffer = [0u8; 4096];
        loop {
            if let Some(frame) = self.decoder.next_frame().ok()? {
                return Some((frame.value().ok()?, fds));
            }
            // Never past the end of a frame: the next one's descriptors must stay with it.
            let wanted = self.decoder.missing().ok()?.min(buffer.len());
            match socket::receive(self.socket.as_fd(), &mut buffer[..wanted], &mut fds) {
                Ok(0) => return None,
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    /// Tells the worker. If it cannot hear, it is gone, and the next read ends us. Where the host has
    /// no room for descriptors on their way, it is told without them, and says so to its client.
    pub(crate) fn tell(&mut self, what: &FromGuest, fds: &[OwnedFd]) {
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let frame = encode(FrameKind::Control, what);
        let sent = socket::send_or_tell(self.socket.as_fd(), &frame, &fds);
        if !fds.is_empty() && sent.is_err_and(|unsent| unsent.is_shortage()) {
            let _ = socket::send_all(self.socket.as_fd(), &frame, &[]);
        }
    }
}
