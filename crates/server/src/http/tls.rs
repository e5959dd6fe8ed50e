//! TLS of the listener: a certificate chain and a key, as files in PEM.

use msb_spec::{Error, Result};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A self-signed certificate and its private key.
#[derive(Debug)]
pub struct SelfSigned {
    /// The certificate as PEM text.
    pub certificate: String,
    /// The private key as PEM text.
    pub key: String,
}

impl SelfSigned {
    /// Makes a certificate for these host names and addresses.
    pub fn new(names: Vec<String>) -> Result<Self> {
        let failed = |error| Error::host("cannot make a certificate", error);
        let key = rcgen::KeyPair::generate().map_err(failed)?;
        let parameters = rcgen::CertificateParams::new(names).map_err(failed)?;
        let certificate = parameters.self_signed(&key).map_err(failed)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// SHA-256 of the first certificate of a chain in PEM, as clients pin it: `sha256:HEX`.
pub fn fingerprint(chain: &[u8]) -> Result<String> {
    let first = CertificateDer::from_pem_slice(chain)
        .map_err(|error| Error::invalid("the certificate is not PEM").cause(error))?;
    let digest = ::ring::digest::digest(&::ring::digest::SHA256, &first);
    let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("sha256:{digits}"))
}

/// Checks that the key belongs to the certificate.
pub(crate) fn acceptor(chain: &[u8], key: &[u8]) -> Result<TlsAcceptor> {
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::invalid("the certificate is not PEM").cause(error))?;
    if certificates.is_empty() {
        return Err(Error::invalid("the file of the certificate has none"));
    }
    let key = PrivateKeyDer::from_pem_slice(key)
        .map_err(|error| Error::invalid("the private key is not PEM").cause(error))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map(|builder| builder.with_no_client_auth())
        .and_then(|builder| builder.with_single_cert(certificates, key))
        .map_err(|error| {
            Error::invalid("the certificate and the key cannot be used")
                .cause(error)
                .hint("the key must be the one that the certificate was made for")
        })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
