//! Health checks: a command that the worker runs at intervals, hidden from clients.

use crate::exec::ExecHandle;
use crate::worker::Worker;
use msb_spec::{CallOrigin, Command, Ending, Exit, HealthStatus, Plan, Stdin, Surface};
use msb_sys::signal;
use msb_wire::record::EventKind;
use std::time::Instant;

/// Bytes of a check's output that are kept: enough for an error message such as "connection
/// refused".
const OUTPUT_TAIL: usize = 1 << 10;

/// The health check of a sandbox and its current result.
#[derive(Debug)]
pub(crate) struct HealthMonitor {
    rule: msb_spec::Health,
    pub(crate) status: HealthStatus,
    failures: u32,
    /// The internal Exec of a running check.
    running: Option<u64>,
    next: Instant,
    /// End of the start period, in which failures do not count.
    grace_until: Option<Instant>,
}

impl HealthMonitor {
    pub(crate) fn new(plan: &Plan, now: Instant) -> Option<Self> {
        Some(Self::started(plan.health.clone()?, now))
    }

    fn started(rule: msb_spec::Health, now: Instant) -> Self {
        let (next, grace_until) = (now + rule.interval.0, now + rule.start.0);
        let (status, grace_until) = (HealthStatus::Starting, Some(grace_until));
        Self { rule, status, failures: 0, running: None, next, grace_until }
    }

    /// Starts over, after the main command was restarted.
    pub(crate) fn reset(&mut self, now: Instant) {
        let running = self.running;
        *self = Self { running, ..Self::started(self.rule.clone(), now) };
    }

    /// When the next check is due; none while one runs.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.running.is_none().then_some(self.next)
    }

    /// Sets the next check to one interval from now.
    fn schedule_next(&mut self, now: Instant) {
        self.next = now + self.rule.interval.0;
    }

    /// Handles the result of a check. Returns the new status if it has changed.
    fn on_result(&mut self, well: bool, now: Instant) -> Option<HealthStatus> {
        self.running = None;
        self.schedule_next(now);
        let before = self.status;
        if well {
            (self.failures, self.grace_until) = (0, None);
            self.status = HealthStatus::Healthy;
        } else if self.grace_until.is_none_or(|until| now >= until) {
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
            origin: Some(CallOrigin::new(Surface::Health)),
            ..Command::default()
        }
    }
}

impl Worker {
    /// Starts a check if one is due. Checks are skipped while the sandbox is paused, ending, or not
    /// fully created.
    pub(crate) fn run_health_check(&mut self, now: Instant) {
        let still = self.guest.is_paused() || self.is_held_for_copy();
        let ends = self.lifetime.stopping.is_some() || self.lifetime.draining;
        let not_ready = self.is_restart_pending() || !self.lifetime.fully_created;
        let Some(health) = self.health.as_mut() else { return };
        if health.next().is_none_or(|next| now < next) {
            return;
        }
        health.schedule_next(now);
        if still || ends || not_ready {
            return;
        }
        let command = health.command();
        if self.idle_due(now) {
            return;
        }
        self.pause_accounting(now);
        let running = self.start_internal(command);
        if let Some(health) = &mut self.health {
            health.running = running;
        }
    }

    /// Whether a check is running.
    pub(crate) fn is_checking_health(&self) -> bool {
        self.health.as_ref().is_some_and(|health| health.running.is_some())
    }

    /// Kills a running check because the sandbox is paused. Its result does not count.
    pub(crate) fn cancel_check(&mut self) {
        let Some(health) = &mut self.health else { return };
        let Some(check) = health.running.take() else { return };
        health.schedule_next(self.clock.now());
        if let Some(exec) = self.execs.get_mut(check) {
            exec.deadline = None;
        }
        let _ = self.kill_exec(check, signal::SIGKILL);
    }

    /// A check has exited, or could not be started.
    pub(crate) fn on_check_done(&mut self, mut exec: ExecHandle, exit: Option<Exit>) {
        if self.health.as_ref().is_none_or(|health| health.running != Some(exec.id)) {
            return;
        }
        let now = self.clock.now();
        self.record_cpu_time(now);
        let Some(health) = &mut self.health else { return };
        let well = exit.is_some_and(|exit| exit.success());
        let Some(status) = health.on_result(well, now) else { return };
        let output = match (status, exit) {
            (HealthStatus::Healthy, _) => String::new(),
            (_, Some(Exit { ending: Ending::Timeout, .. })) => {
                format!("{}\nthe check took too long", printable_tail(exec.recent()))
                    .trim()
                    .to_owned()
            }
            _ => printable_tail(exec.recent()),
        };
        self.record(EventKind::Health { status, output });
        if let (HealthStatus::Unhealthy, Some(_), Some(main)) =
            (status, &self.supervisor, self.execs.main)
        {
            if let Some(main) = self.execs.get_mut(main).filter(|main| main.ending == Ending::Own) {
                main.ending = Ending::Unhealthy;
            }
            let _ = self.kill_exec(main, signal::SIGKILL);
        }
    }
}

/// The end of the output, without control characters.
fn printable_tail(output: &[u8]) -> String {
    let end = &output[output.len().saturating_sub(OUTPUT_TAIL)..];
    let text = String::from_utf8_lossy(end);
    let shown = |c: &char| *c == '\n' || !c.is_control();
    text.chars().filter(shown).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Span;
    use std::time::Duration;

    fn health(start: u64) -> (HealthMonitor, Instant) {
        let now = Instant::now();
        let start = Span(Duration::from_secs(start));
        (
            HealthMonitor::started(
                msb_spec::Health { start, ..msb_spec::Health::new("true") },
                now,
            ),
            now,
        )
    }

    #[test]
    fn three_failures_in_a_row_are_unhealthy_and_one_success_is_not() {
        let (mut health, now) = health(0);
        assert_eq!(health.on_result(true, now), Some(HealthStatus::Healthy));
        assert_eq!(
            [false, false, true, false, false].map(|well| health.on_result(well, now)),
            [None; 5]
        );
        assert_eq!(health.on_result(false, now), Some(HealthStatus::Unhealthy));
        assert_eq!(health.on_result(false, now), None);
        assert_eq!(health.on_result(true, now), Some(HealthStatus::Healthy));
    }

    #[test]
    fn failures_in_the_grace_period_do_not_count() {
        let (mut health, now) = health(60);
        assert_eq!([false; 5].map(|well| health.on_result(well, now)), [None; 5]);
        assert_eq!(health.on_result(true, now), Some(HealthStatus::Healthy));
        assert_eq!([false; 2].map(|well| health.on_result(well, now)), [None; 2]);
        assert_eq!(health.on_result(false, now), Some(HealthStatus::Unhealthy));
        health.reset(now);
        assert_eq!(health.status, HealthStatus::Starting);
        assert_eq!(health.on_result(false, now), None);
    }

    #[test]
    fn kept_output_is_short_and_printable() {
        let output = [vec![b'x'; 5000], b"\x1b[31mno\n".to_vec()].concat();
        let kept = printable_tail(&output);
        assert!(kept.len() <= OUTPUT_TAIL && kept.ends_with("[31mno"), "{kept}");
    }
}
