//! What a gateway learns of the host before it is jailed: whom to ask for names, how to
//! tell the host's own addresses, its proxy, and the authorities that it trusts.

use crate::host_addresses::HostAddresses;
use crate::proxy::Proxy;
use msb_spec::{Error, Network, Resolver, Result, Stage, env};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// What was found.
#[derive(Debug)]
pub struct Surroundings {
    /// Whom to ask for names.
    pub resolvers: Vec<SocketAddr>,
    /// Tells the addresses by which the host itself is reached.
    pub host_addresses: HostAddresses,
    /// The proxy through which the host reaches the internet.
    pub proxy: Option<Proxy>,
    /// Certificates of the authorities that servers outside are verified with, in DER.
    pub roots: Vec<Vec<u8>>,
}

impl Surroundings {
    /// Looks at the host, as far as this network needs it.
    pub fn find(network: &Network) -> Result<Self> {
        let host_addresses = HostAddresses::of_kernel().map_err(|error| {
            Error::host("cannot find the addresses of this host", error).at(Stage::Network)
        })?;
        let resolvers = match network.dns.as_slice() {
            [] => resolvers(&fs::read_to_string("/etc/resolv.conf").unwrap_or_default()),
            given => given.iter().map(|Resolver(address)| *address).collect(),
        };
        let proxy = proxy().map_err(|error| error.at(Stage::Network))?;
        let verifies = network.intercepts() || proxy.as_ref().is_some_and(|proxy| proxy.tls);
        let roots = if verifies { roots() } else { Vec::new() };
        Ok(Self { resolvers, host_addresses, proxy, roots })
    }
}

/// A resolver that does not answer must not be asked for ever.
const MOST_RESOLVERS: usize = 3;

/// The servers that the C library would ask.
fn resolvers(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let parsed = lines.filter_map(|rest| {
        let address = rest.split_whitespace().next()?;
        // A zone would be needed to reach what is on the same link; most hosts have another.
        address.parse().ok().map(|address: IpAddr| SocketAddr::new(address, 53))
    });
    let found: Vec<SocketAddr> = parsed.take(MOST_RESOLVERS).collect();
    match found.is_empty() {
        // As the C library does.
        true => vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53)],
        false => found,
    }
}

/// The proxy that the environment names, if any.
fn proxy() -> Result<Option<Proxy>> {
    let variable = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(url) = env::PROXIES.iter().find_map(variable) else { return Ok(None) };
    let exceptions = env::NO_PROXY.iter().find_map(variable).unwrap_or_default();
    msb_sys::net::resolve_without_plugins();
    let mut proxy = Proxy::parse(&url, &exceptions)?;
    proxy.locate()?;
    proxy.resolves = variable(&env::PROXY_RESOLVES).is_some_and(|value| value == "1");
    Ok(Some(proxy))
}

/// The authorities that the host trusts, its own among them; SSL_CERT_FILE names others.
fn roots() -> Vec<Vec<u8>> {
    let found = rustls_native_certs::load_native_certs();
    found.certs.into_iter().map(|certificate| certificate.as_ref().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_asked_whom_it_asks() {
        let text = "# comment\nnameserver 9.9.9.9\nsearch corp\nnameserver fe80::1%eth0\nnameserver ::1 # x\n";
        let addresses: Vec<String> = resolvers(text).iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["9.9.9.9:53", "[::1]:53"]);
        assert_eq!(resolvers("")[0].to_string(), "127.0.0.1:53");
    }
}
