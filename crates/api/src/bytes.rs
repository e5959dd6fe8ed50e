//! Bytes of names and links as text, and back.
//!
//! A backslash is written twice, and a byte that is no UTF-8 as `\\xNN`: every name has a spelling,
//! and no two have the same.

use serde::{Deserialize, Deserializer, Serializer, de};

/// Writes bytes as text; what is not UTF-8 is escaped.
pub fn escape_bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            if letter == '\\' {
                text.push('\\');
            }
            text.push(letter);
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

/// The bytes that were escape_bytes so; none if nothing is.
pub fn unescape_bytes(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'\\', [b'\\', after @ ..]) => {
                bytes.push(b'\\');
                rest = after;
            }
            (b'\\', [b'x', high, low, after @ ..]) => {
                let digit = |byte: &u8| char::from(*byte).to_digit(16);
                let (high, low) = digit(high).zip(digit(low))?;
                bytes.push(u8::try_from(high * 16 + low).ok()?);
                rest = after;
            }
            (b'\\', _) => return None,
            (byte, _) => bytes.push(*byte),
        }
    }
    Some(bytes)
}

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&escape_bytes(bytes))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(from)?;
    unescape_bytes(&text).ok_or_else(|| de::Error::custom("a backslash is written twice"))
}
