//! Ceilings for what the kernel counts for each user, so that one sandbox leaves most of it to the
//! others, to the caller and to root.
//!
//! inotify instances, queued signals and the like are counted for the owner of a user namespace, and
//! once more for each id in it. A sandbox of one id has its ceilings in its own namespace. Where
//! several ids exist each would have them for itself, so all of them together are counted one
//! namespace further up, which holds nothing else; or, as root, for an unused id of the host.

use crate::idmap;
use msb_spec::{Error, IdRange, Ids, Kind, Plan, Result, Rlimit, RlimitName};
use msb_sys::process::{self, Fork};
use msb_sys::socket;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Resource;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A sandbox gets this part of what the host allows to a user.
const SHARE: u64 = 4;

/// `user.*` sysctls, with the most that any sandbox gets of each.
const WATCHES: [(&str, u64); 2] = [
    // An editor, a language server and some bundlers have one each.
    ("max_inotify_instances", 512),
    // A large tree has this many directories; each watch takes about a KiB of the kernel.
    ("max_inotify_watches", 256 << 10),
];

/// The same of what can only be had in a user namespace of one's own.
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

/// Resource limits: the kernel's number, its name in a Plan, the part of the host's own limit that is
/// left to a sandbox, and the most of it.
const RLIMITS: [(u32, Resource, RlimitName, u64, u64); 4] = [
    // Of each process, and of what a user has on its way in Unix sockets: the worker, which has no
    // such limit, can send when a sandbox no longer can.
    (libc::RLIMIT_NOFILE, Resource::Nofile, RlimitName::Nofile, 2, 16 << 10),
    // Queued signals and POSIX timers.
    (libc::RLIMIT_SIGPENDING, Resource::Sigpending, RlimitName::Sigpending, SHARE, 4096),
    // A message queue of the usual size takes a tenth of what a user has.
    (libc::RLIMIT_MSGQUEUE, Resource::Msgqueue, RlimitName::Msgqueue, 2, 1 << 20),
    (libc::RLIMIT_MEMLOCK, Resource::Memlock, RlimitName::Memlock, 2, 64 << 20),
];

/// What a sandbox may have of everything that is counted for users.
#[derive(Debug)]
pub(crate) struct Ceilings {
    sysctls: Vec<(&'static str, u64)>,
    /// The kernel's number, soft and hard.
    rlimits: Vec<(u32, u64, u64)>,
}

impl Ceilings {
    /// By what the host allows us, so before any namespace is made. What a Plan asks for beyond the
    /// usual it gets, as far as the host allows.
    pub(crate) fn of(plan: &Plan) -> Self {
        let names = if plan.security.allow_userns { &NAMESPACES[..] } else { &[] };
        let sysctls = WATCHES.iter().chain(names);
        let sysctls = sysctls.filter_map(|(name, most)| {
            let allowed = fs::read_to_string(format!("/proc/sys/user/{name}")).ok()?;
            Some((*name, share(allowed.trim().parse().ok(), SHARE, *most)))
        });
        let rlimits = RLIMITS.iter().map(|(number, resource, name, part, most)| {
            let host = rustix::process::getrlimit(*resource);
            let hard = ceiling(host.maximum, *part, *most, asked(&plan.rlimits, *name));
            (*number, host.current.unwrap_or(u64::MAX).min(hard), hard)
        });
        Self { sysctls: sysctls.collect(), rlimits: rlimits.collect() }
    }

    /// Sets the sysctls of the user namespace that we are in. `proc` is any /proc.
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

    /// Lowers our own resource limits, and with them those of all that we start.
    pub(crate) fn set_rlimits(&self) -> Result<()> {
        self.rlimits.iter().try_for_each(lower)
    }

