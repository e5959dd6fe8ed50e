//! Records of a sandbox's logs, written by its worker and read back by whoever asks.
//!
//! Output is binary, so its records are `length (u32) · source (u8) · exec (u64) · time (u64,
//! milliseconds since 1970) · bytes`. Execs and events are JSON lines. A reader skips what it
//! cannot read: a worker may have died in the middle of a write.

use msb_spec::{Ending, Exit};
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
    Paused,
    /// It goes on.
    Resumed,
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
    fn a_length_beyond_all_reason_is_damage() {
        assert_eq!(Output::parse(&[0xff; 64]), None);
    }
}
