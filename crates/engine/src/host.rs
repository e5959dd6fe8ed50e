//! What this host offers, as far as a Plan depends on it. Cheap: asked before every start.

use msb_image::Owners;
use msb_spec::{Cgroup, Error, IdRange, Kind, Limits, Result};
use rustix::fs::Access;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The controllers whose limits we set, the one that counts processor time and the one that freezes.
const CONTROLLERS: [&str; 5] = ["cpu", "cpuacct", Limits::FREEZER, "memory", "pids"];

/// The user that msb runs as.
#[derive(Debug, Clone, Copy)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl User {
    pub(crate) fn current() -> Self {
        Self { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    pub(crate) fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Its name, if /etc/passwd has one.
    pub(crate) fn name(self) -> Option<String> {
        let passwd = fs::read_to_string("/etc/passwd").ok()?;
        passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(self.uid)).then(|| name.to_owned())
        })
    }
}

impl User {
    /// The ids that this user may use besides its own.
    pub(crate) fn granted(self) -> Option<(IdRange, IdRange)> {
        subordinate(&self.name().unwrap_or_default(), self.uid)
    }

    /// Who the files of images can belong to.
    pub(crate) fn owners(self) -> Owners {
        let Self { uid, gid } = self;
        match self.granted() {
            _ if self.is_root() => Owners::All,
            Some((uids, gids)) => Owners::Granted { uid, gid, uids, gids },
            None => Owners::Single { uid, gid },
        }
    }
}

/// Which controllers can be used, and where.
#[derive(Debug, Clone, Default)]
pub(crate) struct Controllers {
    pub(crate) cgroup: Cgroup,
}

impl Controllers {
    /// Looks for a cgroup directory that we may write.
    pub(crate) fn find() -> Self {
        let mounts = read_at_once("/proc/self/mounts");
        let own = read_at_once("/proc/self/cgroup");
        let cgroup = v1(&mounts, &own).or_else(|| v2(&mounts, &own)).unwrap_or_default();
        Self { cgroup }
    }

    /// Whether a limit can be held by this controller.
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

    /// Only these controllers: each one entered costs a fraction of a millisecond.
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

/// The v1 hierarchies that we may write: their roots as root, our own place in them else.
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
    // One that only freezes is left over beside v2, which freezes too.
    let limits = controllers.keys().any(|name| name != Limits::FREEZER);
    limits.then_some(Cgroup::V1 { controllers })
}

/// The highest v2 directory on our own way that we may write and that hands controllers down.
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
        // A directory with processes in it cannot hand anything down, but for the root.
        let empty = fs::read_to_string(path.join("cgroup.procs")).is_ok_and(|text| text.is_empty())
            || **path == root;
        path.starts_with(&root) && may_write(path) && hands_down && empty
    };
    let ancestors: Vec<&Path> = own.ancestors().collect();
    let parent = ancestors.iter().rev().copied().find(|path| usable(path))?;
    Some(Cgroup::V2 { parent: parent.to_owned(), freezes: false })
}

/// Files of /proc claim to be empty, so the usual way reads them in dozens of tiny pieces.
fn read_at_once(path: &str) -> String {
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

/// The ranges that /etc/subuid and /etc/subgid grant a user, if newuidmap is installed.
pub(crate) fn subordinate(user: &str, uid: u32) -> Option<(IdRange, IdRange)> {
    let tools = ["/usr/bin/newuidmap", "/usr/bin/newgidmap"];
    if !tools.iter().all(|tool| fs::exists(tool).unwrap_or(false)) {
        return None;
    }
    let range = |file| granted(&fs::read_to_string(file).ok()?, user, uid);
    Some((range("/etc/subuid")?, range("/etc/subgid")?))
}

/// The first range of a user in a file of `user:start:count` lines.
fn granted(file: &str, user: &str, uid: u32) -> Option<IdRange> {
    file.lines().find_map(|line| {
        let mut fields = line.split(':');
        let owner = fields.next()?;
        let (start, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let ours = owner == user || owner.parse() == Ok(uid);
        (ours && count >= 1000).then_some(IdRange { start, count })
    })
}

/// Host ids that nothing else uses, for a sandbox made by root: 64 Ki of them, at random among
/// 16 Ki such ranges, above everything that /etc/subuid hands out by default. None of those that
/// are taken; an error where all are.
pub(crate) fn unused_ids(taken: &BTreeSet<u32>) -> Result<IdRange> {
    let first = u32::from(u16::from_le_bytes(random()));
    let slots = (0..SLOTS).map(|more| (first + more) % SLOTS);
    let ranges = slots.map(|slot| IdRange { start: FIRST + slot * COUNT, count: COUNT });
    let mut free = ranges.filter(|range| !taken.contains(&range.start));
    free.next().ok_or_else(|| {
        Error::new(Kind::Limit, "every range of host ids belongs to a sandbox or a volume")
            .hint("`msb rm` removes sandboxes that are not needed any more")
    })
}

/// Whether a range is one that [`unused_ids`] gives.
pub(crate) fn is_unused(range: IdRange) -> bool {
    let offset = range.start.checked_sub(FIRST);
    range.count == COUNT && offset.is_some_and(|at| at % COUNT == 0 && at / COUNT < SLOTS)
}

/// How many ranges there are.
const SLOTS: u32 = 0x4000;
const FIRST: u32 = 0x4000_0000;
const COUNT: u32 = 0x1_0000;

/// A few random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let flags = rustix::rand::GetRandomFlags::empty();
    let filled = rustix::rand::getrandom(&mut bytes, flags);
    assert_eq!(filled, Ok(N), "the kernel has randomness once it has started");
    bytes
}

/// Half of the host's memory: what a memory file system may take before others suffer.
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
        assert!(v1(mounts, "1:memory:/\n").is_none(), "nobody may write /nowhere");
    }

    #[test]
    fn ids_are_above_those_of_people() {
        for _ in 0..100 {
            let range = unused_ids(&BTreeSet::new()).unwrap();
            assert!(range.start >= 0x4000_0000 && range.start.checked_add(range.count).is_some());
            assert!(is_unused(range));
        }
        for start in [0, 1000, FIRST - COUNT, FIRST + 1, u32::MAX, FIRST + COUNT * 0x4000] {
            assert!(!is_unused(IdRange { start, count: COUNT }), "{start}");
        }
    }

    #[test]
    fn no_range_is_given_twice() {
        let mut taken = BTreeSet::new();
        for _ in 0..SLOTS {
            let range = unused_ids(&taken).unwrap();
            assert!(is_unused(range) && taken.insert(range.start), "{range:?}");
        }
        assert_eq!(unused_ids(&taken).unwrap_err().kind(), Kind::Limit);
    }

    #[test]
    fn ranges_are_found_by_name_and_by_number() {
        let file = "root:100000:65536\nann:165536:65536\n1001:300000:65536\nbob:9:10\n";
        let range = |user, uid| granted(file, user, uid).map(|range| range.start);
        assert_eq!(range("ann", 1000), Some(165536));
        assert_eq!(range("eve", 1001), Some(300000));
        assert_eq!(range("bob", 1002), None);
    }
}
