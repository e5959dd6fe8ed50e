//! A worker with a fake guest on the other end of its link, fake clients and a manual clock.

use crate::client::{ClientConn, ClientRole};
use crate::clients::CALLER;
use crate::clock::Clock;
use crate::clock::manual::ManualClock;
use crate::gateway_link::GatewayLink;
use crate::guest::{Guest, GuestTransport, JailLink};
use crate::guest_process::GuestProcess;
use crate::worker::{Worker, WorkerParts};
use msb_jail::ProcessDir;
use msb_jail::cgroup::SandboxCgroup;
use msb_spec::{
    Command, Error, Exit, Hostname, Ids, ImageRef, Isolation, Limits, Name, PLAN_VERSION, Plan,
    Profile, Restart, Result, Rootfs, Security, Upper, state,
};
use msb_sys::signal::Signals;
use msb_sys::socket::{self, DescriptorSocket};
use msb_wire::record::{Event, EventKind, ExecRecord};
use msb_wire::{
    ClientError, ClientMessage, FrameKind, FramedSocket, FromGuest, Head, MAX_REQUEST, Reply,
    Request, SpawnFailure, StopResult, ToGuest, WorkerClient, WorkerEvent, encode,
};
use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// More turns than any chain of events takes: a worker that is still busy by then spins.
const MAX_TURNS: usize = 1000;

/// A worker and everything around it.
pub(super) struct Rig {
    pub(super) worker: Worker,
    pub(super) clock: Rc<ManualClock>,
    pub(super) guest: FakeGuest,
    pub(super) clients: Vec<FakeClient>,
    directory: ScratchDirectory,
    /// The other end of what the worker takes for its listener.
    _listener: OwnedFd,
}

/// What is left of a worker that has ended.
pub(super) struct EndedRig {
    pub(super) outcome: StopResult,
    pub(super) clients: Vec<FakeClient>,
    /// Numbers of the Execs that were recorded as started, in order.
    pub(super) started: Vec<u64>,
    /// The Execs that were recorded as ended, in order.
    pub(super) ended: Vec<(u64, Exit)>,
    /// Starts and ends of Execs in the event log, in order: the number, and whether it has ended.
    pub(super) exec_events: Vec<(u64, bool)>,
}

/// A Plan of the `process` tier without anything optional.
pub(crate) fn plan() -> Plan {
    let name = Name::parse("web").unwrap();
    Plan {
        version: PLAN_VERSION,
        hostname: Hostname::of(&name),
        name,
        created: 0,
        isolation: Isolation::Process,
        isolation_reason: None,
        image: ImageRef::Host,
        snapshot: None,
        image_digest: None,
        rootfs: Rootfs { overlays: Vec::new(), own: 0, upper: Upper::Memory { size: 0 } },
        machine: None,
        ids: Ids::Single { uid: 0, gid: 0 },
        labels: BTreeMap::new(),
        env: BTreeMap::new(),
        workdir: "/".to_owned(),
        user: None,
        shell: "/bin/sh".to_owned(),
        init: None,
        network: None,
        mounts: Vec::new(),
        workspace: None,
        tmpfs: Vec::new(),
        limits: Limits::default(),
        rlimits: Vec::new(),
        security: Security { profile: Profile::Default, allow_userns: false, allow_setid: false },
        max_duration: None,
        idle_timeout: None,
        idle_pause: None,
        restart: Restart::No,
        health: None,
        ephemeral: false,
        spawn: None,
        family: None,
        patches: Vec::new(),
        command: None,
    }
}

/// A command without options.
pub(super) fn command() -> Command {
    Command { argv: vec!["/bin/true".to_owned()], ..Command::default() }
}

impl Rig {
    /// A worker whose guest runs. A main command of the Plan is started, for client 0.
    pub(super) fn new(plan: Plan) -> Self {
        Self::with_gateway(plan, None)
    }

