//! UDP datagrams and ICMP echo out of the sandbox.

use crate::guest::Setup;
use crate::servers::{datagram_echo, host};
use msb_spec::{Decision, addresses};
use msb_wire::FlowKind;
use std::net::SocketAddr;

#[test]
fn datagrams_go_both_ways() {
    let port = datagram_echo();
    let mut guest = Setup::new(&["allow@host"]).start();
    let socket = guest.add_udp();
    assert_eq!(guest.exchange_udp(socket, host(port), b"hello"), b"hello");
    let large = vec![9; 1400];
    assert_eq!(guest.exchange_udp(socket, host(port), &large), large);
    let verdict = guest.verdict(|verdict| verdict.kind == FlowKind::Udp);
    assert_eq!((verdict.decision, verdict.port), (Decision::Allow, Some(port)));
    assert_eq!(guest.table().flows[0].received, 1405);
    guest.end();
}

#[test]
fn idle_udp_flows_make_room() {
    let port = datagram_echo();
    let mut setup = Setup::new(&["allow@host"]);
    setup.network.max_connections = 2;
    let mut guest = setup.start();
    for _ in 0..2 {
        let socket = guest.add_udp();
        assert_eq!(guest.exchange_udp(socket, host(port), b"old"), b"old");
    }
    let socket = guest.add_udp();
    // Refused while the others may still be answered, and allowed once they are idle.
    guest.until("one gives way", |guest| {
        let _ = guest.udp_socket(socket).send_slice(b"new", host(port));
        guest.step();
        guest.udp_socket(socket).can_recv()
    });
    assert!(guest.verdicts().iter().any(|verdict| verdict.rule.contains("max-connections")));
    assert_eq!(guest.table().flows.len(), 2);
    guest.end();
}

/// The type and code of an ICMP message.
fn icmp_type_and_code(packet: &[u8]) -> Option<(u8, u8)> {
    (packet[0] == 0x45 && packet[9] == 1).then(|| (packet[20], packet[21]))
}

/// A UDP datagram to this machine as raw bytes; smoltcp does not see its answer.
fn datagram(port: u16) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend_from_slice(&addresses::GUEST.octets());
    packet.extend_from_slice(&addresses::GATEWAY.octets());
    packet.extend_from_slice(&40_000u16.to_be_bytes());
    packet.extend_from_slice(&port.to_be_bytes());
    packet.extend_from_slice(&[0, 9, 0, 0, b'x']);
    packet
}

#[test]
fn a_refused_datagram_comes_back() {
    let mut guest = Setup::new(&["allow@host:tcp"]).start();
    guest.inject(&datagram(999));
    let packet = guest.catch(|packet| icmp_type_and_code(packet).is_some());
    assert_eq!(icmp_type_and_code(&packet), Some((3, 13)));
    let verdict = guest.verdict(|verdict| verdict.kind == FlowKind::Udp);
    assert_eq!(verdict.decision, Decision::Deny);
    guest.end();
}

#[test]
fn a_closed_port_is_reported_as_unreachable() {
    let closed = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut guest = Setup::new(&["allow@host"]).start();
    guest.inject(&datagram(closed));
    let packet = guest.catch(|packet| icmp_type_and_code(packet).is_some());
    assert_eq!(icmp_type_and_code(&packet), Some((3, 3)));
    guest.end();
}

#[test]
fn quic_and_dns_to_other_servers_need_a_port_rule() {
    let mut guest = Setup::new(&["allow@any"]).start();
    let socket = guest.add_udp();
    for port in [443, 53, 853] {
        let to = SocketAddr::from(([127, 0, 0, 1], port));
        guest.udp_socket(socket).send_slice(b"x", to).unwrap();
        let verdict = guest.verdict(|verdict| verdict.port == Some(port));
        assert_eq!(verdict.decision, Decision::Deny);
    }
    guest.end();
}

fn echo_request(to: [u8; 4]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 36, 0, 0, 0, 0, 64, 1, 0, 0];
    packet.extend_from_slice(&addresses::GUEST.octets());
    packet.extend_from_slice(&to);
    packet.extend_from_slice(&[8, 0, 0, 0, 0x12, 0x34, 0, 1]);
    packet.extend_from_slice(b"01234567");
    packet
}

#[test]
fn echo_requests_are_answered_where_the_host_permits_ping() {
    let mut guest = Setup::new(&["allow@loopback"]).start();
    guest.inject(&echo_request(addresses::GATEWAY.octets()));
    let packet = guest.catch(|packet| icmp_type_and_code(packet).is_some());
    assert_eq!(icmp_type_and_code(&packet), Some((0, 0)));
    guest.inject(&echo_request([127, 0, 0, 1]));
    let packet = guest.catch(|packet| icmp_type_and_code(packet).is_some());
    let verdict = guest.verdict(|verdict| verdict.kind == FlowKind::Icmp);
    match verdict.decision {
        Decision::Allow => {
            assert_eq!(icmp_type_and_code(&packet), Some((0, 0)));
            assert_eq!(packet[24..], echo_request([0; 4])[24..]);
        }
        Decision::Deny => {
            assert!(verdict.rule.contains("ping_group_range"), "{}", verdict.rule);
            assert_eq!(icmp_type_and_code(&packet), Some((3, 13)));
        }
    }
    guest.end();
}

/// Reassembles the fragments of a datagram.
fn reassemble(guest: &mut crate::guest::Guest) -> Vec<u8> {
    let (mut all, mut last) = (vec![0; 1 << 16], false);
    let (mut end, mut have) = (0, 0);
    while !last || have < end {
        let packet = guest.catch(|packet| packet[0] == 0x45 && packet[9] == 17);
        assert!(packet.len() <= 1500);
        let flags = u16::from_be_bytes([packet[6], packet[7]]);
        let at = usize::from(flags & 0x1fff) * 8;
        let piece = &packet[20..];
        all[at..at + piece.len()].copy_from_slice(piece);
        have += piece.len();
        if flags & 0x2000 == 0 {
            last = true;
            end = at + piece.len();
        }
    }
    all.truncate(end);
    all
}

#[test]
fn a_long_datagram_is_fragmented() {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let sent: Vec<u8> = (0..20_000u32).map(|n| (n / 7) as u8).collect();
    let body = sent.clone();
    std::thread::spawn(move || {
        let mut byte = [0; 1];
        let (_, peer) = socket.recv_from(&mut byte).unwrap();
        socket.send_to(&body, peer).unwrap();
    });
    let mut guest = Setup::new(&["allow@host"]).start();
    guest.inject(&datagram(port));
    let received = reassemble(&mut guest);
    assert_eq!(received[8..], sent);
    let ends = [addresses::GATEWAY.octets(), addresses::GUEST.octets()].concat();
    let words = ends.chunks(2).chain(received.chunks(2));
    let mut total: u64 = 17 + received.len() as u64;
    for word in words {
        total += u64::from(word[0]) << 8 | word.get(1).map_or(0, |low| u64::from(*low));
    }
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    assert_eq!(total, 0xffff, "its checksum is right");
    guest.end();
}
