//! Takes the values of Secrets out of what comes back: each byte of them becomes `*`.
//!
//! Length is kept, so that neither `Content-Length` nor the frames of a WebSocket change. When what
//! goes on, and how much of it, is decided by what came and never by what a value is: a host that
//! echoes would else tell, guess by guess, how much of one is right. So there are three rules.
//! - The last bytes of a message are held back, as many for every value, until its end comes.
//! - When nothing has come for [`PAUSE`], they go on as they are. Half a value is not hidden.
//! - Only a value that is there as a whole is hidden, from its first byte that has not gone on.
//!
//! A value that its server transforms in a way not listed in `value_search`, or sends in several
//! messages, is not found: this closes the echo of a mistake, it does not make a hostile server
//! safe.

use super::message_end::MessageEnd;
use super::value_search::ValueSearch;
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// Bytes that are held for the end of their message go on when the peer has been silent for so
/// long. Longer than any round trip: a long body comes in bursts with one between them, and a
/// sandbox can put the value it is to echo on the border of two.
pub(crate) const PAUSE: Duration = Duration::from_millis(500);

/// Scrubs one stream.
pub(crate) struct Scrubber {
    values: Arc<ValueSearch>,
    messages: MessageEnd,
    /// The end of what came: all that a value could have begun in.
    seen: Zeroizing<Vec<u8>>,
    /// The same as it is shown.
    shown: Zeroizing<Vec<u8>>,
    /// How many of those have gone on.
    sent: usize,
}

impl Scrubber {
    pub(crate) fn new(values: Arc<ValueSearch>, messages: MessageEnd) -> Self {
        let (seen, shown) = (Zeroizing::default(), Zeroizing::default());
        Self { values, messages, seen, shown, sent: 0 }
    }

    /// Takes the next piece and gives what can go on.
    pub(crate) fn push(&mut self, piece: &[u8]) -> Bytes {
        let before = self.seen.len();
        self.seen.extend_from_slice(piece);
        self.shown.extend_from_slice(piece);
        self.values.mask(&self.seen, &mut self.shown);
        let ended = self.messages.last_in(piece).map_or(0, |end| before + end);
        let begin = ended.max(self.seen.len().saturating_sub(self.values.hold()));
        let until = begin.max(self.sent);
        let out = Bytes::copy_from_slice(&self.shown[self.sent..until]);
        self.seen.drain(..begin);
        self.shown.drain(..begin);
        self.sent = until - begin;
        out
    }

    /// Takes the last piece and gives all that is left.
    pub(crate) fn push_last(&mut self, piece: &[u8]) -> Bytes {
        let out = self.push(piece);
        match self.is_holding() {
            true => Bytes::from([out, self.release()].concat()),
            false => out,
        }
    }

    /// Whether bytes wait for what comes next, for [`PAUSE`] after the last of them.
    pub(crate) fn is_holding(&self) -> bool {
        self.sent < self.shown.len()
    }

    /// Lets all go on that is held, because nothing comes or nothing ever will.
    pub(crate) fn release(&mut self) -> Bytes {
        let out = Bytes::copy_from_slice(&self.shown[self.sent..]);
        self.sent = self.shown.len();
        out
    }
}

/// Scrubs what stands in headers or trailers.
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
            let mut shown = value.as_bytes().to_vec();
            values.mask(value.as_bytes(), &mut shown);
            // Stars fit everywhere; if they did not, an empty value gives nothing away.
            *value =
                HeaderValue::from_bytes(&shown).unwrap_or_else(|_| HeaderValue::from_static(""));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: &[u8] = b"sk-live-0123456789/x";

    fn scrubber(value: &[u8]) -> Scrubber {
        let values = Arc::new(ValueSearch::of([value]));
        let messages = MessageEnd::of_body(&HeaderMap::new(), &values);
        Scrubber::new(values, messages)
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
    fn a_value_is_starred_however_the_stream_is_cut() {
        let stream = [b"{\"key\": \"", VALUE, b"\",\n \"next\": \"", VALUE, b"\"}"].concat();
        let stars = "*".repeat(VALUE.len());
        let wanted = format!("{{\"key\": \"{stars}\",\n \"next\": \"{stars}\"}}");
        for size in 1..=stream.len() {
            assert_eq!(scrubbed(&stream, size), wanted.as_bytes(), "{size}");
        }
        // Far behind the begin of a line, and with a value of several lines.
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
    fn nothing_else_changes() {
        let stream = b"sk-live-0123 sk sk-live sk-live-0123456789/y".repeat(3);
        for size in 1..=stream.len() {
            assert_eq!(scrubbed(&stream, size), stream, "{size}");
        }
    }

    #[test]
    fn a_part_of_a_value_is_shown_and_the_rest_of_a_whole_one_is_not() {
        let mut scrubber = scrubber(VALUE);
        let (first, last) = VALUE.split_at(8);
        assert_eq!(&scrubber.push(first)[..], b"");
        assert_eq!(&scrubber.release()[..], first);
        assert!(!scrubber.is_holding());
        assert_eq!(scrubber.push_last(last), vec![b'*'; last.len()]);
    }

    /// What goes on after each event of a stream, and when it waits.
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

    /// A random number below `most`, the same in every run of the tests.
    fn below(most: u64, state: &mut u64) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        usize::try_from(*state % most).unwrap()
    }

    #[test]
    fn no_value_decides_how_much_goes_on_and_when() {
        let mut state = 0x2545_f491_4f6c_dd1d;
        let values = [VALUE, b"zz-other-value-of-another-length-0000", b"\x01\x02\x03\x04"];
        for _ in 0..2000 {
            let mut events = Vec::new();
            for _ in 0..=below(12, &mut state) {
                let mut piece = Vec::new();
                for _ in 0..below(4, &mut state) {
                    // Right beginnings, right ends, whole values, wrong guesses, noise, lines.
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
