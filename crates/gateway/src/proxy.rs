//! The HTTP proxy of the host: which targets use it, and how a CONNECT tunnel is requested.
//!
//! Only bytes in and out: it works with blocking and non-blocking sockets.

use crate::secrets::secret_value::SecretValue;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use msb_spec::{Decision, DomainName, Error, Range, Result};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

/// The longest head of a proxy's reply, in bytes: a status line and a few headers.
const MAX_REPLY_HEAD: usize = 16 << 10;

/// The HTTP proxy between this host and the internet.
#[derive(Debug)]
pub struct HttpProxy {
    /// Its host name or IP address.
    pub host: String,
    /// Its TCP port: 80 or 443 by default.
    pub port: u16,
    /// Whether the connection to the proxy itself uses TLS (`https://`).
    pub tls: bool,
    /// Its resolved addresses, found before the gateway is jailed.
    pub addresses: Vec<SocketAddr>,
    /// Whether the proxy is given names and resolves them itself. The policy does not see the
    /// resulting address.
    pub resolves: bool,
    credentials: Option<SecretValue>,
    no_proxy: Vec<NoProxyEntry>,
}

/// An entry of `NO_PROXY`: targets that are reached directly.
#[derive(Debug, PartialEq, Eq)]
struct NoProxyEntry {
    target: NoProxyTarget,
    port: Option<u16>,
}

#[derive(Debug, PartialEq, Eq)]
enum NoProxyTarget {
    Any,
    Name(DomainName),
    Range(Range),
}

impl HttpProxy {
    /// Parses `HTTPS_PROXY` (`http://user:password@host:port`) and `NO_PROXY`: a list of domain
    /// names with their subdomains, addresses, networks or `*`.
    pub fn parse(url: &str, no_proxy: &str) -> Result<Self> {
        // The URL may hold a password, so errors never quote it.
        let invalid = |why: &str| {
            Error::invalid("the URL of the HTTP proxy is invalid")
                .cause(why)
                .hint("write it as `http://proxy.example.com:3128`")
        };
        let (scheme, rest) = url.trim().split_once("://").unwrap_or(("http", url.trim()));
        let (tls, default_port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (false, 80),
            "https" => (true, 443),
            _ => return Err(invalid("its scheme is neither `http` nor `https`")),
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, host_port) = match authority.rsplit_once('@') {
            Some((user, host_port)) => (Some(user), host_port),
            None => (None, authority),
        };
        let (host, port) = match host_port.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && !port.contains(']') => {
                (host, port.parse().map_err(|_| invalid("its port is not a number"))?)
            }
            _ => (host_port, default_port),
        };
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let address = host.parse::<IpAddr>();
        if address.is_err() && DomainName::parse(host).is_err() {
            return Err(invalid("its host is neither a name nor an address"));
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
            no_proxy: no_proxy.split([',', ' ']).filter_map(NoProxyEntry::parse).collect(),
        })
    }

    /// Resolves its host name with the resolver of the host; blocks.
    pub fn locate(&mut self) -> Result<()> {
        if self.addresses.is_empty() {
            let found = (self.host.as_str(), self.port).to_socket_addrs();
            let failed = |cause: &dyn std::fmt::Display| {
                Error::host(format!("cannot resolve the HTTP proxy `{}`", self.host), cause)
            };
            self.addresses = found.map_err(|error| failed(&error))?.collect();
        }
        Ok(())
    }

    /// Whether connections to this name at this address go through the proxy.
    pub(crate) fn applies_to(&self, name: Option<&DomainName>, address: SocketAddr) -> bool {
        let own = address.ip().to_canonical();
        !own.is_loopback() && !self.no_proxy.iter().any(|no_proxy| no_proxy.covers(name, address))
    }

    /// Whether plain HTTP requests are sent to the proxy in absolute form, so that it resolves the
    /// name. Otherwise they use a CONNECT tunnel to their address, as all TLS does.
    pub(crate) fn takes_requests(&self) -> bool {
        self.resolves
    }

    /// The CONNECT request for `address`, which the policy has allowed. The proxy would resolve a
    /// name once more, perhaps to another address, so a name is sent only if `resolves` is set.
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
            // Reserved at once: a growing buffer would leave copies of the credentials behind.
            head.reserve_exact(credentials.bytes().len() + 64);
            head.extend_from_slice(b"Proxy-Authorization: Basic ");
            head.extend_from_slice(credentials.bytes());
            head.extend_from_slice(b"\r\n");
        }
        head.extend_from_slice(b"\r\n");
        zeroize::Zeroizing::new(head)
    }

    /// User and password, as sent and decoded: responses must not show them to the sandbox.
    pub(crate) fn credentials(&self) -> Vec<zeroize::Zeroizing<Vec<u8>>> {
        let Some(encoded) = self.credentials.as_ref().map(SecretValue::bytes) else {
            return Vec::new();
        };
        let mut all = vec![zeroize::Zeroizing::new(encoded.to_vec())];
        all.extend(STANDARD.decode(encoded).ok().map(zeroize::Zeroizing::new));
        all
    }

    /// The value of `Proxy-Authorization`, for requests in absolute form.
    pub(crate) fn authorization(&self) -> Option<zeroize::Zeroizing<Vec<u8>>> {
        let credentials = self.credentials.as_ref()?;
        Some(zeroize::Zeroizing::new([b"Basic ", credentials.bytes()].concat()))
    }
}

