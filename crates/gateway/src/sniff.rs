//! Whom the first bytes of a stream are for: the name in a TLS hello, or the Host of a request.
//!
//! Reads and never answers. What cannot be read one way only has no name here: whoever asks for
//! proof then refuses it, instead of trusting one of two readings.

use msb_spec::DomainName;

/// As long as a hello or the head of a request may become; longer ones are neither.
pub(crate) const LIMIT: usize = 64 << 10;

/// What the first bytes of a stream are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sniffed {
    /// Too few to tell.
    More,
    /// The hello of a TLS client.
    Tls {
        /// The name it asks for, if it shows one.
        name: Option<DomainName>,
    },
    /// The head of an HTTP request.
    Http {
        /// Whom it is for, if it says so in one way only.
        host: Option<DomainName>,
    },
    /// Anything else.
    Other,
}

/// Looks at what a client has sent so far, from its first byte on.
pub(crate) fn sniff(bytes: &[u8]) -> Sniffed {
    let found = match bytes.first() {
        None => return Sniffed::More,
        Some(&HANDSHAKE) => tls(bytes),
        Some(_) => http(bytes),
    };
    match found {
        Sniffed::More if bytes.len() >= LIMIT => begun(bytes),
        found => found,
    }
}

/// Looks at all that a client sends before it is answered.
pub(crate) fn sniff_all(bytes: &[u8]) -> Sniffed {
    match sniff(bytes) {
        Sniffed::More => begun(bytes),
        found => found,
    }
}

/// What it is that has begun and does not end: some servers answer to it nevertheless, and whom it
/// is for cannot be told.
fn begun(bytes: &[u8]) -> Sniffed {
    if bytes.first() == Some(&HANDSHAKE) {
        return Sniffed::Tls { name: None };
    }
    let start = bytes.iter().position(|byte| !is_space(*byte) && *byte != b'\n');
    let bytes = &bytes[start.unwrap_or(bytes.len())..];
    let method = bytes.iter().take_while(|byte| is_token(**byte)).count();
    let target = bytes[method..].iter().find(|byte| !is_space(**byte));
    match target {
        Some(b'/' | b'h' | b'*') if method > 0 => Sniffed::Http { host: None },
        _ => line(bytes).map_or(Sniffed::Other, |(first, _)| unusual(first)),
    }
}

/// Why reading stops.
enum Stop {
    /// The bytes end too early.
    Short,
    /// It is not what it began like.
    Wrong,
}

/// The kind of TLS records that hold the handshake.
const HANDSHAKE: u8 = 22;
/// The kind of the client's first message.
const CLIENT_HELLO: u8 = 1;
/// The extension that shows the name.
const SERVER_NAME: u16 = 0;
/// The longest record, RFC 8446 section 5.1.
const RECORD: usize = 1 << 14;

fn tls(bytes: &[u8]) -> Sniffed {
    match client_hello(bytes) {
        // A complete message that cannot be read is still TLS, for nobody.
        Ok(message) => Sniffed::Tls { name: server_name(&message).unwrap_or(None) },
        Err(Stop::Short) => Sniffed::More,
        Err(Stop::Wrong) => Sniffed::Other,
    }
}

/// The hello without its head, put together from the records that it is spread over.
fn client_hello(mut bytes: &[u8]) -> Result<Vec<u8>, Stop> {
    let mut message = Vec::new();
    loop {
        // What is here is judged before more is waited for: a stream that cannot become TLS must
        // not be held until somebody gives up.
        for (byte, fits) in bytes.iter().zip([
            (|byte| byte == HANDSHAKE) as fn(u8) -> bool,
            |byte| byte == 3,
            |byte| byte <= 4,
        ]) {
            if !fits(*byte) {
                return Err(Stop::Wrong);
            }
        }
        let Some((head, rest)) = bytes.split_first_chunk::<5>() else { return Err(Stop::Short) };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if length == 0 || length > RECORD {
            return Err(Stop::Wrong);
        }
        message.extend_from_slice(&rest[..length.min(rest.len())]);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(Stop::Wrong);
        }
        if let Some([_, a, b, c]) = message.first_chunk() {
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if length > LIMIT {
                return Err(Stop::Wrong);
            }
            if message.len() >= 4 + length {
                return Ok(message[4..4 + length].to_vec());
            }
        }
        if rest.len() < length {
            return Err(Stop::Short);
        }
        bytes = &rest[length..];
    }
}

