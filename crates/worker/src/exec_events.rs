//! Handles what the guest reports about Execs: started, failed, exited. Reports are untrusted and
//! are checked against the worker's own state.

use crate::client::ClientConn;
use crate::clients::Clients;
use crate::exec::{self, ExecHandle, OutputStream};
use crate::guest::GuestTransport;
use crate::log::{BoundedLog, now_ms};
use crate::processes;
use crate::worker::Worker;
use msb_spec::{By, CallOrigin, Ending, Error, Exit, Kind, LimitReached, Stage, Surface};
use msb_wire::record::{CommandRecord, EventKind, ExecRecord, Source};
use msb_wire::{CodeNote, FrameKind, FromGuest, Hit, Reply, SpawnFailure, ToGuest, ToMachine};
use std::time::Instant;
use tracing::{debug, debug_span, trace};

/// The Exec that a message is about.
fn exec_of(message: &FromGuest) -> Option<u64> {
    match *message {
        FromGuest::Started { id, .. }
        | FromGuest::Failed { id, .. }
        | FromGuest::Exited { id, .. } => Some(id),
        FromGuest::Paused { .. } | FromGuest::Init { .. } | FromGuest::InitEnded { .. } => None,
    }
}

impl Worker {
    pub(crate) fn read_guest(&mut self) {
        let GuestTransport::Jail(jail) = &mut self.guest.transport else {
            return self.read_vm_link();
        };
        if !jail.receive() {
            let ending = self.guest_loss_ending();
            return self.finish(ending, None);
        }
        while let GuestTransport::Jail(jail) = &mut self.guest.transport {
            match jail.next() {
                Ok(Some(message)) => self.on_guest_message(&message),
                Ok(None) => return,
                Err(_) => return self.finish(Ending::Crashed, None),
            }
        }
    }

    pub(crate) fn on_guest_message(&mut self, message: &FromGuest) {
        let _span = exec_of(message).map(|id| debug_span!("exec", id).entered());
        trace!(?message, "the guest reports");
        match *message {
            FromGuest::Started { id, .. } if !self.execs.contains(id) => self.kill_orphan(id),
            FromGuest::Started { id, pid } => {
                let quiet = self.execs.is_main(id) && self.is_quiet();
                let Some(exec) = self.execs.get_mut(id).filter(|exec| !exec.running) else {
                    return;
                };
                if let (true, GuestTransport::Jail(jail)) = (exec.tty, &mut self.guest.transport) {
                    let terminal = jail.take_terminal();
                    if terminal.is_none_or(|terminal| exec.set_terminal(terminal).is_err()) {
                        return self.on_terminal_missing(id);
                    }
                    exec.write_stdin();
                }
                exec.running = true;
                exec.pid = pid;
                // Arguments may hold passwords.
                debug!(pid, program = exec.argv.first(), tty = exec.tty, "command started");
                if let GuestTransport::Vm(vm) = &mut self.guest.transport {
                    for signal in exec.signals.drain(..) {
                        vm.send_control(&ToMachine::Signal { id, signal });
                    }
                }
                let record = ExecRecord::Started {
                    exec: id,
                    time: exec.started,
                    pid,
                    argv: exec.argv.clone(),
                    user: exec.user.clone(),
                    tty: exec.tty,
                    detached: exec.detached,
                };
                let (internal, watchers) = (exec.internal, exec.watchers.clone());
                if !(internal || self.plan.ephemeral && self.execs.is_main(id)) {
                    self.logs.execs.line(&record);
                }
                self.record_start(id);
                if !quiet {
                    // A client that is told of the start must find it in the event log.
                    self.logs.events.flush();
                }
                for watcher in watchers {
                    if let Some(client) = self.clients.get_mut(watcher) {
                        let started = Reply::Started { id, pid };
                        if quiet { client.defer(&started) } else { client.reply(&started) }
                    }
                }
            }
            FromGuest::Failed { id, failure, errno } => {
                // A command that runs has started, whatever a hostile guest says later.
                if !self.execs.get(id).is_some_and(ExecHandle::is_starting) {
                    return;
                }
                let Some(exec) = self.execs.remove(id) else { return };
                self.update_busy();
                if exec.internal {
                    return self.on_check_done(exec, None);
                }
                debug!(?failure, errno, "command failed to start");
                let error = self.spawn_error(&exec, failure, errno);
                let code = if failure == SpawnFailure::NotFound { 127 } else { 126 };
                self.on_exec_failed(exec, &error, code);
            }
            FromGuest::Exited { id, code, signal, alone, hit } => {
                self.guest.no_children_left = alone;
                self.on_exited(id, (code, signal), hit);
            }
            FromGuest::Paused { paused } => self.on_freeze_done(paused),
            FromGuest::Init { ref failure } => self.on_init_started(failure.clone()),
            FromGuest::InitEnded { code, signal } => self.on_init_exited(code, signal),
        }
    }

