//! The HTTP proxy of the host: whom it is for, and how a stream through it is asked for.
//!
//! Bytes in, bytes out: whoever has a socket to the proxy can use this, blocking or not.

use crate::secret_value::SecretValue;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use msb_spec::{Decision, DomainName, Error, Range, Result};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// The head of a proxy's answer is one line and a few headers.
const ANSWER: usize = 16 << 10;

/// An HTTP proxy that stands between this host and the rest.
#[derive(Debug)]
pub struct Proxy {
    /// Its name or address.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Whether it is itself spoken to in TLS (`https://`).
    pub tls: bool,
    /// Where it is, found before the gateway is confined.
    pub addresses: Vec<SocketAddr>,
    /// Whether it is told names and resolves them itself. What it finds then is not judged.
    pub resolves: bool,
    credentials: Option<SecretValue>,
    exempt: Vec<Exempt>,
}

/// Whom the proxy is not for.
#[derive(Debug, PartialEq, Eq)]
struct Exempt {
    whom: Whom,
    port: Option<u16>,
}

#[derive(Debug, PartialEq, Eq)]
enum Whom {
    Everybody,
    Name(DomainName),
    Range(Range),
}

impl Proxy {
    /// Reads what `HTTPS_PROXY` and `NO_PROXY` say: `http://user:password@host:port`, and a list
    /// of names (each with all below it), addresses, networks or `*`.
    pub fn parse(url: &str, no_proxy: &str) -> Result<Self> {
        // The text may hold a password: it is never repeated.
        let wrong = |why: &str| {
            Error::invalid("the address of the HTTP proxy cannot be used")
                .cause(why)
                .hint("write it as `http://proxy.example.com:3128`")
        };
        let (scheme, rest) = url.trim().split_once("://").unwrap_or(("http", url.trim()));
        let (tls, usual) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (false, 80),
            "https" => (true, 443),
            _ => return Err(wrong("it is neither `http` nor `https`")),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, place) = match authority.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, authority),
        };
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && !port.contains(']') => {
                (host, port.parse().map_err(|_| wrong("its port is not a number"))?)
            }
            _ => (place, usual),
        };
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let address = host.parse::<IpAddr>();
        if address.is_err() && DomainName::parse(host).is_err() {
            return Err(wrong("its host is neither a name nor an address"));
        }
        let credentials = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            let plain = zeroize::Zeroizing::new(
                [&percent_decoded(name)[..], b":", &percent_decoded(password)[..]].concat(),
            );
            SecretValue::new(STANDARD.encode(&*plain).into_bytes())
        });
        Ok(Self {
            host: host.to_owned(),
            port,
            tls,
            addresses: address.map(|ip| SocketAddr::new(ip, port)).into_iter().collect(),
            resolves: false,
            credentials,
            exempt: no_proxy.split([',', ' ']).filter_map(Exempt::parse).collect(),
        })
    }

    /// Looks up where it is, with the host's own means; blocks.
    pub fn locate(&mut self) -> Result<()> {
        if self.addresses.is_empty() {
            let found = (self.host.as_str(), self.port).to_socket_addrs();
            let failed = |cause: &dyn std::fmt::Display| {
                Error::host(format!("cannot find the HTTP proxy `{}`", self.host), cause)
            };
            self.addresses = found.map_err(|error| failed(&error))?.collect();
        }
        Ok(())
    }

    /// Whether streams to this name at this address go through the proxy.
    pub(crate) fn is_for(&self, name: Option<&DomainName>, address: SocketAddr) -> bool {
        let own = address.ip().to_canonical();
        !own.is_loopback() && !self.exempt.iter().any(|exempt| exempt.covers(name, address))
    }

    /// Whether plain requests are handed to it as a whole, which it resolves the name of. Others
    /// go through a tunnel to their address, as everything in TLS does.
    pub(crate) fn takes_requests(&self) -> bool {
        self.resolves
    }

    /// What to send to be joined to `address`, which was judged. A name would be resolved once more,
    /// perhaps to another address, so it is sent only to a proxy that is trusted to do that.
    pub(crate) fn connect_request(
        &self,
        name: Option<&DomainName>,
        address: SocketAddr,
    ) -> zeroize::Zeroizing<Vec<u8>> {
        let host = match name.filter(|_| self.resolves) {
            Some(name) => format!("{name}:{}", address.port()),
            None => SocketAddr::new(address.ip().to_canonical(), address.port()).to_string(),
        };
        let mut head = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n").into_bytes();
        if let Some(credentials) = &self.credentials {
            // Enough at once: a growing buffer would leave copies behind.
            head.reserve_exact(credentials.bytes().len() + 64);
            head.extend_from_slice(b"Proxy-Authorization: Basic ");
            head.extend_from_slice(credentials.bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        zeroize::Zeroizing::new(head)
    }

    /// What must not be shown to anybody: user and password as they are sent, and as they are.
    pub(crate) fn credentials(&self) -> Vec<zeroize::Zeroizing<Vec<u8>>> {
        let Some(encoded) = self.credentials.as_ref().map(SecretValue::bytes) else {
            return Vec::new();
        };
        let mut all = vec![zeroize::Zeroizing::new(encoded.to_vec())];
        all.extend(STANDARD.decode(encoded).ok().map(zeroize::Zeroizing::new));
        all
    }

    /// The value of `Proxy-Authorization`, for requests that are not joined but passed on.
    pub(crate) fn authorization(&self) -> Option<zeroize::Zeroizing<Vec<u8>>> {
        let credentials = self.credentials.as_ref()?;
        Some(zeroize::Zeroizing::new([b"Basic ", credentials.bytes()].concat()))
    }
}

/// What a proxy has answered so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Too little to tell.
    More,
    /// Joined; the stream begins behind this many bytes.
    Joined(usize),
    /// It will not; the status it gave, if it gave one.
    Refused(Option<u16>),
}

