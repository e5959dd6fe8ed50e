//! The jail of a gateway.
//!
//! It stays in the host's network namespace, because it has to reach the internet. A compromised
//! gateway finds no files, programs or other processes, and has IP and Unix sockets only.

use crate::bpf_compiler::{ArgTest, SyscallAction, compile_allowlist};
use crate::syscall_groups::only_unix_pairs;
use crate::{capabilities, container_init, idmap, rootfs};
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

/// System calls for memory, threads, polling and sockets.
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

/// Calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const ARCH_SPECIFIC: &[i64] = &[libc::SYS_arch_prctl, libc::SYS_epoll_wait, libc::SYS_poll];
#[cfg(not(target_arch = "x86_64"))]
const ARCH_SPECIFIC: &[i64] = &[];

/// New namespaces of a gateway: all but pid and network.
const NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWCGROUP) as u64;

/// Confines this process permanently. It must have one thread and every descriptor that it needs.
/// Paths of Unix sockets are resolved in its working directory.
///
/// `memory` limits its data segment; an allocation beyond it aborts the process. Buffers of a
/// sandbox are bounded well below, so this only catches bugs.
pub fn confine_gateway(memory: Bytes) -> Result<()> {
    confine(memory).map_err(|error| error.at(Stage::Network))
}

fn confine(memory: Bytes) -> Result<()> {
    let failed = |what: &'static str| move |error: rustix::io::Errno| Error::host(what, error);
    let hidden = rustix::process::DumpableBehavior::NotDumpable;
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    process::unshare(NAMESPACES).map_err(|error| {
        Error::unsupported("this host does not allow user namespaces")
            .cause(error)
            .hint("`msb doctor` lists what is missing and how to get it")
    })?;
    idmap::write_single(uid, gid)?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(failed("cannot make mounts private"))?;
    pivot_to_empty_root(&rootfs::make_stage("4k")?)?;
    process::set_rlimit(libc::RLIMIT_CORE, 0, 0)
        .map_err(|error| Error::host("cannot forbid core files", error))?;
    process::set_rlimit(libc::RLIMIT_DATA, memory.0, memory.0)
        .map_err(|error| Error::host("cannot limit the gateway's memory", error))?;
    container_init::new_session_keyring()?;
    rustix::process::set_dumpable_behavior(hidden)
        .map_err(failed("cannot make the gateway's memory undumpable"))?;
    capabilities::keep_only(CapabilitySet::empty())?;
    rustix::thread::set_no_new_privs(true).map_err(failed("cannot set no_new_privs"))?;
    let missing = |error: &dyn std::fmt::Display| {
        Error::unsupported("the gateway cannot be confined on this host")
            .cause(error)
            .hint("`msb doctor` tells what is missing")
    };
    deny_all_files().and_then(RulesetCreated::restrict_self).map_err(|error| missing(&error))?;
    msb_sys::seccomp::install(&program()).map_err(|error| missing(&error))
}

/// Pivots to an empty root. The working directory stays open.
fn pivot_to_empty_root(empty: &RootDir) -> Result<()> {
    let leave = || -> rustix::io::Result<()> {
        // The user may not be able to open the working directory; then there is nothing to reach
        // there.
        let here = rustix::fs::open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        rustix::process::fchdir(empty)?;
        rustix::process::pivot_root(".", ".")?;
        rustix::mount::unmount(".", UnmountFlags::DETACH)?;
        match here {
            Some(here) => rustix::process::fchdir(here),
            None => rustix::process::chdir("/"),
        }
    };
    leave().map_err(|error| Error::host("cannot pivot to an empty root", error))
}

/// A Landlock ruleset that allows no file access.
fn deny_all_files() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V2))?
        .set_compatibility(CompatLevel::BestEffort)
        .scope(Scope::AbstractUnixSocket | Scope::Signal)?
        .create()
}

/// The filter: listed calls only, stream and datagram sockets of IP and Unix, no namespaces.
fn program() -> Vec<msb_sys::seccomp::Instruction> {
    let no_family = libc::EAFNOSUPPORT as u16;
    let families = [libc::AF_INET, libc::AF_INET6, libc::AF_UNIX].map(i32::cast_unsigned);
    let family = ArgTest::IsNot { argument: 0, values: families.to_vec(), errno: no_family };
    // No raw sockets.
    let kinds: Vec<u32> = [libc::SOCK_STREAM, libc::SOCK_DGRAM]
        .into_iter()
        .flat_map(|kind| {
            [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK]
                .map(|flags| (kind | flags).cast_unsigned())
        })
        .collect();
    let kind = ArgTest::IsNot { argument: 1, values: kinds, errno: libc::EPERM as u16 };
    // The gateway may have a packet socket, whose options reach code that hostile programs like.
    let levels = [libc::SOL_SOCKET, libc::IPPROTO_IP, libc::IPPROTO_IPV6, libc::IPPROTO_TCP];
    let levels = levels.into_iter().chain([libc::IPPROTO_UDP]).map(i32::cast_unsigned).collect();
    let level = ArgTest::IsNot { argument: 1, values: levels, errno: libc::EPERM as u16 };
    compile_allowlist(ALLOWED.iter().chain(ARCH_SPECIFIC).copied(), |call| match call {
        libc::SYS_socket => SyscallAction::Depends(vec![family.clone(), kind.clone()]),
        libc::SYS_setsockopt => SyscallAction::Depends(vec![level.clone()]),
        libc::SYS_socketpair => SyscallAction::Depends(vec![only_unix_pairs()]),
        libc::SYS_clone => SyscallAction::Depends(vec![ArgTest::AnyBit {
            argument: 0,
            bits: (NAMESPACES as u32)
                | libc::CLONE_NEWPID.cast_unsigned()
                | libc::CLONE_NEWNET.cast_unsigned(),
            errno: libc::EPERM as u16,
        }]),
        // Its flags are behind a pointer; the C library falls back to `clone`.
        libc::SYS_clone3 => SyscallAction::Errno(libc::ENOSYS as u16),
        _ => SyscallAction::Allow,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_listed_twice() {
        let mut all: Vec<i64> = ALLOWED.iter().chain(ARCH_SPECIFIC).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        assert!(program().len() < 500);
    }
}
