//! Commands of the guest: spawning, signalling and reaping them.

use crate::oom::OomScore;
use crate::session;
use crate::users::{self, UserError};
use msb_spec::{Rlimit, RlimitName, TermSize, UserRef};
use msb_sys::process::{c_string, c_strings};
use msb_sys::spawn::{Identity, RawRlimit, Spawn, SpawnError, Step};
use msb_wire::{FromGuest, SpawnFailure};
use rustix::fs::{Gid, Uid};
use rustix::pty::OpenptFlags;
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A request of the worker to spawn a command.
pub(crate) struct SpawnRequest {
    pub(crate) argv: Vec<String>,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) workdir: String,
    pub(crate) user: Option<UserRef>,
    pub(crate) tty: Option<TermSize>,
    pub(crate) rlimits: Vec<Rlimit>,
}

/// Running commands by pid, with the worker's Exec number for each.
pub(crate) struct Commands {
    running: HashMap<i32, u64>,
    /// Pid of the image's init, if there is one; its exit is reported as well.
    init: Option<i32>,
    main: Option<u64>,
    /// Execs with sessions that are killed when they exit.
    session_owners: BTreeSet<u64>,
    drop_caps: bool,
    homes: users::RootHome,
    /// Our OOM score, which commands inherit while it is raised.
    oom: Option<OomScore>,
    /// Pids of children that serve files and streams.
    servers: BTreeSet<i32>,
}

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

type StartError = (SpawnFailure, i32);

impl Commands {
    /// No commands yet. With `drop_caps` they get no capabilities.
    pub(crate) fn new(drop_caps: bool, oom: Option<OomScore>) -> Self {
        Self {
            running: HashMap::new(),
            init: None,
            main: None,
            session_owners: BTreeSet::new(),
            drop_caps,
            homes: users::RootHome::default(),
            oom,
            servers: BTreeSet::new(),
        }
    }

    /// Adds a child that serves files or a stream. It is killed if something inside stops it.
    pub(crate) fn add_server(&mut self, pid: Option<i32>) {
        self.servers.extend(pid);
    }

