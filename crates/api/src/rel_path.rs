//! A path below a workspace, as bytes, and its one spelling as text.

use crate::bytes::{escape_bytes, unescape_bytes};
use msb_spec::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};

/// A path below the root of a workspace: not empty, relative, without `.` and `..`.
///
/// As text a backslash is written twice, and a byte that is no UTF-8 as `\xNN`, so that every
/// name has a spelling and no two have the same.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct RelPath(Vec<u8>);

impl RelPath {
    /// Takes the text that [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || Error::invalid(format!("not a path below the workspace: `{text}`"));
        let bytes = unescape_bytes(text).ok_or_else(wrong)?;
        Self::from_path(Path::new(OsStr::from_bytes(&bytes))).ok_or_else(wrong)
    }

    /// A path as the host writes it; none if it is absolute, empty or leads up.
    pub fn from_path(path: &Path) -> Option<Self> {
        let mut bytes = Vec::new();
        for part in path.components() {
            match part {
                Component::Normal(name) => {
                    if !bytes.is_empty() {
                        bytes.push(b'/');
                    }
                    bytes.extend_from_slice(name.as_bytes());
                }
                Component::CurDir => {}
                Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
            }
        }
        (!bytes.is_empty() && !bytes.contains(&0)).then_some(Self(bytes))
    }

    /// An entry of a directory, by its name as the kernel gave it; the root is none.
    pub fn below(parent: Option<&Self>, name: &[u8]) -> Self {
        match parent {
            Some(parent) => Self([&parent.0, &b"/"[..], name].concat()),
            None => Self(name.to_vec()),
        }
    }

    /// The directory it is in; none if that is the root.
    pub fn parent(&self) -> Option<Self> {
        let slash = self.0.iter().rposition(|byte| *byte == b'/')?;
        Some(Self(self.0[..slash].to_vec()))
    }

    /// The last component of the path.
    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.parts().last().unwrap_or_default())
    }

    /// The components of the path, as bytes.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/')
    }

    /// As the host writes it.
    pub fn as_path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.0))
    }

    /// Whether it is this path or lies below it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.strip_prefix(other.0.as_slice()).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escape_bytes(&self.0))
    }
}

impl fmt::Debug for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl TryFrom<String> for RelPath {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<RelPath> for String {
    fn from(path: RelPath) -> Self {
        path.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_one_spelling() {
        for name in
            [&b"a"[..], b"a/b c", b"back\\slash", b"\\x41", b"\xff\xfe/x", "ä\u{202e}".as_bytes()]
        {
            let path = RelPath::from_path(Path::new(OsStr::from_bytes(name))).unwrap();
            assert_eq!(RelPath::parse(&path.to_string()).unwrap(), path);
            assert_eq!(path.as_path().as_os_str().as_bytes(), name);
        }
    }

    #[test]
    fn absolute_and_parent_paths_are_refused() {
        for bad in ["", "/", "/etc", "..", "a/../b", ".", "a\\", "\\x4", "a\\x00b", "a\\q"] {
            assert!(RelPath::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_path_is_within_its_directories() {
        let path = |text: &str| RelPath::parse(text).unwrap();
        assert!(path("a/b").is_within(&path("a")));
        assert!(path("a").is_within(&path("a")));
        assert!(!path("ab").is_within(&path("a")));
        assert_eq!(path("a/b/c").parent(), Some(path("a/b")));
        assert_eq!(path("a").parent(), None);
    }
}
