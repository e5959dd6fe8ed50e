//! The packets between sandbox and gateway: read with suspicion, written whole.
//!
//! A frame is a virtio header, an Ethernet header and a packet. Checksums of what comes in may be
//! left to a device that does not exist, so they are not looked at; nothing but the sandbox is on
//! the other end of the wire.

use crate::link::{Link, Wire};
use msb_spec::addresses;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the virtio header.
pub(crate) const VIRTIO: usize = 12;
/// Bytes before the packet.
pub(crate) const BEFORE: usize = VIRTIO + 14;
/// The longest frame.
pub(crate) const LONGEST: usize = BEFORE + addresses::MTU as usize;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMP6: u8 = 58;

const IPV4: [u8; 2] = [0x08, 0x00];
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];

/// What a frame of the sandbox holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Inbound<'a> {
    /// The sandbox asks for the link address of the gateway: what to answer.
    Asked(Reply),
    /// A packet.
    Packet(Packet<'a>),
}

/// A short answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// With an ARP message.
    Arp([u8; 28]),
    /// With a packet.
    Packet(Vec<u8>),
}

/// A packet of the sandbox that is whole.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) struct Packet<'a> {
    pub(crate) source: IpAddr,
    pub(crate) target: IpAddr,
    pub(crate) protocol: u8,
    /// With its header.
    pub(crate) whole: &'a [u8],
    /// Behind its header.
    pub(crate) body: &'a [u8],
}

/// The link address that a frame comes from.
pub(crate) fn link_source(frame: &[u8]) -> Option<[u8; 6]> {
    frame.get(VIRTIO + 6..VIRTIO + 12)?.try_into().ok()
}

/// Lowers what the first segment of a stream says that its sender takes, so that it fits a packet
/// of this size: a machine can send larger ones than it can receive.
pub(crate) fn ask_for_less(frame: &mut [u8], mtu: usize) {
    let Some(packet) = frame.get_mut(BEFORE..) else { return };
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
    let most = (mtu - before.max(20) - 20) as u16;
    loop {
        let length = match options {
            [2, 4, high, low, ..] => {
                let lower = u16::from_be_bytes([*high, *low]).min(most);
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

/// Reads a frame of the sandbox; none for everything that is not for us.
pub(crate) fn read(frame: &[u8]) -> Option<Inbound<'_>> {
    let kind: [u8; 2] = frame.get(VIRTIO + 12..BEFORE)?.try_into().ok()?;
    let body = &frame[BEFORE..];
    match kind {
        IPV4 => read_ipv4(body).map(Inbound::Packet),
        IPV6 => {
            let packet = read_ipv6(body)?;
            let (IpAddr::V6(source), body) = (packet.source, packet.body) else { return None };
            if packet.protocol == ICMP6 && body.first() == Some(&SOLICITATION) {
                let reply = answer_solicitation(source, body)?;
                return Some(Inbound::Asked(Reply::Packet(reply)));
            }
            (source == addresses::GUEST6).then_some(Inbound::Packet(packet))
        }
        ARP => answer_arp(body).map(|reply| Inbound::Asked(Reply::Arp(reply))),
        _ => None,
    }
}

/// Reads a packet that was kept.
pub(crate) fn read_packet(bytes: &[u8]) -> Option<Packet<'_>> {
    match bytes.first()? >> 4 {
        4 => read_ipv4(bytes),
        _ => read_ipv6(bytes),
    }
}

fn read_ipv4(bytes: &[u8]) -> Option<Packet<'_>> {
    let head = bytes.first_chunk::<20>()?;
    let before = usize::from(head[0] & 15) * 4;
    let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
    // Pieces of packets are not put together: a sender that respects the MTU makes none.
    let piece = u16::from_be_bytes([head[6], head[7]]) & 0x3fff != 0;
    if head[0] >> 4 != 4 || before < 20 || length < before || piece {
        return None;
    }
    let whole = bytes.get(..length)?;
    let source = Ipv4Addr::new(head[12], head[13], head[14], head[15]);
    let target = Ipv4Addr::new(head[16], head[17], head[18], head[19]);
    (source == addresses::GUEST).then_some(Packet {
        source: IpAddr::V4(source),
        target: IpAddr::V4(target),
        protocol: head[9],
        whole,
        body: &whole[before..],
    })
}

fn read_ipv6(bytes: &[u8]) -> Option<Packet<'_>> {
    let head = bytes.first_chunk::<40>()?;
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    if head[0] >> 4 != 6 {
        return None;
    }
    let whole = bytes.get(..40 + length)?;
    let address = |at: usize| {
        let octets: [u8; 16] = head[at..at + 16].try_into().ok()?;
        Some(IpAddr::V6(Ipv6Addr::from(octets)))
    };
    let (source, target) = (address(8)?, address(24)?);
    Some(Packet { source, target, protocol: head[6], whole, body: &whole[40..] })
}

