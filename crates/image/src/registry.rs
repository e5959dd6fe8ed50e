//! Client of the OCI distribution API, over ureq.
//!
//! The registry is not trusted. Manifests are read up to a limit and blobs are verified by their
//! reader. Credentials are sent to the registry that they are for and to the token server that it
//! names over TLS. Other URLs in a manifest are ignored. `public_only` decides which addresses may
//! be connected to. The client is blocking: a few parallel transfers do not need more.

mod auth;
mod public_only;

pub use public_only::PullFor;

use crate::credentials::{Credential, Credentials};
use crate::manifest::{DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use crate::settings::{Mirror, Settings};
use crate::store::storage_error;
use auth::AuthCache;
use msb_spec::{Digest, Error, Kind, Reference, Result};
use public_only::PublicResolver;
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use ureq::http::{Method, Response, StatusCode};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::transport::DefaultConnector;
use ureq::{Agent, Body};

/// How to connect to a registry, beyond the settings file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistryOptions {
    /// Allows plain HTTP and TLS without a verified certificate.
    pub insecure: bool,
    /// PEM file with additional CA certificates.
    pub ca: Option<PathBuf>,
    /// Mirrors that are tried before the registry.
    pub mirrors: Vec<Mirror>,
    /// Credential for the registry; never sent to mirrors.
    pub login: Option<Credential>,
    /// On behalf of which caller the connection is made.
    pub pull_for: PullFor,
}

impl RegistryOptions {
    /// The credentials that may be used. A client that turns off TLS verification or brings its own
    /// CA could otherwise redirect the operator's passwords to its own server.
    pub(crate) fn credentials(&self, home: &Path, host: &str) -> Credentials {
        let own_trust = self.insecure || self.ca.is_some();
        let credentials = match self.pull_for {
            PullFor::Client | PullFor::NamespaceClient if own_trust => Credentials::none(),
            PullFor::Client | PullFor::NamespaceClient | PullFor::Operator => {
                Credentials::open(home)
            }
        };
        match &self.login {
            Some(login) => credentials.giving(host, login.clone()),
            None => credentials,
        }
    }
}

/// One endpoint of a registry: itself or a mirror, with one URL scheme.
#[derive(Debug)]
pub(crate) struct RegistryEndpoint {
    agent: Agent,
    /// URL prefix, as in `https://host:port`.
    base: String,
    /// Host that credentials are looked up for.
    host: String,
    auth: AuthCache,
}

/// Longest wait for a DNS answer or a TCP connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for the next bytes of a response.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Fewest bytes within [`IDLE_TIMEOUT`]. A registry that sends one byte now and then would
/// otherwise hold the transfer forever.
pub(crate) const MIN_BYTES: u64 = 16 << 10;
/// Largest CA file that is read. The bundle of a distribution is a quarter of this.
const CA_FILE_LIMIT: u64 = 1 << 20;
/// CA bundles of common distributions.
const SYSTEM_CA_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Largest error body that is read for its message.
const ERROR_BODY_LIMIT: u64 = 16 << 10;

/// Whether a host is this machine. Other tools try plain HTTP there, too.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost"
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The address of a registry host: that of docker.io differs from its name.
fn address_of(host: &str) -> &str {
    if host == "docker.io" { "registry-1.docker.io" } else { host }
}

/// Which addresses an endpoint may connect to.
struct ConnectPolicy {
    /// Resolver that filters addresses; none allows all.
    resolver: Option<PublicResolver>,
    /// Whether a proxy of the environment is used. A proxy resolves names itself, so the filter
    /// would not see the address that it connects to.
    uses_proxy: bool,
}

impl ConnectPolicy {
    fn new(pull_for: PullFor, settings: &Settings, host: &str, trusted: bool) -> Self {
        let endpoint = trusted.then(|| address_of(host));
        match pull_for {
            PullFor::Operator => Self { resolver: None, uses_proxy: true },
            PullFor::Client | PullFor::NamespaceClient => Self {
                resolver: Some(PublicResolver::new(settings, endpoint)),
                uses_proxy: trusted,
            },
        }
    }
}

