//! The order of sandboxes in the view of `msb metrics -w`, and their sum.

use msb_api::{DiskTraffic, Metrics as SandboxMetrics, NetUsage};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// The name of the line with the sums. No sandbox can have it.
pub(super) const TOTAL: &str = "(total)";

/// What is typed to sort, and to leave.
pub(super) const HINTS: &str = "sort by: n name  c CPU  m memory  i net in  o net out    q quit";

/// What sandboxes are sorted by; the largest is first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum SortKey {
    #[default]
    Name,
    Cpu,
    Memory,
    Received,
    Sent,
}

impl SortKey {
    /// The key that was typed, if it is one.
    pub(super) fn of_key(byte: u8) -> Option<Self> {
        Some(match byte.to_ascii_lowercase() {
            b'n' => Self::Name,
            b'c' => Self::Cpu,
            b'm' => Self::Memory,
            b'i' => Self::Received,
            b'o' => Self::Sent,
            _ => return None,
        })
    }

    /// Sorts by what was used since the last look, or in all where there was none; equal ones by
    /// their names.
    pub(super) fn sort<'a>(
        self,
        measured: &mut [SandboxMetrics],
        before: impl Fn(&str) -> Option<&'a SandboxMetrics>,
    ) {
        let value = |one: &SandboxMetrics| match self {
            Self::Name => 0,
            Self::Cpu => one.cpu_us,
            Self::Memory => one.guest.map_or(one.memory, |guest| guest.memory),
            Self::Received => one.net.map_or(0, |net| net.received),
            Self::Sent => one.net.map_or(0, |net| net.sent),
        };
        let grows = !matches!(self, Self::Name | Self::Memory);
        let keys: BTreeMap<String, u64> = measured
            .iter()
            .map(|one| {
                let past = before(&one.name).filter(|_| grows).map_or(0, value);
                (one.name.clone(), value(one).saturating_sub(past))
            })
            .collect();
        measured.sort_by_cached_key(|one| (Reverse(keys[&one.name]), one.name.clone()));
    }
}

/// The sums of several sandboxes; none for one.
pub(super) fn total(measured: &[SandboxMetrics]) -> Option<SandboxMetrics> {
    let (first, rest) = measured.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let mut sum = first.clone();
    sum.name = TOTAL.to_owned();
    let memory = |one: &SandboxMetrics| one.guest.map_or(one.memory, |guest| guest.memory);
    let pids = |one: &SandboxMetrics| one.guest.map_or(one.pids, |guest| guest.pids);
    (sum.memory, sum.pids) = (memory(first), pids(first));
    (sum.guest, sum.memory_limit) = (None, None);
    for one in rest {
        sum.cpu_us += one.cpu_us;
        sum.memory += memory(one);
        sum.pids += pids(one);
        sum.uptime_ms = sum.uptime_ms.max(one.uptime_ms);
        if let Some(net) = one.net {
            let all = sum.net.get_or_insert(NetUsage::default());
            all.received += net.received;
            all.sent += net.sent;
        }
        if let Some(traffic) = one.disk_traffic {
            let all = sum.disk_traffic.get_or_insert(DiskTraffic::default());
            all.read += traffic.read;
            all.written += traffic.written;
        }
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(name: &str, cpu_us: u64, memory: u64, received: u64) -> SandboxMetrics {
        let net = Some(NetUsage { received, sent: 1, flows: 0 });
        SandboxMetrics {
            name: name.to_owned(),
            cpu_us,
            memory,
            memory_limit: Some(100),
            pids: 2,
            pids_limit: None,
            disk: None,
            disk_traffic: None,
            net: net.filter(|_| received > 0),
            uptime_ms: cpu_us,
            guest: None,
        }
    }

    #[test]
    fn the_largest_is_first_and_equal_ones_go_by_name() {
        let all = [measured("c", 10, 5, 0), measured("a", 30, 5, 7), measured("b", 20, 9, 0)];
        let names = |key: u8, before: &[SandboxMetrics]| {
            let mut sorted = all.clone();
            let key = SortKey::of_key(key).unwrap();
            key.sort(&mut sorted, |name| before.iter().find(|one| one.name == name));
            sorted.map(|one| one.name).concat()
        };
        assert_eq!(names(b'n', &[]), "abc");
        assert_eq!(names(b'c', &[]), "abc");
        assert_eq!(names(b'M', &[]), "bac");
        assert_eq!(names(b'i', &[]), "abc");
        // What was used since the last look counts.
        let before = [measured("a", 30, 0, 0), measured("b", 19, 0, 0), measured("c", 0, 0, 0)];
        assert_eq!(names(b'c', &before), "cba");
        assert_eq!(SortKey::of_key(b'x'), None);
    }

    #[test]
    fn the_total_is_the_sum_of_several() {
        let all = [measured("a", 10, 5, 0), measured("b", 20, 9, 7)];
        assert_eq!(total(&all[..1]), None);
        let sum = total(&all).unwrap();
        assert_eq!((sum.name.as_str(), sum.cpu_us, sum.memory, sum.pids), (TOTAL, 30, 14, 4));
        assert_eq!((sum.memory_limit, sum.uptime_ms), (None, 20));
        assert_eq!(sum.net.map(|net| (net.received, net.sent)), Some((7, 1)));
    }
}
