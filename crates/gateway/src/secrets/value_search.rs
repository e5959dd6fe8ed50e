//! Finds the values of Secrets in bytes of a server, in time that does not depend on the values.
//!
//! A sandbox can have a host echo its guesses. A search that compares byte by byte takes longer for
//! a guess with right first characters, and a body with a million guesses makes that measurable. So
//! the search uses a rolling hash (Rabin-Karp) with a random base: one step for each byte, and
//! bytes are compared only where the hash of a complete text matches.

use crate::host_socket;
use crate::secrets::escapes::UnescapedBytes;
use crate::secrets::patterns::base64_core;
use std::collections::BTreeMap;
use std::ops::Range;
use zeroize::Zeroizing;

/// A shorter base64 form occurs in unrelated data.
const MIN_BASE64_LEN: usize = 8;

/// Levels of nested escapes, as in JSON inside a JSON string.
const MAX_LEVELS: usize = 3;

/// The longest escape of one byte, in bytes: `&#x002F;`.
const MAX_ESCAPE_LEN: usize = 8;

/// The number of bytes that a stream holds back. There are few steps, so that it reveals little
/// about the length of a value.
const HOLD_STEPS: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];

/// The values of Secrets in all encodings, prepared for the search.
pub(crate) struct ValueSearch {
    windows: Vec<HashWindow>,
    base: u64,
    hold_len: usize,
    has_line_end: bool,
}

/// All texts of one length, with their hashes.
struct HashWindow {
    length: usize,
    /// What each byte contributes to the hash when it leaves the window.
    leaving: Box<[u64; 256]>,
    texts: Vec<(u64, Zeroizing<Vec<u8>>)>,
}

impl ValueSearch {
    /// Searches for each value and its encodings. Empty values are ignored.
    pub(crate) fn of<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Self {
        // Numbers of the form 8n + 5 have the longest period modulo 2^64.
        let base = (host_socket::random() & !7) | 5;
        let mut by_length: BTreeMap<usize, Vec<Zeroizing<Vec<u8>>>> = BTreeMap::new();
        let (mut longest, mut has_line_end) = (0, false);
        for value in values {
            longest = longest.max(value.len());
            has_line_end |= value.contains(&b'\n');
            for text in encoded_forms(value) {
                let same_length = by_length.entry(text.len()).or_default();
                if !text.is_empty() && !same_length.contains(&text) {
                    same_length.push(text);
                }
            }
        }
        by_length.retain(|_, texts| !texts.is_empty());
        let windows =
            by_length.into_iter().map(|(length, texts)| HashWindow::new(base, length, texts));
        let needed = longest * MAX_ESCAPE_LEN;
        let hold_len = HOLD_STEPS.into_iter().find(|hold_len| *hold_len >= needed);
        let hold_len = hold_len.unwrap_or_else(|| needed.next_power_of_two());
        Self { windows: windows.collect(), base, hold_len, has_line_end }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// How many bytes a stream holds back: at least the longest encoding of a value.
    pub(crate) fn hold_len(&self) -> usize {
        self.hold_len
    }

    /// Whether a value contains a line end.
    pub(crate) fn has_line_end(&self) -> bool {
        self.has_line_end
    }

    /// Whether any value occurs in `bytes`.
    pub(crate) fn is_in(&self, bytes: &[u8]) -> bool {
        let mut found = false;
        self.for_each_match(bytes, |_| found = true);
        found
    }

    /// Masks each byte of a value in `bytes` with `*` in `shown`, which has the same length.
    pub(crate) fn mask(&self, bytes: &[u8], shown: &mut [u8]) {
        self.for_each_match(bytes, |found| shown[found].fill(b'*'));
    }

    fn for_each_match(&self, bytes: &[u8], mut found: impl FnMut(Range<usize>)) {
        self.search(bytes, &mut found);
        let mut unescaped = UnescapedBytes::of(bytes);
        for _ in 0..MAX_LEVELS {
            // Whether there are escapes depends on the server's bytes alone.
            let Some(decoded) = unescaped else { return };
            self.search(decoded.bytes(), &mut |range| found(decoded.source(range)));
            unescaped = decoded.decode_again();
        }
    }

    fn search(&self, bytes: &[u8], found: &mut impl FnMut(Range<usize>)) {
        for window in &self.windows {
            window.search(self.base, bytes, found);
        }
    }
}

impl std::fmt::Debug for ValueSearch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ValueSearch")
    }
}

impl HashWindow {
    fn new(base: u64, length: usize, texts: Vec<Zeroizing<Vec<u8>>>) -> Self {
        let power = (0..length).fold(1_u64, |power, _| power.wrapping_mul(base));
        let leaving = std::array::from_fn(|byte| power.wrapping_mul(byte as u64));
        let texts = texts.into_iter().map(|text| (hash(base, &text), text)).collect();
        Self { length, leaving: Box::new(leaving), texts }
    }

    fn search(&self, base: u64, bytes: &[u8], found: &mut impl FnMut(Range<usize>)) {
        let Some(first) = bytes.get(..self.length) else { return };
        let mut hash = hash(base, first);
        self.compare(hash, bytes, 0, found);
        for (at, (leaving, entering)) in bytes.iter().zip(&bytes[self.length..]).enumerate() {
            hash = hash
                .wrapping_mul(base)
                .wrapping_add(u64::from(*entering))
                .wrapping_sub(self.leaving[usize::from(*leaving)]);
            self.compare(hash, bytes, at + 1, found);
        }
    }