    /// Like [`Rig::new`], with a gateway at the other end of `control`.
    pub(super) fn with_gateway(plan: Plan, control: Option<OwnedFd>) -> Self {
        let directory = ScratchDirectory::new();
        let clock = Rc::new(ManualClock::new());
        let (process, pidfd) = UnixStream::pair().unwrap();
        let (link, theirs) = socket::pair().unwrap();
        let killed = Rc::new(Cell::new(false));
        let fake = FakeProcess {
            pidfd: pidfd.into(),
            killed: Rc::clone(&killed),
            processes: ProcessDir::Missing,
        };
        let transport = GuestTransport::Jail(JailLink::new(theirs));
        let (listener, other_end) = socket::pair().unwrap();
        let mut worker = Worker::new(WorkerParts {
            plan,
            directory: directory.0.clone(),
            guest: Guest::new(Box::new(fake), transport),
            gateway: control.map(|socket| GatewayLink::new(socket, &directory.0).unwrap()),
            listener,
            signals: Signals::collect(&[]).unwrap(),
            clock: Rc::clone(&clock) as Rc<dyn Clock>,
            last_event: Head::first(),
            last_exec: 0,
        });
        worker.lifetime.fully_created = true;
        let (caller, stream) = FakeClient::pair();
        let mut conn = ClientConn::new(stream, ClientRole::Owner, clock.now());
        conn.reply(&Reply::Ready);
        worker.clients.insert(CALLER, conn);
        worker.start_main();
        let guest = FakeGuest::new(link, process, killed);
        let mut rig =
            Self { worker, clock, guest, clients: vec![caller], directory, _listener: other_end };
        rig.settle();
        rig
    }

    /// Connects a client with this request. Returns its index.
    pub(super) fn request(&mut self, request: &Request) -> usize {
        let (mut client, stream) = FakeClient::pair();
        client.send(&ClientMessage::Hello(request));
        self.worker.add_client(stream);
        self.clients.push(client);
        self.clients.len() - 1
    }

    /// Requests an Exec and lets everything settle. Returns the client's index.
    pub(super) fn exec(&mut self, command: Command) -> usize {
        let client = self.request(&Request::Exec(command));
        self.settle();
        client
    }

    pub(super) fn is_over(&self) -> bool {
        self.worker.lifetime.outcome.is_some()
    }

    /// One turn of the loop without waiting, then guest and clients read. Returns whether anything
    /// was ready.
    pub(super) fn turn(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        let mut busy = false;
        self.worker.turn(|worker| {
            let ready = worker.poll_within(Some(Duration::ZERO));
            busy = !ready.is_empty();
            ready
        });
        busy |= self.guest.receive();
        self.clients.iter_mut().for_each(FakeClient::receive);
        busy
    }

    /// Turns the loop until nothing is ready and no timer is due.
    pub(super) fn settle(&mut self) {
        for _ in 0..MAX_TURNS {
            let due = self.worker.next_deadline().is_some_and(|at| at <= self.clock.now());
            if !self.turn() && !due || self.is_over() {
                return;
            }
        }
        panic!("the loop does not come to rest");
    }

    /// Advances the clock, and lets everything settle.
    pub(super) fn advance(&mut self, span: Duration) {
        self.clock.advance(span);
        self.settle();
    }

    /// Advances the clock to each timer of the next `span` in turn.
    pub(super) fn advance_by_timers(&mut self, span: Duration) {
        let end = self.clock.now() + span;
        while let Some(at) = self.worker.next_deadline().filter(|at| *at <= end && !self.is_over())
        {
            self.clock.advance_to(at);
            self.settle();
        }
        self.clock.advance_to(end);
        self.settle();
    }

