//! Text encodings of file contents.

use msb_spec::{Error, Result};

/// An encoding that clients can name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextEncoding {
    Utf8,
    Ascii,
    Latin1,
    /// With a byte order mark; little endian without one.
    Utf16,
    Utf16Little,
    Utf16Big,
    /// For files that are not text.
    Base64,
}

impl TextEncoding {
    /// Parses a name or alias of Python's codecs.
    pub(super) fn parse(name: &str) -> Result<Self> {
        let plain = name.trim().to_ascii_lowercase().replace(['_', ' '], "-");
        Ok(match plain.as_str() {
            "utf-8" | "utf8" | "u8" => Self::Utf8,
            "ascii" | "us-ascii" | "646" => Self::Ascii,
            "latin-1" | "latin1" | "iso-8859-1" | "iso8859-1" | "l1" => Self::Latin1,
            "utf-16" | "utf16" => Self::Utf16,
            "utf-16-le" | "utf-16le" => Self::Utf16Little,
            "utf-16-be" | "utf-16be" => Self::Utf16Big,
            "base64" => Self::Base64,
            _ => {
                let shown = msb_spec::shown(name);
                return Err(super::argument_error(
                    "encoding",
                    format!("unknown encoding: `{shown}`"),
                )
                .hint("it is utf-8, ascii, latin-1, utf-16, utf-16-le, utf-16-be or base64"));
            }
        })
    }

    /// Decodes bytes. In a part of a file, characters that are cut at its ends are replaced.
    pub(super) fn decode(self, bytes: &[u8], part: bool) -> Result<String> {
        let no_text = |name: &str| {
            Error::invalid(format!("the file is not {name}"))
                .hint("read it with the encoding `base64`, or another")
        };
        match self {
            Self::Utf8 if part => Ok(String::from_utf8_lossy(bytes).into_owned()),
            Self::Utf8 => String::from_utf8(bytes.to_vec()).map_err(|_| no_text("UTF-8")),
            Self::Ascii if bytes.is_ascii() => Ok(bytes.iter().copied().map(char::from).collect()),
            Self::Ascii => Err(no_text("ASCII")),
            Self::Latin1 => Ok(bytes.iter().copied().map(char::from).collect()),
            Self::Utf16 => match bytes {
                [0xfe, 0xff, rest @ ..] => Self::Utf16Big.decode(rest, part),
                [0xff, 0xfe, rest @ ..] => Self::Utf16Little.decode(rest, part),
                _ => Self::Utf16Little.decode(bytes, part),
            },
            Self::Utf16Little | Self::Utf16Big => {
                let unit = |pair: &[u8]| {
                    let pair = [pair[0], pair[1]];
                    match self {
                        Self::Utf16Big => u16::from_be_bytes(pair),
                        _ => u16::from_le_bytes(pair),
                    }
                };
                let units: Vec<u16> = bytes.chunks_exact(2).map(unit).collect();
                match String::from_utf16(&units) {
                    _ if part => Ok(String::from_utf16_lossy(&units)),
                    Ok(text) if bytes.len().is_multiple_of(2) => Ok(text),
                    _ => Err(no_text("UTF-16")),
                }
            }
            Self::Base64 => Ok(base64::Engine::encode(&STANDARD, bytes)),
        }
    }

    /// Encodes text to bytes.
    pub(super) fn encode(self, text: &str) -> Result<Vec<u8>> {
        let cannot = |name: &str| {
            super::argument_error("content", format!("it has characters that {name} does not have"))
                .hint("use another encoding, such as utf-8")
        };
        let with = |bytes: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(bytes).collect();
        match self {
            Self::Utf8 => Ok(text.as_bytes().to_vec()),
            Self::Ascii if text.is_ascii() => Ok(text.as_bytes().to_vec()),
            Self::Ascii => Err(cannot("ASCII")),
            Self::Latin1 => text
                .chars()
                .map(|letter| u8::try_from(u32::from(letter)))
                .collect::<Result<_, _>>()
                .map_err(|_| cannot("Latin-1")),
            Self::Utf16 => {
                let mut bytes = vec![0xff, 0xfe];
                bytes.extend(Self::Utf16Little.encode(text)?);
                Ok(bytes)
            }
            Self::Utf16Little => Ok(with(u16::to_le_bytes)),
            Self::Utf16Big => Ok(with(u16::to_be_bytes)),
            Self::Base64 => {
                let plain: String = text.split_ascii_whitespace().collect();
                base64::Engine::decode(&STANDARD, plain).map_err(|error| {
                    super::argument_error("content", "it is not base64").cause(error)
                })
            }
        }
    }
}

use base64::engine::general_purpose::STANDARD;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_comes_back_as_it_went() {
        for (name, text) in [
            ("utf-8", "grün ☃"),
            ("ASCII", "plain"),
            ("latin_1", "grün"),
            ("utf-16", "grün ☃ 𝄞"),
            ("UTF-16-BE", "☃𝄞"),
            ("utf-16le", "☃"),
            ("base64", "AP8Q"),
        ] {
            let encoding = TextEncoding::parse(name).unwrap();
            let bytes = encoding.encode(text).unwrap();
            assert_eq!(encoding.decode(&bytes, false).unwrap(), text, "{name}");
        }
        assert_eq!(TextEncoding::Base64.encode("AP8Q").unwrap(), [0, 0xff, 0x10]);
        assert_eq!(TextEncoding::Utf16.decode(&[0xfe, 0xff, 0, b'a'], false).unwrap(), "a");
    }

    #[test]
    fn unencodable_text_is_an_error_that_names_the_argument() {
        assert!(TextEncoding::parse("klingon").unwrap_err().message().contains("`encoding`"));
        for (encoding, text) in
            [(TextEncoding::Ascii, "ü"), (TextEncoding::Latin1, "☃"), (TextEncoding::Base64, "!")]
        {
            assert!(encoding.encode(text).unwrap_err().message().contains("`content`"));
        }
        for (encoding, bytes) in [
            (TextEncoding::Utf8, &[0xff][..]),
            (TextEncoding::Ascii, &[0x80]),
            (TextEncoding::Utf16Big, &[0]),
        ] {
            assert!(encoding.decode(bytes, false).is_err(), "{encoding:?}");
        }
    }

    #[test]
    fn a_part_may_cut_letters() {
        assert_eq!(TextEncoding::Utf8.decode(&"ä".as_bytes()[..1], true).unwrap(), "\u{fffd}");
        assert_eq!(TextEncoding::Utf16Little.decode(&[b'a', 0, b'b'], true).unwrap(), "a");
    }
}
