//! Files with fixed modes, and archives that are the same whenever they are made.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::Release;
use crate::workspace;

/// Writes a file that all may read, and makes its directories; the umask does not count.
pub(super) fn put(root: &Path, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
    put_with_mode(root, name, content, 0o644)
}

/// Writes a file that all may execute.
pub(super) fn put_program(root: &Path, name: &str, content: impl AsRef<[u8]>) -> Result<()> {
    put_with_mode(root, name, content, 0o755)
}

fn put_with_mode(root: &Path, name: &str, content: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    let path = root.join(name);
    let parents = Path::new(name).ancestors().skip(1).map(|parent| root.join(parent));
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(root))?;
        for parent in parents {
            fs::set_permissions(parent, Permissions::from_mode(0o755))?;
        }
        fs::write(&path, content)?;
        fs::set_permissions(&path, Permissions::from_mode(mode))
    };
    write().with_context(|| format!("cannot write `{}`", path.display()))
}

/// Packs the directory `name` below `root` into the archive `into`.
pub(super) fn tar_gz(release: &Release, root: &Path, name: &str, into: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0"]);
    tar.arg("--numeric-owner").arg(format!("--mtime=@{}", release.epoch));
    // Without the name and the time of what it compresses.
    tar.arg(format!("--use-compress-program=gzip --no-name -{}", release.compression()));
    workspace::run(tar.arg("--file").arg(into).arg("--directory").arg(root).arg(name))
}

/// The bytes of a text, compressed.
pub(super) fn gzip(root: &Path, name: &str) -> Result<()> {
    workspace::run(Command::new("gzip").args(["--no-name", "-9"]).arg(root.join(name)))
}

/// SHA-256 of a file, as hexadecimal digits.
pub(super) fn sha256(path: &Path) -> Result<String> {
    let said = workspace::output(Command::new("sha256sum").arg(path))?;
    let digest = said.split_whitespace().next().unwrap_or_default();
    // A name with a backslash has one in front of its digest.
    Ok(digest.trim_start_matches('\\').to_owned())
}

/// Names of the files in a directory, in order.
pub(super) fn names(directory: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}
