//! One command in a sandbox, and its exit.

use crate::{CallOrigin, Error, Result, Span};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Source of the standard input of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Closed: end of file at once.
    #[default]
    Closed,
    /// Bytes that the client sends until it closes the stream.
    Streamed,
}

/// Size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TermSize {
    /// Number of lines of text.
    pub rows: u16,
    /// Number of characters in a line.
    pub cols: u16,
}

/// A user inside: `name`, `uid`, `name:group`, `uid:gid`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct UserRef(String);

impl UserRef {
    /// Parses `name`, `uid`, `name:group` or `uid:gid`.
    pub fn parse(text: &str) -> Result<Self> {
        let is_valid_part = |part: &str| {
            let word = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-$".contains(&b));
            let number_fits = !part.bytes().all(|b| b.is_ascii_digit())
                || part.parse::<u32>().is_ok_and(|id| id < u32::MAX);
            !part.is_empty() && part.len() <= 64 && word && !part.starts_with('-') && number_fits
        };
        let (user, group) = text.split_once(':').map_or((text, None), |(u, g)| (u, Some(g)));
        if is_valid_part(user) && group.is_none_or(is_valid_part) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(format!("not a user: `{}`", text))
            .hint("write it as `name`, `1000`, `name:group` or `1000:1000`"))
    }

    /// Name or id of the user.
    pub fn user(&self) -> &str {
        self.0.split_once(':').map_or(&self.0, |(user, _)| user)
    }

    /// Name or id of the group, if one was given.
    pub fn group(&self) -> Option<&str> {
        self.0.split_once(':').map(|(_, group)| group)
    }

    /// Whether this is root by name or id, so that no second id is needed.
    pub fn is_root(&self) -> bool {
        matches!(self.user(), "root" | "0") && matches!(self.group(), None | Some("root" | "0"))
    }
}

impl fmt::Display for UserRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Name of a resource limit, as in setrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names are those of setrlimit(2)")]
pub enum RlimitName {
    Cpu,
    Fsize,
    Data,
    Stack,
    Core,
    Rss,
    Nproc,
    Nofile,
    Memlock,
    As,
    Locks,
    Sigpending,
    Msgqueue,
    Nice,
    Rtprio,
    Rttime,
}

impl RlimitName {
    const ALL: [(&'static str, Self); 16] = [
        ("cpu", Self::Cpu),
        ("fsize", Self::Fsize),
        ("data", Self::Data),
        ("stack", Self::Stack),
        ("core", Self::Core),
        ("rss", Self::Rss),
        ("nproc", Self::Nproc),
        ("nofile", Self::Nofile),
        ("memlock", Self::Memlock),
        ("as", Self::As),
        ("locks", Self::Locks),
        ("sigpending", Self::Sigpending),
        ("msgqueue", Self::Msgqueue),
        ("nice", Self::Nice),
        ("rtprio", Self::Rtprio),
        ("rttime", Self::Rttime),
    ];
}

/// A resource limit: `nofile=1024` or `nofile=1024:4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct Rlimit {
    /// Which of the resources is limited.
    pub name: RlimitName,
    /// Soft limit, in force; `None` is unlimited.
    pub soft: Option<u64>,
    /// Hard limit, up to which the command may raise the soft one; `None` is unlimited.
    pub hard: Option<u64>,
}

impl Rlimit {
    /// Parses `NAME=SOFT[:HARD]`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("not a resource limit: `{}`", text))
                .hint("write it as `nofile=1024` or `nofile=1024:4096`; `unlimited` is a value")
        };
        let amount = |text: &str| match text {
            "unlimited" | "-1" => Ok(None),
            digits => digits.parse().map(Some).map_err(|_| wrong()),
        };
        let (name, values) = text.split_once('=').ok_or_else(wrong)?;
        let (soft, hard) = values.split_once(':').unwrap_or((values, values));
        let (_, name) = *RlimitName::ALL.iter().find(|(n, _)| *n == name).ok_or_else(wrong)?;
        let (soft, hard) = (amount(soft)?, amount(hard)?);
        if soft.unwrap_or(u64::MAX) > hard.unwrap_or(u64::MAX) {
            return Err(wrong().cause("the soft limit is above the hard one"));
        }
        Ok(Self { name, soft, hard })
    }
}

impl fmt::Display for Rlimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = RlimitName::ALL.iter().find(|(_, name)| *name == self.name);
        let shown = |value: Option<u64>| value.map_or("unlimited".to_owned(), |v| v.to_string());
        let name = name.map_or("", |(name, _)| name);
        write!(f, "{name}={}:{}", shown(self.soft), shown(self.hard))
    }
}

written_as_text!(Rlimit, UserRef);

/// A command as sent to a worker: complete, without open decisions.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Command {
    /// Program name and arguments; never empty.
    pub argv: Vec<String>,
    /// Variables besides those of the sandbox; the last of a name wins.
    pub env: Vec<(String, String)>,
    /// Working directory; `None` is the sandbox's.
    pub workdir: Option<String>,
    /// User that it runs as; `None` is the sandbox's.
    pub user: Option<UserRef>,
    /// Standard input: closed or streamed.
    pub stdin: Stdin,
    /// Size of a terminal, which replaces the pipes.
    pub tty: Option<TermSize>,
    /// Time after which it is killed.
    pub timeout: Option<Span>,
    /// Resource limits besides those of the sandbox.
    pub rlimits: Vec<Rlimit>,
    /// Whether it continues when its client disconnects.
    pub detached: bool,
    /// Whether its output is kept out of the log: it is for a program of msb, not for users.
    #[serde(default)]
    pub unlogged: bool,
    /// Origin of the request. The server sets it and ignores what it receives.
    #[serde(default, rename = "asker")]
    pub origin: Option<CallOrigin>,
}

