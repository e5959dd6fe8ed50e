//! Where an address lies, and which targets of rules are about it.
//!
//! The only place where targets are compared with addresses, for flows as for requests. Pure.

use msb_spec::{Decision, Destination, Group, Target, addresses};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Where an address lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    destination: Destination,
    group: Group,
    /// The machine that the sandbox runs on is reached by it.
    host: bool,
    /// It is the gateway's own, which stands for the host.
    gateway: bool,
}

impl Place {
    /// None for addresses that lead to no host, whatever the rules say. `is_host` tells the host's
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

    /// Whether the machine that the sandbox runs on is reached by it.
    pub(crate) fn is_host(&self) -> bool {
        self.host
    }

    /// Whether it is the gateway's own address.
    pub(crate) fn is_gateway(&self) -> bool {
        self.gateway
    }

    /// Whether it is on the internet, and not the host's own: the only places that a name alone
    /// may lead to.
    pub(crate) fn is_public(&self) -> bool {
        self.group == Group::Public && !self.host
    }

    /// Whether no rule allows it but one that names it.
    pub(crate) fn is_metadata(&self) -> bool {
        self.group == Group::Metadata
    }

    /// Whether a rule for this target is about it. Names are not compared here.
    pub(crate) fn is_covered(&self, target: &Target, decision: Decision) -> bool {
        match decision {
            Decision::Allow => self.is_allowed_by(target),
            Decision::Deny => self.is_refused_by(target),
        }
    }

    fn is_allowed_by(&self, target: &Target) -> bool {
        let destination = self.destination;
        match target {
            Target::Name(_) => false,
            // The gateway's own addresses are not allowed by number: they are the host.
            Target::Range(_) if self.gateway => false,
            Target::Range(range) if self.is_metadata() => {
                range.is_single() && range.covers(Decision::Allow, destination)
            }
            Target::Range(range) => range.covers(Decision::Allow, destination),
            // Nothing wider reaches the credentials of the machine, its own address or not.
            Target::Any | Target::Group(Group::Host) if self.is_metadata() => false,
            Target::Any => true,
            Target::Group(Group::Host) => self.host,
            // Allowing the neighbours does not allow the host because it lives among them.
            Target::Group(group) => {
                *group == self.group && (!self.host || *group == Group::Loopback)
            }
        }
    }

    fn is_refused_by(&self, target: &Target) -> bool {
        match target {
            Target::Any => true,
            Target::Name(_) => false,
            Target::Range(range) => {
                // The gateway connects to the loopback of the host.
                range.covers(Decision::Deny, self.destination)
                    || (self.gateway
                        && LOOPBACK.iter().any(|own| range.covers(Decision::Deny, *own)))
            }
            Target::Group(Group::Host) => self.host,
            Target::Group(group) if self.gateway => *group == Group::Loopback,
            Target::Group(group) => self.destination.is_in(*group),
        }
    }
}

const LOOPBACK: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

/// Whether it is one of the addresses that the sandbox knows the gateway by.
pub(crate) fn is_gateway(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address == IpAddr::V4(addresses::GATEWAY) || address == IpAddr::V6(addresses::GATEWAY6)
}

/// The network between sandbox and gateway, which has no other members, and the addresses of
/// joined sandboxes, which are not reached by rules.
fn is_own_network(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => four.octets()[..2] == [198, 18],
        IpAddr::V6(six) => six.segments()[..4] == [0xfd6d, 0x7362, 0, 0],
    }
}
