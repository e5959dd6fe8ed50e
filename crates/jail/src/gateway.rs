//! The jail of a gateway.
//!
//! It has to reach the internet, so it stays in the host's network. Taken over by a packet, it
//! finds no files, no programs, no other processes, and sockets of the internet alone.

use crate::filter::{Action, Test, compile_list};
use crate::{capabilities, idmap, inside, layers};
use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreated,
    RulesetError, Scope,
};
use msb_spec::{Bytes, Error, Result, Stage};
use msb_sys::process;
use msb_sys::root_dir::RootDir;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::CapabilitySet;

/// Memory, one more thread, waiting, and sockets.
const ALLOWED: &[i64] = &[
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_dup,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getpeername,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_listen,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_robust_list,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_splice,
    libc::SYS_tgkill,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Calls of this architecture alone.
#[cfg(target_arch = "x86_64")]
const LOCAL: &[i64] = &[libc::SYS_arch_prctl, libc::SYS_epoll_wait, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const LOCAL: &[i64] = &[];

/// The namespaces of a gateway: all but the network's.
const APART: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;

/// Confines this process for good. It has one thread, and everything open that it needs.
/// Names of sockets are looked up in the directory that it is in.
///
/// `memory` is what it may have: an allocation beyond it ends the process. What a sandbox makes it
/// hold is bounded well below that, so this is for what was not thought of.
pub fn confine_gateway(memory: Bytes) -> Result<()> {
    confine(memory).map_err(|error| error.at(Stage::Network))
}

fn confine(memory: Bytes) -> Result<()> {
    let failed = |what: &'static str| move |error: rustix::io::Errno| Error::host(what, error);
    let hidden = rustix::process::DumpableBehavior::NotDumpable;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    process::unshare(APART).map_err(|error| {
        Error::unsupported("this host does not allow user namespaces")
            .cause(error)
            .hint("`msb doctor` lists what is missing and how to get it")
    })?;
    idmap::write_single(uid, gid)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(failed("cannot make mounts private"))?;
    leave_files(&layers::make_stage("4k")?)?;
    process::set_rlimit(libc::RLIMIT_CORE, 0, 0)
        .map_err(|error| Error::host("cannot forbid core files", error))?;
    process::set_rlimit(libc::RLIMIT_DATA, memory.0, memory.0)
        .map_err(|error| Error::host("cannot limit the gateway's memory", error))?;
    inside::leave_keyrings()?;
    rustix::process::set_dumpable_behavior(hidden)
        .map_err(failed("cannot hide the gateway's memory"))?;
    capabilities::keep_only(CapabilitySet::empty())?;
    rustix::thread::set_no_new_privs(true).map_err(failed("cannot give up new privileges"))?;
    let missing = |error: &dyn std::fmt::Display| {
        Error::unsupported("the gateway cannot be confined on this host")
            .cause(error)
            .hint("`msb doctor` tells what is missing")
    };
    no_files().and_then(RulesetCreated::restrict_self).map_err(|error| missing(&error))?;
    msb_sys::seccomp::install(&program()).map_err(|error| missing(&error))
}

/// An empty root. The directory that it is in stays, wherever that is.
fn leave_files(empty: &RootDir) -> Result<()> {
    let leave = || -> rustix::io::Result<()> {
        // The caller may be where its user cannot look; then there is nothing to be found there.
        let here = rustix::fs::open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        rustix::process::fchdir(empty)?;
        rustix::process::pivot_root(".", ".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        match here {
            Some(here) => rustix::process::fchdir(here),
            None => rustix::process::chdir("/"),
        }
    };
    leave().map_err(|error| Error::host("cannot leave the files of the host", error))
}

/// Nothing of any file system.
fn no_files() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V2))?
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()
}

/// The program: only these calls, sockets of the internet and of sandboxes, threads.
fn program() -> Vec<msb_sys::seccomp::Instruction> {
    let no_family = libc::EAFNOSUPPORT as u16;
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX].map(i32::cast_unsigned);
    let family = Test::IsNot { argument: 0, values: families.to_vec(), errno: no_family };
    // Streams and datagrams, nothing raw.
    let kinds: Vec<u32> = [libc::SOCK_STREAM, libc::SOCK_DGRAM]
        .into_iter()
        .flat_map(|kind| {
            [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK]
                .map(|flags| (kind | flags).cast_unsigned())
        })
        .collect();
    let kind = Test::IsNot { argument: 1, values: kinds, errno: libc::EPERM as u16 };
    compile_list(ALLOWED.iter().chain(LOCAL).copied(), |call| match call {
        libc::SYS_socket => Action::Depends(vec![family.clone(), kind.clone()]),
        libc::SYS_clone => Action::Depends(vec![Test::AnyBit {
            argument: 0,
            bits: (APART as u32)
                | libc::CLONE_NEWPID.cast_unsigned()
                | libc::CLONE_NEWNET.cast_unsigned(),
            errno: libc::EPERM as u16,
        }]),
        // Its flags lie in memory; the C library then takes `clone`.
        libc::SYS_clone3 => Action::Errno(libc::ENOSYS as u16),
        _ => Action::Allow,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_listed_twice() {
        let mut all: Vec<i64> = ALLOWED.iter().chain(LOCAL).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(program().len() < 500);
    }
}
