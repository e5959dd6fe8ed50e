//! What this host offers for a Plan: user, ids, cgroups, memory. Cheap enough for every start.

use msb_image::Owners;
use msb_spec::{Cgroup, Error, IdRange, Kind, Limits, Result};
use msb_sys::id_map::{OwnIds, own_ids};
use rustix::fs::Access;
use rustix::thread::CapabilitySet;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The cgroup controllers used: for limits, for accounting of processor time, and the freezer.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", Limits::FREEZER, "memory", "pids"];

/// The user that msb runs as, by its effective ids.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostUser {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl HostUser {
    pub(crate) fn current() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// Whether this is root of the host, and not of a user namespace with few ids: only the former
    /// can give each sandbox ids of its own and mount what it likes.
    pub(crate) fn is_root(self) -> bool {
        self.uid == 0 && own_ids() == OwnIds::All
    }

    /// Whether this is root of a user namespace, as in a rootless container.
    pub(crate) fn is_container_root(self) -> bool {
        self.uid == 0 && own_ids() != OwnIds::All
    }

    /// The name of the user, if /etc/passwd has one.
    pub(crate) fn name(self) -> Option<String> {
        let passwd = fs::read_to_string("/etc/passwd").ok()?;
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(self.uid)).then(|| name.to_owned())
        })
    }
}

impl HostUser {
    /// The subordinate uids and gids of this user, if it has any.
    pub(crate) fn subordinate_ids(self) -> Option<(IdRange, IdRange)> {
        if let (0, OwnIds::Some { uids, gids }) = (self.uid, own_ids()) {
            let caps = rustix::thread::capabilities(None).ok()?.effective;
            let may_map = caps.contains(CapabilitySet::SETUID | CapabilitySet::SETGID);
            let range = |(start, count): (u32, u32)| IdRange { start, count };
            return (may_map && uids.1.min(gids.1) >= FEWEST_IDS)
                .then(|| (range(uids), range(gids)));
        }
        let granted = subordinate(&self.name().unwrap_or_default(), self.uid)?;
        // A container has the files of its image, and perhaps not the ids that they grant.
        let exist = |range: IdRange, (start, count): (u32, u32)| {
            let end = |start: u32, count: u32| u64::from(start) + u64::from(count);
            start <= range.start && end(range.start, range.count) <= end(start, count)
        };
        match own_ids() {
            OwnIds::All => Some(granted),
            OwnIds::Some { uids, gids } => {
                (exist(granted.0, uids) && exist(granted.1, gids)).then_some(granted)
            }
        }
    }

    /// The owners that files of images can have for this user.
    pub(crate) fn owners(self) -> Owners {
        let Self { uid, gid } = self;
        match self.subordinate_ids() {
            _ if self.is_root() => Owners::All,
            Some((uids, gids)) => Owners::Granted { uid, gid, uids, gids },
            None => Owners::Single { uid, gid },
        }
    }
}

/// The cgroup controllers that this user can write.
#[derive(Debug, Clone, Default)]
pub(crate) struct CgroupControllers {
    pub(crate) cgroup: Cgroup,
}

impl CgroupControllers {
    /// Finds the cgroup directories that this user can write: v1 first, then v2.
    pub(crate) fn find() -> Self {
        let mounts = read_proc_file("/proc/self/mounts");
        let own = read_proc_file("/proc/self/cgroup");
        let cgroup = v1(&mounts, &own).or_else(|| v2(&mounts, &own)).unwrap_or_default();
        Self { cgroup }
    }

    /// Whether this controller is available.
    pub(crate) fn has(&self, controller: &str) -> bool {
        match &self.cgroup {
            Cgroup::None => false,
            Cgroup::V1 { controllers } => controllers.contains_key(controller),
            Cgroup::V2 { parent, .. } => {
                let file = fs::read_to_string(parent.join("cgroup.controllers"));
                file.is_ok_and(|text| text.split_whitespace().any(|name| name == controller))
            }
        }
    }

