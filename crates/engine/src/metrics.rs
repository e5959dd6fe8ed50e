//! Combines the usage that a worker reports with the limits of its Plan.

use msb_api::Metrics;
use msb_spec::{Plan, Upper};
use msb_wire::Usage;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The metrics of a sandbox: usage of its worker, limits, and disk usage.
pub(crate) fn of(plan: &Plan, usage: Usage) -> Metrics {
    let disk = match &plan.rootfs.upper {
        Upper::Memory { .. } => None,
        Upper::Directory { path } => Some(tree_size(path)),
        Upper::Disk { path } => fs::metadata(path).ok().map(|meta| meta.blocks() * 512),
    };
    Metrics {
        name: plan.name.to_string(),
        cpu_us: usage.cpu_us,
        memory: usage.memory,
        memory_limit: plan.limits.memory.map(|limit| limit.value.0),
        pids: usage.pids,
        pids_limit: plan.limits.pids.map(|limit| limit.value),
        disk,
        disk_traffic: usage.disk,
        net: usage.net,
        uptime_ms: usage.uptime_ms,
        guest: usage.guest,
    }
}

/// Bytes of disk that a tree takes, as far as this user can read it.
fn tree_size(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| Some((entry.metadata().ok()?, entry.path())))
        .map(|(meta, path)| meta.blocks() * 512 + if meta.is_dir() { tree_size(&path) } else { 0 })
        .sum()
}
