//! Rules for names, and rules that change while flows are open.

use crate::dns::resolve;
use crate::guest::{Guest, Setup};
use crate::servers::{dns_server, echo, echo_on, host, listener, server_at};
use msb_spec::{Decision, Policy, Rule};
use msb_wire::{FromGateway, ToGateway};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

const NAMED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 9);

/// A server at an address with a name, and a sandbox that may reach it by that name. The address
/// must be allowed, too, or the name could not lead to this machine.
fn named_server(rules: &[&str]) -> (Guest, SocketAddr) {
    let port = server_at(IpAddr::V4(NAMED), echo_on);
    let rules = [rules, &["allow@127.0.0.9"]].concat();
    let guest = Setup::new(&rules).resolver(dns_server()).start();
    (guest, SocketAddr::from((NAMED, port)))
}

const NAME: &str = "127-0-0-9.good.example";

/// A ClientHello with this server name, or without one.
fn client_hello(name: Option<&str>) -> Vec<u8> {
    let mut extensions = Vec::new();
    if let Some(name) = name {
        let length = name.len() as u16;
        extensions.extend_from_slice(&[0, 0]);
        extensions.extend_from_slice(&(length + 5).to_be_bytes());
        extensions.extend_from_slice(&(length + 3).to_be_bytes());
        extensions.push(0);
        extensions.extend_from_slice(&length.to_be_bytes());
        extensions.extend_from_slice(name.as_bytes());
    }
    let mut body = vec![3, 3];
    body.extend_from_slice(&[7; 32]);
    body.extend_from_slice(&[0, 0, 2, 0x13, 1, 1, 0]);
    body.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
    body.extend_from_slice(&extensions);
    let mut record = vec![22, 3, 1];
    record.extend_from_slice(&(body.len() as u16 + 4).to_be_bytes());
    record.extend_from_slice(&[1, 0]);
    record.extend_from_slice(&(body.len() as u16).to_be_bytes());
    record.extend_from_slice(&body);
    record
}

#[test]
fn an_address_that_was_never_resolved_is_refused() {
    let (mut guest, server) = named_server(&["allow@*.good.example"]);
    let never = guest.dial("203.0.113.9:7000".parse().unwrap());
    guest.until_closed(never);
    guest.verdict(|verdict| verdict.port == Some(7000) && verdict.decision == Decision::Deny);
    assert_eq!(resolve(&mut guest, NAME).1, [NAMED]);
    let stream = guest.connect(server);
    guest.send(stream, b"SSH-2.0-x\r\n");
    assert_eq!(guest.receive(stream, 11), b"SSH-2.0-x\r\n");
    let verdict = guest.verdict(|verdict| {
        verdict.port == Some(server.port()) && verdict.decision == Decision::Allow
    });
    assert_eq!(verdict.name.unwrap().as_str(), NAME);
    guest.end();
}

#[test]
fn a_hello_has_to_show_the_name() {
    let (mut guest, server) = named_server(&["allow@*.good.example"]);
    resolve(&mut guest, NAME);
    let good = client_hello(Some(NAME));
    let stream = guest.connect(server);
    guest.send(stream, &good);
    assert_eq!(guest.receive(stream, good.len()), good);
    for wrong in [
        client_hello(Some("other.example")),
        client_hello(Some("x.good.example")),
        client_hello(None),
    ] {
        let stream = guest.connect(server);
        guest.send(stream, &wrong);
        guest.until_closed(stream);
    }
    let refused = |guest: &mut Guest| {
        guest.verdicts().iter().filter(|one| one.decision == Decision::Deny).count()
    };
    guest.until("three refusals", |guest| refused(guest) == 3);
    guest.end();
}

