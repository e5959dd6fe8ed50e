//! The image's own init as PID 1: which program, and its arguments.

use crate::spec::check_env;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The program that becomes PID 1.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum InitProgram {
    /// The first of [`InitProgram::USUAL`] that the image has.
    #[default]
    Auto,
    /// This program, by an absolute path inside.
    Path(String),
}

impl InitProgram {
    /// Usual paths of an init. `/init` comes first: an image that has one wants it as PID 1, while
    /// `/sbin/init` may be part of busybox.
    pub const USUAL: [&'static str; 8] = [
        "/init",
        "/sbin/init",
        "/usr/sbin/init",
        "/lib/systemd/systemd",
        "/usr/lib/systemd/systemd",
        "/sbin/openrc-init",
        "/sbin/runit-init",
        "/bin/init",
    ];

    /// Parses `auto` or an absolute path.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            path if path.starts_with('/') && path.len() <= 4096 && !path.contains('\0') => {
                Ok(Self::Path(path.to_owned()))
            }
            other => Err(Error::invalid(format!("not an init: `{other}`"))
                .hint("it is `auto` or an absolute path inside, such as `/sbin/init`")),
        }
    }

    /// Paths to try, in this order.
    pub fn candidates(&self) -> Vec<String> {
        match self {
            Self::Auto => Self::USUAL.map(str::to_owned).to_vec(),
            Self::Path(path) => vec![path.clone()],
        }
    }

    /// Whether the image's command is the init itself.
    pub fn is(&self, command: &str) -> bool {
        match self {
            Self::Auto => Self::USUAL.contains(&command),
            Self::Path(path) => path == command,
        }
    }

    /// Whether a path, with links resolved, is systemd.
    pub fn is_systemd(path: &str) -> bool {
        path.rsplit('/').next() == Some("systemd")
    }

    /// The error for systemd as PID 1 on the `process` tier.
    pub fn no_systemd(path: &str) -> Error {
        Error::unsupported(format!("systemd does not run on the `process` tier: `{path}`"))
            .cause("it needs to mount file systems and to manage its own cgroup tree")
            .hint("`--isolation vm` gives it a kernel of its own; `msb doctor` tells whether this host can")
    }
}

impl fmt::Display for InitProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Path(path) => f.write_str(path),
        }
    }
}

written_as_text!(InitProgram);

/// An init as requested in a Spec.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Init {
    /// The program that becomes PID 1.
    pub program: InitProgram,
    /// Arguments after the program name.
    pub args: Vec<String>,
    /// Variables besides those of the sandbox; these win.
    pub env: BTreeMap<String, String>,
}

impl Init {
    /// An init without arguments, in the sandbox's environment.
    pub fn of(program: InitProgram) -> Self {
        Self { program, ..Self::default() }
    }

    /// Checks the arguments and the environment.
    pub(crate) fn check(&self) -> Result<()> {
        if self.args.iter().any(|argument| argument.contains('\0')) {
            return Err(Error::invalid("an argument of the init has a zero byte in it"));
        }
        check_env(&self.env)
    }
}

/// An init as decided in a Plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedInit {
    /// The program that becomes PID 1.
    pub program: InitProgram,
    /// Arguments after the program name.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables besides those of the sandbox.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Stop signal of the image; `None` takes the one that the detected init expects.
    #[serde(default)]
    pub stop_signal: Option<i32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_init_is_auto_or_an_absolute_path() {
        assert_eq!(InitProgram::parse("auto").unwrap(), InitProgram::Auto);
        assert_eq!(InitProgram::parse("/sbin/init").unwrap().to_string(), "/sbin/init");
        for wrong in ["", "init", "./init", "Auto", "/a\0b"] {
            assert!(InitProgram::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn systemd_is_known_by_its_name() {
        assert!(InitProgram::is_systemd("/usr/lib/systemd/systemd"));
        assert!(!InitProgram::is_systemd("/usr/lib/systemd/systemd-shutdown"));
        assert!(!InitProgram::is_systemd("/sbin/init"));
    }
}
