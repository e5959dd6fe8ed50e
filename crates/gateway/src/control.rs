//! The worker's end: what it asks and what it is told.

use msb_wire::{Decoder, FrameKind, FromGateway, MAX_REQUEST, ToGateway, encode};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// As much as waits for a worker that does not read; events beyond it are left out.
const MOST_WAITING: usize = 1 << 20;

/// The socket to the worker.
#[derive(Debug)]
pub(crate) struct Control {
    socket: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
}

impl Control {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&socket)?;
        rustix::fs::fcntl_setfl(&socket, flags | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self { socket, decoder: Decoder::new(MAX_REQUEST), out: Vec::new() })
    }

    /// What was asked since; an error when the worker is gone or speaks nonsense.
    pub(crate) fn read(&mut self) -> io::Result<Vec<ToGateway>> {
        let mut asked = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(Errno::AGAIN) => return Ok(asked),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let wrong = |_| io::Error::from(io::ErrorKind::InvalidData);
            while let Some(frame) = self.decoder.next_frame().map_err(wrong)? {
                if frame.kind != FrameKind::Control {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                asked.push(frame.value().map_err(wrong)?);
            }
        }
    }

    /// Whether the worker keeps up with what it is told.
    pub(crate) fn has_room(&self) -> bool {
        self.out.len() < MOST_WAITING
    }

    /// Tells the worker something, once it reads.
    pub(crate) fn send(&mut self, told: &FromGateway) {
        self.out.extend_from_slice(&encode(FrameKind::Control, told));
    }

    /// Writes what waits; whether something still does.
    pub(crate) fn flush(&mut self) -> bool {
        let mut at = 0;
        while at < self.out.len() {
            match rustix::net::send(&self.socket, &self.out[at..], SendFlags::NOSIGNAL) {
                Ok(n) => at += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // Gone, which reading shows.
                Err(_) => at = self.out.len(),
            }
        }
        self.out.drain(..at);
        !self.out.is_empty()
    }
}

impl AsFd for Control {
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
        let mut control = Control::new(ours).unwrap();
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
        let mut control = Control::new(ours).unwrap();
        rustix::io::write(&theirs, &encode(FrameKind::Stdin, &1u8)).unwrap();
        assert!(control.read().is_err());
    }
}
