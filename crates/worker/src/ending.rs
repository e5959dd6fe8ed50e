//! How a sandbox ends, and that everybody who waits is told.

use crate::client::{Client, Role};
use crate::exec::Stream;
use crate::guest::Way;
use crate::log::now_ms;
use crate::worker::{Worker, let_go, vanish};
use msb_spec::{Ending, Exit, Plan, PlannedWorkspace, state};
use msb_sys::signal;
use msb_vm::Order;
use msb_wire::record::{ExecRecord, Happened, Woken};
use msb_wire::{Reply, Stopped, ToGuest, ToMachine};
use rustix::event::{PollFd, PollFlags};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time for an init to end its services where nobody said how much.
const INIT_GRACE: Duration = Duration::from_secs(10);

impl Worker {
    pub(crate) fn look_at_clocks(&mut self) {
        let now = Instant::now();
        let late = |client: &Client| client.greeting_deadline().is_some_and(|limit| now >= limit);
        self.clients.retain(|_, client| !late(client));
        self.look_at_machine(now);
        self.look_at_meter(now);
        self.life.watch_memory(now, &self.guest.confined, self.guest.is_paused());
        let late: Vec<u64> = self
            .execs
            .values_mut()
            .filter(|exec| exec.deadline.is_some_and(|deadline| now >= deadline))
            .map(|exec| {
                exec.deadline = None;
                exec.ending = Ending::Timeout;
                exec.id
            })
            .collect();
        if !late.is_empty() {
            self.wake(Woken::Clock);
        }
        for id in late {
            let _ = self.kill_exec(id, signal::SIGKILL);
        }
        self.look_at_starts(now);
        self.look_at_ended(now);
        self.look_at_service(now);
        self.look_at_health(now);
        self.look_at_idle(now);
        match self.life.over(now) {
            Some(Ending::Idle) if self.has_streams() => self.life.put_off(now),
            // Nobody waits for it, so an init can take its time.
            Some(ending @ (Ending::Drained | Ending::Idle)) if self.life.init => {
                self.stop(ending, INIT_GRACE);
            }
            Some(ending) => self.finish(ending, None),
            None => {}
        }
    }

    /// Asks everything inside to end, and has it killed later.
    pub(crate) fn stop(&mut self, ending: Ending, grace: Duration) {
        if self.life.stopping.is_none() && self.awaits_restart() {
            self.service = None;
            self.note_busy();
        }
        let deadline = Instant::now() + grace;
        let sooner = self.life.stopping.is_none_or(|(_, present)| deadline < present);
        if sooner {
            self.life.stopping = Some((ending, deadline));
        }
        for exec in self.execs.values_mut().filter(|exec| exec.ending == Ending::Own) {
            exec.ending = ending;
        }
        self.forced |= grace.is_zero();
        let signal = signal::SIGTERM;
        match &mut self.guest.way {
            _ if grace.is_zero() => {}
            Way::Jailed(jailed) => {
                let _ = jailed.ask(&ToGuest::SignalAll { signal }, &[]);
                // What stands still cannot end.
                if self.guest.stopped {
                    self.release_to_end();
                }
            }
            Way::Machine(machine) => {
                // What is paused cannot end.
                if machine.paused {
                    let _ = machine.order(Order::Resume);
                }
                machine.tell(&ToMachine::SignalAll { signal });
                if self.guest.stopped {
                    self.release_to_end();
                }
            }
        }
    }

    pub(crate) fn finish(&mut self, ending: Ending, exit: Option<Exit>) {
        // Its first command may have ended before, and what that left behind was still heard.
        let over = self.main.and_then(|id| self.execs.get(&id)?.over);
        let own = over.map(|over| Stopped { ending: over.exit.ending, exit: Some(over.exit) });
        self.over.get_or_insert(own.unwrap_or(Stopped { ending, exit }));
    }

    pub(crate) fn record(&mut self, happened: Happened) {
        self.events.note(happened);
    }

