//! Restarts the main command by the sandbox's policy.

use crate::exec::ExecHandle;
use crate::log::now_ms;
use crate::worker::Worker;
use msb_spec::{Command, Ending, Exit, Plan, Restart};
use msb_wire::Reply;
use msb_wire::record::{EventKind, ExecRecord};
use std::time::{Duration, Instant};

/// Delay before the first restart: short, because a single failure may be a coincidence.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Each further failure doubles the delay up to this. A command that cannot work costs little, and
/// is back within a minute once it can.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// After a run of this length the delay starts over.
const STABLE_RUN: Duration = Duration::from_secs(10);

/// Restart state of the main command.
#[derive(Debug)]
pub(crate) struct Supervisor {
    pub(crate) policy: Restart,
    command: Command,
    /// Number of restarts so far.
    pub(crate) count: u32,
    delay: Duration,
    started: Instant,
    /// The last exit and the time of the pending restart.
    pending: Option<(Exit, Instant)>,
}

impl Supervisor {
    /// None if the sandbox ends with its main command.
    pub(crate) fn new(plan: &Plan, now: Instant) -> Option<Self> {
        let command = plan.command.clone().filter(|_| plan.restart.is_some())?;
        let (policy, started) = (plan.restart, now);
        Some(Self { policy, command, count: 0, delay: FIRST_DELAY, started, pending: None })
    }

    /// When the pending restart is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.pending.map(|(_, at)| at)
    }

    /// The command has exited. Returns whether it will be restarted.
    fn on_exit(&mut self, exit: Exit, now: Instant) -> bool {
        // A stop on request is final.
        if exit.ending == Ending::Stopped || !self.policy.again(exit.success(), self.count) {
            return false;
        }
        if now.saturating_duration_since(self.started) >= STABLE_RUN {
            self.delay = FIRST_DELAY;
        }
        self.pending = Some((exit, now + self.delay));
        self.delay = (self.delay * 2).min(MAX_DELAY);
        true
    }

    /// Cancels a pending restart that a changed policy no longer wants. Returns the last exit.
    pub(crate) fn cancel_restart(&mut self) -> Option<Exit> {
        let (exit, _) = self.pending?;
        if self.policy.again(exit.success(), self.count) {
            return None;
        }
        self.pending.take().map(|(exit, _)| exit)
    }

    /// Takes the pending restart if it is due: the last exit and the command.
    fn take_due(&mut self, now: Instant) -> Option<(Exit, Command)> {
        let (exit, _) = self.pending.filter(|(_, at)| now >= *at)?;
        self.pending = None;
        self.count += 1;
        self.started = now;
        Some((exit, self.command.clone()))
    }
}

impl Worker {
    /// Whether a restart of the main command is pending.
    pub(crate) fn is_restart_pending(&self) -> bool {
        self.supervisor.as_ref().is_some_and(|supervisor| supervisor.pending.is_some())
    }

    /// The main command has exited: schedules a restart, or ends the sandbox.
    pub(crate) fn on_main_exited(&mut self, exec: ExecHandle, exit: Exit) {
        let ends = self.lifetime.stopping.is_some() || self.lifetime.draining;
        let restarts = match &mut self.supervisor {
            Some(supervisor) if !ends => supervisor.on_exit(exit, self.clock.now()),
            _ => false,
        };
        if !restarts {
            // Its clients are told when the sandbox is gone, so that its name is free by then.
            self.execs.insert(exec);
            return self.finish(exit.ending, Some(exit));
        }
        self.execs.main = None;
        self.update_busy();
        self.logs.execs.line(&ExecRecord::Ended { exec: exec.id, time: now_ms(), exit });
        self.record_end(&exec, exit);
        self.logs.events.flush();
        for watcher in exec.watchers {
            self.answer(watcher, &Reply::Exited(exit));
        }
    }

    /// Restarts the main command if that is due. A paused sandbox delays it.
    pub(crate) fn restart_main_if_due(&mut self, now: Instant) {
        if self.guest.is_paused() || self.is_held_for_copy() || self.lifetime.stopping.is_some() {
            return;
        }
        if self.lifetime.draining && self.is_restart_pending() {
            let exit = self.supervisor.as_mut().and_then(|supervisor| supervisor.pending.take());
            return self.finish(Ending::Drained, exit.map(|(exit, _)| exit));
        }
        let Some((exit, command)) =
            self.supervisor.as_mut().and_then(|supervisor| supervisor.take_due(now))
        else {
            return;
        };
        let count = self.supervisor.as_ref().map_or(0, |supervisor| supervisor.count);
        self.record(EventKind::Restarted { count, exit });
        if let Some(health) = &mut self.health {
            health.reset(now);
        }
        self.execs.main = Some(self.execs.next_id);
        self.start_main_detached(command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn supervisor(policy: Restart) -> Supervisor {
        let (command, started) = (Command::default(), Instant::now());
        Supervisor { policy, command, count: 0, delay: FIRST_DELAY, started, pending: None }
    }

    fn exit(code: i32, ending: Ending) -> Exit {
        Exit { code: Some(code), signal: None, ending, reached: None }
    }

    #[test]
    fn delays_double_up_to_a_minute_and_reset_after_a_stable_run() {
        let mut supervisor = supervisor(Restart::OnFailure(None));
        let mut now = supervisor.started;
        let mut delays = Vec::new();
        for _ in 0..12 {
            assert!(supervisor.on_exit(exit(1, Ending::Own), now));
            let at = supervisor.next().unwrap();
            delays.push((at - now).as_millis());
            now = at;
            assert!(supervisor.take_due(now).is_some());
        }
        assert_eq!(&delays[..4], [100, 200, 400, 800]);
        assert_eq!(&delays[10..], [60_000, 60_000]);
        now += STABLE_RUN;
        assert!(supervisor.on_exit(exit(1, Ending::Own), now));
        assert_eq!(supervisor.next().unwrap() - now, FIRST_DELAY);
    }

    #[test]
    fn a_policy_gives_up_and_does_not_undo_a_stop() {
        let mut twice = supervisor(Restart::Always(Some(2)));
        let now = twice.started;
        for _ in 0..2 {
            assert!(twice.on_exit(exit(0, Ending::Own), now));
            assert!(twice.take_due(now + MAX_DELAY).is_some());
        }
        assert!(!twice.on_exit(exit(0, Ending::Own), now));
        let mut always = supervisor(Restart::Always(None));
        assert!(!always.on_exit(exit(143, Ending::Stopped), now));
        let mut on_failure = supervisor(Restart::OnFailure(None));
        assert!(!on_failure.on_exit(exit(0, Ending::Own), now));
        assert!(on_failure.on_exit(exit(137, Ending::Memory), now));
    }
}
