//! The cgroup of a sandbox: limits, counters, freezing and removal.

use crate::freezer;
use msb_spec::{By, Cgroup, Error, Freezer, Limits, Name, Result};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A sandbox's cgroup; dropping it removes the cgroup.
#[derive(Debug)]
pub struct SandboxCgroup {
    version: CgroupVersion,
    /// Directory by controller. cgroup v2 has one directory for all, with an empty key.
    directories: BTreeMap<String, PathBuf>,
    freezer: Option<Freezer>,
}

#[derive(Debug)]
enum CgroupVersion {
    V1,
    V2(File),
}

/// How a process enters its cgroup.
#[derive(Debug)]
pub enum CgroupEntry<'a> {
    /// By `clone3` with this directory (cgroup v2).
    Clone(BorrowedFd<'a>),
    /// By writing `0` to each of these `tasks` files (cgroup v1).
    Write(Vec<File>),
}

impl SandboxCgroup {
    /// Creates the cgroup of a sandbox and sets its limits; none if the Plan has no cgroup.
    pub fn create(name: &Name, limits: &Limits) -> Result<Option<Self>> {
        let group = match &limits.cgroup {
            Cgroup::None => return Ok(None),
            Cgroup::V1 { .. } => {
                let group = Self {
                    version: CgroupVersion::V1,
                    directories: limits.cgroup_directories(name),
                    freezer: limits.freezer(name),
                };
                group.make_directories()?;
                group.limit_v1(limits)?;
                group
            }
            Cgroup::V2 { parent, .. } => {
                let directories = limits.cgroup_directories(name);
                let directory = directories.values().next().cloned().unwrap_or_default();
                enable_controllers(parent);
                make_directory(&directory)?;
                let freezer = limits.freezer(name);
                let first = match &freezer {
                    Some(freezer) => {
                        make_directory(&freezer.inside)?;
                        &freezer.inside
                    }
                    None => &directory,
                };
                let file = File::open(first).map_err(|error| setup_error(first, &error))?;
                let group = Self { version: CgroupVersion::V2(file), directories, freezer };
                group.limit_v2(limits)?;
                group
            }
        };
        Ok(Some(group))
    }

