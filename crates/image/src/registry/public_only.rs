//! Who a registry is asked for, and what connections that allows.
//!
//! The operator may use any registry. A client of the server may not make the server connect to
//! whatever the client cannot reach itself: loopback, private networks, metadata services. So each
//! connection for a client (registry, token server, redirect) goes to a public address, unless the
//! operator has named the host as `trusted`. The address is judged in the resolver, which hands the
//! connector the judged addresses: no name is resolved twice.

use crate::settings::Settings;
use msb_spec::is_public;
use std::io;
use std::net::IpAddr;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// Who a registry is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PullFor {
    /// The user of this state directory: any address.
    #[default]
    Operator,
    /// A client of the server: public addresses and trusted hosts.
    Client,
    /// A client that has a single namespace, or code in a sandbox. The same, and a tag that is here
    /// already keeps its image: others start from it.
    NamespaceClient,
}

impl PullFor {
    /// Whether a tag that is here may be given to another image.
    pub(crate) fn may_replace_tags(self) -> bool {
        self != Self::NamespaceClient
    }

    /// Whether the settings let this caller reach a registry wherever it is.
    pub(super) fn trusts(self, settings: &Settings, host: &str) -> bool {
        self == Self::Operator || settings.registry(host).trusted
    }
}

/// Resolves names to public addresses only, but for hosts that the operator trusts.
#[derive(Debug)]
pub(super) struct PublicResolver {
    /// `HOST` or `HOST:PORT`, as in a URL.
    trusted: Vec<String>,
    names: DefaultResolver,
}

impl PublicResolver {
    /// `place` is the registry or mirror itself, if it is trusted.
    pub(super) fn new(settings: &Settings, place: Option<&str>) -> Self {
        let trusted = settings.trusted_registries().map(super::address_of).chain(place);
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
            // A name without a port is that of the usual one, whatever the scheme.
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
        // The proxy is the operator's own, and is used for trusted places only.
        if self.trusts(uri) || config.proxy().is_some_and(|proxy| proxy.uri() == uri) {
            return Ok(found);
        }
        // A packet to an address of this machine passes no firewall on its way.
        let own = msb_sys::net::own_addresses()?;
        let mut judged = self.empty();
        for address in found.iter().filter(|address| may_connect(address.ip(), &own)) {
            judged.push(*address);
        }
        match judged.is_empty() {
            true => Err(io::Error::new(io::ErrorKind::PermissionDenied, NotPublic).into()),
            false => Ok(judged),
        }
    }
}

fn may_connect(address: IpAddr, own: &[IpAddr]) -> bool {
    is_public(address) && !own.contains(&address.to_canonical())
}

/// Why a connection for a client was not made.
#[derive(Debug)]
pub(super) struct NotPublic;

impl NotPublic {
    /// Whether a request failed for this reason.
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

    fn resolver(settings: &str, place: Option<&str>) -> PublicResolver {
        PublicResolver::new(&Settings::parse(settings).unwrap(), place)
    }

    fn resolves(resolver: &PublicResolver, uri: &str) -> bool {
        let config = Config::builder().proxy(None).build();
        resolver.resolve(&uri.parse().unwrap(), &config, NextTimeout::default()).is_ok()
    }

    /// Literal addresses, so that no name server is asked.
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
