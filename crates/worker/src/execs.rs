//! What becomes of Execs: started, relayed, ended. Told by the guest, believed only in part.

use crate::client::Client;
use crate::exec::{self, Exec, Stream};
use crate::guest::Way;
use crate::log::{Log, now_ms};
use crate::processes;
use crate::worker::Worker;
use msb_spec::{By, Ending, Error, Exit, Kind, Reached, Stage};
use msb_wire::record::{ExecRecord, Source};
use msb_wire::{FrameKind, FromGuest, Hit, Reply, SpawnFailure, ToMachine};
use std::collections::BTreeMap;

impl Worker {
    pub(crate) fn hear_guest(&mut self) {
        let Way::Jailed(jailed) = &mut self.guest.way else { return self.hear_machine() };
        if !jailed.receive() {
            return self.finish(Ending::Crashed, None);
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
            FromGuest::Started { id, pid } => {
                let quiet = self.main == Some(id) && self.is_quiet();
                let Some(exec) = self.execs.get_mut(&id).filter(|exec| !exec.running) else {
                    return;
                };
                if let (true, Way::Jailed(jailed)) = (exec.tty, &mut self.guest.way) {
                    let terminal = jailed.take_terminal();
                    if terminal.is_none_or(|terminal| exec.set_terminal(terminal).is_err()) {
                        return self.finish(Ending::Crashed, None);
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
                for watcher in &exec.watchers {
                    if let Some(client) = self.clients.get_mut(watcher) {
                        let started = Reply::Started { id, pid };
                        if quiet { client.hold(&started) } else { client.reply(&started) }
                    }
                }
                if !(self.plan.ephemeral && self.main == Some(id)) {
                    self.exec_log.line(&record);
                }
            }
            FromGuest::Failed { id, failure, errno } => {
                let Some(exec) = self.execs.remove(&id) else {
                    return;
                };
                self.life.set_busy(!self.execs.is_empty());
                let error = self.explain(&exec, failure, errno);
                if self.main == Some(id) {
                    // Told when the sandbox is gone, as an exit is.
                    let told = |watcher| (watcher, error.clone());
                    self.unstarted = exec.watchers.into_iter().map(told).collect();
                    self.finish(Ending::Own, None);
                    return;
                }
                for watcher in exec.watchers {
                    self.answer(watcher, &Reply::Failed(error.clone()));
                }
            }
            FromGuest::Exited { id, code, signal, alone, hit } => {
                self.alone = alone;
                self.exited(id, (code, signal), hit);
            }
            FromGuest::Paused { paused } => self.stood_still(paused),
        }
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
            SpawnFailure::Rlimit => Error::new(Kind::Invalid, "a resource limit was refused")
                .hint("a sandbox cannot raise a limit above the host's own"),
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
        if !self.execs.get(&id).is_some_and(|exec| exec.running) {
            return;
        }
        // What it said before it ended is still in the pipes; what others hold open is not
        // waited for.
        for stream in [Stream::Stdout, Stream::Stderr] {
            while self.relay(id, stream) {}
        }
        let failed = code != Some(0);
        let memory = failed
            && (hit == Some(Hit::Memory)
                || self.life.memory_hit(&self.guest.confined, &mut self.memory_seen));
        let Some(exec) = self.execs.remove(&id) else {
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
        self.life.set_busy(!self.execs.is_empty());
        if self.main == Some(id) {
            // Its watchers are told when the sandbox is gone, so that its name is free then.
            self.execs.insert(id, exec);
            return self.finish(ending, Some(exit));
        }
        self.exec_log.line(&ExecRecord::Ended { exec: id, time: now_ms(), exit });
        for watcher in exec.watchers {
            self.answer(watcher, &Reply::Exited(exit));
        }
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

    /// Brings what a stream has to the log and to whoever watches; true if there may be more.
    pub(crate) fn relay(&mut self, id: u64, stream: Stream) -> bool {
        let Some(exec) = self.execs.get_mut(&id) else {
            return false;
        };
        let exec::Read::Bytes(n) = exec.read(stream, &mut self.buffer) else {
            return false;
        };
        tell(&mut self.output, &mut self.clients, exec, stream, &self.buffer[..n]);
        true
    }
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
