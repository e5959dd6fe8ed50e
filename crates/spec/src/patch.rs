//! Changes to the file system before the first command, and scripts on PATH.

use crate::{Error, GuestPath, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One change, made by the guest inside the sandbox, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Patch {
    /// Writes a file with this text.
    Text {
        /// Path inside the sandbox.
        path: GuestPath,
        /// Text that the file contains.
        content: String,
        /// Permission bits of the file; default 0644.
        #[serde(default)]
        mode: Option<u32>,
    },
    /// Writes a file with these bytes.
    Bytes {
        /// Path inside the sandbox.
        path: GuestPath,
        /// Bytes that the file contains.
        content: Vec<u8>,
    },
    /// Changes the permission bits of an existing file.
    Mode {
        /// Path inside the sandbox.
        path: GuestPath,
        /// Permission bits to set.
        mode: u32,
    },
    /// Creates a directory and its parents.
    Mkdir {
        /// Path inside the sandbox.
        path: GuestPath,
    },
    /// Appends text to a file, which is created if it is missing.
    Append {
        /// Path inside the sandbox.
        path: GuestPath,
        /// Text that is appended.
        content: String,
    },
    /// Removes a file or a tree.
    Remove {
        /// Path inside the sandbox.
        path: GuestPath,
    },
    /// Requires that a path does not exist: otherwise the sandbox is not created.
    Absent {
        /// Path inside the sandbox.
        path: GuestPath,
    },
    /// Creates a symbolic link.
    Symlink {
        /// Path inside the sandbox.
        path: GuestPath,
        /// Text of the symbolic link.
        target: String,
    },
    /// Copies a file or directory of the host.
    Copy {
        /// Path of the source on the host.
        from: PathBuf,
        /// Path inside; a directory is merged into an existing one.
        to: GuestPath,
    },
}

impl Patch {
    /// Parses `SRC:DST` into a `Copy`.
    pub fn copy(text: &str) -> Result<Self> {
        let (from, to) = pair(text, ':', "./src:/dst")?;
        Ok(Self::Copy { from: PathBuf::from(from), to: GuestPath::parse(to)? })
    }

    /// Parses `PATH=TEXT` into a `Text`.
    pub fn text(text: &str) -> Result<Self> {
        let (path, content) = pair(text, '=', "/etc/motd=hello")?;
        Ok(Self::Text { path: GuestPath::parse(path)?, content: content.to_owned(), mode: None })
    }

    /// Parses `PATH=TEXT` into an `Append`.
    pub fn append(text: &str) -> Result<Self> {
        let (path, content) = pair(text, '=', "/etc/hosts=127.0.0.1 db")?;
        Ok(Self::Append { path: GuestPath::parse(path)?, content: content.to_owned() })
    }

    /// Parses `PATH=TARGET` into a `Symlink`.
    pub fn symlink(text: &str) -> Result<Self> {
        let (path, target) = pair(text, '=', "/usr/local/bin/py=/usr/bin/python3")?;
        Ok(Self::Symlink { path: GuestPath::parse(path)?, target: target.to_owned() })
    }
}

/// A short program that is put on PATH inside: `NAME=BODY`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// File name of the script inside.
    pub name: String,
    /// Text of the script; without a `#!` line it is a shell script.
    pub body: String,
}

impl Script {
    /// Directory of scripts inside, which is on PATH.
    pub const DIRECTORY: &'static str = "/.msb/bin";

    /// Parses `NAME=BODY` into a script.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, body) = pair(text, '=', "hi=echo hello")?;
        Self::new(name, body)
    }

    /// Checks the name: 1 to 64 letters, digits, `.`, `_` or `-`.
    pub fn new(name: &str, body: &str) -> Result<Self> {
        let valid = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if name.is_empty() || name.len() > 64 || !valid || name.starts_with(['.', '-']) {
            return Err(Error::invalid(format!("not a script name: `{}`", name))
                .hint("a script's name has 1 to 64 of A-Z a-z 0-9 . _ -"));
        }
        Ok(Self { name: name.to_owned(), body: body.to_owned() })
    }

    /// The patch that writes the script as an executable file.
    pub fn patch(&self) -> Patch {
        let shebang = if self.body.starts_with("#!") { "" } else { "#!/bin/sh\n" };
        let path = GuestPath::parse(&format!("{}/{}", Self::DIRECTORY, self.name))
            .expect("the directory is absolute and the name has no slash");
        Patch::Text { path, content: format!("{shebang}{}\n", self.body), mode: Some(0o755) }
    }
}

fn pair<'a>(text: &'a str, between: char, example: &str) -> Result<(&'a str, &'a str)> {
    text.split_once(between).filter(|(left, _)| !left.is_empty()).ok_or_else(|| {
        Error::invalid(format!("`{between}` is missing in `{}`", text))
            .hint(format!("write it as `{example}`"))
    })
}
