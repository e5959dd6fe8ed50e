//! Destinations: the form in which addresses are compared with rules.
//!
//! Several kinds of IPv6 address embed an IPv4 address, and a translator or tunnel on the way
//! delivers to that one. A rule that compares the written form alone could be bypassed by another
//! form of the same host. So rules and groups take a [`Destination`] and nothing else.

use crate::Group;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An address with all IPv4 addresses that it may be delivered to.
///
/// NAT64 and 6rd prefixes that an operator chose from its own IPv6 range are not recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The address as written; IPv4-mapped addresses are converted to IPv4.
    written: IpAddr,
    /// Embedded IPv4 addresses. A local NAT64 prefix leaves their position open.
    embedded: [Option<Ipv4Addr>; MAX_EMBEDDED],
    /// Length in bits of the prefix that marks such an address.
    prefix: u8,
}

/// Possible positions of the IPv4 address below a local NAT64 prefix.
const MAX_EMBEDDED: usize = 4;

impl Destination {
    /// Extracts the IPv4 addresses that an IPv6 address embeds.
    pub fn of(address: IpAddr) -> Self {
        let written = address.to_canonical();
        let (embedded, prefix) = match written {
            IpAddr::V4(_) => ([None; MAX_EMBEDDED], 0),
            IpAddr::V6(six) => embedded_ipv4(six),
        };
        Self { written, embedded, prefix }
    }

    /// The address as written; IPv4-mapped addresses are converted to IPv4.
    pub fn written(&self) -> IpAddr {
        self.written
    }

    /// The address as written and all embedded ones.
    pub fn readings(&self) -> impl Iterator<Item = IpAddr> + '_ {
        std::iter::once(self.written).chain(self.embedded())
    }

    /// The embedded IPv4 addresses. Empty for most addresses.
    pub(crate) fn embedded(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.embedded.iter().flatten().copied().map(IpAddr::V4)
    }

    /// Length of the prefix that marks an address with an embedded one; `None` if it embeds none.
    pub(crate) fn prefix(&self) -> Option<u8> {
        self.embedded[0].map(|_| self.prefix)
    }

    /// The most restricted group of all readings; `None` for multicast, unspecified and reserved
    /// addresses. `Host` is never returned: this crate does not know the addresses of the host.
    pub fn group(&self) -> Option<Group> {
        let mut strictest = Group::Public;
        for address in self.readings() {
            match plain_group(address)? {
                Group::Loopback => strictest = Group::Loopback,
                Group::Private if strictest == Group::Public => strictest = Group::Private,
                _ => {}
            }
        }
        match self.is_in(Group::Metadata) {
            true => Some(Group::Metadata),
            false => Some(strictest),
        }
    }

    /// Whether one of its readings is in a group: what a rule that denies the group denies. A
    /// metadata service is in the group of its network, too.
    pub fn is_in(&self, group: Group) -> bool {
        self.readings().any(|address| match group {
            Group::Metadata => is_metadata(address),
            group => plain_group(address) == Some(group),
        })
    }
}

impl From<IpAddr> for Destination {
    fn from(address: IpAddr) -> Self {
        Self::of(address)
    }
}

/// IPv4 addresses embedded in an IPv6 address, and the length of the prefix that marks it.
fn embedded_ipv4(six: Ipv6Addr) -> ([Option<Ipv4Addr>; MAX_EMBEDDED], u8) {
    let parts = six.segments();
    let four = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    let low = four(parts[6], parts[7]);
    let one = |address| [Some(address), None, None, None];
    match parts {
        // `::` and `::1` embed nothing.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => ([None; MAX_EMBEDDED], 0),
        // IPv4-compatible (RFC 4291, 2.5.5.1), IPv4-translated (RFC 2765) and NAT64 (RFC 6052).
        [0, 0, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => {
            (one(low), 96)
        }
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => (one(four(high, low)), 16),
        // Teredo (RFC 4380): the client's address with all bits flipped, and its server's.
        [0x2001, 0, high, low, ..] => {
            let client = Ipv4Addr::from_bits(!four(parts[6], parts[7]).to_bits());
            ([Some(client), Some(four(high, low)), None, None], 32)
        }
        // Local NAT64 (RFC 8215): the operator chooses one of four positions (RFC 6052, 2.2).
        [0x64, 0xff9b, 1, ..] => {
            let bits = six.to_bits();
            // Bits 64 to 71 are skipped; `before` bits of the address precede them, the rest
            // follows.
            let divided = |before: u32| {
                let front = (bits >> 64) as u64 & ((1 << before) - 1);
                let behind = (bits >> (56 - (32 - before))) as u64 & ((1 << (32 - before)) - 1);
                Ipv4Addr::from_bits((front << (32 - before) | behind) as u32)
            };
            let mut found = [Some(low), Some(divided(16)), Some(divided(8)), Some(divided(0))];
            // At a position that the operator does not use, the bits are mostly no valid address.
            let unused = |address: &Option<Ipv4Addr>| {
                address.is_none_or(|four| plain_group(IpAddr::V4(four)).is_none())
            };
            found.sort_by_key(unused);
            for slot in found.iter_mut().skip(1) {
                *slot = slot.filter(|four| !unused(&Some(*four)));
            }
            (found, 48)
        }
        // ISATAP (RFC 5214) has its own interface identifier, below any prefix.
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => (one(low), 96),
        _ => ([None; MAX_EMBEDDED], 0),
    }
}

/// Group of one address in one form, ignoring metadata services.
fn plain_group(address: IpAddr) -> Option<Group> {
    if address.is_loopback() {
        Some(Group::Loopback)
    } else if is_in_any(PRIVATE4, PRIVATE6, address) {
        Some(Group::Private)
    } else if is_in_any(RESERVED4, RESERVED6, address) {
        None
    } else {
        Some(Group::Public)
    }
}

fn is_metadata(address: IpAddr) -> bool {
    is_in_any(METADATA4, METADATA6, address)
}

fn is_in_any(fours: &[(Ipv4Addr, u8)], sixes: &[(Ipv6Addr, u8)], address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => fours.iter().any(|(begin, bits)| has_prefix4(*begin, *bits, four)),
        IpAddr::V6(six) => sixes.iter().any(|(begin, bits)| has_prefix6(*begin, *bits, six)),
    }
}

