//! Records of a sandbox's logs, written by its worker.
//!
//! Output is binary: `length (u32) · source (u8) · exec (u64) · time (u64, milliseconds since 1970)
//! · bytes`. Execs and events are JSON lines. A reader skips what it cannot parse: a worker may
//! have been killed in the middle of a write.

use crate::chain::Link;
use msb_spec::{CallOrigin, Ending, Exit, HealthStatus, Kind, Name};
use serde::{Deserialize, Serialize};

/// Stream that a line of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Stdout of a command, or its terminal.
    Stdout,
    /// Stderr of a command without a terminal.
    Stderr,
    /// A message of msb itself.
    System,
}

/// Output of one Exec, as one record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Stream that it came from.
    pub source: Source,
    /// Number of the Exec; 0 is msb itself.
    pub exec: u64,
    /// Time in milliseconds since 1970.
    pub time: u64,
    /// Bytes as they were written, in any encoding.
    pub bytes: Vec<u8>,
}

const OUTPUT_HEADER: usize = 4 + 1 + 8 + 8;
/// Longest record in bytes; a larger length means a damaged file.
const OUTPUT_LIMIT: usize = 1 << 20;

impl Output {
    /// Header of a record with `length` bytes of output.
    pub fn header(source: Source, exec: u64, time: u64, length: usize) -> [u8; OUTPUT_HEADER] {
        let mut header = [0; OUTPUT_HEADER];
        let length = u32::try_from(length).expect("output is read in pieces below 1 MiB");
        header[..4].copy_from_slice(&length.to_le_bytes());
        header[4] = match source {
            Source::Stdout => 1,
            Source::Stderr => 2,
            Source::System => 3,
        };
        header[5..13].copy_from_slice(&exec.to_le_bytes());
        header[13..].copy_from_slice(&time.to_le_bytes());
        header
    }

    /// Parses the first record; returns it and its length. `None` if it is incomplete or damaged.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let header = bytes.get(..OUTPUT_HEADER)?;
        let number_at = |range: std::ops::Range<usize>| -> Option<u64> {
            Some(u64::from_le_bytes(header.get(range)?.try_into().ok()?))
        };
        let length = u32::from_le_bytes(header.get(..4)?.try_into().ok()?) as usize;
        let source = match header[4] {
            1 => Source::Stdout,
            2 => Source::Stderr,
            3 => Source::System,
            _ => return None,
        };
        if length > OUTPUT_LIMIT {
            return None;
        }
        let whole = OUTPUT_HEADER + length;
        let body = bytes.get(OUTPUT_HEADER..whole)?.to_vec();
        Some((
            Self { source, exec: number_at(5..13)?, time: number_at(13..21)?, bytes: body },
            whole,
        ))
    }
}

/// A line of the Exec log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum ExecRecord {
    /// An Exec was started.
    Started {
        /// Number of the Exec in this sandbox.
        exec: u64,
        /// Time in milliseconds since 1970.
        time: u64,
        /// Pid of the command inside the sandbox.
        pid: u32,
        /// Program name and arguments.
        argv: Vec<String>,
        /// User, if not the sandbox's own.
        user: Option<String>,
        /// Whether it has a terminal.
        tty: bool,
        /// Whether it continues without its client.
        detached: bool,
    },
    /// An Exec has ended.
    Ended {
        /// Number of the Exec in this sandbox.
        exec: u64,
        /// Time in milliseconds since 1970.
        time: u64,
        /// Exit code or signal, and the reason.
        exit: Exit,
    },
}

/// A line of the event log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Number of the event in this sandbox, from 1 on, without gaps.
    pub number: u64,
    /// Time in milliseconds since 1970.
    pub time: u64,
    /// The event itself, flattened into the line.
    #[serde(flatten)]
    pub happened: EventKind,
    /// Hash of the previous line, at the start of a file or of a chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Link>,
    /// Hash of this line and of all before it. It stays the last member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Link>,
}

impl Event {
    /// An event that has no hash yet.
    pub fn new(number: u64, time: u64, happened: EventKind) -> Self {
        Self { number, time, happened, after: None, chain: None }
    }
}

/// Command of an Exec, as it is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Ran"))]
pub struct CommandRecord {
    /// Program name and arguments, cut after 4096 bytes or 512 arguments.
    pub argv: Vec<String>,
    /// Bytes that were cut off at the end, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<u64>,
    /// User, if not the sandbox's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Caller that requested it, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<CallOrigin>,
}

/// Bytes of a command that are recorded: a script given as an argument can be of any length.
const ARGV_KEPT: usize = 4096;
/// Arguments that are recorded: each costs quotes and a comma, however short it is.
const ARGUMENTS_KEPT: usize = 512;

impl CommandRecord {
    /// Records a command, cut to the limits above.
    pub fn new(argv: &[String], user: Option<String>, by: Option<CallOrigin>) -> Self {
        let all: usize = argv.iter().map(String::len).sum();
        let (mut kept, mut left) = (Vec::new(), ARGV_KEPT);
        for argument in argv.iter().take(ARGUMENTS_KEPT) {
            let length = argument.floor_char_boundary(left);
            kept.push(argument[..length].to_owned());
            left -= length;
            if length < argument.len() {
                break;
            }
        }
        let cut = all - kept.iter().map(String::len).sum::<usize>();
        let whole = cut == 0 && kept.len() == argv.len();
        Self { argv: kept, cut: (!whole).then_some(cut as u64), user, by }
    }
}

