//! Classification of public internet addresses.
//!
//! For connections that a client of the server causes: a registry, its token server, a redirect.
//! Addresses are checked after name resolution. A range that is missing here is a hole, so IPv6 is
//! an allowlist (2000::/3) with exceptions. The table follows the IANA special-purpose address
//! registries, and adds the metadata services of clouds that use other addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IPv4 prefix: first address and length.
type Prefix4 = ([u8; 4], u32);
/// An IPv6 prefix: first address and length.
type Prefix6 = ([u16; 8], u32);

const NOT_PUBLIC_4: &[Prefix4] = &[
    ([0, 0, 0, 0], 8),        // "this network"; Linux connects 0.0.0.0 to itself
    ([10, 0, 0, 0], 8),       // private
    ([100, 64, 0, 0], 10),    // carrier-grade NAT; Alibaba's metadata service
    ([127, 0, 0, 0], 8),      // loopback
    ([168, 63, 129, 16], 32), // Azure's host agent
    ([169, 254, 0, 0], 16),   // link-local; metadata services
    ([172, 16, 0, 0], 12),    // private
    ([192, 0, 0, 0], 24),     // protocol assignments; Oracle's metadata service
    ([192, 0, 2, 0], 24),     // documentation
    ([192, 88, 99, 0], 24),   // 6to4 relays, deprecated
    ([192, 168, 0, 0], 16),   // private
    ([198, 18, 0, 0], 15),    // benchmarks; the network between a sandbox and its gateway
    ([198, 51, 100, 0], 24),  // documentation
    ([203, 0, 113, 0], 24),   // documentation
    ([224, 0, 0, 0], 4),      // multicast
    ([240, 0, 0, 0], 4),      // reserved, broadcast
];

const GLOBAL_UNICAST_6: Prefix6 = ([0x2000, 0, 0, 0, 0, 0, 0, 0], 3);

/// Exceptions inside 2000::/3. 6to4 is classified by the IPv4 address that it embeds.
const NOT_PUBLIC_6: &[Prefix6] = &[
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), // protocol assignments, Teredo, ORCHID
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), // documentation
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), // documentation
];

/// Whether an address belongs to the public internet. IPv4-mapped, NAT64 and 6to4 addresses are
/// classified by the IPv4 address that they embed.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(four) => is_public_4(four),
        IpAddr::V6(six) => match embedded_ipv4(six) {
            Some(four) => is_public_4(four),
            None => {
                within_6(six, GLOBAL_UNICAST_6)
                    && !NOT_PUBLIC_6.iter().any(|prefix| within_6(six, *prefix))
            }
        },
    }
}

fn is_public_4(address: Ipv4Addr) -> bool {
    !NOT_PUBLIC_4.iter().any(|(first, bits)| {
        let mask = u32::MAX << (32 - bits);
        address.to_bits() & mask == Ipv4Addr::from(*first).to_bits() & mask
    })
}

fn within_6(address: Ipv6Addr, (first, bits): Prefix6) -> bool {
    let mask = u128::MAX << (128 - bits);
    address.to_bits() & mask == Ipv6Addr::from(first).to_bits() & mask
}

/// IPv4 address that an IPv6 address embeds, if any.
fn embedded_ipv4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let parts = address.segments();
    let at = |high: u16, low: u16| Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low));
    match parts {
        // IPv4-mapped, and NAT64 with the well-known prefix.
        [0, 0, 0, 0, 0, 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(at(high, low))
        }
        // 6to4.
        [0x2002, high, low, ..] => Some(at(high, low)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One address of each special-purpose range, at both ends where they are short to write.
    const SPECIAL: &[&str] = &[
        "0.0.0.0",
        "0.255.255.255",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.0",
        "100.127.255.255",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.255",
        "168.63.129.16",
        "169.254.0.1",
        "169.254.169.254",
        "169.254.170.2",
        "169.254.42.42",
        "172.16.0.0",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.0.192",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.0.1",
        "192.168.255.255",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
    ];
    const PUBLIC: &[&str] = &[
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.0.0.1",
        "128.0.0.1",
        "168.63.129.15",
        "169.253.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.0.1.1",
        "192.167.1.1",
        "192.169.1.1",
        "198.17.1.1",
        "198.20.0.0",
        "223.255.255.255",
    ];

    fn forms(four: Ipv4Addr) -> [IpAddr; 4] {
        let [a, b, c, d] = four.octets().map(u16::from);
        let (high, low) = (a << 8 | b, c << 8 | d);
        [
            IpAddr::V4(four),
            IpAddr::V6(four.to_ipv6_mapped()),
            IpAddr::V6(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low)),
            IpAddr::V6(Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1)),
        ]
    }

    #[test]
    fn every_form_of_an_address_is_classified_alike() {
        for (texts, public) in [(SPECIAL, false), (PUBLIC, true)] {
            for text in texts {
                for address in forms(text.parse().unwrap()) {
                    assert_eq!(is_public(address), public, "{text} as {address}");
                }
            }
        }
    }

    #[test]
    fn only_global_unicast_of_ipv6_is_public() {
        for text in [
            "::",
            "::1",
            "::a00:1",
            "::7f00:1",
            "64:ff9b:1::1",
            "100::1",
            "100:0:0:1::1",
            "2001::1",
            "2001:0:a00::1",
            "2001:1ff:ffff::1",
            "2001:db8::1",
            "3fff::1",
            "3fff:fff::1",
            "4000::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:42::42",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "1fff::1",
        ] {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in ["2606:4700::1111", "2001:200::1", "2a00::1", "2001:4860:4860::8888", "3ffe::1"]
        {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    /// Addresses that rules call private, host or metadata are not public here either.
    #[test]
    fn public_addresses_are_public_in_rules_too() {
        use crate::Group;
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u128::from(state >> 32)
        };
        for round in 0..200_000 {
            let address = match round % 2 {
                0 => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(random()).unwrap())),
                _ => IpAddr::V6(Ipv6Addr::from_bits(
                    random() << 96 | random() << 64 | random() << 32 | random(),
                )),
            };
            if is_public(address) {
                assert_eq!(Group::of(address), Some(Group::Public), "{address}");
            }
        }
    }
}
