//! Resolves paths for clients: absolute, without symlinks.

use super::status::SftpError;
use crate::{tree, users};
use msb_spec::UserRef;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Resolves the existing part of a path; the rest is normalised as written.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, SftpError> {
    Ok(tree::resolve(path)?)
}

/// Expands a leading `~` as shells do, then resolves.
pub(super) fn expand_tilde(path: &Path, home: &Path) -> Result<PathBuf, SftpError> {
    let bytes = path.as_os_str().as_bytes();
    let Some(rest) = bytes.strip_prefix(b"~") else { return resolve(path) };
    let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let (name, below) = rest.split_at(end);
    let start = if name.is_empty() { home.to_owned() } else { home_of(name)? };
    let below: &[u8] = below.strip_prefix(b"/").unwrap_or(below);
    resolve(&start.join(OsStr::from_bytes(below)))
}

/// The home of a user by name.
pub(super) fn home_of(name: &[u8]) -> Result<PathBuf, SftpError> {
    let unknown = || SftpError::from(rustix::io::Errno::NOENT);
    let name = std::str::from_utf8(name).map_err(|_| unknown())?;
    let user = UserRef::parse(name).map_err(|_| unknown())?;
    users::home(&user).map(PathBuf::from).ok_or_else(unknown)
}