/// The only name in a hello; nothing at all if the hello is broken.
fn server_name(hello: &[u8]) -> Option<Option<DomainName>> {
    let mut hello = Reader(hello);
    hello.take(2 + 32)?;
    hello.vector(1)?;
    hello.vector(2)?;
    hello.vector(1)?;
    if hello.0.is_empty() {
        return Some(None);
    }
    let mut extensions = Reader(hello.vector(2)?);
    if !hello.0.is_empty() {
        return None;
    }
    let mut found = None;
    while !extensions.0.is_empty() {
        let kind = extensions.number(2)?;
        let body = extensions.vector(2)?;
        if kind != usize::from(SERVER_NAME) {
            continue;
        }
        let mut body = Reader(body);
        let mut names = Reader(body.vector(2)?);
        let host = (names.number(1)? == 0).then(|| names.vector(2)).flatten()?;
        // A second name, or a second list, could be the one that the server reads.
        if !names.0.is_empty() || !body.0.is_empty() || found.is_some() {
            return None;
        }
        found = Some(DomainName::parse(std::str::from_utf8(host).ok()?).ok()?);
    }
    Some(found)
}

/// Numbers and vectors with their length in front, as TLS writes them.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self, width: usize) -> Option<usize> {
        let bytes = self.take(width)?;
        Some(bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn vector(&mut self, width: usize) -> Option<&'a [u8]> {
        let length = self.number(width)?;
        self.take(length)
    }
}

fn http(bytes: &[u8]) -> Sniffed {
    // Servers skip empty lines in front of a request, and some of them other spaces.
    let start = bytes.iter().position(|byte| !is_space(*byte) && *byte != b'\n');
    let (skipped, bytes) = match start {
        Some(start) => bytes.split_at(start),
        None => return Sniffed::More,
    };
    let method = bytes.iter().take_while(|byte| is_token(**byte)).count();
    match bytes.get(method) {
        _ if method == 0 => return Sniffed::Other,
        None => return Sniffed::More,
        Some(byte) if is_space(*byte) => {}
        Some(_) => return Sniffed::Other,
    }
    let found = line(bytes);
    let so_far = found.map_or(bytes, |(first, _)| first);
    if so_far.iter().any(|byte| byte.is_ascii_control() && !is_space(*byte)) {
        // Control bytes are in no request line, and are at the begin of much that is no text. Some
        // servers take them nevertheless.
        let target = so_far[method..].iter().find(|byte| !is_space(**byte));
        return match target {
            Some(b'/' | b'h' | b'*') => Sniffed::Http { host: None },
            _ => Sniffed::Other,
        };
    }
    let Some((first, rest)) = found else { return Sniffed::More };
    if first == b"PRI * HTTP/2.0" {
        // HTTP/2 without TLS: it is HTTP, and whom it is for is hidden from here.
        return Sniffed::Http { host: None };
    }
    let mut words = first.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return unusual(first);
    };
    let begins = skipped.iter().all(|byte| b"\r\n".contains(byte));
    let plain = begins && !first.iter().any(u8::is_ascii_control);
    if !matches!(version, b"HTTP/1.1" | b"HTTP/1.0") || target.is_empty() || !plain {
        return unusual(first);
    }
    match host_line(rest) {
        Err(Stop::Short) => Sniffed::More,
        Err(Stop::Wrong) => Sniffed::Http { host: None },
        Ok(host) => Sniffed::Http { host: named(method, target, host) },
    }
}

/// What a line is that is no request line as it should be: to a server that is more forgiving it
/// may be one, for a host that cannot be told here.
fn unusual(line: &[u8]) -> Sniffed {
    let mut parts = line.windows(5);
    match parts.any(|part| part.eq_ignore_ascii_case(b"HTTP/")) {
        true => Sniffed::Http { host: None },
        false => Sniffed::Other,
    }
}