impl RegistryEndpoint {
    /// All endpoints for a registry, in the order in which they are tried.
    pub(crate) fn all(
        host: &str,
        settings: &Settings,
        reach: &RegistryOptions,
        credentials: &Credentials,
    ) -> Result<Vec<Self>> {
        let configured = settings.registry(host);
        let mut endpoints = Vec::new();
        for mirror in &reach.mirrors {
            endpoints.push(Self::mirror(
                mirror,
                reach.pull_for,
                host,
                settings,
                reach,
                credentials,
            )?);
        }
        // The operator has named these in the settings, so any address is allowed.
        for mirror in &configured.mirrors {
            endpoints.push(Self::mirror(
                mirror,
                PullFor::Operator,
                host,
                settings,
                reach,
                credentials,
            )?);
        }
        endpoints.extend(Self::direct(host, settings, reach, credentials)?);
        Ok(endpoints)
    }

    /// A mirror of a registry. `named_by` is the caller that has configured it.
    fn mirror(
        mirror: &Mirror,
        named_by: PullFor,
        of: &str,
        settings: &Settings,
        reach: &RegistryOptions,
        credentials: &Credentials,
    ) -> Result<Self> {
        let own = settings.registry(mirror.host());
        let insecure = reach.insecure || own.insecure;
        let ca = reach.ca.clone().or(own.ca).or_else(|| settings.registry(of).ca);
        let scheme = if mirror.is_tls() { "https" } else { "http" };
        let trusted = named_by.trusts(settings, mirror.host());
        let policy = ConnectPolicy::new(reach.pull_for, settings, mirror.host(), trusted);
        Self::new(scheme, mirror.host(), insecure, ca, policy, credentials)
    }

    /// The registry itself, without its mirrors: https, and http where allowed.
    pub(crate) fn direct(
        host: &str,
        settings: &Settings,
        reach: &RegistryOptions,
        credentials: &Credentials,
    ) -> Result<Vec<Self>> {
        let configured = settings.registry(host);
        let insecure = reach.insecure || configured.insecure;
        let ca = reach.ca.clone().or(configured.ca);
        let trusted = reach.pull_for.trusts(settings, host);
        let policy = || ConnectPolicy::new(reach.pull_for, settings, host, trusted);
        let https = Self::new("https", host, insecure, ca.clone(), policy(), credentials)?;
        let mut endpoints = vec![https];
        if insecure || (is_loopback(host) && trusted) {
            endpoints.push(Self::new("http", host, insecure, ca, policy(), credentials)?);
        }
        Ok(endpoints)
    }

