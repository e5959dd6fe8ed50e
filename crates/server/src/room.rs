//! How many calls are at work at a time.
//!
//! Each has a thread. Those beyond are told so at once: a call that waits for a thread behind others that
//! wait for commands would look as if it hung.

use msb_spec::{Error, Kind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls at a time, of all clients together. A thread that waits costs some ten kilobytes.
pub const MOST_CALLS: usize = 1024;

/// Room for calls.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    taken: Arc<AtomicUsize>,
    most: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { taken: Arc::default(), most: MOST_CALLS }
    }
}

impl Room {
    /// A place for one call, kept until it is dropped.
    pub(crate) fn take(&self) -> Result<Seat> {
        // Counted first, so that two never get the same last one.
        let seat = Seat(Arc::clone(&self.taken));
        if self.taken.fetch_add(1, Ordering::Relaxed) < self.most {
            return Ok(seat);
        }
        drop(seat);
        Err(Error::new(Kind::Limit, format!("{} calls are at work already", self.most))
            .hint("try again when some of them have ended"))
    }
}

/// A place for one call.
#[derive(Debug)]
pub(crate) struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_no_room_is_told_and_takes_none() {
        let room = Room { most: 2, ..Room::default() };
        let first = room.take().unwrap();
        let _second = room.take().unwrap();
        for _ in 0..3 {
            assert_eq!(room.take().unwrap_err().kind(), Kind::Limit);
        }
        drop(first);
        assert!(room.take().is_ok());
    }
}
