//! Answers that are no noun of their own.

use super::place::InsidePath;
use crate::bytes::{spelled, unspelled};
use crate::execs::Captured;
use crate::sandboxes::LogLine;
use msb_spec::{Error, Exit, Kind, Result};
use msb_wire::{EntryKind, Meta, Stopped};
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
    /// It is done.
    Done {}

    /// It is done, or was so already.
    Changed {
        /// Whether something is another than before.
        changed: bool
    }

    /// How many.
    Count {
        /// So many.
        count: u64
    }

    /// What came of waiting for a command.
    Ended {
        /// How it ended; none if it still runs.
        exit: Option<Exit>
    }

    /// What commands have said.
    Logged {
        /// Whole lines.
        lines: Vec<LogLine>,
        /// Lines that have no end yet.
        rest: Vec<LogLine>
    }

    /// When a sandbox ends.
    Expires {
        /// In milliseconds since 1970; none is never.
        at: Option<u64>
    }

    /// What came of waiting.
    Waited {
        /// How it ended; none if it still runs.
        stopped: Option<Stopped>
    }

    /// A command that has run to its end.
    Executed {
        /// Its number in the sandbox.
        id: u64,
        /// The beginning of its stdout.
        stdout: Said,
        /// The beginning of its stderr.
        stderr: Said,
        /// How it ended.
        exit: Exit
    }

    /// What a command said on one stream.
    Said {
        /// The first bytes, as text. What is no UTF-8 is replaced.
        text: String,
        /// How many bytes there were in all.
        bytes: u64,
        /// Whether the text lacks something at its end.
        truncated: bool
    }

    /// Where a path leads.
    RealPath {
        /// Absolute and without links.
        path: InsidePath
    }

    /// What a path is.
    FileMeta {
        /// Its name without directories, a backslash written twice and a byte that is no UTF-8 as `\xNN`.
        name: String,
        /// `file`, `directory`, `symlink` or `other`.
        kind: String,
        /// What a symbolic link says, written as names are.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<String>,
        /// Permissions.
        mode: u32,
        /// Size in bytes.
        size: u64,
        /// When it was changed, in milliseconds since 1970.
        modified: i64,
        /// When it was made, where its file system knows.
        created: Option<i64>,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32
    }
}

impl Executed {
    /// From what was kept of it.
    pub fn of(id: u64, kept: &Captured) -> Self {
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
            EntryKind::Symlink(target) => ("symlink", Some(spelled(target))),
            _ => ("other", None),
        };
        Self {
            name: spelled(&meta.name),
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
        let target = || meta.target.as_deref().and_then(unspelled).ok_or_else(wrong);
        let kind = match meta.kind.as_str() {
            "file" => EntryKind::File,
            "directory" => EntryKind::Directory,
            "symlink" => EntryKind::Symlink(target()?),
            _ => EntryKind::Other,
        };
        Ok(Self {
            name: unspelled(&meta.name).ok_or_else(wrong)?,
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
