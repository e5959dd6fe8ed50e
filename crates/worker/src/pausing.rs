//! Everything inside stopped where it is, for whoever asks or for as long as somebody needs it.

use crate::client::Role;
use crate::guest::Way;
use crate::worker::Worker;
use msb_spec::{Error, Kind};
use msb_vm::Order;
use msb_wire::record::Happened;
use msb_wire::{Reply, ToGuest, ToMachine};

/// What a guest in a jail was asked to do, and by whom.
#[derive(Debug)]
pub(crate) struct Pausing {
    /// Nobody, if the worker wants it by itself.
    client: Option<u64>,
    pause: bool,
    /// Only for as long as the client stays.
    holds: bool,
}

impl Worker {
    /// Stops everything inside where it is, or lets it go on.
    pub(crate) fn order(&mut self, client: u64, pause: bool) {
        let ordered = match &self.guest.way {
            Way::Machine(machine) => {
                machine.order(if pause { Order::Pause } else { Order::Resume })
            }
            Way::Jailed(_) => return self.ask_to_stand(Some(client), pause, false),
        };
        match ordered {
            Ok(()) => {
                self.set_role(client, Role::Waiting);
                self.ordering.push_back(client);
            }
            Err(error) => self.answer(client, &Reply::Failed(error)),
        }
    }

    /// Stops everything until the client goes.
    pub(crate) fn hold(&mut self, client: u64) {
        if self.guest.machine().is_some_and(|machine| machine.paused) {
            let error = self.paused();
            return self.answer(client, &Reply::Failed(error));
        }
        if self.guest.stopped {
            // Somebody else lets it go on.
            self.set_role(client, Role::Waiting);
            if let Some(client) = self.clients.get_mut(&client) {
                client.reply(&Reply::Done);
            }
            return;
        }
        self.ask_to_stand(Some(client), true, true);
    }

    /// Lets everything go on.
    pub(crate) fn release(&mut self) {
        self.ask_to_stand(None, false, false);
    }

    fn ask_to_stand(&mut self, client: Option<u64>, pause: bool, holds: bool) {
        let asked = match &mut self.guest.way {
            Way::Jailed(jailed) => {
                jailed.ask(if pause { &ToGuest::Pause } else { &ToGuest::Resume }, &[])
            }
            // Its processors go on; whoever writes waits.
            Way::Machine(machine) => {
                machine.tell(if pause { &ToMachine::Hold } else { &ToMachine::Release });
                Ok(())
            }
        };
        match (asked, client) {
            (Ok(()), _) => {
                if let Some(client) = client {
                    self.set_role(client, if holds { Role::Holder } else { Role::Waiting });
                }
                self.pausing.push_back(Pausing { client, pause, holds });
            }
            (Err(error), Some(client)) => self.answer(client, &Reply::Failed(error)),
            (Err(_), None) => {}
        }
    }

    /// The guest says whether everything stands still.
    pub(crate) fn stood_still(&mut self, paused: bool) {
        let Some(Pausing { client, pause, holds }) = self.pausing.pop_front() else { return };
        let changed = self.guest.stopped != paused;
        self.guest.stopped = paused;
        self.guest.held = paused && (holds || self.guest.held);
        if !paused {
            self.start_delayed();
        }
        if changed && !holds && client.is_some() {
            self.record(if paused { Happened::Paused } else { Happened::Resumed });
        }
        let Some(client) = client else { return };
        match paused == pause {
            true if holds => {
                if let Some(client) = self.clients.get_mut(&client) {
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
        // It may have gone while it was waited for.
        if holds && paused && !self.clients.contains_key(&client) {
            self.release();
        }
    }

    /// Whether everything stands still for a copy, or is about to.
    pub(crate) fn is_held(&self) -> bool {
        self.guest.stopped && self.guest.held || self.pausing.iter().any(|asked| asked.holds)
    }

    /// Begins what was asked for while somebody held everything.
    fn start_delayed(&mut self) {
        for (client, command) in std::mem::take(&mut self.delayed) {
            if self.clients.contains_key(&client) {
                self.start_exec(client, command);
            }
        }
    }

    /// Why nothing new is begun.
    pub(crate) fn paused(&self) -> Error {
        let name = &self.plan.name;
        Error::new(Kind::State, format!("sandbox `{name}` is paused"))
            .hint(format!("`msb resume {name}` lets it go on"))
    }
}
