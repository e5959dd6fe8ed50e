//! Namespaces: whose sandboxes, volumes and snapshots are whose.
//!
//! In the state directory there is one list of names. What belongs to a namespace is called
//! `NAMESPACE--NAME` there; what belongs to `default` bears its own name, so that the CLI and
//! clients of the server see the same. A namespace has no `--` in it and no `-` at its end, so the
//! first `--` of a name is where its namespace ends: two namespaces never mean the same name.

use msb_spec::{Error, Name, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Between a namespace and a name.
const SEPARATOR: &str = "--";
/// The one whose names are not changed.
pub(crate) const DEFAULT: &str = "default";

/// A namespace: 1 to 63 of `A-Z a-z 0-9 _ -`, from a letter or digit to a letter, digit or `_`, and
/// no `--` in between.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(String);

impl Namespace {
    /// Longest, as for a sandbox of the old server; both fit into a [`Name`].
    pub const MAX: usize = 63;

    /// Checks and takes a namespace.
    pub fn parse(text: &str) -> Result<Self> {
        let well = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
            && text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && text.len() <= Self::MAX
            && !text.contains(SEPARATOR)
            && !text.ends_with('-');
        if well {
            return Ok(Self(text.to_owned()));
        }
        let beginning: String = text.chars().take(60).collect();
        Err(Error::invalid(format!("not a namespace: `{}`", msb_spec::shown(&beginning))).hint(
            "a namespace has 1 to 63 of A-Z a-z 0-9 _ -, starts with a letter or digit, does not \
             end with - and has no -- in it",
        ))
    }

    /// The one whose names are not changed.
    pub fn usual() -> Self {
        Self(DEFAULT.to_owned())
    }

    /// The namespace as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether its names are not changed.
    pub fn is_usual(&self) -> bool {
        self.0 == DEFAULT
    }

    /// The name in the state directory.
    pub(crate) fn inner(&self, name: &str) -> Result<Name> {
        if self.is_usual() {
            return match name.contains(SEPARATOR) {
                true => Err(Error::invalid(format!("not a sandbox name: `{name}`"))
                    .hint("`--` stands between a namespace and a name; leave it out")),
                false => Name::parse(name),
            };
        }
        // Checked alone: what follows the separator starts with a letter or digit.
        Name::parse(name)?;
        Name::parse(&format!("{}{SEPARATOR}{name}", self.0)).map_err(|_| {
            let room = Name::MAX - SEPARATOR.len() - self.0.len();
            Error::invalid(format!("the name is too long: `{name}`"))
                .hint(format!("in the namespace `{}` there is room for {room} letters", self.0))
        })
    }

    /// The name that its owner knows; none if it belongs to another.
    pub(crate) fn outer<'a>(&self, name: &'a str) -> Option<&'a str> {
        let (namespace, name) = split(name);
        (namespace == self.0).then_some(name)
    }
}

/// The namespace of a name in the state directory, and the name that its owner knows.
pub(crate) fn split(name: &str) -> (&str, &str) {
    match name.split_once(SEPARATOR) {
        Some((namespace, rest))
            if Namespace::parse(namespace).is_ok() && Name::parse(rest).is_ok() =>
        {
            (namespace, rest)
        }
        // Names of the CLI that only look like it, such as `a---b`.
        Some(_) => ("", name),
        None => (DEFAULT, name),
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Namespace {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<Namespace> for String {
    fn from(namespace: Namespace) -> Self {
        namespace.0
    }
}

/// Which namespaces somebody may use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Reaches {
    /// All.
    #[default]
    All,
    /// One.
    One(Namespace),
}

impl Reaches {
    /// Parses `*` or a namespace.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "*" => Ok(Self::All),
            one => Namespace::parse(one).map(Self::One),
        }
    }

    /// As it is written.
    pub fn as_str(&self) -> &str {
        match self {
            Self::All => "*",
            Self::One(namespace) => namespace.as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_namespaces_mean_the_same_name() {
        let namespaces = ["default", "a", "a-b", "a_", "A", "b", "0"];
        let names = ["a", "b", "a-b", "a--b", "b--a", "a.b", "default", "a-"];
        let mut seen = std::collections::BTreeMap::new();
        for text in namespaces {
            let namespace = Namespace::parse(text).unwrap();
            for name in names {
                let Ok(inner) = namespace.inner(name) else {
                    assert!(namespace.is_usual() && name.contains("--"), "{text} {name}");
                    continue;
                };
                assert_eq!(namespace.outer(inner.as_str()), Some(name), "{inner}");
                assert_eq!(split(inner.as_str()), (text, name));
                assert_eq!(seen.insert(inner.clone(), (text, name)), None, "{inner}");
                for other in namespaces.iter().filter(|other| **other != text) {
                    let other = Namespace::parse(other).unwrap();
                    assert_eq!(other.outer(inner.as_str()), None, "{other} {inner}");
                }
            }
        }
    }

    #[test]
    fn namespaces_that_could_be_misread_are_refused() {
        let long = "a".repeat(64);
        for bad in ["", "*", "a--b", "a-", "-a", "_a", "a.b", "a/b", "a b", "ä", "a\n", &long] {
            assert!(Namespace::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "..", "-x", "a/b", "--x"] {
            assert!(Namespace::parse("team").unwrap().inner(bad).is_err(), "{bad}");
        }
        let namespace = Namespace::parse(&"a".repeat(63)).unwrap();
        assert!(namespace.inner(&"b".repeat(63)).is_ok());
        assert!(namespace.inner(&"b".repeat(64)).is_err());
    }

    #[test]
    fn names_of_the_cli_that_look_like_it_belong_to_no_namespace() {
        for name in ["a.b--c", "a---b"] {
            assert_eq!(split(name), ("", name));
            assert_eq!(Namespace::usual().outer(name), None, "{name}");
            assert_eq!(Namespace::parse("a").unwrap().outer(name), None, "{name}");
        }
    }
}
