//! Namespaces: which sandboxes, volumes and snapshots an API key can use.
//!
//! The state directory has one flat list of names. An object of a namespace is stored as
//! `NAMESPACE--NAME`. Objects of `default` are stored under their plain name, so the CLI and the
//! clients of the server see the same ones. A namespace contains no `--` and does not end with
//! `-`, so the first `--` of a stored name ends its namespace: the mapping is unambiguous.

use msb_spec::{Error, Name, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Separates a namespace from a name.
const SEPARATOR: &str = "--";
/// The namespace that is stored without a prefix.
pub(crate) const DEFAULT: &str = "default";

/// A namespace: 1 to 63 of `A-Z a-z 0-9 _ -`. It starts with a letter or digit, ends with a letter,
/// digit or `_`, and contains no `--`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace(String);

impl Namespace {
    /// Longest namespace in bytes, as for sandboxes of the old server; both fit into a [`Name`].
    pub const MAX: usize = 63;

    /// Parses and checks a namespace.
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
             end with - and contains no --",
        ))
    }

    /// The namespace `default`, which is stored without a prefix.
    pub fn default_namespace() -> Self {
        Self(DEFAULT.to_owned())
    }

    /// The namespace as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the namespace `default`.
    pub fn is_default(&self) -> bool {
        self.0 == DEFAULT
    }

    /// The stored name of a client's name.
    pub(crate) fn to_stored(&self, name: &str) -> Result<Name> {
        if self.is_default() {
            return match name.contains(SEPARATOR) {
                true => Err(Error::invalid(format!("not a sandbox name: `{name}`"))
                    .hint("`--` separates a namespace from a name; use a name without it")),
                false => Name::parse(name),
            };
        }
        // Checked alone: what follows the separator starts with a letter or digit.
        Name::parse(name)?;
        Name::parse(&format!("{}{SEPARATOR}{name}", self.0)).map_err(|_| {
            let room = Name::MAX - SEPARATOR.len() - self.0.len();
            Error::invalid(format!("the name is too long: `{name}`"))
                .hint(format!("in the namespace `{}` a name has at most {room} characters", self.0))
        })
    }

    /// The client's name of a stored name; none if it is in another namespace.
    pub(crate) fn to_visible<'a>(&self, name: &'a str) -> Option<&'a str> {
        let (namespace, name) = split(name);
        (namespace == self.0).then_some(name)
    }
}

/// Splits a stored name into its namespace and the name that clients see.
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

/// The namespaces that a caller may use.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Scope {
    /// All namespaces, under their stored names.
    #[default]
    All,
    /// One namespace, under the names of its clients.
    One(Namespace),
}

impl Scope {
    /// Parses `*` or the name of a namespace.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "*" => Ok(Self::All),
            one => Namespace::parse(one).map(Self::One),
        }
    }

    /// The scope as text: `*` or a namespace.
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
                let Ok(stored) = namespace.to_stored(name) else {
                    assert!(namespace.is_default() && name.contains("--"), "{text} {name}");
                    continue;
                };
                assert_eq!(namespace.to_visible(stored.as_str()), Some(name), "{stored}");
                assert_eq!(split(stored.as_str()), (text, name));
                assert_eq!(seen.insert(stored.clone(), (text, name)), None, "{stored}");
                for other in namespaces.iter().filter(|other| **other != text) {
                    let other = Namespace::parse(other).unwrap();
                    assert_eq!(other.to_visible(stored.as_str()), None, "{other} {stored}");
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
            assert!(Namespace::parse("team").unwrap().to_stored(bad).is_err(), "{bad}");
        }
        let namespace = Namespace::parse(&"a".repeat(63)).unwrap();
        assert!(namespace.to_stored(&"b".repeat(63)).is_ok());
        assert!(namespace.to_stored(&"b".repeat(64)).is_err());
    }

    #[test]
    fn names_of_the_cli_that_look_like_it_belong_to_no_namespace() {
        for name in ["a.b--c", "a---b"] {
            assert_eq!(split(name), ("", name));
            assert_eq!(Namespace::default_namespace().to_visible(name), None, "{name}");
            assert_eq!(Namespace::parse("a").unwrap().to_visible(name), None, "{name}");
        }
    }
}
