//! Which key each MCP session belongs to, and how many sessions a key may have.
//!
//! A key that opens more than its share loses its own least recently used session, never one of
//! another key.

use crate::dialect::Caller;
use std::collections::{BTreeMap, HashMap};

/// Sessions of all keys together. Each is a task with some buffers.
const MOST: usize = 10_000;

/// All MCP sessions of the listener.
#[derive(Debug)]
pub(crate) struct McpSessions {
    most: usize,
    /// Incremented at every use; orders sessions by their last use.
    clock: u64,
    by_id: HashMap<String, SessionOwner>,
    /// For each caller, the ids by their last use.
    by_key: HashMap<Caller, BTreeMap<u64, String>>,
}

#[derive(Debug)]
struct SessionOwner {
    caller: Caller,
    used: u64,
}

impl Default for McpSessions {
    fn default() -> Self {
        Self::at_most(MOST)
    }
}

impl McpSessions {
    fn at_most(most: usize) -> Self {
        Self { most, clock: 0, by_id: HashMap::new(), by_key: HashMap::new() }
    }

    /// Whether this caller owns this session. If so, it counts as used now.
    pub(crate) fn is_of(&mut self, id: &str, caller: &Caller) -> bool {
        let Some(session) = self.by_id.get_mut(id).filter(|session| session.caller == *caller)
        else {
            return false;
        };
        self.clock += 1;
        if let Some(own) = self.by_key.get_mut(caller) {
            own.remove(&session.used);
            own.insert(self.clock, id.to_owned());
        }
        session.used = self.clock;
        true
    }

    /// Records the owner of a new session. Returns the ids of the sessions to evict for it.
    #[must_use]
    pub(crate) fn begin(&mut self, id: &str, caller: &Caller) -> Vec<String> {
        if self.by_id.contains_key(id) {
            return Vec::new();
        }
        let mut ended = Vec::new();
        loop {
            let free = self.most.saturating_sub(self.by_id.len());
            let own = self.by_key.get(caller).map_or(0, BTreeMap::len);
            let loser = match (free, own) {
                // More keys than sessions: evict from the key that has the most.
                (0, 0) => {
                    self.by_key.iter().max_by_key(|(_, ids)| ids.len()).map(|(caller, _)| caller)
                }
                _ if caller.key.is_some() && own > 0 && own + 1 > free.saturating_sub(1) => {
                    Some(caller)
                }
                (0, _) => Some(caller),
                _ => None,
            };
            let oldest = loser.and_then(|caller| self.by_key.get(caller)?.values().next().cloned());
            let Some(oldest) = oldest else { break };
            self.end(&oldest);
            ended.push(oldest);
            // One session is evicted for one.
            if free > 0 {
                break;
            }
        }
        self.clock += 1;
        self.by_id.insert(id.to_owned(), SessionOwner { caller: caller.clone(), used: self.clock });
        self.by_key.entry(caller.clone()).or_default().insert(self.clock, id.to_owned());
        ended
    }

    /// Removes a session from the table.
    pub(crate) fn end(&mut self, id: &str) {
        let Some(session) = self.by_id.remove(id) else { return };
        if let Some(own) = self.by_key.get_mut(&session.caller) {
            own.remove(&session.used);
            if own.is_empty() {
                self.by_key.remove(&session.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Caller {
        Caller { key: Some(id.to_owned()), ..Caller::default() }
    }

    #[test]
    fn no_key_ends_a_session_of_another() {
        let mut sessions = McpSessions::at_most(100);
        let (red, blue) = (key("red"), key("blue"));
        assert!(sessions.begin("red's", &red).is_empty());
        for number in 0..1000 {
            let ended = sessions.begin(&number.to_string(), &blue);
            assert!(ended.iter().all(|id| id != "red's"), "{number}");
        }
        assert!(sessions.by_id.len() <= 100);
        assert!(sessions.is_of("red's", &red));
        assert!(!sessions.is_of("red's", &blue));
        assert!(sessions.is_of("999", &blue));
        assert!(!sessions.is_of("0", &blue));
        // The first key still has room for more.
        for number in 0..20 {
            let ended = sessions.begin(&format!("red {number}"), &red);
            assert!(ended.iter().all(|id| id != "red's"), "{number}");
        }
        assert!(sessions.by_id.len() <= 100);
    }

    #[test]
    fn the_session_that_was_unused_for_longest_ends_first() {
        let mut sessions = McpSessions::at_most(3);
        let caller = Caller::default();
        for id in ["a", "b", "c"] {
            assert!(sessions.begin(id, &caller).is_empty());
        }
        assert!(sessions.is_of("a", &caller));
        assert_eq!(sessions.begin("d", &caller), ["b"]);
        sessions.end("a");
        assert!(sessions.begin("e", &caller).is_empty());
        assert!(sessions.begin("e", &caller).is_empty());
        assert_eq!(sessions.by_id.len(), 3);
        for id in ["c", "d", "e"] {
            sessions.end(id);
        }
        assert!(sessions.by_key.is_empty());
    }

    #[test]
    fn more_keys_than_sessions_are_served_too() {
        let mut sessions = McpSessions::at_most(4);
        for number in 0..20 {
            let caller = key(&number.to_string());
            let _ = sessions.begin(&format!("of {number}"), &caller);
            assert!(sessions.is_of(&format!("of {number}"), &caller));
            assert!(sessions.by_id.len() <= 4);
        }
    }
}
