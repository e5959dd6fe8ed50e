//! Parses and builds the frames between sandbox and gateway: ARP, IPv4, IPv6, TCP, UDP and ICMP
//! headers.
//!
//! A frame is a virtio-net header, an Ethernet header and a packet. Checksums of incoming packets
//! are not verified: checksum offload may leave them unset, and only the guest is on the other end
//! of the link. Outgoing packets are complete.

use crate::link::{Link, LinkKind};
use msb_spec::addresses;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the virtio-net header.
pub(crate) const VIRTIO_HEADER_LEN: usize = 12;
/// Bytes of the virtio-net and Ethernet headers before a packet.
pub(crate) const HEADERS_LEN: usize = VIRTIO_HEADER_LEN + 14;
/// The length of the longest frame, in bytes.
pub(crate) const MAX_FRAME_LEN: usize = HEADERS_LEN + addresses::MTU as usize;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMP6: u8 = 58;

const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// The content of a frame from the guest.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inbound<'a> {
    /// An ARP request or neighbor solicitation for the gateway, with the reply to send.
    LinkQuery(LinkReply),
    /// An IP packet from the guest's own address.
    IpPacket(IpPacket<'a>),
}

/// A reply about link-layer addresses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LinkReply {
    /// An ARP reply, without Ethernet header.
    Arp([u8; 28]),
    /// An ICMPv6 neighbor advertisement, as an IPv6 packet.
    IpPacket(Vec<u8>),
}

/// An IP packet of the guest with valid length fields.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) struct IpPacket<'a> {
    pub(crate) source: IpAddr,
    pub(crate) target: IpAddr,
    pub(crate) protocol: u8,
    /// The packet with its IP header.
    pub(crate) bytes: &'a [u8],
    /// What follows the IP header.
    pub(crate) payload: &'a [u8],
}

/// The source MAC address of a frame.
pub(crate) fn source_mac(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(VIRTIO_HEADER_LEN + 6..VIRTIO_HEADER_LEN + 12)?.try_into().ok()
}

/// Clamps the MSS option of a SYN so that segments fit into packets of `mtu` bytes. A VM can send
/// larger packets than it can receive.
pub(crate) fn clamp_mss(frame: &mut [u8], mtu: usize) {
    let Some(packet) = frame.get_mut(HEADERS_LEN..) else { return };
    let Some(first) = packet.first() else { return };
    let (protocol, before) = match first >> 4 {
        4 => (packet.get(9), usize::from(first & 15) * 4),
        _ => (packet.get(6), 40),
    };
    if protocol != Some(&TCP) {
        return;
    }
    let Some(segment) = packet.get_mut(before..) else { return };
    let Some([offset, flags]) = segment.get(12..14) else { return };
    if flags & 0b10 == 0 {
        return;
    }
    let end = usize::from(offset >> 4) * 4;
    let Some(mut options) = segment.get_mut(20..end) else { return };
    let max_len = (mtu - before.max(20) - 20) as u16;
    loop {
        let length = match options {
            [2, 4, high, low, ..] => {
                let lower = u16::from_be_bytes([*high, *low]).min(max_len);
                [*high, *low] = lower.to_be_bytes();
                4
            }
            [0, ..] | [] | [_] => return,
            [1, ..] => 1,
            [_, length, ..] => usize::from(*length).max(2),
        };
        let Some(rest) = options.get_mut(length..) else { return };
        options = rest;
    }
}

/// Parses a frame of the guest; `None` if it is malformed or not for the gateway.
pub(crate) fn read(frame: &[u8]) -> Option<Inbound<'_>> {
    let kind: [u8; 2] = frame.get(VIRTIO_HEADER_LEN + 12..HEADERS_LEN)?.try_into().ok()?;
    let payload = &frame[HEADERS_LEN..];
    match kind {
        IPV4 => read_ipv4(payload).map(Inbound::IpPacket),
        IPV6 => {
            let packet = read_ipv6(payload)?;
            let (IpAddr::V6(source), payload) = (packet.source, packet.payload) else {
                return None;
            };
            if packet.protocol == ICMP6 && payload.first() == Some(&SOLICITATION) {
                let reply = answer_neighbor_solicitation(source, payload)?;
                return Some(Inbound::LinkQuery(LinkReply::IpPacket(reply)));
            }
            (source == addresses::GUEST6).then_some(Inbound::IpPacket(packet))
        }
        ARP => answer_arp(payload).map(|reply| Inbound::LinkQuery(LinkReply::Arp(reply))),
        _ => None,
    }
}

