//! The Linux source package of Debian: which version apt offers, and how it is fetched. apt
//! verifies its signature.

use super::Progress;
use super::commands::BuildLog;
use super::tools::apt_get;
use crate::Step;
use msb_spec::{Error, Kind, Result, shown};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The series of Linux with known options, the preferred one first.
pub(super) const SERIES: [&str; 2] = ["6.12", "6.1"];

/// A `linux-source` package that apt offers.
#[derive(Debug)]
pub(super) struct LinuxSource {
    /// The entry of [`SERIES`].
    pub(super) series: &'static str,
    pub(super) package: String,
    pub(super) version: String,
}

/// Files that tar skips: drivers of real devices, other architectures and documentation take most
/// of the space and time. Kconfig files stay.
const TAR_EXCLUDES: [&str; 12] = [
    "*/Documentation/*.rst",
    "*/Documentation/*.yaml",
    "*/arch/[a-w]*/*.[chS]",
    "*/arch/[a-w]*/*.dts*",
    "*/drivers/gpu/*.[ch]",
    "*/drivers/infiniband/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/net/ethernet/*.[ch]",
    "*/drivers/net/wireless/*.[ch]",
    "*/drivers/staging/*.[ch]",
    "*/sound/*.[ch]",
    "*/tools/testing/*",
];

impl LinuxSource {
    /// The preferred package that apt offers.
    pub(super) fn offered() -> Result<Self> {
        for series in SERIES {
            let package = format!("linux-source-{series}");
            if let Some(version) = candidate(&package)? {
                return Ok(Self { series, package, version });
            }
        }
        Err(Error::new(Kind::NotFound, "apt offers no source of Linux")
            .cause(format!("looked for `linux-source-{}`", SERIES.join("` and `linux-source-")))
            .hint(format!(
                "`sudo apt-get update` may find it; {} names a kernel that was built elsewhere",
                msb_spec::env::KERNEL
            )))
    }

    /// Unpacks the needed files. `tree` is renamed into place when it is complete.
    pub(super) fn unpack(
        &self,
        work: &Path,
        tree: &Path,
        log: &BuildLog,
        progress: Progress<'_>,
    ) -> Result<()> {
        let failed =
            |error: io::Error| Error::host("the source of Linux cannot be unpacked", error);
        let fetched = work.join("package");
        let archive = match self.installed() {
            Some(archive) => archive,
            None => self.fetch(&fetched, log, progress)?,
        };
        progress(Step::Unpacking);
        let partial = work.join("linux.partial");
        msb_sys::tree::remove(&partial).map_err(failed)?;
        fs::create_dir(&partial).map_err(failed)?;
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--xz", "--strip-components=1", "--no-same-owner"]);
        tar.args(TAR_EXCLUDES.iter().map(|pattern| format!("--exclude={pattern}")));
        log.run(tar.arg("--directory").arg(&partial).arg("--file").arg(archive))?;
        fs::rename(&partial, tree).map_err(failed)?;
        msb_sys::tree::remove(&fetched).map_err(failed)
    }

    /// The archive of an installed package, which need not be fetched.
    fn installed(&self) -> Option<PathBuf> {
        let mut query = Command::new("dpkg-query");
        query.args(["--show", "--showformat", "${db:Status-Status} ${Version}", &self.package]);
        let output = query.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        let archive = PathBuf::from(format!("/usr/src/{}.tar.xz", self.package));
        let same = output.stdout == format!("installed {}", self.version).into_bytes();
        (same && archive.is_file()).then_some(archive)
    }

    /// Downloads and extracts the package without installing it, so root is not needed.
    fn fetch(&self, into: &Path, log: &BuildLog, progress: Progress<'_>) -> Result<PathBuf> {
        let failed = |error: io::Error| Error::host("the source of Linux cannot be fetched", error);
        progress(Step::Fetching(&self.package));
        msb_sys::tree::remove(into).map_err(failed)?;
        fs::create_dir(into).map_err(failed)?;
        let wanted = format!("{}={}", self.package, self.version);
        let mut download = Command::new("apt-get");
        if rustix::process::geteuid().is_root() {
            // As root, apt would switch to its own user, which cannot write here.
            download.args(["-o", "APT::Sandbox::User=root"]);
        }
        download.args(["-q", "download", &wanted]).env("LC_ALL", "C").current_dir(into);
        log.run(&mut download)?;
        let entries = fs::read_dir(into).map_err(failed)?.filter_map(Result::ok);
        let mut packages = entries.map(|entry| entry.path());
        let package = packages
            .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
            .ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        log.run(Command::new("dpkg-deb").arg("--extract").arg(&package).arg(into))?;
        fs::remove_file(package).map_err(failed)?;
        Ok(into.join(format!("usr/src/{}.tar.xz", self.package)))
    }
}

/// Tries again after `apt-get update`, if this is root.
pub(super) fn after_update(error: Error, progress: Progress<'_>) -> Result<LinuxSource> {
    if error.kind() != Kind::NotFound || !rustix::process::geteuid().is_root() {
        return Err(error);
    }
    progress(Step::Fetching("the lists of packages"));
    apt_get(&["update"])?;
    LinuxSource::offered()
}

/// The candidate version of a package, as apt would install it.
fn candidate(package: &str) -> Result<Option<String>> {
    let mut show = Command::new("apt-cache");
    show.args(["show", "--no-all-versions", package]).env("LC_ALL", "C").stdin(Stdio::null());
    let output = show.stderr(Stdio::null()).output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Error::unsupported("kernels are built from Debian's source, and this host has no apt")
                .hint(format!("{} names a kernel that was built elsewhere", msb_spec::env::KERNEL))
        }
        _ => Error::host("cannot run apt-cache", error),
    })?;
    Ok(version(&String::from_utf8_lossy(&output.stdout)))
}

fn version(shown_by_apt: &str) -> Option<String> {
    let version = shown_by_apt.lines().find_map(|line| line.strip_prefix("Version: "))?;
    Some(shown(version.trim())).filter(|version| !version.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_that_apt_would_install_is_found() {
        let text = "Package: linux-source-6.12\nVersion: 6.12.115-2~deb12u1\nPriority: optional\n";
        assert_eq!(version(text).as_deref(), Some("6.12.115-2~deb12u1"));
        assert_eq!(version(""), None);
        assert_eq!(version("N: Unable to locate package\n"), None);
    }
}
