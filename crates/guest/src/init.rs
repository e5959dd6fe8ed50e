//! The image's own init: PID 1 of a nested pid namespace, and a child of the guest.
//!
//! The guest starts it, stops it with the signal that its program expects, and reports its exit.
//! Everything inside dies with it.

use crate::commands;
use crate::users;
use crate::worker_link::WorkerLink;
use msb_spec::InitProgram;
use msb_sys::process::{c_string, c_strings};
use msb_sys::signal::{self, SIGTERM, SIGUSR2};
use msb_sys::spawn::{Spawn, Step};
use msb_wire::{FrameKind, FramedSocket, Handover, InitFailure, MAX_FROM_GUEST, ToGuest, encode};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// The process that will become the init.
#[derive(Debug)]
pub struct PendingInit {
    /// Its pid in the guest's namespace.
    pub pid: i32,
    /// Socket to it, until it executes the image's program.
    pub start_pipe: OwnedFd,
    /// The guest's own /proc; a different one is mounted inside.
    pub proc: OwnedFd,
}

/// The image's init, started or not.
#[derive(Debug)]
pub(crate) struct InitProcess {
    pub(crate) pid: i32,
    proc: OwnedFd,
    start_pipe: Option<OwnedFd>,
    stop_signal: Option<i32>,
}

/// Signals that shut an init down, by the name of its program. Others get SIGTERM, which s6-svscan,
/// openrc-init, dinit, tini and most scripts expect.
const SHUTDOWN_SIGNALS: [(&str, ShutdownSignal); 5] = [
    // systemd(1): starts halt.target; SIGTERM would only re-execute it.
    ("systemd", ShutdownSignal::RealTime(3)),
    // busybox and finit power off; SIGTERM makes them reboot.
    ("busybox", ShutdownSignal::Signal(SIGUSR2)),
    ("finit", ShutdownSignal::Signal(SIGUSR2)),
    // runsvdir(8): SIGHUP stops the services, SIGTERM leaves them running.
    ("runsvdir", ShutdownSignal::Signal(signal::SIGHUP)),
    // runit(8) checks on SIGCONT whether it has to stop.
    ("runit", ShutdownSignal::Signal(signal::SIGCONT)),
];

#[derive(Clone, Copy)]
enum ShutdownSignal {
    Signal(i32),
    RealTime(i32),
}

impl InitProcess {
    pub(crate) fn new(pending: PendingInit) -> Self {
        let PendingInit { pid, start_pipe, proc } = pending;
        Self { pid, proc, start_pipe: Some(start_pipe), stop_signal: None }
    }

    /// The guest's own /proc.
    pub(crate) fn proc(&self) -> &OwnedFd {
        &self.proc
    }

    /// Executes the image's program. Returns the failure, if there was one.
    pub(crate) fn start(&mut self, handover: Handover) -> Option<InitFailure> {
        self.stop_signal = handover.stop_signal;
        let gone = Some(InitFailure::Process { errno: libc::ESRCH });
        let Some(start_pipe) = self.start_pipe.take() else { return gone };
        let asked = encode(FrameKind::Control, &ToGuest::Init(handover));
        if msb_sys::socket::send_all(start_pipe.as_fd(), &asked, &[]).is_err() {
            return gone;
        }
        // The process closes the socket by execve, or sends why that has failed.
        let mut reply = FramedSocket::new(UnixStream::from(start_pipe), MAX_FROM_GUEST);
        match reply.read_frame(&mut [0; 4096]) {
            Ok(None) => None,
            Ok(Some(frame)) => frame.value().ok().or(gone),
            Err(_) => gone,
        }
    }

    /// Whether it has executed the image's program.
    pub(crate) fn is_running(&self) -> bool {
        self.start_pipe.is_none()
    }

    /// Sends it the signal to shut down, with everything that it started.
    pub(crate) fn stop(&self) {
        let signal = self.stop_signal.unwrap_or_else(|| self.shutdown_signal());
        let _ = signal::send(self.pid, signal);
    }

