//! Properties that hold for any bytes of a client; see `crates/gateway/fuzz`.

use super::http1_framing::RequestFraming;
use super::path_views::PathViews;
use super::request::{self, OriginServer};
use crate::SecretValue;
use crate::secrets::message_end::MessageEnd;
use crate::secrets::patterns::StreamSearch;
use crate::secrets::scrub::{Scrubber, scrub_headers};
use crate::secrets::substitution::{SecretSet, UsedSecrets};
use crate::secrets::value_search::ValueSearch;
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

/// Splits the bytes into requests, in two chunk sizes, and checks each.
pub(crate) fn requests(bytes: &[u8]) {
    let whole = split(bytes, bytes.len().max(1));
    assert_eq!(split(bytes, 7), whole, "cut differently");
    let mut rest = &whole.0[..];
    while let Some(end) = rest.windows(4).position(|four| four == b"\r\n\r\n") {
        if let Some(head) = parsed(&rest[..end]) {
            check_request(&head, &rest[end..]);
        }
        rest = &rest[end + 4..];
    }
}

/// The forwarded bytes, and whether all input was accepted.
fn split(bytes: &[u8], size: usize) -> (Vec<u8>, bool) {
    let mut framing = RequestFraming::default();
    let mut out = Vec::new();
    for piece in bytes.chunks(size) {
        let mut rest = piece;
        while !rest.is_empty() {
            match framing.take(rest, &mut out) {
                Err(_) => return (out, false),
                Ok(taken) => rest = &rest[taken..],
            }
            framing.websocket_answered(false);
        }
    }
    assert!(out.len() <= bytes.len(), "more comes out than goes in");
    (out, true)
}

fn parsed(head: &[u8]) -> Option<Parts> {
    let mut lines = head.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let mut words = lines.next()?.split(|byte| *byte == b' ');
    let mut request = Request::builder().method(words.next()?).uri(words.next()?);
    for upstream in lines {
        let colon = upstream.iter().position(|byte| *byte == b':')?;
        request = request.header(&upstream[..colon], upstream[colon + 1..].trim_ascii());
    }
    Some(request.body(()).ok()?.into_parts().0)
}

fn check_request(head: &Parts, body: &[u8]) {
    let name = |text: &str| DomainName::parse(text).expect("a name");
    let rule = |text: &str| Rule::parse(text).expect("a rule");
    let address = ([192, 0, 2, 1], 443).into();
    let origin = OriginServer { name: name(NAME), address, tls: true, is_host: false };
    let _ = request::check(head, &origin);
    let policy = Policy {
        rules: vec![rule("deny@api.example:http:*:/admin"), rule("allow@api.example:http:*:/")],
        default: Decision::Deny,
    };
    let decided = request::decide(&policy, &origin, head);
    if let (Some(views), Decision::Allow) = (PathViews::of(head.uri.path()), decided.action) {
        assert!(!views.any_starts_with("/admin"), "{:?}", head.uri);
    }
    check_substitution(head, body, &origin);
}

fn check_substitution(head: &Parts, body: &[u8], origin: &OriginServer) {
    let mut secret = Secret {
        name: "KEY".to_owned(),
        source: SecretSource::Given,
        hosts: vec![NamePattern::Exactly(origin.name.clone())],
        places: [SecretPlace::Body, SecretPlace::Query].into(),
        require: false,
    };
    for for_this_host in [true, false] {
        if !for_this_host {
            secret.hosts = vec![NamePattern::Below(origin.name.clone())];
        }
        let planned = PlannedSecret { secret: secret.clone(), placeholder: PLACEHOLDER.to_owned() };
        let value = SecretValue::new(VALUE.to_vec());
        let secrets = Arc::new(SecretSet::new(vec![(planned, value)])).for_host(&origin.name, true);
        let (mut head, mut used) = (head.clone(), UsedSecrets::new());
        let already_there = contains(head.uri.to_string().as_bytes(), VALUE)
            || head.headers.values().any(|value| contains(value.as_bytes(), VALUE));
        if already_there || secrets.substitute(&mut head, &mut used).is_err() {
            continue;
        }
        let path = head.uri.path().as_bytes();
        assert!(!contains(path, VALUE) && !contains(path, PLACEHOLDER.as_bytes()), "in the path");
        for (name, value) in &head.headers {
            let usual = ["authorization", "x-api-key", "api-key", "x-goog-api-key"];
            let allowed = for_this_host && usual.contains(&name.as_str());
            assert!(allowed || !contains(value.as_bytes(), VALUE), "in the header {name}");
            assert!(!contains(value.as_bytes(), PLACEHOLDER.as_bytes()), "left in {name}");
        }
        scrub_headers(secrets.values(), &mut head.headers);
        let left = head.headers.values().any(|value| contains(value.as_bytes(), VALUE));
        assert!(!for_this_host || !left, "not scrubbed");
        let substituted = secrets.substitute_body(&head.headers, body, &mut used);
        if let (true, Ok(Some(body))) = (for_this_host, substituted) {
            check_scrubbed(secrets.values(), &body);
        }
        assert!(for_this_host || used.is_empty(), "put in for another host");
        let mut search = StreamSearch::default();
        let found = body.chunks(5).any(|piece| secrets.search(&mut search, piece).is_some());
        assert!(found || !contains(body, PLACEHOLDER.as_bytes()), "not found in the body");
    }
}

/// In any chunk size the value is masked and the length is kept.
fn check_scrubbed(values: &Arc<ValueSearch>, body: &[u8]) {
    for size in [1, 6, body.len().max(1)] {
        let messages = MessageEnd::of_body(&HeaderMap::new(), values);
        let mut scrubber = Scrubber::new(Arc::clone(values), messages);
        let mut out = Vec::new();
        for piece in body.chunks(size) {
            out.extend_from_slice(&scrubber.push(piece));
        }
        out.extend_from_slice(&scrubber.release());
        assert_eq!(out.len(), body.len(), "another length");
        assert!(!contains(&out, VALUE), "not scrubbed");
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
