//! What is to be done later. Nothing here wakes up before something is due.

use crate::source::Source;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Deadlines in microseconds since the start. A deadline is never taken back: whoever is woken
/// too early looks at its own clock and asks again.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(u64, Source)>>);

impl Timers {
    pub(crate) fn set(&mut self, at: u64, source: Source) {
        self.0.push(Reverse((at, source)));
    }

    /// When the next one is due.
    pub(crate) fn next(&self) -> Option<u64> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    /// The next one that is due.
    pub(crate) fn due(&mut self, now: u64) -> Option<Source> {
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
    fn what_is_due_comes_in_order() {
        let mut timers = Timers::default();
        timers.set(30, Source::Rate);
        timers.set(10, Source::Events);
        assert_eq!(timers.next(), Some(10));
        assert_eq!(timers.due(9), None);
        assert_eq!(timers.due(40), Some(Source::Events));
        assert_eq!(timers.due(40), Some(Source::Rate));
        assert_eq!(timers.due(40), None);
    }
}
