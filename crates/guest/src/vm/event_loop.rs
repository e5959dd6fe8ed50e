//! The poll loop of a microVM's guest, with one thread.

use super::control_conn::ControlConn;
use super::exec_conn::{CHUNK, ExecFd, VmExec};
use super::layer_export::{self, OverlayChanges};
use crate::commands::{Commands, SpawnRequest};
use crate::files;
use crate::init::InitProcess;
use crate::links::{self, Listeners, StreamKind, StreamUser};
use crate::oom::OomScore;
use msb_spec::{Rlimit, UserRef};
use msb_sys::signal::Signals;
use msb_sys::socket::NonblockingSocket;
use msb_wire::{
    FrameKind, FramedSocket, FromGuest, FromMachine, HEADER, Hit, InitFailure, LinkFailure,
    MAX_REQUEST, MachineUsage, SPARE_CONNECTIONS, ToGuest, ToMachine, header,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Delay before a failed connection is retried, so that a busy worker is not flooded.
const RETRY: Duration = Duration::from_millis(100);
/// After the exit of the main command was reported, the worker has this long to close.
const EXIT_LIMIT: Duration = Duration::from_secs(2);
/// The environment of the loop: the microVM, or a fake in tests.
pub(super) trait VmEnv {
    /// Opens another connection to the worker.
    fn connect(&mut self) -> io::Result<OwnedFd>;
    /// Signals every process but the guest.
    fn signal_all(&mut self, signal: i32);
    /// The image's init, started or not.
    fn init(&mut self) -> Option<&mut InitProcess>;
    /// A limit that was reached since the last call.
    fn hit(&mut self) -> Option<Hit>;
    /// Resource use of the microVM.
    fn usage(&mut self) -> MachineUsage;
    /// Default limit of open files for a command.
    fn open_files(&self) -> Rlimit;
    /// Freezes or thaws the writable disk. Returns whether it is frozen.
    fn hold(&mut self, hold: bool) -> bool;
    /// Cgroup of file operations.
    fn group(&self) -> Option<BorrowedFd<'_>>;
    /// Changes of earlier sandboxes, if the microVM exists to export them.
    fn written(&self) -> Option<&[OverlayChanges]>;
}

/// Why the loop has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopEnd {
    /// The worker has requested a power-off.
    Asked,
    /// The main command has exited.
    LastExec,
    /// The worker has closed the control connection.
    WorkerGone,
}

/// State of the loop: connections, commands and listeners.
pub(super) struct EventLoop<'a, G> {
    env: &'a mut G,
    control: ControlConn,
    signals: Signals,
    commands: Commands,
    hello: Vec<u8>,
    spare_conns: Vec<SpareConn>,
    retry: Option<Instant>,
    execs: Vec<VmExec>,
    listeners: Listeners,
    buffer: Vec<u8>,
    exit_deadline: Option<Instant>,
}

/// A connection that waits for its first frame.
struct SpareConn {
    /// None once it is in use or has failed.
    socket: Option<FramedSocket<NonblockingSocket>>,
    up: bool,
}

impl SpareConn {
    fn new(socket: OwnedFd) -> Self {
        Self { socket: Some(FramedSocket::new(socket.into(), MAX_REQUEST)), up: false }
    }

