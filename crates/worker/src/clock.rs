//! The monotonic clock of the worker's loop. Tests advance one of their own, so that none waits.

use std::time::Instant;

/// A source of the current time.
pub(crate) trait Clock {
    /// The current time; it never goes back.
    fn now(&self) -> Instant;
}

/// The clock of the kernel.
#[derive(Debug)]
pub(crate) struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}

#[cfg(test)]
pub(crate) mod manual {
    use super::Clock;
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    /// A clock that stands still until a test advances it.
    #[derive(Debug)]
    pub(crate) struct ManualClock(Cell<Instant>);

    impl ManualClock {
        pub(crate) fn new() -> Self {
            Self(Cell::new(Instant::now()))
        }

        pub(crate) fn advance(&self, span: Duration) {
            self.0.set(self.0.get() + span);
        }

        pub(crate) fn advance_to(&self, time: Instant) {
            self.0.set(self.0.get().max(time));
        }
    }

    impl Clock for ManualClock {
        fn now(&self) -> Instant {
            self.0.get()
        }
    }
}
