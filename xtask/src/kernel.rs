//! The guest kernel of microVMs, as `msb setup vm` makes it.
//!
//! It is kept in a state directory of its own in the user's cache, so that a developer's own is left
//! alone and every clone of this repository uses it. It is named by the hash of its inputs.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::workspace;

/// Builds msb, then has it find or build the kernel, and prints its directory.
pub(crate) fn command() -> Result<ExitCode> {
    println!("{}", run()?.display());
    Ok(ExitCode::SUCCESS)
}

/// The directory of the kernel, which `MSB_KERNEL` can name. Takes minutes, once.
pub(crate) fn run() -> Result<PathBuf> {
    made_by(&workspace::build_msb()?)
}

/// The guest kernel, made by an msb that is built already. `MSB_KERNEL` names another.
pub(crate) fn made_by(msb: &Path) -> Result<PathBuf> {
    if let Some(named) = env::var_os("MSB_KERNEL") {
        return Ok(named.into());
    }
    let home = cache().join("msb-kernel");
    fs::create_dir_all(&home).with_context(|| format!("cannot make `{}`", home.display()))?;
    // msb uses no state directory that others can enter.
    fs::set_permissions(&home, fs::Permissions::from_mode(0o700))?;
    let mut setup = Command::new(msb);
    setup.args(["setup", "vm"]).env("MSB_HOME", &home);
    let said = workspace::output(&mut setup)?;
    let directory = PathBuf::from(said.trim_end());
    ensure!(directory.join("kernel.json").is_file(), "msb gave no kernel: `{said}`");
    Ok(directory)
}

/// Where the user's programs keep what can be made again.
fn cache() -> PathBuf {
    let own = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(own);
    cache.unwrap_or_else(workspace::target)
}
