//! Restricts pulls on behalf of clients to public addresses.
//!
//! The operator may use any registry. A client of the server must not make it connect to addresses
//! that the client cannot reach: loopback, private networks, metadata services. So each connection
//! for a client (registry, token server, redirect) goes to a public address, unless the operator
//! has marked the host as `trusted`. The check is in the resolver, and the connector uses the
//! checked addresses: names are not resolved twice.

use crate::settings::Settings;
use msb_spec::is_public;
use std::io;
use std::net::IpAddr;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// The caller that a registry is contacted for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PullFor {
    /// The user of this state directory: any address.
    #[default]
    Operator,
    /// A client of the server: public addresses and trusted hosts.
    Client,
    /// A client that is limited to one namespace, or code in a sandbox. Like `Client`, and it
    /// cannot move an existing tag to another image, because others start from it.
    NamespaceClient,
}

impl PullFor {
    /// Whether an existing tag may be moved to another image.
    pub(crate) fn may_replace_tags(self) -> bool {
        self != Self::NamespaceClient
    }

    /// Whether this caller may use a registry at any address.
    pub(super) fn trusts(self, settings: &Settings, host: &str) -> bool {
        self == Self::Operator || settings.registry(host).trusted
    }
}

/// Resolves names to public addresses only, except for trusted hosts.
#[derive(Debug)]
pub(super) struct PublicResolver {
    /// Trusted hosts as `HOST` or `HOST:PORT`.
    trusted: Vec<String>,
    names: DefaultResolver,
}

impl PublicResolver {
    /// `endpoint` is the registry or mirror, if it is trusted.
    pub(super) fn new(settings: &Settings, endpoint: Option<&str>) -> Self {
        let trusted = settings.trusted_registries().map(super::address_of).chain(endpoint);
        let trusted = trusted.map(str::to_owned).collect();
        Self { trusted, names: DefaultResolver::default() }
    }

    fn trusts(&self, uri: &Uri) -> bool {
        let usual = match uri.scheme_str() {
            Some("http") => 80,
            _ => 443,
        };
        let host = uri.host().unwrap_or_default();
        let port = uri.port_u16().unwrap_or(usual);
        self.trusted.iter().any(|trusted| {
            // An entry without a port means the default port of the scheme.
            trusted.eq_ignore_ascii_case(&format!("{host}:{port}"))
                || (port == usual && trusted.eq_ignore_ascii_case(host))
        })
    }
}

impl Resolver for PublicResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.names.resolve(uri, config, timeout)?;
        // The proxy is the operator's, and is used for trusted endpoints only.
        if self.trusts(uri) || config.proxy().is_some_and(|proxy| proxy.uri() == uri) {
            return Ok(found);
        }
        // An address of this machine would bypass the firewall.
        let own = msb_sys::net::own_addresses()?;
        let mut allowed = self.empty();
        for address in found.iter().filter(|address| may_connect(address.ip(), &own)) {
            allowed.push(*address);
        }
        match allowed.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::PermissionDenied, NotPublic).into()),
            false => Ok(allowed),
        }
    }
}

fn may_connect(address: IpAddr, own: &[IpAddr]) -> bool {
    is_public(address) && !own.contains(&address.to_canonical())
}

/// Error: the name has no public address.
#[derive(Debug)]
pub(super) struct NotPublic;

impl NotPublic {
    /// Whether a request failed with this error.
    pub(super) fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn std::error::Error + Send + Sync>::is::<Self>)
    }
}

impl std::fmt::Display for NotPublic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("its address is not public")
    }
}

impl std::error::Error for NotPublic {}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver(settings: &str, endpoint: Option<&str>) -> PublicResolver {
        PublicResolver::new(&Settings::parse(settings).unwrap(), endpoint)
    }

    fn resolves(resolver: &PublicResolver, uri: &str) -> bool {
        let config = Config::builder().proxy(None).build();
        resolver.resolve(&uri.parse().unwrap(), &config, NextTimeout::default()).is_ok()
    }

    /// IP literals, so that no DNS query is sent.
    #[test]
    fn only_public_addresses_are_handed_out() {
        let resolver = resolver("", None);
        for uri in [
            "http://127.0.0.1/",
            "https://127.0.0.1:5000/v2/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.1/",
            "http://0/",
            "http://localhost:5000/",
            "http://10.0.0.1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:a9fe:a9fe]/",
            "http://[64:ff9b::a9fe:a9fe]/",
            "http://[fd00:ec2::254]/",
            "http://0.0.0.0:22/",
        ] {
            assert!(!resolves(&resolver, uri), "{uri}");
        }
        assert!(resolves(&resolver, "https://1.1.1.1/v2/"));
        assert!(resolves(&resolver, "https://[2606:4700::1111]/v2/"));
    }

    #[test]
    fn a_trusted_host_is_trusted_at_its_port_alone() {
        let settings = "[registries.'127.0.0.1:5000']\ntrusted = true\n\
                        [registries.'localhost']\ntrusted = true\n\
                        [registries.'10.0.0.1']\ninsecure = true\n";
        let resolver = resolver(settings, Some("127.0.0.2:7"));
        for uri in [
            "http://127.0.0.1:5000/v2/",
            "https://127.0.0.1:5000/",
            "https://localhost/v2/",
            "http://127.0.0.2:7/",
        ] {
            assert!(resolves(&resolver, uri), "{uri}");
        }
        for uri in [
            "http://127.0.0.1/",
            "http://127.0.0.1:5001/",
            "https://localhost:5000/",
            "http://127.0.0.2:8/",
            "http://10.0.0.1/",
        ] {
            assert!(!resolves(&resolver, uri), "{uri}");
        }
    }

    #[test]
    fn an_own_address_is_not_connected_to_though_it_is_public() {
        let own = ["198.41.0.4".parse().unwrap(), "2001:503:ba3e::2:30".parse().unwrap()];
        for text in ["198.41.0.4", "::ffff:198.41.0.4", "2001:503:ba3e::2:30"] {
            assert!(!may_connect(text.parse().unwrap(), &own), "{text}");
        }
        assert!(may_connect("198.41.0.5".parse().unwrap(), &own));
    }
}
