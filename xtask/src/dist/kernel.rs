//! The guest kernel as a file of its own, with what its licence, the GPL, asks for: the licence, the
//! configuration, and a written offer of the source.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::Release;
use super::files::{put, tar_gz};
use crate::{kernel, workspace};

const GPL: &str = include_str!("../../dist/licenses/GPL-2.0.txt");
const OFFER: &str = include_str!("../../dist/SOURCE-OFFER.txt");

/// What `msb setup vm` writes down about a kernel.
#[derive(Debug, Deserialize)]
struct Record {
    version: String,
    arch: String,
    /// Package and version; none for a kernel that was not built, or by an old msb.
    #[serde(default)]
    source: Option<String>,
}

/// Finds or builds the kernel with this msb, and packs its directory into an archive in `into`.
pub(super) fn make(release: &Release, msb: &Path, work: &Path, into: &Path) -> Result<()> {
    let directory = find(msb)?;
    let Record { version, arch, source } = record(&directory)?;
    let source = source.context("the kernel has no record of its source")?;
    let name = format!("msb-kernel-{version}-{arch}");
    let offer = OFFER
        .replace("@KERNEL@", &version)
        .replace("@SOURCE@", &source)
        .replace("@VERSION@", &release.version)
        .replace("@REPOSITORY@", &release.repository);
    let root = &work.join("kernel");
    for file in ["kernel.img", "kernel.json", "kernel.config"] {
        let content = fs::read(directory.join(file))
            .with_context(|| format!("cannot read `{file}` of `{}`", directory.display()))?;
        put(root, &format!("{name}/{file}"), content)?;
    }
    put(root, &format!("{name}/COPYING"), GPL)?;
    put(root, &format!("{name}/SOURCE-OFFER.txt"), offer)?;
    tar_gz(release, root, &name, &into.join(format!("{name}.tar.gz")))
}

/// The cached kernel. One that an older msb built says nothing about its source, so it is built
/// again.
fn find(msb: &Path) -> Result<PathBuf> {
    let directory = kernel::made_by(msb)?;
    if is_documented(&directory)? {
        return Ok(directory);
    }
    ensure!(
        std::env::var_os("MSB_KERNEL").is_none(),
        "the kernel that MSB_KERNEL names has no record of its source or no configuration"
    );
    eprintln!("the kernel in `{}` has no record of its source: building it", directory.display());
    let home = directory.ancestors().nth(2).context("a kernel lies in a state directory")?;
    let mut setup = Command::new(msb);
    workspace::output(setup.args(["setup", "vm", "--force"]).env("MSB_HOME", home))?;
    let directory = kernel::made_by(msb)?;
    ensure!(
        is_documented(&directory)?,
        "this msb built a kernel without a record of its source: `{}`",
        directory.display()
    );
    Ok(directory)
}

fn is_documented(directory: &Path) -> Result<bool> {
    Ok(record(directory)?.source.is_some() && directory.join("kernel.config").is_file())
}

fn record(directory: &Path) -> Result<Record> {
    let path = directory.join("kernel.json");
    let text = fs::read(&path).with_context(|| format!("cannot read `{}`", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("cannot read `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_of_an_older_msb_has_no_source() {
        let read = |json: &str| serde_json::from_str::<Record>(json).unwrap().source;
        let old = r#"{"version":"6.12.1","arch":"x86_64","load":1,"entry":1,"origin":"built"}"#;
        assert_eq!(read(old), None);
        let new = r#"{"version":"6.12.1","arch":"x86_64","source":"linux-source-6.12 6.12.1-1"}"#;
        assert_eq!(read(new).as_deref(), Some("linux-source-6.12 6.12.1-1"));
    }

    #[test]
    fn the_offer_has_a_place_for_everything_it_must_name() {
        for place in ["@KERNEL@", "@SOURCE@", "@VERSION@", "@REPOSITORY@"] {
            assert!(OFFER.contains(place), "{place}");
        }
    }
}
