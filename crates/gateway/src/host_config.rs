//! What a gateway reads from the host before it is jailed: DNS servers, own addresses, the HTTP
//! proxy and the trusted CA certificates.

use crate::host_addresses::HostAddresses;
use crate::proxy::HttpProxy;
use msb_spec::{Error, Network, Resolver, Result, Stage, env};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The network configuration of the host.
#[derive(Debug)]
pub struct HostConfig {
    /// DNS servers to forward queries to.
    pub resolvers: Vec<SocketAddr>,
    /// Tells whether an address belongs to the host itself.
    pub host_addresses: HostAddresses,
    /// The HTTP proxy through which the host reaches the internet, if it has one.
    pub proxy: Option<HttpProxy>,
    /// CA certificates that servers are verified with, in DER. Empty if nothing needs TLS.
    pub roots: Vec<Vec<u8>>,
}

impl HostConfig {
    /// Reads what this network needs from the host. Fails if the host's addresses or its proxy
    /// cannot be found.
    pub fn find(network: &Network) -> Result<Self> {
        let host_addresses = HostAddresses::of_kernel().map_err(|error| {
            Error::host("cannot query the addresses of this host", error).at(Stage::Network)
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

/// The number of DNS servers that are used, as in the C library.
const MAX_RESOLVERS: usize = 3;

/// The `nameserver` lines of resolv.conf(5), or 127.0.0.1 if there are none.
fn resolvers(text: &str) -> Vec<SocketAddr> {
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let parsed = lines.filter_map(|rest| {
        let address = rest.split_whitespace().next()?;
        // Link-local addresses need a scope id and are skipped; most hosts list another server.
        address.parse().ok().map(|address: IpAddr| SocketAddr::new(address, 53))
    });
    let found: Vec<SocketAddr> = parsed.take(MAX_RESOLVERS).collect();
    match found.is_empty() {
        // The default of the C library.
        true => vec![SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 53)],
        false => found,
    }
}

/// The proxy that the environment variables name, if any.
fn proxy() -> Result<Option<HttpProxy>> {
    let variable = |name: &&str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let Some(url) = env::PROXIES.iter().find_map(variable) else { return Ok(None) };
    let exceptions = env::NO_PROXY.iter().find_map(variable).unwrap_or_default();
    msb_sys::net::resolve_without_plugins();
    let mut proxy = HttpProxy::parse(&url, &exceptions)?;
    proxy.locate()?;
    proxy.resolves = variable(&env::PROXY_RESOLVES).is_some_and(|value| value == "1");
    Ok(Some(proxy))
}

/// The CA certificates that the host trusts, including local ones; SSL_CERT_FILE replaces them.
fn roots() -> Vec<Vec<u8>> {
    let found = rustls_native_certs::load_native_certs();
    found.certs.into_iter().map(|certificate| certificate.as_ref().to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read_from_resolv_conf() {
        let text = "# comment\nnameserver 9.9.9.9\nsearch corp\nnameserver fe80::1%eth0\nnameserver ::1 # x\n";
        let addresses: Vec<String> = resolvers(text).iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["9.9.9.9:53", "[::1]:53"]);
        assert_eq!(resolvers("")[0].to_string(), "127.0.0.1:53");
    }
}
