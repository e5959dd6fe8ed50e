//! The root of a machine: put together beside the boot disk, then changed to.
//!
//! Nothing of an image is followed before the root has changed, so that no link in it leads to
//! what lies beside it; afterwards there is nothing else.

use crate::files::{Doing, Done};
use msb_sys::mount::{Attributes, set_attributes};
use msb_wire::{MachineMount, MachineRoot, ShareOverlay};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// An empty directory of the boot disk.
const STAGE: &str = "/mnt";
/// The root to be, seen from there.
const ROOT: &str = "root";
/// What the sandbox writes, seen from there.
const WRITABLE: &str = "writable";

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// What an image never brings itself.
#[derive(Debug)]
pub(super) struct Kernel {
    proc: OwnedFd,
    sys: OwnedFd,
    dev: OwnedFd,
}

impl Kernel {
    /// Mounts everything that no image has a say in. Done while the worker is being called.
    pub(super) fn mount() -> Done<Self> {
        mount("proc", "/proc", "proc", QUIET, "")?;
        mount("sysfs", "/sys", "sysfs", QUIET, "")?;
        for (target, link) in [
            ("/proc/self/fd", "/dev/fd"),
            ("/proc/self/fd/0", "/dev/stdin"),
            ("/proc/self/fd/1", "/dev/stdout"),
            ("/proc/self/fd/2", "/dev/stderr"),
        ] {
            rustix::fs::symlink(target, link).told("link", link)?;
        }
        let terminals = MountFlags::NOSUID | MountFlags::NOEXEC;
        make_dir("/dev/pts")?;
        mount("devpts", "/dev/pts", "devpts", terminals, "ptmxmode=0666,mode=620")?;
        make_dir("/dev/shm")?;
        let shared = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", "/dev/shm", "tmpfs", shared, "mode=1777")?;
        make_dir("/dev/mqueue")?;
        // A kernel may have been made without them.
        let _ = mount("mqueue", "/dev/mqueue", "mqueue", QUIET, "");
        mount("tmpfs", STAGE, "tmpfs", MountFlags::NODEV, "mode=755,size=1m")?;
        Ok(Self { proc: place("/proc")?, sys: place("/sys")?, dev: place("/dev")? })
    }

    /// /proc, wherever it is shown.
    pub(super) fn proc(&self) -> Done<OwnedFd> {
        self.proc.try_clone().doing("open", Path::new("/proc"))
    }
}

/// Puts the root together. Returns a directory of the file system that the sandbox writes to, if
/// it writes.
pub(super) fn build(
    root: &MachineRoot,
    written: &[String],
    ephemeral: bool,
) -> Done<Option<OwnedFd>> {
    rustix::process::chdir(STAGE).told("enter", STAGE)?;
    make_dir(ROOT)?;
    for (index, device) in written.iter().enumerate() {
        let at = format!("written{index}");
        make_dir(&at)?;
        // Their journals are empty, or would have to be played back.
        mount(&block(device), &at, "ext4", MountFlags::RDONLY, "noload")?;
    }
    match root {
        MachineRoot::Image { device, fstype, upper } => {
            make_dir("lower")?;
            // A journal that was left full cannot be played back on a disk that is only read.
            let options = if fstype == "ext4" { "noload" } else { "" };
            mount(&block(device), "lower", fstype, MountFlags::RDONLY, options)?;
            let writable = mount_writable(upper, ephemeral)?;
            // A renamed directory and a changed mode need no copy of what is below.
            let lowers = over(written, 0, "lower");
            overlay(0, ROOT, &lowers, "redirect_dir=on,metacopy=on,xino=auto,", ephemeral)?;
            Ok(Some(writable))
        }
        MachineRoot::Shares { overlays, upper } => {
            let writable = mount_writable(upper, ephemeral)?;
            let mut shares = 0;
            for (index, ShareOverlay { at, tags }) in overlays.iter().enumerate() {
                let mut lowers = Vec::new();
                for tag in tags {
                    shares += 1;
                    let lower = format!("lower{shares}");
                    make_dir(&lower)?;
                    mount(tag, &lower, "virtiofs", MountFlags::RDONLY, "")?;
                    lowers.push(lower);
                }
                // The mount point lies in the overlay below, which is ours: only the `host` image
                // has more than one. Layers of the other tier mark directories in `user` attributes.
                let target = format!("{ROOT}/{}", at.trim_start_matches('/'));
                let lowers = over(written, index, &lowers.join(":"));
                overlay(index, &target, &lowers, "userxattr,", ephemeral)?;
            }
            Ok(Some(writable))
        }
    }
}

