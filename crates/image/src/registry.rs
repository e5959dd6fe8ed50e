//! Speaks to a registry as the OCI distribution specification says, over ureq.
//!
//! A registry is not trusted: manifests are read up to a limit, blobs are verified by whoever
//! reads them, credentials go to the registry they are for and to the token server that it names
//! over TLS, and other addresses that a manifest suggests are not asked. For whom it is asked decides
//! which addresses are connected to, see `public_only`. Blocking, because a handful of transfers do not
//! need more.

mod access;
mod public_only;

pub use public_only::PullFor;

use crate::credentials::{Credential, Credentials};
use crate::manifest::{DOCKER_INDEX, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use crate::settings::{Mirror, Settings};
use crate::store::unusable;
use access::Access;
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

/// How a registry is to be reached, beyond what the settings say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reach {
    /// Plain http, or TLS that nobody vouches for, will do.
    pub insecure: bool,
    /// A file of certificates that vouch for it.
    pub ca: Option<PathBuf>,
    /// Asked before it.
    pub mirrors: Vec<Mirror>,
    /// Who we are there, and not to its mirrors.
    pub login: Option<Credential>,
    /// For whom it is asked.
    pub pull_for: PullFor,
}

impl Reach {
    /// The logins that this way to a registry may use. A client that turns verification off, or
    /// names who vouches, could have the operator's passwords sent to a server of its own.
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

/// One place that answers for a registry: itself or a mirror, with one scheme.
#[derive(Debug)]
pub(crate) struct Registry {
    agent: Agent,
    /// `https://host:port`.
    base: String,
    /// Whose credentials are used.
    host: String,
    access: Access,
}

/// A connection that is not made within this never will be.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A registry that says nothing for this long has gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);
/// Less than this within [`SILENCE_LIMIT`] is no transfer: slower than any modem, and a registry
/// that sends a byte now and then would otherwise hold us for ever.
pub(crate) const PACE: u64 = 16 << 10;
/// Certificates that somebody has named; a whole distribution's are a quarter of this.
const LARGEST_BUNDLE: u64 = 1 << 20;
/// Where a distribution keeps the certificates that it trusts.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// What a registry says about a failure is shown, but not a page of it.
const COMPLAINT_LIMIT: u64 = 16 << 10;

/// Whether a host is this machine, where other tools try plain http too.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost"
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The host that a registry is reached at: of one its name is not its address.
fn address_of(host: &str) -> &str {
    if host == "docker.io" { "registry-1.docker.io" } else { host }
}

/// Which connections a place may cause.
struct Network {
    /// None is the usual one: any address.
    resolver: Option<PublicResolver>,
    /// Whether a proxy of the environment is used. It resolves names itself, so what is judged
    /// here would not be what it connects to.
    proxied: bool,
}

impl Network {
    fn new(pull_for: PullFor, settings: &Settings, host: &str, trusted: bool) -> Self {
        let place = trusted.then(|| address_of(host));
        match pull_for {
            PullFor::Operator => Self { resolver: None, proxied: true },
            PullFor::Client | PullFor::NamespaceClient => {
                Self { resolver: Some(PublicResolver::new(settings, place)), proxied: trusted }
            }
        }
    }
}

impl Registry {
    /// The places that may have an image of this registry, in the order they are asked.
    pub(crate) fn places(
        host: &str,
        settings: &Settings,
        reach: &Reach,
        credentials: &Credentials,
    ) -> Result<Vec<Self>> {
        let settled = settings.registry(host);
        let mut places = Vec::new();
        for mirror in &reach.mirrors {
            places.push(Self::mirror(mirror, reach.pull_for, host, settings, reach, credentials)?);
        }
        // The operator has named these, and with them where they are.
        for mirror in &settled.mirrors {
            places.push(Self::mirror(
                mirror,
                PullFor::Operator,
                host,
                settings,
                reach,
                credentials,
            )?);
        }
        places.extend(Self::itself(host, settings, reach, credentials)?);
        Ok(places)
    }

    /// A mirror of a registry. `named_by` is who has named it.
    fn mirror(
        mirror: &Mirror,
        named_by: PullFor,
        of: &str,
        settings: &Settings,
        reach: &Reach,
        credentials: &Credentials,
    ) -> Result<Self> {
        let own = settings.registry(mirror.host());
        let insecure = reach.insecure || own.insecure;
        let ca = reach.ca.clone().or(own.ca).or_else(|| settings.registry(of).ca);
        let scheme = if mirror.is_tls() { "https" } else { "http" };
        let trusted = named_by.trusts(settings, mirror.host());
        let network = Network::new(reach.pull_for, settings, mirror.host(), trusted);
        Self::new(scheme, mirror.host(), insecure, ca, network, credentials)
    }

