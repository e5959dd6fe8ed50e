//! Searches plain HTTP flows that are not intercepted for placeholders on the way out.
//!
//! The bytes are neither parsed nor changed: they may be for a proxy, be HTTP/1.0 or become another
//! protocol. A placeholder is not secret, so its start may leave; its end, and with it the end of
//! the request, does not.

use crate::secrets::patterns::{PatternSet, StreamSearch};
use std::sync::Arc;

/// The placeholder search of one flow.
pub(crate) struct PlaceholderScan {
    placeholders: Arc<PatternSet>,
    search: StreamSearch,
    /// Bytes that were searched and not yet sent.
    scanned: usize,
    found: Option<usize>,
}

impl PlaceholderScan {
    pub(crate) fn new(placeholders: Arc<PatternSet>) -> Self {
        Self { placeholders, search: StreamSearch::default(), scanned: 0, found: None }
    }

    /// Whether `bytes`, the next to be sent, may leave. After a match nothing may.
    pub(crate) fn scan(&mut self, bytes: &[u8]) -> bool {
        if self.found.is_none()
            && let Some(fresh) = bytes.get(self.scanned..)
        {
            self.scanned = bytes.len();
            self.found = self.search.find(&self.placeholders, fresh);
        }
        self.found.is_none()
    }

    /// Marks `count` of the searched bytes as sent.
    pub(crate) fn advance(&mut self, count: usize) {
        self.scanned = self.scanned.saturating_sub(count);
    }

    /// The index of the Secret that the found placeholder stands for.
    pub(crate) fn found(&self) -> Option<usize> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"msb-placeholder-0123456789";

    #[test]
    fn a_placeholder_is_found_in_any_chunking() {
        let placeholders = Arc::new(PatternSet::encoded([(3, TEXT)]));
        let stream = [b"GET / HTTP/1.1\r\nx: ", TEXT, b"\r\n\r\n"].concat();
        for seen in 1..=stream.len() {
            for leave in [1, seen.div_ceil(2), seen] {
                let mut scan_state = PlaceholderScan::new(Arc::clone(&placeholders));
                let mut at = 0;
                while at < stream.len() {
                    let bytes = &stream[at..stream.len().min(at + seen)];
                    if !scan_state.scan(bytes) {
                        break;
                    }
                    let count = leave.min(bytes.len());
                    scan_state.advance(count);
                    at += count;
                }
                assert_eq!(scan_state.found(), Some(3), "{seen} {leave}");
                assert!(at < stream.len() - 4, "{seen} {leave}");
                assert!(!scan_state.scan(b"more"));
            }
        }
    }

    #[test]
    fn other_bytes_pass() {
        let mut scan_state = PlaceholderScan::new(Arc::new(PatternSet::encoded([(0, TEXT)])));
        assert!(scan_state.scan(&TEXT[..TEXT.len() - 1]));
        scan_state.advance(TEXT.len() - 1);
        assert!(scan_state.scan(b"x"));
        assert_eq!(scan_state.found(), None);
    }
}
