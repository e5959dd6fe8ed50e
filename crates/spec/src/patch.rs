//! Changes to the filesystem before the first command, and scripts put on PATH.

use crate::{Error, GuestPath, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// One change, made by the guest inside the sandbox, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Patch {
    /// A file with this text.
    Text {
        /// Where.
        path: GuestPath,
        /// What.
        content: String,
        /// Its permissions; 644 if none.
        #[serde(default)]
        mode: Option<u32>,
    },
    /// A file with these bytes.
    Bytes {
        /// Where.
        path: GuestPath,
        /// What.
        content: Vec<u8>,
    },
    /// Other permissions of what is there.
    Mode {
        /// Where.
        path: GuestPath,
        /// Which.
        mode: u32,
    },
    /// A directory, with its parents.
    Mkdir {
        /// Where.
        path: GuestPath,
    },
    /// Text at the end of a file, which is made if need be.
    Append {
        /// Where.
        path: GuestPath,
        /// What.
        content: String,
    },
    /// A file or tree that is not to be there.
    Remove {
        /// Where.
        path: GuestPath,
    },
    /// Nothing: if something is there, the sandbox is not made.
    Absent {
        /// Where.
        path: GuestPath,
    },
    /// A symbolic link.
    Symlink {
        /// Where.
        path: GuestPath,
        /// What it says.
        target: String,
    },
    /// A file or directory of the host.
    Copy {
        /// Outside.
        from: PathBuf,
        /// Inside; a directory is merged into it.
        to: GuestPath,
    },
}

impl Patch {
    /// Parses `SRC:DST` into a copy.
    pub fn copy(text: &str) -> Result<Self> {
        let (from, to) = pair(text, ':', "./src:/dst")?;
        Ok(Self::Copy { from: PathBuf::from(from), to: GuestPath::parse(to)? })
    }

    /// Parses `PATH=TEXT` into a file.
    pub fn text(text: &str) -> Result<Self> {
        let (path, content) = pair(text, '=', "/etc/motd=hello")?;
        Ok(Self::Text { path: GuestPath::parse(path)?, content: content.to_owned(), mode: None })
    }

    /// Parses `PATH=TEXT` into an addition to a file.
    pub fn append(text: &str) -> Result<Self> {
        let (path, content) = pair(text, '=', "/etc/hosts=127.0.0.1 db")?;
        Ok(Self::Append { path: GuestPath::parse(path)?, content: content.to_owned() })
    }

    /// Parses `PATH=TARGET` into a link.
    pub fn symlink(text: &str) -> Result<Self> {
        let (path, target) = pair(text, '=', "/usr/local/bin/py=/usr/bin/python3")?;
        Ok(Self::Symlink { path: GuestPath::parse(path)?, target: target.to_owned() })
    }
}

/// A program of a few lines, put on PATH inside: `NAME=BODY`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// What it is called as.
    pub name: String,
    /// Its text; without a `#!` line it is a shell script.
    pub body: String,
}

impl Script {
    /// Where scripts live inside.
    pub const DIRECTORY: &'static str = "/.msb/bin";

    /// Parses `NAME=BODY`.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, body) = pair(text, '=', "hi=echo hello")?;
        Self::new(name, body)
    }

    /// Checks the name and takes the script.
    pub fn new(name: &str, body: &str) -> Result<Self> {
        let well = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        if name.is_empty() || name.len() > 64 || !well || name.starts_with(['.', '-']) {
            return Err(Error::invalid(format!("not a script name: `{}`", name))
                .hint("a script's name has 1 to 64 of A-Z a-z 0-9 . _ -"));
        }
        Ok(Self { name: name.to_owned(), body: body.to_owned() })
    }

    /// The file it becomes.
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
