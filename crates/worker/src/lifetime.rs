//! Deadlines of a sandbox: stop, maximum duration, idle timeout, drain, watched memory.

use crate::log::now_ms;
use crate::processes;
use msb_jail::JailedProcess;
use msb_spec::{By, Ending, Modification, Plan};
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
    memory_limit: Option<u64>,
    next_watch: Instant,
    memory_kills: u64,
}

impl Lifetime {
    pub(crate) fn new(plan: &Plan) -> Self {
        let now = Instant::now();
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
            memory_limit: plan.limits.memory.filter(|l| l.by == By::Watch).map(|l| l.value.0),
            next_watch: now,
            memory_kills: 0,
        }
    }

    /// When the maximum duration ends.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.max
    }

    /// Sets the deadline to now + `left`; `None`, or a time beyond the clock's range, removes it.
    pub(crate) fn renew(&mut self, left: Option<Duration>) {
        self.max = left.and_then(|left| Instant::now().checked_add(left));
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
    pub(crate) fn set_busy(&mut self, busy: bool) {
        if self.busy && !busy {
            self.idle_since = Instant::now();
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
        [self.max, idle, watch, stop].into_iter().flatten().min()
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
    pub(crate) fn watch_memory(&mut self, now: Instant, jailed: &JailedProcess, paused: bool) {
        let Some(limit) = self.memory_limit.filter(|_| self.is_used() && now >= self.next_watch)
        else {
            return;
        };
        self.next_watch = now + WATCH_INTERVAL;
        if paused {
            return;
        }
        let found = processes::list(&jailed.processes);
        let resident: u64 = found.iter().map(|process| process.resident).sum();
        let files = processes::tmpfs_bytes(&jailed.tmpfs_mounts);
        if resident + files <= limit
            || processes::total_pss(&jailed.processes, &found, files) <= limit
        {
            return;
        }
        let largest = found.iter().skip(1).max_by_key(|process| process.resident);
        if largest.is_some_and(|process| processes::kill(&jailed.processes, process.pid).is_ok()) {
            self.memory_kills += 1;
        }
    }

    /// Whether a process was OOM-killed since the last call.
    pub(crate) fn memory_hit(&mut self, jailed: &JailedProcess, seen: &mut u64) -> bool {
        let by_kernel =
            jailed.group.as_ref().map_or(0, msb_jail::cgroup::SandboxCgroup::memory_kills);
        let kills = by_kernel + self.memory_kills;
        let hit = kills > *seen;
        *seen = kills;
        hit
    }
}
