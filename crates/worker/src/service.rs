//! The first command as a service: begun again when it ends, as the sandbox's policy says.

use crate::exec::Exec;
use crate::log::now_ms;
use crate::worker::Worker;
use msb_spec::{Command, Ending, Exit, Plan, Restart};
use msb_wire::Reply;
use msb_wire::record::{ExecRecord, Happened};
use std::time::{Duration, Instant};

/// Before it is begun again for the first time: one that fails by accident is hardly missed.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Each further failure waits twice as long, up to this: one that cannot work costs little, and is
/// back within a minute of what it waits for.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// One that ran for this long had begun well, and its next pause is the first one.
const WELL: Duration = Duration::from_secs(10);

/// A first command that is begun again.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) policy: Restart,
    command: Command,
    /// How often it was begun again.
    pub(crate) count: u32,
    pause: Duration,
    began: Instant,
    /// How it ended, and when it is begun again.
    again: Option<(Exit, Instant)>,
}

impl Service {
    /// None where the sandbox ends with its first command.
    pub(crate) fn new(plan: &Plan) -> Option<Self> {
        let command = plan.command.clone().filter(|_| plan.restart.is_some())?;
        let (policy, began) = (plan.restart, Instant::now());
        Some(Self { policy, command, count: 0, pause: FIRST_PAUSE, began, again: None })
    }

    /// When it is begun again, if it waits for that.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.again.map(|(_, at)| at)
    }

    /// It has ended: whether it is begun again, and notes when.
    fn ended(&mut self, exit: Exit, now: Instant) -> bool {
        // Whoever stops it wants it to end.
        if exit.ending == Ending::Stopped || !self.policy.again(exit.success(), self.count) {
            return false;
        }
        if now.saturating_duration_since(self.began) >= WELL {
            self.pause = FIRST_PAUSE;
        }
        self.again = Some((exit, now + self.pause));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        true
    }

    /// How it had ended, if it waits to be begun again and its policy does not want that any more.
    pub(crate) fn give_up(&mut self) -> Option<Exit> {
        let (exit, _) = self.again?;
        if self.policy.again(exit.success(), self.count) {
            return None;
        }
        self.again.take().map(|(exit, _)| exit)
    }

    /// How it had ended, and what is to be begun, if that is due.
    fn due(&mut self, now: Instant) -> Option<(Exit, Command)> {
        let (exit, _) = self.again.filter(|(_, at)| now >= *at)?;
        self.again = None;
        self.count += 1;
        self.began = now;
        Some((exit, self.command.clone()))
    }
}

impl Worker {
    /// Whether the first command has ended and is about to be begun again.
    pub(crate) fn awaits_restart(&self) -> bool {
        self.service.as_ref().is_some_and(|service| service.again.is_some())
    }

    /// The first command has ended: begins it again later, or ends the sandbox.
    pub(crate) fn main_ended(&mut self, exec: Exec, exit: Exit) {
        let ends = self.life.stopping.is_some() || self.life.draining;
        let again = match &mut self.service {
            Some(service) if !ends => service.ended(exit, Instant::now()),
            _ => false,
        };
        if !again {
            // Its watchers are told when the sandbox is gone, so that its name is free then.
            self.execs.insert(exec.id, exec);
            return self.finish(exit.ending, Some(exit));
        }
        self.main = None;
        self.note_busy();
        self.exec_log.line(&ExecRecord::Ended { exec: exec.id, time: now_ms(), exit });
        self.record_end(&exec, exit);
        self.events.write();
        for watcher in exec.watchers {
            self.answer(watcher, &Reply::Exited(exit));
        }
    }

    /// Begins the first command again if that is due. What stands still waits with it.
    pub(crate) fn look_at_service(&mut self, now: Instant) {
        if self.guest.is_paused() || self.is_held() || self.life.stopping.is_some() {
            return;
        }
        if self.life.draining && self.awaits_restart() {
            let exit = self.service.as_mut().and_then(|service| service.again.take());
            return self.finish(Ending::Drained, exit.map(|(exit, _)| exit));
        }
        let Some((exit, command)) = self.service.as_mut().and_then(|service| service.due(now))
        else {
            return;
        };
        let count = self.service.as_ref().map_or(0, |service| service.count);
        self.record(Happened::Restarted { count, exit });
        if let Some(health) = &mut self.health {
            health.begin_anew(now);
        }
        self.main = Some(self.next_exec);
        self.start_alone(command);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(policy: Restart) -> Service {
        let (command, began) = (Command::default(), Instant::now());
        Service { policy, command, count: 0, pause: FIRST_PAUSE, began, again: None }
    }

    fn exit(code: i32, ending: Ending) -> Exit {
        Exit { code: Some(code), signal: None, ending, reached: None }
    }

    #[test]
    fn pauses_grow_to_a_minute_and_begin_anew_after_a_good_run() {
        let mut service = service(Restart::OnFailure(None));
        let mut now = service.began;
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert!(service.ended(exit(1, Ending::Own), now));
            let at = service.next().unwrap();
            pauses.push((at - now).as_millis());
            now = at;
            assert!(service.due(now).is_some());
        }
        assert_eq!(&pauses[..4], [100, 200, 400, 800]);
        assert_eq!(&pauses[10..], [60_000, 60_000]);
        now += WELL;
        assert!(service.ended(exit(1, Ending::Own), now));
        assert_eq!(service.next().unwrap() - now, FIRST_PAUSE);
    }

    #[test]
    fn a_policy_gives_up_and_does_not_undo_a_stop() {
        let mut twice = service(Restart::Always(Some(2)));
        let now = twice.began;
        for _ in 0..2 {
            assert!(twice.ended(exit(0, Ending::Own), now));
            assert!(twice.due(now + LONGEST_PAUSE).is_some());
        }
        assert!(!twice.ended(exit(0, Ending::Own), now));
        let mut always = service(Restart::Always(None));
        assert!(!always.ended(exit(143, Ending::Stopped), now));
        let mut on_failure = service(Restart::OnFailure(None));
        assert!(!on_failure.ended(exit(0, Ending::Own), now));
        assert!(on_failure.ended(exit(137, Ending::Memory), now));
    }
}
