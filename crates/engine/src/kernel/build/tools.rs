//! The programs that a build takes, by the Debian packages that bring them.

use super::Said;
use crate::host::User;
use crate::kernel::Step;
use msb_spec::{Error, Kind, Result, shown};
use std::path::Path;
use std::process::{Command, Stdio};

/// What a kernel is built with.
pub(super) struct Tools {
    /// The compiler and its version.
    pub(super) compiler: String,
    pub(super) processors: usize,
}

/// A program, or a file that programs are compiled with, and the package it is in.
const NEEDS: [(&str, &str); 9] = [
    ("make", "make"),
    ("gcc", "gcc"),
    ("ld", "binutils"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("xz", "xz-utils"),
    ("/usr/include/stdio.h", "libc6-dev"),
    ("/usr/include/gelf.h", "libelf-dev"),
];

impl Tools {
    /// Those that are here.
    pub(super) fn find() -> Result<Self> {
        let output = Command::new("gcc").arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| Error::host("cannot run gcc", error))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let compiler = shown(said.lines().next().unwrap_or_default());
        if !output.status.success() || compiler.is_empty() {
            return Err(Error::new(Kind::Host, "gcc does not tell its version"));
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { compiler, processors })
    }
}

/// Fails if something is missing, and says how to get it.
pub(super) fn check() -> Result<()> {
    match missing().as_slice() {
        [] => Ok(()),
        packages => Err(lacking(packages)),
    }
}

/// Installs what is missing, where we may.
pub(super) fn install(said: Said<'_>) -> Result<()> {
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    if !User::current().is_root() || !on_path("apt-get") {
        return Err(lacking(&packages));
    }
    said(Step::Installing(&packages.join(" ")));
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(&packages);
    let installed = apt_get(&arguments).or_else(|_| {
        // The lists of packages may be missing or old.
        apt_get(&["update"]).and_then(|()| apt_get(&arguments))
    });
    installed.map_err(|error| error.under(format!("cannot install `{}`", packages.join(" "))))?;
    check()
}

fn lacking(packages: &[&str]) -> Error {
    let packages = packages.join(" ");
    let error =
        Error::new(Kind::NotFound, format!("a kernel cannot be built without `{packages}`"));
    if on_path("apt-get") {
        return error.hint(format!(
            "`sudo apt-get install --no-install-recommends {packages}` installs what is missing"
        ));
    }
    error.hint(format!("install them, or let {} name a kernel", msb_spec::env::KERNEL))
}

fn missing() -> Vec<&'static str> {
    let is_there = |need: &str| {
        if need.starts_with('/') { Path::new(need).exists() } else { on_path(need) }
    };
    NEEDS.iter().filter(|(need, _)| !is_there(need)).map(|(_, package)| *package).collect()
}

fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// Another program of the system may be using apt at the moment: it is waited for.
pub(super) fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(["-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]).args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(|error| Error::host("cannot run apt-get", error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let complaints = said.lines().filter_map(|line| line.strip_prefix("E: ")).take(3);
    let error = Error::new(Kind::Host, format!("apt-get failed: {}", output.status));
    Err(complaints.fold(error, |error, complaint| error.cause(shown(complaint))))
}
