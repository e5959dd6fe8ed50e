//! Cancels an Operation when its HTTP client disconnects.

use crate::cancel::{Cancel, CancelHook};
use crate::http::CancelOnDrop;
use msb_api::{ExecInput, Part, Watch};
pub(super) use msb_sys::signal::SIGKILL as KILL;
use std::sync::{Arc, Mutex, PoisonError};

/// Kills the command of a call when the client has disconnected.
pub(super) struct DisconnectWatch {
    cancel: Cancel,
    hooks: Mutex<Vec<CancelHook>>,
}

impl DisconnectWatch {
    /// Creates the watch, and the guard that cancels it when dropped.
    pub(super) fn begin() -> (Self, CancelOnDrop) {
        let cancel = Cancel::default();
        let on_disconnect = CancelOnDrop(cancel.clone());
        (Self { cancel, hooks: Mutex::default() }, on_disconnect)
    }

    /// Cancelled when the client has disconnected.
    pub(super) fn cancel(&self) -> &Cancel {
        &self.cancel
    }
}

impl Watch for DisconnectWatch {
    fn step(&self, _: &str, _: Option<Part>) {}

    fn running(&self, input: &Arc<dyn ExecInput>) {
        let input = Arc::clone(input);
        let hook = self.cancel.when_cancelled(move || {
            let _ = input.signal(KILL);
        });
        self.hooks.lock().unwrap_or_else(PoisonError::into_inner).push(hook);
    }
}
