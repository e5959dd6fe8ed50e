//! The seccomp allowlist of a VMM process.
//!
//! One list for all its threads, because the VMM starts them itself.

use crate::bpf_compiler::{ArgTest, SyscallAction, compile_allowlist};
use crate::syscall_groups::only_unix_pairs;
use crate::syscalls::{CREATES, SET_ID_BITS};

/// Memory, threads and polling; files of its own root, for disks and shares; descriptors to its
/// worker.
const ALLOWED: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_capget,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fallocate,
    libc::SYS_fchdir,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_fgetxattr,
    libc::SYS_flistxattr,
    libc::SYS_flock,
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_futex,
    libc::SYS_getdents64,
    libc::SYS_geteuid,
    libc::SYS_getegid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_getxattr,
    libc::SYS_ioctl,
    libc::SYS_lgetxattr,
    libc::SYS_linkat,
    libc::SYS_listxattr,
    libc::SYS_llistxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lseek,
    libc::SYS_lsetxattr,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mkdirat,
    // FIFOs and sockets of a share. Landlock and missing capabilities refuse devices.
    libc::SYS_mknodat,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_prctl,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_prlimit64,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_removexattr,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_set_robust_list,
    libc::SYS_setxattr,
    libc::SYS_shutdown,
    libc::SYS_sigaltstack,
    libc::SYS_socketpair,
    libc::SYS_statx,
    libc::SYS_symlinkat,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_tgkill,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    libc::SYS_uname,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_write,
    libc::SYS_writev,
];

/// Calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const ARCH_SPECIFIC: &[i64] = &[
    libc::SYS_arch_prctl,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_poll,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_readlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ARCH_SPECIFIC: &[i64] = &[];

/// The filter: listed calls only, no new namespaces, no execve, no sockets but pairs.
pub(crate) fn program() -> Vec<msb_sys::seccomp::Instruction> {
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    let refused =
        |argument, bits: u32| ArgTest::AnyBit { argument, bits, errno: libc::EPERM as u16 };
    // A set-id file in a writable share would be a way out of the sandbox.
    let set_id = |argument| refused(argument, SET_ID_BITS);
    let creates = ArgTest::PassWithout { argument: 2, bits: CREATES };
    compile_allowlist(ALLOWED.iter().chain(ARCH_SPECIFIC).copied(), |call| match call {
        libc::SYS_clone => SyscallAction::Depends(vec![refused(0, namespaces.cast_unsigned())]),
        // Its flags are behind a pointer; the C library falls back to `clone`.
        libc::SYS_clone3 => SyscallAction::Errno(libc::ENOSYS as u16),
        libc::SYS_fchmod => SyscallAction::Depends(vec![set_id(1)]),
        libc::SYS_socketpair => SyscallAction::Depends(vec![only_unix_pairs()]),
        libc::SYS_fchmodat | libc::SYS_mkdirat | libc::SYS_mknodat => {
            SyscallAction::Depends(vec![set_id(2)])
        }
        libc::SYS_openat => SyscallAction::Depends(vec![creates.clone(), set_id(3)]),
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
        assert!(program().len() < 1000);
    }
}
