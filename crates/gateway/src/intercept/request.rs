//! What is asked of a request before it goes on: whom it is for, and what the rules say.
//!
//! Pure: a head in, a decision out.

use super::path::Views;
use crate::place::Place;
use hyper::header::{HOST, HeaderMap};
use hyper::http::request::Parts;
use hyper::http::{Method, Version};
use hyper::{Request, StatusCode};
use msb_spec::{Decision, Direction, DomainName, Policy, Rule, Target, Traffic};
use std::net::SocketAddr;

/// Whom a flow is with, decided before anything was read.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) name: DomainName,
    pub(crate) address: SocketAddr,
    pub(crate) tls: bool,
    /// Whether the address is one of the host's own.
    pub(crate) is_host: bool,
}

/// A request that no rule is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) status: StatusCode,
    /// Why, as it is recorded and told.
    pub(crate) why: &'static str,
}

/// Checks that a request is for the name that its flow is for.
pub(crate) fn check(head: &Parts, peer: &Peer) -> Result<(), Wrong> {
    let wrong = |status, why| Err(Wrong { status, why });
    if head.method == Method::CONNECT {
        return wrong(StatusCode::FORBIDDEN, "CONNECT inside of an intercepted connection");
    }
    // The answer to it is the request, with all that was put in on the way.
    if ["TRACE", "TRACK"].iter().any(|method| head.method.as_str().eq_ignore_ascii_case(method)) {
        return wrong(StatusCode::METHOD_NOT_ALLOWED, "a request to be shown itself");
    }
    let mut named = false;
    if let Some(authority) = head.uri.authority() {
        named = true;
        if !is_for(authority.as_str(), peer) {
            return wrong(StatusCode::MISDIRECTED_REQUEST, "a request for another host");
        }
        let scheme = if peer.tls { "https" } else { "http" };
        if head.uri.scheme_str() != Some(scheme) {
            return wrong(StatusCode::MISDIRECTED_REQUEST, "a request for another scheme");
        }
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    if let Some(host) = hosts.next() {
        named = true;
        if !host.to_str().is_ok_and(|host| is_for(host, peer)) {
            return wrong(StatusCode::MISDIRECTED_REQUEST, "a request for another host");
        }
    } else if head.version < Version::HTTP_2 {
        return wrong(StatusCode::BAD_REQUEST, "a request without a host");
    }
    match (named, hosts.next()) {
        (true, None) => Ok(()),
        (false, _) => wrong(StatusCode::BAD_REQUEST, "a request without a host"),
        (_, Some(_)) => wrong(StatusCode::BAD_REQUEST, "a request with two hosts"),
    }
}

/// Whether `NAME` or `NAME:PORT` is the peer.
fn is_for(authority: &str, peer: &Peer) -> bool {
    let (name, port) = match authority.split_once(':') {
        Some((name, port)) => (name, port.parse().ok()),
        None => (authority, Some(peer.address.port())),
    };
    let name = DomainName::parse(name);
    name.is_ok_and(|name| name == peer.name) && port == Some(peer.address.port())
}

/// What was decided, and by which rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decided {
    pub(crate) decision: Decision,
    pub(crate) rule: String,
}

/// Decides a request. Headers by which servers let a client ask for another method or path count
/// as much as the request line: all that is asked for has to be allowed.
pub(crate) fn decide(policy: &Policy, peer: &Peer, head: &Parts) -> Decided {
    let texts = |names: &'static [&'static str]| {
        let all = names.iter().flat_map(|name| head.headers.get_all(*name));
        all.map(|value| String::from_utf8_lossy(value.as_bytes()).trim().to_owned())
    };
    let paths: Vec<String> = std::iter::once(head.uri.path().to_owned())
        .chain(texts(&["x-original-url", "x-rewrite-url"]))
        .collect();
    let methods: Vec<String> = std::iter::once(head.method.as_str().to_owned())
        .chain(texts(&["x-http-method-override", "x-http-method", "x-method-override"]))
        .collect();
    let mut last = None;
    for path in &paths {
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let Some(views) = Views::of(path) else {
            let rule = "a path that is encoded again and again".to_owned();
            return Decided { decision: Decision::Deny, rule };
        };
        for method in &methods {
            let decided = decide_one(policy, peer, method, &views);
            if decided.decision == Decision::Deny {
                return decided;
            }
            last.get_or_insert(decided);
        }
    }
    let default = || Decided { decision: policy.default, rule: "default".to_owned() };
    last.unwrap_or_else(default)
}

fn decide_one(policy: &Policy, peer: &Peer, method: &str, path: &Views) -> Decided {
    let rule = policy.rules.iter().find(|rule| {
        rule.direction == Direction::Egress
            && is_about(rule, peer)
            && is_meant(rule, peer.address.port(), method, path)
    });
    match rule {
        Some(rule) => Decided { decision: rule.decision, rule: rule.to_string() },
        None => Decided { decision: policy.default, rule: "default".to_owned() },
    }
}

fn is_about(rule: &Rule, peer: &Peer) -> bool {
    let address = peer.address.ip();
    match &rule.target {
        Target::Name(pattern) => pattern.matches(&peer.name),
        target => Place::of(address, |_| peer.is_host)
            .is_some_and(|place| place.is_covered(target, rule.decision)),
    }
}

