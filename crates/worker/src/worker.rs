//! The loop: everything that can happen to a sandbox, one thing at a time.

use crate::client::{Client, Role};
use crate::compromised;
use crate::events::Events;
use crate::exec::{Exec, Stream};
use crate::guest::Guest;
use crate::health::Health;
use crate::idle::Idle;
use crate::init::Handing;
use crate::life::Life;
use crate::log::Log;
use crate::machine::Machine;
use crate::measuring::Meter;
use crate::outward::{self, Gateway, Outward};
use crate::pausing::Pausing;
use crate::relay::Relay;
use crate::service::Service;
use crate::streams::Streams;
use msb_jail::WorkerNeeds;
use msb_spec::{Command, Ending, Error, Kind, Plan, Result, Stage, env, state};
use msb_sys::signal::{self, Signals};
use msb_sys::socket;
use msb_wire::record::Happened;
use msb_wire::{Head, Reply, Stopped};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a worker needs to begin.
#[derive(Debug)]
pub struct Start {
    /// What was decided.
    pub plan: Plan,
    /// The sandbox's directory.
    pub directory: PathBuf,
    /// The lock on it, held until we end.
    pub lock: OwnedFd,
    /// Locks on what it uses, held as long.
    pub held: Vec<OwnedFd>,
    /// Whoever starts the sandbox: told how it goes, and attached to the first command.
    pub caller: OwnedFd,
    /// Where the event log ends, so that numbers and hashes go on over a restart.
    pub last_event: Head,
    /// The number of the last Exec.
    pub last_exec: u64,
    /// The gateway, if the Plan has a network; or why there is none.
    pub gateway: Result<Option<Gateway>>,
}

/// The caller is the first client.
const CALLER: u64 = 0;
/// Descriptors are not endless; a client more waits in the listener's queue.
const CLIENT_LIMIT: usize = 512;

pub(crate) struct Worker {
    pub(crate) plan: Plan,
    pub(crate) directory: PathBuf,
    pub(crate) guest: Guest,
    pub(crate) listener: OwnedFd,
    pub(crate) signals: Signals,
    pub(crate) clients: BTreeMap<u64, Client>,
    pub(crate) next_client: u64,
    pub(crate) execs: BTreeMap<u64, Exec>,
    pub(crate) next_exec: u64,
    /// The Exec whose end is the end of the sandbox.
    pub(crate) main: Option<u64>,
    /// The first command, if it is begun again when it ends.
    pub(crate) service: Option<Service>,
    /// What tells whether the sandbox is well.
    pub(crate) health: Option<Health>,
    /// The clock that pauses it.
    pub(crate) idle: Idle,
    /// How many commands of our own there were.
    pub(crate) own_execs: u64,
    /// The first command, until the sandbox is patched.
    pub(crate) waiting: Option<Command>,
    pub(crate) life: Life,
    pub(crate) memory_seen: u64,
    pub(crate) forks_refused: u64,
    /// When commands that do not start were last looked at.
    pub(crate) start_checked: Instant,
    pub(crate) output: Log,
    pub(crate) exec_log: Log,
    pub(crate) events: Events,
    pub(crate) over: Option<Stopped>,
    /// Who waits for a main command that could not be started, and why it could not.
    pub(crate) unstarted: Vec<(u64, Error)>,
    /// Whether the sandbox is as its Plan wants it. Half a sandbox does not outlive its maker.
    pub(crate) whole: bool,
    /// For what is read, of whatever. Its pages are only there once they are used.
    pub(crate) buffer: Vec<u8>,
    /// The guest has said that nothing else is left inside.
    pub(crate) alone: bool,
    /// Until when a machine may take to be ready.
    pub(crate) booting: Option<Instant>,
    /// Nothing is written to disk any more: whoever stops it cannot wait.
    pub(crate) forced: bool,
    /// File operations in a machine, by number.
    pub(crate) relays: BTreeMap<u64, Relay>,
    /// Streams into a jail that are open.
    pub(crate) streams: Streams,
    /// How much is used, and who wants to know.
    pub(crate) meter: Meter,
    /// Who waits for the machine to pause or resume, in order; nobody if it is the idle clock.
    pub(crate) ordering: VecDeque<Option<u64>>,
    /// Who waits for a jail to stand still or to go on.
    pub(crate) pausing: VecDeque<Pausing>,
    /// Commands that wait until nobody holds everything any more.
    pub(crate) delayed: Vec<(u64, Command)>,
    /// The gateway, while there is one.
    pub(crate) outward: Option<Outward>,
    /// How far the image's own init has come.
    pub(crate) handing: Handing,
}