impl Command {
    /// Checks names and sizes of the environment variables.
    pub fn check(&self) -> Result<()> {
        crate::spec::check_env(self.env.iter().map(|(name, value)| (name, value)))
    }
}

/// How the first command of a sandbox is connected to its caller. It is part of the Plan, so it is
/// decided before the sandbox is planned.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CommandStreams {
    /// Standard input: closed or streamed.
    pub stdin: Stdin,
    /// Size of a terminal, which replaces the pipes.
    pub tty: Option<TermSize>,
    /// Value of the variable TERM, if the command has none.
    pub term: Option<String>,
    /// Whether the command continues when its caller disconnects.
    pub detached: bool,
}

impl CommandStreams {
    /// Streams of a command in the background: no stdin, and no end with its caller.
    pub fn in_background() -> Self {
        Self { detached: true, ..Self::default() }
    }

    /// Streams of a command that reads what its caller sends.
    pub fn with_stdin() -> Self {
        Self { stdin: Stdin::Streamed, ..Self::default() }
    }

    /// Connects a planned command to these streams.
    pub fn connect(&self, command: &mut Command) {
        (command.stdin, command.tty, command.detached) = (self.stdin, self.tty, self.detached);
        if let Some(term) = &self.term
            && !command.env.iter().any(|(name, _)| name == "TERM")
        {
            command.env.push(("TERM".to_owned(), term.clone()));
        }
    }
}

/// Why a command or sandbox ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It exited or crashed by itself.
    Own,
    /// The timeout of the command passed.
    Timeout,
    /// The memory limit was reached.
    Memory,
    /// The sandbox's longest duration passed.
    MaxDuration,
    /// Nothing ran for the sandbox's idle timeout.
    Idle,
    /// A request stopped the sandbox or killed the Exec.
    Stopped,
    /// The last Exec of a draining sandbox ended.
    Drained,
    /// The worker was killed, or the host went down.
    Crashed,
    /// The kernel of its microVM panicked.
    Panicked,
    /// Its microVM was powered off from inside.
    PoweredOff,
    /// Its health check failed too often.
    Unhealthy,
}

impl Ending {
    /// Reason as a text for users; `None` if it ended by itself.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Own => None,
            Self::Timeout => Some("its timeout passed"),
            Self::Memory => Some("the memory limit was reached"),
            Self::MaxDuration => Some("the sandbox's longest duration passed"),
            Self::Idle => Some("the sandbox was idle for its idle timeout"),
            Self::Stopped => Some("it was stopped"),
            Self::Drained => Some("the sandbox was drained"),
            Self::Crashed => Some("the worker died"),
            Self::Panicked => Some("the kernel of its microVM panicked"),
            Self::PoweredOff => Some("its microVM was powered off from inside"),
            Self::Unhealthy => Some("its health check failed too often"),
        }
    }
}

/// A limit that a command reached without being killed: a system call failed instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Reached"))]
#[serde(rename_all = "snake_case")]
pub enum LimitReached {
    /// No more processes or threads could be created.
    Pids,
    /// The writable layer is full.
    Disk,
}

impl LimitReached {
    /// Reason as a text for users.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Pids => "the limit on processes was reached",
            Self::Disk => "the writable layer is full",
        }
    }
}

/// Exit of a command: code or signal, and the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Exit {
    /// Exit code, if it exited by itself.
    pub code: Option<i32>,
    /// Signal number, if one killed it.
    pub signal: Option<i32>,
    /// Why the command has ended.
    pub ending: Ending,
    /// Limit that it reached, if it failed.
    #[serde(default)]
    pub reached: Option<LimitReached>,
}

impl Exit {
    /// Reason for a failure that is not its own alone; `None` otherwise.
    pub fn reason(&self) -> Option<&'static str> {
        self.ending.reason().or(self.reached.map(LimitReached::reason))
    }

    /// Exit status as in a shell: its own code, 124 after a timeout, 128+n after signal n.
    pub fn status(&self) -> i32 {
        match (self.ending, self.code, self.signal) {
            (Ending::Timeout, _, _) => 124,
            (_, Some(code), _) => code,
            (_, None, Some(signal)) => 128 + signal,
            (_, None, None) => 125,
        }
    }

    /// Whether the exit status is zero.
    pub fn success(&self) -> bool {
        self.status() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let exit = |code, signal, ending| Exit { code, signal, ending, reached: None }.status();
        assert_eq!(exit(Some(7), None, Ending::Own), 7);
        assert_eq!(exit(None, Some(9), Ending::Own), 137);
        assert_eq!(exit(None, Some(9), Ending::Memory), 137);
        assert_eq!(exit(None, Some(9), Ending::Timeout), 124);
    }

    #[test]
    fn users_are_names_or_numbers() {
        for good in ["root", "1000", "www-data:www-data", "1000:0"] {
            assert!(UserRef::parse(good).is_ok(), "{good}");
        }
        for bad in ["", ":", "a:", ":b", "a b", "-1", "4294967295", "a:b:c", "a\n"] {
            assert!(UserRef::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rlimits_round_trip() {
        for text in ["nofile=1024:4096", "core=0:0", "stack=8192:unlimited"] {
            assert_eq!(Rlimit::parse(text).unwrap().to_string(), text);
        }
        for bad in ["nofile", "x=1", "nofile=5:1", "nofile=a"] {
            assert!(Rlimit::parse(bad).is_err(), "{bad}");
        }
    }
}
