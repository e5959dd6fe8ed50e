//! Responses that have no type elsewhere.

use super::place::InsidePath;
use crate::bytes::{escape_bytes, unescape_bytes};
use crate::execs::CapturedOutput;
use crate::sandboxes::LogLine;
use msb_spec::{Error, Exit, Kind, Result};
use msb_wire::{EntryKind, Meta, StopResult};
use serde::{Deserialize, Serialize};

macro_rules! answers {
    ($( $(#[doc = $about:literal])+ $name:ident { $( $(#[$meta:meta])+ $field:ident: $type:ty ),* } )*) => {$(
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        pub struct $name { $( $(#[$meta])+ pub $field: $type ),* }
    )*};
}

answers! {
    /// An empty object: the Operation has succeeded.
    Done {}

    /// Whether the Operation has changed something.
    Changed {
        /// False if the requested state was already reached.
        changed: bool
    }

    /// A number of objects or bytes.
    Count {
        /// The number of objects or bytes.
        count: u64
    }

    /// The result of waiting for a command.
    Ended {
        /// How the command ended; null if it is still running.
        exit: Option<Exit>
    }

    /// Output lines of commands.
    Logged {
        /// Complete lines, the oldest first.
        lines: Vec<LogLine>,
        /// Lines without a line feed so far.
        rest: Vec<LogLine>
    }

    /// The expiry of a sandbox.
    Expires {
        /// When it is stopped, in milliseconds since 1970; null for never.
        at: Option<u64>
    }

    /// The result of waiting for a sandbox.
    Waited {
        /// How the sandbox ended; null if it is still running.
        stopped: Option<StopResult>
    }

    /// A command that has ended.
    Executed {
        /// The id of the Exec in its sandbox.
        id: u64,
        /// The beginning of its stdout.
        stdout: Said,
        /// The beginning of its stderr.
        stderr: Said,
        /// How the command ended.
        exit: Exit
    }

    /// Captured output of one stream.
    Said {
        /// The first bytes, as text. Invalid UTF-8 is replaced by U+FFFD.
        text: String,
        /// Bytes that the command wrote in total.
        bytes: u64,
        /// Whether the end of the output is missing in `text`.
        truncated: bool
    }

    /// The result of resolving a path.
    RealPath {
        /// The absolute path, without symbolic links.
        path: InsidePath
    }

    /// Type and attributes of a file.
    FileMeta {
        /// The file name. A backslash is written twice, a byte that is not UTF-8 as `\xNN`.
        name: String,
        /// The type: `file`, `directory`, `symlink` or `other`.
        kind: String,
        /// The target of a symbolic link, escaped like `name`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// Permission bits, such as 420 for 0644.
        mode: u32,
        /// Size of the content in bytes.
        size: u64,
        /// Time of the last change of the content, in milliseconds since 1970.
        modified: i64,
        /// Time of creation, in milliseconds since 1970; null if the file system has none.
        created: Option<i64>,
        /// Numeric id of the owner.
        uid: u32,
        /// Numeric id of the group.
        gid: u32
    }
}

/// The response that carries the value of an Operation. Most values are their own response.
pub trait ResponseOf<T>: Sized {
    /// The response with this value.
    fn of(value: T) -> Self;

    /// The value in the response; fails if a server sent one that does not exist.
    fn into_value(self) -> Result<T>;
}

impl<T> ResponseOf<T> for T {
    fn of(value: T) -> Self {
        value
    }

    fn into_value(self) -> Result<T> {
        Ok(self)
    }
}

impl ResponseOf<()> for Done {
    fn of((): ()) -> Self {
        Self {}
    }

    fn into_value(self) -> Result<()> {
        Ok(())
    }
}

/// Responses with one member, which is the value.
macro_rules! one_member {
    ($($response:ident { $member:ident: $value:ty })*) => {$(
        impl ResponseOf<$value> for $response {
            fn of($member: $value) -> Self {
                Self { $member }
            }

            fn into_value(self) -> Result<$value> {
                Ok(self.$member)
            }
        }
    )*};
}

one_member! {
    Changed { changed: bool }
    Ended { exit: Option<Exit> }
    Expires { at: Option<u64> }
    Waited { stopped: Option<StopResult> }
}

impl ResponseOf<usize> for Count {
    fn of(count: usize) -> Self {
        Self { count: count as u64 }
    }

    fn into_value(self) -> Result<usize> {
        Ok(usize::try_from(self.count).unwrap_or(usize::MAX))
    }
}

impl ResponseOf<Vec<u8>> for RealPath {
    fn of(path: Vec<u8>) -> Self {
        Self { path: InsidePath(path) }
    }

    fn into_value(self) -> Result<Vec<u8>> {
        Ok(self.path.0)
    }
}

impl ResponseOf<Meta> for FileMeta {
    fn of(meta: Meta) -> Self {
        meta.into()
    }

    fn into_value(self) -> Result<Meta> {
        self.try_into()
    }
}

impl ResponseOf<Vec<Meta>> for Vec<FileMeta> {
    fn of(entries: Vec<Meta>) -> Self {
        entries.into_iter().map(FileMeta::from).collect()
    }

    fn into_value(self) -> Result<Vec<Meta>> {
        self.into_iter().map(Meta::try_from).collect()
    }
}

impl Executed {
    /// Converts the captured output of an Exec.
    pub fn of(id: u64, kept: &CapturedOutput) -> Self {
        let said = |kept: &[u8], bytes: u64| Said {
            text: String::from_utf8_lossy(kept).into_owned(),
            bytes,
            truncated: (kept.len() as u64) < bytes,
        };
        let stdout = said(&kept.stdout, kept.stdout_bytes);
        let stderr = said(&kept.stderr, kept.stderr_bytes);
        Self { id, stdout, stderr, exit: kept.exit }
    }
}

impl From<Meta> for FileMeta {
    fn from(meta: Meta) -> Self {
        let (kind, target) = match &meta.kind {
            EntryKind::File => ("file", None),
            EntryKind::Directory => ("directory", None),
            EntryKind::Symlink(target) => ("symlink", Some(escape_bytes(target))),
            _ => ("other", None),
        };
        Self {
            name: escape_bytes(&meta.name),
            kind: kind.to_owned(),
            target,
            mode: meta.mode,
            size: meta.size,
            modified: meta.modified,
            created: meta.created,
            uid: meta.uid,
            gid: meta.gid,
        }
    }
}

impl TryFrom<FileMeta> for Meta {
    type Error = Error;

    fn try_from(meta: FileMeta) -> Result<Self> {
        let wrong = || Error::new(Kind::Protocol, "a name or kind that nothing has");
        let target = || meta.target.as_deref().and_then(unescape_bytes).ok_or_else(wrong);
        let kind = match meta.kind.as_str() {
            "file" => EntryKind::File,
            "directory" => EntryKind::Directory,
            "symlink" => EntryKind::Symlink(target()?),
            _ => EntryKind::Other,
        };
        Ok(Self {
            name: unescape_bytes(&meta.name).ok_or_else(wrong)?,
            kind,
            mode: meta.mode,
            size: meta.size,
            modified: meta.modified,
            created: meta.created,
            uid: meta.uid,
            gid: meta.gid,
        })
    }
}
