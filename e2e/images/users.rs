//! Users with large images already pulled, for the tests that share them.

use msb_e2e::Msb;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Root, a user with ids, and a user with one: to each, ownership is another matter.
///
/// They are gone when the last test that holds them is over.
pub(crate) fn pulled_users() -> Arc<Vec<Msb>> {
    static ALL: Mutex<Weak<Vec<Msb>>> = Mutex::new(Weak::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.upgrade().unwrap_or_else(|| {
        let new =
            Arc::new(Msb::each_with_own_layers().into_iter().chain(Msb::with_one_id()).collect());
        *all = Arc::downgrade(&new);
        new
    })
}
