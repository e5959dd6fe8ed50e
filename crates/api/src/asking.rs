//! Who asks, while a call is on its way.
//!
//! Calls block, so a call is one thread from the surface that was asked to whoever does it; who asks goes
//! with that thread. Whoever goes on with a call on another thread takes it along.

use msb_spec::Asker;
use std::cell::RefCell;

thread_local! {
    static ASKER: RefCell<Option<Asker>> = const { RefCell::new(None) };
}

/// Who asks on this thread, if a surface has said so. It goes before what a command says itself.
pub fn asker() -> Option<Asker> {
    ASKER.with_borrow(Clone::clone)
}

/// Does something that this one has asked for; none is whoever it was before.
pub fn asked_by<T>(asker: Option<Asker>, act: impl FnOnce() -> T) -> T {
    /// What was, however the work ends.
    struct Before(Option<Asker>);
    impl Drop for Before {
        fn drop(&mut self) {
            ASKER.set(self.0.take());
        }
    }
    let Some(asker) = asker else { return act() };
    let _before = Before(ASKER.replace(Some(asker)));
    act()
}

#[cfg(test)]
mod tests {
    use super::*;
    use msb_spec::Surface;

    #[test]
    fn who_asks_is_known_for_as_long_as_the_call_takes() {
        assert_eq!(asker(), None);
        let core = Asker::mcp("core");
        asked_by(Some(core.clone()), || {
            asked_by(Some(Asker::new(Surface::Rest)), || {
                assert_eq!(asker(), Some(Asker::new(Surface::Rest)));
            });
            asked_by(None, || assert_eq!(asker(), Some(core.clone())));
            assert_eq!(std::thread::spawn(asker).join().unwrap(), None);
        });
        assert_eq!(asker(), None);
        let broken = std::panic::catch_unwind(|| asked_by(Some(Asker::cli()), || panic!("broken")));
        assert!(broken.is_err() && asker().is_none());
    }
}
