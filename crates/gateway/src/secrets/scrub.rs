//! Masks the values of Secrets in responses: each byte of a value becomes `*`.
//!
//! The length is kept, so that `Content-Length` and WebSocket frames stay valid. When bytes are
//! forwarded, and how many, depends on the response's bytes and never on a value: a host that
//! echoes guesses would otherwise reveal how much of a guess is right. There are three rules.
//! - The last bytes of a message are held back until its end comes, equally many for every value.
//! - After [`HOLD_TIMEOUT`] without new bytes they are forwarded unmasked. Half a value is not
//!   masked.
//! - Only a complete value is masked, from its first byte that was not forwarded yet.
//!
//! A value is not found if the server transforms it in a way that `value_search` does not list, or
//! sends it in several messages. This stops accidental echoes; it does not make a hostile server
//! safe.

use crate::secrets::message_end::MessageEnd;
use crate::secrets::value_search::ValueSearch;
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// Held bytes are forwarded after so long without new ones. It is longer than any round trip: long
/// bodies come in bursts one round trip apart, and a sandbox could place an echoed value across two
/// of them.
pub(crate) const HOLD_TIMEOUT: Duration = Duration::from_millis(500);

/// Masks the values in one stream.
pub(crate) struct Scrubber {
    values: Arc<ValueSearch>,
    message_end: MessageEnd,
    /// The last received bytes, in which a value could have begun.
    raw: Zeroizing<Vec<u8>>,
    /// As `raw`, with values masked.
    masked: Zeroizing<Vec<u8>>,
    /// How many of those were forwarded.
    sent: usize,
}

impl Scrubber {
    pub(crate) fn new(values: Arc<ValueSearch>, message_end: MessageEnd) -> Self {
        let (raw, masked) = (Zeroizing::default(), Zeroizing::default());
        Self { values, message_end, raw, masked, sent: 0 }
    }

    /// Takes the next chunk and returns what can be forwarded.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Bytes {
        let before = self.raw.len();
        self.raw.extend_from_slice(piece);
        self.masked.extend_from_slice(piece);
        self.values.mask(&self.raw, &mut self.masked);
        let ended = self.message_end.last_end_in(piece).map_or(0, |end| before + end);
        let begin = ended.max(self.raw.len().saturating_sub(self.values.hold_len()));
        let until = begin.max(self.sent);
        let out = Bytes::copy_from_slice(&self.masked[self.sent..until]);
        self.raw.drain(..begin);
        self.masked.drain(..begin);
        self.sent = until - begin;
        out
    }

    /// Takes the last chunk and returns all that is left.
    pub(crate) fn push_last(&mut self, piece: &[u8]) -> Bytes {
        let out = self.push(piece);
        match self.is_holding() {
            true => Bytes::from([out, self.release()].concat()),
            false => out,
        }
    }

    /// Whether bytes are held back, for at most [`HOLD_TIMEOUT`].
    pub(crate) fn is_holding(&self) -> bool {
        self.sent < self.masked.len()
    }

    /// Returns all held bytes, after the timeout or at the end.
    pub(crate) fn release(&mut self) -> Bytes {
        let out = Bytes::copy_from_slice(&self.masked[self.sent..]);
        self.sent = self.masked.len();
        out
    }
}

