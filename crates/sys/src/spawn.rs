//! Starting a command without copying the address space.
//!
//! The child shares our memory until it execs (CLONE_VM|CLONE_VFORK), so everything it needs is
//! made before, and it does nothing but system calls.

use crate::process::pointers;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Who the command runs as.
#[derive(Debug, Clone)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// The other groups.
    pub groups: Vec<u32>,
}

/// A resource limit by the kernel's number.
#[derive(Debug, Clone, Copy)]
pub struct RawRlimit {
    /// The kernel's number of it.
    pub resource: u32,
    /// What holds now.
    pub soft: u64,
    /// How far it may be raised.
    pub hard: u64,
}

/// A command that is about to start.
#[derive(Debug)]
pub struct Spawn<'a> {
    /// Paths to try, in order, as a shell tries PATH.
    pub candidates: &'a [CString],
    /// Program and arguments.
    pub argv: &'a [CString],
    /// The whole environment.
    pub env: &'a [CString],
    /// Descriptors 0, 1 and 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Whether descriptor 0 becomes the controlling terminal.
    pub terminal: bool,
    /// Where it starts.
    pub workdir: &'a CStr,
    /// Who it runs as; none stays as we are.
    pub identity: Option<&'a Identity>,
    /// Resource limits.
    pub rlimits: &'a [RawRlimit],
    /// Give up every capability, for good.
    pub powerless: bool,
}

/// What failed in the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Making the process, its session or its descriptors.
    Process,
    /// A resource limit.
    Rlimit,
    /// Becoming the user.
    Identity,
    /// Entering the working directory.
    Workdir,
    /// Executing the program.
    Exec,
}

/// A command that did not start.
#[derive(Debug)]
pub struct Failed {
    /// What failed.
    pub step: Step,
    /// What the kernel said.
    pub error: io::Error,
}

/// Enough for the few frames below; the child never returns into deeper code.
const STACK: usize = 64 << 10;

struct Child<'a> {
    spawn: &'a Spawn<'a>,
    /// Its pid as it sees it itself.
    inside: i32,
    candidates: Vec<*const libc::c_char>,
    argv: Vec<*const libc::c_char>,
    env: Vec<*const libc::c_char>,
    failed: Option<(Step, i32)>,
}

/// A command that was started, by its pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// As we see it.
    pub pid: i32,
    /// As it sees itself: children may be born into another pid namespace.
    pub inside: i32,
}

/// Starts the command and returns its pid once it has executed the program.
///
/// The caller has one thread and keeps its own descriptors 0 to 2 open.
pub fn spawn(spawn: &Spawn<'_>) -> Result<Started, Failed> {
    let mut child = Child::new(spawn);
    let mut stack = vec![0u128; STACK / size_of::<u128>()];
    // SAFETY: one past the end of the allocation, aligned to 16 bytes as the ABI asks.
    let top = unsafe { stack.as_mut_ptr().add(stack.len()) };
    let argument = (&raw mut child).cast::<libc::c_void>();
    // SAFETY: CLONE_VFORK suspends us until the child has exec'd or exited, so `child`, `stack`
    // and all they point to outlive the child's use of them, and nobody else touches them.
    let pid = unsafe {
        libc::clone(
            enter_child,
            top.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
            argument,
        )
    };
    if pid < 0 {
        return Err(Failed { step: Step::Process, error: io::Error::last_os_error() });
    }
    match child.failed {
        None => Ok(Started { pid, inside: child.inside }),
        Some((step, errno)) => {
            let mut status = 0;
            // SAFETY: waits for the child just made; the status is written to our variable.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            Err(Failed { step, error: io::Error::from_raw_os_error(errno) })
        }
    }
}

/// Becomes the command; returns only if that failed. Descriptors beyond the standard streams are
/// closed by the program that is executed: the process that waits for that sees the last of ours close then.
/// So the working directory is one that only this process has named.
///
/// For a forked child that never returns to its caller.
pub fn replace(spawn: &Spawn<'_>) -> Failed {
    let (step, errno) = become_command(&Child::new(spawn), libc::CLOSE_RANGE_CLOEXEC);
    Failed { step, error: io::Error::from_raw_os_error(errno) }
}

impl<'a> Child<'a> {
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
    // SAFETY: `spawn` passes a pointer to its own Child and is suspended while we use it.
    let child = unsafe { &mut *argument.cast::<Child<'_>>() };
    // SAFETY: takes nothing and returns a number; the C library might remember our parent's.
    child.inside = unsafe { libc::syscall(libc::SYS_getpid) } as i32;
    // Now, not when the program is executed: a working directory such as /proc/self/fd/5 is wherever
    // that leads, and the descriptors are still ours.
    child.failed = Some(become_command(child, 0));
    127
}

/// Every step up to exec; returns what failed. `closing` is how `close_range` takes what lies beyond
/// the standard streams: at once, or when the program is executed.
fn become_command(child: &Child<'_>, closing: libc::c_uint) -> (Step, i32) {
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
    check!(Step::Process, libc::syscall(libc::SYS_close_range, 3, u32::MAX, closing));
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
    // Before the ids change: root may have made a directory that the user cannot reach by name.
    let early = spawn.identity.is_none();
    if early {
        check!(Step::Workdir, libc::chdir(spawn.workdir.as_ptr()));
    }
    if spawn.powerless {
        empty_bounding_set();
    }
    if let Some(identity) = spawn.identity {
        let groups = &identity.groups;
        check!(Step::Identity, libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()));
        let (uid, gid) = (identity.uid, identity.gid);
        check!(Step::Identity, libc::syscall(libc::SYS_setresgid, gid, gid, gid));
        check!(Step::Identity, libc::syscall(libc::SYS_setresuid, uid, uid, uid));
        check!(Step::Workdir, libc::chdir(spawn.workdir.as_ptr()));
    }
    if spawn.powerless && !give_up_capabilities() {
        return (Step::Identity, errno());
    }
    let mut denied = 0;
    for path in child.candidates.iter().filter(|path| !path.is_null()) {
        // SAFETY: the path and both arrays were made by the parent and end in zero.
        unsafe { libc::execve(*path, child.argv.as_ptr(), child.env.as_ptr()) };
        match errno() {
            libc::ENOENT | libc::ENOTDIR => {}
            // A shell goes on along PATH but remembers that something was there.
            libc::EACCES => denied = libc::EACCES,
            other => return (Step::Exec, other),
        }
    }
    (Step::Exec, if denied == 0 { libc::ENOENT } else { denied })
}

/// No program executed later gets a capability from its file. Needs one itself, so it comes
/// before the user changes.
pub(crate) fn empty_bounding_set() {
    /// More than any kernel has; the rest is refused and does not matter.
    const CAPABILITIES: libc::c_ulong = 64;
    for capability in 0..CAPABILITIES {
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) };
    }
}

/// Empties the sets that count; whether that went well. Under no_new_privs a program of root's gets
/// no more than these.
pub(crate) fn give_up_capabilities() -> bool {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    let header = Header { version: 0x2008_0522, pid: 0 };
    let nothing = [0u32; 6];
    // SAFETY: version 3 of the call reads two sets of three words; both live until it returns.
    unsafe { libc::syscall(libc::SYS_capset, &raw const header, nothing.as_ptr()) == 0 }
}

fn errno() -> i32 {
    // SAFETY: the location is valid for the life of the thread; under CLONE_VM it is our
    // parent's, which is suspended.
    unsafe { *libc::__errno_location() }
}
