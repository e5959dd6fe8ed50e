//! What the compiler links into a static executable besides the crates: the standard library of Rust
//! and the C library.

use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace;

/// A library that is no crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Library {
    pub(super) name: &'static str,
    pub(super) version: String,
    /// Its licence as an SPDX expression.
    pub(super) license: &'static str,
    pub(super) copyright: &'static str,
    pub(super) source: &'static str,
}

/// The libraries of this machine, which are those of the executable if it was built here.
pub(super) fn libraries() -> Result<Vec<Library>> {
    Ok(vec![
        Library {
            name: "glibc",
            version: glibc()?,
            license: "LGPL-2.1-or-later",
            copyright: "Copyright (C) 1988-2026 Free Software Foundation, Inc.",
            source: "https://www.gnu.org/software/libc/",
        },
        Library {
            name: "rust-std",
            version: rust()?,
            license: "MIT OR Apache-2.0",
            copyright: "Copyright (c) The Rust Project contributors",
            source: "https://github.com/rust-lang/rust",
        },
    ])
}

/// The version of the C library, such as `glibc 2.36`.
fn glibc() -> Result<String> {
    let said = workspace::output(Command::new("getconf").arg("GNU_LIBC_VERSION"))?;
    let version = said.trim().strip_prefix("glibc ").map(str::to_owned);
    version.with_context(|| format!("getconf gave no version of the C library: `{}`", said.trim()))
}

/// The version of the compiler, such as `rustc 1.95.0 (59807616e 2026-04-14)`.
fn rust() -> Result<String> {
    let mut rustc = Command::new("rustc");
    let said = workspace::output(rustc.arg("--version").current_dir(workspace::root()))?;
    let version = said.split_whitespace().nth(1).map(str::to_owned);
    version.with_context(|| format!("rustc gave no version: `{}`", said.trim()))
}
