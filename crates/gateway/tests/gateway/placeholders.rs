//! Plain HTTP requests with a placeholder, to hosts that are not intercepted.

use crate::guest::{Guest, Setup};
use crate::servers::{host, listener};
use msb_spec::Decision;
use msb_wire::{FlowKind, NetEvent};
use std::net::Ipv4Addr;

/// As long as a generated placeholder.
const PLACEHOLDER: &str = "msb-secret-0123456789abcdef0123456789abcdef";

fn sandbox() -> Guest {
    Setup::new(&["allow@host"]).secret("KEY@api.example", PLACEHOLDER).start()
}

#[test]
fn a_placeholder_in_a_plain_request_to_others_is_refused_and_recorded() {
    let (port, heard) = listener(Ipv4Addr::LOCALHOST);
    let mut guest = sandbox();
    for (shown, named) in [("other.example", Some("other.example")), ("198.18.0.1", None)] {
        let stream = guest.connect(host(port));
        let head = format!("GET /{shown} HTTP/1.1\r\nHost: {shown}\r\n");
        guest.send(stream, format!("{head}Authorization: Bearer {PLACEHOLDER}\r\n\r\n").as_bytes());
        let answer = String::from_utf8(guest.receive_all(stream)).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        assert!(answer.contains("a secret that is for other hosts: `KEY`"), "{answer}");
        let refused = guest.verdict(|verdict| verdict.decision == Decision::Deny);
        assert_eq!((refused.kind, refused.port), (FlowKind::Http, Some(port)));
        assert_eq!(refused.secrets, ["KEY"]);
        assert_eq!(refused.name.as_ref().map(|name| name.as_str()), named);
        guest.tcp(stream).close();
        guest.until("the end of the flow", |guest| {
            let ended = |event: &NetEvent| matches!(event, NetEvent::Ended { flow, .. } if *flow == refused.flow);
            guest.events.iter().any(ended)
        });
        guest.events.clear();
    }
    assert!(heard.lock().unwrap().is_empty());
    guest.end();
}

#[test]
fn a_placeholder_in_a_later_request_is_refused_in_any_chunking() {
    let (port, heard) = listener(Ipv4Addr::LOCALHOST);
    let mut guest = sandbox();
    let stream = guest.connect(host(port));
    guest.send(stream, b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n");
    assert!(guest.receive(stream, 40).ends_with(b"hi"));
    let (begin, end) = PLACEHOLDER.split_at(7);
    guest.send(stream, format!("GET /?{begin}").as_bytes());
    assert!(guest.receive(stream, 40).ends_with(b"hi"));
    guest.send(stream, format!("{end} HTTP/1.1\r\nHost: other.example\r\n\r\n").as_bytes());
    let answer = String::from_utf8(guest.receive_all(stream)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    let heard = String::from_utf8(heard.lock().unwrap().clone()).unwrap();
    assert!(heard.ends_with(&format!("GET /?{begin}")), "{heard}");
    guest.end();
}

#[test]
fn a_placeholder_as_the_method_is_refused() {
    let (port, heard) = listener(Ipv4Addr::LOCALHOST);
    let mut guest = sandbox();
    let stream = guest.connect(host(port));
    let request = format!("{PLACEHOLDER} / HTTP/1.1\r\nHost: other.example\r\n\r\n");
    guest.send(stream, request.as_bytes());
    let answer = String::from_utf8(guest.receive_all(stream)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
    assert!(heard.lock().unwrap().is_empty());
    guest.end();
}

#[test]
fn other_requests_pass_as_they_are() {
    let (port, heard) = listener(Ipv4Addr::LOCALHOST);
    let mut guest = sandbox();
    let stream = guest.connect(host(port));
    // As to a proxy: the Interceptor would not forward it like this.
    let request = b"GET http://other.example/?msb-secret HTTP/1.0\r\n\r\n";
    guest.send(stream, request);
    assert!(guest.receive(stream, 40).ends_with(b"hi"));
    assert_eq!(*heard.lock().unwrap(), request);
    assert!(guest.verdicts().iter().all(|verdict| verdict.decision == Decision::Allow));
    guest.end();
}
