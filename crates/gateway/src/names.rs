//! Which names an address was given for, and for how long that counts.

use msb_spec::DomainName;
use std::collections::HashMap;
use std::net::IpAddr;

/// How long a tie counts at least, in milliseconds: programs keep addresses longer than they may.
const LEAST: u64 = 5 * 60 * 1000;
/// As many addresses as are remembered; a guest that asks for more forgets its oldest.
const ADDRESSES: usize = 8192;
/// As many names as one address may have.
const NAMES: usize = 32;

/// Ties of names to addresses.
#[derive(Debug, Default)]
pub(crate) struct Names {
    ties: HashMap<IpAddr, Ties>,
}

#[derive(Debug, Default)]
struct Ties {
    /// Names and when each ends.
    names: Vec<(DomainName, u64)>,
    /// Flows to the address that are open.
    open: u32,
}

impl Names {
    /// Remembers that `name` led to `address`, for `ttl` seconds or longer.
    pub(crate) fn tie(&mut self, name: &DomainName, address: IpAddr, ttl: u32, now: u64) {
        let until = now + LEAST.max(u64::from(ttl).min(24 * 3600) * 1000);
        if !self.ties.contains_key(&address) && self.ties.len() >= ADDRESSES {
            self.make_room(now);
        }
        let ties = self.ties.entry(address).or_default();
        if let Some(tie) = ties.names.iter_mut().find(|(tied, _)| tied == name) {
            tie.1 = tie.1.max(until);
            return;
        }
        if ties.names.len() >= NAMES {
            let oldest = ties.names.iter().enumerate().min_by_key(|(_, (_, until))| *until);
            if let Some((oldest, _)) = oldest {
                ties.names.swap_remove(oldest);
            }
        }
        ties.names.push((name.clone(), until));
    }

    /// Drops what no longer counts; if that is nothing, a quarter of what ends first.
    fn make_room(&mut self, now: u64) {
        self.ties.retain(|_, ties| ties.open > 0 || ties.end() > now);
        if self.ties.len() < ADDRESSES {
            return;
        }
        let mut ends: Vec<u64> = self.ties.values().map(Ties::end).collect();
        ends.sort_unstable();
        let limit = ends[ends.len() / 4];
        self.ties.retain(|_, ties| ties.end() > limit);
    }

    /// The names that `address` was given for.
    pub(crate) fn of(&self, address: IpAddr, now: u64) -> Vec<DomainName> {
        let Some(ties) = self.ties.get(&address) else { return Vec::new() };
        let counts = |until: u64| ties.open > 0 || until > now;
        ties.names
            .iter()
            .filter(|(_, until)| counts(*until))
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// A flow to `address` has begun: its names count until it has ended.
    pub(crate) fn opened(&mut self, address: IpAddr) {
        if let Some(ties) = self.ties.get_mut(&address) {
            ties.open += 1;
        }
    }

    /// A flow to `address` has ended. Its names count for a while longer, as if just asked for.
    pub(crate) fn closed(&mut self, address: IpAddr, now: u64) {
        if let Some(ties) = self.ties.get_mut(&address)
            && ties.open > 0
        {
            ties.open -= 1;
            if ties.open == 0 {
                for (_, until) in &mut ties.names {
                    *until = (*until).max(now + LEAST);
                }
            }
        }
    }
}

impl Ties {
    fn end(&self) -> u64 {
        self.names.iter().map(|(_, until)| *until).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> DomainName {
        DomainName::parse(text).unwrap()
    }

    #[test]
    fn a_tie_ends_after_five_minutes_or_its_ttl() {
        let mut names = Names::default();
        let address: IpAddr = "1.2.3.4".parse().unwrap();
        names.tie(&name("short.example"), address, 1, 0);
        names.tie(&name("long.example"), address, 3600, 0);
        assert_eq!(names.of(address, LEAST - 1).len(), 2);
        assert_eq!(names.of(address, LEAST), [name("long.example")]);
        assert_eq!(names.of(address, 3_600_000), []);
    }

    #[test]
    fn a_tie_lives_while_flows_are_open() {
        let mut names = Names::default();
        let address: IpAddr = "1.2.3.4".parse().unwrap();
        names.tie(&name("a.example"), address, 1, 0);
        names.opened(address);
        assert_eq!(names.of(address, 10 * LEAST).len(), 1);
        names.closed(address, 10 * LEAST);
        assert_eq!(names.of(address, 11 * LEAST - 1).len(), 1);
        assert_eq!(names.of(address, 11 * LEAST).len(), 0);
    }

    #[test]
    fn a_flood_of_answers_is_bounded() {
        let mut names = Names::default();
        for number in 0..3 * ADDRESSES {
            let address = IpAddr::V4(std::net::Ipv4Addr::from_bits(number as u32));
            names.tie(&name("flood.example"), address, 60, number as u64);
        }
        assert!(names.ties.len() <= ADDRESSES);
        let address: IpAddr = "1.2.3.4".parse().unwrap();
        for number in 0..1000 {
            names.tie(&name(&format!("n{number}.example")), address, 60, number);
        }
        assert!(names.of(address, 0).len() <= NAMES);
    }
}