    fn new(
        scheme: &str,
        host: &str,
        insecure: bool,
        ca: Option<PathBuf>,
        policy: ConnectPolicy,
        credentials: &Credentials,
    ) -> Result<Self> {
        let address = address_of(host);
        let tls =
            TlsConfig::builder().root_certs(root_certificates(ca)?).disable_verification(insecure);
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .https_only(scheme == "https" && !insecure)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(IDLE_TIMEOUT))
            .timeout_per_read(Some(IDLE_TIMEOUT))
            .timeout_per_write(Some(IDLE_TIMEOUT))
            .max_redirects(5)
            .user_agent(concat!("msb/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build());
        if !policy.uses_proxy {
            config = config.proxy(None);
        }
        let agent = match policy.resolver {
            Some(resolver) => {
                Agent::with_parts(config.build(), DefaultConnector::default(), resolver)
            }
            None => config.build().into(),
        };
        msb_sys::net::resolve_without_plugins();
        Ok(Self {
            agent,
            base: format!("{scheme}://{address}"),
            host: host.to_owned(),
            auth: AuthCache::new(credentials.clone()),
        })
    }

    /// Whether this endpoint is the registry itself and not a mirror.
    pub(crate) fn is_host(&self, host: &str) -> bool {
        self.host == host
    }

    /// URL for messages. It includes the scheme, which may be the problem.
    pub(crate) fn url(&self) -> &str {
        &self.base
    }

    /// Gets a manifest by tag or digest, unparsed; none if it does not exist.
    pub(crate) fn manifest(
        &self,
        repository: &str,
        what: &str,
        limit: u64,
    ) -> Result<Option<Vec<u8>>> {
        let accept = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST].join(", ");
        let url = format!("{}/v2/{repository}/manifests/{what}", self.base);
        let scope = format!("repository:{repository}:pull");
        let response = self.request(&scope, &Method::GET, &url, &[("Accept", &accept)])?;
        match response.status() {
            StatusCode::OK => read_bounded(response, limit).map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.error_from(response)),
        }
    }

    /// Gets a blob from an offset. A registry without range requests starts at 0; the first value
    /// says where.
    pub(crate) fn blob(
        &self,
        repository: &str,
        digest: &Digest,
        from: u64,
    ) -> Result<(u64, Box<dyn Read>)> {
        let url = format!("{}/v2/{repository}/blobs/{digest}", self.base);
        let scope = format!("repository:{repository}:pull");
        let range = format!("bytes={from}-");
        let wanted = [("Range", range.as_str())];
        let headers = if from > 0 { wanted.as_slice() } else { &[] };
        let response = self.request(&scope, &Method::GET, &url, headers)?;
        let start = match response.status() {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT => from,
            StatusCode::NOT_FOUND => {
                return Err(Error::invalid(format!(
                    "{} does not have a blob of the image",
                    self.base
                ))
                .cause(digest));
            }
            _ => return Err(self.error_from(response)),
        };
        Ok((start, Box::new(MinRateReader::new(response))))
    }

    /// Whether the registry has a blob.
    pub(crate) fn has_blob(&self, repository: &str, digest: &Digest) -> Result<bool> {
        let url = format!("{}/v2/{repository}/blobs/{digest}", self.base);
        let response = self.request(&push_scope(repository), &Method::HEAD, &url, &[])?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.error_from(response)),
        }
    }

    /// Uploads a blob in one request.
    pub(crate) fn upload(&self, repository: &str, digest: &Digest, path: &Path) -> Result<()> {
        let scope = push_scope(repository);
        let url = format!("{}/v2/{repository}/blobs/uploads/", self.base);
        let begun = self.request(&scope, &Method::POST, &url, &[("Content-Length", "0")])?;
        if begun.status() != StatusCode::ACCEPTED {
            return Err(self.error_from(begun));
        }
        let header = begun.headers().get("Location").and_then(|value| value.to_str().ok());
        let location = self.upload_url(header.unwrap_or_default())?;
        let with = if location.contains('?') { '&' } else { '?' };
        let location = format!("{location}{with}digest={digest}");
        let open = || File::open(path).map_err(|error| storage_error(path, error));
        let size =
            open()?.metadata().map_err(|error| storage_error(path, error))?.len().to_string();
        let headers = [("Content-Type", "application/octet-stream"), ("Content-Length", &size)];
        let response = self.request_with_body(&scope, &Method::PUT, &location, &headers, open)?;
        match response.status() {
            StatusCode::CREATED => Ok(()),
            _ => Err(self.error_from(response)),
        }
    }

    /// Uploads a manifest, which publishes the image.
    pub(crate) fn put_manifest(
        &self,
        repository: &str,
        what: &str,
        media_type: &str,
        text: &[u8],
    ) -> Result<()> {
        let url = format!("{}/v2/{repository}/manifests/{what}", self.base);
        let headers = [("Content-Type", media_type)];
        let scope = push_scope(repository);
        let response = self.request_with_body(&scope, &Method::PUT, &url, &headers, || Ok(text))?;
        match response.status() {
            StatusCode::CREATED | StatusCode::OK | StatusCode::ACCEPTED => Ok(()),
            _ => Err(self.error_from(response)),
        }
    }

    /// Checks the credentials with a request to `/v2/`.
    pub(crate) fn check(&self) -> Result<()> {
        let url = format!("{}/v2/", self.base);
        let response = self.request("", &Method::GET, &url, &[])?;
        match response.status() {
            StatusCode::OK => Ok(()),
            _ => Err(self.error_from(response)),
        }
    }

    /// The URL to continue an upload at; must be on this registry.
    fn upload_url(&self, location: &str) -> Result<String> {
        if location.starts_with('/') && !location.starts_with("//") {
            return Ok(format!("{}{location}", self.base));
        }
        let ours = location.strip_prefix(&self.base);
        if ours.is_some_and(|rest| rest.starts_with('/')) {
            return Ok(location.to_owned());
        }
        Err(Error::new(Kind::Protocol, format!("{} redirects uploads to another host", self.base))
            .cause(msb_spec::shown(location)))
    }

    /// Converts an HTTP error status to an error with the message of the registry.
    fn error_from(&self, response: Response<Body>) -> Error {
        let status = response.status();
        let said = read_bounded(response, ERROR_BODY_LIMIT).unwrap_or_default();
        let said = first_error(&said);
        let error = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Error::new(
                Kind::Host,
                format!("{} denied access", self.base),
            )
            .hint(format!("`msb registry login {}` stores a user and a password", self.host)),
            StatusCode::TOO_MANY_REQUESTS => {
                Error::new(Kind::Host, format!("{} limits the request rate", self.base))
                    .hint(format!("`msb registry login {}` often raises the limit", self.host))
            }
            _ => Error::new(Kind::Host, format!("{} answered with {status}", self.base)),
        };
        if said.is_empty() { error } else { error.cause(said) }
    }
}

