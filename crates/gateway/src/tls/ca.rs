//! The certificate authority (CA) of one sandbox, and the server certificates that it issues.
//!
//! The CA is generated when the sandbox starts. Only this sandbox trusts it, and its key never
//! leaves the memory of the gateway.

use super::client::HttpVersion;
use msb_spec::{DomainName, Error, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SerialNumber,
};
use std::collections::HashMap;
use std::sync::Arc;
use time::{Duration, OffsetDateTime};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio_rustls::rustls::{ServerConfig, version};

/// Certificates are valid from one day ago: the clock of the guest may be behind.
const CLOCK_SKEW: Duration = Duration::days(1);
/// The lifetime of the CA, longer than any sandbox runs.
const CA_LIFETIME: Duration = Duration::days(3650);
/// The lifetime of server certificates: clients reject those that are valid for years.
const LEAF_LIFETIME: Duration = Duration::days(90);
/// The age at which a server certificate is issued again.
const LEAF_RENEWAL: Duration = Duration::days(30);
/// Cached certificates: enough for the names that a sandbox uses. Random names below a wildcard
/// empty the cache.
const MAX_CACHED: usize = 256;

/// The CA certificate that the sandbox has to trust.
#[derive(Debug, Clone)]
pub(crate) struct CaCertificate {
    /// The certificate, encoded as PEM.
    pub(crate) pem: String,
}

/// Issues server certificates and caches their TLS configurations.
pub(crate) struct CertificateIssuer {
    issuer: Issuer<'static, KeyPair>,
    /// One key for all names: the gateway terminates all of them.
    leaf_key: KeyPair,
    leaf_signer: Arc<dyn tokio_rustls::rustls::sign::SigningKey>,
    provider: Arc<CryptoProvider>,
    issued: HashMap<(DomainName, HttpVersion), (OffsetDateTime, Arc<ServerConfig>)>,
}

impl CertificateIssuer {
    /// Generates the CA; fails if the host has no random numbers.
    pub(crate) fn new() -> Result<(Self, CaCertificate)> {
        Self::generate()
            .map_err(|cause| Error::host("cannot generate the CA of the sandbox", cause))
    }

    fn generate() -> Result<(Self, CaCertificate), Box<dyn std::error::Error>> {
        let provider = Arc::new(ring::default_provider());
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = common_name("msb sandbox authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = validity(CA_LIFETIME);
        params.serial_number = Some(serial(&provider)?);
        let pem = params.self_signed(&key)?.pem();
        let leaf_key = KeyPair::generate()?;
        let der = PrivatePkcs8KeyDer::from(leaf_key.serialized_der()).clone_key().into();
        let leaf_signer = provider.key_provider.load_private_key(der)?;
        let issuer = Issuer::new(params, key);
        Ok((
            Self { issuer, leaf_key, leaf_signer, provider, issued: HashMap::new() },
            CaCertificate { pem },
        ))
    }

    /// The TLS configuration that presents a certificate for `name` to the client.
    pub(crate) fn server_config(
        &mut self,
        name: &DomainName,
        protocol: HttpVersion,
    ) -> Result<Arc<ServerConfig>> {
        let now = OffsetDateTime::now_utc();
        let key = (name.clone(), protocol);
        if let Some((issued_at, server_config)) = self.issued.get(&key)
            && now - *issued_at < LEAF_RENEWAL
        {
            return Ok(Arc::clone(server_config));
        }
        if self.issued.len() >= MAX_CACHED {
            self.issued.clear();
        }
        let server_config = self.issue(name, protocol).map_err(|cause| {
            Error::host(format!("cannot issue a certificate for `{name}`"), cause)
        })?;
        let server_config = Arc::new(server_config);
        self.issued.insert(key, (now, Arc::clone(&server_config)));
        Ok(server_config)
    }

    fn issue(
        &self,
        name: &DomainName,
        protocol: HttpVersion,
    ) -> Result<ServerConfig, Box<dyn std::error::Error>> {
        let mut params = CertificateParams::default();
        // A common name has at most 64 characters.
        let short = name.as_str().len() <= 64;
        params.distinguished_name = common_name(if short { name.as_str() } else { "msb" });
        params.subject_alt_names = vec![SanType::DnsName(name.as_str().try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Python rejects certificate chains without it.
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = validity(LEAF_LIFETIME);
        params.serial_number = Some(serial(&self.provider)?);
        let certificate = params.signed_by(&self.leaf_key, &self.issuer)?;
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        let certified = CertifiedKey::new(chain, Arc::clone(&self.leaf_signer));
        let resolver: Arc<dyn ResolvesServerCert> = Arc::new(SingleCertAndKey::from(certified));
        let mut server_config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        server_config.alpn_protocols = vec![protocol.alpn().to_vec()];
        // A handshake on one host is cheap; stored sessions of random names would cost memory.
        server_config.session_storage = Arc::new(NoServerSessionStorage {});
        server_config.send_tls13_tickets = 0;
        Ok(server_config)
    }
}

fn common_name(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn validity(length: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - CLOCK_SKEW, now + length)
}

/// A random serial number: some clients reject two certificates with the same one.
fn serial(provider: &CryptoProvider) -> Result<SerialNumber, &'static str> {
    let mut bytes = [0; 16];
    provider.secure_random.fill(&mut bytes).map_err(|_| "no random numbers")?;
    bytes[0] &= 0x7f;
    Ok(SerialNumber::from_slice(&bytes))
}
