//! The error that all crates return and all interfaces show.
//!
//! One type, because it crosses processes (a worker reports its failure to start on a pipe) and
//! because the chain is printed in one place. The message states the fact of msb, the causes those
//! of the system, the hint what to do.

use serde::{Deserialize, Serialize};
use std::fmt;

/// `Result` with the error type of this project.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of a failure; stable, so that programs can branch on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The request itself is invalid.
    Invalid,
    /// There is no such sandbox, Exec, image or file.
    NotFound,
    /// The name is already in use.
    Exists,
    /// The state of the sandbox does not allow this.
    State,
    /// This host or this version cannot do it.
    Unsupported,
    /// The host refused or failed: no space, no permission, I/O.
    Host,
    /// A limit of the sandbox was reached.
    Limit,
    /// The operation exceeded its time limit.
    Timeout,
    /// The command exists but cannot be executed.
    NotExecutable,
    /// The command was not found inside the sandbox.
    CommandNotFound,
    /// The peer violated the protocol or disconnected.
    Protocol,
    /// The caller is not allowed to do this.
    Denied,
}

/// Stage at which a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Planning: deciding what to build.
    Plan,
    /// Preparing the root file system.
    Image,
    /// Namespaces, mounts, cgroups, filters.
    Jail,
    /// The gateway and its network device.
    Network,
    /// Starting the guest inside the sandbox.
    Boot,
    /// Starting the first command inside.
    Exec,
}

/// A failure: kind, message, causes and hint.
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

    /// An error of kind [`Kind::Invalid`]: the request is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// An error of kind `Host`; the cause is the error of the system.
    pub fn host(message: impl Into<String>, cause: impl fmt::Display) -> Self {
        Self::new(Kind::Host, message).cause(cause)
    }

    /// An error of kind [`Kind::Unsupported`]: not possible here.
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(Kind::Unsupported, message)
    }

    /// Appends a cause, nearest first.
    #[must_use]
    pub fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.causes.push(normalize_cause(&cause.to_string()));
        self
    }

    /// Sets the hint: what the user can do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the stage of a failed start, unless it is set.
    #[must_use]
    pub fn at(mut self, stage: Stage) -> Self {
        self.stage.get_or_insert(stage);
        self
    }

    /// Puts a more general message on top; the previous message becomes the first cause.
    #[must_use]
    pub fn under(mut self, message: impl Into<String>) -> Self {
        let below = std::mem::replace(&mut self.message, message.into());
        self.causes.insert(0, below);
        self
    }

    /// Kind of this failure, stable for programs.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Stage of a start that failed; `None` for other failures.
    pub fn stage(&self) -> Option<Stage> {
        self.stage
    }

    /// The message without its causes.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Causes of the failure, nearest first.
    pub fn causes(&self) -> &[String] {
        &self.causes
    }

    /// Hint for the user, if any.
    pub fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// An error text of the system in our style: lower case, without its number.
fn normalize_cause(cause: &str) -> String {
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
    fn causes_are_lower_case_without_errno() {
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