fn is_meant(rule: &Rule, port: u16, method: &str, path: &Views) -> bool {
    match &rule.traffic {
        Traffic::Any => port != 53 && port != 853,
        Traffic::Tcp(ports) => ports.contains(port),
        Traffic::Udp(_) | Traffic::Icmp => false,
        Traffic::Http { methods, path: prefix } => match rule.decision {
            Decision::Allow => {
                let method = methods.is_empty() || methods.iter().any(|own| own == method);
                method && path.all_begin_with(prefix)
            }
            Decision::Deny => {
                let same = |own: &String| own.eq_ignore_ascii_case(method);
                (methods.is_empty() || methods.iter().any(same)) && path.some_begin_with(prefix)
            }
        },
    }
}

/// Whether the client wants to speak WebSocket after this request, the only thing that may follow
/// HTTP: anything else (such as HTTP/2 without TLS) would not be looked into.
pub(crate) fn wants_websocket<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && lists(headers, "connection", "upgrade")
        && headers.get_all("upgrade").iter().count() == 1
        && lists(headers, "upgrade", "websocket")
}

/// Whether a header that is a list holds `word`.
fn lists(headers: &HeaderMap, name: &str, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// Takes out what is between the client and us only, RFC 9110 section 7.6.1.
pub(crate) fn drop_hop_headers(headers: &mut HeaderMap) {
    let listed: Vec<String> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    for name in &listed {
        // Somebody who lists `host` or `content-length` wants the next one to read it otherwise.
        if !matches!(name.as_str(), "host" | "content-length" | "authorization" | "te") {
            headers.remove(name.as_str());
        }
    }
    for name in [
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "proxy-authenticate",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    ] {
        headers.remove(name);
    }
    // Only `trailers` may go on, and gRPC servers insist on it.
    let trailers = headers.get("te").is_some_and(|te| te == "trailers");
    if !trailers {
        headers.remove("te");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(address: &str, is_host: bool) -> Peer {
        let name = DomainName::parse("api.example").unwrap();
        Peer { name, address: address.parse().unwrap(), tls: true, is_host }
    }

    fn head(method: &str, uri: &str) -> Parts {
        let request = Request::builder().method(method).uri(uri).header(HOST, "api.example");
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        use Decision::{Allow, Deny};
        let public = peer("192.0.2.1:443", false);
        for (rules, peer, method, path, decision, by) in [
            (&["deny@public", "allow@any"][..], &public, "GET", "/", Deny, 0),
            (&["deny@private", "allow@public"], &public, "GET", "/", Allow, 1),
            (&["deny@192.0.2.0/24", "allow@any"], &public, "GET", "/", Deny, 0),
            (&["deny:ingress@any", "allow@any"], &public, "GET", "/", Allow, 1),
            (&["deny@any:udp", "deny@any:icmp", "allow@any"], &public, "GET", "/", Allow, 2),
            (&["deny@any:tcp:80", "allow@any:tcp:443"], &public, "GET", "/", Allow, 1),
            (&["deny@*.example", "allow@any"], &public, "GET", "/", Deny, 0),
            (&["deny@*.api.example", "allow@any"], &public, "GET", "/", Allow, 1),
            (&["allow@api.example:http:GET:/v1", "deny@any"], &public, "GET", "/v1", Allow, 0),
            (&["allow@api.example:http:GET:/v1", "deny@any"], &public, "get", "/v1", Deny, 1),
            (&["deny@api.example:http:GET:/v1", "allow@any"], &public, "get", "/v1", Deny, 0),
            (&["allow@api.example:http:GET:/v1", "deny@any"], &public, "HEAD", "/v1", Deny, 1),
            (&["allow@other.example:http", "deny@any"], &public, "GET", "/", Deny, 1),
            // An address of the host is only reached by who may reach the host.
            (&["allow@private", "deny@any"], &peer("10.0.0.1:443", true), "GET", "/", Deny, 1),
            (&["allow@private", "deny@any"], &peer("10.0.0.1:443", false), "GET", "/", Allow, 0),
            (&["deny@private", "allow@host"], &peer("10.0.0.1:443", true), "GET", "/", Deny, 0),
            (&["allow@host", "deny@any"], &peer("10.0.0.1:443", true), "GET", "/", Allow, 0),
            // What hides whom it is for is not meant by a rule for everything.
            (&["allow@any", "deny@any:tcp"], &peer("192.0.2.1:853", false), "GET", "/", Deny, 1),
        ] {
            let policy = Policy {
                rules: rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect(),
                default: Deny,
            };
            let decided = decide(&policy, peer, &head(method, path));
            let rule = Rule::parse(rules[by]).unwrap().to_string();
            assert_eq!(decided, Decided { decision, rule }, "{rules:?} {method} {path}");
        }
        for default in [Allow, Deny] {
            let policy = Policy { rules: Vec::new(), default };
            let rule = "default".to_owned();
            let decided = decide(&policy, &public, &head("GET", "/"));
            assert_eq!(decided, Decided { decision: default, rule });
        }
    }

    #[test]
    fn a_path_without_end_is_refused() {
        let policy = Policy { rules: Vec::new(), default: Decision::Allow };
        let head = head("GET", "/%25252525252e");
        let decided = decide(&policy, &peer("192.0.2.1:443", false), &head);
        assert_eq!(decided.decision, Decision::Deny);
    }

    #[test]
    fn headers_between_two_stay_between_two() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Listed, Host, te"),
            ("x-listed", "a"),
            ("keep-alive", "a"),
            ("transfer-encoding", "chunked"),
            ("host", "api.example"),
            ("te", "trailers"),
            ("x-other", "a"),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        drop_hop_headers(&mut headers);
        let mut names: Vec<_> = headers.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["host", "te", "x-other"]);
    }
}