/// Takes hold of the host paths and volumes to be shown, which are attached once the root has changed.
pub(super) fn take_mounts(mounts: &[MachineMount]) -> Done<Vec<OwnedFd>> {
    let take = |(index, wanted): (usize, &MachineMount)| -> Done<OwnedFd> {
        let share = format!("{STAGE}/mount{index}");
        make_dir(&share)?;
        match (wanted.disk, wanted.read_only) {
            (false, _) => mount(&wanted.tag, &share, "virtiofs", MountFlags::empty(), "")?,
            (true, true) => mount(&block(&wanted.tag), &share, "ext4", MountFlags::RDONLY, "")?,
            (true, false) => mount(&block(&wanted.tag), &share, "ext4", MountFlags::NOATIME, "")?,
        }
        let path = match &wanted.file {
            Some(name) => format!("{share}/{name}"),
            None => share,
        };
        let flags = OpenTreeFlags::OPEN_TREE_CLONE
            | OpenTreeFlags::OPEN_TREE_CLOEXEC
            | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
        let tree = rustix::mount::open_tree(CWD, &path, flags).told("take hold of", &path)?;
        let shown = Attributes {
            read_only: wanted.read_only,
            no_suid: true,
            no_dev: true,
            ..Attributes::default()
        };
        set_attributes(tree.as_fd(), &shown).doing("mount", Path::new(&wanted.guest))?;
        Ok(tree)
    };
    mounts.iter().enumerate().map(take).collect()
}

/// The file systems of disks that are shown to be written, for when they are left.
pub(super) fn written_disks(mounts: &[MachineMount]) -> Done<Vec<OwnedFd>> {
    let written = mounts.iter().enumerate().filter(|(_, mount)| mount.disk && !mount.read_only);
    written.map(|(index, _)| open(&format!("{STAGE}/mount{index}"), OFlags::RDONLY)).collect()
}

/// Makes what was put together the root, with what the kernel shows in it. The old one is gone
/// afterwards.
pub(super) fn enter(kernel: &Kernel) -> Done<()> {
    let root = format!("{STAGE}/{ROOT}");
    rustix::process::chdir(&root).told("enter", &root)?;
    // Stacks the old root on the new one, so that no directory is needed to put it.
    rustix::process::pivot_root(".", ".").told("change to", &root)?;
    for (mount, target) in [(&kernel.proc, "/proc"), (&kernel.sys, "/sys"), (&kernel.dev, "/dev")] {
        make_dir(target)?;
        attach(mount, target)?;
    }
    rustix::mount::unmount(".", UnmountFlags::DETACH).told("leave", "the boot disk")?;
    rustix::process::chdir("/").told("enter", "/")?;
    for (path, mode) in [("/tmp", 0o1777), ("/run", 0o755), ("/root", 0o700)] {
        let mode = Mode::from_raw_mode(mode);
        // The mode that was asked for has gone through the umask.
        if rustix::fs::mkdirat(CWD, path, mode).is_ok() {
            let _ = rustix::fs::chmod(path, mode);
        }
    }
    Ok(())
}

/// Shows what the sandbox was promised besides its root.
pub(super) fn furnish(
    tmpfs: &[(String, msb_spec::Bytes)],
    mounts: &[MachineMount],
    trees: &[OwnedFd],
) -> Done<()> {
    for (path, size) in tmpfs {
        make_mount_point(path, false)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", path, "tmpfs", flags, &format!("mode=1777,size={}", size.0))?;
    }
    for (wanted, tree) in mounts.iter().zip(trees) {
        make_mount_point(&wanted.guest, wanted.file.is_some())?;
        attach(tree, &wanted.guest)?;
    }
    Ok(())
}

