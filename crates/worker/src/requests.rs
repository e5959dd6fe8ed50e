//! Handles requests of clients.

use crate::client::{self, ClientConn, ClientRole};
use crate::exec::{ChildStreams, ExecHandle, OutputStream};
use crate::execs::FIRST_INTERNAL_ID;
use crate::guest::{GuestSendError, GuestTransport};
use crate::log::now_ms;
use crate::microvm::PendingRequest;
use crate::worker::Worker;
use msb_spec::{Command, Ending, Error, Exit, Kind, Result, Stdin, UserRef};
use msb_sys::signal;
use msb_wire::record::{EventKind, WakeReason};
use msb_wire::{
    ExecState, ExecStatus, FrameKind, Hello, Reply, Request, ToGuest, ToMachine, WorkerStatus,
    encode,
};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

impl Worker {
    pub(crate) fn accept(&mut self) {
        let flags = rustix::net::SocketFlags::CLOEXEC;
        if let Ok(socket) = rustix::net::accept_with(&self.listener, flags) {
            self.add_client(socket);
        }
    }

    /// Adds a client's connection and reads its request, which has usually arrived with it.
    pub(crate) fn add_client(&mut self, socket: OwnedFd) -> u64 {
        let id = self.clients.accept(socket, self.clock.now());
        self.read_client(id);
        id
    }

    pub(crate) fn read_client(&mut self, id: u64) {
        let Some(client) = self.clients.get_mut(id) else {
            return;
        };
        if client.closed {
            return;
        }
        if matches!(client.receive(&mut self.buffer), client::ClientRead::Ended) {
            client.closed = true;
            return;
        }
        loop {
            let Some(client) = self.clients.get_mut(id) else {
                return;
            };
            if client.role == ClientRole::Leaving {
                // It has its last reply, and may have sent this before.
                return client.discard();
            }
            let frame = match client.next() {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => {
                    let message = "the client sent something that is not a request";
                    return client.refuse(Error::new(Kind::Protocol, message).cause(error));
                }
            };
            match (client.role, frame.kind) {
                (ClientRole::New, FrameKind::Hello) => self.on_hello(id, &frame.payload),
                (ClientRole::Exec(exec), kind) => self.on_exec_frame(exec, kind, &frame.payload),
                (ClientRole::Owner, FrameKind::Go) if self.plan.init.is_some() => {
                    self.start_init(Some(id));
                }
                (ClientRole::Owner, FrameKind::Go) => {
                    self.mark_created();
                    self.start_main();
                }
                (ClientRole::Owner, FrameKind::Detach) => client.role = ClientRole::Leaving,
                _ => {
                    let error = Error::new(Kind::Protocol, "the client sent an unexpected frame");
                    return client.refuse(error);
                }
            }
        }
    }