    /// Tells attached clients that a command did not start. A restarted main command counts as
    /// exited with `code`, as shells report it.
    fn on_exec_failed(&mut self, exec: ExecHandle, error: &Error, code: i32) {
        let id = exec.id;
        self.record_failure(&exec.argv, exec.user.clone(), exec.origin.clone(), error.kind());
        if self.execs.is_main(id) && self.supervisor.as_ref().is_some_and(|own| own.count > 0) {
            let ending = Ending::Own;
            let exit = Exit { code: Some(code), signal: None, ending, reached: None };
            return self.on_main_exited(exec, exit);
        }
        if self.execs.is_main(id) {
            // Clients are told when the sandbox is gone, as they are of an exit.
            let with_error = |watcher| (watcher, error.clone());
            self.execs.failed_main = exec.watchers.into_iter().map(with_error).collect();
            self.finish(Ending::Own, None);
            return;
        }
        self.logs.events.flush();
        for watcher in exec.watchers {
            self.answer(watcher, &Reply::Failed(error.clone()));
        }
    }

    /// Kills a command that started after all its clients had disconnected.
    fn kill_orphan(&mut self, id: u64) {
        let signal = msb_sys::signal::SIGKILL;
        if let GuestTransport::Jail(jail) = &mut self.guest.transport {
            // The terminal that came with the message, if any.
            drop(jail.take_terminal());
            msb_log::debug_on_failure!(
                jail.request(&ToGuest::Signal { id, signal }, &[]),
                "cannot signal a command without clients"
            );
        }
    }

    /// When to look for commands that do not start.
    pub(crate) fn next_start_check(&self) -> Option<Instant> {
        let still = self.guest.is_paused()
            || self.is_held_for_copy()
            || self.lifetime.boot_deadline.is_some();
        if still { None } else { self.execs.next_start_check() }
    }

    /// Handles commands that do not start.
    ///
    /// A guest starts a command within milliseconds, unless a process inside has stopped the forked
    /// child that is about to exec. The guest waits for that child, and every client waits for the
    /// guest. So the stopped child is killed. A command that is still not started after
    /// [`START_LIMIT`](crate::execs::START_LIMIT) has failed, and on the `process` tier the guest
    /// is killed, because nothing works in that sandbox any more.
    pub(crate) fn check_stalled_starts(&mut self, now: Instant) {
        if self.next_start_check().is_none_or(|at| now < at) {
            return;
        }
        let late = self.execs.check_starts(now);
        if self.guest.vm().is_none() {
            processes::kill_stopped_forks(self.guest.process.processes());
        }
        let ends = !late.is_empty() && self.guest.vm().is_none();
        if ends {
            self.guest.send_kill();
        }
        let hint = match ends {
            true => "something in the sandbox may have stopped it; the sandbox was ended",
            false => "something in the sandbox may have stopped it; `msb stop -f` ends it",
        };
        for id in late {
            let Some(exec) = self.execs.remove(id) else { continue };
            self.update_busy();
            if exec.internal {
                self.on_check_done(exec, None);
                continue;
            }
            let error = Error::new(Kind::Timeout, "the guest did not start the command in time")
                .hint(hint)
                .at(Stage::Exec);
            self.on_exec_failed(exec, &error, 126);
        }
    }

    /// A command runs on a terminal, but its descriptor did not arrive: the host was out of
    /// descriptors, or the guest lies. Only this command fails.
    fn on_terminal_missing(&mut self, id: u64) {
        let _ = self.kill_exec(id, msb_sys::signal::SIGKILL);
        self.on_guest_message(&FromGuest::Failed {
            id,
            failure: SpawnFailure::Process,
            errno: rustix::io::Errno::MFILE.raw_os_error(),
        });
    }

