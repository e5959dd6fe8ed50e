//! Deadlines of a sandbox: stop, maximum duration, idle timeout, drain, watched memory.

use crate::guest_process::GuestProcess;
use crate::log::now_ms;
use crate::processes;
use msb_jail::cgroup::SandboxCgroup;
use msb_spec::{By, Ending, Modification, Plan};
use msb_wire::StopResult;
use std::time::{Duration, Instant};

/// Memory above the limit is noticed within 100 ms, at negligible cost.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Deadlines and timers of a sandbox.
#[derive(Debug)]
pub(crate) struct Lifetime {
    pub(crate) started: Instant,
    /// Start time in milliseconds since 1970.
    pub(crate) started_ms: u64,
    max: Option<Instant>,
    idle: Option<Duration>,
    idle_since: Instant,
    busy: bool,
    /// Whether the image's own init runs. It gets its stop signal and a grace period.
    pub(crate) init: bool,
    pub(crate) draining: bool,
    /// Set when the sandbox is being stopped: why, and when it is killed.
    pub(crate) stopping: Option<(Ending, Instant)>,
    /// Stopped without a grace period, so disks are not synced.
    pub(crate) forced: bool,
    /// Why the sandbox has ended; the loop ends with it.
    pub(crate) outcome: Option<StopResult>,
    /// The sandbox is complete as planned. An incomplete one is removed when it ends.
    pub(crate) fully_created: bool,
    /// When the boot of a microVM, or of an init, has timed out.
    pub(crate) boot_deadline: Option<Instant>,
    memory_limit: Option<u64>,
    next_watch: Instant,
    memory_kills: u64,
    /// Processes killed for memory that were reported already.
    memory_kills_seen: u64,
    /// Forks refused by the pids limit that were reported already.
    forks_refused_seen: u64,
}

impl Lifetime {
    pub(crate) fn new(plan: &Plan, fully_created: bool, now: Instant) -> Self {
        Self {
            started: now,
            started_ms: now_ms(),
            max: plan.max_duration.map(|span| now + span.0),
            idle: plan.idle_timeout.map(|span| span.0),
            idle_since: now,
            busy: false,
            init: false,
            draining: false,
            stopping: None,
            forced: false,
            outcome: None,
            fully_created,
            boot_deadline: None,
            memory_limit: plan.limits.memory.filter(|l| l.by == By::Watch).map(|l| l.value.0),
            next_watch: now,
            memory_kills: 0,
            memory_kills_seen: 0,
            forks_refused_seen: 0,
        }
    }

