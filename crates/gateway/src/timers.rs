//! Timers of the event loop. The loop sleeps until the earliest one is due.

use crate::event_source::EventSource;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Deadlines in microseconds since the start. A deadline is never cancelled: a source that is woken
/// too early checks its own state and sets the next one.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(u64, EventSource)>>);

impl Timers {
    pub(crate) fn set(&mut self, at: u64, source: EventSource) {
        self.0.push(Reverse((at, source)));
    }

    /// When the earliest timer is due, in microseconds; `None` if there is none.
    pub(crate) fn next(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Removes and returns the earliest timer that is due at `now`.
    pub(crate) fn due(&mut self, now: u64) -> Option<EventSource> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, source))| source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_in_order() {
        let mut timers = Timers::default();
        timers.set(30, EventSource::EgressRate);
        timers.set(10, EventSource::SkippedEvents);
        assert_eq!(timers.next(), Some(10));
        assert_eq!(timers.due(9), None);
        assert_eq!(timers.due(40), Some(EventSource::SkippedEvents));
        assert_eq!(timers.due(40), Some(EventSource::EgressRate));
        assert_eq!(timers.due(40), None);
    }
}
