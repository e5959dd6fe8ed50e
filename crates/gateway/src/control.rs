//! The control socket to the worker: requests come in, replies and events go out.

use msb_wire::{Decoder, FrameKind, FromGateway, MAX_REQUEST, ToGateway, encode};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes that are queued for a worker that does not read. Events beyond that are dropped and
/// counted.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// The socket to the worker, with partial frames in both directions.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    socket: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
}

impl ControlSocket {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&socket)?;
        rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self { socket, decoder: Decoder::new(MAX_REQUEST), out: Vec::new() })
    }

    /// The requests that arrived since the last call. An error means that the worker closed the
    /// socket or sent an invalid frame.
    pub(crate) fn read(&mut self) -> io::Result<Vec<ToGateway>> {
        let mut requests = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(Errno::AGAIN) => return Ok(requests),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
            while let Some(frame) = self.decoder.next_frame().map_err(invalid)? {
                if frame.kind != FrameKind::Control {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                requests.push(frame.value().map_err(invalid)?);
            }
        }
    }

    /// Whether less than [`MAX_QUEUED_BYTES`] is queued.
    pub(crate) fn has_room(&self) -> bool {
        self.out.len() < MAX_QUEUED_BYTES
    }

    /// Queues a message; [`ControlSocket::flush`] writes it.
    pub(crate) fn send(&mut self, message: &FromGateway) {
        self.out.extend_from_slice(&encode(FrameKind::Control, message));
    }

    /// Writes queued bytes; returns whether some are left.
    pub(crate) fn flush(&mut self) -> bool {
        let mut at = 0;
        while at < self.out.len() {
            match rustix::net::send(&self.socket, &self.out[at..], SendFlags::NOSIGNAL) {
                Ok(n) => at += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The socket is closed; the next read reports it.
                Err(_) => at = self.out.len(),
            }
        }
        self.out.drain(..at);
        !self.out.is_empty()
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_whole_and_answers_leave_whole() {
        let (ours, theirs) = msb_sys::socket::pair().unwrap();
        let mut control = ControlSocket::new(ours).unwrap();
        let bytes = encode(FrameKind::Control, &ToGateway::Table);
        rustix::io::write(&theirs, &bytes[..3]).unwrap();
        assert_eq!(control.read().unwrap(), []);
        rustix::io::write(&theirs, &bytes[3..]).unwrap();
        assert_eq!(control.read().unwrap(), [ToGateway::Table]);
        control.send(&FromGateway::Done);
        assert!(!control.flush());
        let mut buffer = [0; 64];
        let n = rustix::io::read(&theirs, &mut buffer).unwrap();
        assert_eq!(buffer[..n], encode(FrameKind::Control, &FromGateway::Done));
        drop(theirs);
        assert!(control.read().is_err());
    }

    #[test]
    fn nonsense_ends_it() {
        let (ours, theirs) = msb_sys::socket::pair().unwrap();
        let mut control = ControlSocket::new(ours).unwrap();
        rustix::io::write(&theirs, &encode(FrameKind::Stdin, &1u8)).unwrap();
        assert!(control.read().is_err());
    }
}
