//! The worker's poll loop and its state.

use crate::client::{ClientConn, ClientRole};
use crate::clients::{CALLER, Clients};
use crate::clock::{Clock, SystemClock};
use crate::compromised;
use crate::exec::{ExecHandle, OutputStream};
use crate::execs::Execs;
use crate::gateway_link::{self, GatewayFds, GatewayLink};
use crate::guest::Guest;
use crate::health::HealthMonitor;
use crate::idle::IdleTimer;
use crate::lifetime::Lifetime;
use crate::logs::Logs;
use crate::microvm::MicroVm;
use crate::supervisor::Supervisor;
use crate::usage_meter::UsageMeter;
use msb_jail::WorkerNeeds;
use msb_spec::{Command, Ending, Error, Kind, Plan, Result, Stage, env, state};
use msb_sys::signal::{self, Signals};
use msb_sys::socket;
use msb_wire::record::EventKind;
use msb_wire::{Head, Reply};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tracing::info;

/// Arguments of a worker.
#[derive(Debug)]
pub struct WorkerArgs {
    /// The decided Plan of the sandbox.
    pub plan: Plan,
    /// State directory of the sandbox.
    pub directory: PathBuf,
    /// Lock on that directory; released at the end.
    pub lock: OwnedFd,
    /// Locks on the volumes it uses; released at the end.
    pub volume_locks: Vec<OwnedFd>,
    /// Connection to the process that starts the sandbox. It gets the result and is attached to the
    /// main command.
    pub caller: OwnedFd,
    /// Last event of an earlier run, so that numbers and hashes continue.
    pub last_event: Head,
    /// Number of the last Exec.
    pub last_exec: u64,
    /// The gateway, if the Plan has a network, or the error of its start.
    pub gateway: Result<Option<GatewayFds>>,
}

/// The worker of one sandbox. Each part owns its state and its timers.
pub(crate) struct Worker {
    pub(crate) plan: Plan,
    pub(crate) directory: PathBuf,
    pub(crate) clock: Rc<dyn Clock>,
    pub(crate) listener: OwnedFd,
    signals: Signals,
    pub(crate) clients: Clients,
    pub(crate) execs: Execs,
    /// Restarts the main command, if there is a policy.
    pub(crate) supervisor: Option<Supervisor>,
    /// The health check, if the Plan has one.
    pub(crate) health: Option<HealthMonitor>,
    /// Pauses the sandbox when it is idle.
    pub(crate) idle: IdleTimer,
    pub(crate) lifetime: Lifetime,
    pub(crate) guest: Guest,
    /// The gateway, until it has ended.
    pub(crate) gateway: Option<GatewayLink>,
    pub(crate) logs: Logs,
    /// Resource use and pending queries for it.
    pub(crate) meter: UsageMeter,
    /// Read buffer for everything. Its pages are allocated on first use.
    pub(crate) buffer: Vec<u8>,
}

/// What a worker's loop runs on. Tests pass a guest and a clock of their own.
pub(crate) struct WorkerParts {
    pub(crate) plan: Plan,
    pub(crate) directory: PathBuf,
    pub(crate) guest: Guest,
    pub(crate) gateway: Option<GatewayLink>,
    pub(crate) listener: OwnedFd,
    pub(crate) signals: Signals,
    pub(crate) clock: Rc<dyn Clock>,
    /// Last event of an earlier run.
    pub(crate) last_event: Head,
    /// Number of the last Exec of an earlier run.
    pub(crate) last_exec: u64,
}

/// What a poll result belongs to.
#[derive(Clone, Copy)]
pub(crate) enum PollSource {
    Listener,
    Signals,
    Guest,
    GuestDead,
    Client(u64),
    Stdin(u64),
    Stream(u64, OutputStream),
    Gateway,
    Console,
    Control,
    Unauthenticated(usize),
    ExecVsock(u64),
    /// A relay, and whether it is the guest's side.
    Relay(u64, bool),
}

