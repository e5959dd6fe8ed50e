//! Sniffs the first bytes of a stream: the server name of a TLS ClientHello, or the Host header of
//! an HTTP request.
//!
//! It only reads. A start that two parsers could read differently has no name, so that a policy
//! that needs a name refuses it.

use crate::tls::client_hello::{HANDSHAKE, sniff_tls};
use msb_spec::DomainName;

/// The longest ClientHello or request head, in bytes; a longer start is neither.
pub(crate) const MAX_SNIFF_BYTES: usize = 64 << 10;

/// What the first bytes of a stream turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SniffResult {
    /// More bytes are needed to tell.
    Incomplete,
    /// A ClientHello of TLS.
    Tls {
        /// The server name (SNI), if there is exactly one.
        name: Option<DomainName>,
    },
    /// The head of an HTTP request, or the start of one.
    Http {
        /// The host that it is for, if it is unambiguous.
        host: Option<DomainName>,
    },
    /// Neither TLS nor HTTP.
    Other,
}

/// Sniffs what a client has sent so far, from its first byte on.
pub(crate) fn sniff(bytes: &[u8]) -> SniffResult {
    let found = match bytes.first() {
        None => return SniffResult::Incomplete,
        Some(&HANDSHAKE) => sniff_tls(bytes),
        Some(_) => sniff_http(bytes),
    };
    match found {
        SniffResult::Incomplete if bytes.len() >= MAX_SNIFF_BYTES => classify_unfinished(bytes),
        found => found,
    }
}

/// Sniffs all bytes of a client that sends no more before it is answered.
pub(crate) fn sniff_all(bytes: &[u8]) -> SniffResult {
    match sniff(bytes) {
        SniffResult::Incomplete => classify_unfinished(bytes),
        found => found,
    }
}

/// Classifies a start that is not completed. Some servers answer to it nevertheless, so it is TLS
/// or HTTP without a name.
fn classify_unfinished(bytes: &[u8]) -> SniffResult {
    if bytes.first() == Some(&HANDSHAKE) {
        return SniffResult::Tls { name: None };
    }
    let start = bytes.iter().position(|byte| !is_space(*byte) && *byte != b'\n');
    let bytes = &bytes[start.unwrap_or(bytes.len())..];
    let method = bytes.iter().take_while(|byte| is_token(**byte)).count();
    let target = bytes[method..].iter().find(|byte| !is_space(**byte));
    match target {
        Some(b'/' | b'h' | b'*') if method > 0 => SniffResult::Http { host: None },
        _ => split_line(bytes).map_or(SniffResult::Other, |(first, _)| classify_odd_line(first)),
    }
}

/// Why parsing stopped early.
pub(crate) enum ParseStop {
    /// More bytes are needed.
    Short,
    /// The bytes are not valid for the protocol.
    Wrong,
}

fn sniff_http(bytes: &[u8]) -> SniffResult {
    // Servers skip empty lines before a request, and some skip other white space.
    let start = bytes.iter().position(|byte| !is_space(*byte) && *byte != b'\n');
    let (skipped, bytes) = match start {
        Some(start) => bytes.split_at(start),
        None => return SniffResult::Incomplete,
    };
    let method = bytes.iter().take_while(|byte| is_token(**byte)).count();
    match bytes.get(method) {
        _ if method == 0 => return SniffResult::Other,
        None => return SniffResult::Incomplete,
        Some(byte) if is_space(*byte) => {}
        Some(_) => return SniffResult::Other,
    }
    let found = split_line(bytes);
    let so_far = found.map_or(bytes, |(first, _)| first);
    if so_far.iter().any(|byte| byte.is_ascii_control() && !is_space(*byte)) {
        // A request line has no control bytes, and binary protocols often start with them. Some
        // servers accept them nevertheless.
        let target = so_far[method..].iter().find(|byte| !is_space(**byte));
        return match target {
            Some(b'/' | b'h' | b'*') => SniffResult::Http { host: None },
            _ => SniffResult::Other,
        };
    }
    let Some((first, rest)) = found else { return SniffResult::Incomplete };
    if first == b"PRI * HTTP/2.0" {
        // HTTP/2 without TLS: its host is inside binary frames, which are not read here.
        return SniffResult::Http { host: None };
    }
    let mut words = first.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return classify_odd_line(first);
    };
    let begins = skipped.iter().all(|byte| b"\r\n".contains(byte));
    let plain = begins && !first.iter().any(u8::is_ascii_control);
    if !matches!(version, b"HTTP/1.1" | b"HTTP/1.0") || target.is_empty() || !plain {
        return classify_odd_line(first);
    }
    match host_header(rest) {
        Err(ParseStop::Short) => SniffResult::Incomplete,
        Err(ParseStop::Wrong) => SniffResult::Http { host: None },
        Ok(host) => SniffResult::Http { host: request_host(method, target, host) },
    }
}

/// Classifies a malformed request line. A lenient server may accept it, for a host that cannot be
/// told here.
fn classify_odd_line(split_line: &[u8]) -> SniffResult {
    let mut parts = split_line.windows(5);
    match parts.any(|part| part.eq_ignore_ascii_case(b"HTTP/")) {
        true => SniffResult::Http { host: None },
        false => SniffResult::Other,
    }
}