/// What something is ready on.
#[derive(Clone, Copy)]
pub(crate) enum Ready {
    Listener,
    Signals,
    Guest,
    GuestDead,
    Client(u64),
    Stdin(u64),
    Stream(u64, Stream),
    Gateway,
    Console,
    Control,
    Unproven(usize),
    Wired(u64),
    /// A file operation, and whether its guest's side.
    Relay(u64, bool),
}

/// Is the worker until the sandbox is over. Returns the exit code of the process.
pub fn run(start: Start) -> i32 {
    let Start { plan, directory, lock, held, caller, last_event, last_exec, gateway } = start;
    let ephemeral = plan.ephemeral;
    let first = last_event.number == 0;
    let Ok(caller) = Client::new(caller, Role::Owner) else { return 125 };
    let begun = gateway
        .and_then(|gateway| Worker::begin(plan, &directory, (last_event, last_exec), gateway));
    let begun = match begun {
        Ok(worker) => worker.greet(caller),
        Err(error) => Err(Box::new((caller, error))),
    };
    let (mut caller, error) = match begun {
        Ok(mut worker) => {
            worker.serve();
            worker.end(&File::from(lock), held);
            return 0;
        }
        Err(failed) => *failed,
    };
    let gone = if ephemeral || first { vanish(&directory) } else { None };
    if let Some(gone) = gone {
        let _ = std::fs::remove_dir_all(gone);
    }
    let_go(held);
    let _ = msb_sys::lock::release(&File::from(lock));
    caller.answer(&Reply::Failed(error));
    125
}

/// Lets go of what the sandbox used, wherever a fork has left a copy of the locks.
pub(crate) fn let_go(held: Vec<OwnedFd>) {
    for lock in held {
        let _ = msb_sys::lock::release(&File::from(lock));
    }
}

/// Frees a sandbox's name at once; what it held is at the place that is returned.
pub(crate) fn vanish(directory: &Path) -> Option<PathBuf> {
    let mut gone = directory.to_owned();
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    gone.set_file_name(format!(".gone-{name}-{}", std::process::id()));
    std::fs::rename(directory, &gone).ok().map(|()| gone)
}

impl Worker {
    /// The start of a sandbox, in order.
    fn begin(
        plan: Plan,
        directory: &Path,
        (last_event, last_exec): (Head, u64),
        gateway: Option<Gateway>,
    ) -> Result<Self> {
        let broken = |what: &str, error: std::io::Error| Error::host(what, error).at(Stage::Boot);
        // Ctrl-C at the caller's terminal is for the command, not for us.
        let _ = rustix::process::setsid();
        // Logs hold what commands said; the inside gets a umask of its own.
        rustix::process::umask(Mode::from_raw_mode(0o077));
        msb_sys::process::set_name(c"msb-worker");
        let signals =
            Signals::collect(&[signal::SIGTERM, signal::SIGINT, signal::SIGHUP, signal::SIGCHLD])
                .map_err(|error| broken("cannot collect signals", error))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(directory, flags, Mode::empty());
        let opened =
            opened.map_err(|error| broken("cannot open the sandbox's directory", error.into()))?;
        let _ = rustix::fs::unlinkat(&opened, state::SOCKET, rustix::fs::AtFlags::empty());
        let (mut outward, link) = match gateway {
            Some(Gateway { control, link }) => {
                (Some(Outward::new(control, directory)?), Some(link))
            }
            None => (None, None),
        };
        if let Some(outward) =
            outward.as_mut().filter(|_| outward::comes_first(plan.network.as_ref()))
        {
            outward.await_ready()?;
        }
        let authority = outward.as_ref().and_then(|outward| outward.authority.as_deref());
        let guest = Guest::start(&plan, directory, link.as_ref().map(AsFd::as_fd), authority)?;
        let listener = socket::listen(opened.as_fd(), state::SOCKET)
            .map_err(|error| broken("cannot listen in the sandbox's directory", error))?;
        let life = Life::begin(&plan);
        let whole = last_event.number > 0;
        let kept = !plan.ephemeral || plan.workspace.is_some();
        let waiting = plan.command.clone();
        Ok(Self {
            service: Service::new(&plan),
            health: Health::new(&plan),
            idle: Idle::new(&plan),
            own_execs: 0,
            output: Log::of_output(directory),
            exec_log: Log::of_lines(directory, state::EXECS),
            events: Events::new(directory, last_event, kept),
            plan,
            directory: directory.to_owned(),
            guest,
            listener,
            signals,
            clients: BTreeMap::new(),
            next_client: CALLER + 1,
            execs: BTreeMap::new(),
            next_exec: last_exec + 1,
            main: None,
            waiting,
            life,
            memory_seen: 0,
            forks_refused: 0,
            start_checked: Instant::now(),
            over: None,
            unstarted: Vec::new(),
            whole,
            buffer: vec![0; 64 << 10],
            alone: false,
            booting: None,
            forced: false,
            relays: BTreeMap::new(),
            streams: Streams::default(),
            meter: Meter::new(),
            ordering: VecDeque::new(),
            pausing: VecDeque::new(),
            delayed: Vec::new(),
            outward,
            handing: Handing::default(),
        })
    }

