//! The control socket to the worker: requests come in, replies and events go out.

use msb_sys::socket::NonblockingSocket;
use msb_wire::{FrameKind, FramedSocket, FromGateway, MAX_REQUEST, ToGateway, encode};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes that are queued for a worker that does not read. Events beyond that are dropped and
/// counted.
const MAX_QUEUED_BYTES: usize = 1 << 20;

/// The socket to the worker, with partial frames in both directions.
#[derive(Debug)]
pub(crate) struct ControlSocket(FramedSocket<NonblockingSocket>);

impl ControlSocket {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(FramedSocket::new(socket.into(), MAX_REQUEST))
    }

    /// The requests that arrived since the last call. An error means that the worker closed the
    /// socket or sent an invalid frame.
    pub(crate) fn read(&mut self) -> io::Result<Vec<ToGateway>> {
        let mut requests = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let frame = match self.0.read_frame(&mut buffer) {
                Ok(Some(frame)) => frame,
                Ok(None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(requests),
                Err(error) => return Err(error),
            };
            let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
            if frame.kind != FrameKind::Control {
                return Err(io::ErrorKind::InvalidData.into());
            }
            requests.push(frame.value().map_err(invalid)?);
        }
    }

    /// Whether less than [`MAX_QUEUED_BYTES`] is queued.
    pub(crate) fn has_room(&self) -> bool {
        self.0.unsent() < MAX_QUEUED_BYTES
    }

    /// Queues a message; [`ControlSocket::flush`] writes it.
    pub(crate) fn send(&mut self, message: &FromGateway) {
        self.0.enqueue(&encode(FrameKind::Control, message));
    }

    /// Writes queued bytes; returns whether some are left.
    pub(crate) fn flush(&mut self) -> bool {
        // If the socket is closed, the next read reports it.
        let _ = self.0.flush();
        self.0.unsent() > 0
    }
}

impl AsFd for ControlSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_whole_and_answers_leave_whole() {
        let (ours, theirs) = msb_sys::socket::pair().unwrap();
        let mut control = ControlSocket::new(ours);
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
        let mut control = ControlSocket::new(ours);
        rustix::io::write(&theirs, &encode(FrameKind::Stdin, &1u8)).unwrap();
        assert!(control.read().is_err());
    }
}
