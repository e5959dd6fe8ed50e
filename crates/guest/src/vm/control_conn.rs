//! The control connection of a microVM to its worker.

use msb_sys::socket::NonblockingSocket;
use msb_wire::{
    Boot, FrameError, FrameKind, FramedSocket, FromMachine, MAX_REQUEST, ToMachine, encode,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// The vsock device is present by then, or never.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Delay before another attempt to connect.
const RETRY_DELAY: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct ControlConn(FramedSocket<NonblockingSocket>);

impl ControlConn {
    /// Wraps a socket that may still be connecting.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self(FramedSocket::new(socket.into(), MAX_REQUEST))
    }

    /// Connects, retrying while there is no vsock device.
    pub(super) fn connect(mut open: impl FnMut() -> io::Result<OwnedFd>) -> io::Result<Self> {
        let limit = Instant::now() + CONNECT_LIMIT;
        loop {
            match open() {
                Ok(socket) => return Ok(Self::new(socket)),
                Err(error) if Instant::now() > limit => return Err(error),
                Err(_) => std::thread::sleep(RETRY_DELAY),
            }
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.0.socket().as_fd()
    }

    /// Waits for the boot message, the first frame.
    pub(super) fn boot(&mut self) -> io::Result<Boot> {
        loop {
            let malformed = |_: FrameError| io::Error::from(io::ErrorKind::InvalidData);
            if let Some(frame) = self.0.next_frame().map_err(malformed)? {
                return frame.value().map_err(malformed);
            }
            self.wait(PollFlags::IN, None);
            if !self.receive() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads what has arrived; false if the worker has closed the connection.
    pub(super) fn receive(&mut self) -> bool {
        use io::ErrorKind::{Interrupted, WouldBlock};
        match self.0.receive(&mut [0; 4096]) {
            Ok(n) => n > 0,
            Err(error) => matches!(error.kind(), WouldBlock | Interrupted),
        }
    }

    /// The next message of the worker.
    pub(super) fn next(&mut self) -> Result<Option<ToMachine>, FrameError> {
        match self.0.next_frame()? {
            None => Ok(None),
            Some(frame) => frame.value().map(Some),
        }
    }

    /// Sends a message. A failure means that the connection is closed, which the next read reports.
    pub(super) fn send(&mut self, what: &FromMachine) {
        self.0.enqueue(&encode(FrameKind::Control, what));
        while self.0.flush().is_ok() && self.0.unsent() > 0 {
            self.wait(PollFlags::OUT, None);
        }
    }

    /// Waits until the worker has closed the connection, at most for `limit`.
    pub(super) fn wait_closed(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.receive() {
                return;
            }
            self.wait(PollFlags::IN, Some(left));
        }
    }

    fn wait(&self, wanted: PollFlags, limit: Option<Duration>) {
        let limit = limit.map(|left| Timespec {
            tv_sec: left.as_secs() as _,
            tv_nsec: left.subsec_nanos() as _,
        });
        // Errors are reported by the next read or write.
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.socket(), wanted)], limit.as_ref());
    }
}