    /// The registry itself, without its mirrors.
    pub(crate) fn itself(
        host: &str,
        settings: &Settings,
        reach: &Reach,
        credentials: &Credentials,
    ) -> Result<Vec<Self>> {
        let settled = settings.registry(host);
        let insecure = reach.insecure || settled.insecure;
        let ca = reach.ca.clone().or(settled.ca);
        let trusted = reach.pull_for.trusts(settings, host);
        let network = || Network::new(reach.pull_for, settings, host, trusted);
        let https = Self::new("https", host, insecure, ca.clone(), network(), credentials)?;
        let mut places = vec![https];
        if insecure || (is_loopback(host) && trusted) {
            places.push(Self::new("http", host, insecure, ca, network(), credentials)?);
        }
        Ok(places)
    }

    fn new(
        scheme: &str,
        host: &str,
        insecure: bool,
        ca: Option<PathBuf>,
        network: Network,
        credentials: &Credentials,
    ) -> Result<Self> {
        let address = address_of(host);
        let tls = TlsConfig::builder().root_certs(roots(ca)?).disable_verification(insecure);
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .https_only(scheme == "https" && !insecure)
            .timeout_resolve(Some(CONNECT_LIMIT))
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_recv_response(Some(SILENCE_LIMIT))
            .timeout_per_read(Some(SILENCE_LIMIT))
            .timeout_per_write(Some(SILENCE_LIMIT))
            .max_redirects(5)
            .user_agent(concat!("msb/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls.build());
        if !network.proxied {
            config = config.proxy(None);
        }
        let agent = match network.resolver {
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
            access: Access::new(credentials.clone()),
        })
    }

    /// Whether it is the registry itself and not a mirror of it.
    pub(crate) fn is(&self, host: &str) -> bool {
        self.host == host
    }

    /// How it is spoken of: with its scheme, since that may be what is wrong.
    pub(crate) fn shown(&self) -> &str {
        &self.base
    }

    /// A manifest by tag or digest, as it is. None if the registry has no such image.
    pub(crate) fn manifest(
        &self,
        repository: &str,
        what: &str,
        limit: u64,
    ) -> Result<Option<Vec<u8>>> {
        let accept = [OCI_INDEX, OCI_MANIFEST, DOCKER_INDEX, DOCKER_MANIFEST].join(", ");
        let url = format!("{}/v2/{repository}/manifests/{what}", self.base);
        let scope = format!("repository:{repository}:pull");
        let response = self.ask(&scope, &Method::GET, &url, &[("Accept", &accept)])?;
        match response.status() {
            StatusCode::OK => read_bounded(response, limit).map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(self.complaint(response)),
        }
    }

    /// The bytes of a blob from an offset on, if the registry can; from the start if not.
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
        let response = self.ask(&scope, &Method::GET, &url, headers)?;
        let start = match response.status() {
            StatusCode::OK => 0,
            StatusCode::PARTIAL_CONTENT => from,
            StatusCode::NOT_FOUND => {
                return Err(Error::invalid(format!("{} lacks a part of the image", self.base))
                    .cause(digest));
            }
            _ => return Err(self.complaint(response)),
        };
        Ok((start, Box::new(Paced::new(response))))
    }

    /// Whether a blob is there already.
    pub(crate) fn has_blob(&self, repository: &str, digest: &Digest) -> Result<bool> {
        let url = format!("{}/v2/{repository}/blobs/{digest}", self.base);
        let response = self.ask(&push_scope(repository), &Method::HEAD, &url, &[])?;
        match response.status() {
            StatusCode::OK => Ok(true),
            StatusCode::NOT_FOUND => Ok(false),
            _ => Err(self.complaint(response)),
        }
    }

    /// Sends a blob in one piece.
    pub(crate) fn upload(&self, repository: &str, digest: &Digest, path: &Path) -> Result<()> {
        let scope = push_scope(repository);
        let url = format!("{}/v2/{repository}/blobs/uploads/", self.base);
        let begun = self.ask(&scope, &Method::POST, &url, &[("Content-Length", "0")])?;
        if begun.status() != StatusCode::ACCEPTED {
            return Err(self.complaint(begun));
        }
        let location = begun.headers().get("Location").and_then(|place| place.to_str().ok());
        let place = self.place(location.unwrap_or_default())?;
        let with = if place.contains('?') { '&' } else { '?' };
        let place = format!("{place}{with}digest={digest}");
        let open = || File::open(path).map_err(|error| unusable(path, error));
        let size = open()?.metadata().map_err(|error| unusable(path, error))?.len().to_string();
        let headers = [("Content-Type", "application/octet-stream"), ("Content-Length", &size)];
        let response = self.ask_with(&scope, &Method::PUT, &place, &headers, open)?;
        match response.status() {
            StatusCode::CREATED => Ok(()),
            _ => Err(self.complaint(response)),
        }
    }

    /// Sends a manifest, which makes the image whole.
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
        let response = self.ask_with(&scope, &Method::PUT, &url, &headers, || Ok(text))?;
        match response.status() {
            StatusCode::CREATED | StatusCode::OK | StatusCode::ACCEPTED => Ok(()),
            _ => Err(self.complaint(response)),
        }
    }

    /// Asks whether our credentials are good.
    pub(crate) fn check(&self) -> Result<()> {
        let url = format!("{}/v2/", self.base);
        let response = self.ask("", &Method::GET, &url, &[])?;
        match response.status() {
            StatusCode::OK => Ok(()),
            _ => Err(self.complaint(response)),
        }
    }