/// Parses a packet that was stored without its frame.
pub(crate) fn read_packet(bytes: &[u8]) -> Option<IpPacket<'_>> {
    match bytes.first()? >> 4 {
        4 => read_ipv4(bytes),
        _ => read_ipv6(bytes),
    }
}

fn read_ipv4(bytes: &[u8]) -> Option<IpPacket<'_>> {
    let head = bytes.first_chunk::<20>()?;
    let before = usize::from(head[0] & 15) * 4;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    // Fragments are not reassembled: a sender that respects the MTU sends none.
    let fragment = u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0;
    if head[0] >> 4 != 4 || before < 20 || length < before || fragment {
        return None;
    }
    let bytes = bytes.get(..length)?;
    let source = Ipv4Addr::new(head[12], head[13], head[14], head[15]);
    let target = Ipv4Addr::new(head[16], head[17], head[18], head[19]);
    (source == addresses::GUEST).then_some(IpPacket {
        source: IpAddr::V4(source),
        target: IpAddr::V4(target),
        protocol: head[9],
        bytes,
        payload: &bytes[before..],
    })
}

fn read_ipv6(bytes: &[u8]) -> Option<IpPacket<'_>> {
    let head = bytes.first_chunk::<40>()?;
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    if head[0] >> 4 != 6 {
        return None;
    }
    let bytes = bytes.get(..40 + length)?;
    let address = |at: usize| {
        let octets: [u8; 16] = head[at..at + 16].try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    let (source, target) = (address(8)?, address(24)?);
    Some(IpPacket { source, target, protocol: head[6], bytes, payload: &bytes[40..] })
}

/// Answers an ARP request for any address of this network but the guest's own. A packet to an
/// unused address is then refused at once, instead of waiting for an ARP timeout.
fn answer_arp(request: &[u8]) -> Option<[u8; 28]> {
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let request = request.first_chunk::<28>()?;
    let wanted = Ipv4Addr::new(request[24], request[25], request[26], request[27]);
    let near = wanted.octets()[..3] == addresses::GATEWAY.octets()[..3];
    if request[..8] != REQUEST || !near || wanted == addresses::GUEST {
        return None;
    }
    let mut reply = [0; 28];
    reply[..8].copy_from_slice(&REQUEST);
    reply[7] = 2;
    reply[8..14].copy_from_slice(&addresses::GATEWAY_LINK);
    reply[14..18].copy_from_slice(&wanted.octets());
    reply[18..28].copy_from_slice(&request[8..18]);
    Some(reply)
}

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// Answers a neighbor solicitation, as [`answer_arp`] does for IPv4.
fn answer_neighbor_solicitation(sender: Ipv6Addr, request: &[u8]) -> Option<Vec<u8>> {
    let target: [u8; 16] = request.get(8..24)?.try_into().ok()?;
    let wanted = Ipv6Addr::from(target);
    let near = wanted.segments()[..4] == addresses::GATEWAY6.segments()[..4];
    let ours = near && wanted != addresses::GUEST6;
    // From the unspecified address it is duplicate address detection.
    if !ours || sender.is_unspecified() || sender.is_multicast() {
        return None;
    }
    let mut reply = vec![ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0];
    reply.extend_from_slice(&target);
    reply.extend_from_slice(&[2, 1]);
    reply.extend_from_slice(&addresses::GATEWAY_LINK);
    Some(packet(IpAddr::V6(wanted), IpAddr::V6(sender), ICMP6, 255, &reply))
}