    /// Starts the first command if nothing is to be changed before it, and tells the caller that
    /// the guest runs. The command is on its way before the guest is there, so that neither waits
    /// for the other.
    fn greet(mut self, caller: Client) -> Result<Self, Box<(Client, Error)>> {
        // Before anything of the sandbox runs: whatever can fail has failed by then.
        if let Err(error) = self.confine() {
            self.guest.kill();
            return Err(Box::new((caller, error)));
        }
        if let Some(canary) = std::env::var_os(env::TEST_COMPROMISED)
            && self.guest.machine().is_none()
        {
            self.guest.kill();
            let report = compromised::report_worker(&canary, &self.directory);
            return Err(Box::new((caller, Error::new(Kind::State, report))));
        }
        self.clients.insert(CALLER, caller);
        if self.plan.patches.is_empty() && self.plan.init.is_none() {
            self.start_first();
        }
        let started = self.guest.confined.wait_started();
        // Where the gateway has failed, that is why nobody could hand it a device.
        let started = match (started, &mut self.outward) {
            (Err(error), Some(outward)) => Err(outward.failure().unwrap_or(error)),
            (started, _) => started,
        };
        let started =
            started.and_then(|()| self.outward.as_mut().map_or(Ok(()), Outward::await_ready));
        let started = started.and_then(|()| self.await_machine());
        let mut caller = self.clients.remove(&CALLER).expect("nobody else has run yet");
        // What the caller says meanwhile is for the command that comes after it.
        let started = started.and_then(|()| self.await_init());
        if let Err(error) = started {
            self.guest.kill();
            return Err(Box::new((caller, error)));
        }
        self.record(Happened::Started { worker: std::process::id() });
        if self.plan.patches.is_empty() {
            self.complete();
        }
        if self.is_quiet() {
            caller.hold(&Reply::Ready)
        } else {
            caller.reply(&Reply::Ready)
        }
        self.clients.insert(CALLER, caller);
        if self.plan.patches.is_empty() {
            self.start_first();
        }
        Ok(self)
    }

    /// What the guest sends is read from here on: nobody of our user can read our memory or take
    /// our descriptors, and we can touch nothing but our own sandbox.
    fn confine(&self) -> Result<()> {
        let hidden = rustix::process::DumpableBehavior::NotDumpable;
        rustix::process::set_dumpable_behavior(hidden)
            .map_err(|error| Error::host("cannot hide the worker's memory", error))?;
        let groups = self.plan.limits.cgroup_directories(&self.plan.name);
        let needs = WorkerNeeds {
            directory: self.directory.clone(),
            cgroups: groups.into_values().collect(),
            watches: self.guest.confined.group.as_ref().is_none_or(|group| !group.counts_all()),
        };
        msb_jail::confine_worker(&needs).map_err(|error| error.at(Stage::Boot))
    }

