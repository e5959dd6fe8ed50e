//! The commands that run in here: started, signalled, reaped.

use crate::oom::OomScore;
use crate::session;
use crate::users::{self, NoUser};
use msb_spec::{Rlimit, RlimitName, TermSize, UserRef};
use msb_sys::process::{c_string, c_strings};
use msb_sys::spawn::{Failed, Identity, RawRlimit, Spawn, Step};
use msb_wire::{FromGuest, SpawnFailure};
use rustix::fs::{Gid, Uid};
use rustix::pty::OpenptFlags;
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What the worker asks for.
pub(crate) struct Asked {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) workdir: String,
    pub(crate) user: Option<UserRef>,
    pub(crate) tty: Option<TermSize>,
    pub(crate) rlimits: Vec<Rlimit>,
}

/// Commands by pid, with the worker's number for each.
pub(crate) struct Commands {
    running: HashMap<i32, u64>,
    /// The init, whose end is told as well.
    init: Option<i32>,
    last: Option<u64>,
    /// Those whose session ends with them.
    swept: BTreeSet<u64>,
    powerless: bool,
    homes: users::Homes,
    /// Ours, which what we start inherits.
    oom: Option<OomScore>,
    /// Children of ours that serve files and streams.
    servers: BTreeSet<i32>,
}

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

type Failure = (SpawnFailure, i32);

impl Commands {
    /// No commands yet; `powerless` ones get no capabilities.
    pub(crate) fn new(powerless: bool, oom: Option<OomScore>) -> Self {
        Self {
            running: HashMap::new(),
            init: None,
            last: None,
            swept: BTreeSet::new(),
            powerless,
            homes: users::Homes::default(),
            oom,
            servers: BTreeSet::new(),
        }
    }

    /// Has this child of ours, which is not a command, end when something inside stops it.
    pub(crate) fn add_server(&mut self, pid: Option<i32>) {
        self.servers.extend(pid);
    }

