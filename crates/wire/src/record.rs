//! Records of a sandbox's logs, written by its worker and read back by whoever asks.
//!
//! Output is binary, so its records are `length (u32) · source (u8) · exec (u64) · time (u64,
//! milliseconds since 1970) · bytes`. Execs and events are JSON lines. A reader skips what it
//! cannot read: a worker may have died in the middle of a write.

use crate::chain::Link;
use msb_spec::{Asker, Ending, Exit, HealthStatus, Kind, Name};
use serde::{Deserialize, Serialize};

/// Where a line of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// A command's first stream, or its terminal.
    Stdout,
    /// A command's second stream.
    Stderr,
    /// msb itself.
    System,
}

/// Some output of one Exec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Which stream.
    pub source: Source,
    /// Which Exec; 0 is msb itself.
    pub exec: u64,
    /// When, in milliseconds since 1970.
    pub time: u64,
    /// What.
    pub bytes: Vec<u8>,
}

const OUTPUT_HEADER: usize = 4 + 1 + 8 + 8;
/// No record is longer; a larger length is damage.
const OUTPUT_LIMIT: usize = 1 << 20;

impl Output {
    /// The header of a record; the bytes follow it.
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

    /// The first record in these bytes and how many of them it took; none if it is not whole
    /// or damaged.
    pub fn parse(bytes: &[u8]) -> Option<(Self, usize)> {
        let header = bytes.get(..OUTPUT_HEADER)?;
        let word = |range: std::ops::Range<usize>| -> Option<u64> {
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
        Some((Self { source, exec: word(5..13)?, time: word(13..21)?, bytes: body }, whole))
    }
}

/// A line of the list of Execs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum ExecRecord {
    /// One began.
    Started {
        /// Which.
        exec: u64,
        /// When, in milliseconds since 1970.
        time: u64,
        /// Its pid inside.
        pid: u32,
        /// What.
        argv: Vec<String>,
        /// Who, if not the sandbox's own user.
        user: Option<String>,
        /// Whether it has a terminal.
        tty: bool,
        /// Whether it goes on without its caller.
        detached: bool,
    },
    /// One ended.
    Ended {
        /// Which.
        exec: u64,
        /// When, in milliseconds since 1970.
        time: u64,
        /// How.
        exit: Exit,
    },
}

/// A line of the list of events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Event {
    /// Its number in this sandbox, from 1 on, without gaps.
    pub number: u64,
    /// When, in milliseconds since 1970.
    pub time: u64,
    /// What.
    #[serde(flatten)]
    pub happened: Happened,
    /// The hash of the line before this one, where that is not obvious.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Link>,
    /// The hash of this line and of all before it. It stays the last member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<Link>,
}

impl Event {
    /// One that is in no chain yet.
    pub fn new(number: u64, time: u64, happened: Happened) -> Self {
        Self { number, time, happened, after: None, chain: None }
    }
}

/// The command of an Exec, as far as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ran {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// How many bytes of them were left out at the end, if there were too many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<u64>,
    /// Who runs it, if not the sandbox's own user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Who asked for it, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Asker>,
}

/// So many bytes of a command are kept; a script given as an argument may be as long as it likes.
const ARGV_KEPT: usize = 4096;
/// So many arguments: each has quotes and a comma, however short it is.
const ARGUMENTS_KEPT: usize = 512;

impl Ran {
    /// Keeps what is kept of a command.
    pub fn new(argv: &[String], user: Option<String>, by: Option<Asker>) -> Self {
        let all: usize = argv.iter().map(String::len).sum();
        let (mut kept, mut room) = (Vec::new(), ARGV_KEPT);
        for argument in argv.iter().take(ARGUMENTS_KEPT) {
            let length = argument.floor_char_boundary(room);
            kept.push(argument[..length].to_owned());
            room -= length;
            if length < argument.len() {
                break;
            }
        }
        let cut = all - kept.iter().map(String::len).sum::<usize>();
        let whole = cut == 0 && kept.len() == argv.len();
        Self { argv: kept, cut: (!whole).then_some(cut as u64), user, by }
    }
}

