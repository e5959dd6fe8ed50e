//! Bytes as text: hexadecimal digits and percent-encoding (RFC 3986).

/// Two lower-case hexadecimal digits for each byte.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    let digit = |nibble: u8| char::from(b"0123456789abcdef"[usize::from(nibble)]);
    bytes.as_ref().iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Percent-encodes everything but letters, digits and `-._~`, with upper-case digits.
pub fn percent_encode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    percent_encode_into(text.as_bytes(), &mut bytes);
    String::from_utf8(bytes).expect("the encoding is ASCII")
}

/// Appends the encoding of [`percent_encode`]: at most three bytes for each one.
pub fn percent_encode_into(text: &[u8], encoded: &mut Vec<u8>) {
    let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble)];
    for byte in text {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(byte) {
            true => encoded.push(*byte),
            false => encoded.extend([b'%', digit(byte >> 4), digit(byte & 15)]),
        }
    }
}

/// Decodes `%XX`; `None` if a `%` has no two digits after it, or if the result is not UTF-8.
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let incomplete = percent_decode_into(text.as_bytes(), &mut bytes);
    if incomplete { None } else { String::from_utf8(bytes).ok() }
}

/// Appends the decoded bytes, at most as many as there are. A `%` without two digits stays as it is;
/// returns whether there was one.
pub fn percent_decode_into(text: &[u8], decoded: &mut Vec<u8>) -> bool {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let mut incomplete = false;
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let pair = match (first, after) {
            (b'%', [high, low, ..]) => digit(high).zip(digit(low)),
            _ => None,
        };
        incomplete |= *first == b'%' && pair.is_none();
        decoded.push(pair.map_or(*first, |(high, low)| high << 4 | low));
        rest = if pair.is_some() { &after[2..] } else { after };
    }
    incomplete
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_two_digits_each() {
        assert_eq!(hex([0, 9, 0xab, 0xff]), "0009abff");
        assert_eq!(hex([]), "");
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(percent_encode("a b/ä-._~%"), "a%20b%2F%C3%A4-._~%25");
        for text in ["", "a b/ä-._~%", "%25", "\0\n"] {
            assert_eq!(percent_decode(&percent_encode(text)).as_deref(), Some(text));
        }
        assert_eq!(percent_decode("%c3%A4+").as_deref(), Some("ä+"));
        for bad in ["%", "%2", "%zz", "%+1", "a%", "%ff"] {
            assert_eq!(percent_decode(bad), None, "{bad}");
        }
        let mut decoded = Vec::new();
        assert!(percent_decode_into(b"%41%zz%2", &mut decoded));
        assert_eq!(decoded, b"A%zz%2");
    }
}
