//! The chain of the event log: each line carries a hash of itself and of all before it.
//!
//! `hash = SHA-256(hash of the line before, in hex · "\n" · the line without its member chain)`, where
//! `chain` is always the last member: the line without it is what comes before `,"chain":`, and `}`.
//! Before the first line of a chain comes a hash of zeros. The first line of a file that was begun
//! because another was full says what comes before it in `after`, so that it can be checked alone. There
//! is no secret in this: who can write all of it anew, can; see `docs/audit.md`.

use crate::record::Event;
use msb_spec::{Error, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;

/// A hash of a line and of all before it, as 64 letters of hex.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[0-9a-f]{64}$")))]
#[serde(try_from = "String", into = "String")]
pub struct Link(String);

impl Link {
    /// What comes before the first line.
    pub fn first() -> Self {
        Self("0".repeat(LENGTH))
    }

    /// Checks and takes a hash.
    pub fn parse(text: &str) -> Result<Self> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        match text.len() == LENGTH && text.bytes().all(hex) {
            true => Ok(Self(text.to_owned())),
            false => Err(Error::invalid("a hash has 64 letters of hex")),
        }
    }

    /// The hash of a line that comes after this one; `content` is the line without its hash.
    pub fn next(&self, content: &[u8]) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(self.0.as_bytes());
        hasher.update(b"\n");
        hasher.update(content);
        let mut text = String::with_capacity(LENGTH);
        for byte in hasher.finalize() {
            for half in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(half), 16).expect("it is below 16"));
            }
        }
        Self(text)
    }
}

const LENGTH: usize = 64;
/// Before the hash, at the end of a line.
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

/// Where a log ends: what a line that is removed from its end is noticed by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Head {
    /// The number of the last event; zero if there is none.
    pub number: u64,
    /// Its hash; none if it was written without one.
    pub chain: Option<Link>,
}

impl Head {
    /// Before anything has happened.
    pub fn first() -> Self {
        Self { number: 0, chain: Some(Link::first()) }
    }

    /// Adds the next event to the lines of a log; `begins` if it is the first of a file.
    pub fn append(&mut self, mut event: Event, begins: bool, lines: &mut Vec<u8>) {
        let before = self.chain.clone().unwrap_or_else(Link::first);
        // Only what is not obvious is said: the very first comes after nothing.
        let unclear = self.chain.is_none() || begins;
        event.after = (unclear && event.number > 1).then(|| before.clone());
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

/// Numbers have at most so many digits; a shorter line would leave something of a longer one.
const HEAD_FILE: usize = 160;

impl Head {
    /// As it is kept in a file of its own, always as long, with the pid of the worker that writes.
    pub fn kept(&self, worker: Option<u32>) -> String {
        let Self { number, chain } = self;
        let written = Kept { number: *number, chain: chain.clone(), worker };
        let text = serde_json::to_string(&written).expect("our own types always serialise");
        format!("{text:<HEAD_FILE$}\n")
    }

    /// What such a file says, and whose it is.
    pub fn of_file(text: &str) -> Option<(Self, Option<u32>)> {
        let Kept { number, chain, worker } = serde_json::from_str(text.trim_end()).ok()?;
        Some((Self { number, chain }, worker))
    }
}

#[derive(Serialize, Deserialize)]
struct Kept {
    number: u64,
    chain: Option<Link>,
    worker: Option<u32>,
}

/// A line apart: what was hashed, and the hash it says it has; none if it has no hash.
pub fn unchained(line: &[u8]) -> Option<(Vec<u8>, Link)> {
    let body = line.strip_suffix(b"\"}")?;
    let at = body.len().checked_sub(LENGTH)?;
    let link = Link::parse(str::from_utf8(&body[at..]).ok()?).ok()?;
    let content = body[..at].strip_suffix(MEMBER.as_bytes())?;
    Some(([content, b"}"].concat(), link))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Happened;

    #[test]
    fn a_line_can_be_checked_with_what_is_before_it() {
        let (mut head, mut lines) = (Head::first(), Vec::new());
        for number in 1..=3 {
            head.append(Event::new(number, 5, Happened::Created), number == 3, &mut lines);
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
    fn what_has_no_hash_at_its_end_has_none() {
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
