//! The connection that a machine as a whole has to its worker.

use msb_wire::{Boot, Decoder, FrameKind, FromMachine, MAX_REQUEST, Malformed, ToMachine, encode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A device that is not there by then will not come.
const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// Before a device is looked for again.
const DIAL_PAUSE: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(super) struct Worker {
    socket: OwnedFd,
    decoder: Decoder,
}

impl Worker {
    /// On a connection that may not be up yet.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, decoder: Decoder::new(MAX_REQUEST) }
    }

    /// Begins a connection, again and again while there is no device for it.
    pub(super) fn dial(mut connect: impl FnMut() -> io::Result<OwnedFd>) -> io::Result<Self> {
        let limit = Instant::now() + DIAL_LIMIT;
        loop {
            match connect() {
                Ok(socket) => return Ok(Self::new(socket)),
                Err(error) if Instant::now() > limit => return Err(error),
                Err(_) => std::thread::sleep(DIAL_PAUSE),
            }
        }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Waits for the first frame.
    pub(super) fn boot(&mut self) -> io::Result<Boot> {
        loop {
            let malformed = |_: Malformed| io::Error::from(io::ErrorKind::InvalidData);
            if let Some(frame) = self.decoder.next_frame().map_err(malformed)? {
                return frame.value().map_err(malformed);
            }
            self.wait(PollFlags::IN, None);
            if !self.receive() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Reads what has arrived; false if the worker has gone.
    pub(super) fn receive(&mut self) -> bool {
        let mut buffer = [0u8; 4096];
        match rustix::net::recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => false,
            Ok((_, n)) => {
                self.decoder.push(&buffer[..n]);
                true
            }
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }

    /// The next thing that it said.
    pub(super) fn next(&mut self) -> Result<Option<ToMachine>, Malformed> {
        match self.decoder.next_frame()? {
            None => Ok(None),
            Some(frame) => frame.value().map(Some),
        }
    }

    /// Tells it. If it cannot hear, it is gone, and the next read says so.
    pub(super) fn tell(&mut self, what: &FromMachine) {
        let frame = encode(FrameKind::Control, what);
        let mut rest = frame.as_slice();
        while !rest.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.socket, rest, flags) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, None),
                Err(_) => return,
            }
        }
    }

    /// Waits until the worker has closed, but no longer than this.
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
        // Whatever it says, the next read or write knows better.
        let _ = poll(&mut [PollFd::new(&self.socket, wanted)], limit.as_ref());
    }
}
