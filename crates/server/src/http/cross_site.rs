//! Rejects requests that a web page makes the user's browser send.
//!
//! A browser reaches loopback from any page, even from a page that a sandbox serves on a published
//! port. The `Host`, `Origin` and `Sec-Fetch-Site` headers show where a request comes from, and a
//! page cannot change them. A body needs a media type that a page may send to another origin only
//! after a preflight request, which is rejected as well.
//!
//! [`CrossSiteGuard::check`] is the only constructor of [`CheckedRequest`], and the listener
//! handles no other type of request.

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use msb_api::http::streams;
use std::net::{IpAddr, SocketAddr};

/// A request that no page of another origin can have sent.
#[derive(Debug)]
pub(super) struct CheckedRequest(Request);

impl CheckedRequest {
    pub(super) fn get(&self) -> &Request {
        &self.0
    }

    pub(super) fn into_inner(self) -> Request {
        self.0
    }
}

/// Why a request is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrossSiteError {
    /// The `Host` is neither a loopback name nor allowed: DNS rebinding.
    Host,
    /// The `Origin` is not this listener.
    Origin,
    /// `Sec-Fetch-Site` names another site.
    FetchSite,
    /// The body has a media type that this path does not accept, or none.
    MediaType,
}

impl CrossSiteError {
    /// Status, code and message of the response.
    pub(super) fn answer(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Host => (
                StatusCode::FORBIDDEN,
                "host_not_allowed",
                "this listener accepts loopback host names and those of `--allowed-host` only",
            ),
            Self::Origin => (
                StatusCode::FORBIDDEN,
                "origin_not_allowed",
                "web pages of another origin may not send requests",
            ),
            Self::FetchSite => (
                StatusCode::FORBIDDEN,
                "site_not_allowed",
                "web pages of another site may not send requests",
            ),
            Self::MediaType => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "media_type_not_allowed",
                "a body needs `Content-Type: application/json`, or `application/octet-stream` for uploads",
            ),
        }
    }
}

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const JSON: &str = "application/json";
const UPLOADS: [&str; 2] = ["application/octet-stream", "application/x-tar"];

/// The address of this listener, as browsers write it.
#[derive(Debug, Clone)]
pub(super) struct CrossSiteGuard {
    is_loopback: bool,
    /// `ADDRESS:PORT` as browsers write it; none if the listener is bound to every address.
    authority: Option<String>,
    /// Host names that clients may use besides, such as that of a reverse proxy.
    allowed: Vec<String>,
    /// Whether the listener speaks TLS.
    tls: bool,
}

impl CrossSiteGuard {
    pub(super) fn new(address: SocketAddr, allowed: &[String], tls: bool) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        // Browsers leave out the default port.
        let authority = match address.port() == if tls { 443 } else { 80 } {
            true => ip,
            false => format!("{ip}:{}", address.port()),
        };
        let authority = (!address.ip().is_unspecified()).then_some(authority);
        let allowed = allowed.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { is_loopback: address.ip().is_loopback(), authority, allowed, tls }
    }

    /// Accepts a request if no page of another origin can have sent it.
    pub(super) fn check(&self, request: Request) -> Result<CheckedRequest, CrossSiteError> {
        let headers = request.headers();
        let host = host(headers, request.uri().host());
        let is_allowed = |name: &str| {
            self.allowed.iter().any(|allowed| without_port(name).eq_ignore_ascii_case(allowed))
        };
        // A listener for other machines knows its own names only if it is told them.
        let is_named = |name: &str| {
            let literal = without_port(name).parse::<IpAddr>().is_ok();
            is_loopback(without_port(name)) || is_allowed(name) || !self.is_loopback && literal
        };
        let restricted = self.is_loopback || !self.allowed.is_empty();
        if restricted && !host.is_some_and(is_named) {
            return Err(CrossSiteError::Host);
        }
        let is_own = |name: &str| self.authority.as_deref() == Some(name);
        // `localhost` is rejected here: it may also be ::1, where another program can listen.
        let own_host =
            !self.is_loopback || host.is_some_and(|host| is_own(host) || is_allowed(host));
        let scheme = if self.tls { "https://" } else { "http://" };
        // A reverse proxy may add TLS; a page that it serves has the name and port that it asks for.
        let of_proxy = |origin: &str| {
            let named = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
            named.is_some_and(|named| {
                is_allowed(named) && host.is_some_and(|host| host.eq_ignore_ascii_case(named))
            })
        };
        let own_origin =
            |origin: &str| origin.strip_prefix(scheme).is_some_and(is_own) || of_proxy(origin);
        if !texts(headers, &header::ORIGIN).all(|it| it.is_some_and(own_origin) && own_host) {
            return Err(CrossSiteError::Origin);
        }
        let looks = matches!(*request.method(), Method::GET | Method::HEAD);
        let typed = looks && !headers.contains_key(header::UPGRADE);
        let may = |site: Option<&str>| match site {
            Some("same-origin") => own_host,
            // A URL typed by the user, or a bookmark.
            Some("none") => typed,
            _ => false,
        };
        if !texts(headers, &FETCH_SITE).all(may) {
            return Err(CrossSiteError::FetchSite);
        }
        if !request.body().is_end_stream() && !is_taken(&request) {
            return Err(CrossSiteError::MediaType);
        }
        Ok(CheckedRequest(request))
    }
}

