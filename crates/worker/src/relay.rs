//! A client and the guest of a microVM, joined for one file operation. Nothing is looked at.

use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Beyond this the faster side waits.
const BACKLOG: usize = 512 << 10;

/// One side, and what it is still owed.
#[derive(Debug)]
struct Side {
    socket: OwnedFd,
    owed: Vec<u8>,
    sent: usize,
    ended: bool,
}

impl Side {
    fn new(socket: OwnedFd) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, owed: Vec::new(), sent: 0, ended: false })
    }

    fn flush(&mut self) {
        while self.sent < self.owed.len() {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.owed[self.sent..], flags) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => {
                    self.ended = true;
                    break;
                }
            }
        }
        self.owed.clear();
        self.sent = 0;
    }

    /// Reads for the other side.
    fn read_into(&mut self, other: &mut Self, buffer: &mut [u8]) {
        match rustix::io::read(&self.socket, &mut *buffer) {
            Ok(n) if n > 0 => {
                other.owed.extend_from_slice(&buffer[..n]);
                other.flush();
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.ended = true,
        }
    }

    fn flags(&self, other: &Self) -> PollFlags {
        let mut flags = PollFlags::empty();
        if other.owed.len() - other.sent < BACKLOG && !self.ended {
            flags |= PollFlags::IN;
        }
        if self.sent < self.owed.len() {
            flags |= PollFlags::OUT;
        }
        flags
    }
}

/// Two connections that are one.
#[derive(Debug)]
pub(crate) struct Relay {
    client: Side,
    guest: Side,
}

impl Relay {
    pub(crate) fn new(client: OwnedFd, guest: OwnedFd) -> rustix::io::Result<Self> {
        Ok(Self { client: Side::new(client)?, guest: Side::new(guest)? })
    }

    /// What to wait for, on each.
    pub(crate) fn waits(&self) -> [(BorrowedFd<'_>, PollFlags); 2] {
        let client = self.client.flags(&self.guest);
        let guest = self.guest.flags(&self.client);
        [(self.client.socket.as_fd(), client), (self.guest.socket.as_fd(), guest)]
    }

    /// Moves what can be moved on one side; false when all is over.
    pub(crate) fn step(&mut self, from_guest: bool, flags: PollFlags, buffer: &mut [u8]) -> bool {
        let (side, other) = match from_guest {
            true => (&mut self.guest, &mut self.client),
            false => (&mut self.client, &mut self.guest),
        };
        if flags.contains(PollFlags::OUT) {
            side.flush();
        }
        if flags.contains(PollFlags::IN) {
            side.read_into(other, buffer);
        } else if flags.intersects(PollFlags::HUP | PollFlags::ERR) {
            side.ended = true;
        }
        // What one side said before it left still reaches the other.
        !(self.client.ended && self.guest.owed.is_empty()
            || self.guest.ended && self.client.owed.is_empty())
    }
}
