//! Two sandboxes of one named network, and one outside.

use crate::dns::resolve;
use crate::guest::{Guest, Setup};
use msb_spec::{Decision, Direction, addresses};
use simple_dns::RCODE;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// A directory that is removed after the test. There is one network in this process, because a
/// gateway finds its sockets relative to the working directory.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("msb-joined-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Polls both guests until `is` returns true.
fn until(
    one: &mut Guest,
    other: &mut Guest,
    what: &str,
    is: impl Fn(&mut Guest, &mut Guest) -> bool,
) {
    one.until(what, |one| {
        other.step();
        is(one, other)
    });
}

#[test]
fn joined_sandboxes_reach_each_other_by_name() {
    let directory = TempDir::new();
    let mut web = Setup::new(&[]).join(&directory.0, "web").start();
    let mut client = Setup::new(&["deny@closed.example"]).join(&directory.0, "Client").start();
    let mut outsider = Setup::new(&["allow@private"]).start();

    let (code, found) = resolve(&mut client, "web");
    assert_eq!((code, found.len()), (RCODE::NoError, 1));
    let address: Ipv4Addr = found[0];
    assert_eq!(resolve(&mut client, "web.msb.internal").1, [address]);
    assert_eq!(resolve(&mut client, "client").1, [addresses::GUEST]);
    assert_eq!(resolve(&mut client, "nobody").0, RCODE::NameError);
    assert_ne!(resolve(&mut outsider, "web").0, RCODE::NoError);
    let refused = outsider.dial(SocketAddr::from((address, 80)));
    outsider.until_closed(refused);

    let server = web.listen(80);
    let stream = client.dial(SocketAddr::from((address, 80)));
    until(&mut client, &mut web, "a stream", |client, web| {
        client.tcp(stream).may_send() && web.tcp(server).may_send()
    });
    client.send(stream, b"hello");
    assert_eq!(web.receive(server, 5), b"hello");
    let large = vec![5; 1 << 20];
    let (mut sent, mut came) = (0, 0);
    client.until("much to arrive", |client| {
        if sent < large.len() {
            sent += client.tcp(stream).send_slice(&large[sent..]).unwrap();
        }
        web.step();
        let mut buffer = [0; 65536];
        came += web.tcp(server).recv_slice(&mut buffer).unwrap();
        came == large.len()
    });
    web.tcp(server).close();
    client.tcp(stream).close();
    until(&mut client, &mut web, "the end", |client, web| {
        !client.tcp(stream).is_active() && !web.tcp(server).is_active()
    });
    let verdict = web.verdict(|verdict| verdict.direction == Direction::Ingress);
    assert_eq!(verdict.name.unwrap().as_str(), "client");
    let verdict = client.verdict(|verdict| verdict.port == Some(80));
    assert_eq!((verdict.decision, verdict.rule.as_str()), (Decision::Allow, "--join"));

    // No process listens there: the connection is refused, as by any host.
    let closed = client.dial(SocketAddr::from((address, 81)));
    until(&mut client, &mut web, "a refusal", |client, _| !client.tcp(closed).is_active());

    let (ours, theirs) = (client.add_udp(), web.add_udp());
    web.udp_socket(theirs).close();
    web.udp_socket(theirs).bind(53).unwrap();
    client.udp_socket(ours).send_slice(b"ping", SocketAddr::from((address, 53))).unwrap();
    client.until("a datagram and its answer", |client| {
        web.step();
        if let Ok((body, meta)) = web.udp_socket(theirs).recv() {
            assert_eq!(body, b"ping");
            web.udp_socket(theirs).send_slice(b"pong", meta.endpoint).unwrap();
        }
        client.udp_socket(ours).recv().is_ok_and(|(body, _)| body == b"pong")
    });

    client.set_rules(&["deny@web"]);
    let refused = client.dial(SocketAddr::from((address, 80)));
    client.until_closed(refused);
    client.verdict(|verdict| verdict.rule == "deny@web");
    assert_eq!(web.end(), 0);
    assert_eq!(resolve(&mut client, "web").0, RCODE::NameError);
    client.end();
    outsider.end();
}
