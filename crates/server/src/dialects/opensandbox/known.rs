//! Who has connected to which sandboxes, as long as this server runs.

use crate::dialect::Who;
use msb_spec::{Name, UserRef};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// More than anybody uses at a time; whoever lost one connects again.
const LIMIT: usize = 4096;

/// The sandboxes that callers use. It holds nothing of them, so they live on without it.
#[derive(Default)]
pub(super) struct Known(Mutex<State>);

#[derive(Default)]
struct State {
    /// When each was last used, counted in uses.
    entries: HashMap<(Who, String), (u64, Used)>,
    uses: u64,
}

/// A sandbox in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Used {
    pub(super) name: Name,
    /// Who its commands run as, and whose its files are.
    pub(super) user: Option<UserRef>,
}

impl Known {
    pub(super) fn get(&self, who: &Who, id: &str) -> Option<Used> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.uses += 1;
        let now = state.uses;
        let (last, used) = state.entries.get_mut(&(who.clone(), id.to_owned()))?;
        *last = now;
        Some(used.clone())
    }

    /// The one that was not used for the longest time makes place.
    pub(super) fn insert(&self, who: &Who, used: Used) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.entries.len() >= LIMIT {
            let oldest = state.entries.iter().min_by_key(|(_, (last, _))| *last);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                state.entries.remove(&oldest);
            }
        }
        state.uses += 1;
        let now = state.uses;
        state.entries.insert((who.clone(), used.name.to_string()), (now, used));
    }

    /// It is gone, for everybody.
    pub(super) fn forget(&self, id: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.entries.retain(|(_, known), _| known != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(name: &str) -> Used {
        Used { name: Name::parse(name).unwrap(), user: None }
    }

    #[test]
    fn what_one_has_connected_another_has_not() {
        let known = Known::default();
        let other = Who { key: Some("other".to_owned()), ..Who::default() };
        known.insert(&Who::default(), used("a"));
        assert_eq!(known.get(&Who::default(), "a"), Some(used("a")));
        assert_eq!(known.get(&other, "a"), None);
        known.insert(&other, used("a"));
        known.forget("a");
        assert_eq!(known.get(&Who::default(), "a"), None);
        assert_eq!(known.get(&other, "a"), None);
    }

    #[test]
    fn the_least_used_makes_place() {
        let known = Known::default();
        let who = Who::default();
        for number in 0..LIMIT {
            known.insert(&who, used(&format!("n{number}")));
        }
        assert!(known.get(&who, "n0").is_some());
        known.insert(&who, used("new"));
        assert!(known.get(&who, "n0").is_some());
        assert!(known.get(&who, "n1").is_none());
        assert_eq!(known.0.lock().unwrap().entries.len(), LIMIT);
    }
}
