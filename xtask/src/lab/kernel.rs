//! Fetches the kernel that the lab boots. It is unpacked, never installed: an installed kernel
//! would want to become this machine's own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{packages, workspace};

/// Depends on the newest kernel of its kind. It is small and boots from NVMe and ext4 without an
/// initramfs.
pub(super) const PACKAGE: &str = "linux-image-cloud-amd64";

/// What `msb` needs and the kernel does not have built in, in the order of loading. A machine
/// without virtualisation does not load the last one.
const MODULES: &[&str] = &[
    "kernel/fs/overlayfs/overlay.ko",
    "kernel/virt/lib/irqbypass.ko",
    "kernel/arch/x86/kvm/kvm.ko",
    "kernel/arch/x86/kvm/kvm-amd.ko",
];

pub(crate) struct Kernel {
    pub(super) image: PathBuf,
    /// Holds the modules, to be loaded in the order of their names.
    pub(super) modules: PathBuf,
}

impl Kernel {
    /// None if the distribution has no such kernel.
    pub(super) fn cached_or_fetched(dir: &Path) -> Result<Option<Self>> {
        // Named for what it holds, so that what an older version of this file fetched is not used.
        let home = dir.join(format!("kernel-with-{}-modules", MODULES.len()));
        if !home.exists() {
            let Some(package) = newest()? else {
                return Ok(None);
            };
            // Built aside and renamed, so that an interrupted run leaves no half a kernel.
            let aside = dir.join("kernel.partial");
            if aside.exists() {
                fs::remove_dir_all(&aside)?;
            }
            fetch(&package, &aside)?;
            fs::rename(&aside, &home)?;
        }
        Ok(Some(Kernel { image: home.join("vmlinuz"), modules: home.join("modules") }))
    }
}

/// The lists of packages are fetched only if they do not know it: that takes root.
fn newest() -> Result<Option<String>> {
    if let Some(package) = known()? {
        return Ok(Some(package));
    }
    packages::update()?;
    known()
}

fn known() -> Result<Option<String>> {
    let depends = Command::new("apt-cache")
        .args(["depends", PACKAGE])
        .output()
        .context("cannot run `apt-cache`")?;
    Ok(dependency(&String::from_utf8_lossy(&depends.stdout)).map(str::to_owned))
}

fn dependency(depends: &str) -> Option<&str> {
    let mut names = depends.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    names.find(|name| name.starts_with("linux-image-"))
}

/// Leaves `vmlinuz` and `modules/` in a new directory.
fn fetch(package: &str, into: &Path) -> Result<()> {
    let unpacked = into.join("unpacked");
    fs::create_dir_all(&unpacked)?;
    // Apt would give up its privileges for the download and warn that it cannot write here.
    workspace::run(
        Command::new("apt-get")
            .args(["-o", "APT::Sandbox::User=root", "download", "-qq", package])
            .current_dir(into),
    )?;
    let archive = find(into, |name| name.ends_with(".deb"))?;
    workspace::run(Command::new("dpkg-deb").arg("-x").arg(&archive).arg(&unpacked))?;

    let image = find(&unpacked.join("boot"), |name| name.starts_with("vmlinuz-"))?;
    fs::copy(&image, into.join("vmlinuz"))?;
    let version = image.to_string_lossy().rsplit("vmlinuz-").next().unwrap_or("").to_owned();
    let modules = into.join("modules");
    fs::create_dir(&modules)?;
    for (number, module) in MODULES.iter().enumerate() {
        take_module(&unpacked, &version, module, &modules, number)?;
    }

    fs::remove_dir_all(&unpacked)?;
    fs::remove_file(&archive)?;
    Ok(())
}

/// Newer releases keep modules under /usr and compress them, which busybox cannot load.
fn take_module(
    unpacked: &Path,
    version: &str,
    module: &str,
    into: &Path,
    number: usize,
) -> Result<()> {
    let name = module.rsplit('/').next().unwrap_or(module);
    let target = into.join(format!("{number}-{name}"));
    for root in ["lib/modules", "usr/lib/modules"] {
        let plain = unpacked.join(root).join(version).join(module);
        if plain.exists() {
            fs::copy(&plain, &target)?;
            return Ok(());
        }
        let compressed = plain.with_extension("ko.xz");
        if compressed.exists() {
            let unpack = &mut Command::new("busybox");
            unpack.arg("xzcat").arg(&compressed).stdout(File::create(&target)?);
            return workspace::run(unpack);
        }
    }
    bail!("kernel {version} has no module `{module}`")
}

fn find(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read `{}`", dir.display()))? {
        let entry = entry?;
        if wanted(&entry.file_name().to_string_lossy()) {
            found.push(entry.path());
        }
    }
    ensure!(
        found.len() == 1,
        "the package of the kernel is not as expected in `{}`",
        dir.display()
    );
    Ok(found.remove(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_behind_the_metapackage_is_found() {
        let depends = "linux-image-cloud-amd64\n  Depends: linux-image-6.1.0-9-cloud-amd64\n";
        assert_eq!(dependency(depends), Some("linux-image-6.1.0-9-cloud-amd64"));
    }

    #[test]
    fn a_distribution_without_it_has_none() {
        assert_eq!(dependency(""), None);
    }
}
