//! The origin of a call (surface, key, dialect) while the call is on its way.
//!
//! Calls block, so one thread carries a call from the surface to the implementation; the origin goes
//! with that thread. Code that continues a call on another thread passes the origin on.

use msb_spec::CallOrigin;
use std::cell::RefCell;

thread_local! {
    static ORIGIN: RefCell<Option<CallOrigin>> = const { RefCell::new(None) };
}

/// The origin of the call on this thread, if a surface has set one. It overrides that of a command.
pub fn current_origin() -> Option<CallOrigin> {
    ORIGIN.with_borrow(Clone::clone)
}

/// Runs `act` with this origin; `None` keeps the present one.
pub fn with_origin<T>(origin: Option<CallOrigin>, act: impl FnOnce() -> T) -> T {
    /// What was, however the work ends.
    struct Before(Option<CallOrigin>);
    impl Drop for Before {
        fn drop(&mut self) {
            ORIGIN.set(self.0.take());
        }
    }
    let Some(origin) = origin else { return act() };
    let _before = Before(ORIGIN.replace(Some(origin)));
    act()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Surface;

    #[test]
    fn who_asks_is_known_for_as_long_as_the_call_takes() {
        assert_eq!(current_origin(), None);
        let core = CallOrigin::mcp("core");
        with_origin(Some(core.clone()), || {
            with_origin(Some(CallOrigin::new(Surface::Rest)), || {
                assert_eq!(current_origin(), Some(CallOrigin::new(Surface::Rest)));
            });
            with_origin(None, || assert_eq!(current_origin(), Some(core.clone())));
            assert_eq!(std::thread::spawn(current_origin).join().unwrap(), None);
        });
        assert_eq!(current_origin(), None);
        let broken =
            std::panic::catch_unwind(|| with_origin(Some(CallOrigin::cli()), || panic!("broken")));
        assert!(broken.is_err() && current_origin().is_none());
    }
}