/// Reason for which a sandbox paused by its idle timer was resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Woken"))]
#[serde(rename_all = "snake_case")]
pub enum WakeReason {
    /// A command was started, signalled, attached to or sent input.
    Exec,
    /// A file operation was requested.
    Files,
    /// A packet arrived from its network.
    Traffic,
    /// A timer: the sandbox was modified, or its first command is due for a restart.
    Clock,
    /// A request: `msb resume` or `msb drain`.
    Asked,
}

/// Kind of an event, with its details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Happened"))]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum EventKind {
    /// The worker process has started.
    Started {
        /// Pid of the worker on the host.
        worker: u32,
    },
    /// The sandbox is set up as its Plan says.
    Created,
    /// The sandbox accepts no new Execs.
    Draining,
    /// All processes inside were frozen.
    Paused {
        /// Whether its idle timer caused this, and no request.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        idle: bool,
    },
    /// All processes inside continue.
    Resumed {
        /// Reason for the wake-up, if its idle timer had paused it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<WakeReason>,
    },
    /// The first command has ended and was started again.
    Restarted {
        /// Number of restarts since the sandbox was started.
        count: u32,
        /// How the command had ended.
        exit: Exit,
    },
    /// The health status has changed.
    Health {
        /// Health status from now on.
        status: HealthStatus,
        /// Last output of the check that failed.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        output: String,
    },
    /// The Plan was changed by `msb modify`.
    Modified {
        /// Changed settings, named after the flags of `msb modify`.
        what: Vec<String>,
    },
    /// The sandbox got another name.
    Renamed {
        /// The name before the change.
        from: Name,
    },
    /// The expiry of the sandbox was changed.
    Renewed {
        /// New expiry in milliseconds since 1970; `None` means never.
        ends: Option<u64>,
    },
    /// The gateway process has ended: the sandbox has no network any more.
    Disconnected,
    /// The sandbox and its worker have stopped.
    Stopped {
        /// Reason why the sandbox stopped.
        ending: Ending,
        /// Exit of its first command, if it had one that ended.
        exit: Option<Exit>,
    },
    /// The state left by a killed worker was cleaned up.
    Repaired,
    /// A command was started inside.
    ExecStarted {
        /// Number of the Exec in this sandbox.
        exec: u64,
        /// Command of the Exec, flattened into the line.
        #[serde(flatten)]
        ran: CommandRecord,
        /// Whether it has a terminal.
        tty: bool,
    },
    /// A command was requested and could not start.
    ExecFailed {
        /// Command of the Exec, flattened into the line.
        #[serde(flatten)]
        ran: CommandRecord,
        /// Kind of the error that stopped it.
        reason: Kind,
    },
    /// A command has exited or was killed.
    ExecEnded {
        /// Number of the Exec in this sandbox.
        exec: u64,
        /// Exit code or signal, and the reason.
        exit: Exit,
        /// Run time of the command in milliseconds.
        duration_ms: u64,
    },
    /// Code was sent to a running interpreter.
    CodeStarted {
        /// Number of the Exec of the interpreter.
        exec: u64,
        /// The code as one argument, flattened into the line.
        #[serde(flatten)]
        ran: CommandRecord,
    },
    /// The interpreter has run the code.
    CodeEnded {
        /// Number of the Exec of the interpreter.
        exec: u64,
        /// Exit status as in a shell; `None` if it was interrupted or killed.
        status: Option<i32>,
        /// Run time of the code in milliseconds.
        duration_ms: u64,
    },
}

impl EventKind {
    /// Whether this is about a command and not about the sandbox itself.
    pub fn is_of_exec(&self) -> bool {
        matches!(
            self,
            Self::ExecStarted { .. }
                | Self::ExecFailed { .. }
                | Self::ExecEnded { .. }
                | Self::CodeStarted { .. }
                | Self::CodeEnded { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_round_trips_and_damage_is_noticed() {
        let mut bytes = Output::header(Source::Stderr, 7, 1234, 3).to_vec();
        bytes.extend_from_slice(b"a\0b");
        let (record, length) = Output::parse(&bytes).unwrap();
        assert_eq!(length, bytes.len());
        assert_eq!(
            record,
            Output { source: Source::Stderr, exec: 7, time: 1234, bytes: b"a\0b".to_vec() }
        );
        assert_eq!(Output::parse(&bytes[..bytes.len() - 1]), None);
        bytes[4] = 9;
        assert_eq!(Output::parse(&bytes), None);
    }

    #[test]
    fn a_long_command_is_cut_and_says_so() {
        let words = |words: &[&str]| words.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let whole = CommandRecord::new(&words(&["sh", "-c", ""]), None, None);
        assert_eq!((whole.argv, whole.cut), (words(&["sh", "-c", ""]), None));
        let long = "\u{e4}".repeat(5000);
        let cut = CommandRecord::new(&words(&["sh", &long, "more"]), None, None);
        assert_eq!(cut.argv, words(&["sh", &"\u{e4}".repeat(2047)]));
        assert_eq!(cut.cut, Some(10_000 - 4094 + 4));
        let many = CommandRecord::new(&vec![String::new(); 600], None, None);
        assert_eq!((many.argv.len(), many.cut), (ARGUMENTS_KEPT, Some(0)));
    }

    #[test]
    fn events_without_a_hash_are_read() {
        let event: Event =
            serde_json::from_str(r#"{"number":1,"time":2,"event":"created"}"#).unwrap();
        assert_eq!(event, Event::new(1, 2, EventKind::Created));
    }

    #[test]
    fn a_length_over_the_limit_is_damage() {
        assert_eq!(Output::parse(&[0xff; 64]), None);
    }
}
