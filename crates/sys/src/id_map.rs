//! Ids that this user namespace has: all of them, or a few in a container.

use std::fs;

/// Ids of this user namespace, by `/proc/self/uid_map` and `gid_map`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnIds {
    /// Every id that the kernel has, as outside of containers.
    All,
    /// Root and ranges `(first, count)` of further user and group ids. A count of 0 means none.
    Some {
        /// User ids besides root.
        uids: (u32, u32),
        /// Group ids besides root.
        gids: (u32, u32),
    },
}

/// Reads the ids of this user namespace. A /proc that cannot be read counts as [`OwnIds::All`].
pub fn own_ids() -> OwnIds {
    static KNOWN: std::sync::OnceLock<OwnIds> = std::sync::OnceLock::new();
    *KNOWN.get_or_init(|| {
        let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).ok();
        match (read("uid_map"), read("gid_map")) {
            (Some(uids), Some(gids)) => parse(&uids, &gids),
            _ => OwnIds::All,
        }
    })
}

/// Whether effective id 0 is root of the whole host, and not of a user namespace with few ids.
pub fn is_host_root() -> bool {
    rustix::process::geteuid().is_root() && own_ids() == OwnIds::All
}

fn parse(uids: &str, gids: &str) -> OwnIds {
    match (widest(uids), widest(gids)) {
        (None, _) | (_, None) => OwnIds::All,
        (Some(uids), Some(gids)) => OwnIds::Some { uids, gids },
    }
}

/// The widest range without id 0 in one line of a map; `None` if the map has all ids. A child's map
/// must not span two lines of its parent's.
fn widest(map: &str) -> Option<(u32, u32)> {
    let mut widest = (0, 0);
    for line in map.lines() {
        let mut fields = line.split_whitespace().map(|field| field.parse::<u32>().unwrap_or(0));
        let (first, count) = (fields.next().unwrap_or(0), fields.nth(1).unwrap_or(0));
        if u64::from(first) + u64::from(count) >= u64::from(u32::MAX) {
            return None;
        }
        let range = if first == 0 { (1, count.saturating_sub(1)) } else { (first, count) };
        if range.1 > widest.1 {
            widest = range;
        }
    }
    Some(widest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_of_hosts_and_containers_are_distinguished() {
        let all = "         0          0 4294967295\n";
        let podman = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!(parse(all, all), OwnIds::All);
        for (map, range) in
            [(podman, (1, 65536)), ("0 100000 65536\n", (1, 65535)), ("0 1000 1\n", (0, 0))]
        {
            let found = parse(map, map);
            let OwnIds::Some { uids, gids } = found else { panic!("{map}: {found:?}") };
            assert_eq!((uids.1, gids), (range.1, uids), "{map}");
            assert!(range.1 == 0 || uids == range, "{map}");
        }
    }
}