/// Checks credentials at a registry, not at its mirrors. The first endpoint that responds decides:
/// a password that was refused over TLS is not sent again over HTTP.
pub fn check_login(
    host: &str,
    settings: &Settings,
    reach: &RegistryOptions,
    credentials: &Credentials,
) -> Result<()> {
    let mut failure = Error::new(Kind::NotFound, "no registry to contact");
    for endpoint in RegistryEndpoint::direct(host, settings, reach, credentials)? {
        match endpoint.ping() {
            Ok(()) => {
                return endpoint.check().map_err(|error| match error.advice() {
                    Some(_) => error.hint(
                        "check the user and the password; many registries expect a token instead",
                    ),
                    None => error,
                });
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn push_scope(repository: &str) -> String {
    format!("repository:{repository}:pull,push")
}

/// The message of the first error in a response body.
fn first_error(text: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let first = &value["errors"][0];
    let said = first["message"].as_str().or(first["code"].as_str()).unwrap_or_default();
    msb_spec::shown(said).chars().take(300).collect()
}

/// Response body that fails if data arrives too slowly.
struct MinRateReader {
    body: ureq::BodyReader<'static>,
    /// Time spent waiting for `got` bytes.
    waited: Duration,
    got: u64,
}

impl MinRateReader {
    fn new(response: Response<Body>) -> Self {
        let body = response.into_body().into_with_config().limit(u64::MAX).reader();
        Self { body, waited: Duration::ZERO, got: 0 }
    }
}

impl Read for MinRateReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let n = self.body.read(into)?;
        // Only time inside `read` counts, not what the caller does between reads.
        self.waited += begun.elapsed();
        self.got += n as u64;
        if self.waited >= IDLE_TIMEOUT {
            if n > 0 && self.got < MIN_BYTES {
                let said = format!("{} bytes in {} seconds", self.got, self.waited.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, said));
            }
            (self.waited, self.got) = (Duration::ZERO, 0);
        }
        Ok(n)
    }
}

fn read_bounded(response: Response<Body>, limit: u64) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    MinRateReader::new(response)
        .take(limit + 1)
        .read_to_end(&mut text)
        .map_err(|error| Error::host("the registry closed the connection", error))?;
    if text.len() as u64 > limit {
        return Err(crate::unpack::exceeded("manifest", msb_spec::Bytes(limit)));
    }
    Ok(text)
}

/// Reads a CA file. The path comes from a client, so it may be any file.
fn read_ca_file(path: &Path) -> io::Result<Vec<u8>> {
    // NONBLOCK: opening a FIFO without a writer would hang.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = Vec::new();
    file.take(CA_FILE_LIMIT).read_to_end(&mut text)?;
    Ok(text)
}

/// CA certificates: those of the system, and those in `ca`.
fn root_certificates(ca: Option<PathBuf>) -> Result<RootCerts> {
    let mut certificates: Vec<Certificate<'static>> = Vec::new();
    let mut add = |text: &[u8]| {
        let before = certificates.len();
        for item in parse_pem(text).flatten() {
            if let PemItem::Certificate(certificate) = item {
                certificates.push(certificate);
            }
        }
        certificates.len() > before
    };
    let system = SYSTEM_CA_FILES.iter().find_map(|path| fs::read(path).ok());
    let found = system.is_some_and(|text| add(&text));
    if let Some(path) = ca {
        let about = |cause: String| {
            Error::invalid(format!("cannot use the certificates in `{}`", path.display()))
                .cause(cause)
        };
        let text = read_ca_file(&path).map_err(|error| about(error.to_string()))?;
        if !add(&text) {
            return Err(about("there is no certificate in the file".to_owned()));
        }
    } else if !found {
        return Ok(RootCerts::WebPki);
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

/// Whether the connection failed, or the peer does not speak this protocol.
pub(crate) fn is_unreachable(error: &Error) -> bool {
    error.kind() == Kind::Host && error.message().starts_with(UNREACHABLE)
}

/// Prefix of the message of such an error.
const UNREACHABLE: &str = "cannot reach ";

/// Adds a hint how to get an image without a registry.
pub(crate) fn unreachable_hint(error: Error, name: &Reference) -> Error {
    if error.advice().is_some() || !is_unreachable(&error) {
        return error;
    }
    let short = name.short();
    error.hint(format!(
        "without a registry: `msb load` reads `{short}` from a file, `msb image bootstrap` builds \
         an image from the host's packages, and `host` needs none"
    ))
}