    /// Handles the first frame of a connection, which holds its request.
    pub(crate) fn on_hello(&mut self, id: u64, payload: &[u8]) {
        let Some(client) = self.clients.get_mut(id) else {
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
                // Execs of the worker itself are not visible to clients.
                let exec = if exec >= FIRST_INTERNAL_ID { 0 } else { exec };
                self.wake(WakeReason::Exec);
                let reply = self.kill_exec(exec, signal);
                self.answer(id, &reply);
            }
            Request::List => {
                let visible = self.execs.visible().filter(|exec| exec.running);
                let reply = Reply::Execs(visible.map(status).collect());
                self.answer(id, &reply);
            }
            Request::Files { user } => {
                self.wake(WakeReason::Files);
                self.hand_to_guest(id, &ToGuest::Files { user });
            }
            Request::Sftp { user } => {
                self.wake(WakeReason::Files);
                let user = self.default_user(user);
                self.hand_to_guest(id, &ToGuest::Sftp { user });
            }
            stream_request @ (Request::Dial { .. }
            | Request::Listen { .. }
            | Request::Accept { .. }) => {
                self.open_stream(id, stream_request);
            }
            Request::Layer if self.guest.vm_mut().is_some() => {
                self.hand_to_guest(id, &ToGuest::Layer);
            }
            Request::Layer => {
                let error = Error::unsupported("only a microVM can export its writable layer");
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
                self.logs.events.flush();
                let reply = Reply::Head(self.logs.events.head().clone());
                self.answer(id, &reply);
            }
            Request::Stop { grace } => {
                self.set_role(id, ClientRole::Waiting);
                self.stop(Ending::Stopped, Duration::from_millis(grace));
            }
            Request::Drain => {
                self.wake(WakeReason::Asked);
                self.lifetime.draining = true;
                self.record_state(EventKind::Draining);
                self.answer(id, &Reply::Done);
            }
            Request::Pause => self.pause_or_resume(id, true),
            Request::Resume => self.pause_or_resume(id, false),
            Request::Hold => self.hold_for_copy(id),
            Request::Network(what) => self.forward_to_gateway(id, &what),
            Request::Wait => self.set_role(id, ClientRole::Waiting),
            Request::Renew { left } => {
                let reply = self.renew(left.map(Duration::from_millis));
                self.answer(id, &reply);
            }
            Request::Modify { change, dry_run } => {
                let reply = self.modify(&change, dry_run);
                self.answer(id, &reply);
            }
            Request::Own => {
                if let Some(client) = self.clients.get_mut(id) {
                    client.role = ClientRole::Owner;
                    client.reply(&Reply::Done);
                }
            }
        }
    }

    /// Opens a stream into the sandbox, or listens inside for connections.
    fn open_stream(&mut self, id: u64, request: Request) {
        if self.guest.paused_by_user {
            // The process of the stream would not be frozen with the others.
            let error = self.paused_error();
            return self.answer(id, &Reply::Failed(error));
        }
        self.wake(WakeReason::Traffic);
        let what = match request {
            Request::Dial { user, to } => ToGuest::Dial { user: self.default_user(user), to },
            Request::Listen { user, at, id } => {
                ToGuest::Listen { user: self.default_user(user), at, id }
            }
            Request::Accept { listener, number } => ToGuest::Accept { listener, number },
            _ => return,
        };
        self.hand_to_guest(id, &what);
    }

    /// The given user, or the default user of the sandbox.
    fn default_user(&self, user: Option<UserRef>) -> Option<UserRef> {
        user.or_else(|| self.plan.user.clone())
    }

    pub(crate) fn answer(&mut self, id: u64, reply: &Reply) {
        self.clients.answer(id, reply);
    }

    pub(crate) fn set_role(&mut self, id: u64, role: ClientRole) {
        self.clients.set_role(id, role);
    }

    fn renew(&mut self, left: Option<Duration>) -> Reply {
        if self.lifetime.stopping.is_some() {
            let message = format!("sandbox `{}` is ending", self.plan.name);
            return Reply::Failed(Error::new(Kind::State, message));
        }
        self.lifetime.renew(left, self.clock.now());
        let status = self.status();
        self.record(EventKind::Renewed { ends: status.ends });
        Reply::Status(status)
    }

    pub(crate) fn status(&self) -> WorkerStatus {
        let now = self.clock.now();
        let until = |end: Instant| end.saturating_duration_since(now).as_millis() as u64;
        WorkerStatus {
            pid: std::process::id(),
            started: self.lifetime.started_ms,
            draining: self.lifetime.draining,
            paused: self.guest.is_paused(),
            asleep: self.idle.is_paused(),
            execs: u32::try_from(self.execs.visible().count()).unwrap_or(u32::MAX),
            restarts: self.supervisor.as_ref().map_or(0, |supervisor| supervisor.count),
            health: self.health.as_ref().map(|health| health.status),
            ends: self.lifetime.deadline().map(|end| now_ms().saturating_add(until(end))),
            ending: self.lifetime.stopping.map(|(ending, _)| ending),
            log_failure: self.logs.failure(),
        }
    }

    /// Passes the connection to the guest, which replies on it from now on.
    pub(crate) fn hand_to_guest(&mut self, id: u64, what: &ToGuest) {
        let Some(client) = self.clients.remove(id) else {
            return;
        };
        let Some(socket) = client.into_socket() else { return };
        match &mut self.guest.transport {
            GuestTransport::Jail(jail) => {
                let stream_request = matches!(
                    what,
                    ToGuest::Sftp { .. } | ToGuest::Dial { .. } | ToGuest::Listen { .. }
                );
                let kept = stream_request.then(|| self.guest.streams.add()).flatten();
                let kept = kept.iter().map(AsFd::as_fd);
                let sent = jail.request(what, &kept.chain([socket.as_fd()]).collect::<Vec<_>>());
                // The client expects a reply of the guest, so it gets the error in that format.
                if let Err(error) = sent {
                    let mut client = ClientConn::new(socket, ClientRole::Leaving, self.clock.now());
                    match what {
                        ToGuest::Files { .. } => client.refuse_files(error.message()),
                        _ => client.refuse(error),
                    }
                    self.clients.insert(id, client);
                }
            }
            GuestTransport::Vm(vm) => {
                let frame = encode(FrameKind::Control, what);
                vm.enqueue(match what {
                    ToGuest::Dial { .. } | ToGuest::Accept { .. } => {
                        PendingRequest::Stream(socket, frame)
                    }
                    _ => PendingRequest::Files(socket, frame),
                });
                self.assign_connections();
            }
        }
    }

    /// Handles a frame of a client that is attached to an Exec.
    pub(crate) fn on_exec_frame(&mut self, id: u64, kind: FrameKind, payload: &[u8]) {
        self.wake(WakeReason::Exec);
        let Some(exec) = self.execs.get_mut(id) else {
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
            FrameKind::CloseOutput if exec.watchers.len() == 1 => {
                exec.close_output(if payload == [2] {
                    OutputStream::Stderr
                } else {
                    OutputStream::Stdout
                });
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
        let Some(exec) = self.execs.get_mut(id) else {
            let hint = "`msb ps NAME --execs` lists running Execs";
            return Reply::Failed(
                Error::new(Kind::NotFound, format!("no Exec `{id}` runs")).hint(hint),
            );
        };
        if !(0..=64).contains(&signal) {
            return Reply::Failed(Error::invalid(format!("no such signal: `{signal}`")));
        }
        match &mut self.guest.transport {
            // Sent on the control connection: on the Exec's own it would wait behind unread stdin.
            GuestTransport::Vm(vm) if exec.running => {
                vm.send_control(&ToMachine::Signal { id, signal });
                Reply::Done
            }
            GuestTransport::Vm(_) => {
                exec.signals.push(signal);
                Reply::Done
            }
            GuestTransport::Jail(jail) => {
                match jail.request(&ToGuest::Signal { id, signal }, &[]) {
                    Ok(()) => Reply::Done,
                    Err(error) => Reply::Failed(error),
                }
            }
        }
    }

    /// A client has disconnected: its Exec is killed unless it is detached, or has another client.
    pub(crate) fn on_client_disconnect(&mut self, id: u64) {
        let Some(client) = self.clients.get(id) else {
            return;
        };
        match client.role {
            ClientRole::Exec(exec) => {
                let Some(exec) = self.execs.get_mut(exec) else {
                    return;
                };
                exec.watchers.retain(|watcher| *watcher != id);
                if exec.watchers.is_empty() && !exec.detached {
                    exec.ending = Ending::Stopped;
                    let exec = exec.id;
                    let _ = self.kill_exec(exec, signal::SIGKILL);
                }
            }
            ClientRole::Owner => self.stop(Ending::Stopped, Duration::ZERO),
            ClientRole::Holder => self.release_hold(),
            ClientRole::New | ClientRole::Delayed | ClientRole::Waiting | ClientRole::Leaving => {}
        }
    }

    /// Records and reports that a command is not started.
    fn refuse_exec(&mut self, client: u64, command: &Command, error: Error) {
        let user = command.user.as_ref().map(ToString::to_string);
        self.record_failure(&command.argv, user, command.origin.clone(), error.kind());
        self.logs.events.flush();
        self.answer(client, &Reply::Failed(error));
    }

    pub(crate) fn start_exec(&mut self, client: u64, command: Command) {
        if self.lifetime.draining || self.lifetime.stopping.is_some() {
            let name = &self.plan.name;
            let state = if self.lifetime.draining { "draining" } else { "stopping" };
            let message = format!("sandbox `{name}` is {state} and takes no new commands");
            let error = Error::new(Kind::State, message);
            return self.refuse_exec(client, &command, error);
        }
        self.wake(WakeReason::Exec);
        if self.guest.paused_by_user {
            let error = self.paused_error();
            return self.refuse_exec(client, &command, error);
        }
        if self.is_held_for_copy() || self.idle.is_transitioning() {
            // The delay is short, and no client has paused the sandbox that could resume it.
            self.set_role(client, ClientRole::Delayed);
            return self.execs.delayed.push((client, command));
        }
        if self.guest.is_paused() {
            let error = self.paused_error();
            return self.refuse_exec(client, &command, error);
        }
        let id = self.execs.next_id;
        match self.spawn_exec(id, Some(client), command) {
            Ok(()) => {}
            // The client is told when the sandbox is gone, as it is of an exit.
            Err(error) if self.execs.is_main(id) => {
                self.execs.failed_main = vec![(client, error)];
                self.finish(Ending::Own, None);
            }
            Err(error) => self.answer(client, &Reply::Failed(error)),
        }
    }

    /// Starts the main command again, detached from any client.
    pub(crate) fn start_main_detached(&mut self, command: Command) {
        let command = Command { detached: true, tty: None, stdin: Stdin::Closed, ..command };
        let id = self.execs.next_id;
        let unstarted = ExecHandle::in_vm(id, &command, self.clock.now());
        if self.spawn_exec(id, None, command).is_err() {
            // Without descriptors for pipes it counts as failed with 126, and the restart policy
            // applies.
            self.execs.next_id += 1;
            let (code, ending) = (Some(126), Ending::Own);
            self.on_main_exited(unstarted, Exit { code, signal: None, ending, reached: None });
        }
    }

    /// Starts a command of the worker itself. Returns its number, or none on failure.
    pub(crate) fn start_internal(&mut self, command: Command) -> Option<u64> {
        let id = self.execs.next_internal_id();
        self.spawn_exec(id, None, command).ok().map(|()| id)
    }

    fn spawn_exec(&mut self, id: u64, client: Option<u64>, command: Command) -> Result<()> {
        let (in_vm, now) = (self.guest.vm().is_some(), self.clock.now());
        let made = match in_vm {
            true => Ok((ExecHandle::in_vm(id, &command, now), ChildStreams::default())),
            false => ExecHandle::new(id, &command, self.plan.ids.root(), now),
        };
        let (mut exec, streams) = made.map_err(|error| {
            let error = Error::host("cannot make pipes for the command", error);
            let user = command.user.as_ref().map(ToString::to_string);
            self.record_failure(&command.argv, user, command.origin.clone(), error.kind());
            self.logs.events.flush();
            error
        })?;
        exec.internal = id >= FIRST_INTERNAL_ID;
        exec.watchers.extend(client);
        let mut env = self.plan.env.clone();
        env.extend(command.env);
        let mut rlimits = self.plan.rlimits.clone();
        rlimits.extend(command.rlimits);
        let request = ToGuest::Exec {
            id,
            argv: command.argv,
            env: env.into_iter().collect(),
            workdir: command.workdir.unwrap_or_else(|| self.plan.workdir.clone()),
            user: command.user.or_else(|| self.plan.user.clone()),
            tty: command.tty,
            rlimits,
            last: self.execs.is_main(id) && self.supervisor.is_none(),
            sweep: exec.internal || self.execs.is_main(id) && self.supervisor.is_some(),
        };
        let frame = encode(FrameKind::Control, &request);
        if frame.len() > msb_wire::MAX_REQUEST {
            let message = "the command and its environment are too large";
            return Err(Error::new(Kind::Limit, message));
        }
        let sent = match &self.guest.transport {
            GuestTransport::Vm(_) => Ok(()),
            GuestTransport::Jail(jail) => jail.send(&frame, &streams.borrow()),
        };
        if let Err(GuestSendError::Shortage(error)) = sent {
            let user = exec.user.clone();
            self.record_failure(&exec.argv, user, exec.origin.clone(), error.kind());
            self.logs.events.flush();
            return Err(error);
        }
        if !exec.internal {
            self.execs.next_id += 1;
        }
        if let Some(client) = client {
            self.set_role(client, ClientRole::Exec(id));
        }
        self.execs.insert(exec);
        self.update_busy();
        if sent.is_err() {
            // Attached clients are told when the sandbox has ended.
            self.finish(Ending::Crashed, None);
        } else if let GuestTransport::Vm(vm) = &mut self.guest.transport {
            vm.enqueue(PendingRequest::Exec(id, frame));
            self.assign_connections();
        }
        Ok(())
    }

    pub(crate) fn attach(&mut self, client: u64, id: u64) {
        self.wake(WakeReason::Exec);
        let is_visible = |exec: &&mut ExecHandle| exec.running && !exec.internal;
        let Some(exec) = self.execs.get_mut(id).filter(is_visible) else {
            let error = Error::new(Kind::NotFound, format!("no Exec `{id}` runs")).hint(
                "`msb ps NAME --execs` lists running ones; `msb logs NAME --exec ID` shows output",
            );
            return self.answer(client, &Reply::Failed(error));
        };
        let Some(attached) = self.clients.get_mut(client) else {
            return;
        };
        attached.role = ClientRole::Exec(id);
        attached.reply(&Reply::Started { id, pid: exec.pid });
        if !exec.recent().is_empty() {
            attached.output(FrameKind::Stdout, exec.recent());
        }
        exec.watchers.push(client);
    }
}

fn status(exec: &ExecHandle) -> ExecStatus {
    ExecStatus {
        id: exec.id,
        pid: exec.pid,
        argv: exec.argv.clone(),
        tty: exec.tty,
        started: exec.started,
        state: ExecState::Running,
    }
}
