//! Checks a request before it is forwarded: the host that it names, and what the rules decide.
//!
//! It does no I/O: a request head in, a decision out.

use super::path_views::PathViews;
use crate::policy::address_class::AddressClass;
use crate::policy::evaluator::{FlowProtocol, PolicyDecision, RequestLine, RuleQuery, evaluate};
use hyper::header::{HOST, HeaderMap};
use hyper::http::request::Parts;
use hyper::http::{Method, Version};
use hyper::{Request, StatusCode};
use msb_spec::{DomainName, Policy};
use std::net::SocketAddr;

/// The server of a flow, decided before any request was read.
#[derive(Debug, Clone)]
pub(crate) struct OriginServer {
    pub(crate) name: DomainName,
    pub(crate) address: SocketAddr,
    pub(crate) tls: bool,
    /// Whether the address belongs to the host itself.
    pub(crate) is_host: bool,
}

/// A request that is refused before rules are applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidRequest {
    pub(crate) status: StatusCode,
    /// The reason, as it is recorded and shown.
    pub(crate) why: &'static str,
}

/// Checks that a request names the host that its flow is for.
pub(crate) fn check(head: &Parts, origin: &OriginServer) -> Result<(), InvalidRequest> {
    let invalid = |status, why| Err(InvalidRequest { status, why });
    if head.method == Method::CONNECT {
        return invalid(StatusCode::FORBIDDEN, "CONNECT inside an intercepted connection");
    }
    // Its response is the request itself, with all values that were substituted.
    if ["TRACE", "TRACK"].iter().any(|method| head.method.as_str().eq_ignore_ascii_case(method)) {
        return invalid(StatusCode::METHOD_NOT_ALLOWED, "a TRACE request");
    }
    let mut named = false;
    if let Some(authority) = head.uri.authority() {
        named = true;
        if !names_origin(authority.as_str(), origin) {
            return invalid(StatusCode::MISDIRECTED_REQUEST, "a request for another host");
        }
        let scheme = if origin.tls { "https" } else { "http" };
        if head.uri.scheme_str() != Some(scheme) {
            return invalid(StatusCode::MISDIRECTED_REQUEST, "a request for another scheme");
        }
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    if let Some(host) = hosts.next() {
        named = true;
        if !host.to_str().is_ok_and(|host| names_origin(host, origin)) {
            return invalid(StatusCode::MISDIRECTED_REQUEST, "a request for another host");
        }
    } else if head.version < Version::HTTP_2 {
        return invalid(StatusCode::BAD_REQUEST, "a request without a host");
    }
    match (named, hosts.next()) {
        (true, None) => Ok(()),
        (false, _) => invalid(StatusCode::BAD_REQUEST, "a request without a host"),
        (_, Some(_)) => invalid(StatusCode::BAD_REQUEST, "a request with two hosts"),
    }
}

/// Whether `NAME` or `NAME:PORT` is this server.
fn names_origin(authority: &str, origin: &OriginServer) -> bool {
    let (name, port) = match authority.split_once(':') {
        Some((name, port)) => (name, port.parse().ok()),
        None => (authority, Some(origin.address.port())),
    };
    let name = DomainName::parse(name);
    name.is_ok_and(|name| name == origin.name) && port == Some(origin.address.port())
}

/// Decides a request. Headers that override the method or the path count as much as the request
/// line: every combination has to be allowed.
pub(crate) fn decide(policy: &Policy, origin: &OriginServer, head: &Parts) -> PolicyDecision {
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
        let Some(views) = PathViews::of(path) else {
            return PolicyDecision::refused("a path with too many levels of percent-encoding");
        };
        for method in &methods {
            let decided = decide_one(policy, origin, RequestLine { method, path: &views });
            if !decided.allows() {
                return decided;
            }
            last.get_or_insert(decided);
        }
    }
    last.expect("a request has a path and a method")
}

