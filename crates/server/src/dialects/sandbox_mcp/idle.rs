//! Removes sandboxes that are unused for too long.

use super::SandboxMcpState;
use super::active::DEFAULT;
use super::lifecycle::IDLE_LIMIT;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often idle sandboxes are looked for.
const INTERVAL: Duration = Duration::from_secs(60);

/// Starts a thread that runs as long as the dialect exists.
pub(super) fn watch(state: &Arc<SandboxMcpState>) {
    let state = Arc::downgrade(state);
    // Without the thread the workers end idle sandboxes: see `Spec::idle_timeout`.
    let _ = std::thread::Builder::new().name("idle".to_owned()).spawn(move || run(&state));
}

fn run(state: &Weak<SandboxMcpState>) {
    loop {
        std::thread::sleep(INTERVAL);
        let Some(state) = state.upgrade() else { return };
        state.remove_idle(IDLE_LIMIT);
    }
}

impl SandboxMcpState {
    /// Removes sandboxes that are unused for this long; their volumes stay.
    pub(super) fn remove_idle(&self, limit: Duration) {
        for found in self.all().unwrap_or_default() {
            let name = &found.summary.name;
            // Children have their own expiry.
            let stays = name.as_str() == DEFAULT || found.parent.is_some();
            if !stays && self.idle(&found) >= limit {
                // If it fails, the next round tries again.
                let _ = self.remove(name);
            }
        }
    }
}