/// Runs the worker until the sandbox has ended. Returns the exit code of the process.
pub fn run(args: WorkerArgs) -> i32 {
    let WorkerArgs { plan, directory, lock, volume_locks, caller, last_event, last_exec, gateway } =
        args;
    let ephemeral = plan.ephemeral;
    let first = last_event.number == 0;
    let caller = ClientConn::new(caller, ClientRole::Owner, Instant::now());
    let started = gateway
        .and_then(|gateway| Worker::start(plan, &directory, (last_event, last_exec), gateway));
    let started = match started {
        Ok(worker) => worker.finish_boot(caller),
        Err(error) => Err(Box::new((caller, error))),
    };
    let (mut caller, error) = match started {
        Ok(mut worker) => {
            worker.serve();
            info!("the sandbox has ended");
            worker.end(&File::from(lock), volume_locks);
            return 0;
        }
        Err(failed) => *failed,
    };
    let moved = if ephemeral || first { move_aside(&directory) } else { None };
    if let Some(moved) = moved {
        msb_log::warn_on_failure!(
            std::fs::remove_dir_all(moved),
            "cannot remove the sandbox's directory"
        );
    }
    release_locks(volume_locks);
    msb_log::warn_on_failure!(msb_sys::lock::release(&File::from(lock)), "cannot release a lock");
    caller.answer(&Reply::Failed(error));
    125
}

/// Releases locks explicitly: a fork may hold copies of their descriptors.
pub(crate) fn release_locks(volume_locks: Vec<OwnedFd>) {
    for lock in volume_locks {
        msb_log::warn_on_failure!(
            msb_sys::lock::release(&File::from(lock)),
            "cannot release a lock"
        );
    }
}

/// Frees the sandbox's name by renaming its directory. Returns the new path.
pub(crate) fn move_aside(directory: &Path) -> Option<PathBuf> {
    let mut moved = directory.to_owned();
    let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
    moved.set_file_name(format!(".gone-{name}-{}", std::process::id()));
    std::fs::rename(directory, &moved).ok().map(|()| moved)
}

impl Worker {
    /// Starts the guest and creates the worker's state.
    fn start(
        plan: Plan,
        directory: &Path,
        (last_event, last_exec): (Head, u64),
        gateway: Option<GatewayFds>,
    ) -> Result<Self> {
        let broken = |what: &str, error: std::io::Error| Error::host(what, error).at(Stage::Boot);
        // Ctrl-C at the caller's terminal is for the command, not for the worker.
        let _ = rustix::process::setsid();
        // Logs hold output of commands. The processes inside get a umask of their own.
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
        let (mut gateway, link) = match gateway {
            Some(GatewayFds { control, link }) => {
                (Some(GatewayLink::new(control, directory)?), Some(link))
            }
            None => (None, None),
        };
        if let Some(gateway) =
            gateway.as_mut().filter(|_| gateway_link::is_needed_before_guest(plan.network.as_ref()))
        {
            gateway.await_ready()?;
        }
        let authority = gateway.as_ref().and_then(|gateway| gateway.authority.as_deref());
        let trusted = gateway_link::trusted_cas(plan.network.as_ref(), authority)?;
        let link = link.as_ref().map(AsFd::as_fd);
        let guest = Guest::start(&plan, directory, link, trusted.as_deref())?;
        let listener = socket::listen(opened.as_fd(), state::SOCKET)
            .map_err(|error| broken("cannot listen in the sandbox's directory", error))?;
        Ok(Self::new(WorkerParts {
            plan,
            directory: directory.to_owned(),
            guest,
            gateway,
            listener,
            signals,
            clock: Rc::new(SystemClock),
            last_event,
            last_exec,
        }))
    }

    /// A worker whose guest runs already.
    pub(crate) fn new(parts: WorkerParts) -> Self {
        let WorkerParts { plan, directory, guest, gateway, listener, signals, clock, .. } = parts;
        let now = clock.now();
        let fully_created = parts.last_event.number > 0;
        Self {
            clients: Clients::default(),
            execs: Execs::new(parts.last_exec, plan.command.clone(), now),
            supervisor: Supervisor::new(&plan, now),
            health: HealthMonitor::new(&plan, now),
            idle: IdleTimer::new(&plan, now),
            lifetime: Lifetime::new(&plan, fully_created, now),
            logs: Logs::new(&plan, &directory, parts.last_event),
            meter: UsageMeter::new(now),
            buffer: vec![0; 64 << 10],
            plan,
            directory,
            clock,
            listener,
            signals,
            guest,
            gateway,
        }
    }