    #[inline]
    fn compare(&self, hash: u64, bytes: &[u8], at: usize, found: &mut impl FnMut(Range<usize>)) {
        for (own, text) in &self.texts {
            let range = at..at + self.length;
            if *own == hash && bytes[range.clone()] == **text {
                found(range);
            }
        }
    }
}

fn hash(base: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |hash: u64, byte| hash.wrapping_mul(base).wrapping_add(u64::from(*byte)))
}

/// The encodings of a value that are searched for, in the bytes themselves or after decoding
/// escapes.
fn encoded_forms(value: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let hex = |digits: &[u8; 16]| {
        let pairs = value.iter().flat_map(|byte| [byte >> 4, byte & 15]);
        Zeroizing::new(pairs.map(|nibble| digits[usize::from(nibble)]).collect::<Vec<u8>>())
    };
    let mut all = vec![
        Zeroizing::new(value.to_vec()),
        // HTML forms encode a space as `+`.
        Zeroizing::new(value.iter().map(|b| if *b == b' ' { b'+' } else { *b }).collect()),
        hex(b"0123456789abcdef"),
        hex(b"0123456789ABCDEF"),
    ];
    // What looks like an escape in the value is decoded in the bytes, too.
    let mut unescaped = UnescapedBytes::of(value);
    for _ in 0..MAX_LEVELS {
        let Some(decoded) = unescaped else { break };
        all.push(Zeroizing::new(decoded.bytes().to_vec()));
        unescaped = decoded.decode_again();
    }
    for before in 0..3 {
        let (core, url) = base64_core(value, before);
        if core.len() >= MIN_BASE64_LEN {
            all.extend([core, url]);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};

    const VALUE: &[u8] = b"sk-a/b?c d\"e>f+g\xc3\xa9";

    fn escaped(for_each_match: impl Fn(char) -> String) -> String {
        std::str::from_utf8(VALUE).unwrap().chars().map(for_each_match).collect()
    }

    #[test]
    fn every_encoding_that_is_documented_is_found() {
        let search = ValueSearch::of([VALUE]);
        let special = |c: char| !c.is_ascii_alphanumeric();
        let hex: String = VALUE.iter().map(|byte| format!("{byte:02x}")).collect();
        let percent = |c: char| c.to_string().bytes().map(|b| format!("%{b:02x}")).collect();
        let in_json = escaped(|c| format!("\\u{:04x}", u32::from(c)));
        for text in [
            escaped(String::from),
            escaped(percent),
            escaped(percent).to_uppercase().replace('%', "%25"),
            escaped(|c| if special(c) { percent(c) } else { c.into() }).replace("%20", "+"),
            in_json.clone(),
            in_json.replace('\\', "\\\\"),
            in_json.to_uppercase().replace("\\U", "\\u"),
            escaped(|c| if "/\"\\".contains(c) { format!("\\{c}") } else { c.into() }),
            escaped(|c| if c == '+' { "\\u002b".into() } else { c.into() }),
            escaped(|c| if c.is_ascii() { format!("\\x{:02x}", u32::from(c)) } else { c.into() }),
            escaped(|c| match c {
                '"' => "&quot;".into(),
                '>' => "&gt;".into(),
                '/' => "&#x2F;".into(),
                c => c.into(),
            }),
            escaped(|c| format!("&#{};", u32::from(c))),
            escaped(|c| format!("&#x{:04X};", u32::from(c))),
            hex.to_uppercase(),
            hex,
            STANDARD.encode(VALUE),
            STANDARD.encode([b"u:", VALUE].concat()).replace('/', "\\/").replace('+', "\\u002b"),
            STANDARD.encode([b"us:", VALUE, b"x"].concat()),
            URL_SAFE.encode([b"user:", VALUE].concat()),
        ] {
            let whole = format!("{{\"x\": \"{text}\"}}");
            let mut shown = whole.clone().into_bytes();
            search.mask(whole.as_bytes(), &mut shown);
            let stars = shown.iter().filter(|byte| **byte == b'*').count();
            // The outermost base64 characters depend on the bytes beside the value.
            assert!(stars + 12 >= text.len() && stars <= text.len(), "{text}");
            assert!(shown.starts_with(b"{\"x\": \"") && shown.ends_with(b"\"}"), "{text}");
        }
        assert!(!search.is_in(&VALUE[1..]) && !search.is_in(&VALUE[..VALUE.len() - 1]));
        assert!(ValueSearch::of([&b""[..]]).is_empty());
    }

    #[test]
    fn values_that_look_like_escapes_are_found() {
        for value in ["a%41b%", "50%2fx&amp;y", "x\\ny\\u0041", "%25%25"] {
            let search = ValueSearch::of([value.as_bytes()]);
            let json = value.replace('\\', "\\\\");
            let percent: String = value.bytes().map(|byte| format!("%{byte:02X}")).collect();
            for text in [value, &json, &percent] {
                assert!(search.is_in(format!("<{text}>").as_bytes()), "{value}: {text}");
            }
        }
    }

    #[test]
    fn the_hold_length_reveals_little_of_the_value_length() {
        let hold_len = |length: usize| ValueSearch::of([&vec![b'x'; length][..]]).hold_len();
        assert_eq!([hold_len(4), hold_len(40), hold_len(512)], [4096; 3]);
        assert_eq!([hold_len(513), hold_len(8192)], [65536; 2]);
        assert!(hold_len(1 << 20) >= 8 << 20);
    }
}
