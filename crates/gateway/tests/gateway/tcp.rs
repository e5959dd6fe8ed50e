//! TCP flows out of the sandbox.

use crate::guest::Setup;
use crate::servers::{echo, host, server};
use msb_spec::{Decision, addresses};
use msb_wire::{FlowKind, NetEvent};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc;

#[test]
fn an_allowed_stream_goes_both_ways() {
    let port = echo();
    let mut guest = Setup::new(&["allow@host"]).start();
    let stream = guest.connect(host(port));
    guest.send(stream, b"hello");
    assert_eq!(guest.receive(stream, 5), b"hello");
    let table = guest.table();
    assert_eq!(table.flows.len(), 1);
    assert_eq!((table.flows[0].sent, table.flows[0].received), (5, 5));
    guest.tcp(stream).close();
    assert_eq!(guest.receive_all(stream), b"");
    let verdict = guest.verdict(|verdict| verdict.kind == FlowKind::Tcp);
    assert_eq!(verdict.decision, Decision::Allow);
    assert_eq!(verdict.rule, "allow@host");
    assert_eq!(verdict.port, Some(port));
    let ended = NetEvent::Ended { flow: verdict.flow, sent: 5, received: 5 };
    guest.until("the end of the flow", |guest| guest.events.contains(&ended));
    assert_eq!(guest.table().flows, []);
    assert_eq!(guest.end(), 0);
}

#[test]
fn ipv6_goes_both_ways() {
    let listener = std::net::TcpListener::bind("[::1]:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || crate::servers::echo_on(listener.accept().unwrap().0));
    let mut guest = Setup::new(&["allow@host"]).start();
    let stream = guest.connect(SocketAddr::from((addresses::GATEWAY6, port)));
    guest.send(stream, b"hello");
    assert_eq!(guest.receive(stream, 5), b"hello");
    guest.end();
}

#[test]
fn a_refused_stream_is_reset_at_once() {
    let port = echo();
    let mut guest = Setup::new(&["allow@public"]).start();
    for to in [host(port), "10.0.0.1:80".parse().unwrap(), "169.254.169.254:80".parse().unwrap()] {
        let stream = guest.dial(to);
        guest.until_closed(stream);
        let verdict = guest.verdict(|verdict| verdict.address == Some(to.ip()));
        assert_eq!((verdict.decision, verdict.rule.as_str()), (Decision::Deny, "default"));
    }
    guest.end();
}

#[test]
fn a_refused_connect_is_reset_for_the_guest() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut guest = Setup::new(&["allow@host"]).start();
    let stream = guest.dial(host(closed));
    guest.until_closed(stream);
    let verdict = guest.verdict(|verdict| verdict.kind == FlowKind::Tcp);
    assert_eq!(verdict.decision, Decision::Allow);
    guest.end();
}

#[test]
fn half_a_stream_may_be_closed_by_either_end() {
    // Reads all of it first, then answers: the guest closes its side and still receives.
    let slow = server(|mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        stream.write_all(&all).unwrap();
    });
    // Closes its side first, then reads.
    let (heard, hears) = mpsc::channel();
    let early = server(move |mut stream| {
        stream.write_all(b"bye").unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        heard.send(all).unwrap();
    });
    let mut guest = Setup::new(&["allow@host"]).start();
    let stream = guest.connect(host(slow));
    guest.send(stream, b"all of it");
    guest.tcp(stream).close();
    assert_eq!(guest.receive_all(stream), b"all of it");
    let stream = guest.connect(host(early));
    assert_eq!(guest.receive_all(stream), b"bye");
    guest.send(stream, b"still here");
    guest.tcp(stream).close();
    guest.until_closed(stream);
    assert_eq!(hears.recv().unwrap(), b"still here");
    guest.until("no flow", |guest| guest.table().flows.is_empty());
    guest.end();
}

