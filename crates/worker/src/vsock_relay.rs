//! Relays between a client and the guest of a microVM, for one file operation or one stream. Only
//! the framing of streams is parsed: a vsock connection cannot be closed in one direction.

use msb_wire::{Unwrapping, wrap};
use rustix::event::PollFlags;
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Buffered bytes after which the sender is no longer read.
const BACKLOG: usize = 512 << 10;

/// One side of a relay, with its send buffer.
#[derive(Debug)]
struct RelaySide {
    socket: OwnedFd,
    outgoing: Vec<u8>,
    sent: usize,
    /// No more bytes will come from it.
    ended: bool,
    /// It is closed in both directions.
    closed: bool,
}

impl RelaySide {
    fn new(socket: OwnedFd) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, outgoing: Vec::new(), sent: 0, ended: false, closed: false })
    }

    fn close(&mut self) {
        (self.ended, self.closed) = (true, true);
    }

    fn flush(&mut self) {
        while self.sent < self.outgoing.len() && !self.closed {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.outgoing[self.sent..], flags) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.close(),
            }
        }
        self.outgoing.clear();
        self.sent = 0;
    }

    /// Poll flags of this side. A closed side is not polled, because it would always be ready.
    fn wait(&self, other: &Self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, other.outgoing.len() - other.sent < BACKLOG && !self.ended);
        flags.set(PollFlags::OUT, self.sent < self.outgoing.len());
        (!self.closed || !flags.is_empty()).then_some((self.socket.as_fd(), flags))
    }
}

/// A pair of joined connections.
#[derive(Debug)]
pub(crate) struct VsockRelay {
    client: RelaySide,
    guest: RelaySide,
    /// Decoder of the guest's side, if it is framed.
    framed: Option<Unwrapping>,
    /// The client's write side was shut down.
    client_shut_down: bool,
}

impl VsockRelay {
    pub(crate) fn new(client: OwnedFd, guest: OwnedFd) -> rustix::io::Result<Self> {
        let (client, guest) = (RelaySide::new(client)?, RelaySide::new(guest)?);
        Ok(Self { client, guest, framed: None, client_shut_down: false })
    }

    /// A relay with framed directions, which are closed independently.
    pub(crate) fn framed(client: OwnedFd, guest: OwnedFd) -> rustix::io::Result<Self> {
        Ok(Self { framed: Some(Unwrapping::default()), ..Self::new(client, guest)? })
    }

