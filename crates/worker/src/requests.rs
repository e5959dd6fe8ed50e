//! What clients ask of a worker.

use crate::client::{self, Client, Role};
use crate::exec::{Ends, Exec, Stream};
use crate::guest::{Unasked, Way};
use crate::log::now_ms;
use crate::machine::Asked;
use crate::worker::Worker;
use msb_spec::{Command, Ending, Error, Exit, Kind, Result, Stdin, UserRef};
use msb_sys::signal;
use msb_wire::record::{Happened, Woken};
use msb_wire::{
    ExecState, ExecStatus, FrameKind, Hello, Reply, Request, ToGuest, ToMachine, WorkerStatus,
    encode,
};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// The numbers of the worker's own Execs begin here, so that those of clients have no gaps.
pub(crate) const OWN: u64 = 1 << 63;

impl Worker {
    pub(crate) fn accept(&mut self) {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        if let Ok(socket) = rustix::net::accept_with(&self.listener, flags)
            && let Ok(client) = Client::new(socket, Role::New)
        {
            let id = self.next_client;
            self.clients.insert(id, client);
            self.next_client += 1;
            // What it wants has usually come with it.
            self.hear_client(id);
        }
    }

    pub(crate) fn hear_client(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.silent {
            return;
        }
        if matches!(client.receive(&mut self.buffer), client::Read::Ended) {
            client.silent = true;
            return;
        }
        loop {
            let Some(client) = self.clients.get_mut(&id) else {
                return;
            };
            let frame = match client.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => {
                    let message = "the client sent something that is not a request";
                    return client.refuse(Error::new(Kind::Protocol, message).cause(error));
                }
            };
            match (client.role, frame.kind) {
                (Role::New, FrameKind::Hello) => self.greeted(id, &frame.payload),
                (Role::Exec(exec), kind) => self.steer(exec, kind, &frame.payload),
                (Role::Owner, FrameKind::Go) if self.plan.init.is_some() => {
                    self.hand_over(Some(id));
                }
                (Role::Owner, FrameKind::Go) => {
                    self.complete();
                    self.start_first();
                }
                (Role::Owner, FrameKind::Detach) => client.role = Role::Leaving,
                _ => {
                    let error = Error::new(Kind::Protocol, "the client spoke out of turn");
                    return client.refuse(error);
                }
            }
        }
    }

    /// The first frame of a connection.
    pub(crate) fn greeted(&mut self, id: u64, payload: &[u8]) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let hello: Hello = match msb_wire::decode(payload) {
            Ok(hello) => hello,
            Err(_) => {
                return client.refuse(
                    Error::new(
                        Kind::Protocol,
                        "this sandbox was started by another version of msb",
                    )
                    .hint("stop it with the version that started it, or `msb stop -f`"),
                );
            }
        };
        if hello.version != msb_wire::VERSION {
            let message = format!(
                "this sandbox speaks protocol {}, the client {}",
                msb_wire::VERSION,
                hello.version
            );
            return client.refuse(Error::new(Kind::Protocol, message));
        }
        match hello.request {
            Request::Exec(command) => self.start_exec(id, command),
            Request::Attach { id: exec } => self.attach(id, exec),
            Request::Kill { id: exec, signal } => {
                // None of ours is anybody's.
                let exec = if exec >= OWN { 0 } else { exec };
                self.wake(Woken::Exec);
                let reply = self.kill_exec(exec, signal);
                self.answer(id, &reply);
            }
            Request::List => {
                let shown = self.execs.values().filter(|exec| exec.running && !exec.own);
                let reply = Reply::Execs(shown.map(status).collect());
                self.answer(id, &reply);
            }
            Request::Files { user } => {
                self.wake(Woken::Files);
                self.pass_on(id, &ToGuest::Files { user });
            }
            Request::Sftp { user } => {
                self.wake(Woken::Files);
                let user = self.user(user);
                self.pass_on(id, &ToGuest::Sftp { user });
            }
            leads @ (Request::Dial { .. } | Request::Listen { .. } | Request::Accept { .. }) => {
                self.lead(id, leads);
            }
            Request::Layer if self.guest.machine_mut().is_some() => {
                self.pass_on(id, &ToGuest::Layer);
            }
            Request::Layer => {
                let error = Error::unsupported("only a microVM tells what is on its disks");
                self.answer(id, &Reply::Failed(error));
            }
            Request::Status => {
                let reply = Reply::Status(self.status());
                self.answer(id, &reply);
            }
            Request::Usage => self.measure(Some(id)),
            Request::History => {
                let reply = Reply::History(self.history());
                self.answer(id, &reply);
            }
            Request::Head => {
                self.events.write();
                let reply = Reply::Head(self.events.head().clone());
                self.answer(id, &reply);
            }
            Request::Stop { grace } => {
                self.set_role(id, Role::Waiting);
                self.stop(Ending::Stopped, Duration::from_millis(grace));
            }
            Request::Drain => {
                self.wake(Woken::Asked);
                self.life.draining = true;
                self.record(Happened::Draining);
                self.answer(id, &Reply::Done);
            }
            Request::Pause => self.order(id, true),
            Request::Resume => self.order(id, false),
            Request::Hold => self.hold(id),
            Request::Network(what) => self.ask_gateway(id, &what),
            Request::Wait => self.set_role(id, Role::Waiting),
            Request::Renew { left } => {
                let reply = self.renew(left.map(Duration::from_millis));
                self.answer(id, &reply);
            }
            Request::Modify { change, dry_run } => {
                let reply = self.modify(&change, dry_run);
                self.answer(id, &reply);
            }
            Request::Own => {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.role = Role::Owner;
                    client.reply(&Reply::Done);
                }
            }
        }
    }

    /// A stream that leads inside, or somebody who listens there for one.
    fn lead(&mut self, id: u64, request: Request) {
        if self.guest.asked {
            // It would be no part of what stands still.
            let error = self.paused();
            return self.answer(id, &Reply::Failed(error));
        }
        self.wake(Woken::Traffic);
        let what = match request {
            Request::Dial { user, to } => ToGuest::Dial { user: self.user(user), to },
            Request::Listen { user, at, id } => ToGuest::Listen { user: self.user(user), at, id },
            Request::Accept { listener, number } => ToGuest::Accept { listener, number },
            _ => return,
        };
        self.pass_on(id, &what);
    }

    /// Who does it, where nobody was named.
    fn user(&self, asked: Option<UserRef>) -> Option<UserRef> {
        asked.or_else(|| self.plan.user.clone())
    }

    pub(crate) fn answer(&mut self, id: u64, reply: &Reply) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.answer(reply);
        }
    }

    pub(crate) fn set_role(&mut self, id: u64, role: Role) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.role = role;
        }
    }

    fn renew(&mut self, left: Option<Duration>) -> Reply {
        if self.life.stopping.is_some() {
            let message = format!("sandbox `{}` is ending", self.plan.name);
            return Reply::Failed(Error::new(Kind::State, message));
        }
        self.life.renew(left);
        let status = self.status();
        self.record(Happened::Renewed { ends: status.ends });
        Reply::Status(status)
    }

    pub(crate) fn status(&self) -> WorkerStatus {
        let until = |end: Instant| end.saturating_duration_since(Instant::now()).as_millis() as u64;
        WorkerStatus {
            pid: std::process::id(),
            started: self.life.began,
            draining: self.life.draining,
            paused: self.guest.is_paused(),
            asleep: self.idle.asleep(),
            execs: u32::try_from(self.execs.values().filter(|exec| !exec.own).count())
                .unwrap_or(u32::MAX),
            restarts: self.service.as_ref().map_or(0, |service| service.count),
            health: self.health.as_ref().map(|health| health.status),
            ends: self.life.ends().map(|end| now_ms().saturating_add(until(end))),
            ending: self.life.stopping.map(|(ending, _)| ending),
            log_failure: [self.output.failure(), self.exec_log.failure(), self.events.failure()]
                .into_iter()
                .find_map(|failure| failure.map(ToString::to_string)),
        }
    }

    /// Hands the connection to the guest, which answers on it from now on.
    pub(crate) fn pass_on(&mut self, id: u64, what: &ToGuest) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        let Ok(socket) = client.into_socket() else { return };
        match &mut self.guest.way {
            Way::Jailed(jailed) => {
                let leads = matches!(
                    what,
                    ToGuest::Sftp { .. } | ToGuest::Dial { .. } | ToGuest::Listen { .. }
                );
                let kept = leads.then(|| self.streams.add()).flatten();
                let kept = kept.iter().map(AsFd::as_fd);
                let asked = jailed.ask(what, &kept.chain([socket.as_fd()]).collect::<Vec<_>>());
                // A client that waits for an answer of the guest's gets this one instead.
                if let Err(error) = asked
                    && let Ok(mut client) = Client::new(socket, Role::Leaving)
                {
                    match what {
                        ToGuest::Files { .. } => client.refuse_files(error.message()),
                        _ => client.refuse(error),
                    }
                    self.clients.insert(id, client);
                }
            }
            Way::Machine(machine) => {
                let frame = encode(FrameKind::Control, what);
                machine.ask(match what {
                    ToGuest::Dial { .. } | ToGuest::Accept { .. } => Asked::Stream(socket, frame),
                    _ => Asked::Files(socket, frame),
                });
                self.use_connections();
            }
        }
    }

    /// What a client says to the Exec that it watches.
    pub(crate) fn steer(&mut self, id: u64, kind: FrameKind, payload: &[u8]) {
        self.wake(Woken::Exec);
        let Some(exec) = self.execs.get_mut(&id) else {
            return;
        };
        match kind {
            FrameKind::Stdin => exec.feed(payload),
            FrameKind::Detach => exec.detached = true,
            FrameKind::Note => {
                if let Ok(note) = msb_wire::decode(payload) {
                    self.record_code(id, note);
                }
            }
            FrameKind::Hush if exec.watchers.len() == 1 => {
                exec.hush(if payload == [2] { Stream::Stderr } else { Stream::Stdout });
            }
            FrameKind::Resize => {
                if let Ok(size) = msb_wire::decode(payload) {
                    exec.resize(size);
                }
            }
            FrameKind::Signal => {
                if let Ok(signal) = msb_wire::decode(payload) {
                    let _ = self.kill_exec(id, signal);
                }
            }
            _ => {}
        }
    }

    pub(crate) fn kill_exec(&mut self, id: u64, signal: i32) -> Reply {
        let Some(exec) = self.execs.get_mut(&id) else {
            let hint = "`msb ps NAME --execs` lists what runs";
            return Reply::Failed(
                Error::new(Kind::NotFound, format!("no Exec `{id}` runs")).hint(hint),
            );
        };
        if !(0..=64).contains(&signal) {
            return Reply::Failed(Error::invalid(format!("no such signal: `{signal}`")));
        }
        match &mut self.guest.way {
            // Not on its own connection, where it would wait behind what the command does not
            // read.
            Way::Machine(machine) if exec.running => {
                machine.tell(&ToMachine::Signal { id, signal });
                Reply::Done
            }
            Way::Machine(_) => {
                exec.signals.push(signal);
                Reply::Done
            }
            Way::Jailed(jailed) => match jailed.ask(&ToGuest::Signal { id, signal }, &[]) {
                Ok(()) => Reply::Done,
                Err(error) => Reply::Failed(error),
            },
        }
    }

    /// A client has gone: its Exec goes with it unless it was told to stay.
    pub(crate) fn lost(&mut self, id: u64) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        match client.role {
            Role::Exec(exec) => {
                let Some(exec) = self.execs.get_mut(&exec) else {
                    return;
                };
                exec.watchers.retain(|watcher| *watcher != id);
                if exec.watchers.is_empty() && !exec.detached {
                    exec.ending = Ending::Stopped;
                    let exec = exec.id;
                    let _ = self.kill_exec(exec, signal::SIGKILL);
                }
            }
            Role::Owner => self.stop(Ending::Stopped, Duration::ZERO),
            Role::Holder => self.release(),
            Role::New | Role::Delayed | Role::Waiting | Role::Leaving => {}
        }
    }

    /// Says why a command is not even begun.
    fn refuse_exec(&mut self, client: u64, command: &Command, error: Error) {
        let user = command.user.as_ref().map(ToString::to_string);
        self.record_failure(&command.argv, user, command.asker.clone(), error.kind());
        self.events.write();
        self.answer(client, &Reply::Failed(error));
    }

    pub(crate) fn start_exec(&mut self, client: u64, command: Command) {
        if self.life.draining || self.life.stopping.is_some() {
            let error =
                Error::new(Kind::State, format!("sandbox `{}` takes no new Execs", self.plan.name));
            return self.refuse_exec(client, &command, error);
        }
        self.wake(Woken::Exec);
        if self.guest.asked {
            let error = self.paused();
            return self.refuse_exec(client, &command, error);
        }
        if self.is_held() || self.idle.between() {
            // It is not for long, and nobody asked for it who could be asked to end it.
            self.set_role(client, Role::Delayed);
            return self.delayed.push((client, command));
        }
        if self.guest.is_paused() {
            let error = self.paused();
            return self.refuse_exec(client, &command, error);
        }
        let id = self.next_exec;
        match self.begin_exec(id, Some(client), command) {
            Ok(()) => {}
            // Told when the sandbox is gone, as an exit is.
            Err(error) if self.main == Some(id) => {
                self.unstarted = vec![(client, error)];
                self.finish(Ending::Own, None);
            }
            Err(error) => self.answer(client, &Reply::Failed(error)),
        }
    }

    /// Begins the first command again, for nobody.
    pub(crate) fn start_alone(&mut self, command: Command) {
        let command = Command { detached: true, tty: None, stdin: Stdin::Closed, ..command };
        let id = self.next_exec;
        let unbegun = Exec::remote(id, &command);
        if self.begin_exec(id, None, command).is_err() {
            // Without room for pipes it has failed like one that could not be executed: what is
            // begun again is begun again later.
            self.next_exec += 1;
            let (code, ending) = (Some(126), Ending::Own);
            self.main_ended(unbegun, Exit { code, signal: None, ending, reached: None });
        }
    }

    /// Begins a command that is the worker's own; its number, if that could be done.
    pub(crate) fn start_own(&mut self, command: Command) -> Option<u64> {
        let id = OWN + self.own_execs;
        self.own_execs += 1;
        self.begin_exec(id, None, command).ok().map(|()| id)
    }

    fn begin_exec(&mut self, id: u64, client: Option<u64>, command: Command) -> Result<()> {
        let remote = self.guest.machine().is_some();
        let made = match remote {
            true => Ok((Exec::remote(id, &command), Ends::default())),
            false => Exec::new(id, &command, self.plan.ids.root()),
        };
        let (mut exec, ends) = made.map_err(|error| {
            let error = Error::host("cannot make pipes for the command", error);
            let user = command.user.as_ref().map(ToString::to_string);
            self.record_failure(&command.argv, user, command.asker.clone(), error.kind());
            self.events.write();
            error
        })?;
        exec.own = id >= OWN;
        exec.watchers.extend(client);
        let mut env = self.plan.env.clone();
        env.extend(command.env);
        let mut rlimits = self.plan.rlimits.clone();
        rlimits.extend(command.rlimits);
        let asked = ToGuest::Exec {
            id,
            argv: command.argv,
            env: env.into_iter().collect(),
            workdir: command.workdir.unwrap_or_else(|| self.plan.workdir.clone()),
            user: command.user.or_else(|| self.plan.user.clone()),
            tty: command.tty,
            rlimits,
            last: self.main == Some(id) && self.service.is_none(),
            sweep: exec.own || self.main == Some(id) && self.service.is_some(),
        };
        let asked = encode(FrameKind::Control, &asked);
        if asked.len() > msb_wire::MAX_REQUEST {
            let message = "the command and its environment are too large";
            return Err(Error::new(Kind::Limit, message));
        }
        let sent = match &self.guest.way {
            Way::Machine(_) => Ok(()),
            Way::Jailed(jailed) => jailed.send(&asked, &ends.borrow()),
        };
        if let Err(Unasked::Shortage(error)) = sent {
            let user = exec.user.clone();
            self.record_failure(&exec.argv, user, exec.asker.clone(), error.kind());
            self.events.write();
            return Err(error);
        }
        if !exec.own {
            self.next_exec += 1;
        }
        if let Some(client) = client {
            self.set_role(client, Role::Exec(id));
        }
        self.execs.insert(id, exec);
        self.note_busy();
        if sent.is_err() {
            // Watching clients are told at the end.
            self.finish(Ending::Crashed, None);
        } else if let Way::Machine(machine) = &mut self.guest.way {
            machine.ask(Asked::Exec(id, asked));
            self.use_connections();
        }
        Ok(())
    }

    pub(crate) fn attach(&mut self, client: u64, id: u64) {
        self.wake(Woken::Exec);
        let shown = |exec: &&mut Exec| exec.running && !exec.own;
        let Some(exec) = self.execs.get_mut(&id).filter(shown) else {
            let error = Error::new(Kind::NotFound, format!("no Exec `{id}` runs")).hint(
                "`msb ps NAME --execs` lists what runs; `msb logs NAME --exec ID` what was said",
            );
            return self.answer(client, &Reply::Failed(error));
        };
        let Some(attached) = self.clients.get_mut(&client) else {
            return;
        };
        attached.role = Role::Exec(id);
        attached.reply(&Reply::Started { id, pid: exec.pid });
        if !exec.recent().is_empty() {
            attached.output(FrameKind::Stdout, exec.recent());
        }
        exec.watchers.push(client);
    }
}

fn status(exec: &Exec) -> ExecStatus {
    ExecStatus {
        id: exec.id,
        pid: exec.pid,
        argv: exec.argv.clone(),
        tty: exec.tty,
        started: exec.started,
        state: ExecState::Running,
    }
}
