//! The memory budget of a gateway: the bytes that intercepted connections may hold.
//!
//! The kernel limits the process to `Network::gateway_memory`. Half of that is for buffers with a
//! size that a sandbox or its peers decide. One part serves plain TCP flows, which have buffers of
//! fixed sizes (`tcp::flow_table`); the other part serves intercepted connections and is counted
//! here. A reservation that does not fit is refused. The other half of the limit is for what is
//! bounded by number: DNS names and answers, sockets, certificates, verdicts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes that TLS and HTTP/1 hold for one connection, besides the windows of HTTP/2.
const CONNECTION_BYTES: usize = 192 << 10;

/// Bytes that one request holds: its head, and what was read from a window and not yet written.
pub(crate) const REQUEST_BYTES: usize = 64 << 10;

/// The window of HTTP/2 by how many eighths of the budget are in use. It is large while there is
/// room, so that one transfer is fast, and the smallest useful one when many are open.
const WINDOWS: [(usize, u32); 3] = [(1, MAX_WINDOW), (4, 128 << 10), (8, 64 << 10)];

/// The window of a connection while few are open, in bytes.
pub(crate) const MAX_WINDOW: u32 = 512 << 10;

/// The bytes that intercepted connections may use; clones share one ledger.
#[derive(Debug, Clone)]
pub(crate) struct MemoryBudget(Arc<BudgetLedger>);

#[derive(Debug)]
struct BudgetLedger {
    limit: usize,
    used: AtomicUsize,
}

/// A part of the budget, returned to it when this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryReservation {
    ledger: Arc<BudgetLedger>,
    bytes: usize,
}

/// The memory of one intercepted connection, and the window that it allows.
#[derive(Debug)]
pub(crate) struct ConnectionMemory {
    /// The window of HTTP/2 in bytes, for the whole connection and for each of its streams.
    pub(crate) window: u32,
    /// Covers both connections: to the client in the sandbox and to the server.
    _memory: MemoryReservation,
}

impl MemoryBudget {
    /// The budget of a gateway with a memory limit of `limit` bytes: a quarter of it.
    pub(crate) fn new(limit: u64) -> Self {
        let limit = usize::try_from(limit / 4).unwrap_or(usize::MAX);
        Self(Arc::new(BudgetLedger { limit, used: AtomicUsize::new(0) }))
    }

    /// Reserves `bytes`; `None` if fewer are left.
    pub(crate) fn reserve(&self, bytes: usize) -> Option<MemoryReservation> {
        let mut reserved = MemoryReservation { ledger: Arc::clone(&self.0), bytes: 0 };
        reserved.grow(bytes).then_some(reserved)
    }

    /// Reserves the memory of one connection with the largest window that fits; `None` if none
    /// fits.
    pub(crate) fn connection(&self) -> Option<ConnectionMemory> {
        let used = self.0.used.load(Ordering::Relaxed);
        let step = self.0.limit / 8;
        let fits = WINDOWS.into_iter().filter(|(parts, _)| used < parts * step);
        for (_, window) in fits {
            if let Some(memory) = self.reserve(2 * window as usize + CONNECTION_BYTES) {
                return Some(ConnectionMemory { window, _memory: memory });
            }
        }
        None
    }
}

impl MemoryReservation {
    /// Reserves `bytes` more. Returns false and reserves nothing if fewer are left.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.ledger.limit);
        let taken = self.ledger.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if taken.is_ok() {
            self.bytes += bytes;
        }
        taken.is_ok()
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.ledger.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_stay_within_the_limit_and_are_returned() {
        let budget = MemoryBudget::new(msb_spec::GATEWAY_MEMORY.0);
        let connections: Vec<ConnectionMemory> =
            std::iter::from_fn(|| budget.connection()).collect();
        // Enough for what programs open at a time, though not each at full speed.
        assert!(connections.len() > 200, "{}", connections.len());
        assert!(connections.is_sorted_by(|a, b| a.window >= b.window));
        assert!(budget.0.used.load(Ordering::Relaxed) <= budget.0.limit);
        assert!(budget.reserve(1 << 20).is_none());
        drop(connections);
        assert_eq!(budget.0.used.load(Ordering::Relaxed), 0);
        let mut body = budget.reserve(0).unwrap();
        assert!(body.grow(budget.0.limit) && !body.grow(1));
        assert!(budget.connection().is_none());
        drop(body);
        assert_eq!(budget.connection().unwrap().window, WINDOWS[0].1);
    }
}
