//! What somebody who has taken a process over would try first. For tests of jails.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
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
        .map(|(name, call, [a, b, c])| (name, succeeds(call, [a, b, c, none, none])))
        .collect()
}

/// What only a worker of root could do: devices, files and processes of the host. `canary` is a file
/// of the host, `own` a directory that the worker may write.
pub fn attempts_on(canary: &Path, own: &Path) -> Vec<(&'static str, bool)> {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let (disk, linked, renamed) =
        (path(&own.join("disk")), path(&own.join("linked")), path(&own.join("renamed")));
    let (canary, own) = (path(canary), path(own));
    let [disk, linked, renamed, file, own] =
        [&disk, &linked, &renamed, &canary, &own].map(|path| path.as_ptr() as libc::c_long);
    let here = libc::c_long::from(libc::AT_FDCWD);
    let (block, char) = (libc::S_IFBLK | 0o600, libc::S_IFCHR | 0o600);
    // The first disk of most machines, and the host's memory.
    let (first_disk, memory) = (libc::makedev(8, 0), libc::makedev(1, 1));
    let device = |kind: libc::mode_t, number: libc::dev_t| {
        [here, disk, kind.into(), number.cast_signed(), 0]
    };
    let name = c"user.msb".as_ptr() as libc::c_long;
    let init = [1, libc::SIGCONT.into(), 0, 0, 0];
    let executable = (libc::PROT_READ | libc::PROT_EXEC).into();
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).into();
    let datagram = [libc::AF_UNIX.into(), libc::SOCK_DGRAM.into(), 0, name, 0];
    let mut tried = vec![
        ("a block device", succeeds(libc::SYS_mknodat, device(block, first_disk))),
        ("a character device", succeeds(libc::SYS_mknodat, device(char, memory))),
        ("a new mode", succeeds(libc::SYS_fchmodat, [here, file, 0o666, 0, 0])),
        ("a new owner", succeeds(libc::SYS_fchownat, [here, file, 0, 0, 0])),
        ("an attribute", succeeds(libc::SYS_setxattr, [file, name, name, 1, 0])),
        ("a new length", succeeds(libc::SYS_truncate, [file, 0, 0, 0, 0])),
        ("a new time", succeeds(libc::SYS_utimensat, [here, file, 0, 0, 0])),
        ("a hard link", succeeds(libc::SYS_linkat, [here, file, here, linked, 0])),
        ("a file taken", succeeds(libc::SYS_renameat2, [here, file, here, renamed, 0])),
        ("a file removed", succeeds(libc::SYS_unlinkat, [here, file, 0, 0, 0])),
        ("a file opened", succeeds(libc::SYS_openat, [here, file, 0, 0, 0])),
        ("a file written", succeeds(libc::SYS_openat, [here, file, 1, 0, 0])),
        ("a signal", succeeds(libc::SYS_kill, init)),
        ("a signal to a thread", succeeds(libc::SYS_tgkill, [1, 1, libc::SIGCONT.into(), 0, 0])),
        ("a queued signal", succeeds(libc::SYS_rt_sigqueueinfo, init)),
        ("new code", succeeds(libc::SYS_mmap, [0, 4096, executable, anonymous, -1])),
        ("a datagram socket", succeeds(libc::SYS_socketpair, datagram)),
        ("limits of others", succeeds(libc::SYS_prlimit64, [1, 7, 0, 0, 0])),
        ("a namespace", succeeds(libc::SYS_setns, [0, 0, 0, 0, 0])),
        ("a handle", succeeds(libc::SYS_open_by_handle_at, [here, own, 0, 0, 0])),
        ("a child", forks()),
    ];
    // A directory of /proc is as good as a pidfd.
    let process = c"/proc/1".as_ptr() as libc::c_long;
    let ways = [
        ("a signal by /proc", libc::SYS_openat, [here, process, libc::O_DIRECTORY.into(), 0, 0]),
        ("a signal by pidfd", libc::SYS_pidfd_open, [1, 0, 0, 0, 0]),
    ];
    for (name, call, [a, b, c, d, e]) in ways {
        // SAFETY: the pointer is to a constant.
        let fd = unsafe { libc::syscall(call, a, b, c, d, e) };
        let signal = [fd, libc::SIGCONT.into(), 0, 0, 0];
        tried.push((name, fd >= 0 && succeeds(libc::SYS_pidfd_send_signal, signal)));
    }
    tried
}

/// Whether the kernel did it; what it refused for another reason than a jail counts as done.
fn succeeds(call: libc::c_long, [a, b, c, d, e]: [libc::c_long; 5]) -> bool {
    // SAFETY: the pointers are to constants or to strings and arrays that outlive the call; what is
    // tried is refused by the jail, and where it is not the test has found that.
    let result = unsafe { libc::syscall(call, a, b, c, d, e) };
    let refused = [libc::EPERM, libc::EACCES, libc::ENOSYS];
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    result >= 0 || !refused.contains(&errno)
}

/// Whether a process can be made.
fn forks() -> bool {
    match crate::process::fork_child() {
        Ok(None) => crate::process::leave(0),
        made => made.is_ok(),
    }
}