    /// Kills server children that something inside has stopped, because clients outside would wait
    /// for ever.
    pub(crate) fn kill_stopped_servers(&self) {
        use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        for pid in self.servers.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            if let Ok(Some(_)) = waitid(WaitId::Pid(pid), stopped) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Whether commands get no capabilities.
    pub(crate) fn drops_caps(&self) -> bool {
        self.drop_caps
    }

    /// Sets the pid of the init, so that its exit is reported.
    pub(crate) fn set_init(&mut self, init: Option<i32>) {
        self.init = init;
    }

    /// Starts a command. Returns the reply, and our side of its terminal if it has one.
    pub(crate) fn start(
        &mut self,
        id: u64,
        request: &SpawnRequest,
        fds: &[OwnedFd],
    ) -> (FromGuest, Option<OwnedFd>) {
        match self.try_start(id, request, fds) {
            Ok((pid, terminal)) => (FromGuest::Started { id, pid }, terminal),
            Err((failure, errno)) => {
                self.session_owners.remove(&id);
                (FromGuest::Failed { id, failure, errno }, None)
            }
        }
    }

    /// The sandbox ends with this command.
    pub(crate) fn set_main(&mut self, id: u64) {
        self.main = Some(id);
    }

    /// Kills what this command leaves in its session when it exits.
    pub(crate) fn kill_session_after(&mut self, id: u64) {
        self.session_owners.insert(id);
    }

    /// Whether the main command has exited.
    pub(crate) fn is_main_done(&self) -> bool {
        self.main.is_some_and(|main| !self.running.values().any(|id| *id == main))
    }

    fn try_start(
        &mut self,
        id: u64,
        request: &SpawnRequest,
        fds: &[OwnedFd],
    ) -> Result<(u32, Option<OwnedFd>), StartError> {
        let user = match request.user.as_ref().filter(|user| !user.is_root()) {
            None => None,
            Some(user) => Some(users::find(user).map_err(|none| match none {
                UserError::Unknown => (SpawnFailure::User, 0),
                UserError::OnlyRoot => (SpawnFailure::OnlyRoot, 0),
            })?),
        };
        let terminal = request.tty.map(TerminalPair::open).transpose()?;
        let stdio = match (&terminal, fds) {
            (Some(terminal), _) => [terminal.command_side.as_fd(); 3],
            (None, [stdin, stdout, stderr]) => [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()],
            _ => return Err((SpawnFailure::Process, libc::EBADF)),
        };
        let mut env = request.env.clone();
        if !env.iter().any(|(name, _)| name == "HOME") {
            let home = user.as_ref().map_or_else(|| self.homes.get(), |user| user.home.clone());
            env.push(("HOME".to_owned(), home));
        }
        let bad = |_| (SpawnFailure::Process, libc::EINVAL);
        let spawn = Spawn {
            candidates: &candidates(request, &env).map_err(bad)?,
            argv: &c_strings(&request.argv).map_err(bad)?,
            env: &c_strings(env.iter().map(|(name, value)| format!("{name}={value}")))
                .map_err(bad)?,
            stdio,
            terminal: terminal.is_some(),
            workdir: &c_string(request.workdir.as_bytes()).map_err(bad)?,
            identity: user.as_ref().map(|user| &user.identity),
            rlimits: &request.rlimits.iter().map(raw_rlimit).collect::<Vec<_>>(),
            drop_caps: self.drop_caps,
        };
        if let Some(user) = &user {
            chown_streams(&stdio, &user.identity);
        }
        let started = OomScore::with_raised(self.oom.as_ref(), || msb_sys::spawn::spawn(&spawn));
        let started = started.map_err(|failed| spawn_failure(&failed))?;
        self.running.insert(started.pid, id);
        Ok((started.inside.cast_unsigned(), terminal.map(|terminal| terminal.host_side)))
    }

    /// Signals the process group of a command.
    pub(crate) fn signal(&self, id: u64, signal: i32) {
        for (pid, _) in self.running.iter().filter(|(_, running)| **running == id) {
            let _ = msb_sys::signal::send(-pid, signal);
        }
    }

    /// Signals the process group of every command.
    pub(crate) fn signal_each(&self, signal: i32) {
        for pid in self.running.keys() {
            let _ = msb_sys::signal::send(-pid, signal);
        }
    }

    /// Reaps everything that has exited; exits of commands are returned, those of orphans are not.
    /// `proc` is the guest's own /proc, if the mounted one shows another pid namespace.
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
                if self.session_owners.remove(&id) {
                    session::kill(pid, proc);
                }
                exited.push(FromGuest::Exited { id, code, signal, alone: false, hit: None });
            }
            waited = rustix::process::wait(options);
        }
        // ECHILD: no child is left. Orphans are our children too.
        if let Some(FromGuest::Exited { alone, .. }) = exited.last_mut() {
            *alone = matches!(waited, Err(rustix::io::Errno::CHILD));
        }
        exited
    }
}

/// Lets the user open its streams by name, as in /dev/stdout. If that is refused, the streams still
/// work.
fn chown_streams(stdio: &[BorrowedFd<'_>; 3], identity: &Identity) {
    for stream in stdio {
        let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
        let _ = rustix::fs::fchown(stream, Some(uid), Some(gid));
    }
}

/// Paths to try, by the rules of PATH.
fn candidates(request: &SpawnRequest, env: &[(String, String)]) -> std::io::Result<Vec<CString>> {
    let program = request.argv.first().map_or("", String::as_str);
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

pub(crate) fn raw_rlimit(limit: &Rlimit) -> RawRlimit {
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

fn spawn_failure(failed: &SpawnError) -> StartError {
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

/// A new pseudoterminal: the command has one side, the worker the other.
struct TerminalPair {
    host_side: OwnedFd,
    command_side: OwnedFd,
}

impl TerminalPair {
    fn open(size: TermSize) -> Result<Self, StartError> {
        let open = || -> rustix::io::Result<Self> {
            let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
            let host_side = rustix::pty::openpt(flags)?;
            rustix::pty::unlockpt(&host_side)?;
            let command_side = rustix::pty::ioctl_tiocgptpeer(&host_side, flags)?;
            let size = rustix::termios::Winsize {
                ws_row: size.rows,
                ws_col: size.cols,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            rustix::termios::tcsetwinsize(&host_side, size)?;
            Ok(Self { host_side, command_side })
        };
        open().map_err(|error| (SpawnFailure::Process, error.raw_os_error()))
    }
}
