//! TLS towards servers: the HTTP versions that are offered, and the verified handshake.

use crate::intercept::upstream::{ByteStream, HANDSHAKE_TIMEOUT, UpstreamError, UpstreamStream};
use std::sync::Arc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// A version of HTTP, as negotiated by ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum HttpVersion {
    /// HTTP/1.1, and HTTP/1.0 of clients.
    Http1,
    /// HTTP/2, over TLS only.
    Http2,
}

impl HttpVersion {
    /// The ALPN protocol id of this version.
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// The HTTP versions that a client offers in ALPN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AlpnOffer {
    Only(HttpVersion),
    Both,
}

/// TLS configurations for connections to servers, by the HTTP versions to offer.
pub(crate) struct ClientTls {
    pub(crate) both: Arc<ClientConfig>,
    pub(crate) http1: Arc<ClientConfig>,
    pub(crate) http2: Arc<ClientConfig>,
}

impl ClientTls {
    pub(crate) fn new(roots: Vec<Vec<u8>>) -> Self {
        let mut store = RootCertStore::empty();
        // Certificates that cannot be parsed are skipped.
        store.add_parsable_certificates(roots.into_iter().map(CertificateDer::from));
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has ciphers for the default TLS versions")
            .with_root_certificates(store)
            .with_no_client_auth();
        // Clones share the cache of resumable sessions.
        let with = |protocols: &[HttpVersion]| {
            let mut config = config.clone();
            config.alpn_protocols =
                protocols.iter().map(|version| version.alpn().to_vec()).collect();
            Arc::new(config)
        };
        Self {
            both: with(&[HttpVersion::Http2, HttpVersion::Http1]),
            http1: with(&[HttpVersion::Http1]),
            http2: with(&[HttpVersion::Http2]),
        }
    }
}

pub(crate) async fn tls_handshake(
    config: &Arc<ClientConfig>,
    name: &str,
    offer: AlpnOffer,
    stream: Box<dyn ByteStream>,
) -> Result<UpstreamStream, UpstreamError> {
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| UpstreamError::Tls("the name is not valid in a certificate".to_owned()))?;
    let handshake = TlsConnector::from(Arc::clone(config)).connect(name, stream);
    let stream = match timeout(HANDSHAKE_TIMEOUT, handshake).await {
        Err(_) => return Err(UpstreamError::Slow),
        Ok(Err(error)) => return Err(tls_error(&error)),
        Ok(Ok(stream)) => stream,
    };
    let protocol = match (stream.get_ref().1.alpn_protocol(), offer) {
        (Some(b"h2"), _) => HttpVersion::Http2,
        (None, AlpnOffer::Only(HttpVersion::Http2)) => {
            return Err(UpstreamError::Tls("the server does not speak HTTP/2".to_owned()));
        }
        _ => HttpVersion::Http1,
    };
    Ok(UpstreamStream { stream: Box::new(stream), protocol })
}

fn tls_error(error: &std::io::Error) -> UpstreamError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => UpstreamError::Certificate(why.to_string()),
        Some(error) => UpstreamError::Tls(error.to_string()),
        None => UpstreamError::Tls(error.to_string()),
    }
}
