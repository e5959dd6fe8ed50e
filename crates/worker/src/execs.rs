//! What becomes of Execs: started, relayed, ended. Told by the guest, believed only in part.

use crate::client::Client;
use crate::exec::{self, Exec, Stream};
use crate::guest::Way;
use crate::log::{Log, now_ms};
use crate::processes;
use crate::worker::Worker;
use msb_spec::{Asker, By, Ending, Error, Exit, Kind, Reached, Stage, Surface};
use msb_wire::record::{ExecRecord, Happened, Ran, Source};
use msb_wire::{CodeNote, FrameKind, FromGuest, Hit, Reply, SpawnFailure, ToGuest, ToMachine};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A guest that has not started a command by then is looked at.
const STALL_LIMIT: Duration = Duration::from_secs(2);
/// A command that is not started by then never is, also on a machine that is swamped.
const START_LIMIT: Duration = Duration::from_secs(60);

impl Worker {
    pub(crate) fn hear_guest(&mut self) {
        let Way::Jailed(jailed) = &mut self.guest.way else { return self.hear_machine() };
        if !jailed.receive() {
            let ending = self.lost_guest();
            return self.finish(ending, None);
        }
        while let Way::Jailed(jailed) = &mut self.guest.way {
            match jailed.next() {
                Ok(Some(said)) => self.guest_said(&said),
                Ok(None) => return,
                Err(_) => return self.finish(Ending::Crashed, None),
            }
        }
    }

