//! Decodes the escapes of URLs, JSON, JavaScript and HTML, and keeps where each byte came from.
//!
//! All kinds are decoded at once: the reader of the bytes is not known here, and decoding too much
//! can only find a text too often.

use std::ops::Range;
use zeroize::Zeroizing;

/// Bytes with one more level of escapes decoded.
pub(crate) struct UnescapedBytes {
    bytes: Zeroizing<Vec<u8>>,
    /// The range in the source that each byte comes from.
    spans: Vec<(usize, usize)>,
}

impl UnescapedBytes {
    /// Decodes one level of escapes; `None` if there are none.
    pub(crate) fn of(source: &[u8]) -> Option<Self> {
        Self::decode(source, |at| (at, at + 1))
    }

    /// Decodes the next level of escapes; `None` if there are none.
    pub(crate) fn decode_again(&self) -> Option<Self> {
        Self::decode(&self.bytes, |at| self.spans[at])
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Maps a non-empty range of the bytes to the source.
    pub(crate) fn source(&self, range: Range<usize>) -> Range<usize> {
        self.spans[range.start].0..self.spans[range.end - 1].1
    }

    fn decode(source: &[u8], span: impl Fn(usize) -> (usize, usize)) -> Option<Self> {
        let first = (0..source.len()).find(|at| parse_escape(&source[*at..]).is_some())?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(source.len()));
        bytes.extend_from_slice(&source[..first]);
        let mut spans: Vec<_> = (0..first).map(&span).collect();
        let mut at = first;
        while at < source.len() {
            let (length, char) =
                parse_escape(&source[at..]).unwrap_or((1, EscapedChar::Byte(source[at])));
            let place = (span(at).0, span(at + length - 1).1);
            let before = bytes.len();
            match char {
                EscapedChar::Byte(byte) => bytes.push(byte),
                EscapedChar::Char(character) => {
                    bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
            spans.extend(std::iter::repeat_n(place, bytes.len() - before));
            at += length;
        }
        Some(Self { bytes, spans })
    }
}

/// The byte or character that an escape stands for.
enum EscapedChar {
    Byte(u8),
    Char(char),
}

/// Parses the escape at the start of `bytes`, with its length.
fn parse_escape(bytes: &[u8]) -> Option<(usize, EscapedChar)> {
    match bytes.first()? {
        b'%' => {
            let byte = u8::try_from(number(bytes.get(1..3)?, 16)?).ok()?;
            Some((3, EscapedChar::Byte(byte)))
        }
        b'\\' => parse_backslash(bytes),
        b'&' => parse_entity(bytes),
        _ => None,
    }
}

fn parse_backslash(bytes: &[u8]) -> Option<(usize, EscapedChar)> {
    let byte = |byte| Some((2, EscapedChar::Byte(byte)));
    match bytes.get(1)? {
        own @ (b'"' | b'\\' | b'/' | b'\'') => byte(*own),
        b'b' => byte(8),
        b'f' => byte(12),
        b'n' => byte(b'\n'),
        b'r' => byte(b'\r'),
        b't' => byte(b'\t'),
        b'x' => {
            let value = u8::try_from(number(bytes.get(2..4)?, 16)?).ok()?;
            Some((4, EscapedChar::Byte(value)))
        }
        b'u' => {
            let first = number(bytes.get(2..6)?, 16)?;
            if let Some(character) = char::from_u32(first) {
                return Some((6, EscapedChar::Char(character)));
            }
            // The first half of a UTF-16 surrogate pair.
            let second = bytes.get(6..12).filter(|next| next.starts_with(b"\\u"))?;
            let pair = [first, number(&second[2..], 16)?].map(|half| half as u16);
            let character = char::decode_utf16(pair).next()?.ok()?;
            Some((12, EscapedChar::Char(character)))
        }
        _ => None,
    }
}

fn parse_entity(bytes: &[u8]) -> Option<(usize, EscapedChar)> {
    /// The longest entity in bytes, as `&#1114111;`.
    const MAX_ENTITY_LEN: usize = 12;
    let end = bytes.iter().take(MAX_ENTITY_LEN).position(|byte| *byte == b';')?;
    let character = match &bytes[1..end] {
        b"amp" => '&',
        b"lt" => '<',
        b"gt" => '>',
        b"quot" => '"',
        b"apos" => '\'',
        [b'#', b'x' | b'X', digits @ ..] => char::from_u32(number(digits, 16)?)?,
        [b'#', digits @ ..] => char::from_u32(number(digits, 10)?)?,
        _ => return None,
    };
    Some((end + 1, EscapedChar::Char(character)))
}

fn number(digits: &[u8], radix: u32) -> Option<u32> {
    let digit = |byte: &u8| char::from(*byte).to_digit(radix);
    let mut whole = None;
    for byte in digits {
        whole = Some(whole.unwrap_or(0_u32).checked_mul(radix)?.checked_add(digit(byte)?)?);
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_keep_their_source_range() {
        for (source, wanted) in [
            ("a%2Fb", "a/b"),
            ("\\/\\u002b\\x41", "/+A"),
            ("&lt;&#47;&#x2f;&amp;lt;", "<//&lt;"),
            ("\\ud83d\\ude00!", "\u{1f600}!"),
            ("%%41\\q&x; &#; \\\\n", "%A\\q&x; &#; \\n"),
        ] {
            let decoded = UnescapedBytes::of(source.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(decoded.bytes()), wanted);
            assert_eq!(decoded.source(0..decoded.bytes().len()), 0..source.len());
        }
        let twice = UnescapedBytes::of(b"x%255cn").unwrap().decode_again().unwrap();
        assert_eq!((twice.bytes(), twice.source(1..3)), (&b"x\\n"[..], 1..7));
        for plain in ["", "%", "%2", "%zz", "\\", "\\u00", "\\ud800", "&", "&#1234567890123;"] {
            assert!(UnescapedBytes::of(plain.as_bytes()).is_none(), "{plain}");
        }
    }
}
