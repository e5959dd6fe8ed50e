//! Limits of what the kernel counts per user (ucounts), so that one sandbox leaves most of it to
//! other sandboxes, to the caller and to root.
//!
//! inotify instances, queued signals and the like are counted for the owner of a user namespace and
//! again for each id in it. A sandbox with a single id has the limits in its own namespace. With
//! several ids each would get the full limit, so the limits are set in an additional parent
//! namespace that holds nothing else. As root, the sandbox's namespace is owned by an otherwise
//! unused host id.

use crate::idmap;
use msb_spec::{Error, IdRange, Ids, Kind, Plan, Result, Rlimit, RlimitName};
use msb_sys::process::{self, Fork};
use msb_sys::socket;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Resource;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Divisor: a sandbox gets a quarter of what the host allows a user.
const SHARE: u64 = 4;

/// `user.*` sysctls with the maximum for a sandbox.
const INOTIFY: [(&str, u64); 2] = [
    // An editor, a language server and bundlers have one each.
    ("max_inotify_instances", 512),
    // A large tree has this many directories; each watch takes about 1 KiB of kernel memory.
    ("max_inotify_watches", 256 << 10),
];

/// `user.*` sysctls of namespaces, with the maximum for a sandbox that may nest user namespaces.
const NAMESPACES: [(&str, u64); 8] = [
    ("max_user_namespaces", 4096),
    ("max_pid_namespaces", 4096),
    ("max_net_namespaces", 4096),
    ("max_mnt_namespaces", 4096),
    ("max_ipc_namespaces", 4096),
    ("max_uts_namespaces", 4096),
    ("max_cgroup_namespaces", 4096),
    ("max_time_namespaces", 4096),
];

/// Resource limits: number, resource, name in a Plan, divisor of the host's limit, and the maximum.
const RLIMITS: [(u32, Resource, RlimitName, u64, u64); 4] = [
    // Per process, and also for descriptors in flight in Unix sockets of a user. The worker is not
    // limited like this, so it can still send when a sandbox cannot.
    (libc::RLIMIT_NOFILE, Resource::Nofile, RlimitName::Nofile, 2, 16 << 10),
    // Queued signals and POSIX timers.
    (libc::RLIMIT_SIGPENDING, Resource::Sigpending, RlimitName::Sigpending, SHARE, 4096),
    // A message queue of the default size takes a tenth of a user's limit.
    (libc::RLIMIT_MSGQUEUE, Resource::Msgqueue, RlimitName::Msgqueue, 2, 1 << 20),
    (libc::RLIMIT_MEMLOCK, Resource::Memlock, RlimitName::Memlock, 2, 64 << 20),
];

/// Limits of a sandbox on what the kernel counts per user.
#[derive(Debug)]
pub(crate) struct UserLimits {
    sysctls: Vec<(&'static str, u64)>,
    /// Number of the resource, soft and hard limit.
    rlimits: Vec<(u32, u64, u64)>,
}

impl UserLimits {
    /// Derived from the host's limits, so call it before any namespace is created. Higher rlimits
    /// of a Plan apply as far as the host allows.
    pub(crate) fn of(plan: &Plan) -> Self {
        let names = if plan.security.allow_userns { &NAMESPACES[..] } else { &[] };
        let sysctls = INOTIFY.iter().chain(names);
        let sysctls = sysctls.filter_map(|(name, max)| {
            let allowed = fs::read_to_string(format!("/proc/sys/user/{name}")).ok()?;
            Some((*name, share(allowed.trim().parse().ok(), SHARE, *max)))
        });
        let rlimits = RLIMITS.iter().map(|(number, resource, name, part, max)| {
            let host = rustix::process::getrlimit(*resource);
            let hard = ceiling(host.maximum, *part, *max, requested(&plan.rlimits, *name));
            (*number, host.current.unwrap_or(u64::MAX).min(hard), hard)
        });
        Self { sysctls: sysctls.collect(), rlimits: rlimits.collect() }
    }

