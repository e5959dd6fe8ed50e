//! Names of sandboxes and hosts, and suggestions for typing mistakes.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A sandbox's name: 1–128 bytes of `[A-Za-z0-9][A-Za-z0-9._-]*`.
///
/// It becomes a directory name, so it can never contain `/` or be `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")))]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    /// Longest name in bytes; a directory entry may have 255 and some files add a suffix.
    pub const MAX: usize = 128;

    /// Parses a name; fails with the rules as a hint.
    pub fn parse(text: &str) -> Result<Self> {
        let first = text.bytes().next();
        let start_is_valid = first.is_some_and(|b| b.is_ascii_alphanumeric());
        let rest_is_valid =
            text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if start_is_valid && rest_is_valid && text.len() <= Self::MAX {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(format!("not a sandbox name: `{}`", excerpt(text)))
            .hint("a name has 1 to 128 of A-Z a-z 0-9 . _ - and starts with a letter or digit"))
    }

    /// The name as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A host name inside the sandbox: at most 64 bytes, the kernel's limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Hostname(String);

impl Hostname {
    /// Parses a host name of 1 to 64 bytes.
    pub fn parse(text: &str) -> Result<Self> {
        let valid =
            text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'));
        if valid && !text.is_empty() && text.len() <= 64 && !text.starts_with('-') {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(format!("not a host name: `{}`", excerpt(text)))
            .hint("a host name has 1 to 64 of A-Z a-z 0-9 . _ -"))
    }

    /// Default host name of a sandbox: its name, cut to 64 bytes.
    pub fn of(name: &Name) -> Self {
        Self(name.as_str().chars().take(64).collect())
    }

    /// The host name as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

written_as_text!(Hostname, Name);

/// Whether a character moves the cursor, starts a line or changes the reading direction.
pub fn disturbs(c: char) -> bool {
    let turns = matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}');
    c.is_control() || turns
}

/// Escapes control and bidirectional characters, so that untrusted text is safe on a terminal.
pub fn shown(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if disturbs(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// First 60 characters of a refused name, escaped for a message.
fn excerpt(text: &str) -> String {
    shown(&text.chars().take(60).collect::<String>())
}

/// The candidate nearest to a mistyped name, if one is near enough to suggest.
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (wanted.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(wanted, candidate), candidate))
        .filter(|(d, _)| *d <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Edit distance: characters added, removed, replaced or swapped with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(row[j - 1] + 1).min(rows[i - 1][j] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_a_directory_are_refused() {
        let long = "a".repeat(129);
        for bad in ["", ".", "..", "../x", "a/b", "-x", "_x", "a b", "a\n", "ä", "a\0", &long] {
            assert!(Name::parse(bad).is_err(), "{bad:?}");
        }
        let longest = "a".repeat(128);
        for good in ["a", "0", "web-1", "a..b", "A_b.c-d", &longest] {
            assert_eq!(Name::parse(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn control_characters_in_a_refused_name_are_escaped() {
        let message = Name::parse("a\x1b[31m").unwrap_err().to_string();
        assert!(!message.contains('\x1b'), "{message}");
    }

    #[test]
    fn the_nearest_name_is_suggested_only_when_near() {
        assert_eq!(nearest("wbe", ["web", "db"]), Some("web"));
        assert_eq!(nearest("boxx", ["box", "boxer"]), Some("box"));
        assert_eq!(nearest("zebra", ["web", "db"]), None);
    }
}