/// Writes the Ethernet and virtio-net headers in front of the packet at `HEADERS_LEN`.
///
/// On a device of this kernel the TCP or UDP checksum is offloaded: the field holds the sum of the pseudo
/// header. A VM's device has no offload, so the header says that the checksum is valid.
pub(crate) fn write_headers(frame: &mut [u8], guest_mac: [u8; 6], link_kind: LinkKind) {
    let four = frame.get(HEADERS_LEN).is_some_and(|first| first >> 4 == 4);
    write_ethernet(frame, guest_mac, if four { IPV4 } else { IPV6 });
    if link_kind == LinkKind::Vm {
        frame[0] = CHECKSUM_IS_GOOD;
        return;
    }
    let packet = &mut frame[HEADERS_LEN..];
    let (before, protocol) = match four {
        true => (20, packet.get(9)),
        false => (40, packet.get(6)),
    };
    let fragment = four && packet.get(6..8).is_some_and(|flags| flags != [0x40, 0]);
    let offset = match protocol {
        _ if fragment => return,
        Some(&TCP) => 16,
        Some(&UDP) => 6,
        // Another protocol, or a fragment: its checksum is complete.
        _ => return,
    };
    let protocol = protocol.copied().unwrap_or(0);
    if packet.len() < before + offset + 2 {
        return;
    }
    let addresses = if four { 12..20 } else { 8..40 };
    let length = packet.len() - before;
    let checksum = ones_complement_sum(&packet[addresses], u32::from(protocol) + length as u32);
    packet[before + offset..before + offset + 2].copy_from_slice(&checksum.to_be_bytes());
    frame[0] = NEEDS_CHECKSUM;
    frame[6..8].copy_from_slice(&(14 + before as u16).to_le_bytes());
    frame[8..10].copy_from_slice(&(offset as u16).to_le_bytes());
}

/// Flags of the virtio-net header (`VIRTIO_NET_HDR_F_*`).
const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_IS_GOOD: u8 = 2;

/// Writes an ARP reply into `frame`; returns the length of the frame.
pub(crate) fn write_arp(frame: &mut [u8], guest_mac: [u8; 6], reply: &[u8; 28]) -> usize {
    write_ethernet(frame, guest_mac, ARP);
    frame[HEADERS_LEN..HEADERS_LEN + reply.len()].copy_from_slice(reply);
    HEADERS_LEN + reply.len()
}

fn write_ethernet(frame: &mut [u8], guest_mac: [u8; 6], kind: [u8; 2]) {
    frame[..VIRTIO_HEADER_LEN].fill(0);
    // `num_buffers` is 1: receive buffers are not merged.
    frame[10] = 1;
    frame[VIRTIO_HEADER_LEN..VIRTIO_HEADER_LEN + 6].copy_from_slice(&guest_mac);
    frame[VIRTIO_HEADER_LEN + 6..VIRTIO_HEADER_LEN + 12].copy_from_slice(&addresses::GATEWAY_LINK);
    frame[VIRTIO_HEADER_LEN + 12..HEADERS_LEN].copy_from_slice(&kind);
}

