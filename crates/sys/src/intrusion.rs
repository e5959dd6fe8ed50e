//! System calls that an attacker tries first after taking a process over. For tests of jails.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

/// Makes each call and returns its name and whether the kernel allowed it.
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

/// Calls on devices, files and processes of the host that only a worker of root could make.
/// `canary` is a file of the host, `own` a directory that the worker may write.
pub fn attempts_on(canary: &Path, own: &Path) -> Vec<(&'static str, bool)> {
    let path = |path: &Path| CString::new(path.as_os_str().as_bytes()).unwrap_or_default();
    let (disk, linked, renamed) =
        (path(&own.join("disk")), path(&own.join("linked")), path(&own.join("renamed")));
    let (canary, own) = (path(canary), path(own));
    let [disk, linked, renamed, file, own] =
        [&disk, &linked, &renamed, &canary, &own].map(|path| path.as_ptr() as libc::c_long);
    let cwd = libc::c_long::from(libc::AT_FDCWD);
    let (block, char) = (libc::S_IFBLK | 0o600, libc::S_IFCHR | 0o600);
    // The first SCSI disk of the host, and /dev/mem.
    let (first_disk, memory) = (libc::makedev(8, 0), libc::makedev(1, 1));
    let device =
        |kind: libc::mode_t, number: libc::dev_t| [cwd, disk, kind.into(), number.cast_signed(), 0];
    let name = c"user.msb".as_ptr() as libc::c_long;
    let init = [1, libc::SIGCONT.into(), 0, 0, 0];
    let executable = (libc::PROT_READ | libc::PROT_EXEC).into();
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).into();
    let datagram = [libc::AF_UNIX.into(), libc::SOCK_DGRAM.into(), 0, name, 0];
    let mut tried = vec![
        ("a block device", succeeds(libc::SYS_mknodat, device(block, first_disk))),
        ("a character device", succeeds(libc::SYS_mknodat, device(char, memory))),
        ("a new mode", succeeds(libc::SYS_fchmodat, [cwd, file, 0o666, 0, 0])),
        ("a new owner", succeeds(libc::SYS_fchownat, [cwd, file, 0, 0, 0])),
        ("an attribute", succeeds(libc::SYS_setxattr, [file, name, name, 1, 0])),
        ("a new length", succeeds(libc::SYS_truncate, [file, 0, 0, 0, 0])),
        ("a new time", succeeds(libc::SYS_utimensat, [cwd, file, 0, 0, 0])),
        ("a hard link", succeeds(libc::SYS_linkat, [cwd, file, cwd, linked, 0])),
        ("a file taken", succeeds(libc::SYS_renameat2, [cwd, file, cwd, renamed, 0])),
        ("a file removed", succeeds(libc::SYS_unlinkat, [cwd, file, 0, 0, 0])),
        ("a file opened", succeeds(libc::SYS_openat, [cwd, file, 0, 0, 0])),
        ("a file written", succeeds(libc::SYS_openat, [cwd, file, 1, 0, 0])),
        ("a signal", succeeds(libc::SYS_kill, init)),
        ("a signal to a thread", succeeds(libc::SYS_tgkill, [1, 1, libc::SIGCONT.into(), 0, 0])),
        ("a queued signal", succeeds(libc::SYS_rt_sigqueueinfo, init)),
        ("new code", succeeds(libc::SYS_mmap, [0, 4096, executable, anonymous, -1])),
        ("a datagram socket", succeeds(libc::SYS_socketpair, datagram)),
        ("limits of others", succeeds(libc::SYS_prlimit64, [1, 7, 0, 0, 0])),
        ("a namespace", succeeds(libc::SYS_setns, [0, 0, 0, 0, 0])),
        ("a handle", succeeds(libc::SYS_open_by_handle_at, [cwd, own, 0, 0, 0])),
        ("a child", can_fork()),
    ];
    // pidfd_send_signal takes a directory of /proc in place of a pidfd.
    let process = c"/proc/1".as_ptr() as libc::c_long;
    let pidfd_sources = [
        ("a signal by /proc", libc::SYS_openat, [cwd, process, libc::O_DIRECTORY.into(), 0, 0]),
        ("a signal by pidfd", libc::SYS_pidfd_open, [1, 0, 0, 0, 0]),
    ];
    for (name, call, [a, b, c, d, e]) in pidfd_sources {
        // SAFETY: the pointer is to a constant.
        let fd = unsafe { libc::syscall(call, a, b, c, d, e) };
        let signal = [fd, libc::SIGCONT.into(), 0, 0, 0];
        tried.push((name, fd >= 0 && succeeds(libc::SYS_pidfd_send_signal, signal)));
    }
    tried
}

/// One line for stderr: the calls that succeeded, or that all were refused.
pub fn report(tried: &[(&str, bool)]) -> String {
    let reached: Vec<&str> =
        tried.iter().filter(|(_, done)| *done).map(|(name, _)| *name).collect();
    match reached.is_empty() {
        true => format!("compromised: {} attempts, all refused", tried.len()),
        false => format!("compromised: reached {}", reached.join(", ")),
    }
}

/// Whether the kernel allowed the call. An error other than EPERM, EACCES or ENOSYS counts as
/// allowed: it does not come from the jail.
fn succeeds(call: libc::c_long, [a, b, c, d, e]: [libc::c_long; 5]) -> bool {
    // SAFETY: the pointers are to constants or to strings and arrays that outlive the call. The
    // jail refuses the call; if it does not, the test has found that.
    let result = unsafe { libc::syscall(call, a, b, c, d, e) };
    let refused = [libc::EPERM, libc::EACCES, libc::ENOSYS];
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    result >= 0 || !refused.contains(&errno)
}

/// Whether a process can be forked.
fn can_fork() -> bool {
    match crate::process::fork_child() {
        Ok(None) => crate::process::leave(0),
        forked => forked.is_ok(),
    }
}
