//! Somebody who waits for an answer, or does not any more.

use crate::cancel::{Cancel, Hook};
use crate::http::Gone;
use msb_api::{ExecInput, Part, Watch};
use std::sync::{Arc, Mutex, PoisonError};

/// Killed at once.
pub(super) const KILL: i32 = 9;

/// What runs for a call ends when nobody waits for it any more.
pub(super) struct Waiting {
    cancel: Cancel,
    hooks: Mutex<Vec<Hook>>,
}

impl Waiting {
    /// It waits until what comes with it is dropped.
    pub(super) fn begin() -> (Self, Gone) {
        let cancel = Cancel::default();
        let gone = Gone(cancel.clone());
        (Self { cancel, hooks: Mutex::default() }, gone)
    }

    /// Cancelled when nobody waits any more.
    pub(super) fn cancel(&self) -> &Cancel {
        &self.cancel
    }
}

impl Watch for Waiting {
    fn step(&self, _: &str, _: Option<Part>) {}

    fn running(&self, input: &Arc<dyn ExecInput>) {
        let input = Arc::clone(input);
        let hook = self.cancel.when_cancelled(move || {
            let _ = input.signal(KILL);
        });
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(hook);
    }
}
