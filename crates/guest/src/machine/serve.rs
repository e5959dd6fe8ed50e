//! The loop of a machine's guest: one thread, every wait in it.

use super::exec::{CHUNK, Exec, Side};
use super::layer::{self, Written};
use super::worker::Worker;
use crate::commands::{Asked, Commands};
use crate::files;
use crate::init::Init;
use crate::links::{self, Listeners, Wanted, Who};
use crate::oom::OomScore;
use msb_spec::{Rlimit, UserRef};
use msb_sys::signal::Signals;
use msb_wire::{
    Decoder, FrameKind, FromGuest, FromMachine, HEADER, Hit, InitFailure, LinkFailure, MAX_REQUEST,
    MachineUsage, SPARE_CONNECTIONS, ToGuest, ToMachine, header,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Before a connection that failed is tried again, so that a worker without room is not flooded.
const RETRY: Duration = Duration::from_millis(100);
/// A worker that has been told of the last end and does not close by then has lost interest.
const LAST_LIMIT: Duration = Duration::from_secs(2);
/// What is outside of the loop: the machine, or in tests what stands for it.
pub(super) trait Ground {
    /// Begins another connection to the worker.
    fn connect(&mut self) -> io::Result<OwnedFd>;
    /// Signals everything but the guest.
    fn signal_all(&mut self, signal: i32);
    /// The init that is or will be PID 1 of what is inside.
    fn init(&mut self) -> Option<&mut Init>;
    /// A limit that something has run into since this was last asked.
    fn hit(&mut self) -> Option<Hit>;
    /// How much is used.
    fn usage(&mut self) -> MachineUsage;
    /// How many files a command may have open where nobody asked for another number.
    fn open_files(&self) -> Rlimit;
    /// Lets nobody write to what is kept, or lets them again; whether nobody does.
    fn hold(&mut self, hold: bool) -> bool;
    /// Where file operations run.
    fn group(&self) -> Option<BorrowedFd<'_>>;
    /// What sandboxes wrote before, if the machine is there to tell that.
    fn written(&self) -> Option<&[Written]>;
}

/// Why the loop ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// The worker wants it so.
    Asked,
    /// The command that the sandbox ends with is over.
    LastExec,
    /// There is nobody to serve.
    WorkerGone,
}

/// Everything that the loop owns.
pub(super) struct Serving<'a, G> {
    ground: &'a mut G,
    worker: Worker,
    signals: Signals,
    commands: Commands,
    hello: Vec<u8>,
    spares: Vec<Spare>,
    retry: Option<Instant>,
    execs: Vec<Exec>,
    listeners: Listeners,
    buffer: Vec<u8>,
    last_limit: Option<Instant>,
}

/// A connection that waits for its first frame.
struct Spare {
    /// None once it has been used up or has failed.
    socket: Option<OwnedFd>,
    decoder: Decoder,
    up: bool,
}

impl Spare {
    fn new(socket: OwnedFd) -> Self {
        Self { socket: Some(socket), decoder: Decoder::new(MAX_REQUEST), up: false }
    }

