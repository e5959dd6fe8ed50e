//! Places where a process can be killed, so that tests can try each of them.

/// Here a test may let the process die.
#[cfg(not(test))]
#[inline]
pub(crate) fn point() {}

#[cfg(test)]
pub(crate) use tried::point;

#[cfg(test)]
pub(crate) mod tried {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// How many places are passed before the process dies; none if it lives.
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    struct Killed;

    pub(crate) fn point() {
        match LEFT.get() {
            Some(0) => resume_unwind(Box::new(Killed)),
            Some(left) => LEFT.set(Some(left - 1)),
            None => {}
        }
    }

    /// Does something that is killed after so many places; none if it was.
    pub(crate) fn killed_after<T>(places: u32, work: impl FnOnce() -> T) -> Option<T> {
        LEFT.set(Some(places));
        let done = catch_unwind(AssertUnwindSafe(work));
        LEFT.set(None);
        match done {
            Ok(done) => Some(done),
            Err(payload) if payload.is::<Killed>() => None,
            Err(payload) => resume_unwind(payload),
        }
    }
}
