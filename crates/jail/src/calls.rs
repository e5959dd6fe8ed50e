//! System calls by purpose, for the allowlists of our own processes.
//!
//! A list is put together of these groups and of what only one process needs. [`program`] adds the
//! rules about arguments that hold for each of them.

use crate::filter::{Action, Test, compile_list};
use crate::syscalls::{CREATES, SET_ID_BITS};
use msb_sys::seccomp::Instruction;

/// What a single-threaded program needs to run and to end.
pub(crate) const RUN: &[i64] = &[
    // Memory. Never executable: see `program`.
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
    // Questions about itself; `prlimit64` for no other process.
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

/// Bytes of descriptors that are open.
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

/// Opening files, and looking at them. What can be opened is for Landlock or the root to say.
pub(crate) const LOOK: &[i64] = &[
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

/// Making, renaming and removing files and directories. Landlock governs all of these by path; calls
/// that it does not govern (chmod, chown, setxattr, truncate, utimensat) are not here.
pub(crate) const CHANGE: &[i64] = &[
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

/// The ioctls of our own processes: whether reads block, what is closed on exec, the size of a terminal.
const IOCTLS: [u32; 5] = [
    libc::FIONBIO as u32,
    libc::FIOCLEX as u32,
    libc::FIONREAD as u32,
    libc::TIOCGWINSZ as u32,
    libc::TIOCSWINSZ as u32,
];

const REFUSED: u16 = libc::EPERM as u16;

/// The filter that allows these calls, within the rules for arguments, and refuses all others.
pub(crate) fn program(allowed: &[&[i64]]) -> Vec<Instruction> {
    let mut calls: Vec<i64> = allowed.concat();
    calls.sort_unstable();
    calls.dedup();
    compile_list(calls.into_iter(), within_rules)
}

/// What an allowed call may be given.
fn within_rules(call: i64) -> Action {
    let set_id = |argument| Test::AnyBit { argument, bits: SET_ID_BITS, errno: REFUSED };
    let only = |argument, values: &[u32]| Test::IsNot {
        argument,
        values: values.to_vec(),
        errno: REFUSED,
    };
    let creates = |argument| Test::PassWithout { argument, bits: CREATES };
    #[cfg(target_arch = "x86_64")]
    match call {
        libc::SYS_open => return Action::Depends(vec![creates(1), set_id(2)]),
        libc::SYS_mkdir => return Action::Depends(vec![set_id(1)]),
        _ => {}
    }
    match call {
        // No new code, whatever a bug lets an attacker write.
        libc::SYS_mmap | libc::SYS_mprotect => Action::Depends(vec![Test::AnyBit {
            argument: 2,
            bits: libc::PROT_EXEC.cast_unsigned(),
            errno: REFUSED,
        }]),
        libc::SYS_ioctl => Action::Depends(vec![only(1, &IOCTLS)]),
        // Files that run as their owner would be a way to the host's other users.
        libc::SYS_openat => Action::Depends(vec![creates(2), set_id(3)]),
        libc::SYS_fchmod => Action::Depends(vec![set_id(1)]),
        libc::SYS_fchmodat | libc::SYS_mkdirat => Action::Depends(vec![set_id(2)]),
        libc::SYS_prlimit64 => Action::Depends(vec![only(0, &[0])]),
        libc::SYS_tgkill => Action::Depends(vec![only(0, &[std::process::id()])]),
        // Connected from birth: a datagram socket could send to any path.
        libc::SYS_socketpair => Action::Depends(vec![
            Test::IsNot {
                argument: 0,
                values: vec![libc::AF_UNIX.cast_unsigned()],
                errno: libc::EAFNOSUPPORT as u16,
            },
            only(1, &kinds(&[libc::SOCK_STREAM, libc::SOCK_SEQPACKET])),
        ]),
        _ => Action::Allow,
    }
}

/// These kinds of sockets, with every flag that can go with them.
pub(crate) fn kinds(kinds: &[i32]) -> Vec<u32> {
    let flags =
        [0, libc::SOCK_CLOEXEC, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK];
    kinds.iter().flat_map(|kind| flags.map(|flags| (kind | flags).cast_unsigned())).collect()
}
