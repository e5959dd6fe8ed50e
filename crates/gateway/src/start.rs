//! What a gateway is given before it is jailed. Afterwards it can open nothing.

use crate::host_addresses::HostAddresses;
use crate::proxy::HttpProxy;
use crate::secrets::secret_value::SecretValue;
use msb_spec::{Name, Network, Result};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// Descriptors, configuration and secret values that a gateway starts with.
pub struct Start {
    /// Rules, published ports, secrets with their placeholders, and limits.
    pub network: Network,
    /// The values of `network.secrets`, in the same order.
    pub values: Vec<SecretValue>,
    /// DNS servers to forward queries to: those of the host, or `network.dns`.
    pub resolvers: Vec<SocketAddr>,
    /// Tells whether an address belongs to the host itself.
    pub host_addresses: HostAddresses,
    /// The HTTP proxy through which the host reaches the internet, if it has one.
    pub proxy: Option<HttpProxy>,
    /// CA certificates that servers are verified with, in DER.
    pub roots: Vec<Vec<u8>>,
    /// The named network that this sandbox is part of, if any.
    pub joined: Option<NetworkMember>,
    /// The link to the sandbox, which carries its packets; see `device`.
    pub link: OwnedFd,
    /// If true, `link` delivers the descriptor of a TAP device or packet socket once. If false, `link` itself
    /// carries packets.
    pub device: bool,
    /// The control socket to the worker. The gateway exits when the worker closes it.
    pub control: OwnedFd,
    /// Jails this process. Called once everything is open and before any thread is started.
    pub confine: Box<dyn FnOnce() -> Result<()>>,
}

/// A named network and the name of this sandbox in it.
#[derive(Debug)]
pub struct NetworkMember {
    /// The directory with one socket for each sandbox of the network.
    pub directory: OwnedFd,
    /// The name of this sandbox in the network.
    pub name: Name,
}