/// The ones' complement sum of 16-bit words (RFC 1071), not inverted.
fn ones_complement_sum(bytes: &[u8], first: u32) -> u16 {
    let mut total = u64::from(first);
    for pair in bytes.chunks(2) {
        total += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// The length of the IP header of a packet to `address`, in bytes.
pub(crate) fn header_length(address: IpAddr) -> usize {
    if address.is_ipv4() { 20 } else { 40 }
}

/// Writes the IP header of a packet with `length` bytes of payload to the start of `packet`.
pub(crate) fn write_ip_header(
    packet: &mut [u8],
    source: IpAddr,
    target: IpAddr,
    protocol: u8,
    hops: u8,
    length: usize,
) {
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let head = &mut packet[..20];
            head.fill(0);
            head[0] = 0x45;
            head[2..4].copy_from_slice(&(20 + length as u16).to_be_bytes());
            head[6] = 0x40;
            head[8] = hops;
            head[9] = protocol;
            head[12..16].copy_from_slice(&source.octets());
            head[16..20].copy_from_slice(&target.octets());
            let checksum = !ones_complement_sum(head, 0);
            head[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        (source, target) => {
            let six = |address: IpAddr| match address {
                IpAddr::V4(four) => four.to_ipv6_mapped(),
                IpAddr::V6(six) => six,
            };
            let head = &mut packet[..40];
            head.fill(0);
            head[0] = 0x60;
            head[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            head[6] = protocol;
            head[7] = hops;
            head[8..24].copy_from_slice(&six(source).octets());
            head[24..40].copy_from_slice(&six(target).octets());
        }
    }
}

/// Builds a packet. An ICMP checksum is filled in; others are not.
pub(crate) fn packet(
    source: IpAddr,
    target: IpAddr,
    protocol: u8,
    hops: u8,
    payload: &[u8],
) -> Vec<u8> {
    let before = header_length(target);
    let mut packet = vec![0; before];
    write_ip_header(&mut packet, source, target, protocol, hops, payload.len());
    packet.extend_from_slice(payload);
    if matches!(protocol, ICMP | ICMP6) && payload.len() >= 4 {
        packet[before + 2..before + 4].fill(0);
        let pseudo = match protocol {
            ICMP6 => ones_complement_sum(&packet[8..40], u32::from(ICMP6) + payload.len() as u32),
            _ => 0,
        };
        let checksum = !ones_complement_sum(&packet[before..], u32::from(pseudo));
        packet[before + 2..before + 4].copy_from_slice(&checksum.to_be_bytes());
    }
    packet
}

/// Why an ICMP destination unreachable message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// A rule refuses the packet: administratively prohibited.
    Refused,
    /// No process listens on that port.
    Port,
    /// There is no route to that address.
    Host,
}

/// Builds the ICMP destination unreachable message for a packet of the guest.
pub(crate) fn unreachable(sent: &IpPacket<'_>, why: Unreachable) -> Vec<u8> {
    let four = sent.target.is_ipv4();
    let (kind, code) = match (four, why) {
        (true, Unreachable::Refused) => (3, 13),
        (true, Unreachable::Port) => (3, 3),
        (true, Unreachable::Host) => (3, 1),
        (false, Unreachable::Refused) => (1, 1),
        (false, Unreachable::Port) => (1, 4),
        (false, Unreachable::Host) => (1, 3),
    };
    let mut payload = vec![kind, code, 0, 0, 0, 0, 0, 0];
    // Quotes as much as an ICMP error may hold: 576 bytes for IPv4, 1280 for IPv6, with headers.
    let quoted = sent.bytes.len().min(if four { 548 } else { 1232 });
    payload.extend_from_slice(&sent.bytes[..quoted]);
    let protocol = if four { ICMP } else { ICMP6 };
    // Multicast, broadcast and unspecified addresses cannot be a source: the gateway's address is.
    let source = match sent.target {
        IpAddr::V4(four) if four.is_broadcast() || four.is_multicast() || four.is_unspecified() => {
            IpAddr::V4(addresses::GATEWAY)
        }
        IpAddr::V6(six) if six.is_multicast() || six.is_unspecified() => {
            IpAddr::V6(addresses::GATEWAY6)
        }
        other => other,
    };
    packet(source, sent.source, protocol, 64, &payload)
}

/// Sends a UDP datagram to the guest, in fragments if it exceeds the MTU.
pub(crate) fn send_datagram(link: &mut Link, source: SocketAddr, port: u16, payload: &[u8]) {
    let target = match source {
        SocketAddr::V4(_) => IpAddr::V4(addresses::GUEST),
        SocketAddr::V6(_) => IpAddr::V6(addresses::GUEST6),
    };
    let before = header_length(target);
    let length = 8 + payload.len();
    let write = |datagram: &mut [u8]| {
        datagram[..2].copy_from_slice(&source.port().to_be_bytes());
        datagram[2..4].copy_from_slice(&port.to_be_bytes());
        datagram[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        datagram[6..8].fill(0);
        datagram[8..].copy_from_slice(payload);
    };
    if before + length <= link.mtu() {
        link.send_with(before + length, |packet| {
            write_ip_header(packet, source.ip(), target, UDP, 64, length);
            write(&mut packet[before..]);
        });
    } else if length <= MAX_UDP_LEN {
        let mut datagram = vec![0; length];
        write(&mut datagram);
        send_fragments(link, source.ip(), target, &mut datagram);
    }
}

/// The longest UDP datagram in an IPv4 packet, with its header.
const MAX_UDP_LEN: usize = 65515;

/// Sends a UDP datagram in fragments. Checksum offload does not cover fragments, so the UDP
/// checksum is computed here.
fn send_fragments(link: &mut Link, source: IpAddr, target: IpAddr, datagram: &mut [u8]) {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    };
    let ends = [octets(source), octets(target)].concat();
    let pseudo = ones_complement_sum(&ends, u32::from(UDP) + datagram.len() as u32);
    let total = match !ones_complement_sum(datagram, u32::from(pseudo)) {
        0 => 0xffff,
        total => total,
    };
    datagram[6..8].copy_from_slice(&total.to_be_bytes());
    let fragment_id = link.next_fragment_id();
    let before = header_length(target);
    let own = if target.is_ipv4() { 0 } else { 8 };
    let max_len = (link.mtu() - before - own) & !7;
    let count = datagram.chunks(max_len).count();
    for (index, fragment) in datagram.chunks(max_len).enumerate() {
        let at = (index * max_len) as u16;
        let more = u16::from(index + 1 < count);
        link.send_with(before + own + fragment.len(), |packet| {
            let protocol = if own == 0 { UDP } else { FRAGMENT };
            write_ip_header(packet, source, target, protocol, 64, own + fragment.len());
            if own == 0 {
                packet[4..6].copy_from_slice(&(fragment_id as u16).to_be_bytes());
                packet[6..8].copy_from_slice(&((more << 13) | (at / 8)).to_be_bytes());
                packet[10..12].fill(0);
                let checksum = !ones_complement_sum(&packet[..20], 0);
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
            } else {
                packet[40] = UDP;
                packet[41] = 0;
                packet[42..44].copy_from_slice(&(at | more).to_be_bytes());
                packet[44..48].copy_from_slice(&fragment_id.to_be_bytes());
            }
            packet[before + own..].copy_from_slice(fragment);
        });
    }
}

/// The IPv6 fragment extension header.
const FRAGMENT: u8 = 44;

/// The header fields of a TCP segment that decide about flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TcpSegment {
    pub(crate) source: u16,
    pub(crate) target: u16,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    length: usize,
}

impl TcpSegment {
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        let head = payload.first_chunk::<20>()?;
        let before = usize::from(head[12] >> 4) * 4;
        let number =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if before < 20 || before > payload.len() {
            return None;
        }
        Some(Self {
            source: u16::from_be_bytes([head[0], head[1]]),
            target: u16::from_be_bytes([head[2], head[3]]),
            sequence: number(4),
            acknowledged: number(8),
            flags: head[13],
            length: payload.len() - before,
        })
    }

    /// Whether it is a SYN without ACK, RST or FIN.
    pub(crate) fn is_syn(&self) -> bool {
        self.flags & 0b1_0111 == 0b0_0010
    }

    pub(crate) fn is_rst(&self) -> bool {
        self.flags & 0b100 != 0
    }

    /// Builds the RST that refuses this segment, as an IP packet.
    pub(crate) fn rst_reply(&self, packet: &IpPacket<'_>) -> Vec<u8> {
        let length =
            self.length as u32 + u32::from(self.flags & 1) + u32::from(self.flags >> 1 & 1);
        let (sequence, acknowledged, flags) = match self.flags & 0b1_0000 != 0 {
            true => (self.acknowledged, 0, 0b100),
            false => (0, self.sequence.wrapping_add(length), 0b1_0100),
        };
        let mut payload = [0; 20];
        payload[..2].copy_from_slice(&self.target.to_be_bytes());
        payload[2..4].copy_from_slice(&self.source.to_be_bytes());
        payload[4..8].copy_from_slice(&sequence.to_be_bytes());
        payload[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        payload[12] = 5 << 4;
        payload[13] = flags;
        self::packet(packet.target, packet.source, TCP, 64, &payload)
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
