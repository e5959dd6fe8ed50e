//! Relays between two streams, including the end of each direction.

use msb_wire::{Unwrapping, wrap};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use std::os::fd::BorrowedFd;

/// Buffered bytes after which the sender is no longer read.
const BACKLOG: usize = 256 << 10;
const CHUNK: usize = 64 << 10;

/// Framing of the connection to the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HostFraming {
    /// None: each direction can be closed by itself.
    Plain,
    /// In frames, with at most this many bytes in a write: a vsock connection.
    Framed(usize),
}

/// One end of a relay, with its send buffer.
struct RelayEnd<'a> {
    socket: BorrowedFd<'a>,
    /// Decoder of its frames, if it is framed.
    unwrapping: Option<Unwrapping>,
    max_write: usize,
    /// Bytes from the other end, to be sent.
    outgoing: Vec<u8>,
    sent: usize,
    /// No more bytes will come from it.
    ended: bool,
    /// It is closed in both directions; buffered bytes are dropped.
    closed: bool,
    /// Everything was sent, and its write side was shut down.
    shut_down: bool,
}

impl<'a> RelayEnd<'a> {
    fn new(socket: BorrowedFd<'a>, framing: HostFraming) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(socket, true)?;
        let (unwrapping, max_write) = match framing {
            HostFraming::Plain => (None, usize::MAX),
            HostFraming::Framed(max_write) => (Some(Unwrapping::default()), max_write),
        };
        let (outgoing, sent) = (Vec::new(), 0);
        Ok(Self {
            socket,
            unwrapping,
            max_write,
            outgoing,
            sent,
            ended: false,
            closed: false,
            shut_down: false,
        })
    }

    fn has_outgoing(&self) -> bool {
        self.sent < self.outgoing.len()
    }

    fn may_read(&self, other: &Self) -> bool {
        !self.ended && other.outgoing.len() - other.sent < BACKLOG
    }

    /// Poll flags of this end. A closed end is always ready, so it is only polled while there is
    /// something to read.
    fn wait(&self, other: &Self) -> Option<PollFd<'a>> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.may_read(other));
        flags.set(PollFlags::OUT, self.has_outgoing());
        (!flags.is_empty() || !self.closed).then(|| PollFd::from_borrowed_fd(self.socket, flags))
    }

    fn step(&mut self, other: &mut Self, flags: PollFlags, buffer: &mut [u8]) {
        // Closed in both directions. Earlier bytes can still be read.
        let gone = flags.intersects(PollFlags::HUP | PollFlags::ERR);
        self.closed |= gone;
        self.flush();
        // A closed end has bytes or its end to read, also where IN was not polled for: the other end
        // had too many buffered bytes then.
        if flags.contains(PollFlags::IN) || (gone && self.may_read(other)) {
            self.read_into(other, buffer);
        }
    }

    fn flush(&mut self) {
        while self.has_outgoing() && !self.closed {
            let end = self.outgoing.len().min(self.sent.saturating_add(self.max_write));
            let piece = &self.outgoing[self.sent..end];
            match rustix::net::send(self.socket, piece, SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.closed = true,
            }
        }
        self.outgoing.clear();
        self.sent = 0;
    }

    /// Reads bytes for the other end.
    fn read_into(&mut self, other: &mut Self, buffer: &mut [u8]) {
        match rustix::io::read(self.socket, &mut *buffer) {
            Ok(0) => return self.end(other),
            Ok(n) => match &mut self.unwrapping {
                None => other.push(&buffer[..n]),
                Some(unwrapping) => match unwrapping.take(&buffer[..n], &mut other.outgoing) {
                    Ok(true) => return self.end(other),
                    Ok(false) => {}
                    Err(_) => {
                        self.closed = true;
                        return self.end(other);
                    }
                },
            },
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => {
                self.closed = true;
                return self.end(other);
            }
        }
        other.flush();
    }

    fn end(&mut self, other: &mut Self) {
        self.ended = true;
        // In a framed stream, the end is a frame too.
        if other.unwrapping.is_some() {
            wrap(&[], &mut other.outgoing);
        }
        other.flush();
    }

    fn push(&mut self, bytes: &[u8]) {
        match &self.unwrapping {
            None => self.outgoing.extend_from_slice(bytes),
            Some(_) => wrap(bytes, &mut self.outgoing),
        }
    }

    /// Whether everything was sent to it; shuts its write side down once.
    fn is_done(&mut self, other: &Self) -> bool {
        if other.ended && !self.has_outgoing() && !self.shut_down {
            self.shut_down = true;
            if self.unwrapping.is_none() {
                let _ = rustix::net::shutdown(self.socket, Shutdown::Write);
            }
        }
        self.shut_down || self.closed
    }
}

