//! The DNS cache that the policy uses: which names an address was the answer for, and how long that
//! holds.

use msb_spec::DomainName;
use std::collections::HashMap;
use std::net::IpAddr;

/// The shortest lifetime of an entry, in milliseconds: programs use addresses longer than their
/// TTL.
const MIN_LIFETIME: u64 = 5 * 60 * 1000;
/// The most addresses that are cached; the oldest are evicted.
const MAX_ADDRESSES: usize = 8192;
/// The most names of one address.
const MAX_NAMES: usize = 32;

/// Names by the address that they resolved to.
#[derive(Debug, Default)]
pub(crate) struct DnsCache {
    addresses: HashMap<IpAddr, CachedNames>,
}

#[derive(Debug, Default)]
struct CachedNames {
    /// Names, each with its expiry in milliseconds.
    names: Vec<(DomainName, u64)>,
    /// Open flows to this address; its names do not expire meanwhile.
    open_flows: u32,
}

impl DnsCache {
    /// Stores that `name` resolved to `address`, for `ttl` seconds or longer.
    pub(crate) fn insert(&mut self, name: &DomainName, address: IpAddr, ttl: u32, now: u64) {
        let expires = now + MIN_LIFETIME.max(u64::from(ttl).min(24 * 3600) * 1000);
        if !self.addresses.contains_key(&address) && self.addresses.len() >= MAX_ADDRESSES {
            self.evict(now);
        }
        let cached = self.addresses.entry(address).or_default();
        if let Some(entry) = cached.names.iter_mut().find(|(known, _)| known == name) {
            entry.1 = entry.1.max(expires);
            return;
        }
        if cached.names.len() >= MAX_NAMES {
            let oldest = cached.names.iter().enumerate().min_by_key(|(_, (_, expires))| *expires);
            if let Some((oldest, _)) = oldest {
                cached.names.swap_remove(oldest);
            }
        }
        cached.names.push((name.clone(), expires));
    }

    /// Removes expired entries; if there are none, the quarter that expires first.
    fn evict(&mut self, now: u64) {
        self.addresses.retain(|_, cached| cached.open_flows > 0 || cached.latest_expiry() > now);
        if self.addresses.len() < MAX_ADDRESSES {
            return;
        }
        let mut ends: Vec<u64> = self.addresses.values().map(CachedNames::latest_expiry).collect();
        ends.sort_unstable();
        let limit = ends[ends.len() / 4];
        self.addresses.retain(|_, cached| cached.latest_expiry() > limit);
    }

    /// The names that resolved to `address` and have not expired.
    pub(crate) fn names_of(&self, address: IpAddr, now: u64) -> Vec<DomainName> {
        let Some(cached) = self.addresses.get(&address) else { return Vec::new() };
        let counts = |expires: u64| cached.open_flows > 0 || expires > now;
        cached
            .names
            .iter()
            .filter(|(_, expires)| counts(*expires))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// A flow to `address` was opened: its names hold until the flow is closed.
    pub(crate) fn flow_opened(&mut self, address: IpAddr) {
        if let Some(cached) = self.addresses.get_mut(&address) {
            cached.open_flows += 1;
        }
    }

    /// A flow to `address` was closed. Its names hold a while longer, as if resolved now.
    pub(crate) fn flow_closed(&mut self, address: IpAddr, now: u64) {
        if let Some(cached) = self.addresses.get_mut(&address)
            && cached.open_flows > 0
        {
            cached.open_flows -= 1;
            if cached.open_flows == 0 {
                for (_, expires) in &mut cached.names {
                    *expires = (*expires).max(now + MIN_LIFETIME);
                }
            }
        }
    }
}

impl CachedNames {
    fn latest_expiry(&self) -> u64 {
        self.names.iter().map(|(_, expires)| *expires).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        DomainName::parse(text).unwrap()
    }

    #[test]
    fn a_name_expires_after_five_minutes_or_its_ttl() {
        let mut names = DnsCache::default();
        let address: IpAddr = "1.2.3.4".parse().unwrap();
        names.insert(&name("short.example"), address, 1, 0);
        names.insert(&name("long.example"), address, 3600, 0);
        assert_eq!(names.names_of(address, MIN_LIFETIME - 1).len(), 2);
        assert_eq!(names.names_of(address, MIN_LIFETIME), [name("long.example")]);
        assert_eq!(names.names_of(address, 3_600_000), []);
    }

    #[test]
    fn a_name_is_kept_while_flows_are_open() {
        let mut names = DnsCache::default();
        let address: IpAddr = "1.2.3.4".parse().unwrap();
        names.insert(&name("a.example"), address, 1, 0);
        names.flow_opened(address);
        assert_eq!(names.names_of(address, 10 * MIN_LIFETIME).len(), 1);
        names.flow_closed(address, 10 * MIN_LIFETIME);
        assert_eq!(names.names_of(address, 11 * MIN_LIFETIME - 1).len(), 1);
        assert_eq!(names.names_of(address, 11 * MIN_LIFETIME).len(), 0);
    }

    #[test]
    fn a_flood_of_answers_is_bounded() {
        let mut names = DnsCache::default();
        for number in 0..3 * MAX_ADDRESSES {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(number as u32));
            names.insert(&name("flood.example"), address, 60, number as u64);
        }
        assert!(names.addresses.len() <= MAX_ADDRESSES);
        let address: IpAddr = "1.2.3.4".parse().unwrap();
        for number in 0..1000 {
            names.insert(&name(&format!("n{number}.example")), address, 60, number);
        }
        assert!(names.names_of(address, 0).len() <= MAX_NAMES);
    }
}
