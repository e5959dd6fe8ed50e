//! Paths that clients want to see as they are: absolute, without links.

use super::status::Refused;
use crate::{tree, users};
use msb_spec::UserRef;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where a path leads, as far as there is something; what follows is taken as it is written.
pub(super) fn real(path: &Path) -> Result<PathBuf, Refused> {
    Ok(tree::real(path)?)
}

/// With `~` as shells have it at the beginning.
pub(super) fn expanded(path: &Path, home: &Path) -> Result<PathBuf, Refused> {
    let bytes = path.as_os_str().as_bytes();
    let Some(rest) = bytes.strip_prefix(b"~") else { return real(path) };
    let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
    let (name, below) = rest.split_at(end);
    let start = if name.is_empty() { home.to_owned() } else { home_of(name)? };
    let below: &[u8] = below.strip_prefix(b"/").unwrap_or(below);
    real(&start.join(OsStr::from_bytes(below)))
}

/// Somebody's home.
pub(super) fn home_of(name: &[u8]) -> Result<PathBuf, Refused> {
    let unknown = || Refused::from(rustix::io::Errno::NOENT);
    let name = std::str::from_utf8(name).map_err(|_| unknown())?;
    let user = UserRef::parse(name).map_err(|_| unknown())?;
    users::home(&user).map(PathBuf::from).ok_or_else(unknown)
}
