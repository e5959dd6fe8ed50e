//! Processes: fork into namespaces, change ids, close descriptors, set limits.

use crate::spawn::{self, Identity};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// The two results of a fork.
#[derive(Debug)]
pub enum Fork {
    /// This is the new process.
    Child,
    /// This is the process that forked.
    Parent {
        /// Pid of the child in the parent's pid namespace.
        pid: u32,
        /// Pidfd of the child; readable once it has exited.
        pidfd: OwnedFd,
    },
}

/// Clone flags of the namespaces that a sandbox is created in: user, mount, pid, ipc, uts.
pub const BIRTH_NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS) as u64;

/// Clone flag of a network namespace. Creating one takes longer than all the others together, so
/// that it is a step of its own.
pub const NETWORK_NAMESPACE: u64 = libc::CLONE_NEWNET as u64;

/// Clone flag of a cgroup namespace, created once the process is in its cgroup.
pub const CGROUP_NAMESPACE: u64 = libc::CLONE_NEWCGROUP as u64;
/// Clone flag of a pid namespace for later children; the first of them is its PID 1.
pub const PID_NAMESPACE: u64 = libc::CLONE_NEWPID as u64;
/// Clone flag of a user namespace alone, as the carrier of an id mapping.
pub const USER_NAMESPACE: u64 = libc::CLONE_NEWUSER as u64;

/// `CLONE_INTO_CGROUP` does not fit the libc crate's `c_int` constants.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks into new namespaces, and into a cgroup v2 directory if one is given.
///
/// The process must have one thread: the child inherits locks as they are.
pub fn fork_into(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    clone_into(namespaces, libc::SIGCHLD as u64, cgroup)
}

/// Forks like [`fork_into`], but the new process is a sibling: its parent is our parent.
pub fn fork_sibling(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    // With CLONE_PARENT the exit signal is that of the caller.
    clone_into(namespaces | libc::CLONE_PARENT as u64, 0, cgroup)
}

/// Forks like [`fork_into`], but the new user namespace is owned by the host uid `owner`, so that
/// the kernel charges its per-user limits to that uid and not to root. Needs root. The caller's ids
/// and capabilities are restored before this returns.
pub fn fork_owned(namespaces: u64, cgroup: Option<BorrowedFd<'_>>, owner: u32) -> io::Result<Fork> {
    let capabilities = rustix::thread::capabilities(None)?;
    let dumpable = rustix::process::dumpable_behavior()?;
    // fsuid stays root, in the child too until it changes its ids: files are opened as root.
    let set_euid = |uid: u32| -> io::Result<()> {
        const SAME: libc::uid_t = libc::uid_t::MAX;
        // SAFETY: takes numbers only. A raw call, because the process has one thread.
        if unsafe { libc::syscall(libc::SYS_setresuid, SAME, uid, SAME) } < 0 {
            return Err(io::Error::last_os_error());
        }
        rustix::thread::set_capabilities(None, capabilities)?;
        // SAFETY: takes a number only; the real user id is root's, so it cannot be refused.
        unsafe { libc::syscall(libc::SYS_setfsuid, 0) };
        Ok(rustix::process::set_dumpable_behavior(dumpable)?)
    };
    let forked = set_euid(owner).and_then(|()| fork_into(namespaces, cgroup));
    if !matches!(forked, Ok(Fork::Child)) {
        let restored = set_euid(0);
        if let (Err(_), Ok(Fork::Parent { pidfd, .. })) = (&restored, &forked) {
            let kill = rustix::process::Signal::KILL;
            let _ = rustix::process::pidfd_send_signal(pidfd, kill);
        }
        restored?;
    }
    forked
}

fn clone_into(flags: u64, signal: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    let mut pidfd: i32 = -1;
    // SAFETY: all-zero is a valid clone_args.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = ptr::from_mut(&mut pidfd) as u64;
    args.exit_signal = signal;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM and without a stack this is a fork: the child gets a copy of this
    // address space and returns from the same call. `args` and `pidfd` outlive the call.
    let pid = unsafe {
        libc::syscall(libc::SYS_clone3, ptr::from_mut(&mut args), size_of::<libc::clone_args>())
    };
    match pid {
        ..0 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        pid => {
            // SAFETY: the kernel stored a new descriptor that has no other owner.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent { pid: pid as u32, pidfd })
        }
    }
}

/// Replaces descriptors 0 to 2 by /dev/null, moves `kept` to 3 and closes all others, also those
/// that other values own. Returns the new descriptor.
///
/// For a forked child that never returns to its caller: values that own closed descriptors must not
/// be dropped any more.
pub fn keep_only(kept: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    keep_these([kept]).map(|[kept]| kept)
}

