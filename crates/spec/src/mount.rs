//! Host paths and memory file systems shown inside.

use crate::{Bytes, Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// An absolute path inside a sandbox, without `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GuestPath(String);

impl GuestPath {
    /// Checks and takes a path.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(format!("not a path inside the sandbox: `{}`", text)).cause(why)
        };
        if !text.starts_with('/') {
            return Err(wrong("it is not absolute"));
        }
        if text.contains('\0') || text.len() > 4095 {
            return Err(wrong("it holds a zero byte or is longer than 4095 bytes"));
        }
        let path = Path::new(text);
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(wrong("it holds `..`"));
        }
        // Rebuilding from its components drops `//`, `/./` and a trailing slash.
        Ok(Self(path.components().collect::<PathBuf>().to_string_lossy().into_owned()))
    }

    /// The path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A host path shown inside: `HOST:GUEST[:ro]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mount {
    /// The path outside, as typed.
    pub host: PathBuf,
    /// Where it appears.
    pub guest: GuestPath,
    /// Whether writing is refused.
    pub read_only: bool,
}

impl Mount {
    /// Parses `HOST:GUEST[:ro|rw]`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("not a mount: `{}`", text))
                .hint("write it as `./here:/there` or `./here:/there:ro`")
        };
        let (rest, read_only) = match text.rsplit_once(':') {
            Some((rest, "ro")) => (rest, true),
            Some((rest, "rw")) => (rest, false),
            _ => (text, false),
        };
        let (host, guest) = rest.rsplit_once(':').ok_or_else(wrong)?;
        if host.is_empty() || host.contains('\0') {
            return Err(wrong());
        }
        let guest = GuestPath::parse(guest)?;
        if guest.as_str() == "/" {
            return Err(Error::invalid("a mount cannot replace the root of the sandbox")
                .hint("use the directory as the image: `msb run ./dir -- …`"));
        }
        Ok(Self { host: PathBuf::from(host), guest, read_only })
    }
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host.display(), self.guest)?;
        if self.read_only { f.write_str(":ro") } else { Ok(()) }
    }
}

/// A memory file system inside: `PATH[:SIZE]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Tmpfs {
    /// Where it appears.
    pub guest: GuestPath,
    /// Its size.
    pub size: Bytes,
}

impl Tmpfs {
    /// Enough for build output, small against any host that runs agents.
    pub const DEFAULT_SIZE: Bytes = Bytes::mib(512);

    /// Parses `PATH[:SIZE]`.
    pub fn parse(text: &str) -> Result<Self> {
        let (path, size) = match text.split_once(':') {
            Some((path, size)) => (path, Bytes::parse(size.strip_prefix("size=").unwrap_or(size))?),
            None => (text, Self::DEFAULT_SIZE),
        };
        let guest = GuestPath::parse(path)?;
        if guest.as_str() == "/" {
            return Err(Error::invalid("a tmpfs cannot replace the root of the sandbox"));
        }
        Ok(Self { guest, size })
    }
}

impl fmt::Display for Tmpfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.guest, self.size.0)
    }
}

written_as_text!(GuestPath, Mount, Tmpfs);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_from_the_right() {
        let mount = Mount::parse("/a:b:/c:ro").unwrap();
        assert_eq!(mount.host, Path::new("/a:b"));
        assert_eq!(mount.guest.as_str(), "/c");
        assert!(mount.read_only);
        assert!(!Mount::parse("./x:/y").unwrap().read_only);
    }

    #[test]
    fn mounts_outside_the_tree_are_refused() {
        for bad in ["", "/a", ":/x", "/a:x", "/a:/x/../..", "/a:/", "/a:/x:wo"] {
            assert!(Mount::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_tmpfs_takes_a_size() {
        assert_eq!(Tmpfs::parse("/x:1M").unwrap().size, Bytes::mib(1));
        assert_eq!(Tmpfs::parse("/x/").unwrap().guest.as_str(), "/x");
        assert!(Tmpfs::parse("/x:0").is_err());
    }
}
