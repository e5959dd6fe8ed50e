//! Pauses and resumes the processes inside: on request, when idle, or while a copy is made.

use crate::client::ClientRole;
use crate::guest::GuestTransport;
use crate::worker::Worker;
use msb_spec::{Error, Kind, Result};
use msb_vm::Order;
use msb_wire::record::{EventKind, WakeReason};
use msb_wire::{Reply, ToGuest, ToMachine};

/// A pause or resume in progress.
#[derive(Debug)]
pub(crate) struct PauseRequest {
    /// The client that waits for it; none if the worker itself wants it.
    client: Option<u64>,
    pause: bool,
    /// The pause lasts as long as the client's connection.
    hold: bool,
    /// Whether this changes the state that the client asked for, so that it is recorded.
    changes_state: bool,
}

/// A sandbox is frozen while a client has paused it, the idle timer has, or a copy holds it. It
/// resumes when none of the three applies any more.
impl Worker {
    /// Handles a client's request to pause or resume.
    pub(crate) fn pause_or_resume(&mut self, client: u64, pause: bool) {
        if pause && self.idle.take_over_pause() {
            self.guest.paused_by_user = true;
            self.record_state(EventKind::Paused { idle: false });
            return self.answer(client, &Reply::Done);
        }
        let ordered = match &self.guest.transport {
            GuestTransport::Vm(vm) => vm.order(if pause { Order::Pause } else { Order::Resume }),
            GuestTransport::Jail(_) => return self.pause_jail(client, pause),
        };
        match ordered {
            Ok(()) => {
                self.set_role(client, ClientRole::Waiting);
                self.guest.pending_vm_orders.push_back(Some(client));
            }
            Err(error) => self.answer(client, &Reply::Failed(error)),
        }
    }

    fn pause_jail(&mut self, client: u64, pause: bool) {
        let changes_state = std::mem::replace(&mut self.guest.paused_by_user, pause) != pause;
        // A copy keeps it frozen anyway, so only the state is recorded.
        let is_settled = match pause {
            true => self.guest.frozen && self.guest.pending_pauses.is_empty(),
            false => self.has_holders(),
        };
        if !is_settled {
            return self.submit_pause(PauseRequest {
                client: Some(client),
                pause,
                hold: false,
                changes_state,
            });
        }
        if changes_state {
            self.record_pause(pause);
        }
        self.start_delayed_unless_held();
        self.answer(client, &Reply::Done);
    }

    pub(crate) fn record_pause(&mut self, pause: bool) {
        self.record_state(match pause {
            true => EventKind::Paused { idle: false },
            false => EventKind::Resumed { by: None },
        });
    }

    /// Freezes the sandbox until the client closes its connection.
    pub(crate) fn hold_for_copy(&mut self, client: u64) {
        // An idle sandbox is resumed first, so that the idle timer does not resume it during the
        // copy.
        self.wake(WakeReason::Files);
        if self.guest.vm().is_some_and(|vm| vm.paused) && !self.idle.is_transitioning() {
            let error = self.paused_error();
            return self.answer(client, &Reply::Failed(error));
        }
        if self.guest.frozen && self.guest.pending_pauses.is_empty() {
            // Already frozen; this holder may outlast the others.
            self.set_role(client, ClientRole::Holder);
            if let Some(client) = self.clients.get_mut(client) {
                client.reply(&Reply::Done);
            }
            return;
        }
        self.submit_pause(PauseRequest {
            client: Some(client),
            pause: true,
            hold: true,
            changes_state: false,
        });
    }

    /// A holder has disconnected: thaws, unless another reason to stay frozen remains.
    pub(crate) fn release_hold(&mut self) {
        // In a microVM, pausing the vCPUs and freezing the disk are independent.
        let paused_by_user = self.guest.paused_by_user && self.guest.vm().is_none();
        if !paused_by_user && !self.has_holders() {
            self.request_freeze(false);
        }
    }

    /// Thaws regardless of holders and pauses, because frozen processes cannot exit.
    pub(crate) fn thaw_for_shutdown(&mut self) {
        self.guest.paused_by_user = false;
        self.request_freeze(false);
    }

    /// Freezes or thaws for the worker itself.
    pub(crate) fn request_freeze(&mut self, pause: bool) {
        self.submit_pause(PauseRequest { client: None, pause, hold: false, changes_state: false });
    }

    /// Whether a client holds the sandbox for a copy.
    fn has_holders(&self) -> bool {
        self.clients.has_holders()
    }

