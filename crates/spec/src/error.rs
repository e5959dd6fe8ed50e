//! The error that every crate returns and every surface shows.
//!
//! One type, because it crosses processes (a worker reports its failure to start on a pipe) and
//! because the chain is printed in one place. Messages tell our facts, causes tell theirs, and
//! what to do about it is the hint.

use serde::{Deserialize, Serialize};
use std::fmt;

/// `Result` with the project's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What sort of failure it was; stable, so that programs can decide on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The request itself is wrong.
    Invalid,
    /// There is no such sandbox, Exec, image or file.
    NotFound,
    /// The name is taken.
    Exists,
    /// The sandbox is in a state that does not allow this.
    State,
    /// This host or this version cannot do what was asked.
    Unsupported,
    /// The host refused or failed: no space, no permission, I/O.
    Host,
    /// A limit of the sandbox was reached.
    Limit,
    /// It took longer than allowed.
    Timeout,
    /// The command is there but cannot be executed.
    NotExecutable,
    /// The command was not found inside the sandbox.
    CommandNotFound,
    /// The other side broke the protocol or went away.
    Protocol,
    /// Whoever asks may not have it.
    Denied,
}

/// Where a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Deciding what to build.
    Plan,
    /// Making the root filesystem ready.
    Image,
    /// Namespaces, mounts, cgroups, filters.
    Jail,
    /// The gateway and its device.
    Network,
    /// The guest itself.
    Boot,
    /// The command.
    Exec,
}

/// A failure: kind, our message, the causes below it and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Error {
    kind: Kind,
    stage: Option<Stage>,
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
}

impl Error {
    /// An error of this kind; the message is lower case, without a full stop.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, stage: None, message: message.into(), causes: Vec::new(), hint: None }
    }

    /// The request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// The host failed us; the cause is what it said.
    pub fn host(message: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(Kind::Host, message).cause(cause)
    }

    /// Not possible on this host or in this version.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// Adds what lies below, nearest first.
    #[must_use]
    pub fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.causes.push(plain(&cause.to_string()));
        self
    }

    /// Sets what the user can do about it.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets where a start failed.
    #[must_use]
    pub fn at(mut self, stage: Stage) -> Self {
        self.stage.get_or_insert(stage);
        self
    }

    /// Puts a wider statement on top; this error becomes its cause.
    #[must_use]
    pub fn under(mut self, message: impl Into<String>) -> Self {
        let below = std::mem::replace(&mut self.message, message.into());
        self.causes.insert(0, below);
        self
    }

    /// What sort of failure it was.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where a start failed, if it was one.
    pub fn stage(&self) -> Option<Stage> {
        self.stage
    }

    /// The top message alone.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What lies below, nearest first.
    pub fn causes(&self) -> &[String] {
        &self.causes
    }

    /// What to do about it.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// What the system says, in our own manner: lower case, without its number.
fn plain(cause: &str) -> String {
    let cause = cause.split(" (os error ").next().unwrap_or(cause).trim_end_matches('.');
    let mut letters = cause.chars();
    match (letters.next(), letters.next()) {
        // `EPERM` and `IPv6` keep their capitals.
        (Some(first), Some(second)) if first.is_uppercase() && second.is_lowercase() => {
            let mut text: String = first.to_lowercase().collect();
            text.push_str(&cause[first.len_utf8()..]);
            text
        }
        _ => cause.to_owned(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        for cause in &self.causes {
            write!(f, ": {cause}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wider_statement_keeps_the_order_of_causes() {
        let error = Error::host("cannot open `x`", "permission denied").under("cannot start `web`");
        assert_eq!(error.to_string(), "cannot start `web`: cannot open `x`: permission denied");
    }

    #[test]
    fn causes_speak_as_we_do() {
        let cause = |text: &str| Error::invalid("x").cause(text).causes()[0].clone();
        assert_eq!(cause("Permission denied (os error 13)"), "permission denied");
        assert_eq!(cause("EPERM happened"), "EPERM happened");
    }

    #[test]
    fn the_first_stage_stays() {
        let error = Error::invalid("bad").at(Stage::Jail).at(Stage::Boot);
        assert_eq!(error.stage(), Some(Stage::Jail));
    }
}
