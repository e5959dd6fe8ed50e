//! Failpoints: tests can kill a process at each of them.

/// A point where a test can simulate a crash.
#[cfg(not(test))]
#[inline]
pub(crate) fn hit() {}

#[cfg(test)]
pub(crate) use tried::hit;

#[cfg(test)]
pub(crate) mod tried {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    thread_local! {
        /// Failpoints until the crash; none for no crash.
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    struct Killed;

    pub(crate) fn hit() {
        match LEFT.get() {
            Some(0) => resume_unwind(Box::new(Killed)),
            Some(left) => LEFT.set(Some(left - 1)),
            None => {}
        }
    }

    /// Runs `work` with a crash after this number of failpoints; none if it crashed.
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