    /// Ends the worker as after its loop; its loop must be over.
    pub(super) fn end(self) -> EndedRig {
        let Self { worker, mut clients, directory, guest, .. } = self;
        let outcome = worker.lifetime.outcome.expect("the loop is over");
        let lock = File::create(directory.0.join("lock")).unwrap();
        worker.end(&lock, Vec::new());
        drop(guest);
        clients.iter_mut().for_each(FakeClient::receive);
        let (mut started, mut ended) = (Vec::new(), Vec::new());
        for line in lines(&directory.0.join(state::EXECS)) {
            match serde_json::from_str(&line).unwrap() {
                ExecRecord::Started { exec, .. } => started.push(exec),
                ExecRecord::Ended { exec, exit, .. } => ended.push((exec, exit)),
            }
        }
        let events = lines(&directory.0.join(state::EVENTS)).into_iter();
        let exec_events = events.filter_map(|line| {
            match serde_json::from_str::<Event>(&line).unwrap().happened {
                EventKind::ExecStarted { exec, .. } => Some((exec, false)),
                EventKind::ExecEnded { exec, .. } => Some((exec, true)),
                _ => None,
            }
        });
        let exec_events = exec_events.collect();
        EndedRig { outcome, clients, started, ended, exec_events }
    }

    /// Stops the sandbox without a grace period, and ends the worker.
    pub(super) fn stop(mut self) -> EndedRig {
        self.request(&Request::Stop { grace: 0 });
        self.settle();
        assert!(self.is_over(), "a stop without grace ends the loop");
        self.end()
    }
}