    /// The end, in order: everything inside dies, the records are finished, the name is free,
    /// and only then is anybody told.
    ///
    /// A guest that is alone and has no cgroup may still be on its way out by then: nothing of
    /// the sandbox can run any more, and taking down its mounts takes the kernel a while.
    pub(crate) fn end(mut self, lock: &File, held: Vec<OwnedFd>) {
        let by_itself = self.over.is_some_and(|stopped| stopped.exit.is_some());
        if let Some(outward) = &self.outward {
            outward.dismiss();
        }
        let explained = self.explain_end();
        self.switch_off();
        let machine = self.guest.machine().is_some();
        let lasts = !self.plan.ephemeral || self.guest.confined.group.is_some();
        let wait = match machine {
            true => !by_itself || lasts,
            false => !(by_itself && self.alone) || self.guest.confined.group.is_some(),
        };
        // Another may have a volume once we let go of it, so nothing of ours is on its way to it.
        // A guest whose command could have been begun again does not leave with it.
        let wait = wait || !held.is_empty() || self.service.is_some();
        if wait {
            self.guest.kill();
        } else if machine {
            self.guest.begin_to_die();
        }
        while self.hear_init() {}
        let stopped = self.over.unwrap_or(Stopped { ending: Ending::Crashed, exit: None });
        let ids: Vec<u64> = self.execs.keys().copied().collect();
        for id in &ids {
            for stream in [Stream::Stdout, Stream::Stderr] {
                while self.relay(*id, stream) {}
            }
        }
        let (signal, ending) = (Some(signal::SIGKILL), stopped.ending);
        let killed = Exit { code: None, signal, ending, reached: None };
        let mut farewells = Vec::new();
        for (id, exec) in std::mem::take(&mut self.execs) {
            let exit = match (stopped.exit, exec.over) {
                (Some(exit), _) if self.main == Some(id) => exit,
                (_, Some(over)) => over.exit,
                _ => Exit {
                    ending: if exec.ending == Ending::Own { stopped.ending } else { exec.ending },
                    ..killed
                },
            };
            if exec.running && !exec.own && !self.plan.ephemeral {
                self.exec_log.line(&ExecRecord::Ended { exec: id, time: now_ms(), exit });
            }
            if exec.running {
                self.record_end(&exec, exit);
            }
            farewells.extend(exec.watchers.into_iter().map(|watcher| (watcher, exit)));
        }
        // Whoever is told of the end may start it again, with the same ports.
        if let Some(outward) = self.outward.take()
            && (!self.plan.ephemeral || !outward.ports.is_empty())
        {
            outward.see_off();
        }
        self.record(Happened::Stopped { ending: stopped.ending, exit: stopped.exit });
        self.events.write();
        let mut gone = None;
        if !self.whole || self.plan.ephemeral && !has_changes(&self.plan) {
            gone = vanish(&self.directory);
        } else {
            let _ = std::fs::remove_file(self.directory.join(state::SOCKET));
            if self.plan.ephemeral {
                // It is kept for its workspace, and never started again.
                let _ = std::fs::remove_file(self.directory.join(state::DISK));
            }
        }
        // The cgroup goes with its group; a guest without one is waited for at the end.
        let guest = if wait {
            drop(self.guest);
            None
        } else {
            Some(self.guest)
        };
        let_go(held);
        let _ = msb_sys::lock::release(lock);
        for (watcher, exit) in farewells {
            if let Some(client) = self.clients.get_mut(&watcher) {
                match &explained {
                    Some(error) => client.answer(&Reply::Failed(error.clone())),
                    None => client.answer(&Reply::Exited(exit)),
                }
            }
        }
        for (watcher, error) in self.unstarted {
            if let Some(client) = self.clients.get_mut(&watcher) {
                client.answer(&Reply::Failed(error));
            }
        }
        let waits = |client: &&mut Client| matches!(client.role, Role::Delayed | Role::Waiting);
        for client in self.clients.values_mut().filter(waits) {
            client.answer(&Reply::Stopped(stopped));
        }
        deliver(self.clients);
        if let Some(guest) = guest {
            guest.kill();
        }
        if let Some(gone) = gone {
            if self.plan.workspace.is_some() {
                remove_work(&gone);
            }
            let _ = std::fs::remove_dir_all(gone);
        }
    }
}

/// overlayfs leaves an empty directory that not even its owner may list. The worker may change no
/// permissions; where the directory is not empty, the next `msb` removes it.
fn remove_work(gone: &Path) {
    let left = gone.join(state::WORKSPACE).join(PlannedWorkspace::WORK).join("work");
    let _ = std::fs::remove_dir(left);
}

/// Whether somebody has to look at what was written into the workspace before it goes.
fn has_changes(plan: &Plan) -> bool {
    let Some(workspace) = &plan.workspace else { return false };
    let upper = workspace.changes.join(PlannedWorkspace::UPPER);
    // One that cannot be read was closed from inside, which is a change.
    std::fs::read_dir(upper).map_or(true, |mut entries| entries.next().is_some())
}

/// Sends the rest to whoever still reads. Ends with the last of them, or when they are gone.
fn deliver(mut clients: BTreeMap<u64, Client>) {
    loop {
        clients.retain(|_, client| !client.owes_nothing());
        let mut fds: Vec<PollFd<'_>> = clients
            .values()
            .map(|client| PollFd::from_borrowed_fd(client.socket(), PollFlags::OUT))
            .collect();
        if fds.is_empty() || rustix::event::poll(&mut fds, None).is_err() {
            return;
        }
        for client in clients.values_mut() {
            client.flush();
        }
    }
}
