//! Bytes without the escapes of URLs, JSON, JavaScript and HTML, and where each of them stood.
//!
//! All kinds are undone at once: what a byte means to its reader is not known here, and a text that
//! is searched for behind them is only ever found too often.

use std::ops::Range;
use zeroize::Zeroizing;

/// Bytes without one level of escapes.
pub(crate) struct Unescaped {
    bytes: Zeroizing<Vec<u8>>,
    /// Where in the source each byte comes from.
    spans: Vec<(usize, usize)>,
}

impl Unescaped {
    /// Undoes one level of escapes; nothing if there are none.
    pub(crate) fn of(source: &[u8]) -> Option<Self> {
        Self::made(source, |at| (at, at + 1))
    }

    /// Undoes the next level.
    pub(crate) fn again(&self) -> Option<Self> {
        Self::made(&self.bytes, |at| self.spans[at])
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What a range of the bytes, which is not empty, is in the source.
    pub(crate) fn source(&self, range: Range<usize>) -> Range<usize> {
        self.spans[range.start].0..self.spans[range.end - 1].1
    }

    fn made(source: &[u8], span: impl Fn(usize) -> (usize, usize)) -> Option<Self> {
        let first = (0..source.len()).find(|at| read(&source[*at..]).is_some())?;
        let mut bytes = Zeroizing::new(Vec::with_capacity(source.len()));
        bytes.extend_from_slice(&source[..first]);
        let mut spans: Vec<_> = (0..first).map(&span).collect();
        let mut at = first;
        while at < source.len() {
            let (length, meant) = read(&source[at..]).unwrap_or((1, Meant::Byte(source[at])));
            let place = (span(at).0, span(at + length - 1).1);
            let before = bytes.len();
            match meant {
                Meant::Byte(byte) => bytes.push(byte),
                Meant::Letter(letter) => {
                    bytes.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
            spans.extend(std::iter::repeat_n(place, bytes.len() - before));
            at += length;
        }
        Some(Self { bytes, spans })
    }
}

/// What an escape stands for.
enum Meant {
    Byte(u8),
    Letter(char),
}

/// The escape that `bytes` begin with, and its length.
fn read(bytes: &[u8]) -> Option<(usize, Meant)> {
    match bytes.first()? {
        b'%' => {
            let byte = u8::try_from(number(bytes.get(1..3)?, 16)?).ok()?;
            Some((3, Meant::Byte(byte)))
        }
        b'\\' => read_backslash(bytes),
        b'&' => read_entity(bytes),
        _ => None,
    }
}

fn read_backslash(bytes: &[u8]) -> Option<(usize, Meant)> {
    let byte = |byte| Some((2, Meant::Byte(byte)));
    match bytes.get(1)? {
        own @ (b'"' | b'\\' | b'/' | b'\'') => byte(*own),
        b'b' => byte(8),
        b'f' => byte(12),
        b'n' => byte(b'\n'),
        b'r' => byte(b'\r'),
        b't' => byte(b'\t'),
        b'x' => {
            let value = u8::try_from(number(bytes.get(2..4)?, 16)?).ok()?;
            Some((4, Meant::Byte(value)))
        }
        b'u' => {
            let first = number(bytes.get(2..6)?, 16)?;
            if let Some(letter) = char::from_u32(first) {
                return Some((6, Meant::Letter(letter)));
            }
            // One half of a letter that UTF-16 writes in two.
            let second = bytes.get(6..12).filter(|next| next.starts_with(b"\\u"))?;
            let pair = [first, number(&second[2..], 16)?].map(|half| half as u16);
            let letter = char::decode_utf16(pair).next()?.ok()?;
            Some((12, Meant::Letter(letter)))
        }
        _ => None,
    }
}

fn read_entity(bytes: &[u8]) -> Option<(usize, Meant)> {
    /// `&#1114111;` has no more digits.
    const LONGEST: usize = 12;
    let end = bytes.iter().take(LONGEST).position(|byte| *byte == b';')?;
    let letter = match &bytes[1..end] {
        b"amp" => '&',
        b"lt" => '<',
        b"gt" => '>',
        b"quot" => '"',
        b"apos" => '\'',
        [b'#', b'x' | b'X', digits @ ..] => char::from_u32(number(digits, 16)?)?,
        [b'#', digits @ ..] => char::from_u32(number(digits, 10)?)?,
        _ => return None,
    };
    Some((end + 1, Meant::Letter(letter)))
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
    fn escapes_are_undone_and_keep_their_place() {
        for (source, wanted) in [
            ("a%2Fb", "a/b"),
            ("\\/\\u002b\\x41", "/+A"),
            ("&lt;&#47;&#x2f;&amp;lt;", "<//&lt;"),
            ("\\ud83d\\ude00!", "\u{1f600}!"),
            ("%%41\\q&x; &#; \\\\n", "%A\\q&x; &#; \\n"),
        ] {
            let view = Unescaped::of(source.as_bytes()).unwrap();
            assert_eq!(String::from_utf8_lossy(view.bytes()), wanted);
            assert_eq!(view.source(0..view.bytes().len()), 0..source.len());
        }
        let twice = Unescaped::of(b"x%255cn").unwrap().again().unwrap();
        assert_eq!((twice.bytes(), twice.source(1..3)), (&b"x\\n"[..], 1..7));
        for plain in ["", "%", "%2", "%zz", "\\", "\\u00", "\\ud800", "&", "&#1234567890123;"] {
            assert!(Unescaped::of(plain.as_bytes()).is_none(), "{plain}");
        }
    }
}
