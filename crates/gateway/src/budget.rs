//! The bytes that a gateway may hold for its sandbox, of the limit that the kernel holds it to.
//!
//! `Network::gateway_memory` is that limit, and half of it is for buffers whose size a sandbox or
//! its peers decide: one part for plain flows, whose buffers have fixed sizes (`streams`), one for
//! what is intercepted, counted here. Who wants more than is left is refused. The other half is for
//! what is bounded by number: names and answers of DNS, sockets, certificates, verdicts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What TLS and HTTP/1 hold for one connection besides the windows of HTTP/2.
const CONNECTION: usize = 192 << 10;

/// What one request holds: its head, and what was taken out of a window and not yet written.
pub(crate) const REQUEST: usize = 64 << 10;

/// The windows of HTTP/2 by how much of the budget is in use, in parts of eight: large while there
/// is room, so that one transfer is fast; the smallest that there is when many are open.
const WINDOWS: [(usize, u32); 3] = [(1, LARGEST_WINDOW), (4, 128 << 10), (8, 64 << 10)];

/// The window of a connection while few are open.
pub(crate) const LARGEST_WINDOW: u32 = 512 << 10;

/// The bytes for what is intercepted.
#[derive(Debug, Clone)]
pub(crate) struct Budget(Arc<Ledger>);

#[derive(Debug)]
struct Ledger {
    most: usize,
    used: AtomicUsize,
}

/// A part of the budget that is in use as long as this lives.
#[derive(Debug)]
pub(crate) struct Reserved {
    ledger: Arc<Ledger>,
    bytes: usize,
}

/// What one connection gets.
#[derive(Debug)]
pub(crate) struct Share {
    /// The window of HTTP/2 for all streams of a connection together, and for each of them.
    pub(crate) window: u32,
    /// Both connections, towards the inside and to the other side.
    _memory: Reserved,
}

impl Budget {
    /// Of a gateway with this limit.
    pub(crate) fn new(limit: u64) -> Self {
        let most = usize::try_from(limit / 4).unwrap_or(usize::MAX);
        Self(Arc::new(Ledger { most, used: AtomicUsize::new(0) }))
    }

    /// Takes so many bytes out of it; nothing if that is more than is left.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<Reserved> {
        let mut reserved = Reserved { ledger: Arc::clone(&self.0), bytes: 0 };
        reserved.grow(bytes).then_some(reserved)
    }

    /// What the next connection gets; nothing if it gets nothing.
    pub(crate) fn share(&self) -> Option<Share> {
        let used = self.0.used.load(Ordering::Relaxed);
        let step = self.0.most / 8;
        let fits = WINDOWS.into_iter().filter(|(parts, _)| used < parts * step);
        for (_, window) in fits {
            if let Some(memory) = self.reserve(2 * window as usize + CONNECTION) {
                return Some(Share { window, _memory: memory });
            }
        }
        None
    }
}

impl Reserved {
    /// Takes more; false, and nothing taken, if that is more than is left.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.ledger.most);
        let taken = self.ledger.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if taken.is_ok() {
            self.bytes += bytes;
        }
        taken.is_ok()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.ledger.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_than_there_is_and_all_of_it_comes_back() {
        let budget = Budget::new(msb_spec::GATEWAY_MEMORY.0);
        let shares: Vec<Share> = std::iter::from_fn(|| budget.share()).collect();
        // Enough for what programs open at a time, though not for each of them at its fastest.
        assert!(shares.len() > 200, "{}", shares.len());
        assert!(shares.is_sorted_by(|a, b| a.window >= b.window));
        assert!(budget.0.used.load(Ordering::Relaxed) <= budget.0.most);
        assert!(budget.reserve(1 << 20).is_none());
        drop(shares);
        assert_eq!(budget.0.used.load(Ordering::Relaxed), 0);
        let mut body = budget.reserve(0).unwrap();
        assert!(body.grow(budget.0.most) && !body.grow(1));
        assert!(budget.share().is_none());
        drop(body);
        assert_eq!(budget.share().unwrap().window, WINDOWS[0].1);
    }
}
