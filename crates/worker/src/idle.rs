//! Pauses an idle sandbox, and resumes it when something arrives for it.
//!
//! A sandbox is idle when:
//! - no Exec starts, ends, gets input or writes output,
//! - no file operation runs and no stream into the sandbox is open,
//! - no packet passes,
//! - its processes use less than 2 % of one CPU.
//!
//! Health checks do not count as activity.

use crate::exec::ExecHandle;
use crate::guest::GuestTransport;
use crate::host_usage;
use crate::worker::Worker;
use msb_spec::{Error, Kind, Plan};
use msb_vm::Order;
use msb_wire::ToGateway;
use msb_wire::record::{EventKind, WakeReason};
use std::time::{Duration, Instant};

/// CPU use below which a sandbox is idle, in thousandths of one CPU. A computation uses a whole
/// CPU. Programs that wait and wake up now and then, an idle kernel and health checks stay below.
const IDLE_CPU_PERMILLE: u128 = 20;
/// Number of checks in one idle timeout; the pause is late by at most one of them.
const CHECKS_PER_TIMEOUT: u32 = 8;
/// Bounds of the check interval. A check reads a few files and queries the gateway, so it must not
/// run all the time. If it ran too rarely, a burst of work would be averaged away.
const CHECK_INTERVAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// A shorter sample would be dominated by work that ended just before it.
const MIN_SAMPLE: Duration = Duration::from_millis(50);

/// The idle timer of a sandbox.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    after: Option<Duration>,
    /// Time of the last activity.
    since: Instant,
    next: Instant,
    /// CPU time in microseconds and when it was read. None while a health check runs.
    cpu_time: Option<(u64, Instant)>,
    /// CPU time in microseconds, and the wall time it was used in, since the last evaluation.
    cpu_window: (u64, Duration),
    /// Packet counter of the gateway at the last check.
    packets: Option<u64>,
    state: IdleState,
}

/// Whether the idle timer has paused the sandbox. Pausing and resuming may take a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdleState {
    Active,
    /// A pause was requested; holds an activity that has arrived since.
    Pausing(Option<WakeReason>),
    Paused,
    /// A resume was requested, for this reason.
    Resuming(WakeReason),
}

impl IdleTimer {
    pub(crate) fn new(plan: &Plan, now: Instant) -> Self {
        let after = plan.idle_pause.map(|span| span.0);
        let state = IdleState::Active;
        let cpu_window = Default::default();
        Self { after, since: now, next: now, cpu_time: None, cpu_window, packets: None, state }
    }

    /// Applies a changed timeout and restarts the timer.
    pub(crate) fn set(&mut self, plan: &Plan, now: Instant) {
        self.after = plan.idle_pause.map(|span| span.0);
        self.since = now;
        self.next = self.since;
    }

    /// Restarts the timer, because of some activity.
    pub(crate) fn touch(&mut self, now: Instant) {
        if self.after.is_some() {
            self.since = now;
        }
    }

    /// When to check again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.after.filter(|_| self.state == IdleState::Active).map(|_| self.next)
    }

    /// Whether this timer has paused the sandbox.
    pub(crate) fn is_paused(&self) -> bool {
        self.state == IdleState::Paused
    }

    /// Whether a pause or resume is in progress, so that new commands have to wait.
    pub(crate) fn is_transitioning(&self) -> bool {
        matches!(self.state, IdleState::Pausing(_) | IdleState::Resuming(_))
    }

    /// A client pauses the sandbox, so the timer no longer resumes it. Returns whether it is paused
    /// already.
    pub(crate) fn take_over_pause(&mut self) -> bool {
        let paused = self.is_paused();
        if paused || matches!(self.state, IdleState::Pausing(_)) {
            self.state = IdleState::Active;
        }
        paused
    }

    /// Adds CPU time used since the last call to the window.
    fn add_cpu_time(&mut self, cpu_time: u64, now: Instant) {
        if let Some((before, then)) = self.cpu_time.replace((cpu_time, now)) {
            self.cpu_window.0 += cpu_time.saturating_sub(before);
            self.cpu_window.1 += now.saturating_duration_since(then);
        }
    }

    /// Compares the CPU use of the window with the threshold; false if the window is too short.
    fn evaluate_cpu(&mut self, now: Instant) -> bool {
        let after = self.after.unwrap_or_default();
        self.next = now + (after / CHECKS_PER_TIMEOUT).clamp(CHECK_INTERVAL.0, CHECK_INTERVAL.1);
        let (spent, span) = self.cpu_window;
        if span < MIN_SAMPLE {
            return false;
        }
        if u128::from(spent) * 1000 > span.as_micros() * IDLE_CPU_PERMILLE {
            self.since = now;
        }
        self.cpu_window = Default::default();
        true
    }

    /// Compares the packet counter of the gateway with the last one.
    fn add_packets(&mut self, packets: u64, now: Instant) {
        if self.packets.replace(packets).is_some_and(|before| before != packets) {
            self.since = now;
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        self.after.is_some_and(|after| now.saturating_duration_since(self.since) >= after)
    }
}