    /// Sets the sysctls of the current user namespace. `proc` may be any /proc.
    pub(crate) fn set_sysctls(&self, proc: BorrowedFd<'_>) -> Result<()> {
        for (name, value) in &self.sysctls {
            let write = || -> rustix::io::Result<()> {
                let path = format!("sys/user/{name}");
                let flags = OFlags::WRONLY | OFlags::CLOEXEC;
                let file = rustix::fs::openat(proc, path, flags, Mode::empty())?;
                rustix::io::write(file, value.to_string().as_bytes()).map(drop)
            };
            write().map_err(|error| Error::host(format!("cannot set `user.{name}`"), error))?;
        }
        Ok(())
    }

    /// Lowers the rlimits of this process and its children.
    pub(crate) fn set_rlimits(&self) -> Result<()> {
        self.rlimits.iter().try_for_each(lower)
    }

    /// Lowers the rlimits that the kernel records as ucount limits when a user namespace is
    /// created.
    fn set_ucount_rlimits(&self) -> Result<()> {
        let mut counted = self.rlimits.iter().filter(|(number, ..)| *number != libc::RLIMIT_NOFILE);
        counted.try_for_each(lower)
    }
}

fn lower((resource, soft, hard): &(u32, u64, u64)) -> Result<()> {
    process::set_rlimit(*resource, *soft, *hard)
        .map_err(|error| Error::host("cannot lower a resource limit", error))
}

/// A fraction of the host's limit, at least 1.
fn share(host: Option<u64>, part: u64, max: u64) -> u64 {
    host.map_or(max, |host| (host / part).clamp(1, max))
}

fn ceiling(host: Option<u64>, part: u64, max: u64, requested: Option<u64>) -> u64 {
    let usual = share(host, part, max);
    requested.map_or(usual, |requested| requested.max(usual).min(host.unwrap_or(u64::MAX)))
}

/// The highest hard limit that a Plan requests.
fn requested(rlimits: &[Rlimit], name: RlimitName) -> Option<u64> {
    let ours = rlimits.iter().filter(|limit| limit.name == name);
    ours.map(|limit| limit.hard.or(limit.soft).unwrap_or(u64::MAX)).max()
}

/// Forks into the namespaces of a sandbox, with separate per-user counts.
pub(crate) fn fork(
    ids: &Ids,
    user_limits: &UserLimits,
    cgroup: Option<BorrowedFd<'_>>,
) -> Result<Fork> {
    let refused = |error| {
        Error::unsupported("this host does not allow user namespaces")
            .cause(error)
            .hint("`msb doctor` lists what is missing and how to get it")
    };
    let namespaces = process::BIRTH_NAMESPACES;
    match ids {
        Ids::Single { .. } => process::fork_into(namespaces, cgroup).map_err(refused),
        Ids::Shifted { range: IdRange { start, .. } } => {
            process::fork_owned(namespaces, cgroup, *start).map_err(refused)
        }
        Ids::Subordinate { .. } => {
            let (ours, theirs) = socket::pair().map_err(refused)?;
            match process::fork_into(process::USER_NAMESPACE, None).map_err(refused)? {
                Fork::Child => {
                    drop(ours);
                    match fork_nested(ids, user_limits, cgroup, &theirs) {
                        Ok(()) => Ok(Fork::Child),
                        Err(error) => {
                            let line = serde_json::to_vec(&error).unwrap_or_default();
                            let _ = socket::send_all(theirs.as_fd(), &line, &[]);
                            process::leave(125)
                        }
                    }
                }
                Fork::Parent { pid, pidfd } => {
                    drop(theirs);
                    let made = idmap::write_maps(pid, ids).and_then(|()| await_nested(&ours));
                    let kill = rustix::process::Signal::KILL;
                    let _ = rustix::process::pidfd_send_signal(&pidfd, kill);
                    let _ = rustix::process::waitid(
                        rustix::process::WaitId::PidFd(pidfd.as_fd()),
                        rustix::process::WaitIdOptions::EXITED,
                    );
                    made
                }
            }
        }
    }
}

/// Bytes of a pid, which precedes the pidfd.
const PID: usize = size_of::<u32>();

/// In the intermediate namespace: sets the limits and forks the sandbox's first process into nested
/// namespaces. Returns in that process, a child of the worker.
fn fork_nested(
    ids: &Ids,
    user_limits: &UserLimits,
    cgroup: Option<BorrowedFd<'_>>,
    worker: &OwnedFd,
) -> Result<()> {
    let failed = |error: io::Error| Error::host("cannot make the sandbox's namespaces", error);
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if socket::receive(worker.as_fd(), &mut [0u8; 1], &mut Vec::new()).map_err(failed)? == 0 {
        return Err(Error::new(Kind::Protocol, "the worker has exited"));
    }
    process::become_root().map_err(failed)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = rustix::fs::openat(CWD, "/proc", flags, Mode::empty());
    let proc = proc.map_err(|error| failed(error.into()))?;
    user_limits.set_sysctls(proc.as_fd())?;
    drop(proc);
    user_limits.set_ucount_rlimits()?;
    match process::fork_sibling(process::BIRTH_NAMESPACES, cgroup).map_err(failed)? {
        Fork::Child => Ok(()),
        Fork::Parent { pid, pidfd } => {
            let sent = idmap::write_identity_maps(pid, ids).and_then(|()| {
                socket::send_all(worker.as_fd(), &pid.to_ne_bytes(), &[pidfd.as_fd()])
                    .map_err(failed)
            });
            if sent.is_err() {
                let kill = rustix::process::Signal::KILL;
                let _ = rustix::process::pidfd_send_signal(&pidfd, kill);
            }
            sent.map(|()| process::leave(0))
        }
    }
}

/// Lets the intermediate process continue, and receives the pid or the error.
fn await_nested(intermediate: &OwnedFd) -> Result<Fork> {
    let failed = |error: io::Error| Error::host("cannot make the sandbox's namespaces", error);
    socket::send_all(intermediate.as_fd(), b"!", &[]).map_err(failed)?;
    let mut reply = Vec::new();
    let mut fds = Vec::new();
    loop {
        let mut buffer = [0u8; 1024];
        let n = socket::receive(intermediate.as_fd(), &mut buffer, &mut fds).map_err(failed)?;
        reply.extend_from_slice(&buffer[..n]);
        if let (Ok(pid), Some(pidfd)) = (<[u8; PID]>::try_from(reply.as_slice()), fds.pop()) {
            return Ok(Fork::Parent { pid: u32::from_ne_bytes(pid), pidfd });
        }
        if n == 0 {
            let silent = |_| Error::new(Kind::Protocol, "the jail failed without a reason");
            return Err(serde_json::from_slice(&reply).unwrap_or_else(silent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_gets_a_share_of_at_least_one() {
        for (host, part, max, expected) in [
            (Some(128), 4, 512, 32),
            (Some(1 << 20), 4, 512, 512),
            (Some(2), 4, 512, 1),
            (Some(0), 4, 512, 1),
            (None, 4, 512, 512),
        ] {
            assert_eq!(share(host, part, max), expected, "{host:?}");
        }
    }

    #[test]
    fn requested_limits_are_capped_by_the_host() {
        for (host, requested, expected) in [
            (Some(20_000), None, 10_000),
            (Some(20_000), Some(64), 10_000),
            (Some(20_000), Some(12_000), 12_000),
            (Some(20_000), Some(30_000), 20_000),
            (None, Some(1 << 20), 1 << 20),
        ] {
            assert_eq!(ceiling(host, 2, 16 << 10, requested), expected, "{host:?} {requested:?}");
        }
    }
}