/// Who has the gateway's address? We do, and every other of this network but the sandbox's own:
/// what is sent to nobody is refused at once, instead of nobody being looked for.
fn answer_arp(question: &[u8]) -> Option<[u8; 28]> {
    const REQUEST: [u8; 8] = [0, 1, 8, 0, 6, 4, 0, 1];
    let question = question.first_chunk::<28>()?;
    let wanted = Ipv4Addr::new(question[24], question[25], question[26], question[27]);
    let near = wanted.octets()[..3] == addresses::GATEWAY.octets()[..3];
    if question[..8] != REQUEST || !near || wanted == addresses::GUEST {
        return None;
    }
    let mut answer = [0; 28];
    answer[..8].copy_from_slice(&REQUEST);
    answer[7] = 2;
    answer[8..14].copy_from_slice(&addresses::GATEWAY_LINK);
    answer[14..18].copy_from_slice(&wanted.octets());
    answer[18..28].copy_from_slice(&question[8..18]);
    Some(answer)
}

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;

/// The same over IPv6.
fn answer_solicitation(asker: Ipv6Addr, question: &[u8]) -> Option<Vec<u8>> {
    let target: [u8; 16] = question.get(8..24)?.try_into().ok()?;
    let wanted = Ipv6Addr::from(target);
    let near = wanted.segments()[..4] == addresses::GATEWAY6.segments()[..4];
    let ours = near && wanted != addresses::GUEST6;
    // Without an address it only asks whether somebody else has its own.
    if !ours || asker.is_unspecified() || asker.is_multicast() {
        return None;
    }
    let mut answer = vec![ADVERTISEMENT, 0, 0, 0, 0x60, 0, 0, 0];
    answer.extend_from_slice(&target);
    answer.extend_from_slice(&[2, 1]);
    answer.extend_from_slice(&addresses::GATEWAY_LINK);
    Some(packet(IpAddr::V6(wanted), IpAddr::V6(asker), ICMP6, 255, &answer))
}

/// Writes the Ethernet header and the virtio header in front of the packet at `BEFORE`.
///
/// A stream's or datagram's checksum is left to the receiver's device, which does not look at it:
/// the sum of the pseudo header is what such a device is given. A machine's device has none of
/// that, and is told that the sum is good.
pub(crate) fn finish(frame: &mut [u8], guest: [u8; 6], wire: Wire) {
    let four = frame.get(BEFORE).is_some_and(|first| first >> 4 == 4);
    ethernet(frame, guest, if four { IPV4 } else { IPV6 });
    if wire == Wire::Machine {
        frame[0] = CHECKSUM_IS_GOOD;
        return;
    }
    let packet = &mut frame[BEFORE..];
    let (before, protocol) = match four {
        true => (20, packet.get(9)),
        false => (40, packet.get(6)),
    };
    let piece = four && packet.get(6..8).is_some_and(|flags| flags != [0x40, 0]);
    let offset = match protocol {
        _ if piece => return,
        Some(&TCP) => 16,
        Some(&UDP) => 6,
        // Another protocol, or a piece: it has its checksum.
        _ => return,
    };
    let protocol = protocol.copied().unwrap_or(0);
    if packet.len() < before + offset + 2 {
        return;
    }
    let addresses = if four { 12..20 } else { 8..40 };
    let length = packet.len() - before;
    let sum = sum(&packet[addresses], u32::from(protocol) + length as u32);
    packet[before + offset..before + offset + 2].copy_from_slice(&sum.to_be_bytes());
    frame[0] = NEEDS_CHECKSUM;
    frame[6..8].copy_from_slice(&(14 + before as u16).to_le_bytes());
    frame[8..10].copy_from_slice(&(offset as u16).to_le_bytes());
}

/// The flags of the virtio header.
const NEEDS_CHECKSUM: u8 = 1;
const CHECKSUM_IS_GOOD: u8 = 2;

