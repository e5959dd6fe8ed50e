//! A client and the guest of a microVM, joined for one file operation or one stream. Nothing is looked at but
//! the frames that a stream is in, because a connection to a machine cannot end in one direction.

use msb_wire::{Unwrapping, wrap};
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
    /// It will say no more.
    ended: bool,
    /// It hears no more either.
    gone: bool,
}

impl Side {
    fn new(socket: OwnedFd) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self { socket, owed: Vec::new(), sent: 0, ended: false, gone: false })
    }

    fn leave(&mut self) {
        (self.ended, self.gone) = (true, true);
    }

    fn flush(&mut self) {
        while self.sent < self.owed.len() && !self.gone {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, &self.owed[self.sent..], flags) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.leave(),
            }
        }
        self.owed.clear();
        self.sent = 0;
    }

    /// What to wait for. One that has gone would never be quiet.
    fn wait(&self, other: &Self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, other.owed.len() - other.sent < BACKLOG && !self.ended);
        flags.set(PollFlags::OUT, self.sent < self.owed.len());
        (!self.gone || !flags.is_empty()).then_some((self.socket.as_fd(), flags))
    }
}

/// Two connections that are one.
#[derive(Debug)]
pub(crate) struct Relay {
    client: Side,
    guest: Side,
    /// The guest's side is in frames: how they are taken off.
    framed: Option<Unwrapping>,
    /// The client has been told that no more will come.
    told: bool,
}

impl Relay {
    pub(crate) fn new(client: OwnedFd, guest: OwnedFd) -> rustix::io::Result<Self> {
        let (client, guest) = (Side::new(client)?, Side::new(guest)?);
        Ok(Self { client, guest, framed: None, told: false })
    }

    /// The same where each direction ends on its own.
    pub(crate) fn framed(client: OwnedFd, guest: OwnedFd) -> rustix::io::Result<Self> {
        Ok(Self { framed: Some(Unwrapping::default()), ..Self::new(client, guest)? })
    }

    /// What to wait for, on each: whether it is the guest's.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (bool, BorrowedFd<'_>, PollFlags)> {
        let client = self.client.wait(&self.guest).map(|(fd, flags)| (false, fd, flags));
        let guest = self.guest.wait(&self.client).map(|(fd, flags)| (true, fd, flags));
        client.into_iter().chain(guest)
    }

    /// Moves what can be moved on one side; false when all is over.
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
                Err(_) => side.leave(),
            }
        } else if flags.intersects(PollFlags::HUP | PollFlags::ERR) {
            side.leave();
        }
        self.goes_on()
    }

    fn pass(&mut self, from_guest: bool, bytes: &[u8]) {
        match (&mut self.framed, from_guest) {
            (None, true) => self.client.owed.extend_from_slice(bytes),
            (None, false) => self.guest.owed.extend_from_slice(bytes),
            (Some(_), false) => wrap(bytes, &mut self.guest.owed),
            (Some(unwrapping), true) => match unwrapping.take(bytes, &mut self.client.owed) {
                Ok(ended) => self.guest.ended |= ended,
                Err(_) => self.guest.leave(),
            },
        }
        if from_guest { self.client.flush() } else { self.guest.flush() }
    }

    fn end(&mut self, from_guest: bool) {
        match (&self.framed, from_guest) {
            (Some(_), false) => {
                self.client.ended = true;
                wrap(&[], &mut self.guest.owed);
                self.guest.flush();
            }
            (_, true) => self.guest.leave(),
            (None, false) => self.client.leave(),
        }
    }

    /// What one side said before it left still reaches the other.
    fn goes_on(&mut self) -> bool {
        if self.guest.ended && self.client.owed.is_empty() && !self.told && self.framed.is_some() {
            self.told = true;
            let _ = rustix::net::shutdown(&self.client.socket, rustix::net::Shutdown::Write);
        }
        let heard_all = |side: &Side| side.gone || side.owed.is_empty();
        let over = (self.client.gone && heard_all(&self.guest))
            || (self.guest.gone && heard_all(&self.client))
            || (self.client.ended
                && self.guest.ended
                && heard_all(&self.client)
                && heard_all(&self.guest));
        !over
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

    /// Runs a relay to its end; the outer ends.
    fn running(
        make: fn(OwnedFd, OwnedFd) -> rustix::io::Result<Relay>,
    ) -> (UnixStream, UnixStream, thread::JoinHandle<()>) {
        let (ours, client) = UnixStream::pair().unwrap();
        let (theirs, guest) = UnixStream::pair().unwrap();
        let run = thread::spawn(move || {
            let mut relay = make(client.into(), guest.into()).unwrap();
            let mut buffer = vec![0; 4096];
            loop {
                let (places, mut waits): (Vec<bool>, Vec<PollFd<'_>>) = relay
                    .waits()
                    .map(|(guest, fd, flags)| (guest, PollFd::from_borrowed_fd(fd, flags)))
                    .unzip();
                poll(&mut waits, None).unwrap();
                let happened: Vec<_> = waits.iter().map(PollFd::revents).collect();
                for (guest, flags) in places.into_iter().zip(happened) {
                    if !flags.is_empty() && !relay.step(guest, flags, &mut buffer) {
                        return;
                    }
                }
            }
        });
        (ours, theirs, run)
    }

    #[test]
    fn what_was_said_last_arrives_and_then_all_is_over() {
        let (ours, mut theirs, run) = running(Relay::new);
        (&ours).write_all(b"last words").unwrap();
        drop(ours);
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "last words");
        run.join().unwrap();
    }

    #[test]
    fn in_frames_each_direction_ends_on_its_own() {
        let (mut ours, mut theirs, run) = running(Relay::framed);
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
        let mut heard = String::new();
        ours.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "answer");
        run.join().unwrap();
        assert_eq!(theirs.read(&mut buffer).unwrap(), 0);
    }

    #[test]
    fn a_guest_that_breaks_the_frames_is_left() {
        let (mut ours, mut theirs, run) = running(Relay::framed);
        theirs.write_all(&[0xff; 16]).unwrap();
        assert_eq!(ours.read(&mut [0; 8]).unwrap(), 0);
        run.join().unwrap();
    }
}