    /// The cgroup with these controllers only: each one entered costs a fraction of a millisecond.
    pub(crate) fn only(&self, wanted: &[&str]) -> Cgroup {
        match &self.cgroup {
            Cgroup::V1 { controllers } => {
                let kept: BTreeMap<String, PathBuf> = controllers
                    .iter()
                    .filter(|(name, _)| wanted.contains(&name.as_str()))
                    .map(|(name, path)| (name.clone(), path.clone()))
                    .collect();
                if kept.is_empty() { Cgroup::None } else { Cgroup::V1 { controllers: kept } }
            }
            _ if wanted.is_empty() => Cgroup::None,
            Cgroup::V2 { parent, .. } => {
                let freezes = wanted.contains(&Limits::FREEZER);
                Cgroup::V2 { parent: parent.clone(), freezes }
            }
            Cgroup::None => Cgroup::None,
        }
    }
}

/// The v1 hierarchies that this user can write: their roots, or the cgroup of this process.
fn v1(mounts: &str, own: &str) -> Option<Cgroup> {
    let mut controllers = BTreeMap::new();
    for line in mounts.lines() {
        let mut fields = line.split_whitespace();
        let (Some(root), Some("cgroup"), Some(options)) =
            (fields.nth(1), fields.next(), fields.next())
        else {
            continue;
        };
        for controller in CONTROLLERS.iter().filter(|c| options.split(',').any(|o| o == **c)) {
            let place = own.lines().find_map(|line| {
                let (_, rest) = line.split_once(':')?;
                let (names, path) = rest.split_once(':')?;
                names.split(',').any(|name| name == *controller).then(|| path.to_owned())
            });
            let place = Path::new(root).join(place.unwrap_or_default().trim_start_matches('/'));
            let writable = [Path::new(root), &place].into_iter().find(|path| may_write(path));
            if let Some(path) = writable {
                controllers.insert((*controller).to_owned(), path.to_owned());
            }
        }
    }
    // A freezer alone remains mounted on v2 systems, where v2 is used.
    let limits = controllers.keys().any(|name| name != Limits::FREEZER);
    limits.then_some(Cgroup::V1 { controllers })
}

/// The topmost v2 ancestor of this process that can be written and delegates controllers.
fn v2(mounts: &str, own: &str) -> Option<Cgroup> {
    let root = mounts.lines().find_map(|line| {
        let mut fields = line.split_whitespace();
        let root = fields.nth(1)?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(root))
    })?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let own = root.join(own.trim_start_matches('/'));
    let usable = |path: &&Path| {
        let hands_down = fs::read_to_string(path.join("cgroup.controllers"))
            .is_ok_and(|text| text.contains("pids") && text.contains("memory"));
        // cgroup v2 forbids controllers in a directory with processes, except for the root.
        let empty = fs::read_to_string(path.join("cgroup.procs")).is_ok_and(|text| text.is_empty())
            || **path == root;
        path.starts_with(&root) && may_write(path) && hands_down && empty
    };
    let ancestors: Vec<&Path> = own.ancestors().collect();
    let parent = ancestors.iter().rev().copied().find(|path| usable(path))?;
    Some(Cgroup::V2 { parent: parent.to_owned(), freezes: false })
}

/// Reads a /proc file with a large buffer: its size is 0, so the standard library would use many
/// small reads.
fn read_proc_file(path: &str) -> String {
    let mut text = Vec::with_capacity(32 << 10);
    let read = fs::File::open(path).and_then(|mut file| file.read_to_end(&mut text));
    if read.is_err() {
        text.clear();
    }
    String::from_utf8_lossy(&text).into_owned()
}

fn may_write(path: &Path) -> bool {
    rustix::fs::access(path, Access::WRITE_OK).is_ok()
}

/// The ranges of a user in /etc/subuid and /etc/subgid, if newuidmap and newgidmap are installed.
pub(crate) fn subordinate(user: &str, uid: u32) -> Option<(IdRange, IdRange)> {
    let tools = ["/usr/bin/newuidmap", "/usr/bin/newgidmap"];
    if !tools.iter().all(|tool| fs::exists(tool).unwrap_or(false)) {
        return None;
    }
    let range = |file| first_range(&fs::read_to_string(file).ok()?, user, uid);
    Some((range("/etc/subuid")?, range("/etc/subgid")?))
}

