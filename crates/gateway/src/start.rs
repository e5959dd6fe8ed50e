//! What a gateway is given before it is jailed: afterwards it can open nothing.

use crate::host_addresses::HostAddresses;
use crate::proxy::Proxy;
use crate::secret_value::SecretValue;
use msb_spec::{Name, Network, Result};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// All that a gateway is made of.
pub struct Start {
    /// Rules, ports, secrets with their placeholders, limits.
    pub network: Network,
    /// The values of `network.secrets`, in the same order.
    pub values: Vec<SecretValue>,
    /// Whom to ask for names: the host's own servers, or `network.dns`.
    pub resolvers: Vec<SocketAddr>,
    /// Tells the addresses by which the host itself is reached.
    pub host_addresses: HostAddresses,
    /// The proxy through which the host reaches the internet.
    pub proxy: Option<Proxy>,
    /// Certificates of the authorities that servers outside are verified with, in DER.
    pub roots: Vec<Vec<u8>>,
    /// The named network whose sandboxes reach each other.
    pub joined: Option<Joined>,
    /// Where the sandbox's packets come from.
    pub link: OwnedFd,
    /// Whether `link` delivers the descriptor of a device, once; otherwise it carries packets.
    pub device: bool,
    /// The worker: what it asks and is told. Its end is the gateway's.
    pub control: OwnedFd,
    /// Jails this process, once everything is open and no thread was started.
    pub confine: Box<dyn FnOnce() -> Result<()>>,
}

/// A named network and this sandbox's place in it.
#[derive(Debug)]
pub struct Joined {
    /// The directory where the sockets of its sandboxes are.
    pub directory: OwnedFd,
    /// The name of this one.
    pub name: Name,
}
