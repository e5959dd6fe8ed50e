//! Searches for texts in their encodings: plain, percent-encoded, JSON-escaped and base64.
//!
//! It is for placeholders, which are not secret: the time of a search depends on the text. Values
//! are searched for by `value_search`.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

/// A shorter base64 form occurs in unrelated data.
const MIN_BASE64_LEN: usize = 8;

/// A set of texts that are searched for together.
#[derive(Default)]
pub(crate) struct PatternSet {
    patterns: Vec<SearchPattern>,
    /// The bytes that a pattern can start with, to skip all others quickly.
    first_bytes: Vec<bool>,
    longest: usize,
}

struct SearchPattern {
    /// The index of the text in the caller's list.
    owner: usize,
    bytes: Zeroizing<Vec<u8>>,
}

impl std::fmt::Debug for PatternSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The patterns are long and of no use in output.
        f.write_str("PatternSet")
    }
}

/// A match of a pattern: its owner and byte range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PatternMatch {
    pub(crate) owner: usize,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl PatternSet {
    /// All encodings of each numbered text. Empty texts are ignored.
    pub(crate) fn encoded<'a>(texts: impl IntoIterator<Item = (usize, &'a [u8])>) -> Self {
        Self::new(texts.into_iter().flat_map(|(owner, text)| {
            encoded_forms(text).into_iter().map(move |bytes| SearchPattern { owner, bytes })
        }))
    }

    /// Each text plain and percent-encoded as a whole.
    pub(crate) fn plain<'a>(texts: impl IntoIterator<Item = (usize, &'a [u8])>) -> Self {
        Self::new(texts.into_iter().flat_map(|(owner, text)| {
            plain_forms(text).into_iter().map(move |bytes| SearchPattern { owner, bytes })
        }))
    }

    fn new(patterns: impl Iterator<Item = SearchPattern>) -> Self {
        let mut patterns: Vec<_> = patterns.filter(|pattern| !pattern.bytes.is_empty()).collect();
        // The longest match wins.
        patterns.sort_by_key(|pattern| std::cmp::Reverse(pattern.bytes.len()));
        let mut first_bytes = vec![false; 256];
        for pattern in &patterns {
            first_bytes[usize::from(pattern.bytes[0])] = true;
        }
        let longest = patterns.first().map_or(0, |pattern| pattern.bytes.len());
        Self { patterns, first_bytes, longest }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The length of the longest pattern in bytes; zero if there are none.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// The first match in `bytes` at offset `from` or later.
    pub(crate) fn find(&self, bytes: &[u8], from: usize) -> Option<PatternMatch> {
        if self.is_empty() {
            return None;
        }
        let mut start = from;
        loop {
            let rest = bytes.get(start..)?;
            start += rest.iter().position(|byte| self.first_bytes[usize::from(*byte)])?;
            let fits = |pattern: &&SearchPattern| bytes[start..].starts_with(&pattern.bytes);
            if let Some(pattern) = self.patterns.iter().find(fits) {
                return Some(PatternMatch {
                    owner: pattern.owner,
                    start,
                    end: start + pattern.bytes.len(),
                });
            }
            start += 1;
        }
    }
}

/// Searches a stream for patterns, chunk by chunk.
#[derive(Default)]
pub(crate) struct StreamSearch {
    /// The tail of the previous chunks in which a pattern could have begun.
    tail: Vec<u8>,
}

impl StreamSearch {
    /// The owner of a pattern that this chunk completes.
    pub(crate) fn find(&mut self, patterns: &PatternSet, piece: &[u8]) -> Option<usize> {
        let keep = patterns.longest().saturating_sub(1);
        let head = &piece[..piece.len().min(keep)];
        let before = self.tail.len();
        self.tail.extend_from_slice(head);
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
        found.map(|found| found.owner)
    }
}

fn plain_forms(text: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let upper = percent_encoded(text);
    let lower = lower_case_escapes(&upper);
    distinct([Zeroizing::new(text.to_vec()), upper, lower])
}

fn encoded_forms(text: &[u8]) -> Vec<Zeroizing<Vec<u8>>> {
    let mut all = plain_forms(text);
    all.push(json_escaped(text));
    for before in 0..3 {
        let (core, url) = base64_core(text, before);
        if core.len() >= MIN_BASE64_LEN {
            all.extend([core, url]);
        }
    }
    distinct(all)
}

fn distinct(all: impl IntoIterator<Item = Zeroizing<Vec<u8>>>) -> Vec<Zeroizing<Vec<u8>>> {
    let mut unique: Vec<Zeroizing<Vec<u8>>> = Vec::new();
    for bytes in all {
        if !unique.contains(&bytes) {
            unique.push(bytes);
        }
    }
    unique
}

/// Percent-encodes everything but letters, digits and `-._~`.
pub(crate) fn percent_encoded(text: &[u8]) -> Zeroizing<Vec<u8>> {
    // As long as it can get, so that no copy is left by a reallocation.
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() * 3));
    msb_spec::encoding::percent_encode_into(text, &mut bytes);
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

/// Escapes a text for the inside of a JSON string.
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

/// The base64 characters that `text` alone determines, if `before` bytes (modulo three) stand
/// before it and any bytes after; in both alphabets.
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
    fn every_encoding_of_a_text_is_found() {
        let patterns = PatternSet::encoded([(7, TEXT)]);
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
            assert_eq!(
                patterns.find(text.as_bytes(), 0).map(|found| found.owner),
                Some(7),
                "{text}"
            );
        }
        assert_eq!(patterns.find(b"sk-a/b?c d\"e<f", 0), None);
        assert!(PatternSet::encoded([(0, &b""[..])]).is_empty());
    }

    #[test]
    fn a_text_is_found_in_any_chunking() {
        let patterns = PatternSet::encoded([(1, TEXT)]);
        let stream = [b"...", TEXT, b"..."].concat();
        for size in 1..stream.len() {
            let mut watch = StreamSearch::default();
            let found = stream.chunks(size).find_map(|piece| watch.find(&patterns, piece));
            assert_eq!(found, Some(1), "{size}");
        }
        let mut watch = StreamSearch::default();
        assert_eq!(watch.find(&patterns, &TEXT[..5]), None);
        assert_eq!(watch.find(&patterns, b"?"), None);
        assert_eq!(watch.find(&patterns, &TEXT[5..]), None);
    }
}
