//! Mounts inside a sandbox: host paths, volumes and tmpfs.

use crate::{Bytes, Error, Result, VolumeName};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// An absolute path inside a sandbox, without `..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct GuestPath(String);

impl GuestPath {
    /// Parses an absolute path; removes `//`, `/./` and a trailing slash.
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

    /// The path as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The path as a `Path`, always absolute.
    pub fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl fmt::Display for GuestPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Source of a mount: host path or volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A path of the host, as typed.
    Path(PathBuf),
    /// A volume by its name.
    Volume(VolumeName),
}

/// A mount of a host path or volume: `HOST:GUEST[:OPTIONS]` or `NAME:GUEST[:OPTIONS]`, where the
/// options are `ro` and `noexec`. Every mount is nosuid and nodev.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Mount {
    /// Host path or volume that is mounted.
    pub source: MountSource,
    /// Mount point inside the sandbox.
    pub guest: GuestPath,
    /// Whether writes to it are refused.
    pub read_only: bool,
    /// Whether its files cannot be executed.
    pub no_exec: bool,
}

impl Mount {
    /// Parses `HOST:GUEST[:OPTIONS]` or `NAME:GUEST[:OPTIONS]`. A name has no slash; `./name` is a
    /// path.
    pub fn parse(text: &str) -> Result<Self> {
        let (source, guest, options) = Self::split(text)?;
        let source = match is_name(source) {
            true => MountSource::Volume(VolumeName::parse(source)?),
            false => MountSource::Path(PathBuf::from(source)),
        };
        Ok(Self::new(source, guest, options.read_only)?.no_exec(options.no_exec))
    }

    /// Parses `HOST:GUEST[:OPTIONS]`, where `HOST` is a path even if it has no slash.
    pub fn parse_path(text: &str) -> Result<Self> {
        let (source, guest, options) = Self::split(text)?;
        let source = MountSource::Path(PathBuf::from(source));
        Ok(Self::new(source, guest, options.read_only)?.no_exec(options.no_exec))
    }

    /// Sets whether its files cannot be executed.
    #[must_use]
    pub fn no_exec(self, no_exec: bool) -> Self {
        Self { no_exec, ..self }
    }

    /// A mount at a path inside; fails for `/`.
    pub fn new(source: MountSource, guest: &str, read_only: bool) -> Result<Self> {
        let guest = GuestPath::parse(guest)?;
        if guest.as_str() == "/" {
            return Err(Error::invalid("a mount cannot replace the root of the sandbox")
                .hint("use the directory as the image: `msb run ./dir -- …`"));
        }
        Ok(Self { source, guest, read_only, no_exec: false })
    }

    fn split(text: &str) -> Result<(&str, &str, MountOptions)> {
        let wrong = || {
            Error::invalid(format!("not a mount: `{}`", text))
                .hint("write it as `./here:/there`, `./here:/there:ro` or `volume:/there`")
        };
        let options = |(rest, last)| Some((rest, MountOptions::parse(last)?));
        let (rest, options) =
            text.rsplit_once(':').and_then(options).unwrap_or((text, MountOptions::default()));
        let (source, guest) = rest.rsplit_once(':').ok_or_else(wrong)?;
        if source.is_empty() || source.contains('\0') {
            return Err(wrong());
        }
        Ok((source, guest, options))
    }
}

/// Options of a mount, as in the fourth field of fstab(5).
#[derive(Debug, Clone, Copy, Default)]
struct MountOptions {
    read_only: bool,
    no_exec: bool,
}

impl MountOptions {
    /// Parses words between commas; `None` if one of them is no option.
    fn parse(text: &str) -> Option<Self> {
        text.split(',').try_fold(Self::default(), Self::with)
    }

    fn with(self, word: &str) -> Option<Self> {
        match word {
            "ro" => Some(Self { read_only: true, ..self }),
            "rw" => Some(Self { read_only: false, ..self }),
            "noexec" => Some(Self { no_exec: true, ..self }),
            "exec" => Some(Self { no_exec: false, ..self }),
            // Every mount is.
            "nosuid" | "nodev" => Some(self),
            _ => None,
        }
    }

    /// The options that differ from the default, each after `separator`, then commas.
    fn write(self, f: &mut fmt::Formatter<'_>, mut separator: char) -> fmt::Result {
        for (word, is_set) in [("ro", self.read_only), ("noexec", self.no_exec)] {
            if is_set {
                write!(f, "{separator}{word}")?;
                separator = ',';
            }
        }
        Ok(())
    }
}

/// Whether this is the name of a volume and not a path.
fn is_name(source: &str) -> bool {
    !source.contains('/') && source != "." && source != ".." && !source.starts_with('~')
}

impl fmt::Display for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            // Parsed again, it must be a path and not a volume.
            MountSource::Path(path) if is_name(&path.to_string_lossy()) => {
                write!(f, "./{}", path.display())?;
            }
            MountSource::Path(path) => write!(f, "{}", path.display())?,
            MountSource::Volume(name) => write!(f, "{name}")?,
        }
        write!(f, ":{}", self.guest)?;
        MountOptions { read_only: self.read_only, no_exec: self.no_exec }.write(f, ':')
    }
}

