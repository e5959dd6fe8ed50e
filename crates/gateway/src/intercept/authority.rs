//! The certificate authority of one sandbox, and the certificates it gives for names.
//!
//! Made when the sandbox starts and known to it alone: nobody else trusts it, and its key never
//! leaves the memory of the gateway.

use super::upstream::Protocol;
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

/// Clocks inside may be a little behind.
const BEFORE: Duration = Duration::days(1);
/// Longer than any sandbox runs.
const CA_LIFE: Duration = Duration::days(3650);
/// Clients mistrust certificates that live for years.
const LEAF_LIFE: Duration = Duration::days(90);
/// From then on a certificate is made anew.
const LEAF_AGE: Duration = Duration::days(30);
/// Names that a sandbox really uses; one that makes up names below a wildcard pays for it itself.
const MOST_NAMES: usize = 256;

/// What the inside has to trust.
#[derive(Debug, Clone)]
pub(crate) struct Authority {
    /// The certificate in PEM.
    pub(crate) pem: String,
}

/// Gives certificates.
pub(crate) struct Issuing {
    issuer: Issuer<'static, KeyPair>,
    /// One key for all names: they end at the same place anyway.
    leaf: KeyPair,
    signing: Arc<dyn tokio_rustls::rustls::sign::SigningKey>,
    provider: Arc<CryptoProvider>,
    known: HashMap<(DomainName, Protocol), (OffsetDateTime, Arc<ServerConfig>)>,
}

impl Issuing {
    /// Makes the authority.
    pub(crate) fn new() -> Result<(Self, Authority)> {
        Self::make().map_err(|cause| {
            Error::host("cannot make the certificate authority of the sandbox", cause)
        })
    }

    fn make() -> Result<(Self, Authority), Box<dyn std::error::Error>> {
        let provider = Arc::new(ring::default_provider());
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = named("msb sandbox authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        (params.not_before, params.not_after) = life(CA_LIFE);
        params.serial_number = Some(serial(&provider)?);
        let pem = params.self_signed(&key)?.pem();
        let leaf = KeyPair::generate()?;
        let der = PrivatePkcs8KeyDer::from(leaf.serialized_der()).clone_key().into();
        let signing = provider.key_provider.load_private_key(der)?;
        let issuer = Issuer::new(params, key);
        Ok((Self { issuer, leaf, signing, provider, known: HashMap::new() }, Authority { pem }))
    }

    /// What TLS needs to be `name` towards the inside.
    pub(crate) fn config(
        &mut self,
        name: &DomainName,
        protocol: Protocol,
    ) -> Result<Arc<ServerConfig>> {
        let now = OffsetDateTime::now_utc();
        let key = (name.clone(), protocol);
        if let Some((made, config)) = self.known.get(&key)
            && now - *made < LEAF_AGE
        {
            return Ok(Arc::clone(config));
        }
        if self.known.len() >= MOST_NAMES {
            self.known.clear();
        }
        let config = self.issue(name, protocol).map_err(|cause| {
            Error::host(format!("cannot make a certificate for `{name}`"), cause)
        })?;
        let config = Arc::new(config);
        self.known.insert(key, (now, Arc::clone(&config)));
        Ok(config)
    }

    fn issue(
        &self,
        name: &DomainName,
        protocol: Protocol,
    ) -> Result<ServerConfig, Box<dyn std::error::Error>> {
        let mut params = CertificateParams::default();
        // A common name has room for 64 letters.
        let short = name.as_str().len() <= 64;
        params.distinguished_name = named(if short { name.as_str() } else { "msb" });
        params.subject_alt_names = vec![SanType::DnsName(name.as_str().try_into()?)];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Python refuses chains without it.
        params.use_authority_key_identifier_extension = true;
        (params.not_before, params.not_after) = life(LEAF_LIFE);
        params.serial_number = Some(serial(&self.provider)?);
        let certificate = params.signed_by(&self.leaf, &self.issuer)?;
        let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
        let certified = CertifiedKey::new(chain, Arc::clone(&self.signing));
        let resolver: Arc<dyn ResolvesServerCert> = Arc::new(SingleCertAndKey::from(certified));
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&version::TLS13, &version::TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        config.alpn_protocols = vec![protocol.alpn().to_vec()];
        // A handshake costs little on one machine, sessions of made-up names cost memory.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }
}

fn named(text: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, text);
    name
}

fn life(length: Duration) -> (OffsetDateTime, OffsetDateTime) {
    let now = OffsetDateTime::now_utc();
    (now - BEFORE, now + length)
}

/// Never the same twice: some clients refuse two certificates with one number.
fn serial(provider: &CryptoProvider) -> Result<SerialNumber, &'static str> {
    let mut bytes = [0; 16];
    provider.secure_random.fill(&mut bytes).map_err(|_| "no random numbers")?;
    bytes[0] &= 0x7f;
    Ok(SerialNumber::from_slice(&bytes))
}
