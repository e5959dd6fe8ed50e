//! Signals by `signalfd(2)`, so that one poll loop waits for everything.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub use libc::{
    SIGABRT, SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGPWR, SIGQUIT, SIGSTOP,
    SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};

/// Linux signal numbers with their names. Real-time signals have numbers alone.
pub const NAMES: [(i32, &str); 22] = [
    (SIGHUP, "HUP"),
    (SIGINT, "INT"),
    (SIGQUIT, "QUIT"),
    (libc::SIGILL, "ILL"),
    (libc::SIGTRAP, "TRAP"),
    (SIGABRT, "ABRT"),
    (libc::SIGBUS, "BUS"),
    (libc::SIGFPE, "FPE"),
    (SIGKILL, "KILL"),
    (SIGUSR1, "USR1"),
    (libc::SIGSEGV, "SEGV"),
    (SIGUSR2, "USR2"),
    (SIGPIPE, "PIPE"),
    (SIGALRM, "ALRM"),
    (SIGTERM, "TERM"),
    (SIGCHLD, "CHLD"),
    (SIGCONT, "CONT"),
    (SIGSTOP, "STOP"),
    (SIGTSTP, "TSTP"),
    (libc::SIGXCPU, "XCPU"),
    (SIGWINCH, "WINCH"),
    (SIGPWR, "PWR"),
];

/// Signals that are read from a signalfd.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks these signals for the calling thread and its later children, and opens a signalfd for
    /// them.
    pub fn collect(signals: &[i32]) -> io::Result<Self> {
        let set = set_of(signals);
        // SAFETY: the set is initialised; a null old set is allowed.
        if unsafe { libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) } != 0
        {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the set is initialised; -1 asks for a new descriptor.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel returned a new descriptor that has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Descriptor that is readable when a signal has arrived.
    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Number of the next signal that has arrived; `None` if there is none.
    pub fn take(&self) -> Option<i32> {
        // SAFETY: all-zero is a valid signalfd_siginfo.
        let mut received: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes into `received`.
        let n = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut received).cast(), size) };
        (n == size as isize).then_some(received.ssi_signo as i32)
    }
}

/// Unblocks all signals and sets their default action, as a new program expects.
pub fn reset() {
    let none = set_of(&[]);
    // SAFETY: the set is initialised; a null old set is allowed.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is valid for every signal; the kernel refuses where it must.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Sets ignored signals back to their default action, but for SIGPIPE, which Rust programs ignore.
/// The parent may have ignored some (`nohup`, background jobs of a shell), and `execve(2)` keeps
/// ignored signals ignored.
pub fn reset_ignored_signals() {
    for signal in (1..=64).filter(|&signal| signal != SIGPIPE && is_ignored(signal)) {
        rt_sigaction(signal, Some(&KernelSigaction::default()));
    }
}

/// Whether a signal is ignored by this process.
pub fn is_ignored(signal: i32) -> bool {
    rt_sigaction(signal, None).is_some_and(|now| now.handler == libc::SIG_IGN)
}

/// The kernel's `sigaction`. All-zero is the default action.
#[repr(C)]
#[derive(Default)]
struct KernelSigaction {
    handler: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Returns the previous action and sets `next` if given. A raw system call: the C library reserves
/// two signals and hides them.
fn rt_sigaction(signal: i32, next: Option<&KernelSigaction>) -> Option<KernelSigaction> {
    let mut before = KernelSigaction::default();
    let next = next.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads one action unless it is null, and writes one; 8 is the size of its
    // signal set.
    let done = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, next, &raw mut before, size_of::<u64>())
    };
    (done == 0).then_some(before)
}

/// Sets a signal to be ignored (`SIG_IGN`).
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Sends a signal to a process, or to all that this one may signal if `pid` is -1.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill touches no memory.
    let done = unsafe { libc::kill(pid, signal) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Parses a signal name (`TERM`, `SIGTERM`, `term`, `RTMIN+3`) or a number from 1 to 64.
pub fn parse(text: &str) -> Option<i32> {
    if let Ok(number) = text.parse::<i32>() {
        return (1..=64).contains(&number).then_some(number);
    }
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some(offset) = name.strip_prefix("RTMIN+") {
        let number = real_time().checked_add(offset.parse().ok()?)?;
        return (number <= 64).then_some(number);
    }
    if name == "RTMIN" {
        return Some(real_time());
    }
    NAMES.iter().find(|(_, known)| *known == name).map(|(number, _)| *number)
}

/// `SIGRTMIN`: the first real-time signal, as the C library counts.
pub fn real_time() -> i32 {
    libc::SIGRTMIN()
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: all-zero is an empty set; every signal added is a valid number.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in signals {
            libc::sigaddset(&raw mut set, *signal);
        }
        set
    }
}