/// Like [`keep_only`] for several descriptors, which become 3, 4 and so on in their order.
pub fn keep_these<const N: usize>(kept: [BorrowedFd<'_>; N]) -> io::Result<[OwnedFd; N]> {
    /// First number behind the standard streams.
    const FIRST_KEPT: libc::c_int = 3;
    /// Copies are made above this number, so that none is overwritten by the moves below.
    const HIGH: libc::c_int = 64;
    let check = |result: libc::c_long| match result {
        ..0 => Err(io::Error::last_os_error()),
        other => Ok(other as i32),
    };
    // SAFETY: F_DUPFD_CLOEXEC makes a new descriptor and touches no memory.
    let high = |fd: i32| check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, HIGH) }.into());
    let mut numbers = [0; N];
    for (number, fd) in numbers.iter_mut().zip(&kept) {
        *number = high(fd.as_raw_fd())?;
    }
    // SAFETY: the path is a C string.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    let null = high(check(null.into())?)?;
    for target in 0..FIRST_KEPT {
        // SAFETY: replaces descriptors that nothing of this process uses any more.
        check(unsafe { libc::dup2(null, target) }.into())?;
    }
    let mut target = FIRST_KEPT;
    for number in &mut numbers {
        // SAFETY: as above; the copy has O_CLOEXEC.
        *number = check(unsafe { libc::dup3(*number, target, libc::O_CLOEXEC) }.into())?;
        target += 1;
    }
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_close_range, target, libc::c_int::MAX, 0) })?;
    // SAFETY: created above and without another owner.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }))
}

/// Closes all descriptors but the standard streams and `kept`.
///
/// For a forked child that never returns to its caller: values that own closed descriptors must not
/// be dropped any more.
pub fn close_others(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<i32> = kept.iter().map(AsRawFd::as_raw_fd).filter(|fd| *fd > 2).collect();
    numbers.sort_unstable();
    numbers.push(i32::MAX);
    let mut first = 3;
    for number in numbers {
        if first < number {
            // SAFETY: closes descriptors that nothing of this process uses any more.
            let done = unsafe { libc::syscall(libc::SYS_close_range, first, number - 1, 0) };
            if done < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        first = number.saturating_add(1);
    }
    Ok(())
}

/// Overwrites the command line and the environment that this process was started with by zeros:
/// other processes of the pid namespace can read the command line in /proc.
///
/// For a forked child that has one thread and no further use for either.
pub fn wipe_cmdline_and_env() -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let unreadable = || io::Error::from(io::ErrorKind::InvalidData);
    // The command name is in parentheses and may contain any byte.
    let fields: Vec<&str> =
        stat.rsplit_once(')').ok_or_else(unreadable)?.1.split_whitespace().collect();
    let field = |number: usize| -> io::Result<usize> {
        fields.get(number - 3).and_then(|text| text.parse().ok()).ok_or_else(unreadable)
    };
    for (start, end) in [(field(48)?, field(49)?), (field(50)?, field(51)?)] {
        if start == 0 || end < start {
            return Err(unreadable());
        }
        // SAFETY: the kernel laid these strings out on our stack and tells where they are. They are
        // writable, no reference into them exists, and the child has its own copy.
        unsafe { ptr::write_bytes(start as *mut u8, 0, end - start) };
    }
    Ok(())
}

/// Sets all uids and gids to 0 of the user namespace and drops supplementary groups.
pub fn become_root() -> io::Result<()> {
    let none: *const libc::gid_t = ptr::null();
    // SAFETY: an empty list is never read; the others take numbers only. Raw calls, because the
    // process has one thread and the C library would look for others.
    let done = unsafe {
        libc::syscall(libc::SYS_setgroups, 0, none) == 0
            && libc::syscall(libc::SYS_setresgid, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_setresuid, 0, 0, 0) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs `work` with fsuid and fsgid set to `id`, which owns no files, and so without root's file
/// capabilities. Credentials that the kernel stores meanwhile, such as those of an overlay's
/// mounter, are these.
///
/// For root of a user namespace with one thread; `id` is mapped there.
pub fn with_file_ids<T>(id: u32, work: impl FnOnce() -> T) -> io::Result<T> {
    /// Not a valid id: the call changes nothing and returns the current one.
    const QUERY: u32 = u32::MAX;
    // SAFETY: both take numbers only. Raw calls, because the process has one thread.
    let set = |id: u32| unsafe {
        libc::syscall(libc::SYS_setfsgid, id);
        libc::syscall(libc::SYS_setfsuid, id);
        (libc::syscall(libc::SYS_setfsgid, QUERY), libc::syscall(libc::SYS_setfsuid, QUERY))
    };
    let check = |set: (libc::c_long, libc::c_long), id: u32| match set == (id.into(), id.into()) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EPERM)),
    };
    // An fsuid other than 0 drops CAP_DAC_OVERRIDE and its like from the effective set; 0 restores
    // them.
    check(set(id), id)?;
    let done = work();
    check(set(0), 0)?;
    Ok(done)
}

/// A sandbox has 65536 ids; root is one of them.
const MAX_GRANTED_IDS: u32 = 0xffff;

/// Number of ids that exist inside, with root, where `count` subordinate ids are granted.
pub fn granted_count(count: u32) -> u32 {
    1 + count.min(MAX_GRANTED_IDS)
}