/// What some servers take for a space.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | 0x0b | 0x0c)
}

/// The line that `bytes` begin with, without its end, and what follows.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let line = &bytes[..end];
    Some((line.strip_suffix(b"\r").unwrap_or(line), &bytes[end + 1..]))
}

/// What the only `Host` of a complete head says.
fn host_line(mut rest: &[u8]) -> Result<Option<&[u8]>, Stop> {
    let mut found = None;
    let mut wrong = false;
    loop {
        let Some((header, after)) = line(rest) else { return Err(Stop::Short) };
        rest = after;
        if header.is_empty() {
            return if wrong { Err(Stop::Wrong) } else { Ok(found) };
        }
        let colon = header.iter().position(|byte| *byte == b':').unwrap_or(0);
        let (name, value) = (&header[..colon], &header[colon..]);
        // A folded line, or a name with a space behind it: some read a Host there, some do not.
        if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
            wrong = true;
        } else if name.eq_ignore_ascii_case(b"host") {
            wrong |= found.is_some();
            found = Some(value[1..].trim_ascii());
        }
    }
}

fn named(method: &[u8], target: &[u8], host: Option<&[u8]>) -> Option<DomainName> {
    if method == b"CONNECT" {
        return None;
    }
    let host = authority_name(host?)?;
    if target.starts_with(b"/") || target == b"*" {
        return Some(host);
    }
    // The target's own name counts for the server, so it must be the same.
    let target = std::str::from_utf8(target).ok()?;
    let (scheme, rest) = target.split_once("://")?;
    let known = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let authority = rest.split(['/', '?', '#']).next()?;
    (known && authority_name(authority.as_bytes())? == host).then_some(host)
}

/// The name in `NAME` or `NAME:PORT`.
fn authority_name(authority: &[u8]) -> Option<DomainName> {
    let text = std::str::from_utf8(authority).ok()?;
    let name = match text.split_once(':') {
        None => text,
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        Some(_) => return None,
    };
    DomainName::parse(name).ok()
}

