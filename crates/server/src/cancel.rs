//! Telling work that nobody waits for it any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Told once that a call was cancelled.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    done: bool,
    next: u64,
    hooks: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
}

impl Cancel {
    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).done
    }

    /// Does this when it is cancelled, or now if it was. Not any more once the guard is dropped.
    #[must_use]
    pub fn when_cancelled(&self, hook: impl FnOnce() + Send + 'static) -> Hook {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.next;
        state.next += 1;
        if state.done {
            drop(state);
            hook();
        } else {
            state.hooks.insert(number, Box::new(hook));
        }
        Hook { cancel: self.clone(), number }
    }

    /// Tells everybody.
    pub fn cancel(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.done = true;
        let hooks = std::mem::take(&mut state.hooks);
        drop(state);
        for hook in hooks.into_values() {
            hook();
        }
    }
}

impl std::fmt::Debug for Cancel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Cancel").field(&self.is_cancelled()).finish()
    }
}

/// Keeps something that is to be done on a cancellation.
#[derive(Debug)]
pub struct Hook {
    cancel: Cancel,
    number: u64,
}

impl Drop for Hook {
    fn drop(&mut self) {
        let mut state = self.cancel.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.hooks.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn hooks_run_once_and_only_while_they_are_kept() {
        let cancel = Cancel::default();
        let count = Arc::new(AtomicU32::new(0));
        let add = |by: u32| {
            let count = Arc::clone(&count);
            move || {
                count.fetch_add(by, Ordering::Relaxed);
            }
        };
        let kept = cancel.when_cancelled(add(1));
        drop(cancel.when_cancelled(add(10)));
        cancel.cancel();
        cancel.cancel();
        drop(kept);
        drop(cancel.when_cancelled(add(100)));
        assert_eq!(count.load(Ordering::Relaxed), 101);
        assert!(cancel.is_cancelled());
    }
}
