//! Lays out the root of a machine and makes its disk.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::kernel::Kernel;
use crate::workspace;

/// What the init of every machine begins with.
const SETUP: &str = include_str!("../../lab/setup.sh");

/// The ordinary user of the lab, with ids that `newuidmap` grants.
pub(super) const USER: &str = "lab";

/// A directory that becomes a disk.
pub(super) struct Root {
    dir: PathBuf,
}

impl Root {
    /// A new one with busybox, users and this init; what stood there before is gone.
    pub(super) fn make(dir: &Path, init: &str) -> Result<Self> {
        if dir.exists() {
            fs::remove_dir_all(dir)?;
        }
        let root = Self { dir: dir.to_owned() };
        for dir in ["etc", "root", "home/lab", "proc", "sys", "dev", "tmp", "lab", "var/tmp"] {
            fs::create_dir_all(root.path(dir))?;
        }
        // As every distribution has it by now; the `host` image takes all from /usr.
        for name in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(root.path("usr").join(name))?;
            symlink(format!("usr/{name}"), root.path(name))?;
        }
        busybox(&root.path("usr/bin"))?;
        users(dir)?;
        root.program("init", init)?;
        root.program("lab/setup.sh", SETUP)?;
        Ok(root)
    }

    pub(super) fn path(&self, inside: &str) -> PathBuf {
        self.dir.join(inside)
    }

    /// Copies a file, or a directory and all below it, to a path; parents are created.
    pub(super) fn file(&self, inside: &str, from: &Path) -> Result<()> {
        let to = self.path(inside);
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent)?;
        }
        // By `cp`, which keeps holes and modes; without the link of busybox that may be there.
        let cp = &mut Command::new("cp");
        workspace::run(cp.args(["-aL", "--remove-destination"]).arg(from).arg(&to))
    }

    /// Copies a directory and all below it, links as links.
    pub(super) fn tree(&self, inside: &str, from: &Path) -> Result<()> {
        workspace::run(Command::new("cp").arg("-a").arg(from).arg(self.path(inside)))
    }

    pub(super) fn program(&self, inside: &str, text: &str) -> Result<()> {
        let path = self.path(inside);
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(())
    }

    /// Copies programs as [`Root::file`] does, with the libraries of this host that they are
    /// linked to, each to its own path.
    pub(super) fn programs(&self, inside: &str, from: &Path) -> Result<()> {
        self.file(inside, from)?;
        let find = &mut Command::new("find");
        let files = workspace::output(find.arg(from).args(["-type", "f", "-perm", "-100"]))?;
        for library in files.lines().map(libraries).collect::<Result<Vec<_>>>()?.concat() {
            let inside = library.trim_start_matches('/');
            if !self.path(inside).exists() {
                self.file(inside, Path::new(&library))?;
            }
        }
        Ok(())
    }

    /// Copies the kernel's modules, named so that they are loaded in their order.
    pub(super) fn modules(&self, kernel: &Kernel) -> Result<()> {
        self.file("lab/modules", &kernel.modules)
    }

    /// A root filesystem for sandboxes.
    pub(super) fn rootfs(&self, inside: &str) -> Result<()> {
        let rootfs = self.path(inside);
        for dir in ["bin", "etc", "root", "home/lab", "proc", "sys", "dev", "tmp", "usr"] {
            fs::create_dir_all(rootfs.join(dir))?;
        }
        busybox(&rootfs.join("bin"))?;
        users(&rootfs)
    }

    /// Makes the disk of what lies here now.
    pub(super) fn disk(&self, disk: &Path, size: u64) -> Result<PathBuf> {
        File::create(disk)?.set_len(size)?;
        // An ordinary user's PATH may lack /usr/sbin.
        let path = std::env::var("PATH").unwrap_or_default();
        workspace::run(
            Command::new("mkfs.ext4")
                .env("PATH", format!("{path}:/usr/sbin:/sbin"))
                .args(["-q", "-F", "-E", "root_owner=0:0", "-d"])
                .arg(&self.dir)
                .arg(disk),
        )?;
        Ok(disk.to_owned())
    }
}

/// Puts busybox and a link for each of its programs into a directory.
fn busybox(bin: &Path) -> Result<()> {
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
    for file in ["etc/subuid", "etc/subgid"] {
        fs::write(root.join(file), format!("{USER}:100000:65536\n"))?;
    }
    Ok(())
}

/// The libraries that a program of this host is linked to and the linker that loads them; none
/// if it is static or a script.
fn libraries(program: &str) -> Result<Vec<String>> {
    let listing = Command::new("ldd").arg(program).output().context("cannot run `ldd`")?;
    Ok(listed(&String::from_utf8_lossy(&listing.stdout)))
}

/// `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)`, `/lib64/ld-linux-x86-64.so.2 (0x…)`
fn listed(listing: &str) -> Vec<String> {
    let words = listing.lines().filter_map(|line| {
        let line = line.split_once("=>").map_or(line, |(_, path)| path).trim();
        line.split_whitespace().next()
    });
    words.filter(|word| word.starts_with('/')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_says() {
        let listing = "\
\tlinux-vdso.so.1 (0x00007ffd)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f)
";
        assert_eq!(
            listed(listing),
            ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
        );
    }
}
