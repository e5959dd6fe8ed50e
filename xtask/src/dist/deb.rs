//! The Debian package. Its name is that of docs/publishing.md.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::files::{gzip, put, put_program};
use super::{Contents, Release};
use crate::workspace;

const NAME: &str = "msb-sandbox";

/// Of the files below `debian/`, none is needed by an upstream that packages itself; this is what
/// `dpkg-deb` reads.
const MAINTAINER: &str = "The msb authors <microsandbox@users.noreply.github.com>";

/// The revision of the package within one version.
const REVISION: u32 = 1;

/// Makes the package in `into`.
pub(super) fn make(release: &Release, contents: &Contents, work: &Path, into: &Path) -> Result<()> {
    let root = &work.join("deb");
    lay_out(release, contents, root)?;
    let size = size(root)?;
    put(root, "DEBIAN/control", control(release, size))?;
    put(root, "DEBIAN/md5sums", md5sums(root)?)?;
    let compressor = if release.quick { ["-Zgzip", "-z1"] } else { ["-Zxz", "-z9"] };
    let package = into.join(file_name(release));
    let mut build = Command::new("dpkg-deb");
    build.args(["--build", "--root-owner-group"]).args(compressor).arg(root).arg(&package);
    // It prints where the package is.
    workspace::output(build.env("SOURCE_DATE_EPOCH", release.epoch.to_string()))?;
    Ok(())
}

fn file_name(release: &Release) -> String {
    format!("{NAME}_{}_{}.deb", version(&release.version), architecture())
}

fn lay_out(release: &Release, contents: &Contents, root: &Path) -> Result<()> {
    put_program(root, "usr/bin/msb", &contents.msb)?;
    put(root, "usr/share/bash-completion/completions/msb", &contents.completions.bash)?;
    put(root, "usr/share/zsh/vendor-completions/_msb", &contents.completions.zsh)?;
    put(root, "usr/share/fish/vendor_completions.d/msb.fish", &contents.completions.fish)?;
    for (name, text) in &contents.manual {
        let page = format!("usr/share/man/man1/{name}");
        put(root, &page, text)?;
        gzip(root, &page)?;
    }
    let doc = format!("usr/share/doc/{NAME}");
    put(root, &format!("{doc}/README.md"), &contents.readme)?;
    put(root, &format!("{doc}/NOTICE"), &contents.notice)?;
    put(root, &format!("{doc}/copyright"), copyright(release))?;
    for (name, text) in [
        ("THIRD-PARTY-LICENSES.txt", contents.third_party.clone()),
        ("changelog", contents.changelog.clone()),
        ("changelog.Debian", changelog(release)),
    ] {
        put(root, &format!("{doc}/{name}"), text)?;
        gzip(root, &format!("{doc}/{name}"))?;
    }
    // It is static so that one file runs on every distribution.
    let overrides = format!("{NAME}: statically-linked-binary [usr/bin/msb]\n");
    put(root, &format!("usr/share/lintian/overrides/{NAME}"), overrides)
}

fn control(release: &Release, size: u64) -> String {
    format!(
        "Package: {NAME}\n\
         Version: {}\n\
         Architecture: {}\n\
         Maintainer: {MAINTAINER}\n\
         Installed-Size: {size}\n\
         Recommends: ca-certificates, uidmap\n\
         Section: utils\n\
         Priority: optional\n\
         Homepage: {}\n\
         Description: sandboxes for untrusted code of AI agents\n \
         msb runs untrusted code in sandboxes, as microVMs or as confined\n \
         processes that start in milliseconds. It is one static executable without\n \
         a daemon, and needs no root.\n \
         .\n \
         microVMs need /dev/kvm and a guest kernel, which `msb setup vm` builds.\n",
        version(&release.version),
        architecture(),
        release.repository,
    )
}

/// A pre-release sorts before its version: `1.0.0-rc.1` is `1.0.0~rc.1`.
fn version(version: &str) -> String {
    format!("{}-{REVISION}", version.replace('-', "~"))
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn copyright(release: &Release) -> String {
    format!(
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
         Upstream-Name: msb\n\
         Source: {}\n\
         Comment:\n \
         The executable contains crates of other authors. THIRD-PARTY-LICENSES.txt.gz in this\n \
         directory has their names and licences.\n\
         \n\
         Files: *\n\
         Copyright: 2026 The msb authors\n\
         License: Apache-2.0\n \
         On Debian systems the text of the Apache License, version 2.0, is in\n \
         /usr/share/common-licenses/Apache-2.0.\n",
        release.repository
    )
}

fn changelog(release: &Release) -> String {
    format!(
        "{NAME} ({}) unstable; urgency=medium\n\n  * Release {}. changelog.gz lists what changed.\n\n \
         -- {MAINTAINER}  {}\n",
        version(&release.version),
        release.version,
        release.date,
    )
}

/// Kibibytes, as `dpkg-gencontrol` counts them: each file by itself, rounded up.
fn size(directory: &Path) -> Result<u64> {
    let mut size = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        size += match entry.file_type()?.is_dir() {
            true => 1 + self::size(&entry.path())?,
            false => entry.metadata()?.len().div_ceil(1024),
        };
    }
    Ok(size)
}

/// What `dpkg --verify` compares an installed package with.
fn md5sums(root: &Path) -> Result<String> {
    let script = "find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum";
    workspace::output(Command::new("sh").args(["-c", script]).current_dir(root))
        .context("cannot sum up the files of the package")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pre_release_sorts_before_its_version() {
        assert_eq!(version("0.1.0"), "0.1.0-1");
        assert_eq!(version("1.0.0-rc.1"), "1.0.0~rc.1-1");
    }
}