/// What sandboxes wrote before over an overlay, above what that lies on.
fn over(written: &[String], index: usize, lowest: &str) -> String {
    let layers = (0..written.len()).map(|at| format!("written{at}/upper{index}"));
    // A disk that nobody ever wrote has none.
    let mut lowers: Vec<String> = layers.filter(|layer| Path::new(layer).is_dir()).collect();
    lowers.push(lowest.to_owned());
    lowers.join(":")
}

/// Mounts the disk that holds what the sandbox writes.
fn mount_writable(device: &str, ephemeral: bool) -> Done<OwnedFd> {
    make_dir(WRITABLE)?;
    // What is thrown away need not survive anything. Empty parts of a new disk stay unwritten.
    let options = match ephemeral {
        true => "noinit_itable,barrier=0,data=writeback,noauto_da_alloc,commit=300",
        false => "noinit_itable",
    };
    mount(&block(device), WRITABLE, "ext4", MountFlags::NOATIME, options)?;
    open(WRITABLE, OFlags::RDONLY)
}

/// Mounts one overlay, with directories of its own on the writable disk.
fn overlay(index: usize, target: &str, lowers: &str, options: &str, ephemeral: bool) -> Done<()> {
    let (upper, work) = (format!("{WRITABLE}/upper{index}"), format!("{WRITABLE}/work{index}"));
    make_dir(&upper)?;
    make_dir(&work)?;
    let volatile = if ephemeral { ",volatile" } else { "" };
    let options = format!("{options}lowerdir={lowers},upperdir={upper},workdir={work}{volatile}");
    mount("overlay", target, "overlay", MountFlags::empty(), &options)
}

/// Mounts; no options are an empty text.
pub(super) fn mount(
    source: &str,
    target: &str,
    fstype: &str,
    flags: MountFlags,
    options: &str,
) -> Done<()> {
    let options = (!options.is_empty()).then(|| CString::new(options)).transpose();
    let options = options.map_err(io::Error::from).doing("mount", Path::new(target))?;
    rustix::mount::mount(source, target, fstype, flags, options.as_deref())
        .map_err(io::Error::from)
        .doing(&format!("mount {fstype} at"), Path::new(target))
}

fn attach(mount: &OwnedFd, target: &str) -> Done<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", CWD, target, flags).told("mount at", target)
}

fn block(device: &str) -> String {
    format!("/dev/{device}")
}

fn place(path: &str) -> Done<OwnedFd> {
    open(path, OFlags::PATH)
}

fn open(path: &str, how: OFlags) -> Done<OwnedFd> {
    rustix::fs::open(path, how | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .told("open", path)
}

/// Makes a directory that may be there already.
pub(super) fn make_dir(path: &str) -> Done<()> {
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Err(error) if error != rustix::io::Errno::EXIST => {
            Err(io::Error::from(error)).doing("make directory", Path::new(path))
        }
        _ => Ok(()),
    }
}

/// Makes a mount point, with its parents.
pub(super) fn make_mount_point(path: &str, file: bool) -> Done<()> {
    let path = Path::new(path);
    if !file {
        return std::fs::create_dir_all(path).doing("make the mount point", path);
    }
    crate::files::make_parents(path)?;
    match rustix::fs::statat(CWD, path, AtFlags::empty()) {
        Ok(_) => Ok(()),
        Err(_) => std::fs::File::create(path).map(drop).doing("make the mount point", path),
    }
}

/// As [`Doing`], for calls of rustix on names that we chose.
trait Told<T> {
    fn told(self, verb: &str, path: &str) -> Done<T>;
}

impl<T> Told<T> for rustix::io::Result<T> {
    fn told(self, verb: &str, path: &str) -> Done<T> {
        self.map_err(io::Error::from).doing(verb, Path::new(path))
    }
}
