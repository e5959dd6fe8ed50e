//! What a sandbox's root filesystem is made from.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// A reference to an image, as typed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum ImageRef {
    /// The host's own programs, read-only beneath a private writable layer.
    #[default]
    Host,
    /// A directory that holds a root filesystem.
    Directory(PathBuf),
}

impl ImageRef {
    /// Parses `host`, `./dir`, `/dir`, `../dir`, `.` or `~/dir` (left to the shell).
    pub fn parse(text: &str) -> Result<Self> {
        if text == "host" {
            return Ok(Self::Host);
        }
        let is_path = text.starts_with('/')
            || text == "."
            || text == ".."
            || text.starts_with("./")
            || text.starts_with("../");
        if is_path && !text.contains('\0') {
            return Ok(Self::Directory(PathBuf::from(text)));
        }
        Err(Error::unsupported(format!("no such image: `{}`", text)).hint(
            "this version runs `host` (the default) and directories: `./rootfs` or `/srv/rootfs`",
        ))
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}

written_as_text!(ImageRef);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_directory_and_a_word_is_not() {
        assert_eq!(ImageRef::parse("host").unwrap(), ImageRef::Host);
        assert_eq!(ImageRef::parse("./a").unwrap(), ImageRef::Directory("./a".into()));
        assert_eq!(ImageRef::parse("alpine").unwrap_err().kind(), crate::Kind::Unsupported);
    }
}