impl Worker {
    /// Checks for activity, when a check is due.
    pub(crate) fn check_idle(&mut self, now: Instant) {
        if self.idle.next().is_none_or(|next| now < next) {
            return;
        }
        let busy = self.guest.is_paused()
            || self.is_held_for_copy()
            || self.is_restart_pending()
            || self.lifetime.stopping.is_some()
            || self.lifetime.draining
            || self.has_streams()
            || self.execs.values().any(has_waiting_client)
            || !self.lifetime.fully_created;
        if busy {
            self.idle.since = now;
        }
        let checks = self.is_checking_health();
        if !checks {
            self.record_cpu_time(now);
        }
        let enough = self.idle.evaluate_cpu(now);
        if !enough || checks {
            return;
        }
        // The packet counter must be known before the decision.
        if !self.send_internal_request(&ToGateway::Traffic) {
            self.pause_if_idle(now, None);
        }
    }

    /// Reads the CPU time that the sandbox has used so far.
    pub(crate) fn record_cpu_time(&mut self, now: Instant) {
        if self.idle.after.is_some() {
            let cpu_time = host_usage::measure(&*self.guest.process, self.uptime()).cpu_us;
            self.idle.add_cpu_time(cpu_time, now);
        }
    }

    /// Stops counting CPU time while a health check runs.
    pub(crate) fn pause_accounting(&mut self, now: Instant) {
        self.record_cpu_time(now);
        self.idle.cpu_time = None;
    }

    /// Whether the sandbox is about to be paused, so that a health check can be skipped.
    pub(crate) fn idle_due(&mut self, now: Instant) -> bool {
        let due = self.idle.state == IdleState::Active && self.idle.is_due(now);
        if due {
            self.idle.next = now;
        }
        due
    }

    /// Whether a stream into the sandbox is open. Its peer would hang if the sandbox were paused.
    pub(crate) fn has_streams(&mut self) -> bool {
        self.guest.streams.count() > 0 || !self.guest.relays.is_empty()
    }

    /// Reply of the gateway: packets in both directions, and packets to the sandbox.
    pub(crate) fn on_packet_count(&mut self, packets: u64, packets_in: u64) {
        let now = self.clock.now();
        self.idle.add_packets(packets, now);
        self.pause_if_idle(now, Some(packets_in));
    }

    fn pause_if_idle(&mut self, now: Instant, packets_in: Option<u64>) {
        let still = self.guest.is_paused() || self.is_held_for_copy() || self.is_checking_health();
        if self.idle.state != IdleState::Active || still || !self.idle.is_due(now) {
            return;
        }
        self.idle.state = IdleState::Pausing(None);
        // Arms the wake-up in the gateway, also for packets that arrived since the counter was
        // read.
        if let Some(packets_in) = packets_in {
            self.send_internal_request(&ToGateway::ArmWakeup { brought: packets_in });
        }
        let ordered = match &self.guest.transport {
            GuestTransport::Vm(vm) => vm
                .order(Order::Pause)
                .map(|()| self.guest.pending_vm_orders.push_back(None))
                .is_ok(),
            GuestTransport::Jail(_) => {
                self.request_freeze(true);
                true
            }
        };
        if !ordered {
            self.set_active();
        }
    }

