//! Processes of a sandbox, read from its own /proc.

use msb_jail::ProcessDir;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;

/// Resource use of one process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessStat {
    /// Pid in the sandbox's pid namespace; the guest is 1.
    pub(crate) pid: u32,
    /// Resident bytes. Shared pages count in every process that shares them.
    pub(crate) resident: u64,
    pub(crate) threads: u32,
    pub(crate) cpu_us: u64,
}

/// More processes than a pids limit allows, so that the list of a fork bomb ends.
const MAX_PROCESSES: usize = 100_000;

/// Pid of the guest in the sandbox's /proc.
const GUEST: u32 = 1;

/// Lists every process of the sandbox, the guest first.
pub(crate) fn list(directory: &ProcessDir) -> Vec<ProcessStat> {
    let mut found = Vec::new();
    let mut waiting = vec![GUEST];
    while let Some(pid) = waiting.pop() {
        if found.len() == MAX_PROCESSES {
            break;
        }
        if let Some(process) = read_stat(directory, pid) {
            found.push(process);
        }
        waiting.extend(children(directory, pid));
    }
    found
}

/// Kills a process other than the guest, by a signal to its directory in /proc.
pub(crate) fn kill(directory: &ProcessDir, pid: u32) -> rustix::io::Result<()> {
    if pid == GUEST {
        return Err(rustix::io::Errno::SRCH);
    }
    let process = open(directory, pid, ".", OFlags::DIRECTORY)?;
    rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL)
}

/// Kills stopped children of the guest that have not called execve yet. They were about to become a
/// command or to serve files.
pub(crate) fn kill_stopped_forks(directory: &ProcessDir) {
    let Some(own) = comm_and_state(directory, GUEST) else { return };
    for child in children(directory, GUEST) {
        let stopped = comm_and_state(directory, child)
            .is_some_and(|(name, state)| name == own.0 && matches!(state.as_str(), "T" | "t"));
        if stopped {
            let _ = kill(directory, child);
        }
    }
}

/// Name and state letter from /proc/PID/stat.
fn comm_and_state(directory: &ProcessDir, pid: u32) -> Option<(String, String)> {
    let text = read(directory, pid, "stat")?;
    let (before, after) = text.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    Some((name, after.split_whitespace().next()?.to_owned()))
}

/// Bytes used by all processes and by `files` in tmpfs, each page counted once. Slower to read than
/// the sum of resident bytes.
pub(crate) fn total_pss(directory: &ProcessDir, processes: &[ProcessStat], files: u64) -> u64 {
    let (mut own, mut shared) = (0, 0);
    for process in processes {
        let text = read(directory, process.pid, "smaps_rollup").unwrap_or_default();
        let bytes = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1024)
        };
        let pss = bytes("Pss:").unwrap_or(process.resident);
        let pss_shmem = bytes("Pss_Shmem:").unwrap_or(0);
        own += pss.saturating_sub(pss_shmem);
        shared += pss_shmem;
    }
    // Mapped tmpfs pages are part of what the file systems hold.
    own + files.max(shared)
}

/// Bytes read from and written to disks. An exited process is counted with the parent that reaped
/// it. None if the guest's own counters cannot be read.
pub(crate) fn disk_traffic(directory: &ProcessDir) -> Option<(u64, u64)> {
    let of = |pid: u32| -> Option<(u64, u64)> {
        let text = read(directory, pid, "io")?;
        let field = |name: &str| -> u64 {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            found.unwrap_or(0)
        };
        let written = field("write_bytes:").saturating_sub(field("cancelled_write_bytes:"));
        Some((field("read_bytes:"), written))
    };
    let own = of(GUEST)?;
    let others = list(directory).into_iter().skip(1).filter_map(|process| of(process.pid));
    Some(others.fold(own, |all, one| (all.0 + one.0, all.1 + one.1)))
}