    /// What to wait for.
    fn wait(&self) -> Option<PollFd<'_>> {
        let wanted = if self.up { PollFlags::IN } else { PollFlags::OUT };
        self.socket.as_ref().map(|socket| PollFd::new(socket, wanted))
    }

    /// Says whose it is, and takes the first frame once it has arrived whole.
    fn advance(&mut self, hello: &[u8], buffer: &mut [u8]) -> io::Result<Option<ToGuest>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        if !self.up {
            rustix::net::sockopt::socket_error(socket)??;
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // There is room for this much in a new connection.
            if rustix::net::send(socket, hello, flags)? != hello.len() {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.up = true;
            return Ok(None);
        }
        let malformed = |_| io::Error::from(io::ErrorKind::InvalidData);
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(malformed)? {
                return frame.value().map(Some).map_err(malformed);
            }
            // Never past the end of the first frame: what follows may be for another process.
            let wanted = self.decoder.missing().map_err(malformed)?.min(buffer.len());
            match rustix::net::recv(socket, &mut buffer[..wanted], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((_, n)) => self.decoder.push(&buffer[..n]),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Where something may happen. The numbers are places in their lists.
#[derive(Clone, Copy)]
enum Place {
    Worker,
    Signals,
    Spare(usize),
    Exec(usize, Side),
}

impl<'a, G: Ground> Serving<'a, G> {
    /// Begins to open connections; the token is what they begin with.
    pub(super) fn new(
        ground: &'a mut G,
        worker: Worker,
        signals: Signals,
        restricted: bool,
        token: &[u8],
    ) -> Self {
        let mut hello = header(FrameKind::Hello, token.len()).to_vec();
        hello.extend_from_slice(token);
        let mut serving = Self {
            ground,
            worker,
            signals,
            commands: Commands::new(restricted, OomScore::take(None)),
            hello,
            spares: Vec::new(),
            retry: None,
            execs: Vec::new(),
            listeners: Listeners::default(),
            buffer: vec![0; HEADER + CHUNK],
            last_limit: None,
        };
        serving.top_up();
        serving
    }

    /// The connection that the machine as a whole has.
    pub(super) fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// What the machine is.
    pub(super) fn ground(&mut self) -> &mut G {
        self.ground
    }

    /// Serves until there is nothing more to do.
    pub(super) fn run(&mut self) -> End {
        loop {
            self.top_up();
            for (place, happened) in self.wait() {
                match place {
                    Place::Worker => {
                        if let Some(end) = self.heed() {
                            return end;
                        }
                    }
                    Place::Signals => self.reap(),
                    Place::Spare(index) => self.advance_spare(index),
                    Place::Exec(index, side) => self.advance_exec(index, side, happened),
                }
            }
            if self.sweep() {
                return End::LastExec;
            }
        }
    }

    /// Waits, and tells where something has happened.
    fn wait(&self) -> Vec<(Place, PollFlags)> {
        let mut places = vec![Place::Worker, Place::Signals];
        let mut waits = vec![
            PollFd::new(self.worker.socket(), PollFlags::IN),
            PollFd::new(self.signals.fd(), PollFlags::IN),
        ];
        for (index, spare) in self.spares.iter().enumerate() {
            if let Some(wait) = spare.wait() {
                places.push(Place::Spare(index));
                waits.push(wait);
            }
        }
        for (index, exec) in self.execs.iter().enumerate() {
            for (side, fd, wanted) in exec.waits() {
                places.push(Place::Exec(index, side));
                waits.push(PollFd::from_borrowed_fd(fd, wanted));
            }
        }
        let silent = self.execs.iter().filter_map(Exec::silent_at);
        let limit = self.retry.into_iter().chain(self.last_limit).chain(silent).min();
        let limit = limit.map(|limit| {
            let left = limit.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
        });
        // A poll that was interrupted has said nothing, which is what the flags say too.
        let _ = poll(&mut waits, limit.as_ref());
        let happened = waits.iter().map(PollFd::revents);
        places.into_iter().zip(happened).filter(|(_, happened)| !happened.is_empty()).collect()
    }

    /// Keeps as many spare connections as there should be.
    fn top_up(&mut self) {
        if self.retry.is_some_and(|retry| retry > Instant::now()) {
            return;
        }
        self.retry = None;
        while self.spares.len() < SPARE_CONNECTIONS {
            match self.ground.connect() {
                Ok(socket) => self.spares.push(Spare::new(socket)),
                Err(_) => {
                    self.retry = Some(Instant::now() + RETRY);
                    return;
                }
            }
        }
    }

    /// What the worker says to the machine as a whole.
    fn heed(&mut self) -> Option<End> {
        if !self.worker.receive() {
            return Some(End::WorkerGone);
        }
        loop {
            let asked = match self.worker.next() {
                Ok(Some(asked)) => asked,
                Ok(None) => return None,
                Err(_) => return Some(End::WorkerGone),
            };
            match asked {
                ToMachine::SignalAll { signal } => {
                    match self.ground.init().filter(|init| init.is_up()) {
                        // What it started ends when it wants.
                        Some(init) => {
                            init.ask_to_end();
                            self.commands.signal_each(signal);
                        }
                        None => self.ground.signal_all(signal),
                    }
                }
                ToMachine::Init(handover) => {
                    let failure = match self.ground.init() {
                        Some(init) => {
                            self.commands.watch(Some(init.pid));
                            init.hand_over(handover)
                        }
                        None => Some(InitFailure::Process { errno: libc::ESRCH }),
                    };
                    self.worker.tell(&FromMachine::Init { failure });
                    // It may have ended before we watched it.
                    self.reap();
                }
                ToMachine::Signal { id, signal } => self.commands.signal(id, signal),
                ToMachine::PowerOff => return Some(End::Asked),
                ToMachine::Measure => {
                    let usage = self.ground.usage();
                    self.worker.tell(&FromMachine::Usage(usage));
                }
                hold @ (ToMachine::Hold | ToMachine::Release) => {
                    let held = self.ground.hold(hold == ToMachine::Hold);
                    self.worker.tell(&FromMachine::Held { held });
                }
            }
        }
    }

    fn reap(&mut self) {
        while self.signals.take().is_some() {}
        let proc = self.ground.init().map(|init| init.proc().as_fd());
        for mut exited in self.commands.reap(proc) {
            if let FromGuest::InitEnded { code, signal } = exited {
                self.worker.tell(&FromMachine::InitEnded { code, signal });
            }
            let FromGuest::Exited { id, hit, .. } = &mut exited else { continue };
            *hit = self.ground.hit();
            let Some(exec) = self.execs.iter_mut().find(|exec| exec.id == *id) else { continue };
            exec.exited(exited);
        }
    }

    fn advance_spare(&mut self, index: usize) {
        let spare = &mut self.spares[index];
        match spare.advance(&self.hello, &mut self.buffer) {
            Ok(None) => {}
            Ok(Some(request)) => {
                if let Some(socket) = spare.socket.take() {
                    self.start(socket, request);
                }
            }
            Err(_) => {
                spare.socket = None;
                self.retry = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Does what the first frame of a spare connection asks for, which it is no more.
    fn start(&mut self, socket: OwnedFd, request: ToGuest) {
        match request {
            ToGuest::Exec { id, argv, env, workdir, user, tty, mut rlimits, last, sweep } => {
                let open_files = self.ground.open_files();
                if !rlimits.iter().any(|limit| limit.name == open_files.name) {
                    rlimits.push(open_files);
                }
                if sweep {
                    self.commands.sweep_after(id);
                }
                let asked = Asked { argv, env, workdir, user, tty, rlimits };
                self.execs.push(Exec::start(id, &asked, last, socket, &mut self.commands));
            }
            ToGuest::Files { user } => {
                // A child that reads and writes nothing else may wait.
                let _ = rustix::io::ioctl_fionbio(&socket, false);
                // If it cannot be made, whoever asked sees the connection close.
                let _ = files::serve_aside(user.as_ref(), &socket, self.ground.group());
            }
            ToGuest::Sftp { user } => self.lead(&socket, user.as_ref(), &Wanted::Sftp),
            ToGuest::Dial { user, to } => self.lead(&socket, user.as_ref(), &Wanted::Dial(to)),
            ToGuest::Listen { user, at, id } => {
                let wanted = match self.listeners.add(id) {
                    Ok(orders) => Wanted::Listen(at, orders),
                    Err(failure) => Wanted::Refused(failure),
                };
                self.lead(&socket, user.as_ref(), &wanted);
            }
            ToGuest::Accept { listener, number } => {
                let _ = rustix::io::ioctl_fionbio(&socket, false);
                if !self.listeners.pass(listener, number, &socket) {
                    self.lead(&socket, None, &Wanted::Refused(LinkFailure::Gone));
                }
            }
            ToGuest::Layer => {
                let _ = rustix::io::ioctl_fionbio(&socket, false);
                let written = self.ground.written();
                let _ = files::give_aside(&socket, self.ground.group(), |stream| match written {
                    Some(written) => layer::write(stream, written),
                    None => Err(files::protocol("tell what was written before")),
                });
            }
            ToGuest::Signal { .. }
            | ToGuest::SignalAll { .. }
            | ToGuest::Pause
            | ToGuest::Resume
            | ToGuest::Init(_) => {}
        }
    }

    /// A stream that leads into the sandbox, in a process of its own.
    fn lead(&self, socket: &OwnedFd, user: Option<&UserRef>, wanted: &Wanted) {
        let _ = rustix::io::ioctl_fionbio(socket, false);
        let who = Who { user, powerless: self.commands.are_powerless() };
        // If it cannot be made, whoever asked sees the connection close.
        let _ = links::serve_aside(who, wanted, socket, self.ground.group());
    }

    fn advance_exec(&mut self, index: usize, side: Side, happened: PollFlags) {
        let exec = &mut self.execs[index];
        if exec.advance(side, happened, &mut self.buffer, &self.commands).is_err() {
            exec.lose(&self.commands);
        }
    }

    /// Sends what is to be sent and forgets what is over; true if the sandbox is.
    fn sweep(&mut self) -> bool {
        self.spares.retain(|spare| spare.socket.is_some());
        let now = Instant::now();
        for exec in &mut self.execs {
            exec.look(now);
            if exec.flush().is_err() {
                exec.lose(&self.commands);
            }
        }
        if self.last_limit.is_some_and(|limit| limit <= Instant::now()) {
            return true;
        }
        if self.last_limit.is_none() && self.execs.iter().any(|exec| exec.last && exec.is_told()) {
            self.last_limit = Some(Instant::now() + LAST_LIMIT);
        }
        let over = self.execs.iter().any(|exec| exec.last && exec.is_lost());
        self.execs.retain(|exec| !exec.is_lost());
        over
    }
}
