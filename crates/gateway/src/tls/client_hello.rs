//! Reads the ClientHello of a TLS client, and the server name (SNI) in it.
//!
//! A hello with several names, or one that cannot be parsed, is TLS without a name.

use crate::tcp::sniff::{MAX_SNIFF_BYTES, ParseStop, SniffResult};
use msb_spec::DomainName;

/// The content type of TLS records that hold handshake messages.
pub(crate) const HANDSHAKE: u8 = 22;
/// The handshake type of a ClientHello.
const CLIENT_HELLO: u8 = 1;
/// The type of the `server_name` extension.
const SERVER_NAME: u16 = 0;
/// The longest TLS record in bytes (RFC 8446, section 5.1).
const MAX_RECORD_LEN: usize = 1 << 14;

pub(crate) fn sniff_tls(bytes: &[u8]) -> SniffResult {
    match client_hello(bytes) {
        // A complete ClientHello that cannot be parsed is TLS without a name.
        Ok(message) => SniffResult::Tls { name: server_name(&message).unwrap_or(None) },
        Err(ParseStop::Short) => SniffResult::Incomplete,
        Err(ParseStop::Wrong) => SniffResult::Other,
    }
}

/// The body of the ClientHello, reassembled from its records.
fn client_hello(mut bytes: &[u8]) -> Result<Vec<u8>, ParseStop> {
    let mut message = Vec::new();
    loop {
        // The available bytes are checked before more are waited for, so that a stream that cannot
        // become TLS is not held.
        for (byte, fits) in bytes.iter().zip([
            (|byte| byte == HANDSHAKE) as fn(u8) -> bool,
            |byte| byte == 3,
            |byte| byte <= 4,
        ]) {
            if !fits(*byte) {
                return Err(ParseStop::Wrong);
            }
        }
        let Some((head, rest)) = bytes.split_first_chunk::<5>() else {
            return Err(ParseStop::Short);
        };
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if length == 0 || length > MAX_RECORD_LEN {
            return Err(ParseStop::Wrong);
        }
        message.extend_from_slice(&rest[..length.min(rest.len())]);
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(ParseStop::Wrong);
        }
        if let Some([_, a, b, c]) = message.first_chunk() {
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if length > MAX_SNIFF_BYTES {
                return Err(ParseStop::Wrong);
            }
            if message.len() >= 4 + length {
                return Ok(message[4..4 + length].to_vec());
            }
        }
        if rest.len() < length {
            return Err(ParseStop::Short);
        }
        bytes = &rest[length..];
    }
}

/// The server name of a ClientHello, if there is exactly one; the outer `None` means a malformed
/// message.
fn server_name(hello: &[u8]) -> Option<Option<DomainName>> {
    let mut hello = TlsReader(hello);
    hello.take(2 + 32)?;
    hello.vector(1)?;
    hello.vector(2)?;
    hello.vector(1)?;
    if hello.0.is_empty() {
        return Some(None);
    }
    let mut extensions = TlsReader(hello.vector(2)?);
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
        let mut body = TlsReader(body);
        let mut names = TlsReader(body.vector(2)?);
        let host = (names.number(1)? == 0).then(|| names.vector(2)).flatten()?;
        // With a second name or list, the server could read another one than we do.
        if !names.0.is_empty() || !body.0.is_empty() || found.is_some() {
            return None;
        }
        found = Some(DomainName::parse(std::str::from_utf8(host).ok()?).ok()?);
    }
    Some(found)
}

/// Reads numbers and length-prefixed vectors of the TLS encoding.
struct TlsReader<'a>(&'a [u8]);

impl<'a> TlsReader<'a> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::sniff::sniff;

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

    /// A ClientHello in records of at most `piece` bytes.
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
        let with = |extensions: &[Vec<u8>]| sniff(&hello(extensions, MAX_RECORD_LEN));
        let sniff_tls = |name| SniffResult::Tls { name };
        assert_eq!(with(&[other.clone(), one.clone()]), sniff_tls(name("api.example.com")));
        assert_eq!(with(std::slice::from_ref(&other)), sniff_tls(None));
        assert_eq!(with(&[one.clone(), one.clone()]), sniff_tls(None), "two lists");
        let two = extension(SERVER_NAME, &names(&[b"a.example", b"b.example"]));
        assert_eq!(with(&[two]), sniff_tls(None), "two names");
        for wrong in [&b"10.0.0.1"[..], b"a b", b"\xff", b"", b"a.example\0.b.example"] {
            let one = extension(SERVER_NAME, &names(&[wrong]));
            assert_eq!(with(&[one]), sniff_tls(None), "{wrong:?}");
        }
    }

    #[test]
    fn a_hello_is_read_in_any_chunking() {
        let one = extension(SERVER_NAME, &names(&[b"api.example.com"]));
        for piece in [1, 2, 3, 5, 50, MAX_RECORD_LEN] {
            let bytes = hello(std::slice::from_ref(&one), piece);
            for end in 0..bytes.len() {
                assert_eq!(sniff(&bytes[..end]), SniffResult::Incomplete, "{piece} {end}");
            }
            assert_eq!(sniff(&bytes), SniffResult::Tls { name: name("api.example.com") });
        }
    }

    #[test]
    fn broken_tls_is_other() {
        for bytes in [
            &b"\x16\x02"[..],
            b"\x16\x03\x09",
            b"\x16\x03\x01\x00\x00",
            b"\x16\x03\x01\xff\xff",
            b"\x16\x03\x01\x00\x05\x02",
            b"\x16\x03\x01\x00\x05\x01\xff\xff\xff",
            b"\x16\x03\x01\x00\x01\x01\x17",
        ] {
            assert_eq!(sniff(bytes), SniffResult::Other, "{bytes:?}");
        }
        let long = [&b"\x16\x03\x01\x40\x00\x01\x00\xff\xff"[..], &[0; MAX_RECORD_LEN]].concat();
        assert_eq!(sniff(&long[..5 + MAX_RECORD_LEN]), SniffResult::Incomplete);
    }
}
