//! Classifies addresses, and matches the targets of rules against them.
//!
//! Flows and HTTP requests both use this; targets are compared with addresses nowhere else. It does
//! no I/O.

use msb_spec::{Decision, Destination, Group, Target, addresses};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of a destination address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AddressClass {
    destination: Destination,
    group: Group,
    /// The address belongs to the host that the sandbox runs on.
    host: bool,
    /// It is the gateway's own address, which stands for the host.
    gateway: bool,
}

impl AddressClass {
    /// `None` for addresses that reach no host, whatever the rules say. `is_host` tells the host's
    /// own addresses.
    pub(crate) fn of(address: IpAddr, is_host: impl Fn(IpAddr) -> bool) -> Option<Self> {
        let destination = Destination::of(address);
        if is_gateway(destination.written()) {
            return Some(Self { destination, group: Group::Host, host: true, gateway: true });
        }
        if destination.readings().any(is_own_network) {
            return None;
        }
        let group = destination.group()?;
        let host = destination.is_in(Group::Loopback) || destination.readings().any(is_host);
        Some(Self { destination, group, host, gateway: false })
    }

    /// Whether the address belongs to the host that the sandbox runs on.
    pub(crate) fn is_host(&self) -> bool {
        self.host
    }

    /// Whether it is the address of the gateway itself.
    pub(crate) fn is_gateway(&self) -> bool {
        self.gateway
    }

    /// Whether it is a public address and not the host's own: only such addresses may be reached by
    /// a name alone.
    pub(crate) fn is_public(&self) -> bool {
        self.group == Group::Public && !self.host
    }

    /// Whether it is a metadata service, which only a rule that names it allows.
    pub(crate) fn is_metadata(&self) -> bool {
        self.group == Group::Metadata
    }

    /// Whether a rule with this target matches the address. Names are not compared here.
    pub(crate) fn is_matched_by(&self, target: &Target, decision: Decision) -> bool {
        match decision {
            Decision::Allow => self.is_allowed_by(target),
            Decision::Deny => self.is_denied_by(target),
        }
    }

    fn is_allowed_by(&self, target: &Target) -> bool {
        let destination = self.destination;
        match target {
            Target::Name(_) => false,
            // The gateway's addresses stand for the host: a range does not allow them.
            Target::Range(_) if self.gateway => false,
            Target::Range(range) if self.is_metadata() => {
                range.is_single() && range.covers(Decision::Allow, destination)
            }
            Target::Range(range) => range.covers(Decision::Allow, destination),
            // Wider targets never reach the credentials of a metadata service, even at the host's
            // own address.
            Target::Any | Target::Group(Group::Host) if self.is_metadata() => false,
            Target::Any => true,
            Target::Group(Group::Host) => self.host,
            // A group does not include the host because the host is in that network.
            Target::Group(group) => {
                *group == self.group && (!self.host || *group == Group::Loopback)
            }
        }
    }

    fn is_denied_by(&self, target: &Target) -> bool {
        match target {
            Target::Any => true,
            Target::Name(_) => false,
            Target::Range(range) => {
                // Flows to the gateway's address connect to the loopback of the host.
                range.covers(Decision::Deny, self.destination)
                    || (self.gateway
                        && LOOPBACK.iter().any(|loopback| range.covers(Decision::Deny, *loopback)))
            }
            Target::Group(Group::Host) => self.host,
            Target::Group(group) if self.gateway => *group == Group::Loopback,
            Target::Group(group) => self.destination.is_in(*group),
        }
    }
}

const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Whether it is one of the addresses that the sandbox has for the gateway.
pub(crate) fn is_gateway(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address == IpAddr::V4(addresses::GATEWAY) || address == IpAddr::V6(addresses::GATEWAY6)
}

/// Whether it is in the link network, which has no other hosts, or an address of a peer sandbox,
/// which rules do not reach.
fn is_own_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.octets()[..2] == [198, 18],
        IpAddr::V6(six) => six.segments()[..4] == [0xfd6d, 0x7362, 0, 0],
    }
}