    /// The signal for its current program, because a script may have executed another one.
    fn shutdown_signal(&self) -> i32 {
        let program = rustix::fs::readlinkat(&self.proc, format!("{}/exe", self.pid), Vec::new());
        let program = program.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        let name = file_name(&program);
        let known = SHUTDOWN_SIGNALS.iter().find(|(known, _)| *known == name);
        match known.map(|(_, shutdown_signal)| *shutdown_signal) {
            Some(ShutdownSignal::Signal(_)) if name == "busybox" && !self.is_named_init() => {
                SIGTERM
            }
            Some(ShutdownSignal::Signal(signal)) => signal,
            Some(ShutdownSignal::RealTime(offset)) => signal::real_time() + offset,
            None => SIGTERM,
        }
    }

    /// Whether it runs as init. busybox is many programs, and a shell as PID 1 reacts to SIGTERM
    /// only, if at all.
    fn is_named_init(&self) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let path = format!("{}/cmdline", self.pid);
        let Ok(file) = rustix::fs::openat(&self.proc, path, flags, Mode::empty()) else {
            return false;
        };
        let mut line = Vec::new();
        let _ = fs::File::from(file).take(4096).read_to_end(&mut line);
        let line = String::from_utf8_lossy(&line).into_owned();
        let mut names = line.split('\0').map(file_name);
        match names.next() {
            Some("busybox") => names.next() == Some("init"),
            first => matches!(first, Some("init" | "linuxrc")),
        }
    }
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Waits as PID 1 inside for the program to execute, and executes it. Returns the exit code on
/// failure.
///
/// The process must have one thread; its other descriptors are closed or lead to /dev/null.
pub fn become_init(start_pipe: OwnedFd, console: &OwnedFd) -> i32 {
    let mut link = WorkerLink::new(start_pipe);
    let Some((ToGuest::Init(handover), _)) = link.next() else { return 125 };
    let failure = match find(&handover) {
        Ok(program) => execute(&program, &handover, console),
        Err(failure) => failure,
    };
    let reply = encode(FrameKind::Control, &failure);
    let _ = msb_sys::socket::send_all(link.socket(), &reply, &[]);
    126
}

/// Finds the program, by paths that are resolved inside the sandbox.
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

/// Executes the program by the path that was found: busybox acts by its name.
fn execute(program: &str, handover: &Handover, console: &OwnedFd) -> InitFailure {
    let broken = |errno: i32| InitFailure::Process { errno };
    let Ok(null) = fs::File::open("/dev/null") else { return broken(libc::ENODEV) };
    let mut env = handover.env.clone();
    if !env.iter().any(|(name, _)| name == "HOME") {
        env.push(("HOME".to_owned(), users::RootHome::default().get()));
    }
    let args = [program.to_owned()].into_iter().chain(handover.args.iter().cloned());
    let (candidates, argv, env, workdir) = (
        c_strings([program]),
        c_strings(args),
        c_strings(env.iter().map(|(name, value)| format!("{name}={value}"))),
        c_string(b"/"),
    );
    let (Ok(candidates), Ok(argv), Ok(env), Ok(workdir)) = (candidates, argv, env, workdir) else {
        return broken(libc::EINVAL);
    };
    let rlimits: Vec<_> = handover.rlimits.iter().map(commands::raw_rlimit).collect();
    let failed = msb_sys::spawn::replace(&Spawn {
        candidates: &candidates,
        argv: &argv,
        env: &env,
        stdio: [null.as_fd(), console.as_fd(), console.as_fd()],
        terminal: false,
        workdir: &workdir,
        identity: None,
        rlimits: &rlimits,
        drop_caps: handover.restricted,
    });
    let errno = failed.error.raw_os_error().unwrap_or(libc::EIO);
    match failed.step {
        Step::Exec => InitFailure::NotExecutable { path: program.to_owned(), errno },
        _ => broken(errno),
    }
}
