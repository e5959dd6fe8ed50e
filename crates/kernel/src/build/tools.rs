//! The programs of a build, and the Debian packages that contain them.

use super::Progress;
use crate::Step;
use msb_spec::{Error, Kind, Result, shown};
use std::path::Path;
use std::process::{Command, Stdio};

/// The tools found on this host.
pub(super) struct BuildTools {
    /// The first line of `gcc --version`.
    pub(super) compiler: String,
    pub(super) processors: usize,
}

/// A program or header, and its package.
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

impl BuildTools {
    /// Finds the tools of this host.
    pub(super) fn find() -> Result<Self> {
        let output = Command::new("gcc").arg("--version").stdin(Stdio::null()).output();
        let output = output.map_err(|error| Error::host("cannot run gcc", error))?;
        let progress = String::from_utf8_lossy(&output.stdout).into_owned();
        let compiler = shown(progress.lines().next().unwrap_or_default());
        if !output.status.success() || compiler.is_empty() {
            return Err(Error::new(Kind::Host, "gcc does not report its version"));
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { compiler, processors })
    }
}

/// Fails if a tool is missing, with the packages to install as a hint.
pub(super) fn check() -> Result<()> {
    match missing().as_slice() {
        [] => Ok(()),
        packages => Err(lacking(packages)),
    }
}

/// Installs missing packages, if this is root.
pub(super) fn install(progress: Progress<'_>) -> Result<()> {
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    if !rustix::process::geteuid().is_root() || !on_path("apt-get") {
        return Err(lacking(&packages));
    }
    progress(Step::Installing(&packages.join(" ")));
    let mut arguments = vec!["install", "-y", "--no-install-recommends"];
    arguments.extend(&packages);
    let installed = apt_get(&arguments).or_else(|_| {
        // The package lists may be missing or old.
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

/// Runs apt-get; waits up to 300 s for another program that holds the lock of dpkg.
pub(super) fn apt_get(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(["-q", "-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"]).args(arguments);
    command.env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C").stdin(Stdio::null());
    let output = command.output().map_err(|error| Error::host("cannot run apt-get", error))?;
    if output.status.success() {
        return Ok(());
    }
    let progress = String::from_utf8_lossy(&output.stderr).into_owned();
    let error_lines_of = progress.lines().filter_map(|line| line.strip_prefix("E: ")).take(3);
    let error = Error::new(Kind::Host, format!("apt-get failed: {}", output.status));
    Err(error_lines_of.fold(error, |error, complaint| error.cause(shown(complaint))))
}
