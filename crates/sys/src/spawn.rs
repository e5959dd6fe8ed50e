//! Starts a command without copying the address space.
//!
//! The child shares our memory until it execs (`CLONE_VM | CLONE_VFORK`), so everything it needs is
//! allocated before, and it makes nothing but system calls.

use crate::process::pointers;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// User and groups that a command runs as.
#[derive(Debug, Clone)]
pub struct Identity {
    /// User id in the current user namespace.
    pub uid: u32,
    /// Primary group id in the current user namespace.
    pub gid: u32,
    /// Supplementary group ids of the process.
    pub groups: Vec<u32>,
}

/// A resource limit by the kernel's number, for `prlimit64(2)`.
#[derive(Debug, Clone, Copy)]
pub struct RawRlimit {
    /// Number of the resource (`RLIMIT_*`).
    pub resource: u32,
    /// Soft limit: the one in force.
    pub soft: u64,
    /// Hard limit: the soft one may be raised up to it.
    pub hard: u64,
}

/// A command that is about to start.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// Paths to try, in order, as a shell tries PATH.
    pub candidates: &'a [CString],
    /// Program name and arguments.
    pub argv: &'a [CString],
    /// Complete environment as `NAME=value` strings.
    pub env: &'a [CString],
    /// Descriptors that become 0, 1 and 2 of the command.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Whether descriptor 0 becomes the controlling terminal.
    pub terminal: bool,
    /// Working directory of the command.
    pub workdir: &'a CStr,
    /// User to change to; `None` keeps the current ids.
    pub identity: Option<&'a Identity>,
    /// Resource limits set before exec.
    pub rlimits: &'a [RawRlimit],
    /// Drop all capabilities, also from the bounding set.
    pub drop_caps: bool,
}

/// Step at which the child failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Clone, session, terminal or descriptors.
    Process,
    /// Setting a resource limit.
    Rlimit,
    /// Setting user, groups or capabilities.
    Identity,
    /// Entering the working directory.
    Workdir,
    /// Executing the program (`execve`).
    Exec,
}

/// Error of a command that did not start.
#[derive(Debug)]
pub struct SpawnError {
    /// Step at which it failed.
    pub step: Step,
    /// Error that the kernel returned.
    pub error: io::Error,
}

/// Stack of the child in bytes: enough for the few frames below; it never returns into deeper code.
const STACK: usize = 64 << 10;

struct ChildContext<'a> {
    spawn: &'a Spawn<'a>,
    /// Pid of the child in its own pid namespace.
    inside: i32,
    candidates: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    failed: Option<(Step, i32)>,
}

/// Pids of a command that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChildPids {
    /// Pid in our pid namespace.
    pub pid: i32,
    /// Pid in the child's own pid namespace, which may be a new one.
    pub inside: i32,
}

/// Starts the command and returns once `execve(2)` has succeeded or failed.
///
/// The caller must have one thread and keep its own descriptors 0 to 2 open.
pub fn spawn(spawn: &Spawn<'_>) -> Result<ChildPids, SpawnError> {
    let mut child = ChildContext::new(spawn);
    let mut stack = vec![0u128; STACK / size_of::<u128>()];
    // SAFETY: one past the end of the allocation, aligned to 16 bytes as the ABI asks.
    let top = unsafe { stack.as_mut_ptr().add(stack.len()) };
    let argument = (&raw mut child).cast::<libc::c_void>();
    // SAFETY: CLONE_VFORK suspends us until the child has exec'd or exited, so `child`, `stack` and
    // all they point to outlive the child's use of them, and no other thread touches them.
    let pid = unsafe {
        libc::clone(
            enter_child,
            top.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            argument,
        )
    };
    if pid < 0 {
        return Err(SpawnError { step: Step::Process, error: io::Error::last_os_error() });
    }
    match child.failed {
        None => Ok(ChildPids { pid, inside: child.inside }),
        Some((step, errno)) => {
            let mut status = 0;
            // SAFETY: waits for the child just made; the status is written to our variable.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            Err(SpawnError { step, error: io::Error::from_raw_os_error(errno) })
        }
    }
}

/// Executes the command in this process; returns only on failure. Descriptors beyond the standard
/// streams get close-on-exec: the process that waits for exec sees the last of them close then. The
/// working directory must therefore be a path that only this process uses.
///
/// For a forked child that never returns to its caller.
pub fn replace(spawn: &Spawn<'_>) -> SpawnError {
    let (step, errno) = exec_command(&ChildContext::new(spawn), libc::CLOSE_RANGE_CLOEXEC);
    SpawnError { step, error: io::Error::from_raw_os_error(errno) }
}

impl<'a> ChildContext<'a> {
    fn new(spawn: &'a Spawn<'a>) -> Self {
        Self {
            spawn,
            inside: 0,
            candidates: pointers(spawn.candidates),
            argv: pointers(spawn.argv),
            env: pointers(spawn.env),
            failed: None,
        }
    }
}

