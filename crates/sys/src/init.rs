//! The duties of PID 1 of a container: reap orphans, forward signals, end with the program.
//!
//! PID 1 inherits every process whose parent has exited, and the kernel drops signals that it does
//! not handle. So a program that finds itself as PID 1 forks: the child is the program, and the
//! parent does nothing but these duties.

use crate::process;
use std::io;
use std::time::{Duration, Instant};

/// Time that orphans get after SIGTERM when the program has exited. The workers of sandboxes need
/// less; the kernel kills what is left when PID 1 exits.
const ORPHAN_LIMIT: Duration = Duration::from_secs(5);

/// Forks if this process is PID 1. Returns `None` where the program is to go on, and the exit code
/// of the program in PID 1. The caller must have one thread.
pub fn fork_if_init() -> io::Result<Option<u8>> {
    if std::process::id() != 1 {
        return Ok(None);
    }
    let before = block_all()?;
    match process::fork_child()? {
        None => {
            // SAFETY: the set was filled by the kernel; a null old set is allowed.
            unsafe {
                libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
            };
            Ok(None)
        }
        Some(program) => Ok(Some(serve(program))),
    }
}

fn all_signals() -> libc::sigset_t {
    // SAFETY: all-zero is a valid sigset_t.
    let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: fills a set that lives until the call returns.
    unsafe { libc::sigfillset(&raw mut all) };
    all
}

/// Blocks every signal, and returns those that were blocked before.
fn block_all() -> io::Result<libc::sigset_t> {
    let all = all_signals();
    // SAFETY: all-zero is a valid sigset_t.
    let mut before: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: reads one set and writes another; both live until the call returns.
    match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before) } {
        0 => Ok(before),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Reaps and forwards until the program has exited.
fn serve(program: i32) -> u8 {
    let code = loop {
        if let Some(code) = reap(program) {
            break code;
        }
        let Some((signal, sender)) = next_signal(None) else { continue };
        // A terminal signals the program itself, which is in the same process group.
        if signal != libc::SIGCHLD && sender != libc::SI_KERNEL {
            let _ = crate::signal::send(program, signal);
        }
    };
    let since = Instant::now();
    let _ = crate::signal::send(-1, libc::SIGTERM);
    let _ = crate::signal::send(-1, libc::SIGCONT);
    while has_children() && since.elapsed() < ORPHAN_LIMIT {
        next_signal(Some(ORPHAN_LIMIT.saturating_sub(since.elapsed())));
        reap(program);
    }
    code
}

/// Reaps every process that has exited; the exit code of the program if it is one of them.
fn reap(program: i32) -> Option<u8> {
    let mut code = None;
    loop {
        let mut status = 0;
        // SAFETY: the kernel writes one int, which lives until the call returns.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
        if pid <= 0 {
            return code;
        }
        if pid == program {
            code = Some(match libc::WIFSIGNALED(status) {
                true => 128 + libc::WTERMSIG(status) as u8,
                false => libc::WEXITSTATUS(status) as u8,
            });
        }
    }
}

fn has_children() -> bool {
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the kernel writes one siginfo_t, which lives until the call returns.
    unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, flags) == 0 }
}

/// Waits for a signal; its number and `si_code`.
fn next_signal(limit: Option<Duration>) -> Option<(i32, i32)> {
    let all = all_signals();
    // SAFETY: all-zero is a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let limit = limit.map(|limit| libc::timespec {
        tv_sec: limit.as_secs().cast_signed(),
        tv_nsec: limit.subsec_nanos().into(),
    });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: reads a set and a timespec or null, writes a siginfo_t; all live until the call
    // returns.
    let signal = unsafe { libc::sigtimedwait(&raw const all, &raw mut info, limit) };
    (signal > 0).then_some((signal, info.si_code))
}