/// Bytes that some servers treat as a space.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c)
}

/// Splits off the first line, without its line end.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let split_line = &bytes[..end];
    Some((split_line.strip_suffix(b"\r").unwrap_or(split_line), &bytes[end + 1..]))
}

/// The value of the only `Host` header of a complete head.
fn host_header(mut rest: &[u8]) -> Result<Option<&[u8]>, ParseStop> {
    let mut found = None;
    let mut wrong = false;
    loop {
        let Some((header, after)) = split_line(rest) else { return Err(ParseStop::Short) };
        rest = after;
        if header.is_empty() {
            return if wrong { Err(ParseStop::Wrong) } else { Ok(found) };
        }
        let colon = header.iter().position(|byte| *byte == b':').unwrap_or(0);
        let (name, value) = (&header[..colon], &header[colon..]);
        // A folded line, or a space before the colon: some parsers see a Host header there.
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            wrong = true;
        } else if name.eq_ignore_ascii_case(b"host") {
            wrong |= found.is_some();
            found = Some(value[1..].trim_ascii());
        }
    }
}

fn request_host(method: &[u8], target: &[u8], host: Option<&[u8]>) -> Option<DomainName> {
    if method == b"CONNECT" {
        return None;
    }
    let host = authority_name(host?)?;
    if target.starts_with(b"/") || target == b"*" {
        return Some(host);
    }
    // In absolute form the server uses the name of the target, so it must equal the Host header.
    let target = std::str::from_utf8(target).ok()?;
    let (scheme, rest) = target.split_once("://")?;
    let known = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let authority = rest.split(['/', '?', '#']).next()?;
    (known && authority_name(authority.as_bytes())? == host).then_some(host)
}

/// Parses the host name of `NAME` or `NAME:PORT`.
fn authority_name(authority: &[u8]) -> Option<DomainName> {
    let text = std::str::from_utf8(authority).ok()?;
    let name = match text.split_once(':') {
        None => text,
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) => return None,
    };
    DomainName::parse(name).ok()
}

/// The characters of methods and header names (RFC 9110, section 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<DomainName> {
        Some(DomainName::parse(text).unwrap())
    }

    #[test]
    fn a_request_shows_its_only_host() {
        let sniff_http = |host| SniffResult::Http { host };
        for (head, host) in [
            ("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", "a.example"),
            ("\r\n\r\nGET / HTTP/1.1\r\nhost:A.Example.:8080 \r\nx: y\r\n\r\n", "a.example"),
            ("GET / HTTP/1.0\nHost: a.example\n\n", "a.example"),
            ("POST http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n", "a.example"),
            ("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\nrest", "a.example"),
        ] {
            assert_eq!(sniff(head.as_bytes()), sniff_http(name(host)), "{head}");
        }
        for head in [
            "GET / HTTP/1.1\r\nx: y\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\nHost : b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example\r\n .b.example\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a.example@b.example\r\n\r\n",
            "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET ftp://a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET http://u@a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET a.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "CONNECT b.example:443 HTTP/1.1\r\nHost: b.example\r\n\r\n",
            "PRI * HTTP/2.0\r\n",
            // Accepted by some servers.
            "GET  / HTTP/1.1\r\n",
            "GET /a b HTTP/1.1\r\n",
            "GET\t/\tHTTP/1.1\r\n",
            "GET / HTTP/1.2\r\n",
            "GET / http/1.1\r\n",
            "  GET / HTTP/1.1\r\n",
            "GET / \u{1}",
        ] {
            assert_eq!(sniff(head.as_bytes()), sniff_http(None), "{head}");
        }
    }

    #[test]
    fn other_protocols_are_not_held() {
        for text in [
            "SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
            "EHLO me\r\n",
            "*1\r\n$4\r\nPING\r\n",
            "GET /\r\n",
            "GET x\0",
            "{\"a\": 1",
            "\0\0\0\x08",
            "a word\r\n",
        ] {
            assert_eq!(sniff(text.as_bytes()), SniffResult::Other, "{text}");
        }
        let head = b"GET /some/path HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for end in 0..head.len() {
            assert_eq!(sniff(&head[..end]), SniffResult::Incomplete, "{end}");
        }
    }

    #[test]
    fn an_unfinished_start_has_no_name() {
        let sniff_http = SniffResult::Http { host: None };
        for begin in ["GET / HTTP/1.1\r\nx: ", "GET /", "\r\n x https://a.example/"] {
            let endless = format!("{begin}{}", "y".repeat(MAX_SNIFF_BYTES));
            assert_eq!(sniff(endless.as_bytes()), sniff_http, "{begin}");
            assert_eq!(sniff_all(begin.as_bytes()), sniff_http, "{begin}");
        }
        assert_eq!(sniff(&b"x".repeat(MAX_SNIFF_BYTES)), SniffResult::Other);
        assert_eq!(sniff_all(b"\r\n"), SniffResult::Other);
        assert_eq!(sniff_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n"), sniff_http);
        assert_eq!(sniff_all(b"\x16\x03\x01\x02"), SniffResult::Tls { name: None });
        let whole = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        assert_eq!(sniff_all(whole), SniffResult::Http { host: name("a.example") });
    }
}
