//! Confines processes: namespaces, mounts, cgroups, seccomp, Landlock.
//!
//! [`start`](fn@start) starts a sandbox of the `process` tier. A missing feature of the host is an
//! error; nothing is skipped silently.

mod bpf_compiler;
#[cfg(test)]
mod bpf_interpreter;
mod capabilities;
pub mod cgroup;
mod container_init;
mod devices;
mod freezer;
mod gateway_jail;
mod helper_jail;
mod host_submounts;
mod idmap;
mod init_pidns;
mod landlock;
mod loop_mount;
mod network;
mod rootfs;
mod start;
mod syscall_groups;
mod syscall_list;
mod syscalls;
mod user_limits;
mod vmm_jail;
mod vmm_syscalls;
mod volumes;
mod worker_jail;
mod workspace;

pub use gateway_jail::confine_gateway;
pub use helper_jail::{HelperNeeds, confine_helper};
pub use init_pidns::{InitEntry, InitHandoff};
pub use network::{NetDevice, NetDeviceHandoff, try_device};
pub use start::{GuestEntry, JailedProcess, ProcessDir, start};
pub use vmm_jail::{VmmMount, VmmMountIds, start_vmm};
pub use volumes::serve as serve_volume;
pub use worker_jail::{WorkerNeeds, confine_worker};
