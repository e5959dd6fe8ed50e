//! Whether a sandbox is well: a command of its own, run now and then, that nobody else sees.

use crate::exec::Exec;
use crate::worker::Worker;
use msb_spec::{Asker, Command, Ending, Exit, HealthStatus, Plan, Stdin, Surface};
use msb_sys::signal;
use msb_wire::record::Happened;
use std::time::Instant;

/// What is kept of what a check says: enough for the message of a program that cannot connect.
const OUTPUT: usize = 1 << 10;

/// The health check of a sandbox, and what it has found.
#[derive(Debug)]
pub(crate) struct Health {
    rule: msb_spec::Health,
    pub(crate) status: HealthStatus,
    failures: u32,
    /// The check that runs.
    running: Option<u64>,
    next: Instant,
    /// Until when failures do not count.
    starting: Option<Instant>,
}

impl Health {
    pub(crate) fn new(plan: &Plan) -> Option<Self> {
        Some(Self::begun(plan.health.clone()?, Instant::now()))
    }

    fn begun(rule: msb_spec::Health, now: Instant) -> Self {
        let (next, starting) = (now + rule.interval.0, now + rule.start.0);
        let (status, starting) = (HealthStatus::Starting, Some(starting));
        Self { rule, status, failures: 0, running: None, next, starting }
    }

    /// What it looks after has just been begun again.
    pub(crate) fn begin_anew(&mut self, now: Instant) {
        let running = self.running;
        *self = Self { running, ..Self::begun(self.rule.clone(), now) };
    }

    /// When the next check is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.running.is_none().then_some(self.next)
    }

    /// Has the next check wait for as long as any does.
    fn put_off(&mut self, now: Instant) {
        self.next = now + self.rule.interval.0;
    }

    /// A check has ended; what that changes, if it does.
    fn ended(&mut self, well: bool, now: Instant) -> Option<HealthStatus> {
        self.running = None;
        self.put_off(now);
        let before = self.status;
        if well {
            (self.failures, self.starting) = (0, None);
            self.status = HealthStatus::Healthy;
        } else if self.starting.is_none_or(|until| now >= until) {
            self.failures = self.failures.saturating_add(1);
            if self.failures >= self.rule.retries {
                self.status = HealthStatus::Unhealthy;
            }
        }
        (self.status != before).then_some(self.status)
    }

    fn command(&self) -> Command {
        Command {
            argv: ["/bin/sh", "-c", &self.rule.command].map(str::to_owned).to_vec(),
            stdin: Stdin::Closed,
            timeout: Some(self.rule.timeout),
            detached: true,
            unlogged: true,
            asker: Some(Asker::new(Surface::Health)),
            ..Command::default()
        }
    }
}

impl Worker {
    /// Begins a check if one is due. Nobody is asked while everything stands still, or while there
    /// is nothing to ask about.
    pub(crate) fn look_at_health(&mut self, now: Instant) {
        let still = self.guest.is_paused() || self.is_held();
        let ends = self.life.stopping.is_some() || self.life.draining;
        let unready = self.awaits_restart() || !self.whole;
        let Some(health) = self.health.as_mut() else { return };
        if health.next().is_none_or(|next| now < next) {
            return;
        }
        health.put_off(now);
        if still || ends || unready {
            return;
        }
        let command = health.command();
        if self.is_sleepy(now) {
            return;
        }
        self.look_away(now);
        let running = self.start_own(command);
        if let Some(health) = &mut self.health {
            health.running = running;
        }
    }

    /// Whether a check runs.
    pub(crate) fn checks_health(&self) -> bool {
        self.health.as_ref().is_some_and(|health| health.running.is_some())
    }

    /// Everything stands still: a check that ran tells nothing, and ends when it goes on.
    pub(crate) fn interrupt_check(&mut self) {
        let Some(health) = &mut self.health else { return };
        let Some(check) = health.running.take() else { return };
        health.put_off(Instant::now());
        if let Some(exec) = self.execs.get_mut(&check) {
            exec.deadline = None;
        }
        let _ = self.kill_exec(check, signal::SIGKILL);
    }

    /// A check has ended, or could not begin.
    pub(crate) fn checked(&mut self, mut exec: Exec, exit: Option<Exit>) {
        if self.health.as_ref().is_none_or(|health| health.running != Some(exec.id)) {
            return;
        }
        self.use_is_known(Instant::now());
        let Some(health) = &mut self.health else { return };
        let well = exit.is_some_and(|exit| exit.success());
        let Some(status) = health.ended(well, Instant::now()) else { return };
        let output = match (status, exit) {
            (HealthStatus::Healthy, _) => String::new(),
            (_, Some(Exit { ending: Ending::Timeout, .. })) => {
                format!("{}\nthe check took too long", last_words(exec.recent())).trim().to_owned()
            }
            _ => last_words(exec.recent()),
        };
        self.record(Happened::Health { status, output });
        if let (HealthStatus::Unhealthy, Some(_), Some(main)) = (status, &self.service, self.main) {
            if let Some(main) = self.execs.get_mut(&main).filter(|main| main.ending == Ending::Own)
            {
                main.ending = Ending::Unhealthy;
            }
            let _ = self.kill_exec(main, signal::SIGKILL);
        }
    }
}

/// The end of what was said, as text that a terminal can show.
fn last_words(said: &[u8]) -> String {
    let end = &said[said.len().saturating_sub(OUTPUT)..];
    let text = String::from_utf8_lossy(end);
    let shown = |c: &char| *c == '\n' || !c.is_control();
    text.chars().filter(shown).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Span;
    use std::time::Duration;

    fn health(start: u64) -> (Health, Instant) {
        let now = Instant::now();
        let start = Span(Duration::from_secs(start));
        (Health::begun(msb_spec::Health { start, ..msb_spec::Health::new("true") }, now), now)
    }

    #[test]
    fn three_failures_in_a_row_are_unhealthy_and_one_success_is_not() {
        let (mut health, now) = health(0);
        assert_eq!(health.ended(true, now), Some(HealthStatus::Healthy));
        assert_eq!(
            [false, false, true, false, false].map(|well| health.ended(well, now)),
            [None; 5]
        );
        assert_eq!(health.ended(false, now), Some(HealthStatus::Unhealthy));
        assert_eq!(health.ended(false, now), None);
        assert_eq!(health.ended(true, now), Some(HealthStatus::Healthy));
    }

    #[test]
    fn failures_at_the_start_do_not_count_until_it_was_well_once() {
        let (mut health, now) = health(60);
        assert_eq!([false; 5].map(|well| health.ended(well, now)), [None; 5]);
        assert_eq!(health.ended(true, now), Some(HealthStatus::Healthy));
        assert_eq!([false; 2].map(|well| health.ended(well, now)), [None; 2]);
        assert_eq!(health.ended(false, now), Some(HealthStatus::Unhealthy));
        health.begin_anew(now);
        assert_eq!(health.status, HealthStatus::Starting);
        assert_eq!(health.ended(false, now), None);
    }

    #[test]
    fn what_is_kept_is_short_and_shows_on_a_terminal() {
        let said = [vec![b'x'; 5000], b"\x1b[31mno\n".to_vec()].concat();
        let kept = last_words(&said);
        assert!(kept.len() <= OUTPUT && kept.ends_with("[31mno"), "{kept}");
    }
}
