//! Making processes in new namespaces and turning into another program.

use crate::spawn::{self, Identity};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

/// Which side of a fork this is.
#[derive(Debug)]
pub enum Fork {
    /// The new process.
    Child,
    /// The old one.
    Parent {
        /// The child's pid, seen from here.
        pid: u32,
        /// A descriptor of the child; readable once it is dead.
        pidfd: OwnedFd,
    },
}

/// The namespaces that a sandbox is born into.
pub const BIRTH_NAMESPACES: u64 = (libc::CLONE_NEWUSER
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUTS) as u64;

/// A network namespace, which takes longer to make than all the others together.
pub const NETWORK_NAMESPACE: u64 = libc::CLONE_NEWNET as u64;

/// A cgroup namespace too, made once the process is in its cgroup.
pub const CGROUP_NAMESPACE: u64 = libc::CLONE_NEWCGROUP as u64;
/// A pid namespace for children to come; the first of them is its PID 1.
pub const PID_NAMESPACE: u64 = libc::CLONE_NEWPID as u64;
/// A user namespace alone, as the carrier of an id mapping.
pub const USER_NAMESPACE: u64 = libc::CLONE_NEWUSER as u64;

/// `CLONE_INTO_CGROUP` does not fit the libc crate's `c_int` constants.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks into new namespaces, and into a v2 cgroup if one is given.
///
/// Must be called while the process has one thread: the child inherits locks as they are.
pub fn fork_into(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    clone_into(namespaces, libc::SIGCHLD as u64, cgroup)
}