extern "C" fn enter_child(argument: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `spawn` passes a pointer to its own ChildContext and is suspended while we use it.
    let child = unsafe { &mut *argument.cast::<ChildContext<'_>>() };
    // SAFETY: takes nothing and returns a number; the C library may cache the parent's pid.
    child.inside = unsafe { libc::syscall(libc::SYS_getpid) } as i32;
    // Closed now and not on exec: a working directory such as /proc/self/fd/5 would lead to one of
    // our descriptors.
    child.failed = Some(exec_command(child, 0));
    127
}

/// All steps up to `execve(2)`; returns the one that failed with its errno. `close_flags` tells
/// `close_range(2)` to close descriptors now or on exec.
fn exec_command(child: &ChildContext<'_>, close_flags: libc::c_uint) -> (Step, i32) {
    let spawn = child.spawn;
    macro_rules! check {
        ($step:expr, $call:expr) => {
            // SAFETY: plain system calls on values prepared by the parent; none of them
            // allocates, locks or writes to memory other than the child's stack.
            if unsafe { $call } < 0 {
                return ($step, errno());
            }
        };
    }
    check!(Step::Process, libc::syscall(libc::SYS_setsid));
    // SAFETY: all-zero is the empty signal set.
    let none: libc::sigset_t = unsafe { std::mem::zeroed() };
    check!(
        Step::Process,
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    );
    // SAFETY: all-zero is SIG_DFL without flags; Rust programs start with SIGPIPE ignored.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    check!(Step::Process, libc::sigaction(libc::SIGPIPE, &raw const default, std::ptr::null_mut()));
    for (target, fd) in spawn.stdio.iter().enumerate() {
        check!(Step::Process, libc::dup2(fd.as_raw_fd(), target as libc::c_int));
    }
    check!(Step::Process, libc::syscall(libc::SYS_close_range, 3, u32::MAX, close_flags));
    if spawn.terminal {
        check!(Step::Process, libc::ioctl(0, libc::TIOCSCTTY, 0));
    }
    for limit in spawn.rlimits {
        let raw = libc::rlimit64 { rlim_cur: limit.soft, rlim_max: limit.hard };
        let old: *mut libc::rlimit64 = std::ptr::null_mut();
        check!(
            Step::Rlimit,
            libc::syscall(libc::SYS_prlimit64, 0, limit.resource, &raw const raw, old)
        );
    }
    // Without an id change: root may have created a directory that the user cannot reach by name.
    let before_ids = spawn.identity.is_none();
    if before_ids {
        check!(Step::Workdir, libc::chdir(spawn.workdir.as_ptr()));
    }
    if spawn.drop_caps {
        drop_bounding_set();
    }
    if let Some(identity) = spawn.identity {
        let groups = &identity.groups;
        check!(Step::Identity, libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()));
        let (uid, gid) = (identity.uid, identity.gid);
        check!(Step::Identity, libc::syscall(libc::SYS_setresgid, gid, gid, gid));
        check!(Step::Identity, libc::syscall(libc::SYS_setresuid, uid, uid, uid));
        check!(Step::Workdir, libc::chdir(spawn.workdir.as_ptr()));
    }
    if spawn.drop_caps && !drop_all_capabilities() {
        return (Step::Identity, errno());
    }
    let mut denied = 0;
    for path in child.candidates.iter().filter(|path| !path.is_null()) {
        // SAFETY: the path and both arrays were allocated by the parent and end in zero.
        unsafe { libc::execve(*path, child.argv.as_ptr(), child.env.as_ptr()) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            // A shell continues along PATH but reports EACCES if nothing else was found.
            libc::EACCES => denied = libc::EACCES,
            other => return (Step::Exec, other),
        }
    }
    (Step::Exec, if denied == 0 { libc::ENOENT } else { denied })
}

/// Empties the capability bounding set: no program executed later gets a capability from its file.
/// Needs CAP_SETPCAP, so it comes before the user changes.
pub(crate) fn drop_bounding_set() {
    /// More than any kernel has; the kernel refuses the rest, which does no harm.
    const CAPABILITIES: libc::c_ulong = 64;
    for capability in 0..CAPABILITIES {
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

/// Empties the effective, permitted and inheritable sets; whether that succeeded. Under
/// no_new_privs a program executed by root gets no more than these.
pub(crate) fn drop_all_capabilities() -> bool {
    #[repr(C)]
    struct CapHeader {
        version: u32,
        pid: i32,
    }
    let header = CapHeader { version: 0x2008_0522, pid: 0 };
    let nothing = [0u32; 6];
    // SAFETY: version 3 of the call reads two sets of three words; both live until it returns.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, nothing.as_ptr()) == 0 }
}

fn errno() -> i32 {
    // SAFETY: the location is valid for the life of the thread; under CLONE_VM it is our
    // parent's, which is suspended.
    unsafe { *libc::__errno_location() }
}
