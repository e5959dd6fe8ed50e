//! One command in a sandbox, and how it ended.

use crate::{Asker, Error, Result, Span};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a command reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Nothing: end of file at once.
    #[default]
    Closed,
    /// What the caller sends until it says it is done.
    Streamed,
}

/// The size of a terminal in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TermSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub cols: u16,
}

/// A user inside: `name`, `uid`, `name:group`, `uid:gid`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub struct UserRef(String);

impl UserRef {
    /// Checks and takes a user.
    pub fn parse(text: &str) -> Result<Self> {
        let part_is_well = |part: &str| {
            let word = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-$".contains(&b));
            let number_fits = !part.bytes().all(|b| b.is_ascii_digit())
                || part.parse::<u32>().is_ok_and(|id| id < u32::MAX);
            !part.is_empty() && part.len() <= 64 && word && !part.starts_with('-') && number_fits
        };
        let (user, group) = text.split_once(':').map_or((text, None), |(u, g)| (u, Some(g)));
        if part_is_well(user) && group.is_none_or(part_is_well) {
            return Ok(Self(text.to_owned()));
        }
        Err(Error::invalid(format!("not a user: `{}`", text))
            .hint("write it as `name`, `1000`, `name:group` or `1000:1000`"))
    }

    /// The user's name or number.
    pub fn user(&self) -> &str {
        self.0.split_once(':').map_or(&self.0, |(user, _)| user)
    }

    /// The group's name or number, if one was given.
    pub fn group(&self) -> Option<&str> {
        self.0.split_once(':').map(|(_, group)| group)
    }

    /// Whether this is root, by name or number, so that no second id is needed.
    pub fn is_root(&self) -> bool {
        matches!(self.user(), "root" | "0") && matches!(self.group(), None | Some("root" | "0"))
    }
}

impl fmt::Display for UserRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a resource limit.
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
    /// Which.
    pub name: RlimitName,
    /// What holds now; none is unlimited.
    pub soft: Option<u64>,
    /// How far the command may raise it; none is unlimited.
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

/// A command as it is handed to a worker: complete, nothing left to decide.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Command {
    /// The program and its arguments; never empty.
    pub argv: Vec<String>,
    /// Environment beyond the sandbox's own; later wins.
    pub env: Vec<(String, String)>,
    /// Where it starts; none is the sandbox's.
    pub workdir: Option<String>,
    /// Who runs it; none is the sandbox's.
    pub user: Option<UserRef>,
    /// What it reads.
    pub stdin: Stdin,
    /// A terminal of this size instead of pipes.
    pub tty: Option<TermSize>,
    /// When it is killed.
    pub timeout: Option<Span>,
    /// Resource limits beyond the sandbox's own.
    pub rlimits: Vec<Rlimit>,
    /// Whether it goes on when its caller leaves.
    pub detached: bool,
    /// Whether what it says is kept out of the log: it is for a program of ours, not for people.
    #[serde(default)]
    pub unlogged: bool,
    /// Who asks for it. A server sets this itself, whatever it is sent.
    #[serde(default)]
    pub asker: Option<Asker>,
}

impl Command {
    /// Checks what no single field can check.
    pub fn check(&self) -> Result<()> {
        crate::spec::check_env(self.env.iter().map(|(name, value)| (name, value)))
    }
}

/// Why something ended other than by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// It exited or died by itself.
    Own,
    /// Its timeout passed.
    Timeout,
    /// The memory limit was reached.
    Memory,
    /// The sandbox's longest duration passed.
    MaxDuration,
    /// Nothing happened for the sandbox's idle timeout.
    Idle,
    /// Somebody stopped the sandbox or killed the Exec.
    Stopped,
    /// The last Exec of a draining sandbox ended.
    Drained,
    /// The worker went away without a word: killed, or the host went down.
    Crashed,
    /// The kernel of its microVM gave up.
    Panicked,
    /// Its microVM was switched off from inside.
    PoweredOff,
    /// Its health check failed too often.
    Unhealthy,
}

impl Ending {
    /// The reason as a person reads it; none for an end of its own.
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
            Self::PoweredOff => Some("its microVM was switched off from inside"),
            Self::Unhealthy => Some("its health check failed too often"),
        }
    }
}

/// A limit that a command ran into and was not ended by: it saw an error instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Reached {
    /// No more processes or threads could be made.
    Pids,
    /// The writable layer is full.
    Disk,
}

impl Reached {
    /// As a person reads it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Pids => "the limit on processes was reached",
            Self::Disk => "the writable layer is full",
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Exit {
    /// Its exit code, if it exited.
    pub code: Option<i32>,
    /// The signal that killed it, if one did.
    pub signal: Option<i32>,
    /// Why.
    pub ending: Ending,
    /// A limit that it ran into, if it failed.
    #[serde(default)]
    pub reached: Option<Reached>,
}

impl Exit {
    /// Why it did not end well, if that was not its own doing alone.
    pub fn reason(&self) -> Option<&'static str> {
        self.ending.reason().or(self.reached.map(Reached::reason))
    }

    /// The code a shell would show: its own, 124 after a timeout, 128+n after signal n.
    pub fn status(&self) -> i32 {
        match (self.ending, self.code, self.signal) {
            (Ending::Timeout, _, _) => 124,
            (_, Some(code), _) => code,
            (_, None, Some(signal)) => 128 + signal,
            (_, None, None) => 125,
        }
    }

    /// Whether it exited with zero.
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
