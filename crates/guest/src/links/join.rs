//! Two streams made one: what either says reaches the other, and so does its end.

use msb_wire::{Unwrapping, wrap};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use std::os::fd::BorrowedFd;

/// Beyond this the faster side waits.
const BACKLOG: usize = 256 << 10;
const CHUNK: usize = 64 << 10;

/// How the connection to the host is spoken on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoken {
    /// As it is: it can be closed in each direction.
    Plain,
    /// In frames, no more than so many bytes at once: it leads out of a machine.
    Framed(usize),
}

/// One of the two.
struct Side<'a> {
    socket: BorrowedFd<'a>,
    /// How its bytes are taken out of frames, if they are in any.
    unwrapping: Option<Unwrapping>,
    most: usize,
    /// What it is owed, which comes from the other.
    owed: Vec<u8>,
    sent: usize,
    /// It will say no more.
    ended: bool,
    /// It hears no more, and what it is owed is dropped.
    deaf: bool,
    /// It was told everything, and that this is the end.
    told: bool,
}

impl<'a> Side<'a> {
    fn new(socket: BorrowedFd<'a>, spoken: Spoken) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(socket, true)?;
        let (unwrapping, most) = match spoken {
            Spoken::Plain => (None, usize::MAX),
            Spoken::Framed(most) => (Some(Unwrapping::default()), most),
        };
        let (owed, sent) = (Vec::new(), 0);
        Ok(Self { socket, unwrapping, most, owed, sent, ended: false, deaf: false, told: false })
    }

    fn is_owed(&self) -> bool {
        self.sent < self.owed.len()
    }

    fn is_read(&self, other: &Self) -> bool {
        !self.ended && other.owed.len() - other.sent < BACKLOG
    }

    /// What to wait for. One that has gone would never be quiet, so it is only waited for as long
    /// as there is something to read.
    fn wait(&self, other: &Self) -> Option<PollFd<'a>> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, self.is_read(other));
        flags.set(PollFlags::OUT, self.is_owed());
        (!flags.is_empty() || !self.deaf).then(|| PollFd::from_borrowed_fd(self.socket, flags))
    }

    fn step(&mut self, other: &mut Self, flags: PollFlags, buffer: &mut [u8]) {
        // It has closed both directions. What it said before can still be read.
        let gone = flags.intersects(PollFlags::HUP | PollFlags::ERR);
        self.deaf |= gone;
        self.flush();
        if flags.contains(PollFlags::IN) {
            self.read_into(other, buffer);
        } else if gone && self.is_read(other) {
            self.end(other);
        }
    }

    fn flush(&mut self) {
        while self.is_owed() && !self.deaf {
            let end = self.owed.len().min(self.sent.saturating_add(self.most));
            let piece = &self.owed[self.sent..end];
            match rustix::net::send(self.socket, piece, SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.deaf = true,
            }
        }
        self.owed.clear();
        self.sent = 0;
    }

    /// Reads for the other side.
    fn read_into(&mut self, other: &mut Self, buffer: &mut [u8]) {
        match rustix::io::read(self.socket, &mut *buffer) {
            Ok(0) => return self.end(other),
            Ok(n) => match &mut self.unwrapping {
                None => other.give(&buffer[..n]),
                Some(unwrapping) => match unwrapping.take(&buffer[..n], &mut other.owed) {
                    Ok(true) => return self.end(other),
                    Ok(false) => {}
                    Err(_) => {
                        self.deaf = true;
                        return self.end(other);
                    }
                },
            },
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(_) => {
                self.deaf = true;
                return self.end(other);
            }
        }
        other.flush();
    }

    fn end(&mut self, other: &mut Self) {
        self.ended = true;
        // Where ends are frames, it is one of what is owed.
        if other.unwrapping.is_some() {
            wrap(&[], &mut other.owed);
        }
        other.flush();
    }

    fn give(&mut self, bytes: &[u8]) {
        match &self.unwrapping {
            None => self.owed.extend_from_slice(bytes),
            Some(_) => wrap(bytes, &mut self.owed),
        }
    }

    /// Whether nothing more is to be said to it; tells it so once.
    fn is_over(&mut self, other: &Self) -> bool {
        if other.ended && !self.is_owed() && !self.told {
            self.told = true;
            if self.unwrapping.is_none() {
                let _ = rustix::net::shutdown(self.socket, Shutdown::Write);
            }
        }
        self.told || self.deaf
    }
}

