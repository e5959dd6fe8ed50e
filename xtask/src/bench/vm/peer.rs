//! Fetches microsandbox: its Python package brings its `msb` and its kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::workspace;

/// Of one version, so that ratios of two weeks can be compared.
const PACKAGE: &str = "microsandbox==0.7.11";

/// Where its `msb` lies inside the lab.
pub(super) const PROGRAM: &str = "/lab/with/peer/bin/msb";

/// A directory with `bin` and `lib`.
pub(super) fn fetched(dir: &Path) -> Result<PathBuf> {
    let home = dir.join(PACKAGE.replace("==", "-")).join("peer");
    if home.exists() {
        return Ok(home);
    }
    let aside = dir.join("peer.partial");
    if aside.exists() {
        fs::remove_dir_all(&aside)?;
    }
    fs::create_dir_all(&aside)?;
    let python = |words: &[&str]| {
        workspace::run(Command::new("python3").arg("-m").args(words).current_dir(&aside))
    };
    python(&["pip", "--quiet", "download", "--no-deps", "--only-binary=:all:", PACKAGE])
        .with_context(|| format!("cannot fetch {PACKAGE} from PyPI"))?;
    let wheel = fs::read_dir(&aside)?.next().context("pip fetched nothing")??.path();
    python(&["zipfile", "-e", &wheel.to_string_lossy(), "."])?;

    // Unpacked without modes.
    let bundled = aside.join("microsandbox/_bundled");
    workspace::run(Command::new("chmod").arg("755").arg(bundled.join("bin/msb")))?;
    let parent = home.parent().expect("joined above");
    fs::create_dir_all(parent)?;
    fs::rename(&bundled, &home)?;
    fs::remove_dir_all(&aside)?;
    Ok(home)
}
