//! One cgroup for one sandbox: its limits, its use, and its end.

use crate::freezer;
use msb_spec::{By, Cgroup, Error, Freezer, Limits, Name, Result};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A sandbox's cgroup; removed when it is dropped.
#[derive(Debug)]
pub struct Group {
    version: Version,
    /// By controller; v2 has one for all, under no name.
    directories: BTreeMap<String, PathBuf>,
    freezer: Option<Freezer>,
}

#[derive(Debug)]
enum Version {
    V1,
    V2(File),
}

/// How a process gets into its cgroup.
#[derive(Debug)]
pub enum Entrance<'a> {
    /// By being made in it.
    Clone(BorrowedFd<'a>),
    /// By writing a zero to each of these.
    Write(Vec<File>),
}

impl Group {
    /// Makes the cgroup of a sandbox with its limits; none where the Plan has none.
    pub fn make(name: &Name, limits: &Limits) -> Result<Option<Self>> {
        let group = match &limits.cgroup {
            Cgroup::None => return Ok(None),
            Cgroup::V1 { .. } => {
                let group = Self {
                    version: Version::V1,
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
                hand_down(parent);
                make_directory(&directory)?;
                let freezer = limits.freezer(name);
                let first = match &freezer {
                    Some(freezer) => {
                        make_directory(&freezer.inside)?;
                        &freezer.inside
                    }
                    None => &directory,
                };
                let file = File::open(first).map_err(|error| failed(first, &error))?;
                let group = Self { version: Version::V2(file), directories, freezer };
                group.limit_v2(limits)?;
                group
            }
        };
        Ok(Some(group))
    }

    /// How the first process gets in.
    pub fn entrance(&self) -> Result<Entrance<'_>> {
        match &self.version {
            Version::V2(file) => Ok(Entrance::Clone(file.as_fd())),
            Version::V1 => {
                let open = |directory: &PathBuf| {
                    let freezer = self.freezer.as_ref().filter(|own| own.outside == *directory);
                    let path = freezer.map_or(directory, |own| &own.inside).join("tasks");
                    File::options().write(true).open(&path).map_err(|error| failed(&path, &error))
                };
                Ok(Entrance::Write(self.distinct().map(open).collect::<Result<_>>()?))
            }
        }
    }

    /// Whether everything but the guest can be frozen.
    pub fn freezes(&self) -> bool {
        self.freezer.as_ref().is_some_and(freezer::is_there)
    }

    /// Freezes everything but the guest. False if that took too long, and it goes on.
    pub fn freeze(&self, guest: u32) -> Result<bool> {
        let Some(own) = &self.freezer else { return Ok(false) };
        freezer::freeze(own, guest).map_err(|error| failed(&own.inside, &error))
    }

    /// Lets everything go on.
    pub fn thaw(&self) -> Result<()> {
        let Some(own) = &self.freezer else { return Ok(()) };
        freezer::thaw(own).map_err(|error| failed(&own.inside, &error))
    }

    /// Lets what was killed while it was frozen die.
    pub fn let_die(&self) {
        if let Some(own) = &self.freezer {
            let _ = freezer::let_die(own);
        }
    }

    /// How often the kernel killed something here for want of memory.
    pub fn memory_kills(&self) -> u64 {
        match self.version {
            Version::V1 => self.field("memory", "memory.oom_control", "oom_kill"),
            Version::V2(_) => self.field("", "memory.events", "oom_kill"),
        }
        .unwrap_or(0)
    }

    /// How often the kernel refused to make a process here.
    pub fn forks_refused(&self) -> u64 {
        let controller = if matches!(self.version, Version::V1) { "pids" } else { "" };
        self.field(controller, "pids.events", "max").unwrap_or(0)
    }

    /// Processor time in microseconds, if a controller counts it.
    pub fn cpu_us(&self) -> Option<u64> {
        match self.version {
            Version::V1 => Some(self.number("cpuacct", "cpuacct.usage")? / 1000),
            Version::V2(_) => self.field("", "cpu.stat", "usage_usec"),
        }
    }

    /// Memory in bytes, if a controller counts it.
    pub fn memory(&self) -> Option<u64> {
        match self.version {
            Version::V1 => self.number("memory", "memory.usage_in_bytes"),
            Version::V2(_) => self.number("", "memory.current"),
        }
    }