/// Decides one reading of a request by the rules that decided its flow.
fn decide_one(policy: &Policy, origin: &OriginServer, request: RequestLine<'_>) -> PolicyDecision {
    let Some(class) = AddressClass::of(origin.address.ip(), |_| origin.is_host) else {
        return PolicyDecision::refused("unroutable address");
    };
    let flow = FlowProtocol::Tcp(origin.address.port());
    let names = std::slice::from_ref(&origin.name);
    evaluate(policy, &class, &RuleQuery { flow, names, request: Some(request) }).decision()
}

/// Whether the client requests a WebSocket, the only protocol that may follow HTTP. Others, such as
/// HTTP/2 without TLS, could not be inspected.
pub(crate) fn wants_websocket<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && lists(headers, "connection", "upgrade")
        && headers.get_all("upgrade").iter().count() == 1
        && lists(headers, "upgrade", "websocket")
}

/// Whether a comma-separated header contains `word`.
fn lists(headers: &HeaderMap, name: &str, word: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(word))
}

/// Removes hop-by-hop headers (RFC 9110, section 7.6.1).
pub(crate) fn drop_hop_headers(headers: &mut HeaderMap) {
    let listed: Vec<String> = headers
        .get_all("connection")
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    for name in &listed {
        // Listing `host` or `content-length` here would make the server interpret the request
        // differently.
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
    // Only `trailers` may be forwarded; gRPC servers require it.
    let trailers = headers.get("te").is_some_and(|te| te == "trailers");
    if !trailers {
        headers.remove("te");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::{Decision, Rule};

    fn origin(address: &str, is_host: bool) -> OriginServer {
        let name = DomainName::parse("api.example").unwrap();
        OriginServer { name, address: address.parse().unwrap(), tls: true, is_host }
    }

    fn head(method: &str, uri: &str) -> Parts {
        let request = Request::builder().method(method).uri(uri).header(HOST, "api.example");
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        use Decision::{Allow, Deny};
        let public = origin("192.0.2.1:443", false);
        for (rules, origin, method, path, decision, by) in [
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
            // An address of the host is reached only by rules for the host.
            (&["allow@private", "deny@any"], &origin("10.0.0.1:443", true), "GET", "/", Deny, 1),
            (&["allow@private", "deny@any"], &origin("10.0.0.1:443", false), "GET", "/", Allow, 0),
            (&["deny@private", "allow@host"], &origin("10.0.0.1:443", true), "GET", "/", Deny, 0),
            (&["allow@host", "deny@any"], &origin("10.0.0.1:443", true), "GET", "/", Allow, 0),
            // DNS over TLS is not covered by a rule for everything.
            (&["allow@any", "deny@any:tcp"], &origin("192.0.2.1:853", false), "GET", "/", Deny, 1),
        ] {
            let policy = Policy {
                rules: rules.iter().map(|rule| Rule::parse(rule).unwrap()).collect(),
                default: Deny,
            };
            let decided = decide(&policy, origin, &head(method, path));
            let rule = Rule::parse(rules[by]).unwrap().to_string();
            assert_eq!(
                (decided.action, decided.rule),
                (decision, rule),
                "{rules:?} {method} {path}"
            );
        }
        for default in [Allow, Deny] {
            let policy = Policy { rules: Vec::new(), default };
            let rule = "default".to_owned();
            let decided = decide(&policy, &public, &head("GET", "/"));
            assert_eq!((decided.action, decided.rule), (default, rule));
        }
    }

    #[test]
    fn a_path_with_endless_encoding_is_refused() {
        let policy = Policy { rules: Vec::new(), default: Decision::Allow };
        let head = head("GET", "/%25252525252e");
        let decided = decide(&policy, &origin("192.0.2.1:443", false), &head);
        assert_eq!(decided.action, Decision::Deny);
    }

    #[test]
    fn hop_by_hop_headers_are_dropped() {
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