/// A tmpfs inside the sandbox: `PATH[:SIZE][,OPTIONS]`, with the options of a [`Mount`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Tmpfs {
    /// Mount point inside the sandbox.
    pub guest: GuestPath,
    /// Size limit of the file system.
    pub size: Bytes,
    /// Whether writes to it are refused.
    pub read_only: bool,
    /// Whether its files cannot be executed.
    pub no_exec: bool,
}

impl Tmpfs {
    /// Size if none is given: enough for build output, small for any host that runs agents.
    pub const DEFAULT_SIZE: Bytes = Bytes::mib(512);

    /// Parses `PATH[:SIZE,OPTIONS]` as it is stored: a size without a unit is bytes.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_with(text, Bytes::parse)
    }

    /// Parses `PATH[:SIZE,OPTIONS]` as users type it: a size without a unit is MiB.
    pub fn parse_typed(text: &str) -> Result<Self> {
        Self::parse_with(text, Bytes::parse_size)
    }

    fn parse_with(text: &str, parse: fn(&str) -> Result<Bytes>) -> Result<Self> {
        let (path, settings) = text.split_once(':').unwrap_or((text, ""));
        let (mut size, mut options) = (Self::DEFAULT_SIZE, MountOptions::default());
        for word in settings.split(',').filter(|_| path.len() < text.len()) {
            match options.with(word) {
                Some(with) => options = with,
                None => size = parse(word.strip_prefix("size=").unwrap_or(word))?,
            }
        }
        let guest = GuestPath::parse(path)?;
        if guest.as_str() == "/" {
            return Err(Error::invalid("a tmpfs cannot replace the root of the sandbox"));
        }
        let MountOptions { read_only, no_exec } = options;
        Ok(Self { guest, size, read_only, no_exec })
    }
}

impl fmt::Display for Tmpfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.guest, self.size.0)?;
        MountOptions { read_only: self.read_only, no_exec: self.no_exec }.write(f, ',')
    }
}

written_as_text!(GuestPath, Mount, Tmpfs);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_from_the_right() {
        let mount = Mount::parse("/a:b:/c:ro").unwrap();
        assert_eq!(mount.source, MountSource::Path("/a:b".into()));
        assert_eq!(mount.guest.as_str(), "/c");
        assert!(mount.read_only);
        assert!(!Mount::parse("./x:/y").unwrap().read_only);
    }

    #[test]
    fn a_name_without_a_slash_is_a_volume() {
        let data = MountSource::Volume(VolumeName::parse("data").unwrap());
        assert_eq!(Mount::parse("data:/x").unwrap().source, data);
        for path in [".", "..", "./data", "a/b", "/a", "~", "~/a", "~ann"] {
            let mount = Mount::parse(&format!("{path}:/x:ro")).unwrap();
            assert_eq!(mount.source, MountSource::Path(path.into()), "{path}");
            assert_eq!(mount.to_string(), format!("{path}:/x:ro"));
        }
        for bad in ["a b:/x", "-a:/x", "a:b:/x", ".hidden:/x"] {
            assert!(Mount::parse(bad).is_err(), "{bad}");
        }
        let file = Mount::parse_path("data:/x").unwrap();
        assert_eq!(file.source, MountSource::Path("data".into()));
        assert_eq!(file.to_string(), "./data:/x");
    }

    #[test]
    fn mounts_outside_the_tree_are_refused() {
        for bad in ["", "/a", ":/x", "/a:x", "/a:/x/../..", "/a:/", "/a:/x:wo", "/a:/x:ro,wo"] {
            assert!(Mount::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn options_are_written_as_they_are_read() {
        for (text, same) in [
            ("/a:/x:noexec", "/a:/x:noexec"),
            ("/a:/x:ro,noexec,nosuid,nodev", "/a:/x:ro,noexec"),
            ("/a:/x:nosuid", "/a:/x"),
            ("/a:/x:noexec,exec,rw", "/a:/x"),
        ] {
            let mount = Mount::parse(text).unwrap();
            assert_eq!(mount.to_string(), same);
            assert_eq!(Mount::parse(same).unwrap(), mount);
        }
        for (text, same) in [
            ("/x:1M,noexec", "/x:1048576,noexec"),
            ("/x:ro,noexec,nosuid,size=1M", "/x:1048576,ro,noexec"),
            ("/x:rw,nodev,size=1M", "/x:1048576"),
        ] {
            let tmpfs = Tmpfs::parse(text).unwrap();
            assert_eq!(tmpfs.to_string(), same);
            assert_eq!(Tmpfs::parse(same).unwrap(), tmpfs);
        }
    }

    #[test]
    fn a_tmpfs_takes_a_size() {
        assert_eq!(Tmpfs::parse("/x:1M").unwrap().size, Bytes::mib(1));
        assert_eq!(Tmpfs::parse("/x:8192").unwrap().size, Bytes(8192));
        assert_eq!(Tmpfs::parse_typed("/x:64").unwrap().size, Bytes::mib(64));
        assert_eq!(Tmpfs::parse("/x/").unwrap().guest.as_str(), "/x");
        assert!(Tmpfs::parse("/x:0").is_err());
    }
}
