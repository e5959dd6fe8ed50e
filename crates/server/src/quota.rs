//! Limits on concurrent calls, and how API keys share a limit.
//!
//! Each call has a thread. Calls beyond the limit fail at once: a call that waited for a thread
//! behind others that wait for commands would seem to hang.
//!
//! A [`Quota`] is shared by dynamic thresholds: a key may hold as much as is still free. One key
//! alone gets half, two keys get a third each, and something is always left for the next key.

use crate::dialect::Caller;
use msb_spec::{Error, Kind, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Concurrent calls of all clients together. A waiting thread costs about ten kilobytes.
pub const MOST_CALLS: usize = 1024;
/// Resource subscriptions at a time. Each resource is read once a second.
const MOST_SUBSCRIPTIONS: usize = 1024;

/// A limit for the whole server, and the share that each key uses.
#[derive(Debug, Clone)]
pub(crate) struct Quota(Arc<QuotaState>);

#[derive(Debug)]
struct QuotaState {
    most: usize,
    usage: Mutex<QuotaUsage>,
}

#[derive(Debug, Default)]
struct QuotaUsage {
    total: usize,
    /// Amounts by the id of the API key.
    by_key: HashMap<String, usize>,
}

impl Quota {
    pub(crate) fn new(most: usize) -> Self {
        Self(Arc::new(QuotaState { most, usage: Mutex::default() }))
    }

    pub(crate) fn most(&self) -> usize {
        self.0.most
    }

    /// The amount that all keys hold together.
    pub(crate) fn total(&self) -> usize {
        self.usage().total
    }

    /// Takes this amount until the permit is dropped; none if the caller's share is used up. On a
    /// server without keys there is one caller, which may take all of it.
    pub(crate) fn acquire(&self, caller: &Caller, amount: usize) -> Option<Permit> {
        let mut permit = Permit { quota: self.clone(), key: caller.key.clone(), amount: 0 };
        permit.grow(amount).then_some(permit)
    }

    fn usage(&self) -> MutexGuard<'_, QuotaUsage> {
        self.0.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An amount taken from a [`Quota`]; dropping it gives the amount back.
#[derive(Debug)]
pub(crate) struct Permit {
    quota: Quota,
    key: Option<String>,
    amount: usize,
}

impl Permit {
    /// Takes more from the quota; false if the share is used up.
    pub(crate) fn grow(&mut self, amount: usize) -> bool {
        if amount == 0 {
            return true;
        }
        let quota = self.quota.clone();
        let mut usage = quota.usage();
        let Some(free) = quota.most().checked_sub(usage.total.saturating_add(amount)) else {
            return false;
        };
        if let Some(key) = &self.key {
            let own = usage.by_key.get(key).copied().unwrap_or_default() + amount;
            if own > free {
                return false;
            }
            usage.by_key.insert(key.clone(), own);
        }
        usage.total += amount;
        self.amount += amount;
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut usage = self.quota.usage();
        usage.total -= self.amount;
        if let Some(key) = &self.key
            && let Some(own) = usage.by_key.get_mut(key)
        {
            *own -= self.amount;
            if *own == 0 {
                usage.by_key.remove(key);
            }
        }
    }
}

/// Limits of concurrent calls and of resource subscriptions.
#[derive(Debug, Clone)]
pub(crate) struct CallLimiter {
    calls: Quota,
    subscriptions: Quota,
}

impl Default for CallLimiter {
    fn default() -> Self {
        Self { calls: Quota::new(MOST_CALLS), subscriptions: Quota::new(MOST_SUBSCRIPTIONS) }
    }
}

/// A permit for one call.
pub(crate) type CallPermit = Permit;

impl CallLimiter {
    /// A permit for one call; dropping it frees the slot.
    pub(crate) fn acquire(&self, caller: &Caller) -> Result<CallPermit> {
        self.calls.acquire(caller, 1).ok_or_else(|| {
            let most = self.calls.most();
            let text = match caller.key {
                None => format!("{most} calls are running already"),
                Some(_) => format!("this key already runs its share of {most} calls"),
            };
            Error::new(Kind::Limit, text).hint("try again when some of them have ended")
        })
    }

    /// A permit for one resource subscription.
    pub(crate) fn subscription_permit(&self, caller: &Caller) -> Result<Permit> {
        let full = || Error::new(Kind::Limit, "too many resources are watched already");
        self.subscriptions.acquire(caller, 1).ok_or_else(full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Caller {
        Caller { key: Some(id.to_owned()), ..Caller::default() }
    }

    #[test]
    fn calls_beyond_the_limit_fail_at_once() {
        let limiter = CallLimiter { calls: Quota::new(2), ..CallLimiter::default() };
        let caller = Caller::default();
        let first = limiter.acquire(&caller).unwrap();
        let _second = limiter.acquire(&caller).unwrap();
        for _ in 0..3 {
            assert_eq!(limiter.acquire(&caller).unwrap_err().kind(), Kind::Limit);
        }
        drop(first);
        assert!(limiter.acquire(&caller).is_ok());
    }

    /// Whatever other keys hold, a key that holds nothing gets something.
    #[test]
    fn a_key_cannot_exhaust_the_quota() {
        let quota = Quota::new(1024);
        let mut held = Vec::new();
        for number in 0..8 {
            let caller = key(&number.to_string());
            let before = held.len();
            while let Some(permit) = quota.acquire(&caller, 1) {
                held.push(permit);
            }
            assert!(held.len() > before, "{number}");
        }
        assert!(held.len() < 1024);
        drop(held);
        assert!(quota.usage().by_key.is_empty());
        assert_eq!(quota.usage().total, 0);
        assert!(quota.acquire(&key("a"), 512).is_some());
        assert!(quota.acquire(&key("a"), 513).is_none());
        assert!(quota.acquire(&Caller::default(), 1024).is_some());
        assert!(quota.acquire(&Caller::default(), 1025).is_none());
        let mut permit = quota.acquire(&key("a"), 500).unwrap();
        assert!(permit.grow(12) && !permit.grow(1));
        drop(permit);
        assert_eq!(quota.usage().total, 0);
    }
}