/// The reply of a proxy to CONNECT, as far as it has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConnectReply {
    /// The head is not complete yet.
    Incomplete,
    /// The tunnel is open; its data begins after this many bytes.
    Established(usize),
    /// The proxy refused, with its status code if there was one.
    Refused(Option<u16>),
}

/// Parses the reply to [`HttpProxy::connect_request`].
pub(crate) fn parse_connect_reply(bytes: &[u8]) -> ConnectReply {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let Some(end) = end else {
        return if bytes.len() < MAX_REPLY_HEAD {
            ConnectReply::Incomplete
        } else {
            ConnectReply::Refused(None)
        };
    };
    let status = bytes.strip_prefix(b"HTTP/1.").and_then(|rest| rest.get(1..5));
    let digits = status.and_then(|text| text.strip_prefix(b" "));
    match digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()) {
        Some(200..=299) => ConnectReply::Established(end + 4),
        status => ConnectReply::Refused(status),
    }
}

impl NoProxyEntry {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        if text == "*" {
            return Some(Self { target: NoProxyTarget::Any, port: None });
        }
        if let Ok(range) = Range::parse(text) {
            return Some(Self { target: NoProxyTarget::Range(range), port: None });
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let name = host.strip_prefix("*.").or(host.strip_prefix('.')).unwrap_or(host);
        let target = match Range::parse(host) {
            Ok(range) => NoProxyTarget::Range(range),
            Err(_) => NoProxyTarget::Name(DomainName::parse(name).ok()?),
        };
        Some(Self { target, port })
    }

    fn covers(&self, name: Option<&DomainName>, address: SocketAddr) -> bool {
        let port = self.port.is_none_or(|port| port == address.port());
        port && match &self.target {
            NoProxyTarget::Any => true,
            NoProxyTarget::Name(own) => name.is_some_and(|name| name == own || name.is_below(own)),
            NoProxyTarget::Range(range) => range.covers(Decision::Allow, address.ip()),
        }
    }
}

/// Decodes `%XX`; other bytes stay as they are.
pub(crate) fn percent_decoded(text: impl AsRef<[u8]>) -> zeroize::Zeroizing<Vec<u8>> {
    let text = text.as_ref();
    // As long as the text, so that no copy is left by a reallocation.
    let mut bytes = zeroize::Zeroizing::new(Vec::with_capacity(text.len()));
    msb_spec::encoding::percent_decode_into(text, &mut bytes);
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
            let proxy = HttpProxy::parse(url, "").unwrap();
            assert_eq!((proxy.host.as_str(), proxy.port, proxy.tls), (host, port, tls), "{url}");
            let wanted = credentials.map(|text| STANDARD.encode(text).into_bytes());
            assert_eq!(proxy.credentials.map(|own| own.bytes().to_vec()), wanted, "{url}");
        }
        for url in ["", "ftp://proxy.example", "http://a b", "http://me:hidden@x y:1", "http://x:p"]
        {
            let error = HttpProxy::parse(url, "").unwrap_err();
            assert!(!format!("{error:?}").contains("hidden"), "{error:?}");
        }
    }

    #[test]
    fn no_proxy_entries_are_reached_directly() {
        let list = "localhost, .corp.example,*.lab.example exact.example:8443 10.0.0.0/8,[fd00::1]";
        let proxy = HttpProxy::parse("http://proxy.example", list).unwrap();
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
            assert_eq!(proxy.applies_to(Some(&name), address), used, "{name} {address}");
        }
        let never = HttpProxy::parse("http://proxy.example", "*").unwrap();
        assert!(!never.applies_to(None, "1.2.3.4:443".parse().unwrap()));
    }

    #[test]
    fn the_connect_request_has_credentials() {
        let proxy = HttpProxy::parse("http://me:pass@proxy.example", "").unwrap();
        let name = DomainName::parse("a.example").unwrap();
        let head = proxy.connect_request(Some(&name), "192.0.2.7:443".parse().unwrap());
        assert_eq!(
            std::str::from_utf8(&head).unwrap(),
            "CONNECT 192.0.2.7:443 HTTP/1.1\r\nHost: 192.0.2.7:443\r\n\
             Proxy-Authorization: Basic bWU6cGFzcw==\r\n\r\n"
        );
    }

    #[test]
    fn the_connect_request_names_the_decided_address() {
        let mut proxy = HttpProxy::parse("http://proxy.example", "").unwrap();
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
            ("", ConnectReply::Incomplete),
            ("HTTP/1.1 200 OK\r\n", ConnectReply::Incomplete),
            ("HTTP/1.1 200 OK\r\n\r\nrest", ConnectReply::Established(19)),
            ("HTTP/1.0 200 x\r\na: b\r\n\r\n", ConnectReply::Established(24)),
            ("HTTP/1.1 407 x\r\n\r\n", ConnectReply::Refused(Some(407))),
            ("SSH-2.0\r\n\r\n", ConnectReply::Refused(None)),
            ("HTTP/1.1 \r\n\r\n", ConnectReply::Refused(None)),
        ] {
            assert_eq!(parse_connect_reply(bytes.as_bytes()), wanted, "{bytes}");
        }
        assert_eq!(parse_connect_reply(&[b'x'; MAX_REPLY_HEAD]), ConnectReply::Refused(None));
    }
}