    /// Processes and threads, if a controller counts them.
    pub fn pids(&self) -> Option<u32> {
        let controller = if matches!(self.version, Version::V1) { "pids" } else { "" };
        self.number(controller, "pids.current").and_then(|n| u32::try_from(n).ok())
    }

    /// Whether processor time, memory and processes are counted here, so that the worker need not look
    /// for the processes.
    pub fn counts_all(&self) -> bool {
        self.cpu_us().is_some() && self.memory().is_some() && self.pids().is_some()
    }

    /// Bytes read from disks and written to them, if a controller counts them.
    pub fn disk_traffic(&self) -> Option<(u64, u64)> {
        match self.version {
            Version::V1 => None,
            Version::V2(_) => {
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
        for directory in self.distinct() {
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
            // Without this the limit only pushes memory to swap; not every kernel accounts it.
            let _ = self.set("memory", "memory.memsw.limit_in_bytes", &bytes);
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
            let _ = self.set("", "memory.swap.max", "0");
        }
        if let Some(pids) = limits.pids.filter(|limit| limit.by == By::Cgroup) {
            self.set("", "pids.max", &pids.value.to_string())?;
        }
        if let Some(cpus) = limits.cpus.filter(|limit| limit.by == By::Cgroup) {
            self.set("", "cpu.max", &format!("{} 100000", u64::from(cpus.value.millis) * 100))?;
        }
        Ok(())
    }

    /// Whether a limit on this can be changed here: `memory`, `cpu` or `pids`.
    pub fn can_limit(&self, what: &str) -> bool {
        let file = match (&self.version, what) {
            (Version::V1, "memory") => "memory.limit_in_bytes",
            (Version::V2(_), "memory") => "memory.max",
            (Version::V1, "cpu") => "cpu.cfs_quota_us",
            (Version::V2(_), "cpu") => "cpu.max",
            _ => "pids.max",
        };
        let controller = if matches!(self.version, Version::V1) { what } else { "" };
        self.directories.contains_key(controller) && self.path(controller, file).exists()
    }

    /// Changes limits of a cgroup that is in use. Of v1's two limits on memory the first may never be
    /// above the second, so which comes first depends on the way.
    pub fn limit_anew(&self, limits: &Limits) -> Result<()> {
        match (&self.version, limits.memory) {
            (Version::V1, Some(memory)) => {
                let bytes = memory.value.0.to_string();
                let both = "memory.memsw.limit_in_bytes";
                if self.number("memory", both).is_some_and(|now| now < memory.value.0) {
                    self.set("memory", both, &bytes)?;
                }
                self.limit_v1(limits)
            }
            (Version::V1, None) => self.limit_v1(limits),
            (Version::V2(_), _) => self.limit_v2(limits),
        }
    }

    fn set(&self, controller: &str, file: &str, value: &str) -> Result<()> {
        let path = self.path(controller, file);
        let write = || File::options().write(true).open(&path)?.write_all(value.as_bytes());
        write().map_err(|error| failed(&path, &error))
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

    /// Each directory once, though two controllers may share it.
    fn distinct(&self) -> impl Iterator<Item = &PathBuf> {
        let earlier = |path: &PathBuf, name: &String| {
            self.directories.iter().any(|(other, place)| place == path && other < name)
        };
        self.directories
            .iter()
            .filter(move |(name, path)| !earlier(path, name))
            .map(|(_, path)| path)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        /// Dead processes leave their cgroup a moment after they are reaped.
        const EMPTY_LIMIT: Duration = Duration::from_secs(2);
        let since = Instant::now();
        let inside = self.freezer.iter().map(|freezer| &freezer.inside);
        for directory in inside.chain(self.distinct()) {
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

/// Lets children of a v2 directory have the controllers we use; whoever lacks one finds out when
/// its limit is set.
fn hand_down(directory: &Path) {
    for controller in ["+memory", "+pids", "+cpu", "+io"] {
        let _ = fs::write(directory.join("cgroup.subtree_control"), controller);
    }
}

/// A new v1 cpuset has no processors, and nothing can enter it.
fn inherit_cpuset(directory: &Path) {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let above = directory.parent().map(|parent| parent.join(file));
        if let Some(value) = above.and_then(|path| fs::read_to_string(path).ok()) {
            let _ = fs::write(directory.join(file), value);
        }
    }
}

fn make_directory(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(failed(path, &error))
        }
        _ => Ok(()),
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::host(format!("cannot set up the cgroup at `{}`", path.display()), error)
}