/// Reads the answer to [`Proxy::connect_request`].
pub(crate) fn answer(bytes: &[u8]) -> Answer {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else {
        return if bytes.len() < ANSWER { Answer::More } else { Answer::Refused(None) };
    };
    let status = bytes.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(1..5));
    let digits = status.and_then(|text| text.strip_prefix(b" "));
    match digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()) {
        Some(200..=299) => Answer::Joined(end + 4),
        status => Answer::Refused(status),
    }
}

impl Exempt {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "*" {
            return Some(Self { whom: Whom::Everybody, port: None });
        }
        if let Ok(range) = Range::parse(text) {
            return Some(Self { whom: Whom::Range(range), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let name = host.strip_prefix("*.").or(host.strip_prefix('.')).unwrap_or(host);
        let whom = match Range::parse(host) {
            Ok(range) => Whom::Range(range),
            Err(_) => Whom::Name(DomainName::parse(name).ok()?),
        };
        Some(Self { whom, port })
    }

    fn covers(&self, name: Option<&DomainName>, address: SocketAddr) -> bool {
        let port = self.port.is_none_or(|port| port == address.port());
        port && match &self.whom {
            Whom::Everybody => true,
            Whom::Name(own) => name.is_some_and(|name| name == own || name.is_below(own)),
            Whom::Range(range) => range.covers(Decision::Allow, address.ip()),
        }
    }
}

/// The bytes that `%XX` stand for; anything else is itself.
pub(crate) fn percent_decoded(text: impl AsRef<[u8]>) -> zeroize::Zeroizing<Vec<u8>> {
    let text = text.as_ref();
    let mut bytes = zeroize::Zeroizing::new(Vec::with_capacity(text.len()));
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let pair = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let digits = pair.filter(|pair| pair.iter().all(u8::is_ascii_hexdigit));
        let decoded = digits
            .and_then(|pair| std::str::from_utf8(pair).ok())
            .and_then(|pair| u8::from_str_radix(pair, 16).ok());
        bytes.push(decoded.unwrap_or(*byte));
        at += if decoded.is_some() { 3 } else { 1 };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_as_they_are_written() {
        for (url, host, port, tls, credentials) in [
            ("http://proxy.example:3128", "proxy.example", 3128, false, None),
            ("proxy.example:3128/", "proxy.example", 3128, false, None),
            ("https://proxy.example", "proxy.example", 443, true, None),
            ("http://[::1]:8080", "::1", 8080, false, None),
            ("http://[::1]", "::1", 80, false, None),
            ("http://me:p%40ss@proxy.example", "proxy.example", 80, false, Some("me:p@ss")),
        ] {
            let proxy = Proxy::parse(url, "").unwrap();
            assert_eq!((proxy.host.as_str(), proxy.port, proxy.tls), (host, port, tls), "{url}");
            let wanted = credentials.map(|text| STANDARD.encode(text).into_bytes());
            assert_eq!(proxy.credentials.map(|own| own.bytes().to_vec()), wanted, "{url}");
        }
        for url in ["", "ftp://proxy.example", "http://a b", "http://me:hidden@x y:1", "http://x:p"]
        {
            let error = Proxy::parse(url, "").unwrap_err();
            assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
        }
    }

    #[test]
    fn whom_no_proxy_names_is_reached_directly() {
        let list = "localhost, .corp.example,*.lab.example exact.example:8443 10.0.0.0/8,[fd00::1]";
        let proxy = Proxy::parse("http://proxy.example", list).unwrap();
        for (name, address, used) in [
            ("public.example", "1.2.3.4:443", true),
            ("corp.example", "1.2.3.4:443", false),
            ("a.corp.example", "1.2.3.4:443", false),
            ("notcorp.example", "1.2.3.4:443", true),
            ("a.lab.example", "1.2.3.4:443", false),
            ("exact.example", "1.2.3.4:443", true),
            ("exact.example", "1.2.3.4:8443", false),
            ("other.example", "10.1.2.3:443", false),
            ("other.example", "[fd00::1]:443", false),
            ("other.example", "127.0.0.1:443", false),
        ] {
            let address = address.parse().unwrap();
            let name = DomainName::parse(name).unwrap();
            assert_eq!(proxy.is_for(Some(&name), address), used, "{name} {address}");
        }
        let nobody = Proxy::parse("http://proxy.example", "*").unwrap();
        assert!(!nobody.is_for(None, "1.2.3.4:443".parse().unwrap()));
    }

    #[test]
    fn a_stream_is_asked_for_with_credentials() {
        let proxy = Proxy::parse("http://me:pass@proxy.example", "").unwrap();
        let name = DomainName::parse("a.example").unwrap();
        let head = proxy.connect_request(Some(&name), "192.0.2.7:443".parse().unwrap());
        assert_eq!(
            std::str::from_utf8(&head).unwrap(),
            "CONNECT 192.0.2.7:443 HTTP/1.1\r\nHost: 192.0.2.7:443\r\n\
             Proxy-Authorization: Basic bWU6cGFzcw==\r\n\r\n"
        );
    }

    #[test]
    fn a_proxy_is_asked_for_the_address_that_was_judged() {
        let mut proxy = Proxy::parse("http://proxy.example", "").unwrap();
        let name = DomainName::parse("a.example").unwrap();
        for (name, address, resolves, asked) in [
            (Some(&name), "192.0.2.7:443", false, "CONNECT 192.0.2.7:443 "),
            (Some(&name), "[2001:db8::7]:443", false, "CONNECT [2001:db8::7]:443 "),
            (Some(&name), "[::ffff:192.0.2.7]:80", false, "CONNECT 192.0.2.7:80 "),
            (None, "192.0.2.7:443", true, "CONNECT 192.0.2.7:443 "),
            (Some(&name), "192.0.2.7:443", true, "CONNECT a.example:443 "),
        ] {
            proxy.resolves = resolves;
            let head = proxy.connect_request(name, address.parse().unwrap());
            assert!(head.starts_with(asked.as_bytes()), "{asked}");
        }
    }

    #[test]
    fn answers_are_read_whole() {
        for (bytes, wanted) in [
            ("", Answer::More),
            ("HTTP/1.1 200 OK\r\n", Answer::More),
            ("HTTP/1.1 200 OK\r\n\r\nrest", Answer::Joined(19)),
            ("HTTP/1.0 200 x\r\na: b\r\n\r\n", Answer::Joined(24)),
            ("HTTP/1.1 407 x\r\n\r\n", Answer::Refused(Some(407))),
            ("SSH-2.0\r\n\r\n", Answer::Refused(None)),
            ("HTTP/1.1 \r\n\r\n", Answer::Refused(None)),
        ] {
            assert_eq!(answer(bytes.as_bytes()), wanted, "{bytes}");
        }
        assert_eq!(answer(&[b'x'; ANSWER]), Answer::Refused(None));
    }
}
