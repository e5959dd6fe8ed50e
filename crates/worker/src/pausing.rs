//! Everything inside stopped where it is, for whoever asks or for as long as somebody needs it.

use crate::client::Role;
use crate::guest::Way;
use crate::worker::Worker;
use msb_spec::{Error, Kind, Result};
use msb_vm::Order;
use msb_wire::record::{Happened, Woken};
use msb_wire::{Reply, ToGuest, ToMachine};

/// What a guest in a jail was asked to do, and by whom.
#[derive(Debug)]
pub(crate) struct Pausing {
    /// Nobody, if the worker wants it by itself.
    client: Option<u64>,
    pause: bool,
    /// Only for as long as the client stays.
    holds: bool,
    /// Whether it was not so asked before.
    news: bool,
}

/// A sandbox stands still while somebody has paused it, its idle clock has, or anybody holds it for a
/// copy. Each of these ends by itself, and it goes on with the last.
impl Worker {
    /// Stops everything inside where it is, or lets it go on.
    pub(crate) fn order(&mut self, client: u64, pause: bool) {
        if pause && self.idle.pause_for_good() {
            self.guest.asked = true;
            self.record(Happened::Paused { idle: false });
            return self.answer(client, &Reply::Done);
        }
        let ordered = match &self.guest.way {
            Way::Machine(machine) => {
                machine.order(if pause { Order::Pause } else { Order::Resume })
            }
            Way::Jailed(_) => return self.order_jail(client, pause),
        };
        match ordered {
            Ok(()) => {
                self.set_role(client, Role::Waiting);
                self.ordering.push_back(Some(client));
            }
            Err(error) => self.answer(client, &Reply::Failed(error)),
        }
    }

    fn order_jail(&mut self, client: u64, pause: bool) {
        let news = std::mem::replace(&mut self.guest.asked, pause) != pause;
        // What a copy needs to stand still does, and goes on with its end at the earliest.
        let stays = match pause {
            true => self.guest.stopped && self.pausing.is_empty(),
            false => self.has_holders(),
        };
        if !stays {
            return self.ask_to_stand(Pausing { client: Some(client), pause, holds: false, news });
        }
        if news {
            self.record_order(pause);
        }
        self.start_delayed_unless_held();
        self.answer(client, &Reply::Done);
    }

    pub(crate) fn record_order(&mut self, pause: bool) {
        self.record(match pause {
            true => Happened::Paused { idle: false },
            false => Happened::Resumed { by: None },
        });
    }

    /// Stops everything until the client goes.
    pub(crate) fn hold(&mut self, client: u64) {
        // What a copy needs to stand still is not woken in the midst of it.
        self.wake(Woken::Files);
        if self.guest.machine().is_some_and(|machine| machine.paused) && !self.idle.between() {
            let error = self.paused();
            return self.answer(client, &Reply::Failed(error));
        }
        if self.guest.stopped && self.pausing.is_empty() {
            // Whoever else wants it so may go first.
            self.set_role(client, Role::Holder);
            if let Some(client) = self.clients.get_mut(&client) {
                client.reply(&Reply::Done);
            }
            return;
        }
        self.ask_to_stand(Pausing { client: Some(client), pause: true, holds: true, news: false });
    }

    /// Whoever held everything has gone: it goes on, unless another wants it to stand still.
    pub(crate) fn release(&mut self) {
        // A machine's processors and its disk stand still apart.
        let asked = self.guest.asked && self.guest.machine().is_none();
        if !asked && !self.has_holders() {
            self.stand_by_itself(false);
        }
    }

    /// Lets everything go on, whoever wants it to stand still: what stands still cannot end.
    pub(crate) fn release_to_end(&mut self) {
        self.guest.asked = false;
        self.stand_by_itself(false);
    }

    /// Has everything stand still or go on for nobody but the worker.
    pub(crate) fn stand_by_itself(&mut self, pause: bool) {
        self.ask_to_stand(Pausing { client: None, pause, holds: false, news: false });
    }

    /// Whether anybody needs it to stand still for a copy.
    fn has_holders(&self) -> bool {
        self.clients.values().any(|client| client.role == Role::Holder && !client.left)
    }

