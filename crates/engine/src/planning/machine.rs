//! Plans the size and the limits of a microVM.

use crate::host::CgroupControllers;
use msb_spec::{
    By, Bytes, Cpus, Error, GuestKernel, Limit, Limits, Machine, MachineBase, Result, Spec, Stage,
    WithinCeiling,
};

/// The default memory. Pages that the guest does not use stay with the host.
const DEFAULT_MEMORY: Bytes = Bytes::mib(1024);
/// The least memory: enough for a kernel, the guest and little else.
const MIN_MEMORY: Bytes = Bytes::mib(64);
/// The default size of the writable disk, a sparse file.
const DEFAULT_DISK: Bytes = Bytes::mib(10 << 10);
/// The smallest disk: the journal and the structures of ext4 have to fit.
const MIN_DISK: Bytes = Bytes::mib(16);
/// The most processors: CONFIG_NR_CPUS of our guest kernel.
const MAX_CPUS: u32 = 32;

/// The microVM of a sandbox with these limits.
pub(super) fn machine(limits: &Limits, kernel: GuestKernel, base: MachineBase) -> Machine {
    let (cpus, memory_mib) = size(limits);
    Machine { kernel, cpus, memory_mib, base, written: Vec::new() }
}

/// The number of processors and the memory in MiB.
pub(super) fn size(limits: &Limits) -> (u8, u32) {
    let memory = limits.memory.map_or(DEFAULT_MEMORY, |limit| limit.value);
    let cpus = limits.cpus.map_or(1, |limit| limit.value.millis.div_ceil(1000));
    let memory_mib = u32::try_from(memory.0.div_ceil(1 << 20)).unwrap_or(u32::MAX);
    (u8::try_from(cpus).unwrap_or(u8::MAX), memory_mib)
}

/// A Spec with default memory and disk, or the ceiling of the caller if that is lower.
pub(super) fn with_defaults(spec: &WithinCeiling<Spec>) -> Spec {
    let least = |usual: Bytes, most: Option<Bytes>| most.map_or(usual, |most| most.min(usual));
    Spec {
        memory: spec.memory.or_else(|| Some(least(DEFAULT_MEMORY, spec.most_memory()))),
        disk: spec.disk.or_else(|| Some(least(DEFAULT_DISK, spec.most_disk()))),
        ..Spec::clone(spec)
    }
}

/// The limits of a microVM. The VMM enforces most of them by the size of the machine.
pub(super) fn limits(spec: &Spec) -> Result<Limits> {
    let memory = spec.memory.unwrap_or(DEFAULT_MEMORY);
    if memory < MIN_MEMORY {
        return Err(too_small("microVM", memory, MIN_MEMORY));
    }
    let disk = spec.disk.unwrap_or(DEFAULT_DISK);
    if disk < MIN_DISK {
        return Err(too_small("disk", disk, MIN_DISK));
    }
    let controllers = match spec.ephemeral && spec.cpus.is_none_or(is_whole) {
        true => CgroupControllers::default(),
        false => CgroupControllers::find(),
    };
    let cpus = match spec.cpus {
        Some(value) if value.millis > MAX_CPUS * 1000 => {
            return Err(Error::unsupported(format!("a microVM has at most {MAX_CPUS} cpus"))
                .at(Stage::Plan));
        }
        Some(value) if is_whole(value) => Some(Limit { value, by: By::Machine }),
        Some(value) if controllers.has("cpu") => Some(Limit { value, by: By::Cgroup }),
        Some(value) => {
            return Err(super::no_fractional_cpus(value));
        }
        None => None,
    };
    let wanted: &[&str] = match cpus {
        _ if !spec.ephemeral => &["cpu", "cpuacct", "memory", "pids"],
        Some(Limit { by: By::Cgroup, .. }) => &["cpu"],
        _ => &[],
    };
    Ok(Limits {
        memory: Some(Limit { value: memory, by: By::Machine }),
        cpus,
        pids: spec.pids.map(|value| Limit { value, by: By::Machine }),
        disk: Some(Limit { value: disk, by: By::Disk }),
        cgroup: controllers.only(wanted),
        cgroup_owner: String::new(),
    })
}

fn is_whole(cpus: Cpus) -> bool {
    cpus.millis.is_multiple_of(1000)
}

fn too_small(what: &str, asked: Bytes, least: Bytes) -> Error {
    Error::invalid(format!("a {what} of {asked} is too small"))
        .hint(format!("the minimum is {least}"))
        .at(Stage::Plan)
}