    /// When the maximum duration ends.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.max
    }

    /// Sets the deadline to now + `left`; `None`, or a time beyond the clock's range, removes it.
    pub(crate) fn renew(&mut self, left: Option<Duration>, now: Instant) {
        self.max = left.and_then(|left| now.checked_add(left));
    }

    /// Applies a changed Plan. The maximum duration counts from the start of the sandbox.
    pub(crate) fn modify(&mut self, plan: &Plan, change: &Modification) {
        if change.max_duration.is_some() {
            self.max = plan.max_duration.and_then(|span| self.started.checked_add(span.0));
        }
        self.idle = plan.idle_timeout.map(|span| span.0);
        self.memory_limit = plan.limits.memory.filter(|l| l.by == By::Watch).map(|l| l.value.0);
    }

    /// Sets whether any Exec runs.
    pub(crate) fn set_busy(&mut self, busy: bool, now: Instant) {
        if self.busy && !busy {
            self.idle_since = now;
        }
        self.busy = busy;
    }

    /// Restarts the idle timeout, because a stream is open.
    pub(crate) fn restart_idle_timer(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// The next deadline, if any.
    pub(crate) fn next(&self) -> Option<Instant> {
        let idle_now = !self.busy && self.stopping.is_none();
        let idle = self.idle.filter(|_| idle_now).map(|idle| self.idle_since + idle);
        let watch = self.memory_limit.filter(|_| self.is_used()).map(|_| self.next_watch);
        let stop = self.stopping.map(|(_, deadline)| deadline);
        [self.max, idle, watch, stop, self.boot_deadline].into_iter().flatten().min()
    }

    /// Whether an Exec or the init runs.
    fn is_used(&self) -> bool {
        self.busy || self.init
    }

    /// The reason to end the sandbox now, if there is one.
    pub(crate) fn due_ending(&self, now: Instant) -> Option<Ending> {
        if let Some((ending, deadline)) = self.stopping
            && (now >= deadline || !self.is_used())
        {
            return Some(ending);
        }
        let idle_now = !self.busy && self.stopping.is_none();
        if self.draining && idle_now {
            return Some(Ending::Drained);
        }
        if self.max.is_some_and(|max| now >= max) {
            return Some(Ending::MaxDuration);
        }
        let idle = self.idle.filter(|_| idle_now);
        idle.is_some_and(|idle| now >= self.idle_since + idle).then_some(Ending::Idle)
    }

    /// Without a cgroup: kills the largest process if all together exceed the memory limit, as the
    /// OOM killer would.
    pub(crate) fn watch_memory(&mut self, now: Instant, process: &dyn GuestProcess, paused: bool) {
        let Some(limit) = self.memory_limit.filter(|_| self.is_used() && now >= self.next_watch)
        else {
            return;
        };
        self.next_watch = now + WATCH_INTERVAL;
        if paused {
            return;
        }
        let found = processes::list(process.processes());
        let resident: u64 = found.iter().map(|process| process.resident).sum();
        let files = processes::tmpfs_bytes(process.tmpfs_mounts());
        if resident + files <= limit
            || processes::total_pss(process.processes(), &found, files) <= limit
        {
            return;
        }
        let largest = found.iter().skip(1).max_by_key(|process| process.resident);
        if largest.is_some_and(|one| processes::kill(process.processes(), one.pid).is_ok()) {
            self.memory_kills += 1;
        }
    }

    /// Whether a process was OOM-killed since the last call.
    pub(crate) fn memory_hit(&mut self, group: Option<&SandboxCgroup>) -> bool {
        let kills = group.map_or(0, SandboxCgroup::memory_kills) + self.memory_kills;
        kills > std::mem::replace(&mut self.memory_kills_seen, kills)
    }

    /// Whether the pids limit of the cgroup has refused a fork since the last call.
    pub(crate) fn fork_refused(&mut self, group: Option<&SandboxCgroup>) -> bool {
        let refused = group.map_or(0, SandboxCgroup::forks_refused);
        let more = refused > self.forks_refused_seen;
        self.forks_refused_seen = self.forks_refused_seen.max(refused);
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::{Limit, Span};

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn lifetime(max: Option<u64>, idle: Option<u64>) -> (Lifetime, Instant) {
        let plan = Plan {
            max_duration: max.map(|max| Span(seconds(max))),
            idle_timeout: idle.map(|idle| Span(seconds(idle))),
            ..crate::tests::plan()
        };
        let now = Instant::now();
        (Lifetime::new(&plan, true, now), now)
    }

    #[test]
    fn the_earliest_deadline_is_next() {
        let (mut lifetime, now) = lifetime(Some(60), Some(10));
        assert_eq!(lifetime.next(), Some(now + seconds(10)));
        lifetime.set_busy(true, now);
        assert_eq!(lifetime.next(), Some(now + seconds(60)));
        lifetime.boot_deadline = Some(now + seconds(30));
        assert_eq!(lifetime.next(), Some(now + seconds(30)));
        lifetime.stopping = Some((Ending::Stopped, now + seconds(5)));
        assert_eq!(lifetime.next(), Some(now + seconds(5)));
        lifetime.stopping = None;
        lifetime.boot_deadline = None;
        lifetime.renew(None, now);
        assert_eq!(lifetime.next(), None);
    }

    #[test]
    fn a_stop_waits_for_commands_until_its_deadline() {
        let (mut lifetime, now) = lifetime(None, None);
        lifetime.set_busy(true, now);
        lifetime.stopping = Some((Ending::Stopped, now + seconds(5)));
        assert_eq!(lifetime.due_ending(now + seconds(4)), None);
        assert_eq!(lifetime.due_ending(now + seconds(5)), Some(Ending::Stopped));
        lifetime.set_busy(false, now);
        assert_eq!(lifetime.due_ending(now), Some(Ending::Stopped));
        lifetime.init = true;
        assert_eq!(lifetime.due_ending(now), None, "the init still runs");
    }

    #[test]
    fn a_duration_beyond_the_clock_is_no_deadline() {
        let (mut lifetime, now) = lifetime(Some(60), None);
        lifetime.renew(Some(Duration::MAX), now);
        assert_eq!((lifetime.deadline(), lifetime.due_ending(now + seconds(61))), (None, None));
    }

    #[test]
    fn a_changed_maximum_counts_from_the_start() {
        let (mut lifetime, now) = lifetime(Some(60), Some(10));
        let change =
            Modification { max_duration: Some(Span(seconds(90))), ..Modification::default() };
        let plan = Plan { max_duration: Some(Span(seconds(90))), ..crate::tests::plan() };
        lifetime.modify(&plan, &change);
        assert_eq!(lifetime.deadline(), Some(now + seconds(90)));
        assert_eq!(lifetime.next(), Some(now + seconds(90)), "the new Plan has no idle timeout");
    }

    #[test]
    fn memory_is_watched_only_while_something_runs() {
        let limit = Limit { value: msb_spec::Bytes(1 << 20), by: By::Watch };
        let mut plan = crate::tests::plan();
        plan.limits.memory = Some(limit);
        let now = Instant::now();
        let mut lifetime = Lifetime::new(&plan, true, now);
        assert_eq!(lifetime.next(), None);
        lifetime.set_busy(true, now);
        assert_eq!(lifetime.next(), Some(now));
    }

    #[test]
    fn each_memory_kill_is_reported_once() {
        let (mut lifetime, _) = lifetime(None, None);
        assert!(!lifetime.memory_hit(None));
        lifetime.memory_kills += 1;
        assert!(lifetime.memory_hit(None) && !lifetime.memory_hit(None));
    }
}
