//! One cgroup for one sandbox: its limits, its use, and its end.

use msb_spec::{By, Cgroup, Error, Limits, Name, Result};
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
                let group =
                    Self { version: Version::V1, directories: limits.cgroup_directories(name) };
                group.make_directories()?;
                group.limit_v1(limits)?;
                group
            }
            Cgroup::V2 { parent } => {
                let directories = limits.cgroup_directories(name);
                let directory = directories.values().next().cloned().unwrap_or_default();
                hand_down(parent);
                make_directory(&directory)?;
                let file = File::open(&directory).map_err(|error| failed(&directory, &error))?;
                let group = Self {
                    version: Version::V2(file),
                    directories: limits.cgroup_directories(name),
                };
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
                    let path = directory.join("tasks");
                    File::options().write(true).open(&path).map_err(|error| failed(&path, &error))
                };
                Ok(Entrance::Write(self.distinct().map(open).collect::<Result<_>>()?))
            }
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

    fn make_directories(&self) -> Result<()> {
        for directory in self.distinct() {
            make_directory(directory)?;
            inherit_cpuset(directory);
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
        for directory in self.distinct() {
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
    for controller in ["+memory", "+pids", "+cpu"] {
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