/// Runs `newuidmap` or `newgidmap`: maps root of a child to `own` and the other ids to a granted
/// range of subordinate ids. Root of a user namespace writes the map itself.
pub fn map_granted(tool: &str, pid: u32, own: u32, start: u32, count: u32) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let file = tool.trim_start_matches("new").replace("map", "_map");
        let map = format!("0 {own} 1\n1 {start} {}", count.min(MAX_GRANTED_IDS));
        return std::fs::write(format!("/proc/{pid}/{file}"), map);
    }
    let arguments =
        [pid, 0, own, 1, 1, start, count.min(MAX_GRANTED_IDS)].map(|number| number.to_string());
    let output = std::process::Command::new(tool)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot execute {tool}: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Forks the process; true in the child. The caller must have one thread.
pub fn fork() -> io::Result<bool> {
    // SAFETY: with one thread the child's copy of every lock and buffer is consistent.
    match unsafe { libc::fork() } {
        ..0 => Err(io::Error::last_os_error()),
        pid => Ok(pid == 0),
    }
}

/// Forks the process; the child's pid in the parent, `None` in the child. The caller must have one
/// thread.
pub fn fork_child() -> io::Result<Option<i32>> {
    // SAFETY: with one thread the child's copy of every lock and buffer is consistent.
    match unsafe { libc::fork() } {
        ..0 => Err(io::Error::last_os_error()),
        pid => Ok((pid != 0).then_some(pid)),
    }
}

/// Changes to this user, if one is given, and drops all capabilities, as for a command that gets
/// none. Neither can be undone.
pub fn drop_privileges(identity: Option<&Identity>) -> io::Result<()> {
    // Needs CAP_SETPCAP, so it comes first.
    spawn::drop_bounding_set();
    identity.map_or(Ok(()), become_user)?;
    if spawn::drop_all_capabilities() { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sets uid, gid and supplementary groups; cannot be undone without CAP_SETUID.
pub fn become_user(identity: &Identity) -> io::Result<()> {
    let groups = &identity.groups;
    let (uid, gid) = (identity.uid, identity.gid);
    // SAFETY: the list is valid for its length; the others take numbers only.
    let done = unsafe {
        libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
            && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Calls `_exit(2)`: no destructors run and no buffers are flushed, as a forked child must.
pub fn leave(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// C strings as a null-terminated array of pointers, for `execve(2)`.
pub(crate) fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// Calls `unshare(2)` with these clone flags.
pub fn unshare(namespaces: u64) -> io::Result<()> {
    // SAFETY: unshare takes flags and touches no memory of ours.
    let done = unsafe { libc::unshare(namespaces as libc::c_int) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Joins a new, empty session keyring, so that keys of the caller cannot be reached.
pub fn new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    let anonymous: *const libc::c_char = ptr::null();
    // SAFETY: a null name asks for an anonymous keyring; nothing is dereferenced.
    let done = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, anonymous) };
    if done >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Restricts this thread to these CPUs.
pub fn set_affinity(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: all-zero is a valid, empty cpu_set_t.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < libc::CPU_SETSIZE as usize) {
        // SAFETY: the index is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: `set` lives until the call returns and its size is passed.
    let done = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// CPUs that this thread may run on.
pub fn affinity() -> io::Result<Vec<usize>> {
    // SAFETY: all-zero is a valid, empty cpu_set_t.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size that is passed.
    let done = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: every index is below CPU_SETSIZE.
    Ok((0..libc::CPU_SETSIZE as usize)
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect())
}

/// Sets a resource limit of this process; `resource` is a number of the kernel (`RLIMIT_*`).
pub fn set_rlimit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    let old: *mut libc::rlimit64 = ptr::null_mut();
    // SAFETY: `limit` lives until the call returns; a null old limit is allowed.
    let done = unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, &raw const limit, old) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Arguments or environment of a program as C strings; fails if one contains a zero byte.
pub fn c_strings<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> io::Result<Vec<CString>> {
    strings
        .into_iter()
        .map(|s| CString::new(s.as_ref()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput)))
        .collect()
}

/// Bytes as one C string; fails if they contain a zero byte.
pub fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Sets the thread name that `ps` shows, of at most 15 bytes.
pub fn set_name(name: &CStr) {
    // SAFETY: the kernel reads at most 16 bytes up to the terminating zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Landlock ABI version of this kernel; `None` if it has none or it is disabled.
pub fn landlock_version() -> Option<u32> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    let none: *const libc::c_void = ptr::null();
    // SAFETY: with this flag the kernel takes a null pointer and a zero size, and returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, LANDLOCK_CREATE_RULESET_VERSION)
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Size of a memory page in bytes, from the C library: a process that is not dumpable may not read
/// its own /proc.
pub fn page_size() -> u64 {
    // SAFETY: takes a number and returns one.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Clock ticks in a second (`_SC_CLK_TCK`), the unit of CPU times in /proc.
pub fn clock_ticks() -> u64 {
    // SAFETY: takes a number and returns one.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}