    fn submit_pause(&mut self, request: PauseRequest) {
        let PauseRequest { client, pause, hold, .. } = request;
        let role = if hold { ClientRole::Holder } else { ClientRole::Waiting };
        let sent = match (self.freeze_by_cgroup(pause), &mut self.guest.transport) {
            (Some(frozen), _) => frozen.map(Some),
            (None, GuestTransport::Jail(jail)) => {
                let what = if pause { &ToGuest::Pause } else { &ToGuest::Resume };
                jail.request(what, &[]).map(|()| None)
            }
            // Freezes the disk only: the vCPUs run on, and writers block.
            (None, GuestTransport::Vm(vm)) => {
                vm.send_control(if pause { &ToMachine::Hold } else { &ToMachine::Release });
                Ok(None)
            }
        };
        match sent {
            Ok(done) => {
                client.into_iter().for_each(|client| self.set_role(client, role));
                self.guest.pending_pauses.push_back(request);
                // The cgroup is done already; only a guest still has to reply.
                if let Some(paused) = done {
                    self.on_freeze_done(paused);
                }
            }
            Err(error) => self.on_freeze_failed(&request, error),
        }
    }

    /// Restores the previous state and reports the error to the client, if there is one.
    fn on_freeze_failed(&mut self, request: &PauseRequest, error: Error) {
        match request.client {
            Some(client) => {
                if !request.hold {
                    self.guest.paused_by_user = self.guest.frozen;
                }
                self.answer(client, &Reply::Failed(error));
            }
            None if self.idle.is_transitioning() => {
                if self.guest.frozen {
                    self.fail_delayed(&error);
                }
                self.on_pause_changed(self.guest.frozen);
                self.start_delayed_unless_held();
            }
            // The thaw after a copy has failed. The sandbox counts as paused, so that a resume
            // retries and reports the error.
            None if !request.pause && self.lifetime.stopping.is_none() => {
                self.guest.paused_by_user = true;
                self.record_pause(true);
                self.fail_delayed(&error);
            }
            None => {}
        }
    }

    /// Freezes or thaws by cgroup. Returns whether everything is frozen, or none without a freezer;
    /// then the guest stops each process by a signal.
    fn freeze_by_cgroup(&mut self, pause: bool) -> Option<Result<bool>> {
        let process = &*self.guest.process;
        let jail = matches!(self.guest.transport, GuestTransport::Jail(_));
        let group = process.group().filter(|group| jail && group.can_freeze())?;
        Some(match pause {
            _ if pause == self.guest.frozen => Ok(pause),
            true => group.freeze(process.pid()),
            false => group.thaw().map(|()| false),
        })
    }

    /// A freeze or thaw has finished; `paused` is the state now.
    pub(crate) fn on_freeze_done(&mut self, paused: bool) {
        let Some(PauseRequest { client, pause, hold, changes_state }) =
            self.guest.pending_pauses.pop_front()
        else {
            return;
        };
        self.guest.frozen = paused;
        if paused {
            self.cancel_check();
        }
        if !hold {
            self.on_pause_changed(paused);
        }
        if client.is_some() && !hold && paused != pause {
            self.guest.paused_by_user = paused;
        }
        self.start_delayed_unless_held();
        let Some(client) = client else { return };
        if changes_state && paused == pause {
            self.record_pause(pause);
        }
        match paused == pause {
            true if hold => {
                if let Some(client) = self.clients.get_mut(client) {
                    client.reply(&Reply::Done);
                }
            }
            true => self.answer(client, &Reply::Done),
            false => {
                let error = Error::new(Kind::Host, "not everything inside could be stopped")
                    .hint("commands of other users cannot be under `--security restricted`");
                self.answer(client, &Reply::Failed(error));
            }
        }
        // The client may have disconnected meanwhile.
        if hold && paused && !self.clients.contains(client) {
            self.release_hold();
        }
    }

    /// Whether the sandbox is frozen for a copy, or is about to be frozen or thawed for one.
    pub(crate) fn is_held_for_copy(&self) -> bool {
        let temporary = self.guest.frozen && !self.guest.paused_by_user && !self.idle.is_paused();
        temporary
            || self.has_holders()
            || self.guest.pending_pauses.iter().any(|request| request.hold)
    }

    /// Starts delayed commands once the sandbox runs, or refuses them if a client has paused it.
    pub(crate) fn start_delayed_unless_held(&mut self) {
        if self.guest.paused_by_user || !self.is_held_for_copy() && !self.idle.is_transitioning() {
            self.start_delayed();
        }
    }

    /// Starts commands that were delayed by a copy.
    pub(crate) fn start_delayed(&mut self) {
        for (client, command) in std::mem::take(&mut self.execs.delayed) {
            if self.clients.contains(client) {
                self.start_exec(client, command);
            }
        }
    }

    /// Refuses delayed commands, because the sandbox does not resume.
    pub(crate) fn fail_delayed(&mut self, error: &Error) {
        for (client, _) in std::mem::take(&mut self.execs.delayed) {
            self.answer(client, &Reply::Failed(error.clone()));
        }
    }

    /// Error for requests to a paused sandbox.
    pub(crate) fn paused_error(&self) -> Error {
        let name = &self.plan.name;
        Error::new(Kind::State, format!("sandbox `{name}` is paused"))
            .hint(format!("`msb resume {name}` lets it go on"))
    }
}
