//! The processes of a sandbox without a cgroup, found below its guest.

use std::fs;
use std::os::fd::OwnedFd;

/// A process of the sandbox, seen from the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// Resident bytes; shared pages count for everyone who shares them.
    pub(crate) resident: u64,
    pub(crate) threads: u32,
    pub(crate) cpu_us: u64,
}

/// Deep enough for any fork bomb that a pids limit allows to be seen.
const COUNT_LIMIT: usize = 100_000;

/// Every process below the guest, which comes first.
pub(crate) fn below(guest: u32) -> Vec<Process> {
    let mut found = Vec::new();
    let mut waiting = vec![guest];
    while let Some(pid) = waiting.pop() {
        if found.len() == COUNT_LIMIT {
            break;
        }
        if let Some(process) = look_at(pid) {
            found.push(process);
        }
        waiting.extend(children(pid));
    }
    found
}

/// Kills one process, through a descriptor.
pub(crate) fn kill(pid: u32) -> rustix::io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.filter(|pid| !pid.is_init()).ok_or(rustix::io::Errno::SRCH)?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL)
}

/// Kills the children of the guest that are still copies of it, and that something has stopped: they
/// were about to become a command, or serve files.
pub(crate) fn kill_stopped_copies(guest: u32) {
    let Some(own) = name_and_state(guest) else { return };
    for child in children(guest) {
        let stopped = name_and_state(child)
            .is_some_and(|(name, state)| name == own.0 && matches!(state.as_str(), "T" | "t"));
        if stopped {
            let _ = kill(child);
        }
    }
}

/// What the kernel calls a process, and the letter for what it does.
fn name_and_state(pid: u32) -> Option<(String, String)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (before, after) = text.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    Some((name, after.split_whitespace().next()?.to_owned()))
}

/// Bytes of all of them together with `files` in memory, each page once: slower than the sum of
/// what is resident, and never too much.
pub(crate) fn proportional(processes: &[Process], files: u64) -> u64 {
    let (mut own, mut shared) = (0, 0);
    for process in processes {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", process.pid));
        let text = text.unwrap_or_default();
        let bytes = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()? * 1024)
        };
        let whole = bytes("Pss:").unwrap_or(process.resident);
        let in_files = bytes("Pss_Shmem:").unwrap_or(0);
        own += whole.saturating_sub(in_files);
        shared += in_files;
    }
    // What is mapped of a file in memory is part of what its file system holds.
    own + files.max(shared)
}

/// Bytes that everything below the guest has read from disks and written to them. What has ended is
/// counted with whoever reaped it, and forgotten if nobody did; none if the guest's own cannot be read.
pub(crate) fn disk_traffic(guest: u32) -> Option<(u64, u64)> {
    let of = |pid: u32| -> Option<(u64, u64)> {
        let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
        let field = |name: &str| -> u64 {
            let found = text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
            found.unwrap_or(0)
        };
        let written = field("write_bytes:").saturating_sub(field("cancelled_write_bytes:"));
        Some((field("read_bytes:"), written))
    };
    let own = of(guest)?;
    let others = below(guest).into_iter().skip(1).filter_map(|process| of(process.pid));
    Some(others.fold(own, |all, one| (all.0 + one.0, all.1 + one.1)))
}

/// Whether a file system has no room left for anything.
pub(crate) fn is_full(fd: &OwnedFd) -> bool {
    /// ext4 keeps some of its blocks to itself and does not say so.
    const KEPT: u64 = 25;
    rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_bavail <= stat.f_blocks / KEPT)
}

/// Bytes that file systems in memory hold, and what the kernel needs for the files themselves: an
/// empty one takes an inode, a name and perhaps attributes.
pub(crate) fn held(file_systems: &[OwnedFd]) -> u64 {
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

fn children(pid: u32) -> Vec<u32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()
        })
        .collect()
}

fn look_at(pid: u32) -> Option<Process> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything, parentheses and spaces too.
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = msb_sys::process::clock_ticks();
    // Own time and that of children it has waited for, which nobody else reports any more.
    let spent = field(14)? + field(15)? + field(16)? + field(17)?;
    Some(Process {
        pid,
        resident: field(24)? * msb_sys::process::page_size(),
        threads: u32::try_from(field(20)?).ok()?,
        cpu_us: spent * 1_000_000 / ticks,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_found() {
        let found = below(std::process::id());
        assert_eq!(found[0].pid, std::process::id());
        assert!(found[0].resident > 0 && found[0].threads > 0);
    }
}
