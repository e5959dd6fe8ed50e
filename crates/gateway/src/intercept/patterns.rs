//! The ways one text can be written inside another: itself, percent-encoded, in base64.
//!
//! For placeholders, which are no secret: how long a search takes tells what it searches for. Values are
//! searched for by `value_search`.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

/// Shorter cores of base64 stand in too much that has nothing to do with the text.
const SHORTEST_BASE64: usize = 8;

/// Texts that are searched for together.
#[derive(Default)]
pub(crate) struct Patterns {
    list: Vec<Pattern>,
    /// Which bytes a pattern begins with: most bytes of most streams are passed over by it.
    begins: Vec<bool>,
    longest: usize,
}

struct Pattern {
    /// Whose it is, as numbered by who made the list.
    of: usize,
    bytes: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for Patterns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // They are long and help no reader.
        f.write_str("Patterns")
    }
}

/// Where a pattern was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) of: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Patterns {
    /// Of all ways that each numbered text can be written in; empty texts are in everything, so
    /// they are in nothing.
    pub(crate) fn of<'a>(texts: impl IntoIterator<Item = (usize, &'a [u8])>) -> Self {
        Self::from(
            texts.into_iter().flat_map(|(of, text)| {
                forms(text).into_iter().map(move |bytes| Pattern { of, bytes })
            }),
        )
    }

    /// Of each text as it is, and percent-encoded as a whole.
    pub(crate) fn literal<'a>(texts: impl IntoIterator<Item = (usize, &'a [u8])>) -> Self {
        Self::from(texts.into_iter().flat_map(|(of, text)| {
            plain_forms(text).into_iter().map(move |bytes| Pattern { of, bytes })
        }))
    }

    fn from(list: impl Iterator<Item = Pattern>) -> Self {
        let mut list: Vec<_> = list.filter(|pattern| !pattern.bytes.is_empty()).collect();
        // The longest that fits is the one that is meant.
        list.sort_by_key(|pattern| std::cmp::Reverse(pattern.bytes.len()));
        let mut begins = vec![false; 256];
        for pattern in &list {
            begins[usize::from(pattern.bytes[0])] = true;
        }
        let longest = list.first().map_or(0, |pattern| pattern.bytes.len());
        Self { list, begins, longest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The length of the longest; zero if there are none.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The first that stands in `bytes` at `from` or later.
    pub(crate) fn find(&self, bytes: &[u8], from: usize) -> Option<Found> {
        if self.is_empty() {
            return None;
        }
        let mut start = from;
        loop {
            let rest = bytes.get(start..)?;
            start += rest.iter().position(|byte| self.begins[usize::from(*byte)])?;
            let fits = |pattern: &&Pattern| bytes[start..].starts_with(&pattern.bytes);
            if let Some(pattern) = self.list.iter().find(fits) {
                return Some(Found { of: pattern.of, start, end: start + pattern.bytes.len() });
            }
            start += 1;
        }
    }
}

/// Looks for patterns in a stream whose pieces come one after the other.
#[derive(Default)]
pub(crate) struct Watch {
    /// The end of what has been seen, as long as a pattern could have begun in it.
    tail: Vec<u8>,
}

impl Watch {
    /// Whose pattern is complete with this piece.
    pub(crate) fn find(&mut self, patterns: &Patterns, piece: &[u8]) -> Option<usize> {
        let keep = patterns.longest().saturating_sub(1);
        let seam = &piece[..piece.len().min(keep)];
        let before = self.tail.len();
        self.tail.extend_from_slice(seam);
        let found = match before {
            0 => None,
            _ => patterns.find(&self.tail, 0),
        };
        let found = found.or_else(|| patterns.find(piece, 0));
        if piece.len() >= keep {
            self.tail.clear();
            self.tail.extend_from_slice(&piece[piece.len() - keep..]);
        } else {
            self.tail.drain(..self.tail.len().saturating_sub(keep));
        }
        found.map(|found| found.of)
    }
}

fn plain_forms(text: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let upper = percent_encoded(text);
    let lower = lower_case_escapes(&upper);
    distinct([Zeroizing::new(text.to_vec()), upper, lower])
}

fn forms(text: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let mut all = plain_forms(text);
    all.push(json_escaped(text));
    for before in 0..3 {
        let (core, url) = base64_core(text, before);
        if core.len() >= SHORTEST_BASE64 {
            all.extend([core, url]);
        }
    }
    distinct(all)
}

fn distinct(all: impl IntoIterator<Item = Zeroizing<Vec<u8>>>) -> Vec<Zeroizing<Vec<u8>>> {
    let mut list: Vec<Zeroizing<Vec<u8>>> = Vec::new();
    for bytes in all {
        if !list.contains(&bytes) {
            list.push(bytes);
        }
    }
    list
}

/// Everything but letters, digits and `-._~` as `%XX`.
pub(crate) fn percent_encoded(text: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() * 3));
    for byte in text {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            bytes.push(*byte);
        } else {
            let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble)];
            bytes.extend([b'%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    bytes
}

fn lower_case_escapes(encoded: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(encoded.to_vec());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == b'%' {
            bytes[at + 1..at + 3].make_ascii_lowercase();
            at += 2;
        }
        at += 1;
    }
    bytes
}