/// All values of a header; none for a value that is not text.
fn texts<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = Option<&'a str>> + use<'a> {
    headers.get_all(name).iter().map(|value| value.to_str().ok())
}

/// Whether the path accepts the media type of the body. A page may send these types to another
/// origin only after a preflight request, unlike those of forms and plain text.
fn is_taken(request: &Request) -> bool {
    let mut types = texts(request.headers(), &header::CONTENT_TYPE);
    let (Some(Some(only)), None) = (types.next(), types.next()) else { return false };
    let essence = only.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let uploads = streams::UPLOADS.contains(&request.uri().path());
    essence == JSON || (uploads && UPLOADS.contains(&essence.as_str()))
}

/// The host that a request names: exactly one `Host` header, equal to the host of the target URI
/// if that has one.
fn host<'a>(headers: &'a HeaderMap, in_target: Option<&'a str>) -> Option<&'a str> {
    let mut hosts = texts(headers, &header::HOST);
    match (hosts.next(), hosts.next(), in_target) {
        (Some(host), None, None) => host,
        (Some(Some(host)), None, Some(target)) => {
            without_port(host).eq_ignore_ascii_case(without_port(target)).then_some(host)
        }
        (None, None, Some(target)) => Some(target),
        _ => None,
    }
}

fn without_port(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((inside, rest)) if rest.is_empty() || is_port(rest) => inside,
        Some(_) => "",
        None => match host.find(':') {
            Some(at) if is_port(&host[at..]) => &host[..at],
            Some(_) => "",
            None => host,
        },
    }
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok())
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    const OWN: &str = "127.0.0.1:5555";

    fn checked(
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<CrossSiteError> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        CrossSiteGuard::new(OWN.parse().unwrap(), &[], false).check(request).err()
    }

    #[test]
    fn allowed_names_are_those_of_a_proxy_and_of_no_other_page() {
        let names = ["box.example".to_owned()];
        let result = |address: &str, host: &str, origin: Option<&str>| {
            let mut request = Request::builder().uri("/").header("host", host);
            if let Some(origin) = origin {
                request = request.header("origin", origin);
            }
            let request = request.body(Body::empty()).unwrap();
            CrossSiteGuard::new(address.parse().unwrap(), &names, false).check(request).err()
        };
        for address in [OWN, "192.0.2.1:5555"] {
            for (host, origin, expected) in [
                ("BOX.example:8443", None, None),
                ("localhost:5555", None, None),
                ("evil.example", None, Some(CrossSiteError::Host)),
                ("box.example.evil.example", None, Some(CrossSiteError::Host)),
                ("box.example", Some("https://box.example"), None),
                ("box.example:8443", Some("https://box.example:8443"), None),
                ("box.example", Some("https://box.example:9"), Some(CrossSiteError::Origin)),
                ("box.example", Some("https://evil.example"), Some(CrossSiteError::Origin)),
                ("box.example", Some("null"), Some(CrossSiteError::Origin)),
            ] {
                assert_eq!(result(address, host, origin), expected, "{address} {host} {origin:?}");
            }
        }
        assert_eq!(result("192.0.2.1:5555", "192.0.2.1:5555", None), None);
        assert_eq!(result(OWN, "192.0.2.1:5555", None), Some(CrossSiteError::Host));
    }

    #[test]
    fn only_loopback_is_meant_by_its_names() {
        for (host, well) in [
            ("localhost", true),
            ("LocalHost:5555", true),
            ("127.0.0.1:5555", true),
            ("127.9.9.9", true),
            ("[::1]:5555", true),
            ("evil.example:5555", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost:5555:80", false),
            ("localhost@evil.example", false),
            ("[::1]evil", false),
            ("", false),
        ] {
            let refused = checked("GET", "/", &[("host", host)], "");
            assert_eq!(refused.is_none(), well, "{host}");
        }
        let two = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(checked("GET", "/", &two, ""), Some(CrossSiteError::Host));
        assert_eq!(checked("GET", "/", &[], ""), Some(CrossSiteError::Host));
        let target = "http://evil.example/";
        assert_eq!(checked("GET", target, &[("host", OWN)], ""), Some(CrossSiteError::Host));
    }

    #[test]
    fn only_the_exact_own_origin_passes() {
        for (origin, well) in [
            ("http://127.0.0.1:5555", true),
            ("https://127.0.0.1:5555", false),
            ("http://127.0.0.1:8080", false),
            ("http://127.0.0.1", false),
            ("http://127.0.0.1:5555.evil.example", false),
            ("http://127.0.0.1:55555", false),
            ("http://localhost:5555", false),
            ("http://localhost:3000", false),
            ("http://[::1]:5555", false),
            ("https://evil.example", false),
            ("null", false),
            ("file://", false),
            ("", false),
        ] {
            let refused = checked("GET", "/", &[("host", OWN), ("origin", origin)], "");
            assert_eq!(refused.is_none(), well, "{origin}");
        }
        // Another program may listen on ::1, which `localhost` also means.
        let other = [("host", "localhost:5555"), ("origin", "http://127.0.0.1:5555")];
        assert_eq!(checked("GET", "/", &other, ""), Some(CrossSiteError::Origin));
        let two = [("host", OWN), ("origin", "http://127.0.0.1:5555"), ("origin", "null")];
        assert_eq!(checked("GET", "/", &two, ""), Some(CrossSiteError::Origin));
    }

    #[test]
    fn only_requests_of_the_same_origin_and_typed_ones_pass() {
        for (method, host, site, well) in [
            ("GET", OWN, "same-origin", true),
            ("POST", OWN, "same-origin", true),
            ("GET", "localhost:5555", "same-origin", false),
            ("GET", OWN, "none", true),
            ("GET", "localhost:5555", "none", true),
            ("POST", OWN, "none", false),
            ("DELETE", OWN, "none", false),
            ("GET", OWN, "same-site", false),
            ("GET", OWN, "cross-site", false),
            ("GET", OWN, "", false),
            ("GET", OWN, "None", false),
        ] {
            let refused = checked(method, "/", &[("host", host), ("sec-fetch-site", site)], "");
            assert_eq!(refused.is_none(), well, "{method} {host} {site}");
        }
        let socket = [("host", OWN), ("sec-fetch-site", "none"), ("upgrade", "websocket")];
        assert_eq!(checked("GET", "/", &socket, ""), Some(CrossSiteError::FetchSite));
    }

    #[test]
    fn no_body_that_a_form_could_send_is_taken() {
        let upload = streams::FILE_CONTENT;
        for (path, kind, well) in [
            ("/", "application/json", true),
            ("/", "Application/JSON; charset=utf-8", true),
            ("/", "text/plain", false),
            ("/", "text/plain; application/json", false),
            ("/", "text/plain, application/json", false),
            ("/", "application/x-www-form-urlencoded", false),
            ("/", "multipart/form-data; boundary=application/json", false),
            ("/", "application/octet-stream", false),
            ("/", "", false),
            (upload, "application/octet-stream", true),
            (upload, "application/x-tar", true),
            (upload, "text/plain", false),
        ] {
            let headers = [("host", OWN), ("content-type", kind)];
            assert_eq!(checked("POST", path, &headers, "{}").is_none(), well, "{path} {kind}");
        }
        assert_eq!(checked("POST", "/", &[("host", OWN)], "{}"), Some(CrossSiteError::MediaType));
        assert_eq!(checked("POST", "/", &[("host", OWN)], ""), None);
        let two = [("host", OWN), ("content-type", JSON), ("content-type", "text/plain")];
        assert_eq!(checked("POST", "/", &two, "{}"), Some(CrossSiteError::MediaType));
    }

    #[test]
    fn a_listener_on_every_address_has_no_origin_of_its_own() {
        let guard = CrossSiteGuard::new("0.0.0.0:5555".parse().unwrap(), &[], false);
        let with = |name: &str, value: &str| {
            let request = Request::builder().header("host", "box:5555").header(name, value);
            guard.check(request.body(Body::empty()).unwrap()).err()
        };
        assert_eq!(with("origin", "http://0.0.0.0:5555"), Some(CrossSiteError::Origin));
        assert_eq!(with("origin", "http://box:5555"), Some(CrossSiteError::Origin));
        assert_eq!(with("sec-fetch-site", "cross-site"), Some(CrossSiteError::FetchSite));
        assert_eq!(with("accept", "*/*"), None);
    }
}
