//! The image's own init: PID 1 of what is inside, and a child of the guest.
//!
//! The guest is one pid namespace above it. It lets the init begin, asks it to end in the language
//! that it understands, and tells how it ended; all that is inside has ended with it then.

use crate::commands;
use crate::link::Link;
use crate::users;
use msb_spec::InitProgram;
use msb_sys::process::{c_string, c_strings};
use msb_sys::signal::{self, SIGTERM, SIGUSR2};
use msb_sys::spawn::{Spawn, Step};
use msb_wire::{Decoder, FrameKind, Handover, InitFailure, MAX_FROM_GUEST, ToGuest, encode};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// What the guest has of the init to be.
#[derive(Debug)]
pub struct Beside {
    /// Its pid, as the guest sees it.
    pub pid: i32,
    /// The way to it until it is the image's program.
    pub turn: OwnedFd,
    /// /proc as the guest sees it; inside there is another.
    pub proc: OwnedFd,
}

/// An init, or who will be it.
#[derive(Debug)]
pub(crate) struct Init {
    pub(crate) pid: i32,
    proc: OwnedFd,
    turn: Option<OwnedFd>,
    stop_signal: Option<i32>,
}

/// What inits understand as the wish to end, by the name of their program. Whoever is not among
/// them gets SIGTERM: s6-svscan, openrc-init, dinit and tini want it, and most scripts.
const LANGUAGES: [(&str, Language); 5] = [
    // systemd(1): starts halt.target; SIGTERM would only have it execute itself again.
    ("systemd", Language::RealTime(3)),
    // busybox and finit: power off; SIGTERM is a reboot to them.
    ("busybox", Language::Signal(SIGUSR2)),
    ("finit", Language::Signal(SIGUSR2)),
    // runsvdir(8): SIGTERM leaves the services behind, SIGHUP ends them.
    ("runsvdir", Language::Signal(signal::SIGHUP)),
    // runit(8) looks whether it is to stop.
    ("runit", Language::Signal(signal::SIGCONT)),
];

#[derive(Clone, Copy)]
enum Language {
    Signal(i32),
    RealTime(i32),
}

impl Init {
    pub(crate) fn new(beside: Beside) -> Self {
        let Beside { pid, turn, proc } = beside;
        Self { pid, proc, turn: Some(turn), stop_signal: None }
    }

    /// /proc as the guest sees it.
    pub(crate) fn proc(&self) -> &OwnedFd {
        &self.proc
    }

    /// Lets it become the image's program; why it could not.
    pub(crate) fn hand_over(&mut self, handover: Handover) -> Option<InitFailure> {
        self.stop_signal = handover.stop_signal;
        let gone = Some(InitFailure::Process { errno: libc::ESRCH });
        let Some(turn) = self.turn.take() else { return gone };
        let asked = encode(FrameKind::Control, &ToGuest::Init(handover));
        if msb_sys::socket::send_all(turn.as_fd(), &asked, &[]).is_err() {
            return gone;
        }
        // Until it executes the program it is ours, and says why it could not; then this is closed.
        let mut said = Vec::new();
        let limit = MAX_FROM_GUEST as u64;
        let read = UnixStream::from(turn).take(limit).read_to_end(&mut said);
        if read.is_ok() && said.is_empty() {
            return None;
        }
        let mut decoder = Decoder::new(MAX_FROM_GUEST);
        decoder.push(&said);
        decoder.next_frame().ok().flatten().and_then(|frame| frame.value().ok()).or(gone)
    }

    /// Whether it is the image's program by now.
    pub(crate) fn is_up(&self) -> bool {
        self.turn.is_none()
    }

    /// Asks it to end, with everything that it started.
    pub(crate) fn ask_to_end(&self) {
        let signal = self.stop_signal.unwrap_or_else(|| self.language());
        let _ = signal::send(self.pid, signal);
    }

    /// By what it is now: a script may have become something else since it began.
    fn language(&self) -> i32 {
        let program = rustix::fs::readlinkat(&self.proc, format!("{}/exe", self.pid), Vec::new());
        let program = program.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let name = last(&program);
        let known = LANGUAGES.iter().find(|(known, _)| *known == name);
        match known.map(|(_, language)| *language) {
            Some(Language::Signal(_)) if name == "busybox" && !self.is_called_init() => SIGTERM,
            Some(Language::Signal(signal)) => signal,
            Some(Language::RealTime(offset)) => signal::real_time() + offset,
            None => SIGTERM,
        }
    }

