//! Timers of the loop, stopping a sandbox, and the order of its shutdown.

use crate::client::{ClientConn, ClientRole};
use crate::exec::OutputStream;
use crate::guest::GuestTransport;
use crate::log::now_ms;
use crate::worker::{Worker, move_aside, release_locks};
use msb_spec::{Ending, Exit, Plan, PlannedWorkspace, state};
use msb_sys::signal;
use msb_vm::Order;
use msb_wire::record::{EventKind, ExecRecord, WakeReason};
use msb_wire::{Reply, StopResult, ToGuest, ToMachine};
use rustix::event::{PollFd, PollFlags};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

/// Grace period for an init if no client has set one.
const INIT_GRACE: Duration = Duration::from_secs(10);

impl Worker {
    pub(crate) fn run_timers(&mut self) {
        let now = self.clock.now();
        self.clients.expire(now);
        self.expire_unauthenticated(now);
        self.run_meter(now);
        self.lifetime.watch_memory(now, &*self.guest.process, self.guest.is_paused());
        let late = self.execs.take_timed_out(now);
        if !late.is_empty() {
            self.wake(WakeReason::Clock);
        }
        for id in late {
            let _ = self.kill_exec(id, signal::SIGKILL);
        }
        self.check_stalled_starts(now);
        self.finish_drained_execs(now);
        self.restart_main_if_due(now);
        self.run_health_check(now);
        self.check_idle(now);
        match self.lifetime.due_ending(now) {
            Some(Ending::Idle) if self.has_streams() => self.lifetime.restart_idle_timer(now),
            // No client waits, so an init gets its grace period.
            Some(ending @ (Ending::Drained | Ending::Idle)) if self.lifetime.init => {
                self.stop(ending, INIT_GRACE);
            }
            Some(ending) => self.finish(ending, None),
            None => {}
        }
    }

    /// Sends SIGTERM to everything inside, and sets the deadline after which it is killed.
    pub(crate) fn stop(&mut self, ending: Ending, grace: Duration) {
        if self.lifetime.stopping.is_none() && self.is_restart_pending() {
            self.supervisor = None;
            self.update_busy();
        }
        let deadline = self.clock.now() + grace;
        let sooner = self.lifetime.stopping.is_none_or(|(_, present)| deadline < present);
        if sooner {
            self.lifetime.stopping = Some((ending, deadline));
        }
        for exec in self.execs.values_mut().filter(|exec| exec.ending == Ending::Own) {
            exec.ending = ending;
        }
        self.lifetime.forced |= grace.is_zero();
        let signal = signal::SIGTERM;
        match &mut self.guest.transport {
            _ if grace.is_zero() => {}
            GuestTransport::Jail(jail) => {
                msb_log::debug_on_failure!(
                    jail.request(&ToGuest::SignalAll { signal }, &[]),
                    "cannot signal the processes inside"
                );
                // Frozen processes cannot exit.
                if self.guest.frozen {
                    self.thaw_for_shutdown();
                }
            }
            GuestTransport::Vm(vm) => {
                // A paused microVM cannot power off.
                if vm.paused {
                    let _ = vm.order(Order::Resume);
                }
                vm.send_control(&ToMachine::SignalAll { signal });
                if self.guest.frozen {
                    self.thaw_for_shutdown();
                }
            }
        }
    }

    pub(crate) fn finish(&mut self, ending: Ending, exit: Option<Exit>) {
        // The main command may have exited before while its output was drained; then its exit
        // counts.
        let drain = self.execs.main.and_then(|id| self.execs.get(id)?.exited);
        let own =
            drain.map(|drain| StopResult { ending: drain.exit.ending, exit: Some(drain.exit) });
        self.lifetime.outcome.get_or_insert(own.unwrap_or(StopResult { ending, exit }));
    }

    pub(crate) fn record(&mut self, happened: EventKind) {
        self.logs.events.append(happened);
    }

    /// Records a new state of the sandbox and writes it at once: a client that has the reply may list
    /// sandboxes, and the list reads the log.
    pub(crate) fn record_state(&mut self, state: EventKind) {
        self.record(state);
        self.logs.events.flush();
    }

