//! What a sandbox has changed, path by path.

use crate::rel_path::RelPath;
use serde::{Deserialize, Serialize};

/// What happened to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// It is not on the host.
    Added,
    /// It is something else, or holds something else.
    Changed,
    /// The file is removed.
    Deleted,
    /// Only its permissions are others.
    Mode,
    /// A pipe, a socket or a device, or too deep in the tree: never brought to the host.
    Special,
}

/// What is at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// A regular file, whatever its content.
    File,
    /// A directory, without its entries.
    Directory,
    /// A symbolic link, not its target.
    Symlink,
    /// A device, FIFO or socket.
    Special,
}

/// One side of a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Item {
    /// The type of the file.
    pub kind: ItemKind,
    /// Its permissions, without set-id and sticky bits; written in octal.
    #[serde(with = "octal")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub mode: u32,
    /// Its bytes; zero for what has none.
    pub size: u64,
    /// The SHA-256 of what it holds, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Where a link leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

/// What a change loses on its way to the host, so that the loss can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Conflict {
    /// The host's file was changed since the sandbox saw it, or is new.
    ChangedOnHost,
    /// The host's file was removed since the sandbox saw it.
    RemovedOnHost,
    /// A directory that it is in was moved or closed since.
    MovedOnHost,
    /// Something else is mounted there.
    Mounted,
}

impl Conflict {
    /// Whether it is only about what would be lost.
    pub fn can_be_overwritten(self) -> bool {
        matches!(self, Self::ChangedOnHost | Self::RemovedOnHost)
    }

    /// As people read it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ChangedOnHost => "changed on the host since the sandbox saw it",
            Self::RemovedOnHost => "removed on the host since the sandbox saw it",
            Self::MovedOnHost => "its directory was moved on the host",
            Self::Mounted => "something else is mounted there",
        }
    }
}

/// One path that a sandbox has changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Change {
    /// Where, below the workspace.
    pub path: RelPath,
    /// What happened to it.
    pub what: What,
    /// What is on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Item>,
    /// What is in the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Item>,
    /// What was deleted and has the same content, for a file that was added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed_from: Option<RelPath>,
    /// What was added and has the same content, for a file that was deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed_to: Option<RelPath>,
    /// Why it has to be named to be brought to the host: something there would run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    /// Whether the host's `.gitignore` files leave it out.
    #[serde(default)]
    pub ignored: bool,
    /// Why it cannot be brought to the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict: Option<Conflict>,
    /// Set-id or sticky bits that it has in the sandbox and will not have on the host; in octal.
    #[serde(default, with = "octal", skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "schema", schemars(with = "String"))]
    pub stripped: u32,
    /// The difference line by line, where that was asked for and it is text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<Patch>,
    /// Its part of a git patch, where that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitPatch>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Permissions in octal, as in `644`.
mod octal {
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it so")]
    pub(super) fn serialize<S: Serializer>(mode: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{mode:04o}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = String::deserialize(from)?;
        u32::from_str_radix(&text, 8).map_err(de::Error::custom)
    }
}

/// Why a path has to be named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Risk {
    /// The rule that it falls under, as in `.git/hooks/*`.
    pub rule: String,
    /// What would run it.
    pub reason: String,
}

/// The difference between two texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Patch {
    /// Lines that are new.
    pub added: u32,
    /// Lines that are gone.
    pub removed: u32,
    /// In unified form, without the names; nothing in it disturbs a terminal but tabs and line ends.
    pub text: String,
}

/// The part of a change in a git patch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GitPatch {
    /// Sections for `git apply`, each from `diff --git` on. The old path of a rename has an empty
    /// text.
    Sections(String),
    /// A git patch cannot have it.
    Missing(GitGap),
}

/// Why a change is in no git patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum GitGap {
    /// Git knows directories only by the files in them.
    Directory,
    /// A pipe, a socket or a device.
    Special,
    /// Only permissions have changed that git does not keep.
    Mode,
    /// `git apply` refuses every patch with this path, as in `.git/config`.
    Refused,
    /// The file is larger than 64 MiB, or all files together are larger than 256 MiB.
    TooLarge,
}

impl Change {
    /// Whether it was and is the same kind of thing, or was nothing.
    pub fn is_replaced(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => before.kind != after.kind,
            _ => false,
        }
    }
}
