//! What travels in pieces: bytes of files, archives, commands while they run, logs that go on.

use super::place::InsidePath;
use crate::Part;
use msb_spec::{Command, Error, Exit, Name, Spec, TermSize, UserRef, VolumeName};
use msb_wire::record::Source;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The bytes of a file: GET gives them, PUT takes them.
pub const FILE_CONTENT: &str = "/api/v1/files/content";
/// GET: a snapshot as an OCI archive.
pub const SNAPSHOT_SAVE: &str = "/api/v1/snapshots/{name}/archive";
/// POST: an archive becomes a snapshot.
pub const SNAPSHOT_LOAD: &str = "/api/v1/snapshot-archives";
/// GET: the lines of a log as they come, as events.
pub const LOGS_FOLLOW: &str = "/api/v1/sandboxes/{name}/logs/follow";
/// GET: what happens to a sandbox, as events.
pub const EVENTS_FOLLOW: &str = "/api/v1/sandboxes/{name}/events/follow";
/// POST: starts a command; what it says comes as events.
pub const EXEC_STREAM: &str = "/api/v1/sandboxes/{name}/execs/stream";
/// POST: the same in a sandbox of its own.
pub const RUN_STREAM: &str = "/api/v1/run/stream";
/// GET: what a command that runs says, as events.
pub const ATTACH_STREAM: &str = "/api/v1/sandboxes/{name}/execs/{id}/stream";
/// WebSocket: starts a command and is its stdin, stdout and terminal.
pub const EXEC_SOCKET: &str = "/api/v1/sandboxes/{name}/execs/socket";
/// WebSocket: the same in a sandbox of its own.
pub const RUN_SOCKET: &str = "/api/v1/run/socket";
/// WebSocket: takes part in a command that runs.
pub const ATTACH_SOCKET: &str = "/api/v1/sandboxes/{name}/execs/{id}/socket";

/// Bytes of one message over a WebSocket. Each socket may hold one of these, and there may be hundreds of them.
pub const LARGEST_MESSAGE: usize = 1 << 20;

/// Paths whose body is bytes, `application/octet-stream`; every other body is JSON.
pub const UPLOADS: [&str; 2] = [FILE_CONTENT, SNAPSHOT_LOAD];

/// Which bytes of which file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FileRead {
    /// The sandbox, which runs; or `volume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Name>,
    /// The volume; or `sandbox`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeName>,
    /// Who reads it, in a sandbox; root if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserRef>,
    /// The file.
    pub path: InsidePath,
    /// Where to begin.
    #[serde(default)]
    pub offset: u64,
    /// How many bytes; all if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
}

/// Which file is made or replaced with the body.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FileWrite {
    /// The sandbox, which runs; or `volume`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Name>,
    /// The volume; or `sandbox`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeName>,
    /// Whose it is, in a sandbox; root's if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserRef>,
    /// The file.
    pub path: InsidePath,
    /// Its permissions as a number; 420 (0644) if it is not said.
    #[serde(default = "usual_mode")]
    pub mode: u32,
    /// Whether the bytes are added to what is there.
    #[serde(default)]
    pub append: bool,
}

fn usual_mode() -> u32 {
    0o644
}

/// Which snapshot is saved.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SnapshotSave {
    /// Which.
    pub name: Name,
    /// Whether its image is in the archive as well.
    #[serde(default)]
    pub whole: bool,
}

/// What the loaded snapshot is called.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SnapshotLoad {
    /// The name that it was saved with, if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
}

/// What is followed from where on.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Follow {
    /// Which sandbox.
    pub name: Name,
    /// How many lines or events, of those that are wanted, to leave out: they are known.
    #[serde(default)]
    pub skip: u64,
    /// Only from this Exec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<u64>,
    /// Only from this stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Not before this, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Not after this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Only lines that hold this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grep: Option<String>,
}

/// A command that is started in a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StartExec {
    /// What.
    pub command: Command,
    /// What it reads; over a WebSocket that follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

/// A command in a sandbox of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StartRun {
    /// What is asked for, with its command.
    pub spec: Spec,
    /// What the command reads; over a WebSocket that follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Values of secrets whose source is the caller.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
}

/// What a client tells a command over a WebSocket, as text; what it writes to its stdin is binary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Tell {
    /// There is no more stdin.
    CloseStdin,
    /// A signal, by its number.
    Signal(i32),
    /// Its terminal has another size.
    Resize(TermSize),
    /// It goes on alone.
    Detach,
}

/// What a server tells about a command, as text over a WebSocket and as an event; over a WebSocket
/// what it says is binary, behind a byte that is [`STDOUT`] or [`STDERR`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Heard {
    /// What is being done before it runs.
    Progress(Progress),
    /// It runs.
    Started(Started),
    /// It wrote to its stdout or its terminal.
    Stdout(Piece),
    /// It wrote to its stderr.
    Stderr(Piece),
    /// It is over; nothing follows.
    Exited(Exit),
    /// It went wrong; nothing follows.
    Error(Error),
}

/// Before what was written to stdout.
pub const STDOUT: u8 = 1;
/// Before what was written to stderr.
pub const STDERR: u8 = 2;

/// How far something is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    /// What is being done.
    pub what: String,
    /// How much of it is done, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// Of how much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
}

impl Progress {
    /// As [`crate::Watch`] is told.
    pub fn new(what: &str, part: Option<Part>) -> Self {
        Self {
            what: what.to_owned(),
            done: part.map(|part| part.done),
            of: part.map(|part| part.of),
        }
    }

    /// So much of so much.
    pub fn part(&self) -> Option<Part> {
        Some(Part { done: self.done?, of: self.of? })
    }
}

/// A command that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Started {
    /// Its number in the sandbox.
    pub id: u64,
    /// Its pid inside.
    pub pid: u32,
    /// The sandbox.
    pub sandbox: Name,
}

/// Bytes as text where they are, and in base64 where they are not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// UTF-8.
    Text(String),
    /// Anything else.
    Base64(String),
}