/// Moves bytes until both have said all, or either is gone and the other has heard its last.
pub(crate) fn join(
    host: BorrowedFd<'_>,
    spoken: Spoken,
    inside: BorrowedFd<'_>,
) -> rustix::io::Result<()> {
    let mut one = Side::new(host, spoken)?;
    let mut other = Side::new(inside, Spoken::Plain)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        // Each is asked: being over is also being told so.
        let (first, second) = (one.is_over(&other), other.is_over(&one));
        if first && second {
            return Ok(());
        }
        let sides = [(0, one.wait(&other)), (1, other.wait(&one))];
        let (places, mut waits): (Vec<_>, Vec<_>) =
            sides.into_iter().filter_map(|(side, wait)| wait.map(|wait| (side, wait))).unzip();
        match poll(&mut waits, None) {
            Err(Errno::INTR) => continue,
            done => done?,
        };
        for (side, wait) in places.into_iter().zip(&waits) {
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

    /// A stream that is joined to another; both outer ends, and the end of the joining.
    fn joined() -> (UnixStream, UnixStream, thread::JoinHandle<()>) {
        let (ours, host) = UnixStream::pair().unwrap();
        let (theirs, inside) = UnixStream::pair().unwrap();
        let joining = thread::spawn(move || {
            join(host.as_fd(), Spoken::Plain, inside.as_fd()).unwrap();
        });
        (ours, theirs, joining)
    }

    #[test]
    fn each_direction_ends_on_its_own() {
        let (mut ours, mut theirs, joining) = joined();
        ours.write_all(b"question").unwrap();
        ours.shutdown(Half::Write).unwrap();
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "question");
        theirs.write_all(b"answer").unwrap();
        theirs.shutdown(Half::Write).unwrap();
        heard.clear();
        ours.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "answer");
        joining.join().unwrap();
    }

    #[test]
    fn both_may_write_more_than_fits_before_either_reads() {
        const MUCH: usize = 4 << 20;
        let (ours, theirs, joining) = joined();
        let writers = [&ours, &theirs].map(|stream| {
            let mut stream = stream.try_clone().unwrap();
            thread::spawn(move || {
                stream.write_all(&vec![7; MUCH]).unwrap();
                stream.shutdown(Half::Write).unwrap();
            })
        });
        for mut stream in [theirs, ours] {
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).unwrap();
            assert_eq!(heard.len(), MUCH);
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        joining.join().unwrap();
    }

    #[test]
    fn it_is_over_when_either_has_gone() {
        let (ours, mut theirs, joining) = joined();
        (&ours).write_all(b"last words").unwrap();
        drop(ours);
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "last words");
        // It never says that it has ended.
        joining.join().unwrap();
        let (mut ours, theirs, joining) = joined();
        drop(theirs);
        assert_eq!(ours.read(&mut [0; 8]).unwrap(), 0);
        joining.join().unwrap();
    }

    #[test]
    fn ends_are_frames_where_a_connection_has_only_one() {
        let (mut ours, host) = UnixStream::pair().unwrap();
        let (mut theirs, inside) = UnixStream::pair().unwrap();
        let joining = thread::spawn(move || {
            join(host.as_fd(), Spoken::Framed(1000), inside.as_fd()).unwrap();
        });
        let mut frames = Vec::new();
        wrap(&[5; 100_000], &mut frames);
        wrap(&[], &mut frames);
        let sent = ours.try_clone().unwrap();
        let writer = thread::spawn(move || (&sent).write_all(&frames).unwrap());
        let mut heard = Vec::new();
        theirs.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, [5; 100_000]);
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
        joining.join().unwrap();
    }
}