    pub(crate) fn guest_said(&mut self, said: &FromGuest) {
        match *said {
            FromGuest::Started { id, .. } if !self.execs.contains_key(&id) => self.disown(id),
            FromGuest::Started { id, pid } => {
                let quiet = self.main == Some(id) && self.is_quiet();
                let Some(exec) = self.execs.get_mut(&id).filter(|exec| !exec.running) else {
                    return;
                };
                if let (true, Way::Jailed(jailed)) = (exec.tty, &mut self.guest.way) {
                    let terminal = jailed.take_terminal();
                    if terminal.is_none_or(|terminal| exec.set_terminal(terminal).is_err()) {
                        return self.lost_terminal(id);
                    }
                    exec.write_stdin();
                }
                exec.running = true;
                exec.pid = pid;
                if let Way::Machine(machine) = &mut self.guest.way {
                    for signal in exec.signals.drain(..) {
                        machine.tell(&ToMachine::Signal { id, signal });
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
                let (own, watchers) = (exec.own, exec.watchers.clone());
                if !(own || self.plan.ephemeral && self.main == Some(id)) {
                    self.exec_log.line(&record);
                }
                self.record_start(id);
                if !quiet {
                    // Whoever is told that it runs finds it there.
                    self.events.write();
                }
                for watcher in watchers {
                    if let Some(client) = self.clients.get_mut(&watcher) {
                        let started = Reply::Started { id, pid };
                        if quiet { client.hold(&started) } else { client.reply(&started) }
                    }
                }
            }
            FromGuest::Failed { id, failure, errno } => {
                let Some(exec) = self.execs.remove(&id) else {
                    return;
                };
                self.note_busy();
                if exec.own {
                    return self.checked(exec, None);
                }
                let error = self.explain(&exec, failure, errno);
                let code = if failure == SpawnFailure::NotFound { 127 } else { 126 };
                self.not_started(exec, &error, code);
            }
            FromGuest::Exited { id, code, signal, alone, hit } => {
                self.alone = alone;
                self.exited(id, (code, signal), hit);
            }
            FromGuest::Paused { paused } => self.stood_still(paused),
            FromGuest::Init { ref failure } => self.handed_over(failure.clone()),
            FromGuest::InitEnded { code, signal } => self.init_ended(code, signal),
        }
    }

    /// Tells the waiting clients that a command was not started. One that was to begin again has
    /// ended with this code, as a shell says it.
    fn not_started(&mut self, exec: Exec, error: &Error, code: i32) {
        let id = exec.id;
        self.record_failure(&exec.argv, exec.user.clone(), exec.asker.clone(), error.kind());
        if self.main == Some(id) && self.service.as_ref().is_some_and(|own| own.count > 0) {
            let ending = Ending::Own;
            let exit = Exit { code: Some(code), signal: None, ending, reached: None };
            return self.main_ended(exec, exit);
        }
        if self.main == Some(id) {
            // Told when the sandbox is gone, as an exit is.
            let told = |watcher| (watcher, error.clone());
            self.unstarted = exec.watchers.into_iter().map(told).collect();
            self.finish(Ending::Own, None);
            return;
        }
        self.events.write();
        for watcher in exec.watchers {
            self.answer(watcher, &Reply::Failed(error.clone()));
        }
    }

    /// Kills a command whose clients have all left.
    fn disown(&mut self, id: u64) {
        let signal = msb_sys::signal::SIGKILL;
        if let Way::Jailed(jailed) = &mut self.guest.way {
            // The terminal that came with it, if one did.
            drop(jailed.take_terminal());
            let _ = jailed.ask(&ToGuest::Signal { id, signal }, &[]);
        }
    }

    /// When a command that does not start is looked at next.
    pub(crate) fn next_start_check(&self) -> Option<Instant> {
        let waits = self.execs.values().filter(|exec| !exec.running && exec.over.is_none());
        let first = waits.map(|exec| exec.since + STALL_LIMIT).min()?;
        let still = self.guest.is_paused() || self.is_held() || self.booting.is_some();
        (!still).then(|| first.max(self.start_checked + STALL_LIMIT))
    }

    /// A guest starts a command within milliseconds, unless something inside has stopped the process
    /// that is about to become it: the guest waits for that, and everybody for the guest. That process
    /// is killed if this worker may look for it. What is not started even so has failed, and a guest that
    /// hangs so is ended: nothing could be done in its sandbox any more.
    pub(crate) fn look_at_starts(&mut self, now: Instant) {
        if self.next_start_check().is_none_or(|at| now < at) {
            return;
        }
        self.start_checked = now;
        if self.guest.machine().is_none() {
            processes::kill_stopped_copies(self.guest.confined.pid);
        }
        let late =
            |exec: &&Exec| !exec.running && exec.over.is_none() && now >= exec.since + START_LIMIT;
        let late: Vec<u64> = self.execs.values().filter(late).map(|exec| exec.id).collect();
        let ends = !late.is_empty() && self.guest.machine().is_none();
        if ends {
            self.guest.begin_to_die();
        }
        let hint = match ends {
            true => "something in the sandbox may have stopped it; the sandbox was ended",
            false => "something in the sandbox may have stopped it; `msb stop -f` ends it",
        };
        for id in late {
            let Some(exec) = self.execs.remove(&id) else { continue };
            self.note_busy();
            if exec.own {
                self.checked(exec, None);
                continue;
            }
            let error = Error::new(Kind::Timeout, "the guest did not start the command in time")
                .hint(hint)
                .at(Stage::Exec);
            self.not_started(exec, &error, 126);
        }
    }

    /// A command runs on a terminal whose other end did not come: the host has no room for one
    /// descriptor more, or the guest lies. Only that command has failed.
    fn lost_terminal(&mut self, id: u64) {
        let _ = self.kill_exec(id, msb_sys::signal::SIGKILL);
        self.guest_said(&FromGuest::Failed {
            id,
            failure: SpawnFailure::Process,
            errno: rustix::io::Errno::MFILE.raw_os_error(),
        });
    }

    pub(crate) fn explain(&self, exec: &Exec, failure: SpawnFailure, errno: i32) -> Error {
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

    pub(crate) fn exited(
        &mut self,
        id: u64,
        (code, signal): (Option<i32>, Option<i32>),
        hit: Option<Hit>,
    ) {
        if !self.execs.get(&id).is_some_and(|exec| exec.running && exec.over.is_none()) {
            return;
        }
        self.relay_rest(id);
        let failed = code != Some(0);
        let memory = failed
            && (hit == Some(Hit::Memory)
                || self.life.memory_hit(&self.guest.confined, &mut self.memory_seen));
        let Some(exec) = self.execs.get(&id) else {
            return;
        };
        let ending = match exec.ending {
            Ending::Own if memory => Ending::Memory,
            ending => ending,
        };
        let reached = match hit {
            _ if !failed || ending != Ending::Own => None,
            Some(Hit::Pids) => Some(Reached::Pids),
            Some(Hit::Disk) => Some(Reached::Disk),
            _ => self.reached(),
        };
        let exit = Exit { code, signal, ending, reached };
        let heard = self.life.stopping.is_none() && ending == Ending::Own;
        match self.execs.get_mut(&id) {
            Some(exec) if heard && exec.is_open() && !exec.own => exec.linger(exit),
            _ => self.conclude(id, exit),
        }
    }

    /// Concludes commands that have ended, once nobody speaks for them any more.
    pub(crate) fn look_at_ended(&mut self, now: Instant) {
        let silent = |exec: &&Exec| match exec.over {
            Some(over) => !exec.is_open() || now >= over.until && !self.is_behind(exec),
            None => false,
        };
        let over: Vec<u64> = self.execs.values().filter(silent).map(|exec| exec.id).collect();
        for id in over {
            self.relay_rest(id);
            if let Some(over) = self.execs.get(&id).and_then(|exec| exec.over) {
                self.conclude(id, over.exit);
            }
        }
    }

    /// When that is to be looked at again.
    pub(crate) fn next_silence(&self) -> impl Iterator<Item = Instant> {
        let heard = self.execs.values().filter(|exec| !self.is_behind(exec));
        heard.filter_map(|exec| exec.over.map(|over| over.until))
    }

    /// Whether somebody who watches it has yet to take what was said.
    pub(crate) fn is_behind(&self, exec: &Exec) -> bool {
        let behind = |client: &u64| self.clients.get(client).is_some_and(Client::is_behind);
        exec.watchers.iter().any(behind)
    }

    /// A command is over, and so is what it had to say.
    fn conclude(&mut self, id: u64, exit: Exit) {
        let Some(exec) = self.execs.remove(&id) else {
            return;
        };
        self.note_busy();
        if exec.own {
            return self.checked(exec, Some(exit));
        }
        self.idle.stir();
        if self.main == Some(id) {
            return self.main_ended(exec, exit);
        }
        self.exec_log.line(&ExecRecord::Ended { exec: id, time: now_ms(), exit });
        self.record_end(&exec, exit);
        self.events.write();
        for watcher in exec.watchers {
            self.answer(watcher, &Reply::Exited(exit));
        }
    }

    /// Whether anything runs that the sandbox is for, or is about to.
    pub(crate) fn note_busy(&mut self) {
        let busy = self.execs.values().any(|exec| !exec.own) || self.awaits_restart();
        self.life.set_busy(busy);
    }

    /// Notes who has a command run, and which.
    fn record_start(&mut self, id: u64) {
        let Some(exec) = self.execs.get(&id).filter(|exec| is_recorded(exec.asker.as_ref())) else {
            return;
        };
        let ran = Ran::new(&exec.argv, exec.user.clone(), exec.asker.clone());
        let started = Happened::ExecStarted { exec: id, ran, tty: exec.tty };
        self.record(started);
    }

    /// Notes that a command was asked for in vain.
    pub(crate) fn record_failure(
        &mut self,
        argv: &[String],
        user: Option<String>,
        asker: Option<Asker>,
        reason: Kind,
    ) {
        if is_recorded(asker.as_ref()) {
            self.record(Happened::ExecFailed { ran: Ran::new(argv, user, asker), reason });
        }
    }

    /// Notes how a command has ended.
    pub(crate) fn record_end(&mut self, exec: &Exec, exit: Exit) {
        if is_recorded(exec.asker.as_ref()) {
            let duration_ms = u64::try_from(exec.since.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.record(Happened::ExecEnded { exec: exec.id, exit, duration_ms });
        }
    }

    /// Notes what an interpreter is told, by whom, and how that ended.
    pub(crate) fn record_code(&mut self, exec: u64, note: CodeNote) {
        let user = self.execs.get(&exec).and_then(|exec| exec.user.clone());
        self.record(match note {
            CodeNote::Began { code, cut, by } => {
                // No more than is kept of a command, whatever the client says.
                let kept = Ran::new(&[code], user, by);
                Happened::CodeStarted { exec, ran: Ran { cut: kept.cut.or(cut), ..kept } }
            }
            CodeNote::Ended { status, duration_ms } => {
                Happened::CodeEnded { exec, status, duration_ms }
            }
        });
    }

    /// A limit that something inside has run into since this was last asked.
    fn reached(&mut self) -> Option<Reached> {
        let confined = &self.guest.confined;
        let refused = confined.group.as_ref().map_or(0, msb_jail::cgroup::Group::forks_refused);
        if refused > self.forks_refused {
            self.forks_refused = refused;
            return Some(Reached::Pids);
        }
        // Without a cgroup nobody counts refusals, but what ran into the limit is still there.
        let limit = self.plan.limits.pids.filter(|limit| limit.by == By::Rlimit);
        if let Some(limit) = limit {
            let found = processes::below(confined.pid);
            let threads: u32 = found.iter().map(|process| process.threads).sum();
            // The command itself has just ended.
            if threads + 1 >= limit.value {
                return Some(Reached::Pids);
            }
        }
        confined.limited.as_ref().filter(|fd| processes::is_full(fd)).map(|_| Reached::Disk)
    }

    /// Brings what is in the pipes of a command. What it left behind may fill them for ever, so not more
    /// than fits into the largest.
    fn relay_rest(&mut self, id: u64) {
        const PIPE: usize = 1 << 20;
        for stream in [Stream::Stdout, Stream::Stderr] {
            for _ in 0..PIPE / self.buffer.len() {
                if !self.relay(id, stream) {
                    break;
                }
            }
        }
    }

    /// Brings what a stream has to the log and to whoever watches; true if there may be more.
    pub(crate) fn relay(&mut self, id: u64, stream: Stream) -> bool {
        let Some(exec) = self.execs.get_mut(&id) else {
            return false;
        };
        let exec::Read::Bytes(n) = exec.read(stream, &mut self.buffer) else {
            return false;
        };
        if !exec.own {
            self.idle.stir();
        }
        tell(&mut self.output, &mut self.clients, exec, stream, &self.buffer[..n]);
        true
    }
}

/// What looks after the health of a sandbox would push everything else out of the log.
fn is_recorded(asker: Option<&Asker>) -> bool {
    asker.is_none_or(|asker| asker.surface() != Surface::Health)
}

/// Brings some output to the log and to whoever watches.
pub(crate) fn tell(
    log: &mut Log,
    clients: &mut BTreeMap<u64, Client>,
    exec: &Exec,
    stream: Stream,
    bytes: &[u8],
) {
    let (source, kind) = match stream {
        Stream::Stdout => (Source::Stdout, FrameKind::Stdout),
        Stream::Stderr => (Source::Stderr, FrameKind::Stderr),
    };
    if !exec.unlogged {
        log.output(source, exec.id, bytes);
    }
    for watcher in &exec.watchers {
        if let Some(client) = clients.get_mut(watcher) {
            client.output(kind, bytes);
        }
    }
}
