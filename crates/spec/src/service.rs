//! A first command that is a service: when it is begun again, and how its health is found out.

use crate::{Error, Result, Span};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// When the first command is begun again: `no`, `on-failure`, `on-failure:5`, `always`, `always:5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Restart {
    /// Never: the sandbox ends with it.
    #[default]
    No,
    /// When it fails, at most this often.
    OnFailure(Option<u32>),
    /// However it ends, at most this often.
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

    /// Whether it is ever begun again.
    pub fn is_some(self) -> bool {
        self != Self::No
    }

    /// Whether one that ended, well or not, is begun again after `count` times before.
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
            "description": "When the first command is begun again: `no`, `on-failure[:N]` or `always[:N]`.",
            "pattern": "^(no|(on-failure|always)(:[1-9][0-9]*)?)$",
        })
    }
}

/// A command that tells whether a sandbox is well, by exiting with zero.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Health {
    /// What `/bin/sh -c` is given, as the sandbox's user.
    pub command: String,
    /// From the end of one check to the next.
    #[serde(default = "Health::usual_interval")]
    pub interval: Span,
    /// A check that takes longer has failed.
    #[serde(default = "Health::usual_timeout")]
    pub timeout: Span,
    /// This many failures in a row are unhealthy.
    #[serde(default = "Health::usual_retries")]
    pub retries: u32,
    /// For this long after the start failures do not count, unless a check went well before.
    #[serde(default = "Health::usual_start")]
    pub start: Span,
}

impl Health {
    /// A check as often, as long and as patient as usual.
    pub fn new(command: impl Into<String>) -> Self {
        Self {
            command: command.into(),
            interval: Self::usual_interval(),
            timeout: Self::usual_timeout(),
            retries: Self::usual_retries(),
            start: Self::usual_start(),
        }
    }

    fn usual_interval() -> Span {
        Span(Duration::from_secs(5))
    }

    fn usual_timeout() -> Span {
        Span(Duration::from_secs(30))
    }

    fn usual_retries() -> u32 {
        3
    }

    fn usual_start() -> Span {
        Span(Duration::ZERO)
    }

    pub(crate) fn check(&self) -> Result<()> {
        /// More often would keep a processor busy with asking.
        const LEAST: Duration = Duration::from_millis(50);
        if self.command.trim().is_empty() {
            return Err(Error::invalid("a health check needs a command"));
        }
        if self.command.contains('\0') {
            return Err(Error::invalid("a health check cannot hold a zero byte"));
        }
        if self.interval.0 < LEAST || self.timeout.0 < LEAST {
            return Err(Error::invalid("a health check is at least 50 ms apart and long"));
        }
        if self.retries == 0 {
            return Err(Error::invalid("a health check fails at least once before it counts"));
        }
        Ok(())
    }
}

/// How a sandbox with a health check is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// No check has gone well yet, and not enough have failed.
    Starting,
    /// The last checks went well.
    Healthy,
    /// Too many failed in a row.
    Unhealthy,
}

impl HealthStatus {
    /// As people read it.
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
