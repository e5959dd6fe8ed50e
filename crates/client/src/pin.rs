//! Servers that are known by the fingerprint of their certificate: `https://HOST:PORT#sha256:HEX`.
//!
//! The certificate is fetched once, in a handshake that accepts no other, and is then the only one
//! that is trusted. No CA is asked.

use msb_spec::{Error, Kind, Result};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring as provider};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{
    self, ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme,
};
use ureq::http::Uri;

/// Limit of the handshake.
const LIMIT: Duration = Duration::from_secs(10);

/// SHA-256 of a certificate in DER.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Splits the fingerprint off an address, if there is one.
    pub(crate) fn split(url: &str) -> Result<(&str, Option<Self>)> {
        let Some((url, pin)) = url.split_once('#') else { return Ok((url, None)) };
        let digits = pin.strip_prefix("sha256:").unwrap_or_default();
        let mut bytes = [0; 32];
        let valid = url.starts_with("https://")
            && digits.len() == 64
            && digits.is_ascii()
            && bytes.iter_mut().enumerate().all(|(at, byte)| {
                let digits = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16);
                digits.map(|value| *byte = value).is_ok()
            });
        match valid {
            true => Ok((url, Some(Self(bytes)))),
            false => Err(Error::invalid("not the fingerprint of a server's certificate")
                .hint("write it as `https://HOST:PORT#sha256:` with 64 digits; `msb server start --tls-self-signed` prints it")),
        }
    }

    /// Fetches the certificate with this fingerprint.
    pub(crate) fn fetch(self, uri: &Uri) -> Result<CertificateDer<'static>> {
        let about = |error: &dyn std::fmt::Display| {
            Error::new(Kind::Host, format!("cannot reach the server at {uri}")).cause(error)
        };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let address = (host.as_str(), uri.port_u16().unwrap_or(443));
        let mut stream = TcpStream::connect(address).map_err(|error| about(&error))?;
        let limited = stream.set_read_timeout(Some(LIMIT));
        limited.and_then(|()| stream.set_write_timeout(Some(LIMIT))).map_err(|e| about(&e))?;
        let crypto = Arc::new(provider::default_provider());
        let verifier = PinVerifier { pin: self, crypto: Arc::clone(&crypto) };
        let config = ClientConfig::builder_with_provider(crypto)
            .with_safe_default_protocol_versions()
            .map_err(|error| about(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        let name = ServerName::try_from(host).map_err(|error| about(&error))?;
        let connection = ClientConnection::new(Arc::new(config), name);
        let mut connection = connection.map_err(|error| about(&error))?;
        while connection.is_handshaking() {
            connection.complete_io(&mut stream).map_err(|error| {
                about(&error).hint("a server with another certificate may have taken its place")
            })?;
        }
        let certificates = connection.peer_certificates().unwrap_or_default();
        let first = certificates.first().ok_or_else(|| about(&"it has no certificate"))?;
        Ok(first.clone().into_owned())
    }
}

/// Accepts the certificate with one fingerprint and no other.
#[derive(Debug)]
struct PinVerifier {
    pin: Fingerprint,
    crypto: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
        match digest.as_ref() == self.pin.0 {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(rustls::Error::General("the certificate has another fingerprint".into())),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.crypto.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.crypto.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_split_off_addresses() {
        let digits = "0a".repeat(32);
        let url = format!("https://box:5555#sha256:{digits}");
        let pinned = Fingerprint::split(&url).unwrap();
        assert_eq!(pinned, ("https://box:5555", Some(Fingerprint([10; 32]))));
        assert_eq!(Fingerprint::split("http://box").unwrap(), ("http://box", None));
        for bad in [
            format!("http://box#sha256:{digits}"),
            format!("https://box#{digits}"),
            format!("https://box#sha256:{}", &digits[1..]),
            format!("https://box#sha256:{}zz", &digits[2..]),
        ] {
            assert!(Fingerprint::split(&bad).is_err(), "{bad}");
        }
    }
}