    /// Where an upload goes on: only at the registry that we speak to.
    fn place(&self, location: &str) -> Result<String> {
        if location.starts_with('/') && !location.starts_with("//") {
            return Ok(format!("{}{location}", self.base));
        }
        let ours = location.strip_prefix(&self.base);
        if ours.is_some_and(|rest| rest.starts_with('/')) {
            return Ok(location.to_owned());
        }
        Err(Error::new(Kind::Protocol, format!("{} sends uploads elsewhere", self.base))
            .cause(msb_spec::shown(location)))
    }

    /// What a registry says when it does not do what was asked.
    fn complaint(&self, response: Response<Body>) -> Error {
        let status = response.status();
        let said = read_bounded(response, COMPLAINT_LIMIT).unwrap_or_default();
        let said = first_error(&said);
        let error = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Error::new(Kind::Host, format!("{} does not let us in", self.base))
                    .hint(format!("`msb registry login {}` keeps a user and a password", self.host))
            }
            StatusCode::TOO_MANY_REQUESTS => {
                Error::new(Kind::Host, format!("{} wants us to slow down", self.base))
                    .hint(format!("`msb registry login {}` often allows more", self.host))
            }
            _ => Error::new(Kind::Host, format!("{} answered with {status}", self.base)),
        };
        if said.is_empty() { error } else { error.cause(said) }
    }
}

/// Asks a registry, not its mirrors, whether it lets these credentials in. The first place that
/// answers decides: a password that was refused over TLS is not sent again without.
pub fn check_login(
    host: &str,
    settings: &Settings,
    reach: &Reach,
    credentials: &Credentials,
) -> Result<()> {
    let mut failure = Error::new(Kind::NotFound, "no registry to ask");
    for place in Registry::itself(host, settings, reach, credentials)? {
        match place.answers() {
            Ok(()) => {
                return place.check().map_err(|error| match error.advice() {
                    Some(_) => error.hint(
                        "check the user and the password; many registries want a token instead",
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

/// The first of the errors that a registry lists.
fn first_error(text: &[u8]) -> String {
    let value: serde_json::Value = serde_json::from_slice(text).unwrap_or_default();
    let first = &value["errors"][0];
    let said = first["message"].as_str().or(first["code"].as_str()).unwrap_or_default();
    msb_spec::shown(said).chars().take(300).collect()
}

/// A body that fails if it comes too slowly.
struct Paced {
    body: ureq::BodyReader<'static>,
    /// How long we have waited for `got` bytes.
    waited: Duration,
    got: u64,
}

impl Paced {
    fn new(response: Response<Body>) -> Self {
        let body = response.into_body().into_with_config().limit(u64::MAX).reader();
        Self { body, waited: Duration::ZERO, got: 0 }
    }
}

impl Read for Paced {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let n = self.body.read(into)?;
        // What we do between two reads is not the registry's fault.
        self.waited += begun.elapsed();
        self.got += n as u64;
        if self.waited >= SILENCE_LIMIT {
            if n > 0 && self.got < PACE {
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
    Paced::new(response)
        .take(limit + 1)
        .read_to_end(&mut text)
        .map_err(|error| Error::host("the registry broke off", error))?;
    if text.len() as u64 > limit {
        return Err(crate::unpack::exceeded("manifest", msb_spec::Bytes(limit)));
    }
    Ok(text)
}

/// A file that somebody has named, who need not be whom it belongs to.
fn bundle(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe that nobody writes would never open.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = Vec::new();
    file.take(LARGEST_BUNDLE).read_to_end(&mut text)?;
    Ok(text)
}

/// Who vouches for registries: whoever vouches on this machine, and who was named.
fn roots(ca: Option<PathBuf>) -> Result<RootCerts> {
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
    let system = BUNDLES.iter().find_map(|path| fs::read(path).ok());
    let found = system.is_some_and(|text| add(&text));
    if let Some(path) = ca {
        let about = |cause: String| {
            Error::invalid(format!("cannot use the certificates in `{}`", path.display()))
                .cause(cause)
        };
        let text = bundle(&path).map_err(|error| about(error.to_string()))?;
        if !add(&text) {
            return Err(about("there is no certificate in it".to_owned()));
        }
    } else if !found {
        return Ok(RootCerts::WebPki);
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

/// Whether nothing answered, or nothing that speaks as we do.
pub(crate) fn is_unreachable(error: &Error) -> bool {
    error.kind() == Kind::Host && error.message().starts_with(UNREACHABLE)
}

/// How such an error begins.
const UNREACHABLE: &str = "cannot reach ";

/// What to do about a name that cannot be had because nothing answers.
pub(crate) fn unreachable_hint(error: Error, name: &Reference) -> Error {
    if error.advice().is_some() || !is_unreachable(&error) {
        return error;
    }
    let short = name.short();
    error.hint(format!(
        "without a registry: `msb load` reads `{short}` from a file, `msb image bootstrap` makes \
         an image from the host's packages, and `host` needs none"
    ))
}