    /// What to poll for; `true` marks the guest's side.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (bool, BorrowedFd<'_>, PollFlags)> {
        let client = self.client.wait(&self.guest).map(|(fd, flags)| (false, fd, flags));
        let guest = self.guest.wait(&self.client).map(|(fd, flags)| (true, fd, flags));
        client.into_iter().chain(guest)
    }

    /// Handles poll flags of one side; false when the relay is done.
    pub(crate) fn step(&mut self, from_guest: bool, flags: PollFlags, buffer: &mut [u8]) -> bool {
        let side = if from_guest { &mut self.guest } else { &mut self.client };
        if flags.contains(PollFlags::OUT) {
            side.flush();
        }
        if flags.contains(PollFlags::IN) {
            match rustix::io::read(&side.socket, &mut *buffer) {
                Ok(0) => self.end(from_guest),
                Ok(n) => self.pass(from_guest, &buffer[..n]),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => side.close(),
            }
        } else if flags.intersects(PollFlags::HUP | PollFlags::ERR) {
            side.close();
        }
        self.is_active()
    }

    fn pass(&mut self, from_guest: bool, bytes: &[u8]) {
        match (&mut self.framed, from_guest) {
            (None, true) => self.client.outgoing.extend_from_slice(bytes),
            (None, false) => self.guest.outgoing.extend_from_slice(bytes),
            (Some(_), false) => wrap(bytes, &mut self.guest.outgoing),
            (Some(unwrapping), true) => match unwrapping.take(bytes, &mut self.client.outgoing) {
                Ok(ended) => self.guest.ended |= ended,
                Err(_) => self.guest.close(),
            },
        }
        if from_guest { self.client.flush() } else { self.guest.flush() }
    }

    fn end(&mut self, from_guest: bool) {
        match (&self.framed, from_guest) {
            (Some(_), false) => {
                self.client.ended = true;
                wrap(&[], &mut self.guest.outgoing);
                self.guest.flush();
            }
            (_, true) => self.guest.close(),
            (None, false) => self.client.close(),
        }
    }

    /// Buffered bytes are delivered before the relay ends.
    fn is_active(&mut self) -> bool {
        if self.guest.ended
            && self.client.outgoing.is_empty()
            && !self.client_shut_down
            && self.framed.is_some()
        {
            self.client_shut_down = true;
            let _ = rustix::net::shutdown(&self.client.socket, rustix::net::Shutdown::Write);
        }
        let is_flushed = |side: &RelaySide| side.closed || side.outgoing.is_empty();
        let done = (self.client.closed && is_flushed(&self.guest))
            || (self.guest.closed && is_flushed(&self.client))
            || (self.client.ended
                && self.guest.ended
                && is_flushed(&self.client)
                && is_flushed(&self.guest));
        !done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, poll};
    use std::io::{Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// Runs a relay in a thread. Returns the outer ends.
    fn running(
        make: fn(OwnedFd, OwnedFd) -> rustix::io::Result<VsockRelay>,
    ) -> (UnixStream, UnixStream, thread::JoinHandle<()>) {
        let (ours, client) = UnixStream::pair().unwrap();
        let (theirs, guest) = UnixStream::pair().unwrap();
        let run = thread::spawn(move || {
            let mut relay = make(client.into(), guest.into()).unwrap();
            let mut buffer = vec![0; 4096];
            loop {
                let (sides, mut waits): (Vec<bool>, Vec<PollFd<'_>>) = relay
                    .waits()
                    .map(|(guest, fd, flags)| (guest, PollFd::from_borrowed_fd(fd, flags)))
                    .unzip();
                poll(&mut waits, None).unwrap();
                let happened: Vec<_> = waits.iter().map(PollFd::revents).collect();
                for (guest, flags) in sides.into_iter().zip(happened) {
                    if !flags.is_empty() && !relay.step(guest, flags, &mut buffer) {
                        return;
                    }
                }
            }
        });
        (ours, theirs, run)
    }

    #[test]
    fn buffered_bytes_arrive_before_the_end() {
        let (ours, mut theirs, run) = running(VsockRelay::new);
        (&ours).write_all(b"last words").unwrap();
        drop(ours);
        let mut received = String::new();
        theirs.read_to_string(&mut received).unwrap();
        assert_eq!(received, "last words");
        run.join().unwrap();
    }

    #[test]
    fn framed_directions_are_closed_independently() {
        let (mut ours, mut theirs, run) = running(VsockRelay::framed);
        ours.write_all(b"question").unwrap();
        ours.shutdown(Shutdown::Write).unwrap();
        let (mut unwrapping, mut out) = (Unwrapping::default(), Vec::new());
        let mut buffer = [0; 64];
        loop {
            let n = theirs.read(&mut buffer).unwrap();
            if unwrapping.take(&buffer[..n], &mut out).unwrap() {
                break;
            }
        }
        assert_eq!(out, b"question");
        let mut answer = Vec::new();
        wrap(b"answer", &mut answer);
        wrap(&[], &mut answer);
        theirs.write_all(&answer).unwrap();
        let mut received = String::new();
        ours.read_to_string(&mut received).unwrap();
        assert_eq!(received, "answer");
        run.join().unwrap();
        assert_eq!(theirs.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn malformed_frames_close_the_relay() {
        let (mut ours, mut theirs, run) = running(VsockRelay::framed);
        theirs.write_all(&[0xff; 16]).unwrap();
        assert_eq!(ours.read(&mut [0; 8]).unwrap(), 0);
        run.join().unwrap();
    }
}