    /// Whether the caller waits for its command and for nothing before it.
    pub(crate) fn is_quiet(&self) -> bool {
        let waits = |command: &Command| command.tty.is_none() && !command.detached;
        self.plan.patches.is_empty() && self.plan.command.as_ref().is_some_and(waits)
    }

    /// The sandbox is as its Plan wants it.
    pub(crate) fn complete(&mut self) {
        if !self.whole {
            self.whole = true;
            let _ = std::fs::remove_file(self.directory.join(state::UNFINISHED));
            self.record(Happened::Created);
        }
    }

    pub(crate) fn start_first(&mut self) {
        if let Some(command) = self.waiting.take() {
            self.main = Some(self.next_exec);
            self.start_exec(CALLER, command);
        }
    }

    fn serve(&mut self) {
        while self.over.is_none() {
            // First, because the caller may have left before we came here.
            self.notice_who_left();
            self.clients.retain(|_, client| {
                !(client.owes_nothing() && (client.role == Role::Leaving || client.silent))
            });
            self.events.write();
            for (ready, flags) in self.wait() {
                self.handle(ready, flags);
                if self.over.is_some() {
                    return;
                }
            }
            self.look_at_clocks();
        }
    }

    /// A client whose connection has closed or broken has left; what it started may go with it.
    fn notice_who_left(&mut self) {
        let left: Vec<u64> =
            self.clients.iter().filter(|(_, c)| c.silent && !c.left).map(|(id, _)| *id).collect();
        for id in left {
            if let Some(client) = self.clients.get_mut(&id) {
                client.left = true;
            }
            self.lost(id);
        }
    }

