//! Which caller has connected to which sandbox, in memory.

use crate::dialect::Caller;
use msb_spec::{Name, UserRef};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Most connections that are remembered; a caller whose entry is evicted connects again.
const LIMIT: usize = 4096;

/// The connections of all callers. It holds no resources, so the sandboxes live on without it.
#[derive(Default)]
pub(super) struct ConnectedSandboxes(Mutex<ConnectionMap>);

#[derive(Default)]
struct ConnectionMap {
    /// Each connection with a counter of its last use.
    entries: HashMap<(Caller, String), (u64, SandboxConnection)>,
    uses: u64,
}

/// A sandbox that a caller is connected to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SandboxConnection {
    pub(super) name: Name,
    /// The user that runs commands and owns new files.
    pub(super) user: Option<UserRef>,
}

impl ConnectedSandboxes {
    pub(super) fn get(&self, caller: &Caller, id: &str) -> Option<SandboxConnection> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.uses += 1;
        let now = state.uses;
        let (last, connection) = state.entries.get_mut(&(caller.clone(), id.to_owned()))?;
        *last = now;
        Some(connection.clone())
    }

    /// Adds a connection, and evicts the least recently used one at the limit.
    pub(super) fn insert(&self, caller: &Caller, connection: SandboxConnection) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.entries.len() >= LIMIT {
            let oldest = state.entries.iter().min_by_key(|(_, (last, _))| *last);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                state.entries.remove(&oldest);
            }
        }
        state.uses += 1;
        let now = state.uses;
        state.entries.insert((caller.clone(), connection.name.to_string()), (now, connection));
    }

    /// Removes a sandbox from the connections of all callers.
    pub(super) fn forget(&self, id: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.entries.retain(|(_, connections), _| connections != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(name: &str) -> SandboxConnection {
        SandboxConnection { name: Name::parse(name).unwrap(), user: None }
    }

    #[test]
    fn connections_are_separate_for_each_caller() {
        let connections = ConnectedSandboxes::default();
        let other = Caller { key: Some("other".to_owned()), ..Caller::default() };
        connections.insert(&Caller::default(), connection("a"));
        assert_eq!(connections.get(&Caller::default(), "a"), Some(connection("a")));
        assert_eq!(connections.get(&other, "a"), None);
        connections.insert(&other, connection("a"));
        connections.forget("a");
        assert_eq!(connections.get(&Caller::default(), "a"), None);
        assert_eq!(connections.get(&other, "a"), None);
    }

    #[test]
    fn the_least_used_makes_place() {
        let connections = ConnectedSandboxes::default();
        let caller = Caller::default();
        for number in 0..LIMIT {
            connections.insert(&caller, connection(&format!("n{number}")));
        }
        assert!(connections.get(&caller, "n0").is_some());
        connections.insert(&caller, connection("new"));
        assert!(connections.get(&caller, "n0").is_some());
        assert!(connections.get(&caller, "n1").is_none());
        assert_eq!(connections.0.lock().unwrap().entries.len(), LIMIT);
    }
}
