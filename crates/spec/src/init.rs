//! The image's own init as PID 1, and what is known of it from outside.

use crate::spec::check_env;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Which program becomes PID 1.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(try_from = "String", into = "String")]
pub enum InitProgram {
    /// The first of [`InitProgram::USUAL`] that the image has.
    #[default]
    Auto,
    /// This one, an absolute path inside.
    Path(String),
}

impl InitProgram {
    /// Where images have their init. `/init` comes first: who put one there wants it to be PID 1,
    /// while `/sbin/init` may have come along with busybox.
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

    /// The paths to try, in order.
    pub fn candidates(&self) -> Vec<String> {
        match self {
            Self::Auto => Self::USUAL.map(str::to_owned).to_vec(),
            Self::Path(path) => vec![path.clone()],
        }
    }

    /// Whether a command that an image brings is the init itself.
    pub fn is(&self, command: &str) -> bool {
        match self {
            Self::Auto => Self::USUAL.contains(&command),
            Self::Path(path) => path == command,
        }
    }

    /// Whether a path, followed to its end, is systemd.
    pub fn is_systemd(path: &str) -> bool {
        path.rsplit('/').next() == Some("systemd")
    }

    /// Why systemd cannot be PID 1 on the `process` tier.
    pub fn no_systemd(path: &str) -> Error {
        Error::unsupported(format!("systemd does not run on the `process` tier: `{path}`"))
            .cause("it wants to mount, and to manage a cgroup tree of its own")
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

/// An init as asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Init {
    /// Which program.
    pub program: InitProgram,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment beyond the sandbox's own; this wins.
    pub env: BTreeMap<String, String>,
}

impl Init {
    /// Without arguments, in the sandbox's environment.
    pub fn of(program: InitProgram) -> Self {
        Self { program, ..Self::default() }
    }

    /// Checks what no single field can check.
    pub(crate) fn check(&self) -> Result<()> {
        if self.args.iter().any(|argument| argument.contains('\0')) {
            return Err(Error::invalid("an argument of the init has a zero byte in it"));
        }
        check_env(&self.env)
    }
}

/// An init as decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedInit {
    /// Which program.
    pub program: InitProgram,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its environment beyond the sandbox's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// What the image says ends it. Without a word of it the init is asked in its own language.
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
