//! Resource use as the host sees it, from the cgroup or, without one, from /proc.

use crate::guest_process::GuestProcess;
use crate::processes;
use msb_wire::{DiskTraffic, Usage};
use std::time::Duration;

pub(crate) fn measure(process: &dyn GuestProcess, uptime: Duration) -> Usage {
    let group = process.group();
    let counted = group.and_then(|group| Some((group.cpu_us()?, group.memory()?, group.pids()?)));
    let (cpu_us, memory, pids) = counted.unwrap_or_else(|| {
        let found = processes::list(process.processes());
        (
            found.iter().map(|process| process.cpu_us).sum(),
            processes::total_pss(
                process.processes(),
                &found,
                processes::tmpfs_bytes(process.tmpfs_mounts()),
            ),
            found.iter().map(|process| process.threads).sum(),
        )
    });
    let uptime_ms = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
    let disk = group.and_then(msb_jail::cgroup::SandboxCgroup::disk_traffic);
    let disk = disk.or_else(|| processes::disk_traffic(process.processes()));
    let disk = disk.map(|(read, written)| DiskTraffic { read, written });
    Usage { cpu_us, memory, pids, uptime_ms, disk, net: None, guest: None }
}
