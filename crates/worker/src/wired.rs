//! A connection to the guest of a microVM: frames both ways, and never a wait.

use msb_wire::{Decoder, Frame, FrameKind, MAX_FROM_GUEST, Malformed, header};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// One connection. Everything that comes from it is hostile.
#[derive(Debug)]
pub(crate) struct Wired {
    socket: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
}

impl Wired {
    pub(crate) fn new(socket: OwnedFd) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, decoder: Decoder::new(MAX_FROM_GUEST), out: Vec::new(), sent: 0 })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The connection itself, if nothing has come that was not read.
    pub(crate) fn into_socket(self) -> Option<OwnedFd> {
        (!self.decoder.is_midway()).then_some(self.socket)
    }

    /// Takes what has arrived; false when the other side is gone.
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

    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        self.decoder.next_frame()
    }

    /// Sends a whole frame, or several.
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
                // Gone: reading tells.
                Err(_) => self.sent = self.out.len(),
            }
        }
        self.out.clear();
        self.sent = 0;
    }

    /// How much waits to be sent.
    pub(crate) fn owed(&self) -> usize {
        self.out.len() - self.sent
    }
}
