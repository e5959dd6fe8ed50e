//! Which key each MCP session belongs to, and how many a key may have.
//!
//! A key that begins more than its share loses its own session that was unused for longest, never that of
//! another key.

use crate::dialect::Who;
use std::collections::{BTreeMap, HashMap};

/// Sessions of all keys together. Each is a task with some buffers.
const MOST: usize = 10_000;

/// All sessions.
#[derive(Debug)]
pub(crate) struct Sessions {
    most: usize,
    /// Counts up with every use.
    clock: u64,
    by_id: HashMap<String, Session>,
    /// By key: the ids by their last use.
    by_key: HashMap<Who, BTreeMap<u64, String>>,
}

#[derive(Debug)]
struct Session {
    who: Who,
    used: u64,
}

impl Default for Sessions {
    fn default() -> Self {
        Self::at_most(MOST)
    }
}

impl Sessions {
    fn at_most(most: usize) -> Self {
        Self { most, clock: 0, by_id: HashMap::new(), by_key: HashMap::new() }
    }

    /// Whether this key began this session. If so, it counts as used now.
    pub(crate) fn is_of(&mut self, id: &str, who: &Who) -> bool {
        let Some(session) = self.by_id.get_mut(id).filter(|session| session.who == *who) else {
            return false;
        };
        self.clock += 1;
        if let Some(own) = self.by_key.get_mut(who) {
            own.remove(&session.used);
            own.insert(self.clock, id.to_owned());
        }
        session.used = self.clock;
        true
    }

    /// Remembers whose session this is. Gives the ids of sessions that have to end for it.
    #[must_use]
    pub(crate) fn begin(&mut self, id: &str, who: &Who) -> Vec<String> {
        if self.by_id.contains_key(id) {
            return Vec::new();
        }
        let mut ended = Vec::new();
        loop {
            let free = self.most.saturating_sub(self.by_id.len());
            let own = self.by_key.get(who).map_or(0, BTreeMap::len);
            let loser = match (free, own) {
                // So many keys that each has next to nothing: the key that has most.
                (0, 0) => self.by_key.iter().max_by_key(|(_, ids)| ids.len()).map(|(who, _)| who),
                _ if who.key.is_some() && own > 0 && own + 1 > free.saturating_sub(1) => Some(who),
                (0, _) => Some(who),
                _ => None,
            };
            let oldest = loser.and_then(|who| self.by_key.get(who)?.values().next().cloned());
            let Some(oldest) = oldest else { break };
            self.end(&oldest);
            ended.push(oldest);
            // One makes room for one.
            if free > 0 {
                break;
            }
        }
        self.clock += 1;
        self.by_id.insert(id.to_owned(), Session { who: who.clone(), used: self.clock });
        self.by_key.entry(who.clone()).or_default().insert(self.clock, id.to_owned());
        ended
    }

    /// Forgets a session.
    pub(crate) fn end(&mut self, id: &str) {
        let Some(session) = self.by_id.remove(id) else { return };
        if let Some(own) = self.by_key.get_mut(&session.who) {
            own.remove(&session.used);
            if own.is_empty() {
                self.by_key.remove(&session.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: &str) -> Who {
        Who { key: Some(id.to_owned()), ..Who::default() }
    }

    #[test]
    fn no_key_ends_a_session_of_another() {
        let mut sessions = Sessions::at_most(100);
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
        // There is room for more of the first.
        for number in 0..20 {
            let ended = sessions.begin(&format!("red {number}"), &red);
            assert!(ended.iter().all(|id| id != "red's"), "{number}");
        }
        assert!(sessions.by_id.len() <= 100);
    }

    #[test]
    fn the_session_that_was_unused_for_longest_ends_first() {
        let mut sessions = Sessions::at_most(3);
        let who = Who::default();
        for id in ["a", "b", "c"] {
            assert!(sessions.begin(id, &who).is_empty());
        }
        assert!(sessions.is_of("a", &who));
        assert_eq!(sessions.begin("d", &who), ["b"]);
        sessions.end("a");
        assert!(sessions.begin("e", &who).is_empty());
        assert!(sessions.begin("e", &who).is_empty());
        assert_eq!(sessions.by_id.len(), 3);
        for id in ["c", "d", "e"] {
            sessions.end(id);
        }
        assert!(sessions.by_key.is_empty());
    }

    #[test]
    fn more_keys_than_sessions_are_served_too() {
        let mut sessions = Sessions::at_most(4);
        for number in 0..20 {
            let who = key(&number.to_string());
            let _ = sessions.begin(&format!("of {number}"), &who);
            assert!(sessions.is_of(&format!("of {number}"), &who));
            assert!(sessions.by_id.len() <= 4);
        }
    }
}