/// As it stands between the quotes of a JSON string.
pub(crate) fn json_escaped(text: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() * 6));
    for byte in text {
        match byte {
            b'"' | b'\\' => bytes.extend([b'\\', *byte]),
            b'\n' => bytes.extend(b"\\n"),
            b'\r' => bytes.extend(b"\\r"),
            b'\t' => bytes.extend(b"\\t"),
            0..0x20 => bytes.extend(format!("\\u{byte:04x}").bytes()),
            _ => bytes.push(*byte),
        }
    }
    bytes
}

/// The letters of base64 that `text` alone decides when `before` bytes (modulo three) and any
/// others behind stand beside it; in both alphabets.
pub(crate) fn base64_core(text: &[u8], before: usize) -> (Zeroizing<Vec<u8>>, Zeroizing<Vec<u8>>) {
    let mut padded = Zeroizing::new(vec![0; before]);
    padded.reserve_exact(text.len());
    padded.extend_from_slice(text);
    let first = (before * 8).div_ceil(6);
    let last = padded.len() * 8 / 6;
    let core = |encoded: String| {
        let encoded = Zeroizing::new(encoded.into_bytes());
        Zeroizing::new(encoded.get(first..last).unwrap_or_default().to_vec())
    };
    (core(STANDARD_NO_PAD.encode(&*padded)), core(URL_SAFE_NO_PAD.encode(&*padded)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE};

    const TEXT: &[u8] = b"sk-a/b?c d\"e>f";

    #[test]
    fn every_way_to_write_a_text_is_found() {
        let patterns = Patterns::of([(7, TEXT)]);
        let in_base64 = |before: &str, after: &str| {
            STANDARD.encode([before.as_bytes(), TEXT, after.as_bytes()].concat())
        };
        for text in [
            String::from_utf8(TEXT.to_vec()).unwrap(),
            "x=sk-a%2Fb%3Fc%20d%22e%3Ef&y".to_owned(),
            "x=sk-a%2fb%3fc%20d%22e%3ef&y".to_owned(),
            r#"{"x": "sk-a/b?c d\"e>f"}"#.to_owned(),
            in_base64("", ""),
            in_base64("u:", ""),
            in_base64("us:", "x"),
            in_base64("user:", "xy"),
            URL_SAFE.encode([b"user:", TEXT].concat()),
        ] {
            assert_eq!(patterns.find(text.as_bytes(), 0).map(|found| found.of), Some(7), "{text}");
        }
        assert_eq!(patterns.find(b"sk-a/b?c d\"e<f", 0), None);
        assert!(Patterns::of([(0, &b""[..])]).is_empty());
    }

    #[test]
    fn a_text_is_found_however_the_stream_is_cut() {
        let patterns = Patterns::of([(1, TEXT)]);
        let stream = [b"...", TEXT, b"..."].concat();
        for size in 1..stream.len() {
            let mut watch = Watch::default();
            let found = stream.chunks(size).find_map(|piece| watch.find(&patterns, piece));
            assert_eq!(found, Some(1), "{size}");
        }
        let mut watch = Watch::default();
        assert_eq!(watch.find(&patterns, &TEXT[..5]), None);
        assert_eq!(watch.find(&patterns, b"?"), None);
        assert_eq!(watch.find(&patterns, &TEXT[5..]), None);
    }
}