    /// How the first process enters the cgroup.
    pub fn entry(&self) -> Result<CgroupEntry<'_>> {
        match &self.version {
            CgroupVersion::V2(file) => Ok(CgroupEntry::Clone(file.as_fd())),
            CgroupVersion::V1 => {
                let open = |directory: &PathBuf| {
                    let freezer =
                        self.freezer.as_ref().filter(|freezer| freezer.outside == *directory);
                    let path = freezer.map_or(directory, |freezer| &freezer.inside).join("tasks");
                    File::options()
                        .write(true)
                        .open(&path)
                        .map_err(|error| setup_error(&path, &error))
                };
                Ok(CgroupEntry::Write(
                    self.distinct_directories().map(open).collect::<Result<_>>()?,
                ))
            }
        }
    }

    /// Whether everything but the guest can be frozen.
    pub fn can_freeze(&self) -> bool {
        self.freezer.as_ref().is_some_and(freezer::exists)
    }

    /// Freezes everything but the guest. False after a timeout; then everything is thawed again.
    pub fn freeze(&self, guest: u32) -> Result<bool> {
        let Some(freezer) = &self.freezer else { return Ok(false) };
        freezer::freeze(freezer, guest).map_err(|error| setup_error(&freezer.inside, &error))
    }

    /// Thaws everything and moves the guest back in.
    pub fn thaw(&self) -> Result<()> {
        let Some(freezer) = &self.freezer else { return Ok(()) };
        freezer::thaw(freezer).map_err(|error| setup_error(&freezer.inside, &error))
    }

    /// Thaws processes that were killed while frozen, so that they die.
    pub fn thaw_for_kill(&self) {
        if let Some(freezer) = &self.freezer {
            msb_log::warn_on_failure!(
                freezer::thaw_for_kill(freezer),
                "cannot thaw the processes to kill them"
            );
        }
    }

    /// Number of OOM kills in this cgroup.
    pub fn memory_kills(&self) -> u64 {
        match self.version {
            CgroupVersion::V1 => self.field("memory", "memory.oom_control", "oom_kill"),
            CgroupVersion::V2(_) => self.field("", "memory.events", "oom_kill"),
        }
        .unwrap_or(0)
    }

    /// Number of forks that the pids limit has refused.
    pub fn forks_refused(&self) -> u64 {
        let controller = if matches!(self.version, CgroupVersion::V1) { "pids" } else { "" };
        self.field(controller, "pids.events", "max").unwrap_or(0)
    }

    /// CPU time in microseconds, if a controller counts it.
    pub fn cpu_us(&self) -> Option<u64> {
        match self.version {
            CgroupVersion::V1 => Some(self.number("cpuacct", "cpuacct.usage")? / 1000),
            CgroupVersion::V2(_) => self.field("", "cpu.stat", "usage_usec"),
        }
    }

    /// Memory in bytes, if a controller counts it.
    pub fn memory(&self) -> Option<u64> {
        match self.version {
            CgroupVersion::V1 => self.number("memory", "memory.usage_in_bytes"),
            CgroupVersion::V2(_) => self.number("", "memory.current"),
        }
    }

    /// Processes and threads, if a controller counts them.
    pub fn pids(&self) -> Option<u32> {
        let controller = if matches!(self.version, CgroupVersion::V1) { "pids" } else { "" };
        self.number(controller, "pids.current").and_then(|n| u32::try_from(n).ok())
    }

    /// Bytes read from disks and written to them, if a controller counts them.
    pub fn disk_traffic(&self) -> Option<(u64, u64)> {
        match self.version {
            CgroupVersion::V1 => None,
            CgroupVersion::V2(_) => {
                let text = fs::read_to_string(self.path("", "io.stat")).ok()?;
                let sum = |name: &str| -> u64 {
                    let words = text.split_whitespace();
                    words.filter_map(|word| word.strip_prefix(name)?.parse::<u64>().ok()).sum()
                };
                Some((sum("rbytes="), sum("wbytes=")))
            }
        }
    }

    fn make_directories(&self) -> Result<()> {
        for directory in self.distinct_directories() {
            make_directory(directory)?;
            inherit_cpuset(directory);
        }
        if let Some(freezer) = &self.freezer {
            make_directory(&freezer.inside)?;
            inherit_cpuset(&freezer.inside);
        }
        Ok(())
    }

    fn limit_v1(&self, limits: &Limits) -> Result<()> {
        if let Some(memory) = limits.memory.filter(|limit| limit.by == By::Cgroup) {
            let bytes = memory.value.0.to_string();
            self.set("memory", "memory.limit_in_bytes", &bytes)?;
            // Without this the limit only pushes memory to swap. Not every kernel accounts swap.
            msb_log::debug_on_failure!(
                self.set("memory", "memory.memsw.limit_in_bytes", &bytes),
                "cannot limit swap"
            );
        }
        if let Some(pids) = limits.pids.filter(|limit| limit.by == By::Cgroup) {
            self.set("pids", "pids.max", &pids.value.to_string())?;
        }
        if let Some(cpus) = limits.cpus.filter(|limit| limit.by == By::Cgroup) {
            self.set("cpu", "cpu.cfs_period_us", "100000")?;
            self.set("cpu", "cpu.cfs_quota_us", &(u64::from(cpus.value.millis) * 100).to_string())?;
        }
        Ok(())
    }

    fn limit_v2(&self, limits: &Limits) -> Result<()> {
        if let Some(memory) = limits.memory.filter(|limit| limit.by == By::Cgroup) {
            self.set("", "memory.max", &memory.value.0.to_string())?;
            msb_log::debug_on_failure!(self.set("", "memory.swap.max", "0"), "cannot limit swap");
        }
        if let Some(pids) = limits.pids.filter(|limit| limit.by == By::Cgroup) {
            self.set("", "pids.max", &pids.value.to_string())?;
        }
        if let Some(cpus) = limits.cpus.filter(|limit| limit.by == By::Cgroup) {
            self.set("", "cpu.max", &format!("{} 100000", u64::from(cpus.value.millis) * 100))?;
        }
        Ok(())
    }

    /// Whether the limit of `memory`, `cpu` or `pids` can be changed in this cgroup.
    pub fn can_limit(&self, what: &str) -> bool {
        let file = match (&self.version, what) {
            (CgroupVersion::V1, "memory") => "memory.limit_in_bytes",
            (CgroupVersion::V2(_), "memory") => "memory.max",
            (CgroupVersion::V1, "cpu") => "cpu.cfs_quota_us",
            (CgroupVersion::V2(_), "cpu") => "cpu.max",
            _ => "pids.max",
        };
        let controller = if matches!(self.version, CgroupVersion::V1) { what } else { "" };
        self.directories.contains_key(controller) && self.path(controller, file).exists()
    }

    /// Changes limits of a cgroup in use. In v1 the memory limit must never exceed that of memory
    /// plus swap, so the order of the two writes depends on the direction.
    pub fn update_limits(&self, limits: &Limits) -> Result<()> {
        match (&self.version, limits.memory) {
            (CgroupVersion::V1, Some(memory)) => {
                let bytes = memory.value.0.to_string();
                let both = "memory.memsw.limit_in_bytes";
                if self.number("memory", both).is_some_and(|now| now < memory.value.0) {
                    self.set("memory", both, &bytes)?;
                }
                self.limit_v1(limits)
            }
            (CgroupVersion::V1, None) => self.limit_v1(limits),
            (CgroupVersion::V2(_), _) => self.limit_v2(limits),
        }
    }

    fn set(&self, controller: &str, file: &str, value: &str) -> Result<()> {
        let path = self.path(controller, file);
        let write = || File::options().write(true).open(&path)?.write_all(value.as_bytes());
        write().map_err(|error| setup_error(&path, &error))
    }

    fn number(&self, controller: &str, file: &str) -> Option<u64> {
        fs::read_to_string(self.path(controller, file)).ok()?.trim().parse().ok()
    }

    fn field(&self, controller: &str, file: &str, field: &str) -> Option<u64> {
        let text = fs::read_to_string(self.path(controller, file)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok())
    }

    fn path(&self, controller: &str, file: &str) -> PathBuf {
        self.directories.get(controller).map_or_else(PathBuf::new, |directory| directory.join(file))
    }

    /// Each directory once; two controllers may share one.
    fn distinct_directories(&self) -> impl Iterator<Item = &PathBuf> {
        let earlier = |path: &PathBuf, name: &String| {
            self.directories.iter().any(|(other, directory)| directory == path && other < name)
        };
        self.directories
            .iter()
            .filter(move |(name, path)| !earlier(path, name))
            .map(|(_, path)| path)
    }
}