/// What woke a sandbox that its idle clock had paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Woken {
    /// A command was to be begun, fed, signalled or attached to.
    Exec,
    /// A file operation.
    Files,
    /// Something came to it over its network.
    Traffic,
    /// Its clocks: it was changed, or its first command was to be begun again.
    Clock,
    /// Somebody, by `msb resume` or `msb drain`.
    Asked,
}

/// What happened to a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Happened {
    /// Its worker began.
    Started {
        /// The worker's pid on the host.
        worker: u32,
    },
    /// It is as its Plan wants it.
    Created,
    /// It takes no new Execs.
    Draining,
    /// Everything inside was stopped where it was.
    Paused {
        /// Whether nobody asked for it but its own idle clock.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        idle: bool,
    },
    /// It goes on.
    Resumed {
        /// What it was woken by, if it was its idle clock that had paused it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<Woken>,
    },
    /// Its first command ended and was begun again.
    Restarted {
        /// How often that has happened since the sandbox was started.
        count: u32,
        /// How the command had ended.
        exit: Exit,
    },
    /// Its health has changed.
    Health {
        /// To what.
        status: HealthStatus,
        /// The last that a check which failed had said.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        output: String,
    },
    /// Somebody changed what was decided about it.
    Modified {
        /// What, as the flags of `msb modify` call it.
        what: Vec<String>,
    },
    /// It got another name.
    Renamed {
        /// What it was called before.
        from: Name,
    },
    /// Somebody changed when it ends.
    Renewed {
        /// In milliseconds since 1970; never if none.
        ends: Option<u64>,
    },
    /// Its gateway has ended, and with it every way out.
    Disconnected,
    /// It is over.
    Stopped {
        /// Why.
        ending: Ending,
        /// How its first command ended, if it had one that did.
        exit: Option<Exit>,
    },
    /// Somebody cleaned up behind a worker that died.
    Repaired,
    /// A command began.
    ExecStarted {
        /// Which Exec.
        exec: u64,
        /// What.
        #[serde(flatten)]
        ran: Ran,
        /// Whether it has a terminal.
        tty: bool,
    },
    /// A command was asked for and did not begin.
    ExecFailed {
        /// What.
        #[serde(flatten)]
        ran: Ran,
        /// Why.
        reason: Kind,
    },
    /// A command ended.
    ExecEnded {
        /// Which Exec.
        exec: u64,
        /// How.
        exit: Exit,
        /// How long it took, in milliseconds.
        duration_ms: u64,
    },
    /// An interpreter that runs already was told to run something.
    CodeStarted {
        /// The Exec of the interpreter.
        exec: u64,
        /// What, as one argument.
        #[serde(flatten)]
        ran: Ran,
    },
    /// It has run that.
    CodeEnded {
        /// The Exec of the interpreter.
        exec: u64,
        /// As a shell counts it; none if it had to be interrupted or killed.
        status: Option<i32>,
        /// How long it took, in milliseconds.
        duration_ms: u64,
    },
}

impl Happened {
    /// Whether this is about a command, and not about the sandbox itself.
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
        let whole = Ran::new(&words(&["sh", "-c", ""]), None, None);
        assert_eq!((whole.argv, whole.cut), (words(&["sh", "-c", ""]), None));
        let long = "\u{e4}".repeat(5000);
        let cut = Ran::new(&words(&["sh", &long, "more"]), None, None);
        assert_eq!(cut.argv, words(&["sh", &"\u{e4}".repeat(2047)]));
        assert_eq!(cut.cut, Some(10_000 - 4094 + 4));
        let many = Ran::new(&vec![String::new(); 600], None, None);
        assert_eq!((many.argv.len(), many.cut), (ARGUMENTS_KEPT, Some(0)));
    }

    #[test]
    fn events_of_before_are_read() {
        let event: Event =
            serde_json::from_str(r#"{"number":1,"time":2,"event":"created"}"#).unwrap();
        assert_eq!(event, Event::new(1, 2, Happened::Created));
    }

    #[test]
    fn a_length_beyond_all_reason_is_damage() {
        assert_eq!(Output::parse(&[0xff; 64]), None);
    }
}