/// Relays until both directions have ended, or one end is closed and the other has got its last
/// bytes.
pub(crate) fn relay(
    host: BorrowedFd<'_>,
    framing: HostFraming,
    inside: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    let mut one = RelayEnd::new(host, framing)?;
    let mut other = RelayEnd::new(inside, HostFraming::Plain)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        // Both calls are needed, because each may shut its end down.
        let (first, second) = (one.is_done(&other), other.is_done(&one));
        if first && second {
            return Ok(());
        }
        let sides = [(0, one.wait(&other)), (1, other.wait(&one))];
        let (ends, mut waits): (Vec<_>, Vec<_>) =
            sides.into_iter().filter_map(|(side, wait)| wait.map(|wait| (side, wait))).unzip();
        match poll(&mut waits, None) {
            Err(Errno::INTR) => continue,
            done => done?,
        };
        for (side, wait) in ends.into_iter().zip(&waits) {
            match side {
                0 => one.step(&mut other, wait.revents(), &mut buffer),
                _ => other.step(&mut one, wait.revents(), &mut buffer),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::Shutdown as Half;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    /// Starts a relay in a thread. Returns both outer ends.
    fn relayed() -> (UnixStream, UnixStream, thread::JoinHandle<()>) {
        let (ours, host) = UnixStream::pair().unwrap();
        let (theirs, inside) = UnixStream::pair().unwrap();
        let relaying = thread::spawn(move || {
            relay(host.as_fd(), HostFraming::Plain, inside.as_fd()).unwrap();
        });
        (ours, theirs, relaying)
    }

    #[test]
    fn directions_are_closed_independently() {
        let (mut ours, mut theirs, relaying) = relayed();
        ours.write_all(b"question").unwrap();
        ours.shutdown(Half::Write).unwrap();
        let mut received = String::new();
        theirs.read_to_string(&mut received).unwrap();
        assert_eq!(received, "question");
        theirs.write_all(b"answer").unwrap();
        theirs.shutdown(Half::Write).unwrap();
        received.clear();
        ours.read_to_string(&mut received).unwrap();
        assert_eq!(received, "answer");
        relaying.join().unwrap();
    }

    #[test]
    fn both_may_write_more_than_fits_before_either_reads() {
        const MUCH: usize = 4 << 20;
        let (ours, theirs, relaying) = relayed();
        let writers = [&ours, &theirs].map(|stream| {
            let mut stream = stream.try_clone().unwrap();
            thread::spawn(move || {
                stream.write_all(&vec![7; MUCH]).unwrap();
                stream.shutdown(Half::Write).unwrap();
            })
        });
        for mut stream in [theirs, ours] {
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            assert_eq!(received.len(), MUCH);
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        relaying.join().unwrap();
    }

    #[test]
    fn the_relay_ends_when_either_end_closes() {
        let (ours, mut theirs, relaying) = relayed();
        (&ours).write_all(b"last words").unwrap();
        drop(ours);
        let mut received = String::new();
        theirs.read_to_string(&mut received).unwrap();
        assert_eq!(received, "last words");
        // It never shuts its write side down.
        relaying.join().unwrap();
        let (mut ours, theirs, relaying) = relayed();
        drop(theirs);
        assert_eq!(ours.read(&mut [0; 8]).unwrap(), 0);
        relaying.join().unwrap();
    }

    #[test]
    fn framed_ends_close_one_direction() {
        let (mut ours, host) = UnixStream::pair().unwrap();
        let (mut theirs, inside) = UnixStream::pair().unwrap();
        let relaying = thread::spawn(move || {
            relay(host.as_fd(), HostFraming::Framed(1000), inside.as_fd()).unwrap();
        });
        let mut frames = Vec::new();
        wrap(&[5; 100_000], &mut frames);
        wrap(&[], &mut frames);
        let sent = ours.try_clone().unwrap();
        let writer = thread::spawn(move || (&sent).write_all(&frames).unwrap());
        let mut received = Vec::new();
        theirs.read_to_end(&mut received).unwrap();
        assert_eq!(received, [5; 100_000]);
        writer.join().unwrap();
        theirs.write_all(b"answer").unwrap();
        drop(theirs);
        let (mut unwrapping, mut out) = (Unwrapping::default(), Vec::new());
        let mut buffer = [0; 64];
        loop {
            let n = ours.read(&mut buffer).unwrap();
            if unwrapping.take(&buffer[..n], &mut out).unwrap() {
                break;
            }
        }
        assert_eq!(out, b"answer");
        relaying.join().unwrap();
    }
}