impl Drop for SandboxCgroup {
    fn drop(&mut self) {
        /// Dead processes leave their cgroup a moment after they are reaped.
        const EMPTY_LIMIT: Duration = Duration::from_secs(2);
        let since = Instant::now();
        let inside = self.freezer.iter().map(|freezer| &freezer.inside);
        for directory in inside.chain(self.distinct_directories()) {
            while let Err(error) = fs::remove_dir(directory) {
                let busy = error.raw_os_error() == Some(libc::EBUSY);
                if !busy || since.elapsed() > EMPTY_LIMIT {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Enables controllers for the children of a v2 directory. A missing one is noticed when its limit
/// is set.
fn enable_controllers(directory: &Path) {
    for controller in ["+memory", "+pids", "+cpu", "+io"] {
        msb_log::debug_on_failure!(
            fs::write(directory.join("cgroup.subtree_control"), controller),
            "cannot delegate a cgroup controller"
        );
    }
}

/// Copies the parent's values: a new v1 cpuset has no CPUs, and no process can enter it.
fn inherit_cpuset(directory: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let above = directory.parent().map(|parent| parent.join(file));
        if let Some(value) = above.and_then(|path| fs::read_to_string(path).ok()) {
            msb_log::debug_on_failure!(
                fs::write(directory.join(file), value),
                "cannot write a cgroup file"
            );
        }
    }
}

fn make_directory(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(setup_error(path, &error))
        }
        _ => Ok(()),
    }
}

fn setup_error(path: &Path, error: &std::io::Error) -> Error {
    Error::host(format!("cannot set up the cgroup at `{}`", path.display()), error)
}
