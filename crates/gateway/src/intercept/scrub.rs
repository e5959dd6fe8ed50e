//! Takes the values of Secrets out of what comes back: each byte of them becomes `*`.
//!
//! Length is kept, so that neither `Content-Length` nor the frames of a WebSocket change. A value
//! that its server transforms in a way not listed in `patterns` is not found: this closes the echo
//! of a mistake, it does not make a hostile server safe.

use super::patterns::Patterns;
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderValue};
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// What could become a value is held until that is decided, or nothing at all has come for so long.
/// Servers that write byte by byte are faster than this, also over bad lines; who waits inside for
/// the one letter that is held, and has to be heard before more comes, hardly notices.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

/// Scrubs one stream.
pub(crate) struct Scrubber {
    patterns: Arc<Patterns>,
    /// What came and may still become a value.
    seen: Zeroizing<Vec<u8>>,
    /// The same as it is shown.
    shown: Zeroizing<Vec<u8>>,
    /// How many of those have gone out.
    sent: usize,
    /// How long the shortest value is that it may become.
    goal: usize,
}

impl Scrubber {
    pub(crate) fn new(patterns: Arc<Patterns>) -> Self {
        Self { patterns, seen: Zeroizing::default(), shown: Zeroizing::default(), sent: 0, goal: 0 }
    }

    /// Takes the next piece and gives what can go out.
    pub(crate) fn push(&mut self, piece: Bytes) -> Bytes {
        if self.seen.is_empty()
            && self.patterns.find(&piece, 0).is_none()
            && self.patterns.unfinished(&piece).is_none()
        {
            return piece;
        }
        self.seen.extend_from_slice(&piece);
        self.shown.extend_from_slice(&piece);
        drop(piece);
        mask(&self.patterns, &self.seen, &mut self.shown);
        let all = self.seen.len();
        let (begin, goal) = self.patterns.unfinished(&self.seen).unwrap_or((all, 0));
        let until = begin.max(self.sent);
        let out = Bytes::copy_from_slice(&self.shown[self.sent..until]);
        self.seen.drain(..begin);
        self.shown.drain(..begin);
        self.sent = until - begin;
        self.goal = goal;
        out
    }

    /// Whether bytes wait for what comes next, for [`PAUSE`] after the last of them.
    pub(crate) fn is_holding(&self) -> bool {
        self.sent < self.shown.len()
    }

    /// Lets go what is held because nothing comes, or nothing ever will. Half a value is as good
    /// as one: from there on it is hidden although its end was not seen.
    pub(crate) fn release(&mut self) -> Bytes {
        let half = self.seen.len() * 2 >= self.goal;
        let held = &mut self.shown[self.sent..];
        if half {
            held.fill(b'*');
        }
        let out = Bytes::copy_from_slice(held);
        self.sent = self.shown.len();
        out
    }
}

fn mask(patterns: &Patterns, seen: &[u8], shown: &mut [u8]) {
    let mut from = 0;
    while let Some(found) = patterns.find(seen, from) {
        shown[found.start..found.end].fill(b'*');
        from = found.start + 1;
    }
}

/// Scrubs what stands in headers or trailers.
pub(crate) fn scrub_headers(patterns: &Patterns, headers: &mut HeaderMap) {
    if patterns.is_empty() {
        return;
    }
    for value in headers.values_mut() {
        if patterns.find(value.as_bytes(), 0).is_some() {
            let mut shown = value.as_bytes().to_vec();
            mask(patterns, value.as_bytes(), &mut shown);
            // Stars fit everywhere; if they did not, an empty value gives nothing away.
            *value =
                HeaderValue::from_bytes(&shown).unwrap_or_else(|_| HeaderValue::from_static(""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    const VALUE: &[u8] = b"sk-live-0123456789/x";

    fn patterns() -> Arc<Patterns> {
        Arc::new(Patterns::of([(0, VALUE)]))
    }

    fn scrubbed(stream: &[u8], size: usize) -> Vec<u8> {
        let mut scrubber = Scrubber::new(patterns());
        let mut out = Vec::new();
        for piece in stream.chunks(size) {
            out.extend(scrubber.push(Bytes::copy_from_slice(piece)));
        }
        out.extend(scrubber.release());
        out
    }

    #[test]
    fn a_value_is_starred_however_the_stream_is_cut() {
        let stream = [b"{\"key\": \"", VALUE, b"\", \"next\": \"", VALUE, b"\"}"].concat();
        let stars = "*".repeat(VALUE.len());
        let wanted = format!("{{\"key\": \"{stars}\", \"next\": \"{stars}\"}}");
        for size in 1..=stream.len() {
            assert_eq!(scrubbed(&stream, size), wanted.as_bytes(), "{size}");
        }
    }

    #[test]
    fn encoded_values_are_starred() {
        for (text, secret) in [
            ("a=sk-live-0123456789%2Fx&b", "sk-live-0123456789%2Fx"),
            ("a=sk-live-0123456789%2fx&b", "sk-live-0123456789%2fx"),
        ] {
            let out = scrubbed(text.as_bytes(), 7);
            assert_eq!(
                String::from_utf8(out).unwrap(),
                text.replace(secret, &"*".repeat(secret.len()))
            );
        }
        for user in ["", "u:", "us:", "use:"] {
            let encoded = STANDARD.encode([user.as_bytes(), VALUE].concat());
            let out = String::from_utf8(scrubbed(encoded.as_bytes(), 5)).unwrap();
            assert_eq!(out.len(), encoded.len());
            let stars = out.bytes().filter(|byte| *byte == b'*').count();
            assert!(stars + 3 >= VALUE.len() * 8 / 6, "{out}");
        }
    }

    #[test]
    fn nothing_else_changes() {
        let stream = b"sk-live-0123 sk sk-live sk-live-0123456789/y".repeat(3);
        for size in 1..=stream.len() {
            assert_eq!(scrubbed(&stream, size), stream, "{size}");
        }
    }

    #[test]
    fn a_value_with_a_pause_behind_each_byte_is_starred_from_its_half_on() {
        let mut scrubber = Scrubber::new(patterns());
        let mut out = Vec::new();
        for byte in VALUE {
            out.extend(scrubber.push(Bytes::copy_from_slice(&[*byte])));
            out.extend(scrubber.release());
        }
        assert_eq!(String::from_utf8(out).unwrap(), "sk-live-0***********");
        let mut scrubber = Scrubber::new(patterns());
        assert_eq!(&scrubber.push(Bytes::from_static(&VALUE[..VALUE.len() - 1]))[..], b"");
        assert!(scrubber.is_holding());
        assert_eq!(scrubber.release(), vec![b'*'; VALUE.len() - 1]);
        assert!(!scrubber.is_holding());
    }

    #[test]
    fn headers_are_scrubbed() {
        let mut headers = HeaderMap::new();
        headers.insert("a", HeaderValue::from_bytes(VALUE).unwrap());
        headers.append("a", HeaderValue::from_static("other"));
        scrub_headers(&patterns(), &mut headers);
        let values: Vec<_> = headers.get_all("a").iter().collect();
        assert_eq!(values, [&*"*".repeat(VALUE.len()), "other"]);
    }
}
