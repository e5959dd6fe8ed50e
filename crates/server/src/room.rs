//! How many calls are at work at a time, and how much of a limit one key may take.
//!
//! Each call has a thread. Those beyond are told so at once: a call that waits for a thread behind others that
//! wait for commands would look as if it hung.
//!
//! A [`Quota`] is shared by dynamic thresholds: a key may hold as much as is still free. One key alone gets
//! half, two get a third each, and there is always something left for the next.

use crate::dialect::Who;
use msb_spec::{Error, Kind, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Calls at a time, of all clients together. A thread that waits costs some ten kilobytes.
pub const MOST_CALLS: usize = 1024;
/// Resources that are watched at a time: each is read once a second.
const MOST_WATCHES: usize = 1024;

/// A limit for the whole server, and what each key has of it.
#[derive(Debug, Clone)]
pub(crate) struct Quota(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    /// By the id of the key.
    by_key: HashMap<String, usize>,
}

impl Quota {
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(Shared { most, taken: Mutex::default() }))
    }

    pub(crate) fn most(&self) -> usize {
        self.0.most
    }

    /// How much all have together.
    pub(crate) fn total(&self) -> usize {
        self.taken().total
    }

    /// Takes this much until the permit is dropped; none if there is not enough left for this caller.
    /// Where no keys are asked for there is one caller, who may have all of it.
    pub(crate) fn take(&self, who: &Who, amount: usize) -> Option<Permit> {
        let mut permit = Permit { quota: self.clone(), key: who.key.clone(), amount: 0 };
        permit.grow(amount).then_some(permit)
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a [`Quota`].
#[derive(Debug)]
pub(crate) struct Permit {
    quota: Quota,
    key: Option<String>,
    amount: usize,
}

impl Permit {
    /// Takes more; false if there is not enough left.
    pub(crate) fn grow(&mut self, amount: usize) -> bool {
        if amount == 0 {
            return true;
        }
        let quota = self.quota.clone();
        let mut taken = quota.taken();
        let Some(free) = quota.most().checked_sub(taken.total.saturating_add(amount)) else {
            return false;
        };
        if let Some(key) = &self.key {
            let own = taken.by_key.get(key).copied().unwrap_or_default() + amount;
            if own > free {
                return false;
            }
            taken.by_key.insert(key.clone(), own);
        }
        taken.total += amount;
        self.amount += amount;
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.quota.taken();
        taken.total -= self.amount;
        if let Some(key) = &self.key
            && let Some(own) = taken.by_key.get_mut(key)
        {
            *own -= self.amount;
            if *own == 0 {
                taken.by_key.remove(key);
            }
        }
    }
}

/// Room for calls.
#[derive(Debug, Clone)]
pub(crate) struct Room {
    calls: Quota,
    watches: Quota,
}

impl Default for Room {
    fn default() -> Self {
        Self { calls: Quota::new(MOST_CALLS), watches: Quota::new(MOST_WATCHES) }
    }
}

/// A place for one call.
pub(crate) type Seat = Permit;

impl Room {
    /// A place for one call, kept until it is dropped.
    pub(crate) fn take(&self, who: &Who) -> Result<Seat> {
        self.calls.take(who, 1).ok_or_else(|| {
            let most = self.calls.most();
            let text = match who.key {
                None => format!("{most} calls are at work already"),
                Some(_) => format!("this key has its share of {most} calls at work already"),
            };
            Error::new(Kind::Limit, text).hint("try again when some of them have ended")
        })
    }

    /// A place for one resource that is watched.
    pub(crate) fn watch(&self, who: &Who) -> Result<Permit> {
        let full = || Error::new(Kind::Limit, "too many resources are watched already");
        self.watches.take(who, 1).ok_or_else(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Who {
        Who { key: Some(id.to_owned()), ..Who::default() }
    }

    #[test]
    fn who_finds_no_room_is_told_and_takes_none() {
        let room = Room { calls: Quota::new(2), ..Room::default() };
        let who = Who::default();
        let first = room.take(&who).unwrap();
        let _second = room.take(&who).unwrap();
        for _ in 0..3 {
            assert_eq!(room.take(&who).unwrap_err().kind(), Kind::Limit);
        }
        drop(first);
        assert!(room.take(&who).is_ok());
    }

    /// Whatever others hold, a key that holds nothing gets something.
    #[test]
    fn no_key_takes_what_others_need() {
        let quota = Quota::new(1024);
        let mut held = Vec::new();
        for number in 0..8 {
            let who = key(&number.to_string());
            let before = held.len();
            while let Some(permit) = quota.take(&who, 1) {
                held.push(permit);
            }
            assert!(held.len() > before, "{number}");
        }
        assert!(held.len() < 1024);
        drop(held);
        assert!(quota.taken().by_key.is_empty());
        assert_eq!(quota.taken().total, 0);
        assert!(quota.take(&key("a"), 512).is_some());
        assert!(quota.take(&key("a"), 513).is_none());
        assert!(quota.take(&Who::default(), 1024).is_some());
        assert!(quota.take(&Who::default(), 1025).is_none());
        let mut permit = quota.take(&key("a"), 500).unwrap();
        assert!(permit.grow(12) && !permit.grow(1));
        drop(permit);
        assert_eq!(quota.taken().total, 0);
    }
}
