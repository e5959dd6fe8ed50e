//! System calls grouped by purpose, for the allowlists of our own processes.
//!
//! A list is combined from these groups and from calls that only one process needs. [`allowlist`]
//! adds the argument rules that apply to all.

use crate::bpf_compiler::{ArgTest, SyscallAction, compile_allowlist};
use crate::syscalls::{CREATES, SET_ID_BITS};
use msb_sys::seccomp::Instruction;

/// What a single-threaded program needs to run and exit.
pub(crate) const RUN: &[i64] = &[
    // Memory, never executable: see [`argument_rules`].
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Locks of the C library and of std.
    libc::SYS_futex,
    // Clocks, for deadlines.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    // Seeds of hash tables, tokens.
    libc::SYS_getrandom,
    // Its own signals, and what `abort` sends to itself.
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // Queries about itself; `prlimit64` only for itself.
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_prlimit64,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_uname,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// I/O on open descriptors.
pub(crate) const STREAMS: &[i64] = &[
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// Opening and reading files. Landlock or the root limit which files.
pub(crate) const READ_FILES: &[i64] = &[
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_getdents64,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_readlinkat,
    libc::SYS_statx,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_open,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
];

/// Creating, renaming and removing files and directories. Landlock governs all of these by path;
/// calls that it does not govern (chmod, chown, setxattr, truncate, utimensat) are not listed.
pub(crate) const WRITE_FILES: &[i64] = &[
    libc::SYS_fdatasync,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_mkdirat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sync_file_range,
    libc::SYS_unlinkat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
];

/// ioctls of our own processes: non-blocking and close-on-exec flags, available bytes, terminal
/// size, FICLONE.
const IOCTLS: [u32; 6] = [
    libc::FIONBIO as u32,
    libc::FIOCLEX as u32,
    libc::FIONREAD as u32,
    libc::TIOCGWINSZ as u32,
    libc::TIOCSWINSZ as u32,
    // `libc` has no constant on every architecture: _IOW(0x94, 9, int).
    0x4004_9409,
];

const EPERM: u16 = libc::EPERM as u16;

/// Whether a process may create set-uid and set-gid files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetId {
    Allowed,
    Refused,
}

/// Flags of `clone` for a new thread of the C library. No other `clone` is allowed.
const THREAD_FLAGS: u32 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u32;

/// A filter that allows these calls within the argument rules and refuses all others.
pub(crate) fn allowlist(allowed: &[&[i64]]) -> Vec<Instruction> {
    allowlist_with(allowed, SetId::Refused)
}

/// An allowlist with or without set-id files.
pub(crate) fn allowlist_with(allowed: &[&[i64]], set_id: SetId) -> Vec<Instruction> {
    let mut calls: Vec<i64> = allowed.concat();
    // Its flags are behind a pointer; the C library falls back to `clone`.
    let threads = calls.contains(&libc::SYS_clone);
    calls.extend(threads.then_some(libc::SYS_clone3));
    calls.sort_unstable();
    calls.dedup();
    compile_allowlist(calls.into_iter(), |call| argument_rules(call, set_id))
}

/// Argument rules of an allowed call.
fn argument_rules(call: i64, set_id: SetId) -> SyscallAction {
    let bits = if set_id == SetId::Allowed { 0 } else { SET_ID_BITS };
    let set_id = |argument| ArgTest::AnyBit { argument, bits, errno: EPERM };
    let only = |argument, values: &[u32]| ArgTest::IsNot {
        argument,
        values: values.to_vec(),
        errno: EPERM,
    };
    let creates = |argument| ArgTest::PassWithout { argument, bits: CREATES };
    #[cfg(target_arch = "x86_64")]
    match call {
        libc::SYS_open => return SyscallAction::Depends(vec![creates(1), set_id(2)]),
        libc::SYS_mkdir => return SyscallAction::Depends(vec![set_id(1)]),
        _ => {}
    }
    match call {
        // No new executable memory, whatever a bug lets an attacker write.
        libc::SYS_mmap | libc::SYS_mprotect => SyscallAction::Depends(vec![ArgTest::AnyBit {
            argument: 2,
            bits: libc::PROT_EXEC.cast_unsigned(),
            errno: EPERM,
        }]),
        libc::SYS_ioctl => SyscallAction::Depends(vec![only(1, &IOCTLS)]),
        // A set-id file would give access to other users of the host.
        libc::SYS_openat => SyscallAction::Depends(vec![creates(2), set_id(3)]),
        libc::SYS_fchmod => SyscallAction::Depends(vec![set_id(1)]),
        libc::SYS_fchmodat | libc::SYS_mkdirat => SyscallAction::Depends(vec![set_id(2)]),
        libc::SYS_mknodat => SyscallAction::Depends(vec![set_id(2)]),
        libc::SYS_clone => SyscallAction::Depends(vec![only(0, &[THREAD_FLAGS])]),
        libc::SYS_clone3 => SyscallAction::Errno(libc::ENOSYS as u16),
        libc::SYS_prlimit64 => SyscallAction::Depends(vec![only(0, &[0])]),
        libc::SYS_tgkill => SyscallAction::Depends(vec![only(0, &[std::process::id()])]),
        // Connected pairs only: a datagram socket could send to any path.
        libc::SYS_socketpair => SyscallAction::Depends(vec![
            only_unix_pairs(),
            only(1, &socket_types(&[libc::SOCK_STREAM, libc::SOCK_SEQPACKET])),
        ]),
        _ => SyscallAction::Allow,
    }
}

/// Allows socket pairs of AF_UNIX only; the rules of `socket` do not apply to `socketpair`.
pub(crate) fn only_unix_pairs() -> ArgTest {
    let values = vec![libc::AF_UNIX.cast_unsigned()];
    ArgTest::IsNot { argument: 0, values, errno: libc::EAFNOSUPPORT as u16 }
}

/// Socket types with every combination of their flags.
pub(crate) fn socket_types(types: &[i32]) -> Vec<u32> {
    let flags =
        [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK];
    types.iter().flat_map(|kind| flags.map(|flags| (kind | flags).cast_unsigned())).collect()
}
