//! Ends sandboxes that nobody has used for long.

use super::Surface;
use super::begin::IDLE_LIMIT;
use super::live::DEFAULT;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often somebody looks.
const LOOK: Duration = Duration::from_secs(60);

/// Looks as long as the dialect is there.
pub(super) fn watch(surface: &Arc<Surface>) {
    let surface = Arc::downgrade(surface);
    // Without a thread they end by themselves, with what runs in them: see `Spec::idle_timeout`.
    let _ = std::thread::Builder::new().name("idle".to_owned()).spawn(move || look(&surface));
}

fn look(surface: &Weak<Surface>) {
    loop {
        std::thread::sleep(LOOK);
        let Some(surface) = surface.upgrade() else { return };
        surface.end_idle(IDLE_LIMIT);
    }
}

impl Surface {
    /// Removes those that nobody has used for this long; their volumes stay.
    pub(super) fn end_idle(&self, limit: Duration) {
        for found in self.all().unwrap_or_default() {
            let name = &found.summary.name;
            // Children have an end of their own.
            let stays = name.as_str() == DEFAULT || found.parent.is_some();
            if !stays && self.idle(&found) >= limit {
                // If it fails, the next look tries again.
                let _ = self.remove(name);
            }
        }
    }
}
