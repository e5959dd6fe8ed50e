//! Cancels work that a client no longer waits for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A cancellation flag of one call, with hooks; clones share the state.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<CancelState>>);

#[derive(Default)]
struct CancelState {
    done: bool,
    next: u64,
    hooks: BTreeMap<u64, Box<dyn FnOnce() + Send>>,
}

impl Cancel {
    /// Whether the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).done
    }

    /// Runs the hook on cancellation, or now if that has happened. Dropping the guard removes it.
    #[must_use]
    pub fn when_cancelled(&self, hook: impl FnOnce() + Send + 'static) -> CancelHook {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = state.next;
        state.next += 1;
        if state.done {
            drop(state);
            hook();
        } else {
            state.hooks.insert(number, Box::new(hook));
        }
        CancelHook { cancel: self.clone(), number }
    }

    /// Sets the flag and runs all hooks.
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

/// Removes a cancellation hook when it is dropped.
#[derive(Debug)]
pub struct CancelHook {
    cancel: Cancel,
    number: u64,
}

impl Drop for CancelHook {
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
