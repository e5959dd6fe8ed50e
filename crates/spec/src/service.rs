//! Services: restart policy and health check of the first command.

use crate::{Error, Result, Span};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Restart policy of the first command: `no`, `on-failure`, `on-failure:5`, `always`, `always:5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Restart {
    /// Never: the sandbox stops with the command.
    #[default]
    No,
    /// After a failure, at most so many times; `None` is unlimited.
    OnFailure(Option<u32>),
    /// After any exit, at most so many times; `None` is unlimited.
    Always(Option<u32>),
}

impl Restart {
    /// Parses `no`, `on-failure[:N]` or `always[:N]`.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!("not a restart policy: `{text}`"))
                .hint("it is `no`, `on-failure` or `always`; `on-failure:5` gives up after five")
        };
        let (when, most) = match text.split_once(':') {
            None => (text, None),
            Some((when, most)) => (when, Some(most.parse::<u32>().map_err(|_| wrong())?)),
        };
        match (when, most) {
            (_, Some(0)) => Err(wrong()),
            ("no", None) => Ok(Self::No),
            ("on-failure", most) => Ok(Self::OnFailure(most)),
            ("always", most) => Ok(Self::Always(most)),
            _ => Err(wrong()),
        }
    }

    /// Whether the command is ever restarted.
    pub fn is_some(self) -> bool {
        self != Self::No
    }

    /// Whether a command that exited is restarted after `count` earlier restarts.
    pub fn again(self, success: bool, count: u32) -> bool {
        match self {
            Self::No => false,
            Self::OnFailure(most) => !success && most.is_none_or(|most| count < most),
            Self::Always(most) => most.is_none_or(|most| count < most),
        }
    }
}

impl fmt::Display for Restart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::No => f.write_str("no"),
            Self::OnFailure(None) => f.write_str("on-failure"),
            Self::OnFailure(Some(most)) => write!(f, "on-failure:{most}"),
            Self::Always(None) => f.write_str("always"),
            Self::Always(Some(most)) => write!(f, "always:{most}"),
        }
    }
}

written_as_text!(Restart);

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Restart {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Restart".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "description": "Restart policy of the first command: `no`, `on-failure[:N]` or `always[:N]`.",
            "pattern": "^(no|(on-failure|always)(:[1-9][0-9]*)?)$",
        })
    }
}

/// A health check: a command that exits with 0 if the sandbox is healthy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// Argument of `/bin/sh -c`, run as the sandbox's user.
    pub command: String,
    /// Time from the end of one check to the next; default 5 s.
    #[serde(default = "Health::default_interval")]
    pub interval: Span,
    /// Time after which a check has failed; default 30 s.
    #[serde(default = "Health::default_timeout")]
    pub timeout: Span,
    /// Failures in a row that make it unhealthy; default 3.
    #[serde(default = "Health::default_retries")]
    pub retries: u32,
    /// Time after the start in which failures do not count, unless a check succeeded before;
    /// default 0.
    #[serde(default = "Health::default_start")]
    pub start: Span,
}

impl Health {
    /// A check with default times and retries.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            interval: Self::default_interval(),
            timeout: Self::default_timeout(),
            retries: Self::default_retries(),
            start: Self::default_start(),
        }
    }

    fn default_interval() -> Span {
        Span(Duration::from_secs(5))
    }

    fn default_timeout() -> Span {
        Span(Duration::from_secs(30))
    }

    fn default_retries() -> u32 {
        3
    }

    fn default_start() -> Span {
        Span(Duration::ZERO)
    }

    pub(crate) fn check(&self) -> Result<()> {
        /// Shorter times would keep a CPU busy with checks.
        const MIN_TIME: Duration = Duration::from_millis(50);
        if self.command.trim().is_empty() {
            return Err(Error::invalid("a health check needs a command"));
        }
        if self.command.contains('\0') {
            return Err(Error::invalid("a health check cannot contain a zero byte"));
        }
        if self.interval.0 < MIN_TIME || self.timeout.0 < MIN_TIME {
            return Err(Error::invalid(
                "interval and timeout of a health check must be at least 50 ms",
            ));
        }
        if self.retries == 0 {
            return Err(Error::invalid("a health check needs at least one retry"));
        }
        Ok(())
    }
}

/// Health of a sandbox, by its last checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// No check has succeeded yet, and not enough have failed.
    Starting,
    /// The last checks have succeeded.
    Healthy,
    /// Too many checks failed in a row.
    Unhealthy,
}

impl HealthStatus {
    /// Name of the status, as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_round_trip() {
        for text in ["no", "on-failure", "on-failure:3", "always", "always:1"] {
            assert_eq!(Restart::parse(text).unwrap().to_string(), text);
        }
        for bad in ["", "yes", "no:3", "on-failure:", "on-failure:0", "always:-1", "unless-stopped"]
        {
            assert!(Restart::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_policy_counts_and_tells_failures_from_ends() {
        let policy = Restart::OnFailure(Some(2));
        assert!(policy.again(false, 0) && policy.again(false, 1) && !policy.again(false, 2));
        assert!(!policy.again(true, 0));
        assert!(Restart::Always(None).again(true, 99) && !Restart::No.again(false, 0));
    }
}
