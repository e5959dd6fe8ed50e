//! Clients of published ports.

use crate::guest::Setup;
use msb_spec::{Decision, Direction, PublishedPort};
use msb_wire::{FromGateway, ToGateway};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

#[test]
fn a_published_port_leads_inside() {
    let mut guest = Setup::new(&[]).publish("127.0.0.1:0:80").start();
    let port = guest.ports[0].host;
    assert_ne!(port, 0);
    let server = guest.listen(80);
    let client = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"hello").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    });
    guest.until("somebody", |guest| guest.tcp(server).may_send());
    assert_eq!(guest.receive_all(server), b"hello");
    guest.send(server, b"welcome");
    guest.tcp(server).close();
    guest.until_closed(server);
    assert_eq!(client.join().unwrap(), b"welcome");
    let verdict = guest.verdict(|verdict| verdict.direction == Direction::Ingress);
    assert_eq!((verdict.decision, verdict.port), (Decision::Allow, Some(80)));
    guest.end();
}

#[test]
fn a_closed_guest_port_resets_the_client() {
    let mut guest = Setup::new(&[]).publish("127.0.0.1:0:80").start();
    let port = guest.ports[0].host;
    let client = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.read(&mut [0]).map_err(|error| error.kind())
    });
    guest.until("the client is done", |_| client.is_finished());
    assert_eq!(client.join().unwrap(), Err(std::io::ErrorKind::ConnectionReset));
    guest.end();
}

#[test]
fn a_denied_client_is_reset() {
    let mut guest = Setup::new(&["deny:ingress@loopback"]).publish("127.0.0.1:0:80").start();
    let port = guest.ports[0].host;
    guest.listen(80);
    let client = std::thread::spawn(move || {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.read(&mut [0]).map_err(|error| error.kind())
    });
    guest.until("the client is done", |_| client.is_finished());
    assert_eq!(client.join().unwrap(), Err(std::io::ErrorKind::ConnectionReset));
    let verdict = guest.verdict(|verdict| verdict.direction == Direction::Ingress);
    assert_eq!(verdict.rule, "deny:ingress@loopback");
    guest.end();
}

#[test]
fn published_datagrams_go_both_ways() {
    let mut guest = Setup::new(&[]).publish("127.0.0.1:0:5353/udp").start();
    let port = guest.ports[0].host;
    let socket = guest.add_udp();
    guest.udp_socket(socket).close();
    guest.udp_socket(socket).bind(5353).unwrap();
    let clients: Vec<_> = (0..3u8)
        .map(|number| {
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.send_to(&[number], ("127.0.0.1", port)).unwrap();
            client
        })
        .collect();
    let mut seen = 0;
    guest.until("three datagrams", |guest| {
        while let Ok((body, meta)) = guest.udp_socket(socket).recv() {
            let answer = [body[0] + 100];
            guest.udp_socket(socket).send_slice(&answer, meta.endpoint).unwrap();
            seen += 1;
        }
        seen == 3
    });
    for (number, client) in clients.iter().enumerate() {
        let mut answer = [0; 8];
        assert_eq!(client.recv(&mut answer).unwrap(), 1);
        assert_eq!(usize::from(answer[0]), number + 100);
    }
    guest.end();
}

#[test]
fn ports_are_published_and_withdrawn_while_it_runs() {
    let mut guest = Setup::new(&[]).start();
    let published = PublishedPort::parse("127.0.0.1:0:80").unwrap();
    let FromGateway::Opened(opened) = guest.request(&ToGateway::Publish(published)) else {
        panic!("not opened")
    };
    assert_eq!(guest.table().ports, std::slice::from_ref(&opened));
    let again = guest.request(&ToGateway::Publish(opened.clone()));
    assert!(matches!(again, FromGateway::Refused(_)), "{again:?}");
    TcpStream::connect(("127.0.0.1", opened.host)).unwrap();
    assert_eq!(guest.request(&ToGateway::Withdraw(opened.clone())), FromGateway::Done);
    assert!(TcpStream::connect(("127.0.0.1", opened.host)).is_err());
    assert!(matches!(guest.request(&ToGateway::Withdraw(opened)), FromGateway::Refused(_)));
    guest.end();
}
