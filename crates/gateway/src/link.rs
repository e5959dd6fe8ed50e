//! The link to the guest: a TAP device, a packet socket of a veth pair or a socket to the VMM, one
//! frame per message.

use crate::frames::{self, HEADERS_LEN, LinkReply, MAX_FRAME_LEN, VIRTIO_HEADER_LEN};
use msb_spec::addresses;
use rustix::io::Errno;
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Length of the virtio-net header of a packet socket, which has no `num_buffers`.
const PACKET_HEADER_LEN: usize = 10;

/// The link, with a buffer for one outgoing frame.
#[derive(Debug)]
pub(crate) struct Link {
    fd: OwnedFd,
    frame: Box<[u8]>,
    /// The length of the frame in the buffer that could not be written yet.
    pending: Option<usize>,
    /// The guest's MAC address, learned from its frames.
    guest_mac: [u8; 6],
    kind: LinkKind,
    /// The identification of the last packet that was sent in fragments.
    fragment_id: u32,
    /// Packets received from the guest.
    packets_from_guest: u64,
    /// Packets sent to the guest, without replies to ARP and neighbor solicitation.
    packets_to_guest: u64,
    /// Bytes of frames received from the guest, and sent to it.
    byte_counts: (Cell<u64>, u64),
}

/// The kind of device on the other end of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkKind {
    /// A TAP device of this kernel. It takes packets of up to 64 KiB.
    Tap,
    /// An `AF_PACKET` socket on the other end of a veth pair, which is otherwise as a TAP device.
    /// Its virtio-net header lacks the last field.
    PacketSocket,
    /// The virtio-net device of a VM, without offloads.
    Vm,
}

impl LinkKind {
    /// The largest packet that can be sent, in bytes. The receive buffers of a VM's device are
    /// short.
    pub(crate) fn mtu(self) -> usize {
        match self {
            Self::Tap | Self::PacketSocket => usize::from(addresses::MTU),
            Self::Vm => 1500,
        }
    }

    /// The largest TCP packet that the guest may send, in bytes. A VM needs contiguous memory for
    /// each packet and has few large blocks.
    pub(crate) fn max_receive_len(self) -> usize {
        match self {
            Self::Tap | Self::PacketSocket => usize::from(addresses::MTU),
            Self::Vm => 15_500,
        }
    }
}

