//! Makes the root disk of the lab: busybox, `msb`, a root filesystem for sandboxes, the tests.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::kernel::Kernel;
use crate::workspace;

const INIT: &str = include_str!("../../lab/init.sh");

/// What the tests share; not a test itself.
const VERDICTS: &str = include_str!("../../lab/verdicts.sh");

const TESTS: &[(&str, &str)] = &[
    ("memory", include_str!("../../lab/memory.sh")),
    ("pids", include_str!("../../lab/pids.sh")),
    ("cpus", include_str!("../../lab/cpus.sh")),
    ("user", include_str!("../../lab/user.sh")),
];

/// Room for an unstripped `msb` and what sandboxes write; the file is sparse.
const SIZE: u64 = 1 << 30;

pub(super) fn build(dir: &Path, msb: &Path, kernel: &Kernel) -> Result<PathBuf> {
    let root = dir.join("root");
    let disk = dir.join("root.img");
    if root.exists() {
        fs::remove_dir_all(&root)?;
    }
    fill(&root, msb, kernel).context("cannot lay out the lab's disk")?;

    File::create(&disk)?.set_len(SIZE)?;
    // An ordinary user's PATH may lack /usr/sbin.
    let path = std::env::var("PATH").unwrap_or_default();
    workspace::run(
        Command::new("mkfs.ext4")
            .env("PATH", format!("{path}:/usr/sbin:/sbin"))
            .args(["-q", "-E", "root_owner=0:0", "-d"])
            .arg(&root)
            .arg(&disk),
    )?;
    Ok(disk)
}

fn fill(root: &Path, msb: &Path, kernel: &Kernel) -> Result<()> {
    for dir in ["usr/bin", "etc", "root", "home/lab", "proc", "sys", "dev", "tmp", "lab/tests"] {
        fs::create_dir_all(root.join(dir))?;
    }
    busybox(root)?;
    program(&root.join("init"), INIT)?;
    fs::copy(msb, root.join("usr/bin/msb"))?;
    users(root)?;

    let lab = root.join("lab");
    for (name, script) in TESTS {
        program(&lab.join("tests").join(format!("{name}.sh")), script)?;
    }
    program(&lab.join("verdicts.sh"), VERDICTS)?;
    fs::create_dir(lab.join("modules"))?;
    for module in fs::read_dir(&kernel.modules)? {
        let module = module?;
        fs::copy(module.path(), lab.join("modules").join(module.file_name()))?;
    }

    let rootfs = lab.join("rootfs");
    for dir in ["etc", "root", "home/lab", "proc", "sys", "dev", "tmp", "usr"] {
        fs::create_dir_all(rootfs.join(dir))?;
    }
    busybox(&rootfs)?;
    users(&rootfs)
}

/// Puts busybox and a link for each of its programs into `bin`.
fn busybox(root: &Path) -> Result<()> {
    let bin = root.join("bin");
    fs::create_dir(&bin)?;
    fs::copy("/bin/busybox", bin.join("busybox"))?;
    let programs = workspace::output(Command::new("/bin/busybox").arg("--list"))?;
    for name in programs.lines().filter(|&name| name != "busybox") {
        symlink("busybox", bin.join(name))?;
    }
    Ok(())
}

fn users(root: &Path) -> Result<()> {
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nlab:x:1000:1000:lab:/home/lab:/bin/sh\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nlab:x:1000:\n")?;
    Ok(())
}

fn program(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