/// Writes an answer about link addresses into `frame`; returns its length.
pub(crate) fn arp(frame: &mut [u8], guest: [u8; 6], answer: &[u8; 28]) -> usize {
    ethernet(frame, guest, ARP);
    frame[BEFORE..BEFORE + answer.len()].copy_from_slice(answer);
    BEFORE + answer.len()
}

fn ethernet(frame: &mut [u8], guest: [u8; 6], kind: [u8; 2]) {
    frame[..VIRTIO].fill(0);
    // One buffer, which is what a device that merges none says.
    frame[10] = 1;
    frame[VIRTIO..VIRTIO + 6].copy_from_slice(&guest);
    frame[VIRTIO + 6..VIRTIO + 12].copy_from_slice(&addresses::GATEWAY_LINK);
    frame[VIRTIO + 12..BEFORE].copy_from_slice(&kind);
}

/// The sum of 16-bit words, not inverted.
fn sum(bytes: &[u8], first: u32) -> u16 {
    let mut total = u64::from(first);
    for pair in bytes.chunks(2) {
        total += u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    total as u16
}

/// Bytes of the header of a packet to `address`.
pub(crate) fn header_length(address: IpAddr) -> usize {
    if address.is_ipv4() { 20 } else { 40 }
}

/// Writes the header of a packet with a body of `length` into the begin of `packet`.
pub(crate) fn header(
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
            let sum = !sum(head, 0);
            head[10..12].copy_from_slice(&sum.to_be_bytes());
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

/// A whole packet; one of ICMP with its checksum.
pub(crate) fn packet(
    source: IpAddr,
    target: IpAddr,
    protocol: u8,
    hops: u8,
    body: &[u8],
) -> Vec<u8> {
    let before = header_length(target);
    let mut packet = vec![0; before];
    header(&mut packet, source, target, protocol, hops, body.len());
    packet.extend_from_slice(body);
    if matches!(protocol, ICMP | ICMP6) && body.len() >= 4 {
        packet[before + 2..before + 4].fill(0);
        let pseudo = match protocol {
            ICMP6 => sum(&packet[8..40], u32::from(ICMP6) + body.len() as u32),
            _ => 0,
        };
        let sum = !sum(&packet[before..], u32::from(pseudo));
        packet[before + 2..before + 4].copy_from_slice(&sum.to_be_bytes());
    }
    packet
}

/// Why a packet is sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unreachable {
    /// A rule.
    Refused,
    /// Nobody listens there.
    Port,
    /// There is no way there.
    Host,
}

/// Tells the sandbox that its packet does not get where it was sent.
pub(crate) fn unreachable(sent: &Packet<'_>, why: Unreachable) -> Vec<u8> {
    let four = sent.target.is_ipv4();
    let (kind, code) = match (four, why) {
        (true, Unreachable::Refused) => (3, 13),
        (true, Unreachable::Port) => (3, 3),
        (true, Unreachable::Host) => (3, 1),
        (false, Unreachable::Refused) => (1, 1),
        (false, Unreachable::Port) => (1, 4),
        (false, Unreachable::Host) => (1, 3),
    };
    let mut body = vec![kind, code, 0, 0, 0, 0, 0, 0];
    // As much as every receiver needs to find its socket, and no more than one may send.
    let quoted = sent.whole.len().min(if four { 548 } else { 1232 });
    body.extend_from_slice(&sent.whole[..quoted]);
    let protocol = if four { ICMP } else { ICMP6 };
    // It comes from the gateway where whom it was sent to cannot be a sender.
    let source = match sent.target {
        IpAddr::V4(four) if four.is_broadcast() || four.is_multicast() || four.is_unspecified() => {
            IpAddr::V4(addresses::GATEWAY)
        }
        IpAddr::V6(six) if six.is_multicast() || six.is_unspecified() => {
            IpAddr::V6(addresses::GATEWAY6)
        }
        other => other,
    };
    packet(source, sent.source, protocol, 64, &body)
}

/// Sends the sandbox a datagram, in pieces if it is too long for the wire.
pub(crate) fn send_datagram(link: &mut Link, source: SocketAddr, port: u16, body: &[u8]) {
    let target = match source {
        SocketAddr::V4(_) => IpAddr::V4(addresses::GUEST),
        SocketAddr::V6(_) => IpAddr::V6(addresses::GUEST6),
    };
    let before = header_length(target);
    let length = 8 + body.len();
    let write = |datagram: &mut [u8]| {
        datagram[..2].copy_from_slice(&source.port().to_be_bytes());
        datagram[2..4].copy_from_slice(&port.to_be_bytes());
        datagram[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        datagram[6..8].fill(0);
        datagram[8..].copy_from_slice(body);
    };
    if before + length <= link.mtu() {
        link.send_with(before + length, |packet| {
            header(packet, source.ip(), target, UDP, 64, length);
            write(&mut packet[before..]);
        });
    } else if length <= LONGEST_DATAGRAM {
        let mut datagram = vec![0; length];
        write(&mut datagram);
        send_in_pieces(link, source.ip(), target, &mut datagram);
    }
}

/// What the length of a packet of IPv4 can say, less its header.
const LONGEST_DATAGRAM: usize = 65515;

/// Nobody sums what was put together again: it needs its own checksum.
fn send_in_pieces(link: &mut Link, source: IpAddr, target: IpAddr, datagram: &mut [u8]) {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    };
    let ends = [octets(source), octets(target)].concat();
    let pseudo = sum(&ends, u32::from(UDP) + datagram.len() as u32);
    let total = match !sum(datagram, u32::from(pseudo)) {
        0 => 0xffff,
        total => total,
    };
    datagram[6..8].copy_from_slice(&total.to_be_bytes());
    let number = link.number();
    let before = header_length(target);
    let own = if target.is_ipv4() { 0 } else { 8 };
    let most = (link.mtu() - before - own) & !7;
    let count = datagram.chunks(most).count();
    for (index, piece) in datagram.chunks(most).enumerate() {
        let at = (index * most) as u16;
        let more = u16::from(index + 1 < count);
        link.send_with(before + own + piece.len(), |packet| {
            let protocol = if own == 0 { UDP } else { FRAGMENT };
            header(packet, source, target, protocol, 64, own + piece.len());
            if own == 0 {
                packet[4..6].copy_from_slice(&(number as u16).to_be_bytes());
                packet[6..8].copy_from_slice(&((more << 13) | (at / 8)).to_be_bytes());
                packet[10..12].fill(0);
                let sum = !sum(&packet[..20], 0);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            } else {
                packet[40] = UDP;
                packet[41] = 0;
                packet[42..44].copy_from_slice(&(at | more).to_be_bytes());
                packet[44..48].copy_from_slice(&number.to_be_bytes());
            }
            packet[before + own..].copy_from_slice(piece);
        });
    }
}

/// The header of a piece over IPv6.
const FRAGMENT: u8 = 44;

/// The head of a stream's segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) source: u16,
    pub(crate) target: u16,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    length: usize,
}