#[test]
fn a_reset_goes_through_in_both_directions() {
    let breaks = server(|mut stream| {
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).unwrap();
        let linger = Some(std::time::Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
    });
    let (heard, hears) = mpsc::channel();
    let broken = server(move |mut stream| {
        let mut byte = [0; 1];
        stream.read_exact(&mut byte).unwrap();
        let error = stream.read_exact(&mut byte).unwrap_err();
        heard.send(error.kind()).unwrap();
    });
    let mut guest = Setup::new(&["allow@host"]).start();
    let stream = guest.connect(host(breaks));
    guest.send(stream, b"x");
    guest.until_closed(stream);
    let stream = guest.connect(host(broken));
    guest.send(stream, b"x");
    guest.until("the byte has left", |guest| guest.tcp(stream).send_queue() == 0);
    guest.tcp(stream).abort();
    guest.until_closed(stream);
    guest.until("no flow", |guest| guest.table().flows.is_empty());
    assert_eq!(hears.recv().unwrap(), std::io::ErrorKind::ConnectionReset);
    guest.end();
}

#[test]
fn large_transfers_arrive_complete_in_both_directions() {
    let pattern = |length: usize| -> Vec<u8> { (0..length).map(|n| (n * 7 / 3) as u8).collect() };
    let (heard, hears) = mpsc::channel();
    let sink = server(move |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        heard.send(all).unwrap();
    });
    let source = server(move |mut stream| stream.write_all(&pattern(8 << 20)).unwrap());
    let mut guest = Setup::new(&["allow@host"]).start();
    let stream = guest.connect(host(sink));
    guest.send(stream, &pattern(8 << 20));
    guest.tcp(stream).close();
    guest.until_closed(stream);
    assert!(hears.recv().unwrap() == pattern(8 << 20));
    let stream = guest.connect(host(source));
    assert!(guest.receive_all(stream) == pattern(8 << 20));
    guest.end();
}

#[test]
fn a_slow_reader_outside_stops_the_sandbox_and_loses_nothing() {
    let (go, goes) = mpsc::channel::<()>();
    let goes = std::sync::Arc::new(std::sync::Mutex::new(goes));
    let (heard, hears) = mpsc::channel();
    let sink = server(move |mut stream| {
        goes.lock().unwrap().recv().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        heard.send(all.len()).unwrap();
    });
    let mut guest = Setup::new(&["allow@host"]).start();
    let stream = guest.connect(host(sink));
    let mut sent = 0;
    // Until every buffer on the way is full.
    let mut full = 0;
    guest.until("buffers to fill", |guest| {
        let n = guest.tcp(stream).send_slice(&[7; 65536]).unwrap();
        sent += n;
        full = if n == 0 { full + 1 } else { 0 };
        full > 200
    });
    guest.tcp(stream).close();
    go.send(()).unwrap();
    guest.until_closed(stream);
    assert_eq!(hears.recv().unwrap(), sent);
    guest.end();
}

#[test]
fn thousands_of_short_streams_leave_nothing_behind() {
    // In a separate process, because the memory of other tests would count.
    if !std::env::args().any(|argument| argument == "--exact") {
        let own = "streams::thousands_of_short_streams_leave_nothing_behind";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", own]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let port = server(|mut stream| {
        let mut byte = [0; 1];
        let _ = stream.read_exact(&mut byte);
        let _ = stream.write_all(&byte);
    });
    let mut guest = Setup::new(&["allow@host"]).start();
    let handle = guest.connect(host(port));
    let mut resident = 0;
    for round in 0..5000 {
        if round > 0 {
            let local = guest.port();
            guest.redial(handle, host(port), local);
        }
        guest.send(handle, b"x");
        assert_eq!(guest.receive(handle, 1), b"x");
        guest.tcp(handle).close();
        guest.until("the end", |guest| !guest.tcp(handle).is_open());
        if round == 1000 {
            resident = memory();
        }
    }
    let grown = memory().saturating_sub(resident);
    assert!(grown < 8 << 20, "grew by {grown} bytes");
    guest.until("no flow", |guest| guest.table().flows.is_empty());
    let skipped = guest.events.iter().any(|event| matches!(event, NetEvent::Skipped { .. }));
    assert!(skipped, "so many events are folded");
    guest.end();
}

fn memory() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn no_more_streams_than_allowed() {
    let port = echo();
    let mut setup = Setup::new(&["allow@host"]);
    setup.network.max_connections = 2;
    let mut guest = setup.start();
    let first = guest.connect(host(port));
    guest.connect(host(port));
    let third = guest.dial(host(port));
    guest.until_closed(third);
    let verdict = guest.verdict(|verdict| verdict.decision == Decision::Deny);
    assert_eq!(verdict.rule, "--net-max-connections");
    guest.tcp(first).close();
    guest.until_closed(first);
    guest.until("room", |guest| guest.table().flows.len() == 1);
    guest.connect(host(port));
    guest.end();
}

