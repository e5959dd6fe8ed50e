//! A vsock connection to the guest of a microVM: frames in both directions, never blocking.

use msb_wire::{Decoder, Frame, FrameError, FrameKind, MAX_FROM_GUEST, header};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One connection with its send buffer. Everything that arrives is untrusted.
#[derive(Debug)]
pub(crate) struct VsockConn {
    socket: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
}

impl VsockConn {
    pub(crate) fn new(socket: OwnedFd) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, decoder: Decoder::new(MAX_FROM_GUEST), out: Vec::new(), sent: 0 })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket, unless part of a frame has been read already.
    pub(crate) fn into_socket(self) -> Option<OwnedFd> {
        (!self.decoder.is_midway()).then_some(self.socket)
    }

    /// Reads what has arrived; false when the other end is closed.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> bool {
        match rustix::io::read(&self.socket, &mut *buffer) {
            Ok(n) if n > 0 => {
                self.decoder.push(&buffer[..n]);
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => true,
            _ => false,
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        self.decoder.next_frame()
    }

    /// Sends one or more encoded frames.
    pub(crate) fn send(&mut self, frames: &[u8]) {
        self.out.extend_from_slice(frames);
        self.flush();
    }

    pub(crate) fn send_bytes(&mut self, kind: FrameKind, bytes: &[u8]) {
        self.out.extend_from_slice(&header(kind, bytes.len()));
        self.send(bytes);
    }

    pub(crate) fn flush(&mut self) {
        while self.sent < self.out.len() {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.out[self.sent..], flags) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The end is noticed when reading.
                Err(_) => self.sent = self.out.len(),
            }
        }
        self.out.clear();
        self.sent = 0;
    }

    /// Number of buffered bytes that are not sent yet.
    pub(crate) fn pending_bytes(&self) -> usize {
        self.out.len() - self.sent
    }
}
