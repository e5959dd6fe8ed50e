//! What is promised of any bytes that a client may send; see `crates/gateway/fuzz`.

use super::head::Framing;
use super::message_end::MessageEnd;
use super::path::Views;
use super::patterns::Watch;
use super::request::{self, Peer};
use super::scrub::{Scrubber, scrub_headers};
use super::secrets::{Secrets, Used};
use super::value_search::ValueSearch;
use crate::SecretValue;
use hyper::Request;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use msb_spec::{
    Decision, DomainName, NamePattern, PlannedSecret, Policy, Rule, Secret, SecretPlace,
    SecretSource,
};
use std::sync::Arc;

const NAME: &str = "api.example";
const PLACEHOLDER: &str = "msb-placeholder";
const VALUE: &[u8] = b"sk-live/0123+abc";

/// Cuts the bytes into requests, in two ways, and meets each of them.
pub(crate) fn requests(bytes: &[u8]) {
    let whole = cut(bytes, bytes.len().max(1));
    assert_eq!(cut(bytes, 7), whole, "cut differently");
    let mut rest = &whole.0[..];
    while let Some(end) = rest.windows(4).position(|four| four == b"\r\n\r\n") {
        if let Some(head) = parsed(&rest[..end]) {
            meet(&head, &rest[end..]);
        }
        rest = &rest[end + 4..];
    }
}

/// What is handed on, and whether all was taken.
fn cut(bytes: &[u8], size: usize) -> (Vec<u8>, bool) {
    let mut framing = Framing::default();
    let mut out = Vec::new();
    for piece in bytes.chunks(size) {
        let mut rest = piece;
        while !rest.is_empty() {
            match framing.take(rest, &mut out) {
                Err(_) => return (out, false),
                Ok(taken) => rest = &rest[taken..],
            }
            framing.answered(false);
        }
    }
    assert!(out.len() <= bytes.len(), "more comes out than goes in");
    (out, true)
}

fn parsed(head: &[u8]) -> Option<Parts> {
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut words = lines.next()?.split(|byte| *byte == b' ');
    let mut request = Request::builder().method(words.next()?).uri(words.next()?);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        request = request.header(&line[..colon], line[colon + 1..].trim_ascii());
    }
    Some(request.body(()).ok()?.into_parts().0)
}

fn meet(head: &Parts, body: &[u8]) {
    let name = |text: &str| DomainName::parse(text).expect("a name");
    let rule = |text: &str| Rule::parse(text).expect("a rule");
    let address = ([192, 0, 2, 1], 443).into();
    let peer = Peer { name: name(NAME), address, tls: true, is_host: false };
    let _ = request::check(head, &peer);
    let policy = Policy {
        rules: vec![rule("deny@api.example:http:*:/admin"), rule("allow@api.example:http:*:/")],
        default: Decision::Deny,
    };
    let decided = request::decide(&policy, &peer, head);
    if let (Some(views), Decision::Allow) = (Views::of(head.uri.path()), decided.decision) {
        assert!(!views.some_begin_with("/admin"), "{:?}", head.uri);
    }
    replaced(head, body, &peer);
}

fn replaced(head: &Parts, body: &[u8], peer: &Peer) {
    let mut secret = Secret {
        name: "KEY".to_owned(),
        source: SecretSource::Given,
        hosts: vec![NamePattern::Exactly(peer.name.clone())],
        places: [SecretPlace::Body, SecretPlace::Query].into(),
        require: false,
    };
    for here in [true, false] {
        if !here {
            secret.hosts = vec![NamePattern::Below(peer.name.clone())];
        }
        let planned = PlannedSecret { secret: secret.clone(), placeholder: PLACEHOLDER.to_owned() };
        let value = SecretValue::new(VALUE.to_vec());
        let scope = Arc::new(Secrets::new(vec![(planned, value)])).towards(&peer.name, true);
        let (mut head, mut used) = (head.clone(), Used::new());
        let own = holds(head.uri.to_string().as_bytes(), VALUE)
            || head.headers.values().any(|value| holds(value.as_bytes(), VALUE));
        if own || scope.put_in(&mut head, &mut used).is_err() {
            continue;
        }
        let path = head.uri.path().as_bytes();
        assert!(!holds(path, VALUE) && !holds(path, PLACEHOLDER.as_bytes()), "in the path");
        for (name, value) in &head.headers {
            let usual = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
            let allowed = here && usual.contains(&name.as_str());
            assert!(allowed || !holds(value.as_bytes(), VALUE), "in the header {name}");
            assert!(!holds(value.as_bytes(), PLACEHOLDER.as_bytes()), "left in {name}");
        }
        scrub_headers(scope.values(), &mut head.headers);
        let left = head.headers.values().any(|value| holds(value.as_bytes(), VALUE));
        assert!(!here || !left, "not scrubbed");
        let put = scope.put_in_body(&head.headers, body, &mut used);
        if let (true, Ok(Some(body))) = (here, put) {
            scrubbed(scope.values(), &body);
        }
        assert!(here || used.is_empty(), "put in for another host");
        let mut watch = Watch::default();
        let found = body.chunks(5).any(|piece| scope.watched(&mut watch, piece).is_some());
        assert!(found || !holds(body, PLACEHOLDER.as_bytes()), "not found in the body");
    }
}

/// In pieces or as a whole, nothing of the value is left, and nothing else changes its place.
fn scrubbed(values: &Arc<ValueSearch>, body: &[u8]) {
    for size in [1, 6, body.len().max(1)] {
        let messages = MessageEnd::of_body(&HeaderMap::new(), values);
        let mut scrubber = Scrubber::new(Arc::clone(values), messages);
        let mut out = Vec::new();
        for piece in body.chunks(size) {
            out.extend_from_slice(&scrubber.push(piece));
        }
        out.extend_from_slice(&scrubber.release());
        assert_eq!(out.len(), body.len(), "another length");
        assert!(!holds(&out, VALUE), "not scrubbed");
    }
}

fn holds(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
