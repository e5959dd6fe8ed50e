//! What a machine and its worker say to each other: one byte each, and a descriptor beside some.

use msb_sys::socket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// From the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Stop the processors.
    Pause,
    /// Let them go on.
    Resume,
}

/// From the machine. A machine that was taken over may say anything.
#[derive(Debug)]
pub enum Report {
    /// Where its console is read.
    Console(OwnedFd),
    /// The guest has opened a connection.
    Connection(OwnedFd),
    /// Its processors have stopped.
    Paused,
    /// They go on.
    Resumed,
    /// What was asked last could not be done.
    Refused,
    /// It could not be started, for this reason.
    Failed(String),
}

/// One end of the link.
#[derive(Debug, Clone)]
pub struct Link(Arc<OwnedFd>);

/// Beside the socket to the gateway.
const NETWORK: &[u8; 1] = b"N";

/// Why a machine did not start is told in a few words.
const MAX_REASON: usize = 1024;

impl Link {
    /// An end of a socket pair.
    pub fn new(socket: OwnedFd) -> Self {
        Self(Arc::new(socket))
    }

    /// For waiting.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Asks the machine for something.
    pub fn order(&self, order: Order) -> io::Result<()> {
        let letter = match order {
            Order::Pause => b'P',
            Order::Resume => b'R',
        };
        socket::send_all(self.socket(), &[letter], &[])
    }

    /// Hands the machine the socket to its gateway, before anything else.
    pub fn connect(&self, frames: BorrowedFd<'_>) -> io::Result<()> {
        socket::send_all(self.socket(), NETWORK, &[frames])
    }

    /// The socket to the gateway.
    pub(crate) fn connected(&self) -> io::Result<OwnedFd> {
        let mut letter = [0];
        let mut fds = Vec::new();
        socket::receive(self.socket(), &mut letter, &mut fds)?;
        let frames = fds.pop().filter(|_| letter == *NETWORK);
        frames.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The next order; none when the worker has gone or speaks nonsense.
    pub(crate) fn next_order(&self) -> Option<Order> {
        let mut letter = [0];
        let mut fds = Vec::new();
        loop {
            return match socket::receive(self.socket(), &mut letter, &mut fds) {
                Ok(1) if letter == *b"P" => Some(Order::Pause),
                Ok(1) if letter == *b"R" => Some(Order::Resume),
                // Signals are for the VMM's own threads, and may still come here.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                _ => None,
            };
        }
    }

    /// Tells the worker why there is no machine.
    pub fn fail(&self, reason: &str) {
        let _ = self.tell(&Report::Failed(reason.to_owned()));
    }

    pub(crate) fn tell(&self, what: &Report) -> io::Result<()> {
        let send =
            |bytes: &[u8], fds: &[BorrowedFd<'_>]| socket::send_all(self.socket(), bytes, fds);
        match what {
            Report::Console(fd) => send(b"k", &[fd.as_fd()]),
            Report::Connection(fd) => send(b"c", &[fd.as_fd()]),
            Report::Paused => send(b"p", &[]),
            Report::Resumed => send(b"r", &[]),
            Report::Refused => send(b"x", &[]),
            Report::Failed(reason) => {
                let mut text = b"f".to_vec();
                text.extend(reason.bytes().take(MAX_REASON));
                send(&text, &[])
            }
        }
    }

    /// The next thing the machine said; none when it has gone or speaks nonsense.
    pub fn next(&self) -> Option<Report> {
        let mut letter = [0];
        let mut fds = Vec::new();
        if socket::receive(self.socket(), &mut letter, &mut fds).ok()? == 0 {
            return None;
        }
        Some(match letter[0] {
            b'k' => Report::Console(fds.pop()?),
            b'c' => Report::Connection(fds.pop()?),
            b'p' => Report::Paused,
            b'r' => Report::Resumed,
            b'x' => Report::Refused,
            b'f' => {
                let mut text = [0; MAX_REASON];
                let length = socket::receive(self.socket(), &mut text, &mut fds).ok()?;
                Report::Failed(String::from_utf8_lossy(&text[..length]).into_owned())
            }
            _ => return None,
        })
    }
}
