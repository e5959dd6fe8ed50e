//! Refuses requests that a web page makes the user's browser send.
//!
//! A browser reaches loopback from any page, also from a page that a sandbox serves on a published
//! port. The `Host`, `Origin` and `Sec-Fetch-Site` headers tell where such a request comes from, and a
//! page cannot change them. A body needs a media type that no page may send to another origin without
//! a preflight request, which is refused as well.
//!
//! [`CrossSiteGuard::check`] is the only way to make a [`CheckedRequest`], and the listener runs
//! nothing else.

use axum::body::HttpBody;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode, header};
use msb_api::http::streams;
use std::net::{IpAddr, SocketAddr};

/// A request that no page of another origin can have caused.
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

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CrossSite {
    /// The `Host` is not a name of loopback: DNS rebinding.
    Host,
    /// The `Origin` is not this listener.
    Origin,
    /// `Sec-Fetch-Site` says that a page elsewhere sends it.
    FetchSite,
    /// The body has a media type that this path does not take, or none.
    MediaType,
}

impl CrossSite {
    /// Status, code and message of the answer.
    pub(super) fn answer(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::Host => {
                (StatusCode::FORBIDDEN, "host_not_allowed", "this listener is for loopback")
            }
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

/// What this listener is called by a browser.
#[derive(Debug, Clone)]
pub(super) struct CrossSiteGuard {
    is_loopback: bool,
    /// `ADDRESS:PORT` as browsers write it; none if it listens on every address.
    authority: Option<String>,
}

impl CrossSiteGuard {
    pub(super) fn new(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let authority = match address.port() {
            // Browsers leave out the usual port of HTTP.
            80 => ip,
            port => format!("{ip}:{port}"),
        };
        let authority = (!address.ip().is_unspecified()).then_some(authority);
        Self { is_loopback: address.ip().is_loopback(), authority }
    }

    /// Takes a request if no page of another origin can have caused it.
    pub(super) fn check(&self, request: Request) -> Result<CheckedRequest, CrossSite> {
        let headers = request.headers();
        let host = host(headers, request.uri().host());
        if self.is_loopback && !host.is_some_and(|host| is_loopback(without_port(host))) {
            return Err(CrossSite::Host);
        }
        let is_own = |name: &str| self.authority.as_deref() == Some(name);
        // `localhost` is not enough here: it may also be ::1, where another program listens.
        let own_host = !self.is_loopback || host.is_some_and(is_own);
        let own_origin = |origin: &str| origin.strip_prefix("http://").is_some_and(is_own);
        if !texts(headers, &header::ORIGIN).all(|it| it.is_some_and(own_origin) && own_host) {
            return Err(CrossSite::Origin);
        }
        let looks = matches!(*request.method(), Method::GET | Method::HEAD);
        let typed = looks && !headers.contains_key(header::UPGRADE);
        let may = |site: Option<&str>| match site {
            Some("same-origin") => own_host,
            // Typed by the user, or from a bookmark.
            Some("none") => typed,
            _ => false,
        };
        if !texts(headers, &FETCH_SITE).all(may) {
            return Err(CrossSite::FetchSite);
        }
        if !request.body().is_end_stream() && !is_taken(&request) {
            return Err(CrossSite::MediaType);
        }
        Ok(CheckedRequest(request))
    }
}

/// Every value of a header; none for one that is not text.
fn texts<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = Option<&'a str>> + use<'a> {
    headers.get_all(name).iter().map(|value| value.to_str().ok())
}

/// Whether the body has a media type that its path takes. No page may send these to another origin
/// without asking first, unlike forms and plain text.
fn is_taken(request: &Request) -> bool {
    let mut types = texts(request.headers(), &header::CONTENT_TYPE);
    let (Some(Some(only)), None) = (types.next(), types.next()) else { return false };
    let essence = only.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let uploads = streams::UPLOADS.contains(&request.uri().path());
    essence == JSON || (uploads && UPLOADS.contains(&essence.as_str()))
}

/// The host that a request names: once, and the same in its target if that has one.
fn host<'a>(headers: &'a HeaderMap, in_target: Option<&'a str>) -> Option<&'a str> {
    let mut said = texts(headers, &header::HOST);
    match (said.next(), said.next(), in_target) {
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
    ) -> Option<CrossSite> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        CrossSiteGuard::new(OWN.parse().unwrap()).check(request).err()
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
        assert_eq!(checked("GET", "/", &two, ""), Some(CrossSite::Host));
        assert_eq!(checked("GET", "/", &[], ""), Some(CrossSite::Host));
        let target = "http://evil.example/";
        assert_eq!(checked("GET", target, &[("host", OWN)], ""), Some(CrossSite::Host));
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
        // Another program may answer for `localhost` on ::1.
        let other = [("host", "localhost:5555"), ("origin", "http://127.0.0.1:5555")];
        assert_eq!(checked("GET", "/", &other, ""), Some(CrossSite::Origin));
        let two = [("host", OWN), ("origin", "http://127.0.0.1:5555"), ("origin", "null")];
        assert_eq!(checked("GET", "/", &two, ""), Some(CrossSite::Origin));
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
        assert_eq!(checked("GET", "/", &socket, ""), Some(CrossSite::FetchSite));
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
        assert_eq!(checked("POST", "/", &[("host", OWN)], "{}"), Some(CrossSite::MediaType));
        assert_eq!(checked("POST", "/", &[("host", OWN)], ""), None);
        let two = [("host", OWN), ("content-type", JSON), ("content-type", "text/plain")];
        assert_eq!(checked("POST", "/", &two, "{}"), Some(CrossSite::MediaType));
    }

    #[test]
    fn a_listener_on_every_address_has_no_origin_of_its_own() {
        let guard = CrossSiteGuard::new("0.0.0.0:5555".parse().unwrap());
        let with = |name: &str, value: &str| {
            let request = Request::builder().header("host", "box:5555").header(name, value);
            guard.check(request.body(Body::empty()).unwrap()).err()
        };
        assert_eq!(with("origin", "http://0.0.0.0:5555"), Some(CrossSite::Origin));
        assert_eq!(with("origin", "http://box:5555"), Some(CrossSite::Origin));
        assert_eq!(with("sec-fetch-site", "cross-site"), Some(CrossSite::FetchSite));
        assert_eq!(with("accept", "*/*"), None);
    }
}