    fn ask_to_stand(&mut self, pausing: Pausing) {
        let Pausing { client, pause, holds, .. } = pausing;
        let role = if holds { Role::Holder } else { Role::Waiting };
        let asked = match (self.freeze(pause), &mut self.guest.way) {
            (Some(frozen), _) => frozen.map(Some),
            (None, Way::Jailed(jailed)) => {
                let what = if pause { &ToGuest::Pause } else { &ToGuest::Resume };
                jailed.ask(what, &[]).map(|()| None)
            }
            // Its processors go on; whoever writes waits.
            (None, Way::Machine(machine)) => {
                machine.tell(if pause { &ToMachine::Hold } else { &ToMachine::Release });
                Ok(None)
            }
        };
        match asked {
            Ok(done) => {
                client.into_iter().for_each(|client| self.set_role(client, role));
                self.pausing.push_back(pausing);
                // Only a guest that is asked has yet to answer.
                if let Some(paused) = done {
                    self.stood_still(paused);
                }
            }
            Err(error) => self.could_not_stand(&pausing, error),
        }
    }

    /// Everything is as it was, and whoever waits for something else is told.
    fn could_not_stand(&mut self, pausing: &Pausing, error: Error) {
        match pausing.client {
            Some(client) => {
                if !pausing.holds {
                    self.guest.asked = self.guest.stopped;
                }
                self.answer(client, &Reply::Failed(error));
            }
            None if self.idle.between() => {
                if self.guest.stopped {
                    self.fail_delayed(&error);
                }
                self.idle_paused(self.guest.stopped);
                self.start_delayed_unless_held();
            }
            // A copy is done, and what stood still for it does not go on: who resumes it is told why.
            None if !pausing.pause && self.life.stopping.is_none() => {
                self.guest.asked = true;
                self.record_order(true);
                self.fail_delayed(&error);
            }
            None => {}
        }
    }

    /// Freezes or thaws by cgroup, where there is one that can be: whether everything stands still
    /// then. Elsewhere the guest is asked, which stops each process by a signal.
    fn freeze(&mut self, pause: bool) -> Option<Result<bool>> {
        let confined = &self.guest.confined;
        let jailed = matches!(self.guest.way, Way::Jailed(_));
        let group = confined.group.as_ref().filter(|group| jailed && group.freezes())?;
        Some(match pause {
            _ if pause == self.guest.stopped => Ok(pause),
            true => group.freeze(confined.pid),
            false => group.thaw().map(|()| false),
        })
    }

    /// The guest says whether everything stands still.
    pub(crate) fn stood_still(&mut self, paused: bool) {
        let Some(Pausing { client, pause, holds, news }) = self.pausing.pop_front() else { return };
        self.guest.stopped = paused;
        if paused {
            self.interrupt_check();
        }
        if !holds {
            self.idle_paused(paused);
        }
        if client.is_some() && !holds && paused != pause {
            self.guest.asked = paused;
        }
        self.start_delayed_unless_held();
        let Some(client) = client else { return };
        if news && paused == pause {
            self.record_order(pause);
        }
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

    /// Whether everything stands still for a copy, is about to, or is about to go on after one.
    pub(crate) fn is_held(&self) -> bool {
        let passing = self.guest.stopped && !self.guest.asked && !self.idle.asleep();
        passing || self.has_holders() || self.pausing.iter().any(|asked| asked.holds)
    }

    /// Begins what has waited, or refuses it where somebody has paused the sandbox meanwhile.
    pub(crate) fn start_delayed_unless_held(&mut self) {
        if self.guest.asked || !self.is_held() && !self.idle.between() {
            self.start_delayed();
        }
    }

    /// Begins what was asked for while somebody held everything.
    pub(crate) fn start_delayed(&mut self) {
        for (client, command) in std::mem::take(&mut self.delayed) {
            if self.clients.contains_key(&client) {
                self.start_exec(client, command);
            }
        }
    }

    /// Tells those who wait for a sandbox to go on that it does not.
    pub(crate) fn fail_delayed(&mut self, error: &Error) {
        for (client, _) in std::mem::take(&mut self.delayed) {
            self.answer(client, &Reply::Failed(error.clone()));
        }
    }

    /// Why nothing new is begun.
    pub(crate) fn paused(&self) -> Error {
        let name = &self.plan.name;
        Error::new(Kind::State, format!("sandbox `{name}` is paused"))
            .hint(format!("`msb resume {name}` lets it go on"))
    }
}
