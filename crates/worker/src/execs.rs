//! The Execs of a worker by number, the main command among them, and their timeouts.

use crate::exec::ExecHandle;
use msb_spec::{Command, Ending, Error};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Execs of the worker itself are numbered from here, so that those of clients have no gaps.
pub(crate) const FIRST_INTERNAL_ID: u64 = 1 << 63;

/// A command that has not started after this is checked for a stopped guest process.
const STALL_LIMIT: Duration = Duration::from_secs(2);
/// A command that has not started after this has failed, even on an overloaded host.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(60);

/// All Execs that run or are about to.
#[derive(Debug)]
pub(crate) struct Execs {
    handles: BTreeMap<u64, ExecHandle>,
    pub(crate) next_id: u64,
    /// Number of Execs that the worker itself has started.
    internal_count: u64,
    /// The main command's Exec: the sandbox ends with it unless it is restarted.
    pub(crate) main: Option<u64>,
    /// The main command, until the caller has finished patching files.
    pub(crate) pending_main: Option<Command>,
    /// Clients of a main command that could not be started, with the error.
    pub(crate) failed_main: Vec<(u64, Error)>,
    /// Commands that wait until the sandbox is no longer held for a copy, with their clients.
    pub(crate) delayed: Vec<(u64, Command)>,
    /// When commands that do not start were last checked.
    start_checked: Instant,
}

impl Execs {
    pub(crate) fn new(last_id: u64, main: Option<Command>, now: Instant) -> Self {
        Self {
            handles: BTreeMap::new(),
            next_id: last_id + 1,
            internal_count: 0,
            main: None,
            pending_main: main,
            failed_main: Vec::new(),
            delayed: Vec::new(),
            start_checked: now,
        }
    }

    pub(crate) fn insert(&mut self, exec: ExecHandle) {
        self.handles.insert(exec.id, exec);
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<ExecHandle> {
        self.handles.remove(&id)
    }

    pub(crate) fn get(&self, id: u64) -> Option<&ExecHandle> {
        self.handles.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut ExecHandle> {
        self.handles.get_mut(&id)
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.handles.contains_key(&id)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &ExecHandle> {
        self.handles.values()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut ExecHandle> {
        self.handles.values_mut()
    }

    pub(crate) fn ids(&self) -> Vec<u64> {
        self.handles.keys().copied().collect()
    }

    /// Execs that clients have started.
    pub(crate) fn visible(&self) -> impl Iterator<Item = &ExecHandle> {
        self.values().filter(|exec| !exec.internal)
    }

    /// Takes every Exec, at the end of the sandbox.
    pub(crate) fn take_all(&mut self) -> Vec<ExecHandle> {
        std::mem::take(&mut self.handles).into_values().collect()
    }

    /// The number of a new Exec of the worker itself.
    pub(crate) fn next_internal_id(&mut self) -> u64 {
        self.internal_count += 1;
        FIRST_INTERNAL_ID + self.internal_count - 1
    }

    pub(crate) fn is_main(&self, id: u64) -> bool {
        self.main == Some(id)
    }

    /// When the next command reaches its timeout.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.values().filter_map(|exec| exec.deadline).min()
    }

    /// Commands that have reached their timeout. Each is returned once.
    pub(crate) fn take_timed_out(&mut self, now: Instant) -> Vec<u64> {
        let is_late = |exec: &&mut ExecHandle| exec.deadline.is_some_and(|limit| now >= limit);
        let late = self.handles.values_mut().filter(is_late).map(|exec| {
            exec.deadline = None;
            exec.ending = Ending::Timeout;
            exec.id
        });
        late.collect()
    }

    /// When to look for commands that do not start.
    pub(crate) fn next_start_check(&self) -> Option<Instant> {
        let waits = self.values().filter(|exec| exec.is_starting());
        let first = waits.map(|exec| exec.since + STALL_LIMIT).min()?;
        Some(first.max(self.start_checked + STALL_LIMIT))
    }

    /// Commands that did not start in time, when a check is made now.
    pub(crate) fn check_starts(&mut self, now: Instant) -> Vec<u64> {
        self.start_checked = now;
        let late = |exec: &&ExecHandle| exec.is_starting() && now >= exec.since + START_LIMIT;
        self.values().filter(late).map(|exec| exec.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Span;

    fn execs() -> (Execs, Instant) {
        let now = Instant::now();
        (Execs::new(7, None, now), now)
    }

    fn exec(id: u64, timeout: Option<u64>, now: Instant) -> ExecHandle {
        let timeout = timeout.map(|seconds| Span(Duration::from_secs(seconds)));
        ExecHandle::in_vm(id, &Command { timeout, ..Command::default() }, now)
    }

    #[test]
    fn numbers_go_on_and_internal_ones_are_separate() {
        let (mut execs, now) = execs();
        assert_eq!(execs.next_id, 8);
        let internal = [execs.next_internal_id(), execs.next_internal_id()];
        assert_eq!(internal, [FIRST_INTERNAL_ID, FIRST_INTERNAL_ID + 1]);
        execs.insert(exec(8, None, now));
        let mut check = exec(internal[0], None, now);
        check.internal = true;
        execs.insert(check);
        assert_eq!(execs.visible().map(|exec| exec.id).collect::<Vec<_>>(), [8]);
        assert_eq!(execs.ids(), [8, internal[0]]);
    }

    #[test]
    fn a_timeout_is_reported_once() {
        let (mut execs, now) = execs();
        let at = |seconds| now + Duration::from_secs(seconds);
        for (id, timeout) in [(1, Some(5)), (2, Some(3)), (3, None)] {
            execs.insert(exec(id, timeout, now));
        }
        assert_eq!(execs.next_timeout(), Some(at(3)));
        assert_eq!(execs.take_timed_out(at(2)), [0u64; 0]);
        assert_eq!(execs.take_timed_out(at(4)), [2]);
        assert_eq!(execs.take_timed_out(at(4)), [0u64; 0]);
        assert_eq!(execs.get(2).unwrap().ending, Ending::Timeout);
        assert_eq!(execs.next_timeout(), Some(at(5)));
        assert_eq!(execs.take_timed_out(at(9)), [1]);
        assert_eq!(execs.next_timeout(), None);
    }

    #[test]
    fn only_commands_that_have_not_started_are_checked_and_fail_after_a_minute() {
        let (mut execs, now) = execs();
        assert_eq!(execs.next_start_check(), None);
        execs.insert(exec(1, None, now));
        let mut running = exec(2, None, now);
        running.running = true;
        execs.insert(running);
        assert_eq!(execs.next_start_check(), Some(now + STALL_LIMIT));
        assert_eq!(execs.check_starts(now + STALL_LIMIT), [0u64; 0]);
        assert_eq!(execs.next_start_check(), Some(now + 2 * STALL_LIMIT));
        assert_eq!(execs.check_starts(now + START_LIMIT), [1]);
        execs.remove(1);
        assert_eq!(execs.next_start_check(), None);
    }
}