    /// What to poll for.
    fn wait(&self) -> Option<PollFd<'_>> {
        let wanted = if self.up { PollFlags::IN } else { PollFlags::OUT };
        self.socket.as_ref().map(|socket| PollFd::new(socket.socket(), wanted))
    }

    /// Sends the token, then returns the first frame once it is complete.
    fn advance(&mut self, hello: &[u8], buffer: &mut [u8]) -> io::Result<Option<ToGuest>> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        if !self.up {
            rustix::net::sockopt::socket_error(socket.socket())??;
            socket.enqueue(hello);
            socket.flush()?;
            // A new connection has room for this.
            if socket.unsent() > 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.up = true;
            return Ok(None);
        }
        // Stops at the end of the first frame: the rest may be for another process.
        match socket.read_frame_only(buffer) {
            Ok(Some(frame)) => {
                frame.value().map(Some).map_err(|_| io::ErrorKind::InvalidData.into())
            }
            Ok(None) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// What a poll result belongs to, with indexes of the lists.
#[derive(Clone, Copy)]
enum LoopSource {
    Control,
    Signals,
    Spare(usize),
    Exec(usize, ExecFd),
}

impl<'a, G: VmEnv> EventLoop<'a, G> {
    /// Creates the loop and opens spare connections, which begin with `token`.
    pub(super) fn new(
        env: &'a mut G,
        control: ControlConn,
        signals: Signals,
        restricted: bool,
        token: &[u8],
    ) -> Self {
        let mut hello = header(FrameKind::Hello, token.len()).to_vec();
        hello.extend_from_slice(token);
        let mut event_loop = Self {
            env,
            control,
            signals,
            commands: Commands::new(restricted, OomScore::open(None)),
            hello,
            spare_conns: Vec::new(),
            retry: None,
            execs: Vec::new(),
            listeners: Listeners::default(),
            buffer: vec![0; HEADER + CHUNK],
            exit_deadline: None,
        };
        event_loop.open_spares();
        event_loop
    }

    /// The control connection to the worker.
    pub(super) fn control(&mut self) -> &mut ControlConn {
        &mut self.control
    }

    /// The environment of the loop.
    pub(super) fn env(&mut self) -> &mut G {
        self.env
    }

    /// Runs until the microVM has to end.
    pub(super) fn run(&mut self) -> LoopEnd {
        loop {
            self.open_spares();
            for (source, happened) in self.wait() {
                match source {
                    LoopSource::Control => {
                        if let Some(end) = self.read_control() {
                            return end;
                        }
                    }
                    LoopSource::Signals => self.reap(),
                    LoopSource::Spare(index) => self.advance_spare(index),
                    LoopSource::Exec(index, side) => self.advance_exec(index, side, happened),
                }
            }
            if self.finish_execs() {
                return LoopEnd::LastExec;
            }
        }
    }

    /// Polls, and returns what is ready.
    fn wait(&self) -> Vec<(LoopSource, PollFlags)> {
        let mut sources = vec![LoopSource::Control, LoopSource::Signals];
        let mut waits = vec![
            PollFd::from_borrowed_fd(self.control.socket(), PollFlags::IN),
            PollFd::new(self.signals.fd(), PollFlags::IN),
        ];
        for (index, conn) in self.spare_conns.iter().enumerate() {
            if let Some(wait) = conn.wait() {
                sources.push(LoopSource::Spare(index));
                waits.push(wait);
            }
        }
        for (index, exec) in self.execs.iter().enumerate() {
            for (side, fd, wanted) in exec.waits() {
                sources.push(LoopSource::Exec(index, side));
                waits.push(PollFd::from_borrowed_fd(fd, wanted));
            }
        }
        let silent = self.execs.iter().filter_map(VmExec::drain_deadline);
        let limit = self.retry.into_iter().chain(self.exit_deadline).chain(silent).min();
        let limit = limit.map(|limit| {
            let left = limit.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
        });
        // An interrupted poll leaves all flags empty.
        let _ = poll(&mut waits, limit.as_ref());
        let happened = waits.iter().map(PollFd::revents);
        sources.into_iter().zip(happened).filter(|(_, happened)| !happened.is_empty()).collect()
    }

    /// Keeps the number of spare connections.
    fn open_spares(&mut self) {
        if self.retry.is_some_and(|retry| retry > Instant::now()) {
            return;
        }
        self.retry = None;
        while self.spare_conns.len() < SPARE_CONNECTIONS {
            match self.env.connect() {
                Ok(socket) => self.spare_conns.push(SpareConn::new(socket)),
                Err(_) => {
                    self.retry = Some(Instant::now() + RETRY);
                    return;
                }
            }
        }
    }

    /// Handles messages on the control connection.
    fn read_control(&mut self) -> Option<LoopEnd> {
        if !self.control.receive() {
            return Some(LoopEnd::WorkerGone);
        }
        loop {
            let request = match self.control.next() {
                Ok(Some(request)) => request,
                Ok(None) => return None,
                Err(_) => return Some(LoopEnd::WorkerGone),
            };
            match request {
                ToMachine::SignalAll { signal } => {
                    match self.env.init().filter(|init| init.is_running()) {
                        // The init stops what it has started.
                        Some(init) => {
                            init.stop();
                            self.commands.signal_each(signal);
                        }
                        None => self.env.signal_all(signal),
                    }
                }
                ToMachine::Init(handover) => {
                    let failure = match self.env.init() {
                        Some(init) => {
                            self.commands.set_init(Some(init.pid));
                            init.start(handover)
                        }
                        None => Some(InitFailure::Process { errno: libc::ESRCH }),
                    };
                    self.control.send(&FromMachine::Init { failure });
                    // It may have exited before its pid was set.
                    self.reap();
                }
                ToMachine::Signal { id, signal } => self.commands.signal(id, signal),
                ToMachine::PowerOff => return Some(LoopEnd::Asked),
                ToMachine::Measure => {
                    let usage = self.env.usage();
                    self.control.send(&FromMachine::Usage(usage));
                }
                hold @ (ToMachine::Hold | ToMachine::Release) => {
                    let held = self.env.hold(hold == ToMachine::Hold);
                    self.control.send(&FromMachine::Held { held });
                }
            }
        }
    }

    fn reap(&mut self) {
        while self.signals.take().is_some() {}
        let proc = self.env.init().map(|init| init.proc().as_fd());
        for mut exited in self.commands.reap(proc) {
            if let FromGuest::InitEnded { code, signal } = exited {
                self.control.send(&FromMachine::InitEnded { code, signal });
            }
            let FromGuest::Exited { id, hit, .. } = &mut exited else { continue };
            *hit = self.env.hit();
            let Some(exec) = self.execs.iter_mut().find(|exec| exec.id == *id) else { continue };
            exec.exited(exited);
        }
    }

    fn advance_spare(&mut self, index: usize) {
        let conn = &mut self.spare_conns[index];
        match conn.advance(&self.hello, &mut self.buffer) {
            Ok(None) => {}
            Ok(Some(request)) => {
                if let Some(socket) = conn.socket.take().and_then(FramedSocket::into_socket) {
                    self.start(socket.into(), request);
                }
            }
            Err(_) => {
                conn.socket = None;
                self.retry = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Handles the first frame of a spare connection.
    fn start(&mut self, socket: OwnedFd, request: ToGuest) {
        match request {
            ToGuest::Exec { id, argv, env, workdir, user, tty, mut rlimits, last, sweep } => {
                let open_files = self.env.open_files();
                if !rlimits.iter().any(|limit| limit.name == open_files.name) {
                    rlimits.push(open_files);
                }
                if sweep {
                    self.commands.kill_session_after(id);
                }
                let request = SpawnRequest { argv, env, workdir, user, tty, rlimits };
                self.execs.push(VmExec::start(id, &request, last, socket, &mut self.commands));
            }
            ToGuest::Files { user } => {
                // The child may block.
                let _ = rustix::io::ioctl_fionbio(&socket, false);
                // If the fork fails, the client sees the connection close.
                let _ = files::fork_vm_server(user.as_ref(), &socket, self.env.group());
            }
            ToGuest::Sftp { user } => self.fork_stream(&socket, user.as_ref(), &StreamKind::Sftp),
            ToGuest::Dial { user, to } => {
                self.fork_stream(&socket, user.as_ref(), &StreamKind::Dial(to))
            }
            ToGuest::Listen { user, at, id } => {
                let kind = match self.listeners.add(id) {
                    Ok(accepts) => StreamKind::Listen(at, accepts),
                    Err(failure) => StreamKind::Refused(failure),
                };
                self.fork_stream(&socket, user.as_ref(), &kind);
            }
            ToGuest::Accept { listener, number } => {
                let _ = rustix::io::ioctl_fionbio(&socket, false);
                if !self.listeners.pass(listener, number, &socket) {
                    self.fork_stream(&socket, None, &StreamKind::Refused(LinkFailure::Gone));
                }
            }
            ToGuest::Layer => {
                let _ = rustix::io::ioctl_fionbio(&socket, false);
                let written = self.env.written();
                let _ = files::fork_vm_writer(&socket, self.env.group(), |stream| match written {
                    Some(written) => layer_export::write(stream, written),
                    None => Err(files::protocol("export a layer: the microVM has none")),
                });
            }
            ToGuest::Signal { .. }
            | ToGuest::SignalAll { .. }
            | ToGuest::Pause
            | ToGuest::Resume
            | ToGuest::Init(_) => {}
        }
    }

    /// Serves a stream into the sandbox in a child process.
    fn fork_stream(&self, socket: &OwnedFd, user: Option<&UserRef>, kind: &StreamKind) {
        let _ = rustix::io::ioctl_fionbio(socket, false);
        let stream_user = StreamUser { name: user, drop_caps: self.commands.drops_caps() };
        // If the fork fails, the client sees the connection close.
        let _ = links::fork_vm_server(stream_user, kind, socket, self.env.group());
    }

    fn advance_exec(&mut self, index: usize, side: ExecFd, happened: PollFlags) {
        let exec = &mut self.execs[index];
        if exec.advance(side, happened, &mut self.buffer, &self.commands).is_err() {
            exec.on_closed(&self.commands);
        }
    }

    /// Sends pending data and removes finished commands; true if the sandbox has ended.
    fn finish_execs(&mut self) -> bool {
        self.spare_conns.retain(|conn| conn.socket.is_some());
        let now = Instant::now();
        for exec in &mut self.execs {
            exec.finish_if_drained(now);
            if exec.flush().is_err() {
                exec.on_closed(&self.commands);
            }
        }
        if self.exit_deadline.is_some_and(|limit| limit <= Instant::now()) {
            return true;
        }
        if self.exit_deadline.is_none()
            && self.execs.iter().any(|exec| exec.is_main && exec.is_reported())
        {
            self.exit_deadline = Some(Instant::now() + EXIT_LIMIT);
        }
        let over = self.execs.iter().any(|exec| exec.is_main && exec.is_closed());
        self.execs.retain(|exec| !exec.is_closed());
        over
    }
}