impl Segment {
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        let head = body.first_chunk::<20>()?;
        let before = usize::from(head[12] >> 4) * 4;
        let number =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if before < 20 || before > body.len() {
            return None;
        }
        Some(Self {
            source: u16::from_be_bytes([head[0], head[1]]),
            target: u16::from_be_bytes([head[2], head[3]]),
            sequence: number(4),
            acknowledged: number(8),
            flags: head[13],
            length: body.len() - before,
        })
    }

    /// Whether it asks for a new stream and nothing else.
    pub(crate) fn opens(&self) -> bool {
        self.flags & 0b1_0111 == 0b0_0010
    }

    pub(crate) fn resets(&self) -> bool {
        self.flags & 0b100 != 0
    }

    /// What refuses it.
    pub(crate) fn reset(&self, packet: &Packet<'_>) -> Vec<u8> {
        let length =
            self.length as u32 + u32::from(self.flags & 1) + u32::from(self.flags >> 1 & 1);
        let (sequence, acknowledged, flags) = match self.flags & 0b1_0000 != 0 {
            true => (self.acknowledged, 0, 0b100),
            false => (0, self.sequence.wrapping_add(length), 0b1_0100),
        };
        let mut body = [0; 20];
        body[..2].copy_from_slice(&self.target.to_be_bytes());
        body[2..4].copy_from_slice(&self.source.to_be_bytes());
        body[4..8].copy_from_slice(&sequence.to_be_bytes());
        body[8..12].copy_from_slice(&acknowledged.to_be_bytes());
        body[12] = 5 << 4;
        body[13] = flags;
        crate::frames::packet(packet.target, packet.source, TCP, 64, &body)
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