    pub(crate) fn spawn_error(
        &self,
        exec: &ExecHandle,
        failure: SpawnFailure,
        errno: i32,
    ) -> Error {
        let cause = (errno != 0).then(|| std::io::Error::from_raw_os_error(errno));
        let program = exec.argv.first().map_or("", String::as_str);
        let user = exec.user.clone().or_else(|| self.plan.user.as_ref().map(ToString::to_string));
        let user = user.unwrap_or_default();
        let error = match failure {
            SpawnFailure::Process => Error::new(Kind::Limit, "the guest cannot start a process")
                .hint("the sandbox's limits on processes, memory or descriptors may be reached"),
            SpawnFailure::User => {
                Error::new(Kind::Invalid, format!("no such user inside: `{user}`"))
            }
            SpawnFailure::OnlyRoot => Error::unsupported(format!(
                "only root exists in this sandbox, not `{user}`"
            ))
            .hint(
                "install `uidmap` (newuidmap) and have /etc/subuid grant ids, or run msb as root",
            ),
            SpawnFailure::Workdir => {
                let workdir = exec.workdir.as_deref().unwrap_or(&self.plan.workdir);
                let message = format!("cannot enter the directory `{}`", workdir);
                Error::new(Kind::Invalid, message)
            }
            SpawnFailure::Rlimit => Error::new(Kind::Invalid, "a resource limit was refused").hint(
                "no limit goes above the host's own, and that of an Exec not above its \
                     sandbox's: `msb create --rlimit`",
            ),
            SpawnFailure::NotFound => {
                Error::new(Kind::CommandNotFound, format!("command not found: `{}`", program))
            }
            SpawnFailure::NotExecutable => {
                Error::new(Kind::NotExecutable, format!("cannot be executed: `{}`", program))
            }
        };
        match cause {
            Some(cause) if failure != SpawnFailure::NotFound => error.cause(cause),
            _ => error,
        }
        .at(Stage::Exec)
    }

    pub(crate) fn on_exited(
        &mut self,
        id: u64,
        (code, signal): (Option<i32>, Option<i32>),
        hit: Option<Hit>,
    ) {
        if !self.execs.get(id).is_some_and(|exec| exec.running && exec.exited.is_none()) {
            return;
        }
        self.drain_pipes(id);
        let failed = code != Some(0);
        let memory = failed
            && (hit == Some(Hit::Memory) || self.lifetime.memory_hit(self.guest.process.group()));
        let Some(exec) = self.execs.get(id) else {
            return;
        };
        let ending = match exec.ending {
            Ending::Own if memory => Ending::Memory,
            ending => ending,
        };
        let reached = match hit {
            _ if !failed || ending != Ending::Own => None,
            Some(Hit::Pids) => Some(LimitReached::Pids),
            Some(Hit::Disk) => Some(LimitReached::Disk),
            _ => self.reached_limit(),
        };
        let exit = Exit { code, signal, ending, reached };
        debug!(code, signal, ?ending, "command exited");
        let now = self.clock.now();
        let drains = self.lifetime.stopping.is_none() && ending == Ending::Own;
        match self.execs.get_mut(id) {
            Some(exec) if drains && exec.is_open() && !exec.internal => {
                exec.drain_output(exit, now);
            }
            _ => self.finish_exec(id, exit),
        }
    }

    /// Finishes exited commands once their output is closed or has been silent for long enough.
    pub(crate) fn finish_drained_execs(&mut self, now: Instant) {
        let behind: Vec<u64> =
            self.execs.values().filter(|exec| self.is_behind(exec)).map(|exec| exec.id).collect();
        let mut drained = Vec::new();
        for exec in self.execs.values_mut() {
            let is_open = exec.is_open();
            if let Some(drain) = &mut exec.exited
                && (!is_open || !behind.contains(&exec.id) && drain.output.is_over(now))
            {
                drained.push(exec.id);
            }
        }
        for id in drained {
            self.drain_pipes(id);
            if let Some(drain) = self.execs.get(id).and_then(|exec| exec.exited) {
                self.finish_exec(id, drain.exit);
            }
        }
    }

    /// When the next exited command is to be finished.
    pub(crate) fn next_drain_deadline(&self) -> impl Iterator<Item = Instant> {
        let drains = self.execs.values().filter(|exec| !self.is_behind(exec));
        drains.filter_map(|exec| exec.exited.map(|drain| drain.output.deadline()))
    }

    /// Whether a client attached to it has too much unsent output.
    pub(crate) fn is_behind(&self, exec: &ExecHandle) -> bool {
        let behind = |client: &u64| self.clients.get(*client).is_some_and(ClientConn::is_behind);
        exec.watchers.iter().any(behind)
    }

    /// An Exec is done, including its output: records the end and answers its clients.
    fn finish_exec(&mut self, id: u64, exit: Exit) {
        let Some(exec) = self.execs.remove(id) else {
            return;
        };
        self.update_busy();
        if exec.internal {
            return self.on_check_done(exec, Some(exit));
        }
        self.idle.touch(self.clock.now());
        if self.execs.is_main(id) {
            return self.on_main_exited(exec, exit);
        }
        self.logs.execs.line(&ExecRecord::Ended { exec: id, time: now_ms(), exit });
        self.record_end(&exec, exit);
        self.logs.events.flush();
        for watcher in exec.watchers {
            self.answer(watcher, &Reply::Exited(exit));
        }
    }

    /// Updates whether the sandbox is busy: a command of a client runs, or a restart is pending.
    pub(crate) fn update_busy(&mut self) {
        let busy = self.execs.visible().next().is_some() || self.is_restart_pending();
        self.lifetime.set_busy(busy, self.clock.now());
    }

