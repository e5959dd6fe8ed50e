//! Volumes: named storage that outlives sandboxes and is shared by them.

use crate::{Bytes, Error, IdRange, Name, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// A volume's name, which is also the name of its directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")))]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

impl VolumeName {
    /// Parses a name; the rules are those of sandbox names.
    pub fn parse(text: &str) -> Result<Self> {
        if Name::parse(text).is_ok() {
            return Ok(Self(text.to_owned()));
        }
        let beginning: String = text.chars().take(60).collect();
        Err(Error::invalid(format!("not a volume name: `{}`", crate::shown(&beginning))).hint(
            "a name has 1 to 128 of A-Z a-z 0-9 . _ - and starts with a letter or digit; \
             a path has a slash, as in `./here`",
        ))
    }

    /// The name as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

written_as_text!(VolumeName);

/// Kind of a volume: directory or disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum VolumeKind {
    /// A directory that several sandboxes can use at once.
    #[default]
    Dir,
    /// A block device with its own file system, for one writer or several readers.
    Disk,
}

impl fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dir => "dir",
            Self::Disk => "disk",
        })
    }
}

impl std::str::FromStr for VolumeKind {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        match text {
            "dir" => Ok(Self::Dir),
            "disk" => Ok(Self::Disk),
            other => Err(Error::invalid(format!("no such kind of volume: `{other}`"))
                .hint("it is `dir` or `disk`")),
        }
    }
}

/// A volume as it was requested.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    /// Name of the new volume.
    pub name: VolumeName,
    /// Directory or disk; default directory.
    #[serde(default)]
    pub kind: VolumeKind,
    /// Size limit; default: none for a directory, 2 GiB for a disk.
    #[serde(default)]
    pub size: Option<Bytes>,
    /// Labels by which it is found.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

impl VolumeSpec {
    /// Default size of a disk. Unwritten blocks take no space on the host.
    pub const DISK_SIZE: Bytes = Bytes::mib(2 << 10);
    /// Least size: a file system and its journal need space themselves.
    pub const LEAST_SIZE: Bytes = Bytes::mib(16);

    /// A directory volume of this name, without a size.
    pub fn new(name: VolumeName) -> Self {
        Self { name, kind: VolumeKind::Dir, size: None, labels: BTreeMap::new() }
    }

    /// Checks the size and the labels.
    pub fn validate(&self) -> Result<()> {
        crate::spec::check_labels(&self.labels)?;
        match self.size {
            Some(size) if size < Self::LEAST_SIZE => {
                Err(Error::invalid(format!("a volume of {size} is too small"))
                    .hint(format!("{} is the least", Self::LEAST_SIZE)))
            }
            _ => Ok(()),
        }
    }
}

/// How a volume is stored on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeStorage {
    /// As files of the state directory.
    Directory,
    /// In a disk image that only the kernel of the host writes; its size limits the volume.
    Image,
    /// In a disk image that one sandbox writes at a time, a microVM directly.
    Disk,
}

/// A volume that a sandbox uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedVolume {
    /// Name of the volume on the host.
    pub name: VolumeName,
    /// How it is stored on the host.
    pub stored: VolumeStorage,
    /// Host ids of its files, for ids 0 and up. `None` if they are the ids of all sandboxes of this
    /// user.
    pub range: Option<IdRange>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_needs_room_for_its_file_system() {
        let spec = |size| VolumeSpec {
            size: Some(Bytes::mib(size)),
            ..VolumeSpec::new(VolumeName::parse("data").unwrap())
        };
        assert!(spec(15).validate().is_err());
        assert!(spec(16).validate().is_ok());
    }

    #[test]
    fn a_refused_name_is_told_how_paths_are_written() {
        for bad in ["", ".", "..", "~", "a b", "-x", "a/b", "a\x1b"] {
            let error = VolumeName::parse(bad).unwrap_err();
            assert!(!error.to_string().contains('\x1b'));
            assert!(error.advice().unwrap().contains("./"));
        }
    }
}
