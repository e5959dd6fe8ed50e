//! Resource use of a microVM, and limits that were reached.
//!
//! It is read through descriptors that were opened before anything of the sandbox ran, because
//! paths below /proc and /sys may have been mounted over.

use crate::files::{FileResult, WithContext};
use msb_wire::{Hit, MachineUsage};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Free bytes below which a file system counts as full.
const FULL_BELOW: u64 = 64 << 10;
/// PF_KTHREAD, in the flags of /proc/PID/stat.
const KERNEL_THREAD: u64 = 0x0020_0000;

#[derive(Debug)]
pub(super) struct VmMeter {
    proc: OwnedFd,
    vmstat: File,
    /// The open `pids.events` file, if there is a limit.
    pids_events: Option<File>,
    writable: Option<OwnedFd>,
    counted: (u64, u64),
}

impl VmMeter {
    /// Measures a microVM with this /proc and this writable file system.
    pub(super) fn new(
        proc: OwnedFd,
        writable: Option<OwnedFd>,
        pids_events: Option<File>,
    ) -> FileResult<Self> {
        let vmstat = open(proc.as_fd(), "vmstat").doing("open", Path::new("/proc/vmstat"))?;
        let mut meter = Self { proc, vmstat, pids_events, writable, counted: (0, 0) };
        meter.counted = meter.count();
        Ok(meter)
    }

    /// A limit that was reached since the last call.
    pub(super) fn hit(&mut self) -> Option<Hit> {
        let (oom_kills, refused) = self.count();
        let before = std::mem::replace(&mut self.counted, (oom_kills, refused));
        if oom_kills > before.0 {
            return Some(Hit::Memory);
        }
        if refused > before.1 {
            return Some(Hit::Pids);
        }
        let left = rustix::fs::fstatvfs(self.writable.as_ref()?).ok()?;
        (left.f_bavail * left.f_frsize <= FULL_BELOW || left.f_favail == 0).then_some(Hit::Disk)
    }

    /// Current use; unknown values are zero.
    pub(super) fn usage(&self) -> MachineUsage {
        let meminfo = self.read("meminfo");
        let kilobytes = |name| number_after(&meminfo, name).unwrap_or(0) << 10;
        let memory_total = kilobytes("MemTotal:");
        let disk = self.writable.as_ref().and_then(|fd| rustix::fs::fstatvfs(fd).ok());
        MachineUsage {
            memory: memory_total.saturating_sub(kilobytes("MemAvailable:")),
            memory_total,
            cpu_us: self.cpu_us(),
            pids: self.threads(),
            disk: disk.map_or(0, |disk| (disk.f_blocks - disk.f_bfree) * disk.f_frsize),
            // In KiB, whatever the page size is.
            disk_read: find(&self.vmstat, "pgpgin").unwrap_or(0) << 10,
            disk_written: find(&self.vmstat, "pgpgout").unwrap_or(0) << 10,
        }
    }

    fn count(&self) -> (u64, u64) {
        let refused = self.pids_events.as_ref().and_then(|file| find(file, "max"));
        (find(&self.vmstat, "oom_kill").unwrap_or(0), refused.unwrap_or(0))
    }

    fn cpu_us(&self) -> u64 {
        let stat = self.read("stat");
        let ticks: Vec<u64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .filter_map(|text| text.parse().ok())
            .collect();
        // All but idle and iowait (3, 4), steal (7), and guest time (8, 9), which is counted twice.
        let used: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
        used.saturating_mul(1_000_000) / msb_sys::process::clock_ticks()
    }

    /// Threads of all processes but the guest and kernel threads.
    fn threads(&self) -> u32 {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&self.proc, ".", flags, Mode::empty());
        let Ok(directory) = directory.and_then(rustix::fs::Dir::new) else { return 0 };
        let names = directory.flatten().filter_map(|entry| {
            let name = entry.file_name().to_str().ok()?.to_owned();
            (name != "1" && name.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
        });
        let counts = names.filter_map(|name| {
            let stat = self.read(&format!("{name}/stat"));
            // The name is in parentheses and may contain anything.
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
            (field(9)? & KERNEL_THREAD == 0).then(|| field(20)).flatten()
        });
        u32::try_from(counts.sum::<u64>()).unwrap_or(u32::MAX)
    }

    fn read(&self, name: &str) -> String {
        let mut text = String::new();
        let _ = open(self.proc.as_fd(), name).and_then(|mut file| file.read_to_string(&mut text));
        text
    }
}

fn open(directory: BorrowedFd<'_>, name: &str) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(directory, name, flags, Mode::empty())?))
}

/// The number after a name in a file of such lines.
fn find(file: &File, name: &str) -> Option<u64> {
    let mut text = Vec::with_capacity(8 << 10);
    let mut chunk = [0u8; 4096];
    // The kernel returns at most a page at once.
    loop {
        match file.read_at(&mut chunk, text.len() as u64) {
            Ok(0) | Err(_) => break,
            Ok(n) => text.extend_from_slice(&chunk[..n]),
        }
    }
    number_after(std::str::from_utf8(&text).ok()?, name)
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        let text = "oom_kill_x 3\noom_kill 7\nMemTotal:  12 kB\n";
        assert_eq!(number_after(text, "oom_kill"), Some(7));
        assert_eq!(number_after(text, "MemTotal:"), Some(12));
        assert_eq!(number_after(text, "oom"), None);
    }

    #[test]
    fn a_machine_tells_what_it_uses() {
        let proc = rustix::fs::open("/proc", OFlags::PATH, Mode::empty()).unwrap();
        let root = rustix::fs::open("/", OFlags::PATH, Mode::empty()).unwrap();
        let Ok(meter) = VmMeter::new(proc, Some(root), None) else { panic!("no /proc/vmstat") };
        let usage = meter.usage();
        assert!(usage.memory > 0 && usage.memory < usage.memory_total);
        assert!(usage.pids > 1 && usage.cpu_us > 0 && usage.disk > 0);
    }
}