/// The letters of methods and header names, RFC 9110 section 5.6.2.
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Option<DomainName> {
        Some(DomainName::parse(text).unwrap())
    }

    fn extension(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_be_bytes().to_vec();
        bytes.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        bytes.extend(body);
        bytes
    }

    fn names(names: &[&[u8]]) -> Vec<u8> {
        let mut list = Vec::new();
        for name in names {
            list.push(0);
            list.extend(u16::try_from(name.len()).unwrap().to_be_bytes());
            list.extend(*name);
        }
        let mut body = u16::try_from(list.len()).unwrap().to_be_bytes().to_vec();
        body.extend(list);
        body
    }

    /// A hello in records of at most `piece` bytes.
    fn hello(extensions: &[Vec<u8>], piece: usize) -> Vec<u8> {
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 1, 1, 0]);
        let extensions = extensions.concat();
        body.extend(u16::try_from(extensions.len()).unwrap().to_be_bytes());
        body.extend(extensions);
        let mut message = vec![CLIENT_HELLO, 0];
        message.extend(u16::try_from(body.len()).unwrap().to_be_bytes());
        message.extend(body);
        let record = |piece: &[u8]| {
            let mut record = vec![HANDSHAKE, 3, 1];
            record.extend(u16::try_from(piece.len()).unwrap().to_be_bytes());
            record.extend(piece);
            record
        };
        message.chunks(piece).flat_map(record).collect()
    }

    #[test]
    fn a_hello_shows_its_only_name() {
        let other = extension(43, &[2, 3, 4]);
        let one = extension(SERVER_NAME, &names(&[b"API.Example.com"]));
        let with = |extensions: &[Vec<u8>]| sniff(&hello(extensions, RECORD));
        let tls = |name| Sniffed::Tls { name };
        assert_eq!(with(&[other.clone(), one.clone()]), tls(name("api.example.com")));
        assert_eq!(with(std::slice::from_ref(&other)), tls(None));
        assert_eq!(with(&[one.clone(), one.clone()]), tls(None), "two lists");
        let two = extension(SERVER_NAME, &names(&[b"a.example", b"b.example"]));
        assert_eq!(with(&[two]), tls(None), "two names");
        for wrong in [&b"10.0.0.1"[..], b"a b", b"\xff", b"", b"a.example\0.b.example"] {
            let one = extension(SERVER_NAME, &names(&[wrong]));
            assert_eq!(with(&[one]), tls(None), "{wrong:?}");
        }
    }

    #[test]
    fn a_hello_is_the_same_however_it_is_cut() {
        let one = extension(SERVER_NAME, &names(&[b"api.example.com"]));
        for piece in [1, 2, 3, 5, 50, RECORD] {
            let bytes = hello(std::slice::from_ref(&one), piece);
            for end in 0..bytes.len() {
                assert_eq!(sniff(&bytes[..end]), Sniffed::More, "{piece} {end}");
            }
            assert_eq!(sniff(&bytes), Sniffed::Tls { name: name("api.example.com") });
        }
    }

    #[test]
    fn what_only_begins_like_tls_is_something_else() {
        for bytes in [
            &b"\x16\x02"[..],
            b"\x16\x03\x09",
            b"\x16\x03\x01\x00\x00",
            b"\x16\x03\x01\xff\xff",
            b"\x16\x03\x01\x00\x05\x02",
            b"\x16\x03\x01\x00\x05\x01\xff\xff\xff",
            b"\x16\x03\x01\x00\x01\x01\x17",
        ] {
            assert_eq!(sniff(bytes), Sniffed::Other, "{bytes:?}");
        }
        let long = [&b"\x16\x03\x01\x40\x00\x01\x00\xff\xff"[..], &[0; RECORD]].concat();
        assert_eq!(sniff(&long[..5 + RECORD]), Sniffed::More);
    }

    #[test]
    fn a_request_shows_its_only_host() {
        let http = |host| Sniffed::Http { host };
        for (head, host) in [
            ("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", "a.example"),
            ("\r\n\r\nGET / HTTP/1.1\r\nhost:A.Example.:8080 \r\nx: y\r\n\r\n", "a.example"),
            ("GET / HTTP/1.0\nHost: a.example\n\n", "a.example"),
            ("POST http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n", "a.example"),
            ("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\nrest", "a.example"),
        ] {
            assert_eq!(sniff(head.as_bytes()), http(name(host)), "{head}");
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
            // To some servers.
            "GET  / HTTP/1.1\r\n",
            "GET /a b HTTP/1.1\r\n",
            "GET\t/\tHTTP/1.1\r\n",
            "GET / HTTP/1.2\r\n",
            "GET / http/1.1\r\n",
            "  GET / HTTP/1.1\r\n",
            "GET / \u{1}",
        ] {
            assert_eq!(sniff(head.as_bytes()), http(None), "{head}");
        }
    }

    #[test]
    fn what_is_not_http_is_not_waited_for() {
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
            assert_eq!(sniff(text.as_bytes()), Sniffed::Other, "{text}");
        }
        let head = b"GET /some/path HTTP/1.1\r\nHost: a.example\r\n\r\n";
        for end in 0..head.len() {
            assert_eq!(sniff(&head[..end]), Sniffed::More, "{end}");
        }
    }

    #[test]
    fn what_begins_and_does_not_end_has_no_name() {
        let http = Sniffed::Http { host: None };
        for begin in ["GET / HTTP/1.1\r\nx: ", "GET /", "\r\n x https://a.example/"] {
            let endless = format!("{begin}{}", "y".repeat(LIMIT));
            assert_eq!(sniff(endless.as_bytes()), http, "{begin}");
            assert_eq!(sniff_all(begin.as_bytes()), http, "{begin}");
        }
        assert_eq!(sniff(&b"x".repeat(LIMIT)), Sniffed::Other);
        assert_eq!(sniff_all(b"\r\n"), Sniffed::Other);
        assert_eq!(sniff_all(b"GET / HTTP/1.1\r\nHost: a.example\r\n"), http);
        assert_eq!(sniff_all(b"\x16\x03\x01\x02"), Sniffed::Tls { name: None });
        let whole = b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";
        assert_eq!(sniff_all(whole), Sniffed::Http { host: name("a.example") });
    }
}