impl Link {
    pub(crate) fn new(fd: OwnedFd, kind: LinkKind) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | rustix::fs::OFlags::NONBLOCK)?;
        let frame = vec![0; MAX_FRAME_LEN].into_boxed_slice();
        Ok(Self {
            fd,
            frame,
            pending: None,
            guest_mac: addresses::GUEST_LINK,
            kind,
            fragment_id: 0,
            packets_from_guest: 0,
            packets_to_guest: 0,
            byte_counts: Default::default(),
        })
    }

    /// The largest packet that can be sent, in bytes.
    pub(crate) fn mtu(&self) -> usize {
        self.kind.mtu()
    }

    /// A new identification for a packet that is sent in fragments.
    pub(crate) fn next_fragment_id(&mut self) -> u32 {
        self.fragment_id = self.fragment_id.wrapping_add(1);
        self.fragment_id
    }

    /// Receives the descriptor of the device, which arrives once on `socket`: a TAP device with the
    /// byte `T`, or a packet socket with `P`.
    pub(crate) fn receive_device(socket: &OwnedFd) -> io::Result<(OwnedFd, LinkKind)> {
        let mut fds = Vec::new();
        let mut byte = [0; 1];
        let n = loop {
            match msb_sys::socket::receive(socket.as_fd(), &mut byte, &mut fds) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        match (n, byte, fds.pop()) {
            (1, [b'T'], Some(device)) => Ok((device, LinkKind::Tap)),
            (1, [b'P'], Some(device)) => Ok((device, LinkKind::PacketSocket)),
            _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    }

    /// Reads a frame; `None` when there is no more at the moment, an error when the link is closed.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match self.read_frame(&mut *buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => {
                    let (sent, _) = &self.byte_counts;
                    sent.set(sent.get() + wire_len(n));
                    if self.kind == LinkKind::Vm {
                        frames::clamp_mss(&mut buffer[..n], self.mtu());
                    }
                    return Ok(Some(n));
                }
                // The guest has set its device down, and may set it up again.
                Err(Errno::FAULT) if self.kind == LinkKind::Tap => return Ok(None),
                Err(Errno::NETDOWN) if self.kind == LinkKind::PacketSocket => return Ok(None),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn read_frame(&self, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        if self.kind != LinkKind::PacketSocket {
            return rustix::io::read(&self.fd, buffer);
        }
        let (header, rest) = buffer.split_at_mut(VIRTIO_HEADER_LEN);
        let (header, missing) = header.split_at_mut(PACKET_HEADER_LEN);
        missing.fill(0);
        let mut parts = [io::IoSliceMut::new(header), io::IoSliceMut::new(rest)];
        match rustix::io::readv(&self.fd, &mut parts)? {
            0 => Ok(0),
            n => Ok(n + VIRTIO_HEADER_LEN - PACKET_HEADER_LEN),
        }
    }

    fn write_frame(&self, frame: &[u8]) -> rustix::io::Result<usize> {
        if self.kind != LinkKind::PacketSocket {
            return rustix::io::write(&self.fd, frame);
        }
        let (header, rest) = frame.split_at(VIRTIO_HEADER_LEN);
        let parts = [io::IoSlice::new(&header[..PACKET_HEADER_LEN]), io::IoSlice::new(rest)];
        rustix::io::writev(&self.fd, &parts)
    }

    /// Bytes received from the guest and sent to it, as its device counts them.
    pub(crate) fn byte_counts(&self) -> (u64, u64) {
        (self.byte_counts.0.get(), self.byte_counts.1)
    }

    /// Learns the guest's MAC address from a frame, so that replies reach it.
    pub(crate) fn learn_guest_mac(&mut self, frame: &[u8]) {
        if let Some(source) = frames::source_mac(frame)
            && source != self.guest_mac
            // A multicast address is no source.
            && source[0] & 1 == 0
        {
            self.guest_mac = source;
        }
    }

    /// Counts a packet received from the guest.
    pub(crate) fn count_packet_in(&mut self) {
        self.packets_from_guest += 1;
    }

    /// The number of packets in both directions, and of those to the guest.
    pub(crate) fn packet_counts(&self) -> (u64, u64) {
        (self.packets_from_guest + self.packets_to_guest, self.packets_to_guest)
    }

    /// Whether a frame waits to be written, so that no other can be sent.
    pub(crate) fn is_blocked(&self) -> bool {
        self.pending.is_some()
    }

    /// Writes the waiting frame; returns whether another can be sent now.
    pub(crate) fn flush(&mut self) -> bool {
        if let Some(length) = self.pending.take() {
            self.write(length);
        }
        !self.is_blocked()
    }

    /// Sends a packet of `length` bytes that `fill` writes. The packet is dropped if the link is
    /// full.
    pub(crate) fn send_with(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) {
        if self.is_blocked() || length > self.mtu() {
            return;
        }
        self.write_packet(length, fill);
    }

    pub(crate) fn send(&mut self, packet: &[u8]) {
        self.send_with(packet.len(), |room| room.copy_from_slice(packet));
    }

    pub(crate) fn send_reply(&mut self, reply: &LinkReply) {
        match reply {
            LinkReply::Arp(_) if self.is_blocked() => {}
            LinkReply::Arp(message) => {
                let length = frames::write_arp(&mut self.frame, self.guest_mac, message);
                self.write(length);
            }
            LinkReply::IpPacket(packet) => {
                let packets_to_guest = self.packets_to_guest;
                self.send(packet);
                self.packets_to_guest = packets_to_guest;
            }
        }
    }

    fn write_packet<R>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> R) -> R {
        let result = fill(&mut self.frame[HEADERS_LEN..HEADERS_LEN + length]);
        frames::write_headers(&mut self.frame[..HEADERS_LEN + length], self.guest_mac, self.kind);
        self.write(HEADERS_LEN + length);
        self.packets_to_guest += 1;
        result
    }

    fn write(&mut self, length: usize) {
        loop {
            match self.write_frame(&self.frame[..length]) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.pending = Some(length);
                    return;
                }
                Ok(_) => {
                    self.byte_counts.1 += wire_len(length);
                    return;
                }
                // A device that is down drops packets. A closed peer is noticed by the next read.
                Err(_) => return,
            }
        }
    }
}

/// The length of a frame without its virtio-net header.
fn wire_len(length: usize) -> u64 {
    length.saturating_sub(VIRTIO_HEADER_LEN) as u64
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The link as a smoltcp device, with at most one packet to be received.
pub(crate) struct LinkDevice<'a> {
    pub(crate) link: &'a mut Link,
    pub(crate) packet: Option<&'a [u8]>,
}

pub(crate) struct RxPacket<'a>(&'a [u8]);
pub(crate) struct TxSlot<'a>(&'a mut Link);

impl<'p> Device for LinkDevice<'p> {
    type RxToken<'a>
        = RxPacket<'p>
    where
        Self: 'a;
    type TxToken<'a>
        = TxSlot<'a>
    where
        Self: 'a;

    fn receive(&mut self, _now: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        let packet = self.packet.take()?;
        Some((RxPacket(packet), TxSlot(self.link)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Self::TxToken<'_>> {
        if self.link.is_blocked() {
            return None;
        }
        Some(TxSlot(self.link))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        capabilities(self.link.kind)
    }
}

/// The checksums that smoltcp computes: only that of the IPv4 header, because the rest is
/// offloaded.
pub(crate) fn capabilities(link_kind: LinkKind) -> DeviceCapabilities {
    let mut capabilities = DeviceCapabilities::default();
    capabilities.medium = Medium::Ip;
    capabilities.max_transmission_unit = link_kind.max_receive_len();
    capabilities.checksum.ipv4 = Checksum::Tx;
    capabilities.checksum.tcp = Checksum::None;
    capabilities
}

impl RxToken for RxPacket<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, read: F) -> R {
        read(self.0)
    }
}

impl TxToken for TxSlot<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, length: usize, fill: F) -> R {
        if self.0.is_blocked() || length > self.0.mtu() {
            // A frame waits already: smoltcp has to write the packet somewhere, and it is dropped.
            return fill(&mut vec![0; length]);
        }
        self.0.write_packet(length, fill)
    }
}
