//! Searches plain requests on their way out for placeholders, where nobody is looked into.
//!
//! Nothing is parsed and nothing held: what it searches may go to a proxy, be HTTP/1.0 or become
//! something else, and passes as it came. A placeholder is no secret, so its begin may leave; the
//! end of it, and with that of the request, does not.

use crate::intercept::patterns::{Patterns, Watch};
use std::sync::Arc;

/// The search in one flow.
pub(crate) struct Watching {
    placeholders: Arc<Patterns>,
    watch: Watch,
    /// Bytes that were searched and have not left.
    ahead: usize,
    found: Option<usize>,
}

impl Watching {
    pub(crate) fn new(placeholders: Arc<Patterns>) -> Self {
        Self { placeholders, watch: Watch::default(), ahead: 0, found: None }
    }

    /// Whether `bytes`, the next to leave, may do so. Once they may not, nothing more may.
    pub(crate) fn lets_pass(&mut self, bytes: &[u8]) -> bool {
        if self.found.is_none()
            && let Some(fresh) = bytes.get(self.ahead..)
        {
            self.ahead = bytes.len();
            self.found = self.watch.find(&self.placeholders, fresh);
        }
        self.found.is_none()
    }

    /// So many of them have left.
    pub(crate) fn left(&mut self, count: usize) {
        self.ahead = self.ahead.saturating_sub(count);
    }

    /// Whose placeholder was found.
    pub(crate) fn found(&self) -> Option<usize> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"msb-placeholder-0123456789";

    #[test]
    fn a_placeholder_is_found_however_few_bytes_leave_at_a_time() {
        let placeholders = Arc::new(Patterns::of([(3, TEXT)]));
        let stream = [b"GET / HTTP/1.1\r\nx: ", TEXT, b"\r\n\r\n"].concat();
        for seen in 1..=stream.len() {
            for leave in [1, seen.div_ceil(2), seen] {
                let mut watching = Watching::new(Arc::clone(&placeholders));
                let mut at = 0;
                while at < stream.len() {
                    let bytes = &stream[at..stream.len().min(at + seen)];
                    if !watching.lets_pass(bytes) {
                        break;
                    }
                    let count = leave.min(bytes.len());
                    watching.left(count);
                    at += count;
                }
                assert_eq!(watching.found(), Some(3), "{seen} {leave}");
                assert!(at < stream.len() - 4, "{seen} {leave}");
                assert!(!watching.lets_pass(b"more"));
            }
        }
    }

    #[test]
    fn what_is_no_placeholder_passes() {
        let mut watching = Watching::new(Arc::new(Patterns::of([(0, TEXT)])));
        assert!(watching.lets_pass(&TEXT[..TEXT.len() - 1]));
        watching.left(TEXT.len() - 1);
        assert!(watching.lets_pass(b"x"));
        assert_eq!(watching.found(), None);
    }
}