/// The same, but the new process is a child of our parent, a sibling of ours.
pub fn fork_sibling(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Fork> {
    // The signal for the parent is the one of our own end.
    clone_into(namespaces | libc::CLONE_PARENT as u64, 0, cgroup)
}

/// The same as [`fork_into`], but the new user namespace belongs to the host id `owner`: what the
/// kernel counts per user of such a namespace, it counts for that id and not for root. Only root
/// can do it; its own ids and capabilities are as before when this returns.
pub fn fork_owned(namespaces: u64, cgroup: Option<BorrowedFd<'_>>, owner: u32) -> io::Result<Fork> {
    let capabilities = rustix::thread::capabilities(None)?;
    let dumpable = rustix::process::dumpable_behavior()?;
    // Files are opened as root all the time, by the child too until it takes its ids.
    let take = |uid: u32| -> io::Result<()> {
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
    let forked = take(owner).and_then(|()| fork_into(namespaces, cgroup));
    if !matches!(forked, Ok(Fork::Child)) {
        let own = take(0);
        if let (Err(_), Ok(Fork::Parent { pidfd, .. })) = (&own, &forked) {
            let kill = rustix::process::Signal::KILL;
            let _ = rustix::process::pidfd_send_signal(pidfd, kill);
        }
        own?;
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
            // SAFETY: the kernel stored a new descriptor that nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Fork::Parent { pid: pid as u32, pidfd })
        }
    }
}

/// Leaves only /dev/null at 0 to 2 and `kept`, whose new descriptor is returned. Everything else
/// is closed, whoever owns it.
///
/// For a forked child that never returns to its caller: whatever still owns a descriptor must not
/// be dropped any more.
pub fn keep_only(kept: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    keep_these([kept]).map(|[kept]| kept)
}

/// The same for several, in their order.
pub fn keep_these<const N: usize>(kept: [BorrowedFd<'_>; N]) -> io::Result<[OwnedFd; N]> {
    /// The first number that no standard stream has.
    const KEPT: libc::c_int = 3;
    /// Out of the way of the numbers that are about to be replaced.
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
    for target in 0..KEPT {
        // SAFETY: replaces descriptors that nothing of this process uses any more.
        check(unsafe { libc::dup2(null, target) }.into())?;
    }
    let mut target = KEPT;
    for number in &mut numbers {
        // SAFETY: as above; the copy is closed when a command is executed.
        *number = check(unsafe { libc::dup3(*number, target, libc::O_CLOEXEC) }.into())?;
        target += 1;
    }
    // SAFETY: as above.
    check(unsafe { libc::syscall(libc::SYS_close_range, target, libc::c_int::MAX, 0) })?;
    // SAFETY: made above and owned by nobody else.
    Ok(numbers.map(|number| unsafe { OwnedFd::from_raw_fd(number) }))
}

/// Closes every descriptor but the standard streams and these.
///
/// For a forked child that never returns to its caller: whatever still owns another descriptor must
/// not be dropped any more.
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

/// Wipes the arguments and the environment that this process was started with. Anybody in the
/// same pid namespace may read the former.
///
/// For a forked child that has one thread and no further use for either.
pub fn forget_origin() -> io::Result<()> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let unreadable = || io::Error::from(io::ErrorKind::InvalidData);
    // The name is in parentheses and may hold anything.
    let fields: Vec<&str> =
        stat.rsplit_once(')').ok_or_else(unreadable)?.1.split_whitespace().collect();
    let field = |number: usize| -> io::Result<usize> {
        fields.get(number - 3).and_then(|text| text.parse().ok()).ok_or_else(unreadable)
    };
    for (start, end) in [(field(48)?, field(49)?), (field(50)?, field(51)?)] {
        if start == 0 || end < start {
            return Err(unreadable());
        }
        // SAFETY: the kernel laid these strings out on our stack and tells where they are; they
        // are writable, nobody holds a reference into them, and the child has its own copy.
        unsafe { ptr::write_bytes(start as *mut u8, 0, end - start) };
    }
    Ok(())
}

/// Becomes root of the user namespace, without any other group.
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

/// Does something with other ids for files, those of an id that owns nothing, and so without root's
/// rights over files. What the kernel remembers of its caller meanwhile, as the mounter of an overlay,
/// it remembers so.
///
/// For root of a user namespace that has one thread; the id is mapped there.
pub fn with_file_ids<T>(id: u32, work: impl FnOnce() -> T) -> io::Result<T> {
    /// No id: asks for the present one.
    const ASK: u32 = u32::MAX;
    // SAFETY: both take numbers only. Raw calls, because the process has one thread.
    let set = |id: u32| unsafe {
        libc::syscall(libc::SYS_setfsgid, id);
        libc::syscall(libc::SYS_setfsuid, id);
        (libc::syscall(libc::SYS_setfsgid, ASK), libc::syscall(libc::SYS_setfsuid, ASK))
    };
    let wanted = |set: (libc::c_long, libc::c_long), id: u32| match set == (id.into(), id.into()) {
        true => Ok(()),
        false => Err(io::Error::from_raw_os_error(libc::EPERM)),
    };
    // Leaving user 0 takes the rights over files from the effective capabilities; coming back gives
    // them back.
    wanted(set(id), id)?;
    let done = work();
    wanted(set(0), 0)?;
    Ok(done)
}

/// Root has one of the 64 Ki ids that exist inside.
const OTHERS: u32 = 0xffff;

/// How many ids exist inside, root among them, where this many were granted.
pub fn granted_count(count: u32) -> u32 {
    1 + count.min(OTHERS)
}

/// Has `newuidmap` or `newgidmap` map root of a child to one id and the others to a granted range.
pub fn map_granted(tool: &str, pid: u32, own: u32, start: u32, count: u32) -> io::Result<()> {
    let words = [pid, 0, own, 1, 1, start, count.min(OTHERS)].map(|word| word.to_string());
    let output = std::process::Command::new(tool)
        .args(words)
        .stdin(std::process::Stdio::null())
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot run it: {error}")))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Forks; true in the child. The caller has one thread.
pub fn fork() -> io::Result<bool> {
    // SAFETY: with one thread the child's copy of every lock and buffer is consistent.
    match unsafe { libc::fork() } {
        ..0 => Err(io::Error::last_os_error()),
        pid => Ok(pid == 0),
    }
}

/// Forks; the child's pid in the parent, none in the child. The caller has one thread.
pub fn fork_child() -> io::Result<Option<i32>> {
    // SAFETY: with one thread the child's copy of every lock and buffer is consistent.
    match unsafe { libc::fork() } {
        ..0 => Err(io::Error::last_os_error()),
        pid => Ok((pid != 0).then_some(pid)),
    }
}

/// Becomes this user for good, or stays who it is, and gives up every capability, as a command does
/// that gets none.
pub fn become_powerless(identity: Option<&Identity>) -> io::Result<()> {
    // While it still may.
    spawn::empty_bounding_set();
    identity.map_or(Ok(()), become_user)?;
    if spawn::give_up_capabilities() { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Becomes this user for good.
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

/// Ends this process at once: no destructors, no buffers, as a forked child must.
pub fn leave(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// C strings as the null-terminated array that the kernel wants.
pub(crate) fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// Leaves the shared namespaces given as clone flags.
pub fn unshare(namespaces: u64) -> io::Result<()> {
    // SAFETY: unshare takes flags and touches no memory of ours.
    let done = unsafe { libc::unshare(namespaces as libc::c_int) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A new, empty session keyring, so that keys of the caller cannot be reached.
pub fn new_session_keyring() -> io::Result<()> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    let anonymous: *const libc::c_char = ptr::null();
    // SAFETY: a null name asks for an anonymous keyring; nothing is dereferenced.
    let done = unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, anonymous) };
    if done >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs on these processors only.
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

/// The processors this process may run on.
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

/// Sets a resource limit of this process; the number is the kernel's.
pub fn set_rlimit(resource: u32, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
    let old: *mut libc::rlimit64 = ptr::null_mut();
    // SAFETY: `limit` lives until the call returns; a null old limit is allowed.
    let done = unsafe { libc::syscall(libc::SYS_prlimit64, 0, resource, &raw const limit, old) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A program's arguments or environment as C strings; a zero byte inside is refused.
pub fn c_strings<S: AsRef<[u8]>>(strings: impl IntoIterator<Item = S>) -> io::Result<Vec<CString>> {
    strings
        .into_iter()
        .map(|s| CString::new(s.as_ref()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput)))
        .collect()
}

/// One C string.
pub fn c_string(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Sets the name that `ps` shows for this thread.
pub fn set_name(name: &CStr) {
    // SAFETY: the kernel reads at most 16 bytes up to the terminating zero.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

/// Which version of Landlock this kernel has; none if it has none or it is off.
pub fn landlock_version() -> Option<u32> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    let none: *const libc::c_void = ptr::null();
    // SAFETY: with this flag the kernel takes a null pointer and a zero size, and returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, LANDLOCK_CREATE_RULESET_VERSION)
    };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Bytes in a page of memory. From the C library, which has known it since the start: a process
/// that is not dumpable may not look it up in its own /proc.
pub fn page_size() -> u64 {
    // SAFETY: takes a number and returns one.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// How many of the kernel's ticks make a second.
pub fn clock_ticks() -> u64 {
    // SAFETY: takes a number and returns one.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}