#[test]
fn a_request_for_another_host_gets_a_403_with_the_reason() {
    let port = server_at(IpAddr::V4(NAMED), |mut stream| {
        let mut buffer = [0; 4096];
        while let Ok(1..) = std::io::Read::read(&mut stream, &mut buffer) {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";
            std::io::Write::write_all(&mut stream, answer).unwrap();
        }
    });
    let server = SocketAddr::from((NAMED, port));
    let rules = ["allow@*.good.example", "allow@127.0.0.9"];
    let mut guest = Setup::new(&rules).resolver(dns_server()).start();
    resolve(&mut guest, NAME);
    let good = format!("GET / HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    let stream = guest.connect(server);
    guest.send(stream, good.as_bytes());
    let mut answer = Vec::new();
    guest.until("an answer", |guest| {
        let mut buffer = [0; 4096];
        let n = guest.tcp(stream).recv_slice(&mut buffer).unwrap();
        answer.extend_from_slice(&buffer[..n]);
        answer.ends_with(b"hi")
    });
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
    // The next request on the same connection is for another host.
    guest.send(stream, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    answer.clear();
    guest.until("an answer", |guest| {
        let mut buffer = [0; 4096];
        let n = guest.tcp(stream).recv_slice(&mut buffer).unwrap();
        answer.extend_from_slice(&buffer[..n]);
        answer.len() > 12
    });
    assert!(answer.starts_with(b"HTTP/1.1 4"), "{}", String::from_utf8_lossy(&answer));
    let stream = guest.connect(server);
    guest.send(stream, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n");
    let answer = String::from_utf8(guest.receive_all(stream)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(answer.contains("evil.example"), "{answer}");
    guest.end();
}

#[test]
fn every_request_of_a_stream_is_held_to_its_name() {
    let (port, heard) = listener(NAMED);
    let rules = ["allow@*.good.example", "allow@127.0.0.9"];
    let mut guest = Setup::new(&rules).resolver(dns_server()).start();
    assert!(guest.authority.is_none());
    resolve(&mut guest, NAME);
    let stream = guest.connect(SocketAddr::from((NAMED, port)));
    // Both at once, so that a reader of the first bytes has seen them all.
    let first = format!("GET /first HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
    let second = "GET /second HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    guest.send(stream, format!("{first}{second}").as_bytes());
    let answers = String::from_utf8(guest.receive_all(stream)).unwrap();
    assert!(answers.starts_with("HTTP/1.1 200 OK\r\n"), "{answers}");
    assert!(answers.contains("HTTP/1.1 421 "), "{answers}");
    let heard = String::from_utf8(heard.lock().unwrap().clone()).unwrap();
    assert!(heard.contains("/first") && !heard.contains("/second"), "{heard}");
    let refused = guest.verdict(|verdict| verdict.decision == Decision::Deny);
    assert_eq!(refused.request.as_deref(), Some("GET /second"));
    guest.end();
}

#[test]
fn a_refused_name_is_refused_by_its_address_too() {
    let port = server_at(IpAddr::V4(NAMED), echo_on);
    let mut guest = Setup::new(&["deny@bad.example", "allow@loopback"]).start();
    let server = SocketAddr::from((NAMED, port));
    let stream = guest.connect(server);
    guest.send(stream, &client_hello(Some("bad.example")));
    guest.until_closed(stream);
    let verdict = guest.verdict(|verdict| verdict.decision == Decision::Deny);
    assert_eq!(verdict.rule, "deny@bad.example");
    let stream = guest.connect(server);
    let fine = client_hello(Some("fine.example"));
    guest.send(stream, &fine);
    assert_eq!(guest.receive(stream, fine.len()), fine);
    guest.end();
}

#[test]
fn a_server_that_speaks_first_is_heard_before_the_name_check() {
    let port = server_at(IpAddr::V4(NAMED), |mut stream| {
        std::io::Write::write_all(&mut stream, b"220 hello\r\n").unwrap();
        echo_on(stream);
    });
    let rules = ["allow@*.good.example", "allow@127.0.0.9"];
    let mut guest = Setup::new(&rules).resolver(dns_server()).start();
    resolve(&mut guest, NAME);
    let stream = guest.connect(SocketAddr::from((NAMED, port)));
    assert_eq!(guest.receive(stream, 11), b"220 hello\r\n");
    // Could be the start of a request, but HTTP servers do not send first.
    guest.send(stream, b"me too");
    assert_eq!(guest.receive(stream, 6), b"me too");
    guest.end();
}

#[test]
fn an_ambiguous_start_is_not_held_for_ever() {
    let (mut guest, server) = named_server(&["allow@*.good.example"]);
    resolve(&mut guest, NAME);
    let stream = guest.connect(server);
    guest.send(stream, b"hello you");
    assert_eq!(guest.receive(stream, 9), b"hello you");
    guest.end();
}

#[test]
fn new_rules_end_the_flows_that_they_refuse() {
    let port = echo();
    let mut guest = Setup::new(&["allow@host"]).start();
    let stream = guest.connect(host(port));
    guest.send(stream, b"x");
    guest.receive(stream, 1);
    guest.set_rules(&["allow@host", "allow@public"]);
    guest.send(stream, b"x");
    guest.receive(stream, 1);
    guest.set_rules(&["allow@public"]);
    guest.until_closed(stream);
    let again = guest.dial(host(port));
    guest.until_closed(again);
    guest.verdict(|verdict| verdict.decision == Decision::Deny);
    guest.end();
}

#[test]
fn requests_are_decided_one_by_one() {
    let (mut guest, server) =
        named_server(&["allow@*.good.example:http:GET:/", "deny@*.good.example"]);
    assert!(guest.authority.is_some());
    resolve(&mut guest, NAME);
    let stream = guest.connect(server);
    guest.send(stream, format!("POST / HTTP/1.1\r\nHost: {NAME}\r\n\r\n").as_bytes());
    let mut answer = Vec::new();
    guest.until("an answer", |guest| {
        let mut buffer = [0; 4096];
        let n = guest.tcp(stream).recv_slice(&mut buffer).unwrap_or(0);
        answer.extend_from_slice(&buffer[..n]);
        answer.windows(4).any(|four| four == b"\r\n\r\n")
    });
    assert!(answer.starts_with(b"HTTP/1.1 403 "), "{}", String::from_utf8_lossy(&answer));
    let verdict = guest.verdict(|verdict| verdict.kind == msb_wire::FlowKind::Http);
    assert_eq!(verdict.decision, Decision::Deny);
    guest.end();
}

#[test]
fn rules_about_requests_that_come_too_late_are_refused() {
    let (mut guest, _) = named_server(&["allow@*.good.example"]);
    assert!(guest.authority.is_none());
    let rules = vec![Rule::parse("allow@*.good.example:http:GET:/").unwrap()];
    let late = ToGateway::Policy(Policy { rules, default: Decision::Deny });
    assert!(matches!(guest.request(&late), FromGateway::Refused(_)));
    // The old rules stay in force.
    assert_eq!(guest.table().policy.unwrap().rules[0].to_string(), "allow@*.good.example");
    guest.end();
}
