//! Limits connections: authenticated and unauthenticated ones.
//!
//! The two are counted separately, so that connections without a login take no place of logged-in
//! ones. When too many are unauthenticated, the oldest of them is closed: a regular client has
//! shown its key by then.

use crate::flow_control::FlowControl;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Authenticated connections at one time. A busy one costs some threads and megabytes.
pub(crate) const MAX_AUTHENTICATED: usize = 256;
/// Unauthenticated connections at one time: as many as a script starts at once, and cheap.
pub(crate) const MAX_UNAUTHENTICATED: usize = 128;

/// Counts the connections of one server.
#[derive(Debug, Default)]
pub(crate) struct ConnLimiter(Mutex<LimiterState>);

#[derive(Debug, Default)]
struct LimiterState {
    next: u64,
    /// Connections by number; the oldest has the smallest.
    unauthenticated: BTreeMap<u64, Arc<FlowControl>>,
    authenticated: usize,
}

/// Permit of one connection, returned on drop.
#[derive(Debug)]
pub(crate) struct ConnPermit {
    limiter: Arc<ConnLimiter>,
    number: u64,
    authenticated: Mutex<bool>,
}

impl ConnLimiter {
    /// Registers a new connection; also returns whether the oldest unauthenticated one was closed
    /// for it.
    pub(crate) fn register(self: &Arc<Self>, flow: &Arc<FlowControl>) -> (ConnPermit, bool) {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let full = state.unauthenticated.len() >= MAX_UNAUTHENTICATED;
        let oldest = if full { state.unauthenticated.pop_first() } else { None };
        state.unauthenticated.insert(number, Arc::clone(flow));
        drop(state);
        let aborted = oldest.map(|(_, flow)| flow.abort()).is_some();
        (ConnPermit { limiter: Arc::clone(self), number, authenticated: Mutex::default() }, aborted)
    }

    fn state(&self) -> MutexGuard<'_, LimiterState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnPermit {
    /// Marks the connection as authenticated; false if too many are.
    pub(crate) fn authenticate(&self) -> bool {
        let (mut authenticated, mut state) = (self.authenticated(), self.limiter.state());
        if !*authenticated && state.authenticated < MAX_AUTHENTICATED {
            state.unauthenticated.remove(&self.number);
            state.authenticated += 1;
            *authenticated = true;
        }
        *authenticated
    }

    /// Whether the connection is authenticated.
    pub(crate) fn is_authenticated(&self) -> bool {
        *self.authenticated()
    }

    fn authenticated(&self) -> MutexGuard<'_, bool> {
        self.authenticated.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnPermit {
    fn drop(&mut self) {
        let (authenticated, mut state) = (self.is_authenticated(), self.limiter.state());
        state.unauthenticated.remove(&self.number);
        state.authenticated -= usize::from(authenticated);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_aborted(flow: &FlowControl) -> bool {
        let cx = std::task::Context::from_waker(std::task::Waker::noop());
        matches!(flow.poll_readable(&cx), std::task::Poll::Ready(Err(_)))
    }

    #[test]
    fn the_oldest_unauthenticated_connection_is_closed_when_full() {
        let limiter = Arc::new(ConnLimiter::default());
        let gates: Vec<_> =
            (0..=MAX_UNAUTHENTICATED).map(|_| Arc::new(FlowControl::default())).collect();
        let mut permits: Vec<_> = gates[1..].iter().map(|flow| limiter.register(flow)).collect();
        assert!(permits.iter().all(|(_, aborted)| !aborted));
        // An authenticated connection is not counted as unauthenticated, however old it is.
        assert!(permits[0].0.authenticate() && permits[0].0.is_authenticated());
        assert!(!limiter.register(&gates[0]).1);
        permits.push(limiter.register(&gates[0]));
        let (_permit, aborted) = limiter.register(&gates[0]);
        assert!(
            aborted && is_aborted(&gates[2]) && !is_aborted(&gates[1]) && !is_aborted(&gates[3])
        );
    }

    #[test]
    fn authenticated_connections_are_counted_until_they_close() {
        let (limiter, flow) = (Arc::new(ConnLimiter::default()), Arc::new(FlowControl::default()));
        let mut permits: Vec<_> = (0..MAX_AUTHENTICATED)
            .map(|_| {
                let (permit, aborted) = limiter.register(&flow);
                assert!(!aborted && permit.authenticate() && permit.authenticate());
                permit
            })
            .collect();
        let (late, _) = limiter.register(&flow);
        assert!(!late.authenticate() && !late.is_authenticated());
        permits.pop();
        assert!(late.authenticate());
    }
}