    /// The sandbox was paused or resumed, or a request to do so has failed.
    pub(crate) fn on_pause_changed(&mut self, paused: bool) {
        match (self.idle.state, paused) {
            (IdleState::Pausing(came), true) => {
                self.idle.state = IdleState::Paused;
                self.record(EventKind::Paused { idle: true });
                if let Some(by) = came {
                    self.wake(by);
                }
            }
            (IdleState::Resuming(by), false) => {
                self.set_active();
                self.record(EventKind::Resumed { by: Some(by) });
            }
            (IdleState::Paused, false) => {
                self.set_active();
                self.record(EventKind::Resumed { by: Some(WakeReason::Asked) });
            }
            (_, false) => self.set_active(),
            (IdleState::Resuming(_), true) => {
                self.idle.state = IdleState::Paused;
                self.fail_delayed(&Error::new(Kind::Host, "the sandbox does not resume"));
            }
            (_, true) => {}
        }
    }

    fn set_active(&mut self) {
        let now = self.clock.now();
        (self.idle.state, self.idle.since, self.idle.next) = (IdleState::Active, now, now);
        (self.idle.cpu_time, self.idle.packets) = (None, None);
        self.idle.cpu_window = Default::default();
    }

    /// Records activity, and resumes the sandbox if the idle timer has paused it.
    pub(crate) fn wake(&mut self, by: WakeReason) {
        self.idle.touch(self.clock.now());
        match self.idle.state {
            IdleState::Active | IdleState::Resuming(_) => return,
            IdleState::Pausing(_) => {
                self.idle.state = IdleState::Pausing(Some(by));
                return;
            }
            IdleState::Paused => self.idle.state = IdleState::Resuming(by),
        }
        match &self.guest.transport {
            GuestTransport::Vm(vm) => match vm.order(Order::Resume) {
                Ok(()) => self.guest.pending_vm_orders.push_back(None),
                Err(error) => {
                    self.idle.state = IdleState::Paused;
                    self.fail_delayed(&error);
                }
            },
            GuestTransport::Jail(_) => self.request_freeze(false),
        }
    }
}

/// Whether a client waits for its exit. A client on a terminal only waits for output.
fn has_waiting_client(exec: &ExecHandle) -> bool {
    !exec.internal && !exec.tty && !exec.watchers.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(after: u64) -> (IdleTimer, Instant) {
        let now = Instant::now();
        let after = Some(Duration::from_secs(after));
        let state = IdleState::Active;
        let cpu_window = Default::default();
        (
            IdleTimer {
                after,
                since: now,
                next: now,
                cpu_time: None,
                cpu_window,
                packets: None,
                state,
            },
            now,
        )
    }

    #[test]
    fn cpu_use_without_output_is_not_idle() {
        let (mut idle, start) = idle(10);
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            idle.add_cpu_time(second * 500_000, now);
            idle.evaluate_cpu(now);
            assert!(!idle.is_due(now), "after {second} s");
        }
    }

    #[test]
    fn periodic_wakeups_are_idle() {
        let (mut idle, start) = idle(10);
        for second in 0..10 {
            let now = start + Duration::from_secs(second);
            idle.add_cpu_time(second * 5_000, now);
            idle.evaluate_cpu(now);
            idle.add_packets(7, now);
            assert!(!idle.is_due(now), "after {second} s");
        }
        assert!(idle.is_due(start + Duration::from_secs(10)));
    }

    #[test]
    fn cpu_use_of_health_checks_is_ignored() {
        let (mut idle, start) = idle(10);
        let at = |ms| start + Duration::from_millis(ms);
        // Each check uses 100 ms of CPU time within 200 ms, once a second.
        for second in 0..10 {
            idle.add_cpu_time(second * 100_000, at(second * 1000));
            assert_eq!(idle.evaluate_cpu(at(second * 1000)), second > 0);
            idle.cpu_time = None;
            idle.add_cpu_time((second + 1) * 100_000, at(second * 1000 + 200));
            assert!(!idle.evaluate_cpu(at(second * 1000 + 210)), "nothing to judge by");
        }
        assert!(idle.is_due(at(10_000)));
        idle.add_cpu_time(1_000_000 + 100_000, at(10_000));
        assert!(idle.evaluate_cpu(at(10_000)) && !idle.is_due(at(10_000)));
    }

    #[test]
    fn traffic_restarts_the_timer_and_checks_are_an_eighth_of_it() {
        let (mut idle, start) = idle(10);
        idle.add_packets(7, start);
        idle.add_packets(8, start + Duration::from_secs(9));
        assert!(!idle.is_due(start + Duration::from_secs(18)));
        assert!(idle.is_due(start + Duration::from_secs(19)));
        idle.evaluate_cpu(start);
        assert_eq!(idle.next(), Some(start + Duration::from_millis(1250)));
    }
}