/// Whether a file system is out of blocks.
pub(crate) fn is_full(fd: &OwnedFd) -> bool {
    /// ext4 reserves up to a 25th of its blocks without reporting it.
    const KEPT: u64 = 25;
    rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_bavail <= stat.f_blocks / KEPT)
}

/// Bytes held by tmpfs instances, including the kernel memory of their inodes, names and
/// attributes.
pub(crate) fn tmpfs_bytes(file_systems: &[OwnedFd]) -> u64 {
    const INODE: u64 = 1536;
    let of = |fd: &OwnedFd| {
        rustix::fs::fstatfs(fd).map_or(0, |stat| {
            let blocks = stat.f_blocks.saturating_sub(stat.f_bfree);
            let inodes = stat.f_files.saturating_sub(stat.f_ffree);
            blocks * u64::try_from(stat.f_bsize).unwrap_or(0) + inodes * INODE
        })
    };
    file_systems.iter().map(of).sum()
}

fn children(directory: &ProcessDir, pid: u32) -> Vec<u32> {
    let names = || -> rustix::io::Result<Vec<String>> {
        let tasks = open(directory, pid, "task", OFlags::DIRECTORY)?;
        let tasks = rustix::fs::Dir::new(tasks)?;
        Ok(tasks.flatten().map(|task| task.file_name().to_string_lossy().into_owned()).collect())
    };
    let of = |task: String| -> Vec<u32> {
        let text = read(directory, pid, &format!("task/{task}/children")).unwrap_or_default();
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    let names = names().unwrap_or_default();
    names.into_iter().filter(|name| !name.starts_with('.')).flat_map(of).collect()
}

fn read_stat(directory: &ProcessDir, pid: u32) -> Option<ProcessStat> {
    let text = read(directory, pid, "stat")?;
    // The name is in parentheses and may itself contain parentheses and spaces.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = msb_sys::process::clock_ticks();
    // Includes reaped children, which no longer appear in /proc.
    let spent = field(14)? + field(15)? + field(16)? + field(17)?;
    Some(ProcessStat {
        pid,
        resident: field(24)? * msb_sys::process::page_size(),
        threads: u32::try_from(field(20)?).ok()?,
        cpu_us: spent * 1_000_000 / ticks,
    })
}

/// Reads a file below /proc/PID.
fn read(directory: &ProcessDir, pid: u32, name: &str) -> Option<String> {
    let mut text = String::new();
    let file = open(directory, pid, name, OFlags::empty()).ok()?;
    File::from(file).read_to_string(&mut text).ok()?;
    Some(text)
}

fn open(
    directory: &ProcessDir,
    pid: u32,
    name: &str,
    flags: OFlags,
) -> rustix::io::Result<OwnedFd> {
    let path = match directory {
        ProcessDir::Namespace(_) => format!("{pid}/{name}"),
        ProcessDir::Single(_) if pid == GUEST => name.to_owned(),
        ProcessDir::Single(_) | ProcessDir::Missing => return Err(rustix::io::Errno::NOENT),
    };
    let fd = directory.fd().ok_or(rustix::io::Errno::NOENT)?;
    rustix::fs::openat(fd, path, flags | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found() {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = rustix::fs::open("/proc/self", flags, Mode::empty()).unwrap();
        let found = list(&ProcessDir::Single(own));
        assert_eq!((found.len(), found[0].pid), (1, GUEST));
        assert!(found[0].resident > 0 && found[0].threads > 0);
    }

    #[test]
    fn children_are_found_in_a_directory_of_a_namespace() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open("/proc", flags, Mode::empty()).unwrap();
        let proc = ProcessDir::Namespace(proc);
        let found = children(&proc, std::process::id());
        let looked = read_stat(&proc, child.id());
        kill(&proc, child.id()).unwrap();
        child.wait().unwrap();
        assert!(found.contains(&child.id()), "{found:?}");
        assert_eq!(looked.map(|process| process.threads), Some(1));
    }
}
