//! The hash chain of the event log: each line carries a hash of itself and of all lines before it.
//!
//! `hash = SHA-256(hash of the previous line, in hex · "\n" · the line without its member chain)`.
//! `chain` is always the last member: the line without it is what precedes `,"chain":`, and `}`.
//! The hash before the first line of a chain is all zeros. The first line of a rotated file repeats
//! the previous hash in `after`, so that the file can be verified alone. The chain is not signed: a
//! writer that can replace the whole log can forge it; see `docs/audit.md`.

use crate::record::Event;
use msb_spec::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// SHA-256 hash of a line and of all before it: 64 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[0-9a-f]{64}$")))]
#[serde(try_from = "String", into = "String")]
pub struct Link(String);

impl Link {
    /// The hash before the first line: all zeros.
    pub fn first() -> Self {
        Self("0".repeat(HEX_LENGTH))
    }

    /// Parses 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Result<Self> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        match text.len() == HEX_LENGTH && text.bytes().all(hex) {
            true => Ok(Self(text.to_owned())),
            false => Err(Error::invalid("a hash has 64 hexadecimal digits, in lower case")),
        }
    }

    /// Hash of the line that follows this one; `content` is the line without its hash.
    pub fn next(&self, content: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0.as_bytes());
        hasher.update(b"\n");
        hasher.update(content);
        let mut text = String::with_capacity(HEX_LENGTH);
        for byte in hasher.finalize() {
            for half in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(half), 16).expect("it is below 16"));
            }
        }
        Self(text)
    }
}

/// Hexadecimal digits of a SHA-256 hash.
const HEX_LENGTH: usize = 64;
/// JSON that precedes the hash at the end of a line.
const MEMBER: &str = ",\"chain\":\"";

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Link {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<Link> for String {
    fn from(link: Link) -> Self {
        link.0
    }
}

/// The end of a log: number and hash of the last event. Shows that lines were removed there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Head {
    /// Number of the last event; 0 if there is none.
    pub number: u64,
    /// Hash of the last event; `None` if it was written without one.
    pub chain: Option<Link>,
}

impl Head {
    /// The head of an empty log.
    pub fn first() -> Self {
        Self { number: 0, chain: Some(Link::first()) }
    }

    /// Appends the next event as a line; `begins` if it is the first line of a file.
    pub fn append(&mut self, mut event: Event, begins: bool, lines: &mut Vec<u8>) {
        let before = self.chain.clone().unwrap_or_else(Link::first);
        // The first event of all has no predecessor; elsewhere `after` is needed only at the start
        // of a file or of a chain.
        let needs_after = self.chain.is_none() || begins;
        event.after = (needs_after && event.number > 1).then(|| before.clone());
        event.chain = None;
        let content = serde_json::to_vec(&event).expect("our own types always serialise");
        let chain = before.next(&content);
        lines.extend_from_slice(&content[..content.len() - 1]);
        lines.extend_from_slice(MEMBER.as_bytes());
        lines.extend_from_slice(chain.0.as_bytes());
        lines.extend_from_slice(b"\"}\n");
        *self = Self { number: event.number, chain: Some(chain) };
    }
}

/// Width of the head file in bytes, enough for the longest number. A fixed width: a shorter record
/// written over a longer one would leave bytes of it behind.
const HEAD_FILE_WIDTH: usize = 160;

impl Head {
    /// Content of the head file: always of the same length, with the pid of the worker that writes.
    pub fn kept(&self, worker: Option<u32>) -> String {
        let Self { number, chain } = self;
        let written = HeadRecord { number: *number, chain: chain.clone(), worker };
        let text = serde_json::to_string(&written).expect("our own types always serialise");
        format!("{text:<HEAD_FILE_WIDTH$}\n")
    }

    /// Parses a head file; also returns the pid of the worker that wrote it.
    pub fn of_file(text: &str) -> Option<(Self, Option<u32>)> {
        let HeadRecord { number, chain, worker } = serde_json::from_str(text.trim_end()).ok()?;
        Some((Self { number, chain }, worker))
    }
}

#[derive(Serialize, Deserialize)]
struct HeadRecord {
    number: u64,
    chain: Option<Link>,
    worker: Option<u32>,
}

/// Splits a line into the hashed content and its hash; `None` if it has no hash.
pub fn unchained(line: &[u8]) -> Option<(Vec<u8>, Link)> {
    let body = line.strip_suffix(b"\"}")?;
    let at = body.len().checked_sub(HEX_LENGTH)?;
    let link = Link::parse(str::from_utf8(&body[at..]).ok()?).ok()?;
    let content = body[..at].strip_suffix(MEMBER.as_bytes())?;
    Some(([content, b"}"].concat(), link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::EventKind;

    #[test]
    fn each_line_is_checked_against_the_hash_before_it() {
        let (mut head, mut lines) = (Head::first(), Vec::new());
        for number in 1..=3 {
            head.append(Event::new(number, 5, EventKind::Created), number == 3, &mut lines);
        }
        let text = String::from_utf8(lines).unwrap();
        let mut link = Link::first();
        for line in text.lines() {
            let (content, chain) = unchained(line.as_bytes()).unwrap();
            let event: Event = serde_json::from_str(line).unwrap();
            assert_eq!(event.chain.as_ref(), Some(&chain));
            assert_eq!(event.after.is_some(), event.number == 3);
            assert!(event.after.is_none_or(|after| after == link));
            link = link.next(&content);
            assert_eq!(link, chain);
        }
        assert_eq!(head, Head { number: 3, chain: Some(link) });
        // As `printf '%064d\n{"number":1,"time":5,"event":"created"}' 0 | sha256sum` has it.
        let first = "b28c9eef28ce4c27500b0464364ce745b1f60b4daab6c5a770ea19f5dd11c552";
        assert!(text.starts_with(&format!(
            "{{\"number\":1,\"time\":5,\"event\":\"created\",\"chain\":\"{first}\"}}\n"
        )));
    }

    #[test]
    fn a_line_without_a_hash_at_its_end_has_none() {
        let hash = "a".repeat(64);
        for line in [
            String::new(),
            "{}".to_owned(),
            format!("{{\"chain\":\"{hash}\"}}x"),
            format!("{{\"a\":1,\"chain\":\"{}\"}}", "A".repeat(64)),
            format!("{{\"a\":1,\"chain\":\"{}\"}}", "a".repeat(63)),
        ] {
            assert_eq!(unchained(line.as_bytes()), None, "{line}");
        }
        let (content, _) =
            unchained(format!("{{\"a\":1,\"chain\":\"{hash}\"}}").as_bytes()).unwrap();
        assert_eq!(content, b"{\"a\":1}");
    }
}
