//! What somebody who has taken a process over would try first. For tests of jails.

use std::ptr;

/// Tries each and tells which of them the kernel did.
pub fn attempts() -> Vec<(&'static str, bool)> {
    let path = c"/proc/self/exe".as_ptr() as libc::c_long;
    let none = 0 as libc::c_long;
    let argv: [*const libc::c_char; 1] = [ptr::null()];
    let argv = argv.as_ptr() as libc::c_long;
    let tried: [(&'static str, libc::c_long, [libc::c_long; 3]); 22] = [
        ("exec", libc::SYS_execve, [path, argv, argv]),
        ("execveat", libc::SYS_execveat, [libc::AT_FDCWD.into(), path, argv]),
        ("inet socket", libc::SYS_socket, [libc::AF_INET.into(), libc::SOCK_STREAM.into(), none]),
        ("inet6 socket", libc::SYS_socket, [libc::AF_INET6.into(), libc::SOCK_DGRAM.into(), none]),
        ("unix socket", libc::SYS_socket, [libc::AF_UNIX.into(), libc::SOCK_STREAM.into(), none]),
        ("netlink", libc::SYS_socket, [libc::AF_NETLINK.into(), libc::SOCK_RAW.into(), none]),
        ("vsock", libc::SYS_socket, [libc::AF_VSOCK.into(), libc::SOCK_STREAM.into(), none]),
        ("ptrace", libc::SYS_ptrace, [libc::PTRACE_TRACEME as libc::c_long, none, none]),
        ("process_vm_readv", libc::SYS_process_vm_readv, [1, none, none]),
        ("mount", libc::SYS_mount, [path, path, none]),
        ("new user namespace", libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), none, none]),
        ("new mount namespace", libc::SYS_unshare, [libc::CLONE_NEWNS.into(), none, none]),
        ("chroot", libc::SYS_chroot, [c"/".as_ptr() as libc::c_long, none, none]),
        ("a file that runs as its owner", libc::SYS_fchmod, [0, 0o4755, none]),
        ("a directory of its group", libc::SYS_mkdirat, [libc::AT_FDCWD.into(), path, 0o2755]),
        ("bpf", libc::SYS_bpf, [none, none, none]),
        ("io_uring", libc::SYS_io_uring_setup, [8, none, none]),
        ("userfaultfd", libc::SYS_userfaultfd, [none, none, none]),
        ("perf", libc::SYS_perf_event_open, [none, none, none]),
        ("add_key", libc::SYS_add_key, [path, path, none]),
        ("pidfd", libc::SYS_pidfd_open, [1, none, none]),
        ("kill", libc::SYS_kill, [-1, none, none]),
    ];
    tried
        .into_iter()
        .map(|(name, call, [a, b, c])| {
            // SAFETY: the pointers are to constants or an array that outlives the call; what is
            // tried is refused by the jail, and where it is not the test has found that.
            let result = unsafe { libc::syscall(call, a, b, c, none, none) };
            let refused = [libc::EPERM, libc::EACCES, libc::ENOSYS];
            let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
            (name, result >= 0 || !refused.contains(&errno))
        })
        .collect()
}