    /// Confines the worker, starts the main command and tells the caller that the guest runs.
    ///
    /// The command is sent before the guest is ready, so that neither waits for the other. If the
    /// caller patches files first, the command waits for the `Go` frame.
    fn finish_boot(mut self, caller: ClientConn) -> Result<Self, Box<(ClientConn, Error)>> {
        // Before anything of the sandbox runs.
        if let Err(error) = self.confine() {
            self.guest.kill_and_wait();
            return Err(Box::new((caller, error)));
        }
        if let Some(canary) = std::env::var_os(env::TEST_COMPROMISED)
            && self.guest.vm().is_none()
        {
            self.guest.kill_and_wait();
            let report = compromised::report_worker(&canary, &self.directory);
            return Err(Box::new((caller, Error::new(Kind::State, report))));
        }
        self.clients.insert(CALLER, caller);
        if self.plan.patches.is_empty() && self.plan.init.is_none() {
            self.start_main();
        }
        let started = self.guest.process.wait_started();
        // If the gateway has failed, its own error is the reason why no device could be handed to
        // it.
        let started = match (started, &mut self.gateway) {
            (Err(error), Some(gateway)) => Err(gateway.failure().unwrap_or(error)),
            (started, _) => started,
        };
        let started =
            started.and_then(|()| self.gateway.as_mut().map_or(Ok(()), GatewayLink::await_ready));
        let started = started.and_then(|()| self.await_vm());
        let mut caller = self.clients.remove(CALLER).expect("clients are not read before this");
        // The caller's input is for the command that starts after the init.
        let started = started.and_then(|()| self.await_init());
        if let Err(error) = started {
            self.guest.kill_and_wait();
            return Err(Box::new((caller, error)));
        }
        self.record(EventKind::Started { worker: std::process::id() });
        info!(tier = ?self.plan.isolation, pid = std::process::id(), "the guest runs");
        if self.plan.patches.is_empty() {
            self.mark_created();
        }
        if self.is_quiet() {
            caller.defer(&Reply::Ready)
        } else {
            caller.reply(&Reply::Ready)
        }
        self.clients.insert(CALLER, caller);
        if self.plan.patches.is_empty() {
            self.start_main();
        }
        Ok(self)
    }

    /// Confines the worker before it reads messages of the guest. Other processes of the user
    /// cannot read its memory or descriptors, and it can reach nothing but its own sandbox.
    fn confine(&self) -> Result<()> {
        let hidden = rustix::process::DumpableBehavior::NotDumpable;
        rustix::process::set_dumpable_behavior(hidden)
            .map_err(|error| Error::host("cannot hide the worker's memory", error))?;
        let groups = self.plan.limits.cgroup_directories(&self.plan.name);
        let needs = WorkerNeeds {
            directory: self.directory.clone(),
            cgroups: groups.into_values().collect(),
            processes: self.guest.process.processes().fd(),
        };
        msb_jail::confine_worker(&needs).map_err(|error| error.at(Stage::Boot))
    }

    /// Whether the caller only waits for the exit of its command, so that earlier replies can be
    /// deferred.
    pub(crate) fn is_quiet(&self) -> bool {
        let waits = |command: &Command| command.tty.is_none() && !command.detached;
        self.plan.patches.is_empty() && self.plan.command.as_ref().is_some_and(waits)
    }

    /// Marks the sandbox as complete, and records its creation.
    pub(crate) fn mark_created(&mut self) {
        if !self.lifetime.fully_created {
            self.lifetime.fully_created = true;
            msb_log::warn_on_failure!(
                std::fs::remove_file(self.directory.join(state::UNFINISHED)),
                "cannot mark the sandbox as created"
            );
            self.record(EventKind::Created);
        }
    }

    pub(crate) fn start_main(&mut self) {
        if let Some(command) = self.execs.pending_main.take() {
            self.execs.main = Some(self.execs.next_id);
            self.start_exec(CALLER, command);
        }
    }

    fn serve(&mut self) {
        while self.lifetime.outcome.is_none() {
            self.turn(Self::wait);
        }
    }