    /// Shuts down, in this order: everything inside is killed, the records are finished, the name
    /// is freed, the locks are released, and then clients are told.
    ///
    /// A guest without children and without a cgroup is not waited for: no process of the sandbox
    /// can run, and unmounting takes the kernel a while.
    pub(crate) fn end(mut self, lock: &File, volume_locks: Vec<OwnedFd>) {
        let own_exit = self.lifetime.outcome.is_some_and(|stopped| stopped.exit.is_some());
        if let Some(gateway) = &self.gateway {
            gateway.begin_close(self.plan.ephemeral);
        }
        let panic_error = self.panic_error();
        self.power_off_vm();
        let vm = self.guest.vm().is_some();
        let lasts = !self.plan.ephemeral || self.guest.process.group().is_some();
        let wait = match vm {
            true => !own_exit || lasts,
            false => {
                !(own_exit && self.guest.no_children_left) || self.guest.process.group().is_some()
            }
        };
        // Another sandbox may use a volume once its lock is released, so our writes must be
        // finished. A guest under a supervisor does not exit with its main command.
        let wait = wait || !volume_locks.is_empty() || self.supervisor.is_some();
        if wait {
            self.guest.kill_and_wait();
        } else if vm {
            self.guest.send_kill();
        }
        while self.read_init_console() {}
        let stopped =
            self.lifetime.outcome.unwrap_or(StopResult { ending: Ending::Crashed, exit: None });
        for id in self.execs.ids() {
            for stream in [OutputStream::Stdout, OutputStream::Stderr] {
                while self.forward_output(id, stream) {}
            }
        }
        let (signal, ending) = (Some(signal::SIGKILL), stopped.ending);
        let killed = Exit { code: None, signal, ending, reached: None };
        let mut exits = Vec::new();
        for exec in self.execs.take_all() {
            let id = exec.id;
            let exit = match (stopped.exit, exec.exited) {
                (Some(exit), _) if self.execs.is_main(id) => exit,
                (_, Some(drain)) => drain.exit,
                _ => Exit {
                    ending: if exec.ending == Ending::Own { stopped.ending } else { exec.ending },
                    ..killed
                },
            };
            if exec.running && !exec.internal && !self.plan.ephemeral {
                self.logs.execs.line(&ExecRecord::Ended { exec: id, time: now_ms(), exit });
            }
            if exec.running {
                self.record_end(&exec, exit);
            }
            exits.extend(exec.watchers.into_iter().map(|watcher| (watcher, exit)));
        }
        // A client that is told of the end reads what was refused, and may start the sandbox again,
        // with the same ports.
        if let Some(gateway) = self.gateway.take() {
            gateway.finish_close(self.plan.ephemeral);
        }
        self.record(EventKind::Stopped { ending: stopped.ending, exit: stopped.exit });
        self.logs.events.flush();
        let mut moved = None;
        if !self.lifetime.fully_created || self.plan.ephemeral && !has_changes(&self.plan) {
            moved = move_aside(&self.directory);
        } else {
            msb_log::debug_on_failure!(
                std::fs::remove_file(self.directory.join(state::SOCKET)),
                "cannot remove the worker's socket"
            );
            if self.plan.ephemeral {
                // The sandbox is kept for its workspace only, and never started again.
                msb_log::warn_on_failure!(
                    std::fs::remove_file(self.directory.join(state::DISK)),
                    "cannot remove the disk"
                );
            }
        }
        // Dropping the guest removes its cgroup. Without a cgroup it is waited for at the end.
        let guest = if wait {
            drop(self.guest);
            None
        } else {
            Some(self.guest)
        };
        release_locks(volume_locks);
        msb_log::warn_on_failure!(
            msb_sys::lock::release(lock),
            "cannot release the lock of the sandbox"
        );
        for (watcher, exit) in exits {
            if let Some(client) = self.clients.get_mut(watcher) {
                match &panic_error {
                    Some(error) => client.answer(&Reply::Failed(error.clone())),
                    None => client.answer(&Reply::Exited(exit)),
                }
            }
        }
        for (watcher, error) in std::mem::take(&mut self.execs.failed_main) {
            if let Some(client) = self.clients.get_mut(watcher) {
                client.answer(&Reply::Failed(error));
            }
        }
        let waits = |client: &&mut ClientConn| {
            matches!(client.role, ClientRole::Delayed | ClientRole::Waiting)
        };
        for client in self.clients.values_mut().filter(waits) {
            client.answer(&Reply::Stopped(stopped));
        }
        flush_all(self.clients.into_values());
        if let Some(guest) = guest {
            guest.kill_and_wait();
        }
        if let Some(moved) = moved {
            if self.plan.workspace.is_some() {
                remove_overlay_work(&moved);
            }
            msb_log::warn_on_failure!(
                std::fs::remove_dir_all(moved),
                "cannot remove the sandbox's directory"
            );
        }
    }
}

/// Removes the empty `work` directory of overlayfs, which not even its owner may list. The worker
/// cannot change permissions; if the directory is not empty, the next `msb` removes it.
fn remove_overlay_work(moved: &Path) {
    let left = moved.join(state::WORKSPACE).join(PlannedWorkspace::WORK).join("work");
    let _ = std::fs::remove_dir(left);
}

/// Whether the workspace has changes that are still to be reviewed.
fn has_changes(plan: &Plan) -> bool {
    let Some(workspace) = &plan.workspace else { return false };
    let upper = workspace.changes.join(PlannedWorkspace::UPPER);
    // An unreadable directory was made so from inside, which is a change.
    std::fs::read_dir(upper).map_or(true, |mut entries| entries.next().is_some())
}

/// Sends buffered replies, until every client has got them or is gone.
fn flush_all(mut clients: Vec<ClientConn>) {
    loop {
        clients.retain(|client| !client.is_drained());
        let mut fds: Vec<PollFd<'_>> = clients
            .iter()
            .map(|client| PollFd::from_borrowed_fd(client.socket(), PollFlags::OUT))
            .collect();
        if fds.is_empty() || rustix::event::poll(&mut fds, None).is_err() {
            return;
        }
        for client in &mut clients {
            client.flush();
        }
    }
}