/// Masks values in headers or trailers, and removes headers with a value in their name.
pub(crate) fn scrub_headers(values: &ValueSearch, headers: &mut HeaderMap) {
    if values.is_empty() {
        return;
    }
    let named = |name: &&HeaderName| values.is_in(name.as_str().as_bytes());
    let names: Vec<HeaderName> = headers.keys().filter(named).cloned().collect();
    for name in names {
        headers.remove(name);
    }
    for value in headers.values_mut() {
        if values.is_in(value.as_bytes()) {
            let mut masked = value.as_bytes().to_vec();
            values.mask(value.as_bytes(), &mut masked);
            // `*` is valid in every header value; otherwise an empty value reveals nothing.
            *value =
                HeaderValue::from_bytes(&masked).unwrap_or_else(|_| HeaderValue::from_static(""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &[u8] = b"sk-live-0123456789/x";

    fn scrubber(value: &[u8]) -> Scrubber {
        let values = Arc::new(ValueSearch::of([value]));
        let message_end = MessageEnd::of_body(&HeaderMap::new(), &values);
        Scrubber::new(values, message_end)
    }

    fn scrubbed(stream: &[u8], size: usize) -> Vec<u8> {
        let mut scrubber = scrubber(VALUE);
        let mut out = Vec::new();
        for piece in stream.chunks(size) {
            out.extend(scrubber.push(piece));
        }
        out.extend(scrubber.release());
        out
    }

    #[test]
    fn a_value_is_masked_in_any_chunking() {
        let stream = [b"{\"key\": \"", VALUE, b"\",\n \"next\": \"", VALUE, b"\"}"].concat();
        let stars = "*".repeat(VALUE.len());
        let wanted = format!("{{\"key\": \"{stars}\",\n \"next\": \"{stars}\"}}");
        for size in 1..=stream.len() {
            assert_eq!(scrubbed(&stream, size), wanted.as_bytes(), "{size}");
        }
        // Far from the start of a line, and with a value of several lines.
        let long = [&[b'x'; 9000][..], VALUE, &[b'y'; 9000]].concat();
        for size in [1, 999, 4096, 9010, long.len()] {
            let out = scrubbed(&long, size);
            assert_eq!((out.len(), &out[9000..9000 + VALUE.len()]), (long.len(), stars.as_bytes()));
        }
        let mut lines = scrubber(b"BEGIN\n01234\nEND");
        let mut out = lines.push(b"BEGIN\n012").to_vec();
        out.extend(lines.push_last(b"34\nEND\n"));
        assert_eq!(out, b"***************\n");
    }

    #[test]
    fn other_bytes_are_unchanged() {
        let stream = b"sk-live-0123 sk sk-live sk-live-0123456789/y".repeat(3);
        for size in 1..=stream.len() {
            assert_eq!(scrubbed(&stream, size), stream, "{size}");
        }
    }

    #[test]
    fn after_a_release_the_rest_of_a_value_is_masked() {
        let mut scrubber = scrubber(VALUE);
        let (first, last) = VALUE.split_at(8);
        assert_eq!(&scrubber.push(first)[..], b"");
        assert_eq!(&scrubber.release()[..], first);
        assert!(!scrubber.is_holding());
        assert_eq!(scrubber.push_last(last), vec![b'*'; last.len()]);
    }

    /// How much is forwarded after each event, and whether bytes are held.
    fn schedule(value: &[u8], events: &[Option<Vec<u8>>]) -> Vec<(usize, bool)> {
        let mut scrubber = scrubber(value);
        let step = |event: &Option<Vec<u8>>| {
            let out = match event {
                Some(piece) => scrubber.push(piece),
                None => scrubber.release(),
            };
            (out.len(), scrubber.is_holding())
        };
        events.iter().map(step).collect()
    }

    /// A random number below `most`, the same in every run.
    fn below(most: u64, state: &mut u64) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        usize::try_from(*state % most).unwrap()
    }

    #[test]
    fn output_sizes_and_timing_do_not_depend_on_the_value() {
        let mut state = 0x2545_f491_4f6c_dd1d;
        let values = [VALUE, b"zz-other-value-of-another-length-0000", b"\x01\x02\x03\x04"];
        for _ in 0..2000 {
            let mut events = Vec::new();
            for _ in 0..=below(12, &mut state) {
                let mut piece = Vec::new();
                for _ in 0..below(4, &mut state) {
                    // Prefixes, suffixes, whole values, noise and line ends.
                    let value = values[below(3, &mut state)];
                    let cut = below(value.len() as u64 + 1, &mut state);
                    match below(6, &mut state) {
                        0 => piece.extend_from_slice(&value[..cut]),
                        1 => piece.extend_from_slice(&value[cut..]),
                        2 => piece.extend_from_slice(value),
                        3 => piece.extend([b'#'; 5000].iter().take(below(5000, &mut state))),
                        4 => piece.push(b'\n'),
                        _ => piece.extend(std::iter::repeat_n(b"%\\&"[cut % 3], cut)),
                    }
                }
                events.push((below(5, &mut state) > 0).then_some(piece));
            }
            let all = values.map(|value| schedule(value, &events));
            assert!(all[0] == all[1] && all[1] == all[2], "{events:?}");
        }
    }

    #[test]
    fn headers_are_scrubbed() {
        let values = ValueSearch::of([VALUE, b"abcd"]);
        let mut headers = HeaderMap::new();
        headers.insert("a", HeaderValue::from_bytes(VALUE).unwrap());
        headers.append("a", HeaderValue::from_static("other"));
        headers.append("x-abcd", HeaderValue::from_static("other"));
        scrub_headers(&values, &mut headers);
        let values: Vec<_> = headers.values().collect();
        assert_eq!(values, [&*"*".repeat(VALUE.len()), "other"]);
    }
}