    /// One turn of the loop. `wait` returns what is ready.
    pub(crate) fn turn(&mut self, wait: impl FnOnce(&Self) -> Vec<(PollSource, PollFlags)>) {
        // First, because the caller may have disconnected already.
        for id in self.clients.take_disconnected() {
            self.on_client_disconnect(id);
        }
        self.clients.drop_finished();
        self.logs.events.flush();
        for (ready, flags) in wait(&*self) {
            self.handle(ready, flags);
            if self.lifetime.outcome.is_some() {
                return;
            }
        }
        self.run_timers();
    }

    /// Polls until something is ready or a deadline has passed.
    pub(crate) fn wait(&self) -> Vec<(PollSource, PollFlags)> {
        let now = self.clock.now();
        self.poll_within(self.next_deadline().map(|at| at.saturating_duration_since(now)))
    }

    /// Polls until something is ready, at most for `limit`.
    pub(crate) fn poll_within(&self, limit: Option<Duration>) -> Vec<(PollSource, PollFlags)> {
        let mut waits: Vec<(PollSource, PollFd<'_>)> = Vec::with_capacity(16);
        let mut add = |ready, fd, flags| waits.push((ready, PollFd::from_borrowed_fd(fd, flags)));
        if self.clients.has_room() {
            add(PollSource::Listener, self.listener.as_fd(), PollFlags::IN);
        }
        add(PollSource::Signals, self.signals.fd().as_fd(), PollFlags::IN);
        add(PollSource::Guest, self.guest.socket(), PollFlags::IN);
        add(PollSource::GuestDead, self.guest.process.pidfd(), PollFlags::IN);
        if let Some(console) = self.guest.process.console() {
            add(PollSource::Console, console, PollFlags::IN);
        }
        if let Some(gateway) = &self.gateway {
            add(PollSource::Gateway, gateway.socket(), PollFlags::IN);
        }
        self.guest
            .vm()
            .into_iter()
            .flat_map(vm_poll_sources)
            .for_each(|(ready, fd, flags)| add(ready, fd, flags));
        for (id, client) in self.clients.iter() {
            // Without flags, a hang-up is still reported.
            let mut flags = PollFlags::empty();
            if self.may_read(client) {
                flags |= PollFlags::IN;
            }
            if !client.is_drained() {
                flags |= PollFlags::OUT;
            }
            if !client.closed {
                add(PollSource::Client(id), client.socket(), flags);
            } else if !client.is_drained() {
                add(PollSource::Client(id), client.socket(), PollFlags::OUT);
            }
        }
        for exec in self.execs.values() {
            let id = exec.id;
            if let Some(stdin) = exec.blocked_stdin() {
                add(PollSource::Stdin(id), stdin, PollFlags::OUT);
            }
            // Output is sent after the reply that the command has started.
            let quiet = self.is_behind(exec);
            if let Some(vsock) = &exec.vsock {
                let mut flags = if quiet { PollFlags::empty() } else { PollFlags::IN };
                if vsock.pending_bytes() > 0 {
                    flags |= PollFlags::OUT;
                }
                add(PollSource::ExecVsock(id), vsock.socket(), flags);
            }
            if !exec.running || quiet {
                continue;
            }
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                if let Some(fd) = exec.stream(stream) {
                    add(PollSource::Stream(id, stream), fd, PollFlags::IN);
                }
            }
        }
        for (id, relay) in &self.guest.relays {
            for (guest, fd, flags) in relay.waits() {
                add(PollSource::Relay(*id, guest), fd, flags);
            }
        }
        let (ready, mut fds): (Vec<PollSource>, Vec<PollFd<'_>>) = waits.into_iter().unzip();
        let timeout = limit.map(timespec);
        if rustix::event::poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let happened = ready.into_iter().zip(fds.iter().map(PollFd::revents));
        happened.filter(|(_, flags)| !flags.is_empty()).collect()
    }

    /// A client is not read while its command does not read stdin.
    fn may_read(&self, client: &ClientConn) -> bool {
        match client.role {
            ClientRole::Exec(id) => self.execs.get(id).is_none_or(ExecHandle::accepts_stdin),
            ClientRole::Delayed => false,
            _ => true,
        }
    }

    /// Time since the sandbox was started.
    pub(crate) fn uptime(&self) -> Duration {
        self.clock.now().saturating_duration_since(self.lifetime.started)
    }

    /// The earliest timer of all parts.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let vm = self.guest.vm().and_then(MicroVm::next_deadline);
        let meter = self.meter.next(self.guest.is_paused());
        let still = self.guest.is_paused() || self.is_held_for_copy();
        let restart = self.supervisor.as_ref().and_then(Supervisor::next).filter(|_| !still);
        let health = self.health.as_ref().and_then(HealthMonitor::next).filter(|_| !still);
        let idle = self.idle.next().filter(|_| !still);
        let (clients, execs) = (self.clients.next_deadline(), self.execs.next_timeout());
        let starts = self.next_start_check();
        [vm, meter, restart, health, idle, clients, execs, starts, self.lifetime.next()]
            .into_iter()
            .flatten()
            .chain(self.next_drain_deadline())
            .min()
    }

