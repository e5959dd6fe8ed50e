//! DNS queries of the guest.

use crate::guest::{Guest, Setup};
use crate::servers::{dns_server, host};
use msb_spec::{Decision, addresses};
use msb_wire::FlowKind;
use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE};
use std::net::{Ipv4Addr, SocketAddr};

pub(crate) fn build_query(name: &str, kind: TYPE) -> Vec<u8> {
    let mut packet = Packet::new_query(77);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(
        Name::new_unchecked(name),
        QTYPE::TYPE(kind),
        QCLASS::CLASS(CLASS::IN),
        false,
    ));
    packet.build_bytes_vec().unwrap()
}

/// Queries over UDP; returns the response code and the addresses.
#[track_caller]
pub(crate) fn resolve(guest: &mut Guest, name: &str) -> (RCODE, Vec<Ipv4Addr>) {
    let socket = guest.add_udp();
    let answer = guest.exchange_udp(socket, host(53), &build_query(name, TYPE::A));
    guest.sockets.remove(socket);
    let answer = Packet::parse(&answer).unwrap();
    assert_eq!(answer.id(), 77);
    let addresses = answer.answers.iter().filter_map(|record| match &record.rdata {
        RData::A(a) => Some(Ipv4Addr::from_bits(a.address)),
        _ => None,
    });
    (answer.rcode(), addresses.collect())
}

#[test]
fn allowed_names_are_forwarded_and_others_refused() {
    let mut guest = Setup::new(&["allow@*.good.example"]).resolver(dns_server()).start();
    let address = Ipv4Addr::new(93, 184, 216, 34);
    let (code, addresses) = resolve(&mut guest, "93-184-216-34.good.example");
    assert_eq!((code, addresses), (RCODE::NoError, vec![address]));
    assert_eq!(resolve(&mut guest, "1-2-3-4.bad.example").0, RCODE::NameError);
    assert_eq!(resolve(&mut guest, "none.good.example").0, RCODE::NameError);
    let refused = guest.verdict(|verdict| verdict.decision == Decision::Deny);
    assert_eq!((refused.kind, refused.rule.as_str()), (FlowKind::Dns, "default"));
    assert_eq!(refused.name.unwrap().as_str(), "1-2-3-4.bad.example");
    guest.verdict(|verdict| verdict.rule == "allow@*.good.example");
    guest.end();
}

#[test]
fn private_answers_are_withheld() {
    let mut guest = Setup::new(&["allow@public"]).resolver(dns_server()).start();
    for name in ["10-0-0-1.example", "127-0-0-1.example", "169-254-169-254.example"] {
        assert_eq!(resolve(&mut guest, name), (RCODE::NameError, vec![]), "{name}");
    }
    let refused = guest.verdict(|verdict| verdict.decision == Decision::Deny);
    assert_eq!(refused.rule, "private answer");
    guest.set_rules(&["allow@public", "allow@private"]);
    assert_eq!(resolve(&mut guest, "10-0-0-1.example").1, [Ipv4Addr::new(10, 0, 0, 1)]);
    // An address or a private network alone lets no query out.
    for rule in ["allow@private", "allow@10.0.0.1", "allow@0.0.0.0/0"] {
        guest.set_rules(&[rule]);
        assert_eq!(resolve(&mut guest, "10-0-0-1.example").0, RCODE::NameError, "{rule}");
    }
    guest.set_rules(&["allow@10-0-0-1.example", "allow@private"]);
    assert_eq!(resolve(&mut guest, "10-0-0-1.example").1, [Ipv4Addr::new(10, 0, 0, 1)]);
    guest.end();
}

#[test]
fn the_host_has_a_name_where_it_is_allowed() {
    let mut guest = Setup::new(&["allow@public"]).start();
    assert_eq!(resolve(&mut guest, "host.msb.internal").0, RCODE::NameError);
    guest.set_rules(&["allow@host"]);
    let answer = resolve(&mut guest, "host.msb.internal");
    assert_eq!(answer, (RCODE::NoError, vec![addresses::GATEWAY]));
    guest.end();
}

#[test]
fn long_answers_come_over_tcp() {
    let mut guest = Setup::new(&["allow@public"]).resolver(dns_server()).start();
    let socket = guest.add_udp();
    let answer = guest.exchange_udp(socket, host(53), &build_query("long.example", TYPE::TXT));
    assert!(Packet::parse(&answer).unwrap().has_flags(PacketFlag::TRUNCATION));
    let stream = guest.connect(host(53));
    let asked = build_query("long.example", TYPE::TXT);
    let framed = [&(asked.len() as u16).to_be_bytes()[..], &asked].concat();
    guest.send(stream, &framed);
    let length = guest.receive(stream, 2);
    let answer = guest.receive(stream, usize::from(u16::from_be_bytes([length[0], length[1]])));
    assert_eq!(Packet::parse(&answer).unwrap().answers.len(), 20);
    guest.tcp(stream).close();
    guest.until_closed(stream);
    guest.end();
}

#[test]
fn https_records_are_empty_and_floods_are_refused() {
    let mut guest = Setup::new(&["allow@public"]).resolver(dns_server()).start();
    let socket = guest.add_udp();
    let answer = guest.exchange_udp(socket, host(53), &build_query("1-2-3-4.example", TYPE::HTTPS));
    let answer = Packet::parse(&answer).unwrap();
    assert_eq!((answer.rcode(), answer.answers.len()), (RCODE::NoError, 0));
    for n in 0..100 {
        assert_eq!(resolve(&mut guest, &format!("no{n}.flood.example")).0, RCODE::NameError);
    }
    assert_eq!(resolve(&mut guest, "no100.flood.example").0, RCODE::Refused);
    assert_eq!(resolve(&mut guest, "no101.flood.example").0, RCODE::Refused);
    let flood = |verdict: &&msb_wire::Verdict| verdict.rule.starts_with("too many");
    guest.verdict(|verdict| flood(&verdict));
    assert_eq!(guest.verdicts().into_iter().filter(flood).count(), 1);
    guest.end();
}

#[test]
fn a_silent_server_is_followed_by_the_next() {
    // A socket that is bound and never read.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent_at = silent.local_addr().unwrap();
    let mut guest =
        Setup::new(&["allow@public"]).resolver(silent_at).resolver(dns_server()).start();
    assert_eq!(resolve(&mut guest, "1-2-3-4.example").1, [Ipv4Addr::new(1, 2, 3, 4)]);
    guest.end();
}

#[test]
fn queries_fail_without_servers() {
    let mut guest = Setup::new(&["allow@public"]).start();
    assert_eq!(resolve(&mut guest, "1-2-3-4.example").0, RCODE::ServerFailure);
    guest.end();
}

#[test]
fn the_gateway_answers_over_ipv6_too() {
    let mut guest = Setup::new(&["allow@public"]).resolver(dns_server()).start();
    let socket = guest.add_udp();
    let to = SocketAddr::from((addresses::GATEWAY6, 53));
    let answer = guest.exchange_udp(socket, to, &build_query("1-2-3-4.example", TYPE::A));
    assert_eq!(Packet::parse(&answer).unwrap().answers.len(), 1);
    guest.end();
}
