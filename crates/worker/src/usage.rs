//! How much a sandbox uses, from its cgroup or, without one, from its processes.

use crate::processes;
use msb_jail::Confined;
use msb_wire::{DiskTraffic, Usage};
use std::time::Duration;

pub(crate) fn measure(confined: &Confined, uptime: Duration) -> Usage {
    let group = confined.group.as_ref();
    let counted = group.and_then(|group| Some((group.cpu_us()?, group.memory()?, group.pids()?)));
    let (cpu_us, memory, pids) = counted.unwrap_or_else(|| {
        let found = processes::below(confined.pid);
        (
            found.iter().map(|process| process.cpu_us).sum(),
            processes::proportional(&found, processes::held(&confined.in_memory)),
            found.iter().map(|process| process.threads).sum(),
        )
    });
    let uptime_ms = u64::try_from(uptime.as_millis()).unwrap_or(u64::MAX);
    let disk = group.and_then(msb_jail::cgroup::Group::disk_traffic);
    let disk = disk.or_else(|| processes::disk_traffic(confined.pid));
    let disk = disk.map(|(read, written)| DiskTraffic { read, written });
    Usage { cpu_us, memory, pids, uptime_ms, disk, net: None, guest: None }
}