    /// Waits until something is ready or a clock runs out.
    pub(crate) fn wait(&self) -> Vec<(Ready, PollFlags)> {
        let mut waits: Vec<(Ready, PollFd<'_>)> = Vec::with_capacity(8 + self.clients.len());
        let mut add = |ready, fd, flags| waits.push((ready, PollFd::from_borrowed_fd(fd, flags)));
        if self.clients.len() < CLIENT_LIMIT {
            add(Ready::Listener, self.listener.as_fd(), PollFlags::IN);
        }
        add(Ready::Signals, self.signals.fd().as_fd(), PollFlags::IN);
        add(Ready::Guest, self.guest.socket(), PollFlags::IN);
        add(Ready::GuestDead, self.guest.confined.pidfd.as_fd(), PollFlags::IN);
        if let Some(console) = &self.guest.confined.console {
            add(Ready::Console, console.as_fd(), PollFlags::IN);
        }
        if let Some(outward) = &self.outward {
            add(Ready::Gateway, outward.socket(), PollFlags::IN);
        }
        self.guest
            .machine()
            .into_iter()
            .flat_map(machine_waits)
            .for_each(|(ready, fd, flags)| add(ready, fd, flags));
        for (id, client) in &self.clients {
            // Without a flag the end of a client is still reported.
            let mut flags = PollFlags::empty();
            if self.may_read(client) {
                flags |= PollFlags::IN;
            }
            if !client.owes_nothing() {
                flags |= PollFlags::OUT;
            }
            if !client.silent {
                add(Ready::Client(*id), client.socket(), flags);
            } else if !client.owes_nothing() {
                add(Ready::Client(*id), client.socket(), PollFlags::OUT);
            }
        }
        for (id, exec) in &self.execs {
            if let Some(stdin) = exec.blocked_stdin() {
                add(Ready::Stdin(*id), stdin, PollFlags::OUT);
            }
            // What it says comes after the word that it runs.
            let quiet = self.is_behind(exec);
            if let Some(wired) = &exec.wired {
                let mut flags = if quiet { PollFlags::empty() } else { PollFlags::IN };
                if wired.owed() > 0 {
                    flags |= PollFlags::OUT;
                }
                add(Ready::Wired(*id), wired.socket(), flags);
            }
            if !exec.running || quiet {
                continue;
            }
            for stream in [Stream::Stdout, Stream::Stderr] {
                if let Some(fd) = exec.stream(stream) {
                    add(Ready::Stream(*id, stream), fd, PollFlags::IN);
                }
            }
        }
        for (id, relay) in &self.relays {
            for (guest, fd, flags) in relay.waits() {
                add(Ready::Relay(*id, guest), fd, flags);
            }
        }
        let (ready, mut fds): (Vec<Ready>, Vec<PollFd<'_>>) = waits.into_iter().unzip();
        let timeout =
            self.next_clock().map(|at| timespec(at.saturating_duration_since(Instant::now())));
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let happened = ready.into_iter().zip(fds.iter().map(PollFd::revents));
        happened.filter(|(_, flags)| !flags.is_empty()).collect()
    }

    /// A client that feeds a command which does not read is not read either.
    fn may_read(&self, client: &Client) -> bool {
        match client.role {
            Role::Exec(id) => self.execs.get(&id).is_none_or(Exec::takes_more),
            Role::Delayed => false,
            _ => true,
        }
    }

    fn next_clock(&self) -> Option<Instant> {
        let deadlines = self.execs.values().filter_map(|exec| exec.deadline);
        let greetings = self.clients.values().filter_map(Client::greeting_deadline);
        let machine = self.guest.machine().and_then(Machine::next_clock);
        let meter = self.meter.next(self.guest.is_paused());
        let still = self.guest.is_paused() || self.is_held();
        let service = self.service.as_ref().and_then(Service::next).filter(|_| !still);
        let health = self.health.as_ref().and_then(Health::next).filter(|_| !still);
        let others = machine.into_iter().chain(self.booting).chain(meter);
        let others = others.chain(self.next_start_check());
        let idle = self.idle.next().filter(|_| !still);
        let others = others.chain(service).chain(health).chain(idle);
        deadlines
            .chain(self.next_silence())
            .chain(greetings)
            .chain(self.life.next())
            .chain(others)
            .min()
    }

    pub(crate) fn handle(&mut self, ready: Ready, flags: PollFlags) {
        match ready {
            Ready::Listener => self.accept(),
            Ready::Signals => {
                while let Some(signal) = self.signals.take() {
                    if signal != signal::SIGCHLD {
                        self.stop(Ending::Stopped, Duration::from_secs(10));
                    }
                }
            }
            Ready::Guest => self.hear_guest(),
            Ready::GuestDead => self.died(),
            Ready::Client(id) => {
                if flags.contains(PollFlags::OUT)
                    && let Some(client) = self.clients.get_mut(&id)
                {
                    client.flush();
                }
                if flags.contains(PollFlags::IN) {
                    self.hear_client(id);
                } else if flags.intersects(PollFlags::HUP | PollFlags::ERR)
                    && let Some(client) = self.clients.get_mut(&id)
                {
                    client.silent = true;
                }
            }
            Ready::Stdin(id) => {
                if let Some(exec) = self.execs.get_mut(&id) {
                    exec.write_stdin();
                }
            }
            Ready::Stream(id, stream) => {
                self.relay(id, stream);
            }
            Ready::Gateway => self.hear_gateway(),
            Ready::Console if self.guest.machine().is_some() => self.hear_console(),
            Ready::Console => drop(self.hear_init()),
            Ready::Control => self.hear_control(flags),
            Ready::Unproven(index) => {
                if let Some(machine) = self.guest.machine_mut() {
                    machine.prove(index, &mut self.buffer);
                }
                self.use_connections();
            }
            Ready::Wired(id) => self.hear_wired(id, flags),
            Ready::Relay(id, guest) => {
                self.idle.stir();
                if let Some(relay) = self.relays.get_mut(&id)
                    && !relay.step(guest, flags, &mut self.buffer)
                {
                    self.relays.remove(&id);
                }
            }
        }
    }
}

/// What a machine is waited for, the newest connection first: one that is proven or closed moves
/// those behind it.
fn machine_waits(machine: &Machine) -> Vec<(Ready, BorrowedFd<'_>, PollFlags)> {
    let mut waits = Vec::with_capacity(4);
    if let Some(console) = &machine.console {
        waits.push((Ready::Console, console.as_fd(), PollFlags::IN));
    }
    if let Some(control) = &machine.control {
        let owes = if control.owed() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        waits.push((Ready::Control, control.socket(), PollFlags::IN | owes));
    }
    for (index, (wired, _)) in machine.unproven.iter().enumerate().rev() {
        waits.push((Ready::Unproven(index), wired.socket(), PollFlags::IN));
    }
    waits
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up, so that a clock has run out when the wait for it is over.
    let duration = duration + Duration::from_micros(999);
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
