//! Messages between the VMM process and its worker: one byte each, some with a descriptor.

use msb_sys::socket;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Message from the worker to the VMM process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Stop all vCPUs. Answered by `Paused`.
    Pause,
    /// Continue all vCPUs. Answered by `Resumed`.
    Resume,
}

/// Message from the VMM process. A compromised one may send anything.
#[derive(Debug)]
pub enum Report {
    /// Read end of the console pipe.
    Console(OwnedFd),
    /// A connection that the guest has opened.
    Connection(OwnedFd),
    /// All vCPUs have been stopped.
    Paused,
    /// All vCPUs run again.
    Resumed,
    /// The last order could not be carried out.
    Refused,
    /// The microVM could not start, for this reason.
    Failed(String),
}

/// One end of the socket pair between worker and VMM process.
#[derive(Debug, Clone)]
pub struct Link(Arc<OwnedFd>);

/// Byte beside the descriptor of the gateway socket.
const NETWORK: &[u8; 1] = b"N";

/// Longest reason for a failed start, in bytes.
const MAX_REASON: usize = 1024;

impl Link {
    /// Wraps an end of a socket pair.
    pub fn new(socket: OwnedFd) -> Self {
        Self(Arc::new(socket))
    }

    /// Descriptor for `poll(2)`. Readable when a message has arrived.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sends an order to the VMM process.
    pub fn order(&self, order: Order) -> io::Result<()> {
        let byte = match order {
            Order::Pause => b'P',
            Order::Resume => b'R',
        };
        socket::send_all(self.socket(), &[byte], &[])
    }

    /// Sends the gateway socket to the VMM process. Must be the first message.
    pub fn connect(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        socket::send_all(self.socket(), NETWORK, &[socket])
    }

    /// Receives the gateway socket, the first message.
    pub(crate) fn receive_gateway(&self) -> io::Result<OwnedFd> {
        let mut byte = [0];
        let mut fds = Vec::new();
        socket::receive(self.socket(), &mut byte, &mut fds)?;
        let socket = fds.pop().filter(|_| byte == *NETWORK);
        socket.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The next order; `None` if the worker has closed the link or the byte is unknown.
    pub(crate) fn next_order(&self) -> Option<Order> {
        let mut byte = [0];
        let mut fds = Vec::new();
        loop {
            return match socket::receive(self.socket(), &mut byte, &mut fds) {
                Ok(1) if byte == *b"P" => Some(Order::Pause),
                Ok(1) if byte == *b"R" => Some(Order::Resume),
                // Signals are for threads of the VMM, but may arrive here.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                _ => None,
            };
        }
    }

    /// Reports to the worker why the microVM did not start.
    pub fn fail(&self, reason: &str) {
        let _ = self.report(&Report::Failed(reason.to_owned()));
    }

    pub(crate) fn report(&self, message: &Report) -> io::Result<()> {
        let send =
            |bytes: &[u8], fds: &[BorrowedFd<'_>]| socket::send_all(self.socket(), bytes, fds);
        match message {
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

    /// The next message of the VMM process; `None` if it has closed the link or the byte is
    /// unknown.
    pub fn next(&self) -> Option<Report> {
        let mut byte = [0];
        let mut fds = Vec::new();
        if socket::receive(self.socket(), &mut byte, &mut fds).ok()? == 0 {
            return None;
        }
        Some(match byte[0] {
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
