//! A Debian that boots with systemd, for the tests of inits: made once, of the packages that this
//! machine has its own from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::{packages, workspace};

/// Without what no test reads, and without a target of graphics: it boots in an emulated machine.
const SLIM: &str = "cd \"$1/usr\" && rm -rf share/doc share/man share/locale share/zoneinfo include \
                    lib/*/gconv lib/*/*.a lib/systemd/system-generators \
                    lib/systemd/system/sysinit.target.wants/sys-* && \
                    ln -sf /lib/systemd/system/multi-user.target ../etc/systemd/system/default.target";

/// The tree; none where mmdebstrap cannot own its files, since we are not root.
pub(super) fn tree(dir: &Path) -> Result<Option<PathBuf>> {
    let tree = dir.join("systemd");
    if tree.exists() {
        return Ok(Some(tree));
    }
    if !packages::is_root()? {
        return Ok(None);
    }
    let release = fs::read_to_string("/etc/os-release")?;
    let suite = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let Some(suite) = suite else { return Ok(None) };
    // Where this machine's own packages come from.
    let targets = workspace::output(Command::new("apt-get").args([
        "indextargets",
        "--format",
        "$(RELEASE) $(REPO_URI)",
        "Created-By: Packages",
    ]))?;
    let suite = suite.trim_matches('"');
    let own = |line: &str| {
        let (release, uri) = line.split_once(' ')?;
        (release == suite).then(|| uri.to_owned())
    };
    let Some(mirror) = targets.lines().find_map(own) else { return Ok(None) };
    let aside = dir.join("systemd.new");
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    workspace::output(
        Command::new("mmdebstrap")
            .args(["--quiet", "--variant=essential", "--include=systemd,systemd-sysv"])
            .args(["--format=directory", "--aptopt=Acquire::Languages \"none\""])
            .args(["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"])
            .arg(format!("--customize-hook={SLIM}"))
            .arg(suite)
            .arg(&aside)
            .arg(mirror),
    )?;
    fs::rename(&aside, &tree)?;
    Ok(Some(tree))
}
