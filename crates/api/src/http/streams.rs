//! Streaming endpoints: file contents, archives, running commands and followed logs.

use super::place::InsidePath;
use crate::Part;
use msb_spec::{Command, Error, Exit, Name, Spec, TermSize, UserRef, VolumeName};
use msb_wire::record::Source;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// GET and PUT: the bytes of a file.
pub const FILE_CONTENT: &str = "/api/v1/files/content";
/// GET: a snapshot as an OCI archive.
pub const SNAPSHOT_SAVE: &str = "/api/v1/snapshots/{name}/archive";
/// POST: loads a snapshot from an archive.
pub const SNAPSHOT_LOAD: &str = "/api/v1/snapshot-archives";
/// GET: log lines as server-sent events.
pub const LOGS_FOLLOW: &str = "/api/v1/sandboxes/{name}/logs/follow";
/// GET: lifecycle events of a sandbox as server-sent events.
pub const EVENTS_FOLLOW: &str = "/api/v1/sandboxes/{name}/events/follow";
/// POST: starts a command and streams its output as server-sent events.
pub const EXEC_STREAM: &str = "/api/v1/sandboxes/{name}/execs/stream";
/// POST: starts a command in a new sandbox and streams its output as server-sent events.
pub const RUN_STREAM: &str = "/api/v1/run/stream";
/// GET: output of a running command as server-sent events.
pub const ATTACH_STREAM: &str = "/api/v1/sandboxes/{name}/execs/{id}/stream";
/// WebSocket: starts a command and carries its stdin, output, signals and terminal size.
pub const EXEC_SOCKET: &str = "/api/v1/sandboxes/{name}/execs/socket";
/// WebSocket: starts a command in a new sandbox.
pub const RUN_SOCKET: &str = "/api/v1/run/socket";
/// WebSocket: attaches to a running command.
pub const ATTACH_SOCKET: &str = "/api/v1/sandboxes/{name}/execs/{id}/socket";

/// Most bytes of one WebSocket message. Each of hundreds of sockets may hold one in memory.
pub const LARGEST_MESSAGE: usize = 1 << 20;

/// Paths with a binary body (`application/octet-stream`); every other body is JSON.
pub const UPLOADS: [&str; 2] = [FILE_CONTENT, SNAPSHOT_LOAD];

/// The file to read, and the range of its bytes.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FileRead {
    /// The name of a running sandbox. Required unless `volume` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Name>,
    /// The name of a volume. Required unless `sandbox` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeName>,
    /// The user in the sandbox that reads it. Default: root. Not for volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserRef>,
    /// The path of the file.
    pub path: InsidePath,
    /// The first byte to read. Default 0.
    #[serde(default)]
    pub offset: u64,
    /// How many bytes to read. Default: up to the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<u64>,
}

/// The file to create or replace with the body.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FileWrite {
    /// The name of a running sandbox. Required unless `volume` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Name>,
    /// The name of a volume. Required unless `sandbox` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeName>,
    /// The owner of a new file in the sandbox. Default: root. Not for volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<UserRef>,
    /// The path of the file.
    pub path: InsidePath,
    /// Permission bits as a decimal number. Default 420 (0644).
    #[serde(default = "usual_mode")]
    pub mode: u32,
    /// Appends to the file instead of replacing it. Default false.
    #[serde(default)]
    pub append: bool,
}

fn usual_mode() -> u32 {
    0o644
}

/// The snapshot to save.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SnapshotSave {
    /// A name or the id of the snapshot.
    pub name: Name,
    /// Includes the layers of its image. Default false.
    #[serde(default)]
    pub whole: bool,
}

/// The name of the loaded snapshot.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct SnapshotLoad {
    /// The name of the snapshot. Default: the name that it was saved with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
}

/// What to follow, and from where.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Follow {
    /// The name of the sandbox.
    pub name: Name,
    /// Skips this many matching lines or events at the beginning, to continue a stream. Default 0.
    #[serde(default)]
    pub skip: u64,
    /// Only lines of the Exec with this id. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<u64>,
    /// Only lines of this stream. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Only lines at or after this time, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Only lines at or before this time, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// Only lines that contain this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grep: Option<String>,
}

/// A command to start in a sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StartExec {
    /// The command to start.
    pub command: Command,
    /// Text for stdin. Over a WebSocket, further input follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

/// A command to start in a new sandbox.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct StartRun {
    /// The requested sandbox, with its command.
    pub spec: Spec,
    /// Text for stdin. Over a WebSocket, further input follows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Values of the secrets whose source is the client, by secret name. Default: none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
}

/// A text message of the client over a WebSocket. Binary messages are stdin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Tell {
    /// Closes the stdin of the command.
    CloseStdin,
    /// Sends a signal, by its number.
    Signal(i32),
    /// Changes the size of its terminal.
    Resize(TermSize),
    /// Detaches: the command goes on after the connection has ended.
    Detach,
}

/// A message of the server about a command: a text message over a WebSocket, or a server-sent
/// event. Over a WebSocket, output is binary, after one byte that is [`STDOUT`] or [`STDERR`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Heard"))]
#[serde(rename_all = "snake_case")]
pub enum ExecMessage {
    /// Progress before the command runs, such as an image pull.
    Progress(Progress),
    /// The command has started.
    Started(ExecStart),
    /// Output on stdout or the terminal.
    Stdout(Piece),
    /// Output on its stderr.
    Stderr(Piece),
    /// The command has ended. This is the last message.
    Exited(Exit),
    /// The Operation has failed. This is the last message.
    Error(Error),
}

/// First byte of a binary message with stdout.
pub const STDOUT: u8 = 1;
/// First byte of a binary message with stderr.
pub const STDERR: u8 = 2;

/// Progress of the current step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Progress {
    /// The current step, for users.
    pub what: String,
    /// The amount that is done, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done: Option<u64>,
    /// The total amount, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
}

impl Progress {
    /// Converts the arguments of [`crate::Watch::step`].
    pub fn new(what: &str, part: Option<Part>) -> Self {
        Self {
            what: what.to_owned(),
            done: part.map(|part| part.done),
            of: part.map(|part| part.of),
        }
    }

    /// The amount done and the total, if both are known.
    pub fn part(&self) -> Option<Part> {
        Some(Part { done: self.done?, of: self.of? })
    }
}

/// A command that has started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Started"))]
pub struct ExecStart {
    /// The id of the Exec in its sandbox.
    pub id: u64,
    /// The pid of the command inside the sandbox.
    pub pid: u32,
    /// The name of the sandbox.
    pub sandbox: Name,
}

/// Output bytes: text if they are UTF-8, else base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    /// Output that is valid UTF-8.
    Text(String),
    /// Any other output, in base64.
    Base64(String),
}
