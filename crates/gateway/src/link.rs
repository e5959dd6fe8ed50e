//! The wire to the sandbox: a TAP device or a socket, one frame a message.

use crate::frames::{self, BEFORE, LONGEST, Reply, VIRTIO};
use msb_spec::addresses;
use rustix::io::Errno;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The wire, and one frame that is being written.
#[derive(Debug)]
pub(crate) struct Link {
    fd: OwnedFd,
    frame: Box<[u8]>,
    /// The length of a frame that the other side had no room for.
    waiting: Option<usize>,
    /// The link address of the sandbox, as it uses it.
    guest: [u8; 6],
    kind: Wire,
    /// The number of the last packet that was sent in pieces.
    pieces: u32,
    /// Packets from the sandbox.
    taken: u64,
    /// Packets to the sandbox, but for answers to its questions about the link.
    brought: u64,
    /// Bytes of frames that came from the sandbox, and that went to it.
    carried: (Cell<u64>, u64),
}

/// What is on the other end of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    /// A device of this kernel, which takes whole streams in few packets.
    Tap,
    /// A device of a virtual machine, which is as simple as one can be.
    Machine,
}

impl Wire {
    /// The largest packet that can be sent: the buffers of a machine's device are short.
    pub(crate) fn mtu(self) -> usize {
        match self {
            Self::Tap => usize::from(addresses::MTU),
            Self::Machine => 1500,
        }
    }

    /// The largest packet of a stream that is asked for. A machine puts each in one piece of its
    /// memory, of which it has few that are large.
    pub(crate) fn largest_taken(self) -> usize {
        match self {
            Self::Tap => usize::from(addresses::MTU),
            Self::Machine => 15_500,
        }
    }
}

impl Link {
    pub(crate) fn new(fd: OwnedFd, kind: Wire) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        let frame = vec![0; LONGEST].into_boxed_slice();
        Ok(Self {
            fd,
            frame,
            waiting: None,
            guest: addresses::GUEST_LINK,
            kind,
            pieces: 0,
            taken: 0,
            brought: 0,
            carried: Default::default(),
        })
    }

    /// The largest packet that may be sent.
    pub(crate) fn mtu(&self) -> usize {
        self.kind.mtu()
    }

    /// A number for a packet that is sent in pieces.
    pub(crate) fn number(&mut self) -> u32 {
        self.pieces = self.pieces.wrapping_add(1);
        self.pieces
    }

    /// Waits for the device's descriptor, which comes once on `socket`.
    pub(crate) fn receive_device(socket: &OwnedFd) -> io::Result<OwnedFd> {
        let mut fds = Vec::new();
        let mut byte = [0; 1];
        let n = loop {
            match msb_sys::socket::receive(socket.as_fd(), &mut byte, &mut fds) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        match (n, byte, fds.pop()) {
            (1, [b'T'], Some(device)) => Ok(device),
            _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    }

    /// Reads a frame; none when there is nothing more, an error when there never will be.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    let (sent, _) = &self.carried;
                    sent.set(sent.get() + on_wire(n));
                    if self.kind == Wire::Machine {
                        frames::ask_for_less(&mut buffer[..n], self.mtu());
                    }
                    return Ok(Some(n));
                }
                // The sandbox took its device down, and may raise it again.
                Err(Errno::FAULT) if self.kind == Wire::Tap => return Ok(None),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Bytes that the sandbox has sent, and that it was sent, as its device counts them.
    pub(crate) fn carried(&self) -> (u64, u64) {
        (self.carried.0.get(), self.carried.1)
    }

    /// Notes who sent a frame, so that answers find the way back.
    pub(crate) fn learn(&mut self, frame: &[u8]) {
        if let Some(source) = frames::link_source(frame)
            && source != self.guest
            // A group is nobody's address.
            && source[0] & 1 == 0
        {
            self.guest = source;
        }
    }

    /// Counts a packet that came from the sandbox.
    pub(crate) fn took(&mut self) {
        self.taken += 1;
    }

    /// How many packets there were: both ways, and to the sandbox.
    pub(crate) fn traffic(&self) -> (u64, u64) {
        (self.taken + self.brought, self.brought)
    }

    /// Whether a frame waits, so that no other can be sent.
    pub(crate) fn is_blocked(&self) -> bool {
        self.waiting.is_some()
    }

    /// Tries again what waited; whether there is room now.
    pub(crate) fn flush(&mut self) -> bool {
        if let Some(length) = self.waiting.take() {
            self.write(length);
        }
        !self.is_blocked()
    }

    /// Sends a packet of `length` that `fill` writes. Dropped if the wire is full, as on any wire.
    pub(crate) fn send_with(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) {
        if self.is_blocked() || length > self.mtu() {
            return;
        }
        self.put(length, fill);
    }

    pub(crate) fn send(&mut self, packet: &[u8]) {
        self.send_with(packet.len(), |room| room.copy_from_slice(packet));
    }

    pub(crate) fn answer(&mut self, reply: &Reply) {
        match reply {
            Reply::Arp(_) if self.is_blocked() => {}
            Reply::Arp(answer) => {
                let length = frames::arp(&mut self.frame, self.guest, answer);
                self.write(length);
            }
            Reply::Packet(packet) => {
                let brought = self.brought;
                self.send(packet);
                self.brought = brought;
            }
        }
    }

    fn put<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let result = fill(&mut self.frame[BEFORE..BEFORE + length]);
        frames::finish(&mut self.frame[..BEFORE + length], self.guest, self.kind);
        self.write(BEFORE + length);
        self.brought += 1;
        result
    }

    fn write(&mut self, length: usize) {
        loop {
            match rustix::io::write(&self.fd, &self.frame[..length]) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.waiting = Some(length);
                    return;
                }
                Ok(_) => {
                    self.carried.1 += on_wire(length);
                    return;
                }
                // A device that is down drops what it gets; a peer that is gone is seen on reading.
                Err(_) => return,
            }
        }
    }
}

/// The length of a frame without what stands before it for the device alone.
fn on_wire(length: usize) -> u64 {
    length.saturating_sub(VIRTIO) as u64
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The wire as the TCP implementation sees it: with at most one packet to be read.
pub(crate) struct Port<'a> {
    pub(crate) link: &'a mut Link,
    pub(crate) packet: Option<&'a [u8]>,
}

pub(crate) struct Taken<'a>(&'a [u8]);
pub(crate) struct Room<'a>(&'a mut Link);

impl<'p> Device for Port<'p> {
    type RxToken<'a>
        = Taken<'p>
    where
        Self: 'a;
    type TxToken<'a>
        = Room<'a>
    where
        Self: 'a;

    fn receive(&mut self, _now: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let packet = self.packet.take()?;
        Some((Taken(packet), Room(self.link)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Self::TxToken<'_>> {
        if self.link.is_blocked() {
            return None;
        }
        Some(Room(self.link))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.link.kind)
    }
}

/// Nothing on the way is a real wire: only the header of IPv4 has a checksum that anybody reads.
pub(crate) fn capabilities(wire: Wire) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = wire.largest_taken();
    capabilities.checksum.ipv4 = Checksum::Tx;
    capabilities.checksum.tcp = Checksum::None;
    capabilities
}

impl RxToken for Taken<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl TxToken for Room<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        if self.0.is_blocked() || length > self.0.mtu() {
            // An answer to a packet, when a frame waits already: it has to be made and is dropped.
            return fill(&mut vec![0; length]);
        }
        self.0.put(length, fill)
    }
}