    pub(crate) fn handle(&mut self, ready: PollSource, flags: PollFlags) {
        match ready {
            PollSource::Listener => self.accept(),
            PollSource::Signals => {
                while let Some(signal) = self.signals.take() {
                    if signal != signal::SIGCHLD {
                        self.stop(Ending::Stopped, Duration::from_secs(10));
                    }
                }
            }
            PollSource::Guest => self.read_guest(),
            PollSource::GuestDead => self.on_guest_dead(),
            PollSource::Client(id) => {
                if flags.contains(PollFlags::OUT)
                    && let Some(client) = self.clients.get_mut(id)
                {
                    client.flush();
                }
                if flags.contains(PollFlags::IN) {
                    self.read_client(id);
                } else if flags.intersects(PollFlags::HUP | PollFlags::ERR)
                    && let Some(client) = self.clients.get_mut(id)
                {
                    client.closed = true;
                }
            }
            PollSource::Stdin(id) => {
                if let Some(exec) = self.execs.get_mut(id) {
                    exec.write_stdin();
                }
            }
            PollSource::Stream(id, stream) => {
                self.forward_output(id, stream);
            }
            PollSource::Gateway => self.read_gateway(),
            PollSource::Console if self.guest.vm().is_some() => self.read_vm_console(),
            PollSource::Console => drop(self.read_init_console()),
            PollSource::Control => self.read_vm_control(flags),
            PollSource::Unauthenticated(index) => {
                if let Some(vm) = self.guest.vm_mut() {
                    vm.authenticate(index, &mut self.buffer);
                }
                self.assign_connections();
            }
            PollSource::ExecVsock(id) => self.read_exec_vsock(id, flags),
            PollSource::Relay(id, guest) => {
                self.idle.touch(self.clock.now());
                if let Some(relay) = self.guest.relays.get_mut(&id)
                    && !relay.step(guest, flags, &mut self.buffer)
                {
                    self.guest.relays.remove(&id);
                }
            }
        }
    }
}

/// Poll sources of a microVM. Unauthenticated connections come newest first, because authenticating
/// or closing one moves those behind it.
fn vm_poll_sources(vm: &MicroVm) -> Vec<(PollSource, BorrowedFd<'_>, PollFlags)> {
    let mut waits = Vec::with_capacity(4);
    if let Some(console) = &vm.console {
        waits.push((PollSource::Console, console.as_fd(), PollFlags::IN));
    }
    if let Some(control) = &vm.control {
        let owes = if control.pending_bytes() > 0 { PollFlags::OUT } else { PollFlags::empty() };
        waits.push((PollSource::Control, control.socket(), PollFlags::IN | owes));
    }
    for (index, (vsock, _)) in vm.unauthenticated.iter().enumerate().rev() {
        waits.push((PollSource::Unauthenticated(index), vsock.socket(), PollFlags::IN));
    }
    waits
}

fn timespec(duration: Duration) -> Timespec {
    // Rounded up, so that the deadline has passed when poll returns. Zero only looks.
    let rounding = if duration.is_zero() { 0 } else { 999 };
    let duration = duration + Duration::from_micros(rounding);
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: i64::from(duration.subsec_nanos()) }
}