    /// The same of those that hold for all ids of a namespace together from when it is made.
    fn set_counted(&self) -> Result<()> {
        let mut counted = self.rlimits.iter().filter(|(number, ..)| *number != libc::RLIMIT_NOFILE);
        counted.try_for_each(lower)
    }
}

fn lower((resource, soft, hard): &(u32, u64, u64)) -> Result<()> {
    process::set_rlimit(*resource, *soft, *hard)
        .map_err(|error| Error::host("cannot lower a resource limit", error))
}

/// A part of what there is, and never nothing.
fn share(host: Option<u64>, part: u64, most: u64) -> u64 {
    host.map_or(most, |host| (host / part).clamp(1, most))
}

fn ceiling(host: Option<u64>, part: u64, most: u64, asked: Option<u64>) -> u64 {
    let usual = share(host, part, most);
    asked.map_or(usual, |asked| asked.max(usual).min(host.unwrap_or(u64::MAX)))
}

/// The highest hard limit that a Plan asks for.
fn asked(rlimits: &[Rlimit], name: RlimitName) -> Option<u64> {
    let ours = rlimits.iter().filter(|limit| limit.name == name);
    ours.map(|limit| limit.hard.or(limit.soft).unwrap_or(u64::MAX)).max()
}

/// Forks into the namespaces of a sandbox, such that what is counted for users is counted apart.
pub(crate) fn fork(ids: &Ids, ceilings: &Ceilings, cgroup: Option<BorrowedFd<'_>>) -> Result<Fork> {
    let refused = |error| {
        Error::unsupported("this host does not allow user namespaces")
            .cause(error)
            .hint("`msb doctor` lists what is missing and how to get it")
    };
    let born = process::BIRTH_NAMESPACES;
    match ids {
        Ids::Single { .. } => process::fork_into(born, cgroup).map_err(refused),
        Ids::Shifted { range: IdRange { start, .. } } => {
            process::fork_owned(born, cgroup, *start).map_err(refused)
        }
        Ids::Subordinate { .. } => {
            let (ours, theirs) = socket::pair().map_err(refused)?;
            match process::fork_into(process::USER_NAMESPACE, None).map_err(refused)? {
                Fork::Child => {
                    drop(ours);
                    match make_below(ids, ceilings, cgroup, &theirs) {
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
                    let made = idmap::write_all_for(pid, ids).and_then(|()| made_below(&ours));
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

/// Bytes of a pid, before the descriptor of that process.
const PID: usize = size_of::<u32>();

/// In the namespace where a sandbox is counted as a whole: sets its ceilings, and makes the sandbox's
/// own below it. Returns in the first process of the sandbox, a child of our parent.
fn make_below(
    ids: &Ids,
    ceilings: &Ceilings,
    cgroup: Option<BorrowedFd<'_>>,
    outside: &OwnedFd,
) -> Result<()> {
    let failed = |error: io::Error| Error::host("cannot make the sandbox's namespaces", error);
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    if socket::receive(outside.as_fd(), &mut [0u8; 1], &mut Vec::new()).map_err(failed)? == 0 {
        return Err(Error::new(Kind::Protocol, "the worker went away"));
    }
    process::become_root().map_err(failed)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = rustix::fs::openat(CWD, "/proc", flags, Mode::empty());
    let proc = proc.map_err(|error| failed(error.into()))?;
    ceilings.set_sysctls(proc.as_fd())?;
    drop(proc);
    ceilings.set_counted()?;
    match process::fork_sibling(process::BIRTH_NAMESPACES, cgroup).map_err(failed)? {
        Fork::Child => Ok(()),
        Fork::Parent { pid, pidfd } => {
            let told = idmap::write_same_for(pid, ids).and_then(|()| {
                socket::send_all(outside.as_fd(), &pid.to_ne_bytes(), &[pidfd.as_fd()])
                    .map_err(failed)
            });
            if told.is_err() {
                let kill = rustix::process::Signal::KILL;
                let _ = rustix::process::pidfd_send_signal(&pidfd, kill);
            }
            told.map(|()| process::leave(0))
        }
    }
}

/// Lets the process between go on, and hears what it made or why it could not.
fn made_below(between: &OwnedFd) -> Result<Fork> {
    let failed = |error: io::Error| Error::host("cannot make the sandbox's namespaces", error);
    socket::send_all(between.as_fd(), b"!", &[]).map_err(failed)?;
    let mut said = Vec::new();
    let mut fds = Vec::new();
    loop {
        let mut buffer = [0u8; 1024];
        let n = socket::receive(between.as_fd(), &mut buffer, &mut fds).map_err(failed)?;
        said.extend_from_slice(&buffer[..n]);
        if let (Ok(pid), Some(pidfd)) = (<[u8; PID]>::try_from(said.as_slice()), fds.pop()) {
            return Ok(Fork::Parent { pid: u32::from_ne_bytes(pid), pidfd });
        }
        if n == 0 {
            let silent = |_| Error::new(Kind::Protocol, "the jail failed without a reason");
            return Err(serde_json::from_slice(&said).unwrap_or_else(silent));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_gets_a_part_and_never_nothing() {
        for (host, part, most, expected) in [
            (Some(128), 4, 512, 32),
            (Some(1 << 20), 4, 512, 512),
            (Some(2), 4, 512, 1),
            (Some(0), 4, 512, 1),
            (None, 4, 512, 512),
        ] {
            assert_eq!(share(host, part, most), expected, "{host:?}");
        }
    }

    #[test]
    fn what_is_asked_for_is_given_as_far_as_the_host_allows() {
        for (host, asked, expected) in [
            (Some(20_000), None, 10_000),
            (Some(20_000), Some(64), 10_000),
            (Some(20_000), Some(12_000), 12_000),
            (Some(20_000), Some(30_000), 20_000),
            (None, Some(1 << 20), 1 << 20),
        ] {
            assert_eq!(ceiling(host, 2, 16 << 10, asked), expected, "{host:?} {asked:?}");
        }
    }
}