    /// Records the start of a command with its origin.
    fn record_start(&mut self, id: u64) {
        let Some(exec) = self.execs.get(id).filter(|exec| is_recorded(exec.origin.as_ref())) else {
            return;
        };
        let ran = CommandRecord::new(&exec.argv, exec.user.clone(), exec.origin.clone());
        let started = EventKind::ExecStarted { exec: id, ran, tty: exec.tty };
        self.record(started);
    }

    /// Records that a command could not be started.
    pub(crate) fn record_failure(
        &mut self,
        argv: &[String],
        user: Option<String>,
        origin: Option<CallOrigin>,
        reason: Kind,
    ) {
        if is_recorded(origin.as_ref()) {
            self.record(EventKind::ExecFailed {
                ran: CommandRecord::new(argv, user, origin),
                reason,
            });
        }
    }

    /// Records how a command has ended.
    pub(crate) fn record_end(&mut self, exec: &ExecHandle, exit: Exit) {
        if is_recorded(exec.origin.as_ref()) {
            let duration = self.clock.now().saturating_duration_since(exec.since);
            let duration_ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
            self.record(EventKind::ExecEnded { exec: exec.id, exit, duration_ms });
        }
    }

    /// Records code that was sent to an interpreter, and how it ended.
    pub(crate) fn record_code(&mut self, exec: u64, note: CodeNote) {
        let user = self.execs.get(exec).and_then(|exec| exec.user.clone());
        self.record(match note {
            CodeNote::Began { code, cut, by } => {
                // Truncate to what is kept of a command, whatever length the client sent.
                let kept = CommandRecord::new(&[code], user, by);
                EventKind::CodeStarted {
                    exec,
                    ran: CommandRecord { cut: kept.cut.or(cut), ..kept },
                }
            }
            CodeNote::Ended { status, duration_ms } => {
                EventKind::CodeEnded { exec, status, duration_ms }
            }
        });
    }

    /// A limit that was reached since the last call.
    fn reached_limit(&mut self) -> Option<LimitReached> {
        let process = &*self.guest.process;
        if self.lifetime.fork_refused(process.group()) {
            return Some(LimitReached::Pids);
        }
        // Without a cgroup, refused forks are not counted, but the processes at the limit still
        // exist.
        let limit = self.plan.limits.pids.filter(|limit| limit.by == By::Rlimit);
        if let Some(limit) = limit {
            let processes = processes::list(process.processes());
            let threads: u32 = processes.iter().map(|process| process.threads).sum();
            // Plus one for the command that has just exited.
            if threads + 1 >= limit.value {
                return Some(LimitReached::Pids);
            }
        }
        process.sized_upper().filter(|fd| processes::is_full(fd)).map(|_| LimitReached::Disk)
    }

    /// Forwards what is left in the pipes of an exited command. Other processes may go on writing,
    /// so at most the size of the largest pipe is read.
    fn drain_pipes(&mut self, id: u64) {
        const PIPE: usize = 1 << 20;
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            for _ in 0..PIPE / self.buffer.len() {
                if !self.forward_output(id, stream) {
                    break;
                }
            }
        }
    }

    /// Forwards output of a command to the log and to attached clients; true if there may be more.
    pub(crate) fn forward_output(&mut self, id: u64, stream: OutputStream) -> bool {
        let Some(exec) = self.execs.get_mut(id) else {
            return false;
        };
        let now = self.clock.now();
        let exec::StreamRead::Bytes(n) = exec.read(stream, &mut self.buffer, now) else {
            return false;
        };
        if !exec.internal {
            self.idle.touch(self.clock.now());
        }
        deliver_output(&mut self.logs.output, &mut self.clients, exec, stream, &self.buffer[..n]);
        true
    }
}

/// Health checks are not recorded: they would push everything else out of the log.
fn is_recorded(origin: Option<&CallOrigin>) -> bool {
    origin.is_none_or(|origin| origin.surface() != Surface::Health)
}

/// Writes output to the log and sends it to attached clients.
pub(crate) fn deliver_output(
    log: &mut BoundedLog,
    clients: &mut Clients,
    exec: &ExecHandle,
    stream: OutputStream,
    bytes: &[u8],
) {
    let (source, kind) = match stream {
        OutputStream::Stdout => (Source::Stdout, FrameKind::Stdout),
        OutputStream::Stderr => (Source::Stderr, FrameKind::Stderr),
    };
    if !exec.unlogged {
        log.output(source, exec.id, bytes);
    }
    for watcher in &exec.watchers {
        if let Some(client) = clients.get_mut(*watcher) {
            client.output(kind, bytes);
        }
    }
}