#[test]
fn a_rate_slows_and_loses_nothing() {
    let (heard, hears) = mpsc::channel();
    let sink = server(move |mut stream| {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        heard.send(all.len()).unwrap();
    });
    let mut setup = Setup::new(&["allow@host"]);
    setup.network.egress_rate = Some(2 << 20);
    let mut guest = setup.start();
    let stream = guest.connect(host(sink));
    guest.send(stream, &vec![1; 1 << 20]);
    guest.tcp(stream).close();
    guest.until_closed(stream);
    assert_eq!(hears.recv().unwrap(), 1 << 20);
    guest.end();
}

#[test]
fn egress_goes_through_the_proxy_of_the_host() {
    let (heard, hears) = mpsc::channel();
    let proxy = server(move |mut stream| {
        let mut head = Vec::new();
        let mut byte = [0; 1];
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let refused = head.starts_with("CONNECT 203.0.113.66:");
        heard.send(head).unwrap();
        // Its reply and the first bytes of the server in one write.
        let answer = if refused { "HTTP/1.1 403 No\r\n\r\n" } else { "HTTP/1.1 200 OK\r\n\r\nhi" };
        stream.write_all(answer.as_bytes()).unwrap();
        crate::servers::echo_on(stream);
    });
    let mut setup = Setup::new(&["allow@public", "allow@host"]);
    let url = format!("http://user:secret@127.0.0.1:{proxy}");
    setup.proxy = Some(msb_gateway::HttpProxy::parse(&url, "").unwrap());
    let mut guest = setup.start();
    let stream = guest.connect("203.0.113.7:8443".parse().unwrap());
    let head = hears.recv().unwrap();
    assert!(head.starts_with("CONNECT 203.0.113.7:8443 HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("Proxy-Authorization: Basic dXNlcjpzZWNyZXQ="), "{head}");
    assert_eq!(guest.receive(stream, 2), b"hi");
    guest.send(stream, b"hello");
    assert_eq!(guest.receive(stream, 5), b"hello");
    let refused = guest.dial("203.0.113.66:443".parse().unwrap());
    guest.until_closed(refused);
    // The host itself is reached without the proxy.
    let port = echo();
    let direct = guest.connect(host(port));
    guest.send(direct, b"near");
    assert_eq!(guest.receive(direct, 4), b"near");
    guest.end();
}

#[test]
fn random_segments_do_not_break_other_flows() {
    let port = echo();
    let mut guest = Setup::new(&["allow@host"]).start();
    let stream = guest.connect(host(port));
    let mut seed = 3u64;
    let mut random = || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as u32
    };
    for round in 0..20_000u32 {
        // Segments with random flags and sequence numbers, of flows that were just opened.
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 6, 0, 0];
        packet.extend_from_slice(&addresses::GUEST.octets());
        packet.extend_from_slice(&addresses::GATEWAY.octets());
        packet.extend_from_slice(&((1000 + round / 20 % 50) as u16).to_be_bytes());
        packet.extend_from_slice(&port.to_be_bytes());
        let near = random() % 4 != 0;
        let number = if near { random() % 64 } else { random() };
        packet.extend_from_slice(&number.to_be_bytes());
        packet.extend_from_slice(&random().to_be_bytes());
        let words = 5 + random() % 4;
        packet.push((words as u8) << 4);
        packet.push(if round % 20 == 0 { 2 } else { random() as u8 });
        packet.extend_from_slice(&random().to_be_bytes());
        packet.extend_from_slice(&[0; 2]);
        for _ in 0..(words as usize - 5) * 4 + random() as usize % 100 {
            packet.push(random() as u8 % 9);
        }
        let length = packet.len() as u16;
        packet[2..4].copy_from_slice(&length.to_be_bytes());
        guest.inject(&packet);
        if round % 64 == 0 {
            guest.until("a pause", |_| true);
        }
    }
    guest.send(stream, b"still");
    assert_eq!(guest.receive(stream, 5), b"still");
    guest.end();
}
