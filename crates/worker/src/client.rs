//! One connection to the worker: one Exec, one file operation or one question.

use msb_spec::Error;
use msb_wire::{
    Decoder, FileFailure, FileReply, Frame, FrameKind, MAX_REQUEST, Malformed, Reply, encode,
    header,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// What a connection turned out to be for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It has not said yet.
    New,
    /// It watches an Exec and may feed it.
    Exec(u64),
    /// Its command begins when nobody holds everything any more; what it sends waits till then.
    Delayed,
    /// It is told when the sandbox is over.
    Waiting,
    /// The sandbox ends when it closes.
    Owner,
    /// Everything inside stands still until it closes.
    Holder,
    /// It has its answer: closed once that is sent.
    Leaving,
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    socket: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    /// What need not be said before something else is.
    held: Vec<u8>,
    pub(crate) role: Role,
    /// No more will come from it; what it is owed is still sent.
    pub(crate) silent: bool,
    /// What follows from its silence has been done.
    pub(crate) left: bool,
    /// When it came.
    pub(crate) since: Instant,
}

/// What reading from a client brought.
pub(crate) enum Read {
    /// Perhaps frames.
    Some,
    /// It has closed its side or broken the rules.
    Ended,
}

/// Whoever connects says at once what for.
pub(crate) const GREETING_LIMIT: Duration = Duration::from_secs(5);

/// A slow reader may owe us this much before the command it watches is made to wait.
const BACKLOG: usize = 1 << 20;

impl Client {
    pub(crate) fn new(socket: OwnedFd, role: Role) -> rustix::io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        let decoder = Decoder::new(MAX_REQUEST);
        Ok(Self {
            socket,
            decoder,
            out: Vec::new(),
            sent: 0,
            held: Vec::new(),
            role,
            silent: false,
            left: false,
            since: Instant::now(),
        })
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The connection itself, for the guest to answer on.
    pub(crate) fn into_socket(self) -> rustix::io::Result<OwnedFd> {
        rustix::io::ioctl_fionbio(&self.socket, false)?;
        Ok(self.socket)
    }

    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Read {
        loop {
            // The first frame may be followed by bytes that are meant for the guest.
            let wanted = match self.role {
                Role::New => match self.decoder.missing() {
                    Ok(0) => return Read::Some,
                    Ok(missing) => missing.min(buffer.len()),
                    Err(_) => return Read::Some,
                },
                _ => buffer.len(),
            };
            match rustix::io::read(&self.socket, &mut buffer[..wanted]) {
                Ok(0) => return Read::Ended,
                Ok(n) => self.decoder.push(&buffer[..n]),
                Err(Errno::AGAIN | Errno::INTR) => return Read::Some,
                Err(_) => return Read::Ended,
            }
            if self.role != Role::New {
                return Read::Some;
            }
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        self.decoder.next_frame()
    }

    /// Says this together with whatever comes next: waking a client costs more than telling it.
    pub(crate) fn hold(&mut self, reply: &Reply) {
        self.held.extend_from_slice(&encode(FrameKind::Reply, reply));
    }

    pub(crate) fn reply(&mut self, reply: &Reply) {
        self.out.append(&mut self.held);
        self.out.extend_from_slice(&encode(FrameKind::Reply, reply));
        self.flush();
    }

    /// Answers for the last time.
    pub(crate) fn answer(&mut self, reply: &Reply) {
        self.role = Role::Leaving;
        self.reply(reply);
    }

    pub(crate) fn refuse(&mut self, error: Error) {
        self.answer(&Reply::Failed(error));
    }

    /// The same to a client that waits for what a guest says of files.
    pub(crate) fn refuse_files(&mut self, why: &str) {
        self.role = Role::Leaving;
        let failed = FileFailure { doing: format!("be asked: {why}"), errno: 0 };
        self.out.extend_from_slice(&encode(FrameKind::Reply, &FileReply::Failed(failed)));
        self.flush();
    }

    pub(crate) fn output(&mut self, kind: FrameKind, bytes: &[u8]) {
        self.out.append(&mut self.held);
        self.out.extend_from_slice(&header(kind, bytes.len()));
        self.out.extend_from_slice(bytes);
        self.flush();
    }

    /// Sends what fits now.
    pub(crate) fn flush(&mut self) {
        while self.sent < self.out.len() {
            let flags = rustix::net::SendFlags::NOSIGNAL | rustix::net::SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, &self.out[self.sent..], flags) {
                Ok(n) => self.sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // It is gone; there is nobody to send to.
                Err(_) => {
                    self.silent = true;
                    self.sent = self.out.len();
                }
            }
        }
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        } else if self.sent > BACKLOG {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// When a client that has not said what it wants is sent away.
    pub(crate) fn greeting_deadline(&self) -> Option<Instant> {
        (self.role == Role::New).then(|| self.since + GREETING_LIMIT)
    }

    pub(crate) fn owes_nothing(&self) -> bool {
        self.out.is_empty()
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.out.len() - self.sent > BACKLOG
    }
}
