//! References to the image of a sandbox.

use crate::{Name, Reference, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// A reference to an image, as typed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum ImageRef {
    /// The host's own programs, read-only below a private writable layer.
    #[default]
    Host,
    /// A path: a directory with a root file system, or a disk image.
    Path(PathBuf),
    /// An image by its name, from a registry or loaded before.
    Name(Reference),
    /// A snapshot by its name or id.
    Snapshot(Name),
}

/// Prefix of a snapshot where an image is expected.
const SNAPSHOT_PREFIX: &str = "snapshot:";

impl ImageRef {
    /// Parses `host`, a path (`./dir`, `/dir`, `../dir`, `.`), `snapshot:NAME` or an image name.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "host" {
            return Ok(Self::Host);
        }
        if let Some(name) = text.strip_prefix(SNAPSHOT_PREFIX) {
            return Name::parse(name).map(Self::Snapshot).map_err(|_| {
                crate::Error::invalid(format!("not the name of a snapshot: `{name}`"))
                    .hint("`msb snapshot ls` lists the snapshots")
            });
        }
        let is_path = text.starts_with('/')
            || text == "."
            || text == ".."
            || text.starts_with("./")
            || text.starts_with("../");
        if is_path && !text.contains('\0') {
            return Ok(Self::Path(PathBuf::from(text)));
        }
        let with_path_hint = |error: crate::Error| match error.advice() {
            Some(hint) => {
                let hint = format!("{hint}; a directory starts with `./` or `/`");
                error.hint(hint)
            }
            None => error,
        };
        Reference::parse(text).map(Self::Name).map_err(with_path_hint)
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Name(reference) => write!(f, "{reference}"),
            Self::Snapshot(name) => write!(f, "{SNAPSHOT_PREFIX}{name}"),
        }
    }
}

written_as_text!(ImageRef);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_path_and_a_word_is_a_name() {
        assert_eq!(ImageRef::parse("host").unwrap(), ImageRef::Host);
        assert_eq!(ImageRef::parse("./a").unwrap(), ImageRef::Path("./a".into()));
        assert_eq!(ImageRef::parse("a").unwrap().to_string(), "docker.io/library/a:latest");
        assert_eq!(ImageRef::parse("../..").unwrap(), ImageRef::Path("../..".into()));
        assert!(ImageRef::parse("no such").is_err());
        let snapshot = ImageRef::parse("snapshot:a").unwrap();
        assert_eq!(snapshot, ImageRef::Snapshot(Name::parse("a").unwrap()));
        assert_eq!(snapshot.to_string(), "snapshot:a");
        assert!(ImageRef::parse("snapshot:../a").is_err());
    }
}
