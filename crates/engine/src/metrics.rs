//! How much a sandbox uses.

use msb_spec::{Plan, Upper};
use msb_wire::{MachineUsage, Usage};
use serde::Serialize;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A sandbox's use of the host, and how much it may.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Its name.
    pub name: String,
    /// Processor time used, in microseconds.
    pub cpu_us: u64,
    /// Memory in bytes.
    pub memory: u64,
    /// The most it may use.
    pub memory_limit: Option<u64>,
    /// Processes and threads.
    pub pids: u32,
    /// The most it may have.
    pub pids_limit: Option<u32>,
    /// Bytes that its writable layer takes on the host's disk; none where it is in memory.
    pub disk: Option<u64>,
    /// Milliseconds since it started.
    pub uptime_ms: u64,
    /// The same as the kernel of its microVM counts it.
    pub guest: Option<MachineUsage>,
}

impl Metrics {
    pub(crate) fn new(plan: &Plan, usage: Usage) -> Self {
        let disk = match &plan.rootfs.upper {
            Upper::Memory { .. } => None,
            Upper::Directory { path } => Some(tree_size(path)),
            Upper::Disk { path } => fs::metadata(path).ok().map(|meta| meta.blocks() * 512),
        };
        Self {
            name: plan.name.to_string(),
            cpu_us: usage.cpu_us,
            memory: usage.memory,
            memory_limit: plan.limits.memory.map(|limit| limit.value.0),
            pids: usage.pids,
            pids_limit: plan.limits.pids.map(|limit| limit.value),
            disk,
            uptime_ms: usage.uptime_ms,
            guest: usage.guest,
        }
    }
}

/// Bytes that a tree takes, as far as we may look.
fn tree_size(path: &Path) -> u64 {
    let entries = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| Some((entry.metadata().ok()?, entry.path())))
        .map(|(meta, path)| meta.blocks() * 512 + if meta.is_dir() { tree_size(&path) } else { 0 })
        .sum()
}
