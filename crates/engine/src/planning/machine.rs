//! What a microVM is decided to be.

use crate::host::Controllers;
use msb_spec::{
    By, Bytes, Cpus, Error, GuestKernel, Limit, Limits, Machine, MachineBase, Result, Spec, Stage,
    WithinCeiling,
};

/// Memory of a machine where none is asked for. What it does not use stays with the host.
const USUAL_MEMORY: Bytes = Bytes::mib(1024);
/// A kernel, the guest and little else.
const LEAST_MEMORY: Bytes = Bytes::mib(64);
/// The writable disk where no size is asked for. What is not written takes no space.
const USUAL_DISK: Bytes = Bytes::mib(10 << 10);
/// A journal and a file system need room for themselves.
const LEAST_DISK: Bytes = Bytes::mib(16);
/// What our kernel is built for.
const MOST_CPUS: u32 = 32;

/// The machine of a sandbox.
pub(super) fn machine(limits: &Limits, kernel: GuestKernel, base: MachineBase) -> Machine {
    let (cpus, memory_mib) = size(limits);
    Machine { kernel, cpus, memory_mib, base, written: Vec::new() }
}

/// The processors and MiB of memory that it has.
pub(super) fn size(limits: &Limits) -> (u8, u32) {
    let memory = limits.memory.map_or(USUAL_MEMORY, |limit| limit.value);
    let cpus = limits.cpus.map_or(1, |limit| limit.value.millis.div_ceil(1000));
    let memory_mib = u32::try_from(memory.0.div_ceil(1 << 20)).unwrap_or(u32::MAX);
    (u8::try_from(cpus).unwrap_or(u8::MAX), memory_mib)
}

/// With what is usual where nothing was asked for, or the most that a client may have.
pub(super) fn bounded(spec: &WithinCeiling<Spec>) -> Spec {
    let least = |usual: Bytes, most: Option<Bytes>| most.map_or(usual, |most| most.min(usual));
    Spec {
        memory: spec.memory.or_else(|| Some(least(USUAL_MEMORY, spec.most_memory()))),
        disk: spec.disk.or_else(|| Some(least(USUAL_DISK, spec.most_disk()))),
        ..Spec::clone(spec)
    }
}

/// The limits of a sandbox in a machine: most are held by what the machine is made of.
pub(super) fn limits(spec: &Spec) -> Result<Limits> {
    let memory = spec.memory.unwrap_or(USUAL_MEMORY);
    if memory < LEAST_MEMORY {
        return Err(too_small("microVM", memory, LEAST_MEMORY));
    }
    let disk = spec.disk.unwrap_or(USUAL_DISK);
    if disk < LEAST_DISK {
        return Err(too_small("disk", disk, LEAST_DISK));
    }
    let controllers = match spec.ephemeral && spec.cpus.is_none_or(is_whole) {
        true => Controllers::default(),
        false => Controllers::find(),
    };
    let cpus = match spec.cpus {
        Some(value) if value.millis > MOST_CPUS * 1000 => {
            return Err(Error::unsupported(format!("a microVM has at most {MOST_CPUS} cpus"))
                .at(Stage::Plan));
        }
        Some(value) if is_whole(value) => Some(Limit { value, by: By::Machine }),
        Some(value) if controllers.has("cpu") => Some(Limit { value, by: By::Cgroup }),
        Some(value) => {
            return Err(super::no_part_of_a_cpu(value));
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
        .hint(format!("{least} is the least"))
        .at(Stage::Plan)
}
