//! Installs what is missing, by package name, with apt.

use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use crate::workspace;

/// Something that must be there, and the package that brings it.
#[derive(Clone, Copy)]
pub(crate) enum Need {
    /// A program on PATH.
    Command(&'static str, &'static str),
    /// A file, and the package that has it.
    File(&'static str, &'static str),
    /// The package itself, where another one brings a lesser thing of the same name.
    Package(&'static str),
}

impl Need {
    fn package(self) -> &'static str {
        match self {
            Need::Command(_, package) | Need::File(_, package) | Need::Package(package) => package,
        }
    }

    fn is_met(self) -> Result<bool> {
        match self {
            Need::Command(name, _) => Ok(on_path(name)),
            Need::File(path, _) => Ok(Path::new(path).exists()),
            Need::Package(name) => is_installed(name),
        }
    }
}

/// Installs the packages of all needs that are not met; names every one that could not be.
pub(crate) fn install(needs: &[Need]) -> Result<()> {
    let mut missing = Vec::new();
    for need in needs {
        if !need.is_met()? && !missing.contains(&need.package()) {
            missing.push(need.package());
        }
    }
    if missing.is_empty() || install_all(&missing).is_ok() {
        return Ok(());
    }
    // apt-get names only the first package that it cannot install.
    let mut failed = missing.clone();
    failed.retain(|package| match install_all(&[package]) {
        Ok(()) => false,
        Err(error) => {
            eprintln!("error: cannot install `{package}`: {error:#}");
            true
        }
    });
    if !failed.is_empty() {
        bail!("cannot install `{}`", failed.join(" "));
    }
    Ok(())
}

/// Fetches the lists of packages, once for each run of this program.
pub(crate) fn update() -> Result<()> {
    static UPDATED: AtomicBool = AtomicBool::new(false);
    if UPDATED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    apt_get(&["update", "-qq"])
}

pub(crate) fn is_root() -> Result<bool> {
    Ok(workspace::output(Command::new("id").arg("-u"))?.trim() == "0")
}

fn install_all(packages: &[&str]) -> Result<()> {
    update()?;
    apt_get(&[&["install", "-y", "-qq", "--no-install-recommends"], packages].concat())
}

/// Runs apt-get while packages may not start their services: the tests start what they need
/// themselves, on ports of their own, and a machine must not begin to serve because it was
/// tested on. A policy that the machine has already stays what it is.
const WITHOUT_SERVICES: &str = r#"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get -o DPkg::Lock::Timeout=300 "$@"
"#;

fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = if is_root()? {
        Command::new("env")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.arg("env");
        sudo
    };
    // A fresh machine may be upgrading itself in the background: wait for its lock.
    command
        .args(["DEBIAN_FRONTEND=noninteractive", "sh", "-c", WITHOUT_SERVICES, "sh"])
        .args(arguments);
    workspace::run(&mut command)
}

/// An ordinary user's PATH often lacks the sbin directories, where mkfs and its kind live.
fn on_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    let path: OsString = [path, "/usr/sbin:/sbin".into()].join(":".as_ref());
    env::split_paths(&path).any(|dir| dir.join(name).is_file())
}

fn is_installed(package: &str) -> Result<bool> {
    let status = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${db:Status-Status}", package])
        .stderr(Stdio::null())
        .output()
        .context("cannot run `dpkg-query`")?;
    Ok(status.stdout == b"installed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_on_path_is_found_and_another_is_not() {
        assert!(Need::Command("sh", "dash").is_met().unwrap());
        assert!(!Need::Command("no-such-program", "none").is_met().unwrap());
    }

    #[test]
    fn a_file_that_exists_is_found_and_another_is_not() {
        assert!(Need::File("/proc/self/stat", "none").is_met().unwrap());
        assert!(!Need::File("/no/such/file", "none").is_met().unwrap());
    }
}
