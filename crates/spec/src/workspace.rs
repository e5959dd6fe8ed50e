//! Workspaces: host directories that are mounted copy-on-write. Changes are reviewed before they
//! are applied to the host.

use crate::{Error, GuestPath, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Default mount point of a workspace.
const DEFAULT_GUEST_PATH: &str = "/workspace";

/// A workspace as requested: `DIR[:GUEST]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Workspace {
    /// Directory on the host, as typed.
    pub host: PathBuf,
    /// Mount point inside the sandbox.
    pub guest: GuestPath,
}

impl Workspace {
    /// Parses `DIR[:GUEST]`. Text after the last colon is a mount point only if it begins with a
    /// slash, so that directory names may contain colons.
    pub fn parse(text: &str) -> Result<Self> {
        let (host, guest) = match text.rsplit_once(':') {
            Some((host, guest)) if guest.starts_with('/') => (host, guest),
            _ => (text, DEFAULT_GUEST_PATH),
        };
        if host.is_empty() || host.contains('\0') {
            return Err(Error::invalid(format!("not a workspace: `{text}`"))
                .hint("write it as `./project` or `./project:/work`"));
        }
        let guest = GuestPath::parse(guest)?;
        if guest.as_str() == "/" {
            return Err(Error::invalid("a workspace cannot replace the root of the sandbox")
                .hint("use the directory as the image: `msb run ./dir -- …`"));
        }
        Ok(Self { host: PathBuf::from(host), guest })
    }
}

impl fmt::Display for Workspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host.display(), self.guest)
    }
}

written_as_text!(Workspace);

/// A workspace after resolution and checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedWorkspace {
    /// Canonical directory on the host, which nothing inside can write.
    pub host: PathBuf,
    /// Mount point inside the sandbox.
    pub guest: String,
    /// Directory of the changes, in the state directory.
    pub changes: PathBuf,
}

impl PlannedWorkspace {
    /// Upper directory of the overlay: the changes.
    pub const UPPER: &str = "upper";
    /// Work directory of the overlay.
    pub const WORK: &str = "work";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_inside_begins_with_a_slash() {
        let parsed = |text: &str| {
            let Workspace { host, guest } = Workspace::parse(text).unwrap();
            (host.display().to_string(), guest.to_string())
        };
        let both = |host: &str, guest: &str| (host.to_owned(), guest.to_owned());
        assert_eq!(parsed("."), both(".", "/workspace"));
        assert_eq!(parsed("/a/b:/work/"), both("/a/b", "/work"));
        assert_eq!(parsed("a:b"), both("a:b", "/workspace"));
    }

    #[test]
    fn a_workspace_is_not_the_root() {
        for bad in ["", ":/x", "a:/", "a:/../x"] {
            assert!(Workspace::parse(bad).is_err(), "{bad}");
        }
    }
}
