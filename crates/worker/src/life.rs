//! When a sandbox ends: asked to, out of time, idle, drained or out of memory.

use crate::log::now_ms;
use crate::processes;
use msb_jail::Confined;
use msb_spec::{By, Ending, Modification, Plan};
use std::time::{Duration, Instant};

/// Often enough that memory is caught within 100 ms, seldom enough to cost nothing.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// The clocks of a sandbox.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) started: Instant,
    /// The same in milliseconds since 1970.
    pub(crate) began: u64,
    max: Option<Instant>,
    idle: Option<Duration>,
    idle_since: Instant,
    busy: bool,
    /// Whether an init of the image's own runs, which is told to end and given time.
    pub(crate) init: bool,
    pub(crate) draining: bool,
    /// Asked to end: why, and when it is killed.
    pub(crate) stopping: Option<(Ending, Instant)>,
    watched: Option<u64>,
    next_watch: Instant,
    memory_kills: u64,
}

impl Life {
    pub(crate) fn begin(plan: &Plan) -> Self {
        let now = Instant::now();
        Self {
            started: now,
            began: now_ms(),
            max: plan.max_duration.map(|span| now + span.0),
            idle: plan.idle_timeout.map(|span| span.0),
            idle_since: now,
            busy: false,
            init: false,
            draining: false,
            stopping: None,
            watched: plan.limits.memory.filter(|l| l.by == By::Watch).map(|l| l.value.0),
            next_watch: now,
            memory_kills: 0,
        }
    }

    /// When the sandbox ends at the latest.
    pub(crate) fn ends(&self) -> Option<Instant> {
        self.max
    }

    /// Has it end this long from now, whatever was said before; none is never. What is longer than
    /// a clock can count is never too.
    pub(crate) fn renew(&mut self, left: Option<Duration>) {
        self.max = left.and_then(|left| Instant::now().checked_add(left));
    }

    /// Goes by what was changed of the Plan. How long it lives counts from its start.
    pub(crate) fn modify(&mut self, plan: &Plan, change: &Modification) {
        if change.max_duration.is_some() {
            self.max = plan.max_duration.and_then(|span| self.started.checked_add(span.0));
        }
        self.idle = plan.idle_timeout.map(|span| span.0);
        self.watched = plan.limits.memory.filter(|l| l.by == By::Watch).map(|l| l.value.0);
    }

    /// Tells whether any Exec runs.
    pub(crate) fn set_busy(&mut self, busy: bool) {
        if self.busy && !busy {
            self.idle_since = Instant::now();
        }
        self.busy = busy;
    }

    /// Somebody is there who is no Exec: the idle clock begins anew.
    pub(crate) fn put_off(&mut self, now: Instant) {
        self.idle_since = now;
    }

    /// The next moment at which something is to be looked at.
    pub(crate) fn next(&self) -> Option<Instant> {
        let resting = !self.busy && self.stopping.is_none();
        let idle = self.idle.filter(|_| resting).map(|idle| self.idle_since + idle);
        let watch = self.watched.filter(|_| self.is_used()).map(|_| self.next_watch);
        let stop = self.stopping.map(|(_, deadline)| deadline);
        [self.max, idle, watch, stop].into_iter().flatten().min()
    }

    /// Whether anything of the sandbox's runs.
    fn is_used(&self) -> bool {
        self.busy || self.init
    }

    /// Why the sandbox is to end now, if it is.
    pub(crate) fn over(&self, now: Instant) -> Option<Ending> {
        if let Some((ending, deadline)) = self.stopping
            && (now >= deadline || !self.is_used())
        {
            return Some(ending);
        }
        let resting = !self.busy && self.stopping.is_none();
        if self.draining && resting {
            return Some(Ending::Drained);
        }
        if self.max.is_some_and(|max| now >= max) {
            return Some(Ending::MaxDuration);
        }
        let idle = self.idle.filter(|_| resting);
        idle.is_some_and(|idle| now >= self.idle_since + idle).then_some(Ending::Idle)
    }

    /// Kills the largest process if all together use more than they may, as the kernel would.
    pub(crate) fn watch_memory(&mut self, now: Instant, confined: &Confined, paused: bool) {
        let Some(limit) = self.watched.filter(|_| self.is_used() && now >= self.next_watch) else {
            return;
        };
        self.next_watch = now + WATCH_INTERVAL;
        if paused {
            return;
        }
        let found = processes::below(confined.pid);
        let resident: u64 = found.iter().map(|process| process.resident).sum();
        let files = processes::held(&confined.in_memory);
        if resident + files <= limit || processes::proportional(&found, files) <= limit {
            return;
        }
        let largest = found.iter().skip(1).max_by_key(|process| process.resident);
        if largest.is_some_and(|process| processes::kill(process.pid).is_ok()) {
            self.memory_kills += 1;
        }
    }

    /// Whether something was killed for want of memory since this was last asked.
    pub(crate) fn memory_hit(&mut self, confined: &Confined, seen: &mut u64) -> bool {
        let by_kernel = confined.group.as_ref().map_or(0, msb_jail::cgroup::Group::memory_kills);
        let kills = by_kernel + self.memory_kills;
        let hit = kills > *seen;
        *seen = kills;
        hit
    }
}