fn lines(path: &std::path::Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// A process that only has a pidfd.
#[derive(Debug)]
struct FakeProcess {
    pidfd: OwnedFd,
    killed: Rc<Cell<bool>>,
    processes: ProcessDir,
}

impl GuestProcess for FakeProcess {
    fn pid(&self) -> u32 {
        1
    }

    fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn wait_started(&mut self) -> Result<()> {
        Ok(())
    }

    fn send_kill(&self) {
        self.killed.set(true);
    }

    fn wait_exited(&self) {}

    fn exit_status(&self) -> Option<i32> {
        None
    }

    fn group(&self) -> Option<&SandboxCgroup> {
        None
    }

    fn processes(&self) -> &ProcessDir {
        &self.processes
    }

    fn tmpfs_mounts(&self) -> &[OwnedFd] {
        &[]
    }

    fn sized_upper(&self) -> Option<&OwnedFd> {
        None
    }

    fn console(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn close_console(&mut self) {}
}

/// How far a command of the fake guest is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandState {
    Requested,
    Running,
    Exited,
}

/// A command of the fake guest.
#[derive(Debug)]
pub(super) struct FakeCommand {
    pub(super) state: CommandState,
    pub(super) tty: bool,
    /// Our ends of stdin, stdout and stderr, or one end of the terminal.
    streams: Vec<OwnedFd>,
}

/// The guest's end of the link. It does only what tests tell it.
#[derive(Debug)]
pub(super) struct FakeGuest {
    link: Option<FramedSocket<DescriptorSocket>>,
    process: UnixStream,
    killed: Rc<Cell<bool>>,
    pub(super) commands: BTreeMap<u64, FakeCommand>,
    /// Signals for commands, in order.
    pub(super) signals: Vec<(u64, i32)>,
    /// Signals for all processes, in order.
    pub(super) signals_to_all: Vec<i32>,
    /// Requests to pause (true) or resume that have no answer yet.
    pub(super) pauses: VecDeque<bool>,
}

impl FakeGuest {
    fn new(link: OwnedFd, process: UnixStream, killed: Rc<Cell<bool>>) -> Self {
        rustix::io::ioctl_fionbio(&link, true).unwrap();
        Self {
            link: Some(FramedSocket::new(link.into(), MAX_REQUEST)),
            process,
            killed,
            commands: BTreeMap::new(),
            signals: Vec::new(),
            signals_to_all: Vec::new(),
            pauses: VecDeque::new(),
        }
    }

    /// Reads requests of the worker. Returns whether anything has happened.
    fn receive(&mut self) -> bool {
        if self.link.is_some() && self.killed.get() {
            self.die();
            return true;
        }
        let mut any = false;
        while let Some(link) = &mut self.link {
            let Ok(Some(frame)) = link.read_frame_only(&mut [0; 4096]) else { break };
            let streams = std::mem::take(&mut link.socket_mut().fds);
            any = true;
            match frame.value().unwrap() {
                ToGuest::Exec { id, tty, .. } => {
                    let (state, tty) = (CommandState::Requested, tty.is_some());
                    let before = self.commands.insert(id, FakeCommand { state, tty, streams });
                    assert!(before.is_none(), "two Execs with the number {id}");
                }
                ToGuest::Signal { id, signal } => self.signals.push((id, signal)),
                ToGuest::SignalAll { signal } => self.signals_to_all.push(signal),
                ToGuest::Pause => self.pauses.push_back(true),
                ToGuest::Resume => self.pauses.push_back(false),
                _ => {}
            }
        }
        any
    }

    /// Commands in this state, by number.
    pub(super) fn ids(&self, state: CommandState) -> Vec<u64> {
        let commands = self.commands.iter().filter(|(_, command)| command.state == state);
        commands.map(|(id, _)| *id).collect()
    }

    /// Sends a message, true or not, with descriptors.
    pub(super) fn send(&mut self, message: &FromGuest, fds: &[BorrowedFd<'_>]) {
        if let Some(link) = &self.link {
            let frame = encode(FrameKind::Control, message);
            let _ = socket::send_all(link.socket().as_fd(), &frame, fds);
        }
    }

    /// Sends bytes that need not be a message.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) {
        if let Some(link) = &self.link {
            let _ = socket::send_all(link.socket().as_fd(), bytes, &[]);
        }
    }

    /// Starts a requested command; one on a terminal sends its descriptor.
    pub(super) fn start(&mut self, id: u64) {
        let command = self.commands.get_mut(&id).expect("a command that was requested");
        command.state = CommandState::Running;
        let message = FromGuest::Started { id, pid: 100 + id as u32 };
        if command.tty {
            let (ours, theirs) = UnixStream::pair().unwrap();
            command.streams = vec![ours.into()];
            self.send(&message, &[theirs.as_fd()]);
        } else {
            self.send(&message, &[]);
        }
    }

    /// Reports that a requested command cannot be started.
    pub(super) fn fail(&mut self, id: u64) {
        let command = self.commands.get_mut(&id).expect("a command that was requested");
        (command.state, command.streams) = (CommandState::Exited, Vec::new());
        self.send(&FromGuest::Failed { id, failure: SpawnFailure::NotFound, errno: 2 }, &[]);
    }

    /// Ends a command; with `left`, another process keeps its output open.
    pub(super) fn exit(&mut self, id: u64, code: i32, left: bool) {
        let command = self.commands.get_mut(&id).expect("a command that was started");
        command.state = CommandState::Exited;
        if !left {
            command.streams.clear();
        }
        let (code, signal) = (Some(code), None);
        self.send(&FromGuest::Exited { id, code, signal, alone: !left, hit: None }, &[]);
    }

    /// Writes to the stdout or terminal of a command, if it is open.
    pub(super) fn write(&mut self, id: u64, bytes: &[u8]) {
        let Some(command) = self.commands.get(&id) else { return };
        let stream = if command.tty { command.streams.first() } else { command.streams.get(1) };
        if let Some(stream) = stream {
            let _ = rustix::io::write(stream, bytes);
        }
    }

    /// Closes the streams of a command, as the last process that has them does.
    pub(super) fn close_streams(&mut self, id: u64) {
        if let Some(command) = self.commands.get_mut(&id) {
            command.streams.clear();
        }
    }

    /// Bytes that wait in the stdin of a command; `None` at its end.
    pub(super) fn read_stdin(&mut self, id: u64) -> Option<Vec<u8>> {
        let stdin = self.commands[&id].streams.first()?;
        rustix::io::ioctl_fionbio(stdin, true).unwrap();
        let mut buffer = vec![0; 4096];
        match rustix::io::read(stdin, &mut buffer) {
            Ok(0) => None,
            Ok(n) => Some(buffer[..n].to_vec()),
            Err(rustix::io::Errno::AGAIN) => Some(Vec::new()),
            Err(error) => panic!("{error}"),
        }
    }

    /// Answers the oldest request to pause or resume.
    pub(super) fn answer_pause(&mut self, succeeds: bool) {
        if let Some(pause) = self.pauses.pop_front() {
            self.send(&FromGuest::Paused { paused: pause == succeeds }, &[]);
        }
    }

    /// The guest process exits.
    pub(super) fn die(&mut self) {
        self.link = None;
        self.commands.values_mut().for_each(|command| command.streams.clear());
        let _ = self.process.shutdown(Shutdown::Both);
    }
}

/// A client that checks the order of what it gets.
#[derive(Debug)]
pub(super) struct FakeClient {
    stream: Option<UnixStream>,
    protocol: WorkerClient,
    pub(super) events: Vec<WorkerEvent>,
    pub(super) refused: Option<Error>,
    /// The worker has closed the connection.
    pub(super) closed: bool,
}

impl FakeClient {
    fn pair() -> (Self, OwnedFd) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let (protocol, events) = (WorkerClient::default(), Vec::new());
        let client = Self { stream: Some(ours), protocol, events, refused: None, closed: false };
        (client, theirs.into())
    }

    pub(super) fn send(&mut self, message: &ClientMessage<'_>) {
        self.send_raw(&message.encode());
    }

    pub(super) fn send_raw(&mut self, bytes: &[u8]) {
        if let Some(stream) = &mut self.stream {
            // A worker that has closed takes no more.
            let _ = stream.write_all(bytes);
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    pub(super) fn disconnect(&mut self) {
        self.stream = None;
    }

    fn receive(&mut self) {
        let mut buffer = [0; 4096];
        while let Some(stream) = self.stream.as_mut().filter(|_| !self.closed) {
            match stream.read(&mut buffer) {
                Ok(0) => self.closed = true,
                Ok(n) => self.protocol.receive(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The worker closed without reading everything.
                Err(_) => self.closed = true,
            }
        }
        loop {
            match self.protocol.next_event() {
                Ok(None) if self.closed => {
                    return self.protocol.receive_end().expect("no frame is cut off");
                }
                Ok(None) => return,
                Ok(Some(event)) => self.events.push(event),
                Err(ClientError::Refused(error)) => {
                    assert!(self.refused.replace(error).is_none(), "refused twice");
                }
                Err(error) => panic!("the worker broke the protocol: {error}: {:?}", self.events),
            }
        }
    }

    /// How the command has ended for this client: its exit, or why there is none.
    pub(super) fn exit(&self) -> Option<Exit> {
        self.events.iter().find_map(|event| match event {
            WorkerEvent::Exited(exit) => Some(*exit),
            _ => None,
        })
    }

    pub(super) fn started(&self) -> Option<u64> {
        self.events.iter().find_map(|event| match event {
            WorkerEvent::Started { id, .. } => Some(*id),
            _ => None,
        })
    }

    /// The answer to a request that is no Exec.
    pub(super) fn reply(&self) -> Option<&Reply> {
        self.events.iter().find_map(|event| match event {
            WorkerEvent::Reply(reply) => Some(reply),
            _ => None,
        })
    }

    /// All output so far, of both streams.
    pub(super) fn output(&self) -> Vec<u8> {
        let output = self.events.iter().filter_map(|event| match event {
            WorkerEvent::Stdout(bytes) | WorkerEvent::Stderr(bytes) => Some(&bytes[..]),
            _ => None,
        });
        output.collect::<Vec<_>>().concat()
    }

    /// Whether the last word was said: an exit, another answer or a refusal.
    pub(super) fn is_answered(&self) -> bool {
        self.exit().is_some() || self.reply().is_some() || self.refused.is_some()
    }
}

/// A directory of one test, removed at its end.
struct ScratchDirectory(PathBuf);

impl ScratchDirectory {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("msb-worker-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