/// Fewer ids than this are of no use: system users have numbers up to 999.
const FEWEST_IDS: u32 = 1000;

/// The first range of at least [`FEWEST_IDS`] ids of a user, in a file of `user:start:count` lines.
fn first_range(file: &str, user: &str, uid: u32) -> Option<IdRange> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        let (start, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let ours = owner == user || owner.parse() == Ok(uid);
        (ours && count >= FEWEST_IDS).then_some(IdRange { start, count })
    })
}

/// A random free range of 64 Ki host ids, for a sandbox or volume of root. There are 16 Ki such
/// ranges, above the defaults of /etc/subuid. Fails if all are taken.
pub(crate) fn unused_ids(taken: &BTreeSet<u32>) -> Result<IdRange> {
    let first = u32::from(u16::from_le_bytes(random()));
    let slots = (0..RANGES).map(|more| (first + more) % RANGES);
    let ranges =
        slots.map(|slot| IdRange { start: FIRST_ID + slot * RANGE_SIZE, count: RANGE_SIZE });
    let mut free = ranges.filter(|range| !taken.contains(&range.start));
    free.next().ok_or_else(|| {
        Error::new(Kind::Limit, "every range of host ids belongs to a sandbox or a volume")
            .hint("`msb rm` removes sandboxes that are not needed any more")
    })
}

/// Whether a range is one that [`unused_ids`] allocates.
pub(crate) fn is_sandbox_range(range: IdRange) -> bool {
    let offset = range.start.checked_sub(FIRST_ID);
    range.count == RANGE_SIZE
        && offset.is_some_and(|at| at % RANGE_SIZE == 0 && at / RANGE_SIZE < RANGES)
}

/// The number of ranges; each starts at a multiple of `RANGE_SIZE` above `FIRST_ID`.
const RANGES: u32 = 0x4000;
const FIRST_ID: u32 = 0x4000_0000;
const RANGE_SIZE: u32 = 0x1_0000;

/// `N` random bytes of the kernel.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let flags = rustix::rand::GetRandomFlags::empty();
    let filled = rustix::rand::getrandom(&mut bytes, flags);
    assert_eq!(filled, Ok(N), "the kernel has randomness once it has started");
    bytes
}

/// Half of the host's memory in bytes: the limit of a tmpfs that leaves room for others.
pub(crate) fn half_of_memory() -> u64 {
    let info = rustix::system::sysinfo();
    info.totalram as u64 * u64::from(info.mem_unit) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn v2_is_not_found_among_v1_mounts() {
        let mounts = "cgroup /nowhere/memory cgroup rw,memory 0 0\n";
        assert!(v2(mounts, "0::/\n").is_none());
        assert!(v1(mounts, "1:memory:/\n").is_none(), "/nowhere is not writable");
    }

    #[test]
    fn id_ranges_are_above_those_of_users() {
        for _ in 0..100 {
            let range = unused_ids(&BTreeSet::new()).unwrap();
            assert!(range.start >= 0x4000_0000 && range.start.checked_add(range.count).is_some());
            assert!(is_sandbox_range(range));
        }
        for start in
            [0, 1000, FIRST_ID - RANGE_SIZE, FIRST_ID + 1, u32::MAX, FIRST_ID + RANGE_SIZE * 0x4000]
        {
            assert!(!is_sandbox_range(IdRange { start, count: RANGE_SIZE }), "{start}");
        }
    }

    #[test]
    fn no_id_range_is_allocated_twice() {
        let mut taken = BTreeSet::new();
        for _ in 0..RANGES {
            let range = unused_ids(&taken).unwrap();
            assert!(is_sandbox_range(range) && taken.insert(range.start), "{range:?}");
        }
        assert_eq!(unused_ids(&taken).unwrap_err().kind(), Kind::Limit);
    }

    #[test]
    fn ranges_are_found_by_name_and_by_number() {
        let file = "root:100000:65536\nann:165536:65536\n1001:300000:65536\nbob:9:10\n";
        let range = |user, uid| first_range(file, user, uid).map(|range| range.start);
        assert_eq!(range("ann", 1000), Some(165536));
        assert_eq!(range("eve", 1001), Some(300000));
        assert_eq!(range("bob", 1002), None);
    }
}