/// Whether `address` has the first `bits` bits of `begin`.
pub(crate) fn has_prefix4(begin: Ipv4Addr, bits: u8, address: Ipv4Addr) -> bool {
    let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
    begin.to_bits() & mask == address.to_bits() & mask
}

/// Whether `address` has the first `bits` bits of `begin`.
pub(crate) fn has_prefix6(begin: Ipv6Addr, bits: u8, address: Ipv6Addr) -> bool {
    let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
    begin.to_bits() & mask == address.to_bits() & mask
}

/// Metadata services of clouds, which serve credentials. All of link-local: AWS, Azure, Google,
/// OpenStack and most others at 169.254.169.254, containers of AWS at 169.254.170.0/24, Tencent at
/// 169.254.0.23, Scaleway at 169.254.42.42, and nothing that a sandbox needs.
const METADATA4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    // Alibaba.
    (Ipv4Addr::new(100, 100, 100, 200), 32),
    // Azure's host agent.
    (Ipv4Addr::new(168, 63, 129, 16), 32),
    // Oracle.
    (Ipv4Addr::new(192, 0, 0, 192), 32),
];

const METADATA6: &[(Ipv6Addr, u8)] = &[
    // AWS: metadata, credentials of containers, DNS.
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32),
    // Google.
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0), 32),
    // Scaleway.
    (Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0), 32),
    // Oracle.
    (Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0, 0), 32),
    // Akamai, formerly Linode.
    (Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 0), 48),
    // OpenStack.
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe), 128),
];

const PRIVATE4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
];

const PRIVATE6: &[(Ipv6Addr, u8)] = &[
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10),
    (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48),
];

/// Multicast, unspecified and reserved addresses.
const RESERVED4: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

const RESERVED6: &[(Ipv6Addr, u8)] = &[
    (Ipv6Addr::UNSPECIFIED, 128),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
    (Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 0), 64),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Destination {
        Destination::of(text.parse().unwrap())
    }

    #[test]
    fn every_form_of_an_ipv4_address_leads_to_it() {
        let four: IpAddr = "10.1.2.3".parse().unwrap();
        for text in [
            "10.1.2.3",
            "::ffff:10.1.2.3",
            "::10.1.2.3",
            "::ffff:0:10.1.2.3",
            "64:ff9b::10.1.2.3",
            "64:ff9b:1::10.1.2.3",
            "64:ff9b:1:5:6:7:10.1.2.3",
            "64:ff9b:1:a01:2:300::",
            "64:ff9b:1:aa0a:1:203::",
            "64:ff9b:1:aaaa:a:102:300::",
            "2002:a01:203::1",
            "2001:0:cb00:710a:0:0:f5fe:fdfc",
            "fe80::5efe:10.1.2.3",
            "2001:db8::200:5efe:10.1.2.3",
        ] {
            assert!(of(text).readings().any(|reading| reading == four), "{text}: {:?}", of(text));
            assert_eq!(of(text).group(), Some(Group::Private), "{text}");
            assert!(of(text).is_in(Group::Private), "{text}");
        }
        for text in ["::", "::1", "2001:db8::5:6", "2001:1::1", "64:ff9b:2::1", "fe80::1"] {
            assert_eq!(of(text).readings().count(), 1, "{text}");
        }
    }

    #[test]
    fn the_strictest_reading_is_the_group() {
        for (text, group) in [
            ("64:ff9b::8.8.8.8", Some(Group::Public)),
            ("2002:808:808::1", Some(Group::Public)),
            // Link-local, whatever it embeds.
            ("fe80::5efe:8.8.8.8", Some(Group::Private)),
            ("64:ff9b:1::8.8.8.8", Some(Group::Private)),
            ("64:ff9b:1::127.0.0.1", Some(Group::Loopback)),
            ("64:ff9b:1:a9fe:a9:fe00::", Some(Group::Metadata)),
            ("64:ff9b:1::", None),
            ("64:ff9b::127.0.0.1", Some(Group::Loopback)),
            ("2002:7f00:1::", Some(Group::Loopback)),
            ("64:ff9b::224.0.0.1", None),
            ("::0.0.0.5", None),
            ("fe80::5efe:169.254.169.254", Some(Group::Metadata)),
        ] {
            assert_eq!(of(text).group(), group, "{text}");
        }
    }

    #[test]
    fn metadata_services_of_the_clouds_are_known() {
        for text in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.42.42",
            "169.254.0.23",
            "169.254.9.9",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:42::42",
            "fd00:c1::a9fe:a9fe",
            "fd00:a9fe:a9fe::1",
            "fe80::a9fe:a9fe",
            "::ffff:169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::100.100.100.200",
            "2002:a9fe:a9fe::",
        ] {
            assert_eq!(of(text).group(), Some(Group::Metadata), "{text}");
        }
        // A rule that denies the group of their network denies them; one that allows it does not
        // allow them.
        assert!(of("169.254.169.254").is_in(Group::Private));
        assert!(of("168.63.129.16").is_in(Group::Public));
        assert!(!of("10.0.0.1").is_in(Group::Metadata));
    }
}