    /// Ends the children of ours that something inside has stopped: callers that wait for them outside
    /// would wait for ever.
    pub(crate) fn end_stopped_servers(&self) {
        use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        for pid in self.servers.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            if let Ok(Some(_)) = waitid(WaitId::Pid(pid), stopped) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Whether they get no capabilities.
    pub(crate) fn are_powerless(&self) -> bool {
        self.powerless
    }

    /// Tells of the end of this child too, which is not a command.
    pub(crate) fn watch(&mut self, init: Option<i32>) {
        self.init = init;
    }

    /// Starts a command; the answer, and the terminal's other end if it has one.
    pub(crate) fn start(
        &mut self,
        id: u64,
        asked: &Asked,
        fds: &[OwnedFd],
    ) -> (FromGuest, Option<OwnedFd>) {
        match self.try_start(id, asked, fds) {
            Ok((pid, terminal)) => (FromGuest::Started { id, pid }, terminal),
            Err((failure, errno)) => {
                self.swept.remove(&id);
                (FromGuest::Failed { id, failure, errno }, None)
            }
        }
    }

    /// The sandbox ends with this command.
    pub(crate) fn end_with(&mut self, id: u64) {
        self.last = Some(id);
    }

    /// What this command leaves in its session ends with it.
    pub(crate) fn sweep_after(&mut self, id: u64) {
        self.swept.insert(id);
    }

    /// Whether the command that the sandbox ends with has ended.
    pub(crate) fn are_over(&self) -> bool {
        self.last.is_some_and(|last| !self.running.values().any(|id| *id == last))
    }

    fn try_start(
        &mut self,
        id: u64,
        asked: &Asked,
        fds: &[OwnedFd],
    ) -> Result<(u32, Option<OwnedFd>), Failure> {
        let user = match asked.user.as_ref().filter(|user| !user.is_root()) {
            None => None,
            Some(user) => Some(users::find(user).map_err(|none| match none {
                NoUser::Unknown => (SpawnFailure::User, 0),
                NoUser::OnlyRoot => (SpawnFailure::OnlyRoot, 0),
            })?),
        };
        let terminal = asked.tty.map(Terminal::open).transpose()?;
        let stdio = match (&terminal, fds) {
            (Some(terminal), _) => [terminal.inner.as_fd(); 3],
            (None, [stdin, stdout, stderr]) => [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            _ => return Err((SpawnFailure::Process, libc::EBADF)),
        };
        let mut env = asked.env.clone();
        if !env.iter().any(|(name, _)| name == "HOME") {
            let home = user.as_ref().map_or_else(|| self.homes.of_root(), |user| user.home.clone());
            env.push(("HOME".to_owned(), home));
        }
        let bad = |_| (SpawnFailure::Process, libc::EINVAL);
        let spawn = Spawn {
            candidates: &candidates(asked, &env).map_err(bad)?,
            argv: &c_strings(&asked.argv).map_err(bad)?,
            env: &c_strings(env.iter().map(|(name, value)| format!("{name}={value}")))
                .map_err(bad)?,
            stdio,
            terminal: terminal.is_some(),
            workdir: &c_string(asked.workdir.as_bytes()).map_err(bad)?,
            identity: user.as_ref().map(|user| &user.identity),
            rlimits: &asked.rlimits.iter().map(raw).collect::<Vec<_>>(),
            powerless: self.powerless,
        };
        if let Some(user) = &user {
            give_streams(&stdio, &user.identity);
        }
        let started = OomScore::raised(self.oom.as_ref(), || msb_sys::spawn::spawn(&spawn));
        let started = started.map_err(|failed| told(&failed))?;
        self.running.insert(started.pid, id);
        Ok((started.inside.cast_unsigned(), terminal.map(|terminal| terminal.outer)))
    }

    /// Signals a command and everything in its session's first process group.
    pub(crate) fn signal(&self, id: u64, signal: i32) {
        for (pid, _) in self.running.iter().filter(|(_, running)| **running == id) {
            let _ = msb_sys::signal::send(-pid, signal);
        }
    }

    /// Signals every command, and nothing else.
    pub(crate) fn signal_each(&self, signal: i32) {
        for pid in self.running.keys() {
            let _ = msb_sys::signal::send(-pid, signal);
        }
    }

    /// Collects everything that has died; commands are reported, orphans are not. `proc` is where
    /// we see them, if /proc shows others.
    pub(crate) fn reap(&mut self, proc: Option<BorrowedFd<'_>>) -> Vec<FromGuest> {
        let mut exited = Vec::new();
        let options = rustix::process::WaitOptions::NOHANG;
        let mut waited = rustix::process::wait(options);
        while let Ok(Some((pid, status))) = waited {
            let pid = pid.as_raw_nonzero().get();
            let (code, signal) = (status.exit_status(), status.terminating_signal());
            self.servers.remove(&pid);
            if self.init == Some(pid) {
                self.init = None;
                exited.push(FromGuest::InitEnded { code, signal });
            }
            if let Some(id) = self.running.remove(&pid) {
                if self.swept.remove(&id) {
                    session::end(pid, proc);
                }
                exited.push(FromGuest::Exited { id, code, signal, alone: false, hit: None });
            }
            waited = rustix::process::wait(options);
        }
        // ECHILD: no child is left, and orphans are our children.
        if let Some(FromGuest::Exited { alone, .. }) = exited.last_mut() {
            *alone = matches!(waited, Err(rustix::io::Errno::CHILD));
        }
        exited
    }
}

/// Lets the user open its own streams by name, as in /dev/stdout. Where that is refused the
/// streams still work.
fn give_streams(stdio: &[BorrowedFd<'_>; 3], identity: &Identity) {
    for stream in stdio {
        let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
        let _ = rustix::fs::fchown(stream, Some(uid), Some(gid));
    }
}

/// The paths to try, as a shell would.
fn candidates(asked: &Asked, env: &[(String, String)]) -> std::io::Result<Vec<CString>> {
    let program = asked.argv.first().map_or("", String::as_str);
    if program.contains('/') {
        return c_strings([program]);
    }
    if program.is_empty() {
        return Ok(Vec::new());
    }
    let path = env.iter().rev().find(|(name, _)| name == "PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, path)| path);
    c_strings(path.split(':').map(|dir| match dir {
        "" => program.to_owned(),
        dir => format!("{dir}/{program}"),
    }))
}

pub(crate) fn raw(limit: &Rlimit) -> RawRlimit {
    let resource = match limit.name {
        RlimitName::Cpu => libc::RLIMIT_CPU,
        RlimitName::Fsize => libc::RLIMIT_FSIZE,
        RlimitName::Data => libc::RLIMIT_DATA,
        RlimitName::Stack => libc::RLIMIT_STACK,
        RlimitName::Core => libc::RLIMIT_CORE,
        RlimitName::Rss => libc::RLIMIT_RSS,
        RlimitName::Nproc => libc::RLIMIT_NPROC,
        RlimitName::Nofile => libc::RLIMIT_NOFILE,
        RlimitName::Memlock => libc::RLIMIT_MEMLOCK,
        RlimitName::As => libc::RLIMIT_AS,
        RlimitName::Locks => libc::RLIMIT_LOCKS,
        RlimitName::Sigpending => libc::RLIMIT_SIGPENDING,
        RlimitName::Msgqueue => libc::RLIMIT_MSGQUEUE,
        RlimitName::Nice => libc::RLIMIT_NICE,
        RlimitName::Rtprio => libc::RLIMIT_RTPRIO,
        RlimitName::Rttime => libc::RLIMIT_RTTIME,
    };
    let amount = |value: Option<u64>| value.unwrap_or(libc::RLIM_INFINITY);
    RawRlimit { resource, soft: amount(limit.soft), hard: amount(limit.hard) }
}

fn told(failed: &Failed) -> Failure {
    let errno = failed.error.raw_os_error().unwrap_or(libc::EIO);
    let failure = match (failed.step, errno) {
        (Step::Process, _) => SpawnFailure::Process,
        (Step::Rlimit, _) => SpawnFailure::Rlimit,
        (Step::Identity, _) => SpawnFailure::OnlyRoot,
        (Step::Workdir, _) => SpawnFailure::Workdir,
        (Step::Exec, libc::ENOENT | libc::ENOTDIR) => SpawnFailure::NotFound,
        (Step::Exec, _) => SpawnFailure::NotExecutable,
    };
    (failure, errno)
}

/// A terminal of the sandbox's own: the command has one end, the worker the other.
struct Terminal {
    outer: OwnedFd,
    inner: OwnedFd,
}

impl Terminal {
    fn open(size: TermSize) -> Result<Self, Failure> {
        let open = || -> rustix::io::Result<Self> {
            let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
            let outer = rustix::pty::openpt(flags)?;
            rustix::pty::unlockpt(&outer)?;
            let inner = rustix::pty::ioctl_tiocgptpeer(&outer, flags)?;
            let size = rustix::termios::Winsize {
                ws_row: size.rows,
                ws_col: size.cols,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            rustix::termios::tcsetwinsize(&outer, size)?;
            Ok(Self { outer, inner })
        };
        open().map_err(|error| (SpawnFailure::Process, error.raw_os_error()))
    }
}
