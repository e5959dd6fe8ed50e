//! Signals as a descriptor, so that one loop can wait for everything.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub use libc::{
    SIGABRT, SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGPIPE, SIGPWR, SIGQUIT, SIGSTOP,
    SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};

/// Signals that arrive by reading.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Blocks these signals for the calling thread and its children to come, and collects them.
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
        // SAFETY: the kernel returned a new descriptor that nobody else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// The next signal that has arrived, if any.
    pub fn take(&self) -> Option<i32> {
        // SAFETY: all-zero is a valid signalfd_siginfo.
        let mut received: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes into `received`.
        let n = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut received).cast(), size) };
        (n == size as isize).then_some(received.ssi_signo as i32)
    }
}

/// Lets every signal through again and gives each its default meaning, as a new program expects.
pub fn reset() {
    let none = set_of(&[]);
    // SAFETY: the set is initialised; a null old set is allowed.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
    for signal in 1..=64 {
        // SAFETY: SIG_DFL is valid for every signal; the kernel refuses where it must.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Gives each signal that is ignored its default meaning, but SIGPIPE, which Rust programs ignore. Whoever
/// started us may have ignored some (`nohup`, a shell's job in the background), which programs that are executed
/// keep.
pub fn heed() {
    for signal in (1..=64).filter(|&signal| signal != SIGPIPE && is_ignored(signal)) {
        act(signal, Some(&KernelAction::default()));
    }
}

/// Whether a signal is ignored.
pub fn is_ignored(signal: i32) -> bool {
    act(signal, None).is_some_and(|now| now.call == libc::SIG_IGN)
}

/// What is done at a signal, as the kernel is told. All-zero is the default meaning.
#[repr(C)]
#[derive(Default)]
struct KernelAction {
    call: usize,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// What was done at a signal until now, and is done from now on if that is given. Not by the C library, which keeps
/// two signals for itself and does not tell of them.
fn act(signal: i32, next: Option<&KernelAction>) -> Option<KernelAction> {
    let mut before = KernelAction::default();
    let next = next.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the kernel reads one action unless that is null, and writes one; 8 is the size of its set of signals.
    let done = unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, next, &raw mut before, size_of::<u64>())
    };
    (done == 0).then_some(before)
}

/// Ignores a signal.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Sends a signal to a process, or to everything we may signal if `pid` is -1.
pub fn send(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill touches no memory.
    let done = unsafe { libc::kill(pid, signal) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The number of a signal by name (`TERM`, `SIGTERM`, `term`) or digits.
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
    Some(match name {
        "HUP" => SIGHUP,
        "INT" => SIGINT,
        "QUIT" => SIGQUIT,
        "ABRT" => SIGABRT,
        "KILL" => SIGKILL,
        "USR1" => SIGUSR1,
        "USR2" => SIGUSR2,
        "PIPE" => SIGPIPE,
        "ALRM" => SIGALRM,
        "TERM" => SIGTERM,
        "CHLD" => SIGCHLD,
        "CONT" => SIGCONT,
        "STOP" => SIGSTOP,
        "TSTP" => SIGTSTP,
        "WINCH" => SIGWINCH,
        "PWR" => SIGPWR,
        "RTMIN" => real_time(),
        _ => return None,
    })
}

/// The first of the signals that programs give a meaning, as the C library counts.
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