    /// Whether it goes by the name: busybox is many programs, and the shell of a script that is
    /// PID 1 waits for nothing but SIGTERM, if for anything.
    fn is_called_init(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = format!("{}/cmdline", self.pid);
        let Ok(file) = rustix::fs::openat(&self.proc, path, flags, Mode::empty()) else {
            return false;
        };
        let mut line = Vec::new();
        let _ = fs::File::from(file).take(4096).read_to_end(&mut line);
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut words = line.split('\0').map(last);
        match words.next() {
            Some("busybox") => words.next() == Some("init"),
            first => matches!(first, Some("init" | "linuxrc")),
        }
    }
}

fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Is PID 1 inside until told what to become, and becomes that. Returns the exit code if it could
/// not.
///
/// The process has one thread; all descriptors but these lead nowhere.
pub fn become_init(turn: OwnedFd, console: &OwnedFd) -> i32 {
    let mut link = Link::new(turn);
    let Some((ToGuest::Init(handover), _)) = link.next() else { return 125 };
    let failure = match find(&handover) {
        Ok(program) => execute(&program, &handover, console),
        Err(failure) => failure,
    };
    let said = encode(FrameKind::Control, &failure);
    let _ = msb_sys::socket::send_all(link.socket().as_fd(), &said, &[]);
    126
}

/// The path of the program, looked for where nothing but the sandbox can be seen.
fn find(handover: &Handover) -> Result<String, InitFailure> {
    for path in &handover.candidates {
        let found = fs::canonicalize(path);
        let refused = |errno: i32| InitFailure::NotExecutable { path: path.clone(), errno };
        let end = match found {
            Ok(end) => end,
            Err(_) if handover.guessed => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(InitFailure::NotFound);
            }
            Err(error) => return Err(refused(error.raw_os_error().unwrap_or(libc::EIO))),
        };
        if !is_program(&end) {
            if handover.guessed {
                continue;
            }
            return Err(refused(libc::EACCES));
        }
        if !handover.systemd && InitProgram::is_systemd(&end.to_string_lossy()) {
            return Err(InitFailure::Systemd { path: path.clone() });
        }
        return Ok(path.clone());
    }
    Err(InitFailure::None)
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Becomes the program, by the name that it was found by: busybox is what it is called.
fn execute(program: &str, handover: &Handover, console: &OwnedFd) -> InitFailure {
    let broken = |errno: i32| InitFailure::Process { errno };
    let Ok(null) = fs::File::open("/dev/null") else { return broken(libc::ENODEV) };
    let mut env = handover.env.clone();
    if !env.iter().any(|(name, _)| name == "HOME") {
        env.push(("HOME".to_owned(), users::Homes::default().of_root()));
    }
    let words = [program.to_owned()].into_iter().chain(handover.args.iter().cloned());
    let (candidates, argv, env, workdir) = (
        c_strings([program]),
        c_strings(words),
        c_strings(env.iter().map(|(name, value)| format!("{name}={value}"))),
        c_string(b"/"),
    );
    let (Ok(candidates), Ok(argv), Ok(env), Ok(workdir)) = (candidates, argv, env, workdir) else {
        return broken(libc::EINVAL);
    };
    let rlimits: Vec<_> = handover.rlimits.iter().map(commands::raw).collect();
    let failed = msb_sys::spawn::replace(&Spawn {
        candidates: &candidates,
        argv: &argv,
        env: &env,
        stdio: [null.as_fd(), console.as_fd(), console.as_fd()],
        terminal: false,
        workdir: &workdir,
        identity: None,
        rlimits: &rlimits,
        powerless: handover.restricted,
    });
    let errno = failed.error.raw_os_error().unwrap_or(libc::EIO);
    match failed.step {
        Step::Exec => InitFailure::NotExecutable { path: program.to_owned(), errno },
        _ => broken(errno),
    }
}
