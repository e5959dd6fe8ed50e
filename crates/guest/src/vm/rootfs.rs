//! The root of a microVM: assembled beside the boot disk, then made the root by pivot_root(2).
//!
//! No path of the image is resolved before the pivot, so no symlink leads to what lies beside it.
//! Afterwards paths are resolved below the root and through no magic link, because the guest still
//! holds descriptors of other mounts.

use super::layer_export::OverlayChanges;
use crate::files::{FileResult, WithContext};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::root_dir::{PathInRoot, RootDir};
use msb_wire::{MachineMount, MachineRoot, MachineTmpfs, ShareOverlay, WrittenDisk};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags,
};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// An empty directory of the boot disk, where the root is assembled.
const STAGE: &str = "/mnt";
/// Name of the future root in the stage.
const ROOT: &str = "root";
/// Mount point of the writable disk in the stage.
const WRITABLE: &str = "writable";

const NOSUID_NODEV_NOEXEC: MountFlags =
    MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Mounts of /proc, /sys and /dev.
#[derive(Debug)]
pub(super) struct KernelFs {
    proc: OwnedFd,
    sys: OwnedFd,
    dev: OwnedFd,
}

impl KernelFs {
    /// Mounts what does not depend on the image, while the connection to the worker is made.
    pub(super) fn mount() -> FileResult<Self> {
        mount("proc", "/proc", "proc", NOSUID_NODEV_NOEXEC, "")?;
        mount("sysfs", "/sys", "sysfs", NOSUID_NODEV_NOEXEC, "")?;
        for (target, link) in [
            ("/proc/self/fd", "/dev/fd"),
            ("/proc/self/fd/0", "/dev/stdin"),
            ("/proc/self/fd/1", "/dev/stdout"),
            ("/proc/self/fd/2", "/dev/stderr"),
        ] {
            rustix::fs::symlink(target, link).context("link", link)?;
        }
        let terminals = MountFlags::NOSUID | MountFlags::NOEXEC;
        make_dir("/dev/pts")?;
        mount("devpts", "/dev/pts", "devpts", terminals, "ptmxmode=0666,mode=620")?;
        make_dir("/dev/shm")?;
        let shared = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", "/dev/shm", "tmpfs", shared, "mode=1777")?;
        make_dir("/dev/mqueue")?;
        // The kernel may lack message queues.
        let _ = mount("mqueue", "/dev/mqueue", "mqueue", NOSUID_NODEV_NOEXEC, "");
        mount("tmpfs", STAGE, "tmpfs", MountFlags::NODEV, "mode=755,size=1m")?;
        Ok(Self { proc: open_path("/proc")?, sys: open_path("/sys")?, dev: open_path("/dev")? })
    }

    /// A copy of the descriptor of /proc.
    pub(super) fn proc(&self) -> FileResult<OwnedFd> {
        self.proc.try_clone().doing("open", Path::new("/proc"))
    }
}

/// The overlays of a microVM, before they are mounted.
struct OverlayLayout {
    /// Device of the writable disk; none if changes are exported.
    upper: Option<String>,
    /// Mount options of the overlays.
    options: &'static str,
    /// Prefix of their own extended attributes.
    xattr_prefix: &'static str,
    /// Mount point of each, and its lower directories in overlayfs syntax.
    overlays: Vec<(String, String)>,
}

impl OverlayLayout {
    /// Mounts the disks or shares of the lower layers, and enters the stage.
    fn mount(root: &MachineRoot, written: &[WrittenDisk]) -> FileResult<Self> {
        rustix::process::chdir(STAGE).context("enter", STAGE)?;
        for (index, WrittenDisk { device, fstype }) in written.iter().enumerate() {
            let at = format!("written{index}");
            make_dir(&at)?;
            mount(&device_path(device), &at, fstype, MountFlags::RDONLY, noload_option(fstype))?;
        }
        match root {
            MachineRoot::Image { device, fstype, upper } => {
                make_dir("lower")?;
                mount(
                    &device_path(device),
                    "lower",
                    fstype,
                    MountFlags::RDONLY,
                    noload_option(fstype),
                )?;
                Ok(Self {
                    upper: upper.clone(),
                    // Renaming a directory or changing a mode then needs no copy.
                    options: "redirect_dir=on,metacopy=on,xino=auto,",
                    xattr_prefix: "trusted.overlay.",
                    overlays: vec![("/".to_owned(), "lower".to_owned())],
                })
            }
            MachineRoot::Shares { overlays, upper } => {
                let mut shares = 0;
                let mut layout = Vec::new();
                for ShareOverlay { at, tags } in overlays {
                    let mut lowers = Vec::new();
                    for tag in tags {
                        shares += 1;
                        let lower = format!("lower{shares}");
                        make_dir(&lower)?;
                        mount(tag, &lower, "virtiofs", MountFlags::RDONLY, "")?;
                        lowers.push(lower);
                    }
                    layout.push((at.clone(), lowers.join(":")));
                }
                // Layers of the `process` tier have markers in `user` attributes.
                let (options, xattr_prefix) = ("userxattr,", "user.overlay.");
                Ok(Self { upper: upper.clone(), options, xattr_prefix, overlays: layout })
            }
        }
    }
}

/// Mount option that skips the journal: it cannot be replayed on a read-only disk.
fn noload_option(fstype: &str) -> &'static str {
    if fstype == "ext4" { "noload" } else { "" }
}

/// Result of assembling a microVM.
pub(super) enum RootBuild {
    /// A root, with a directory of the writable file system.
    Root(OwnedFd),
    /// No root, but changes of earlier sandboxes to export.
    OverlayChanges(Vec<OverlayChanges>),
}

/// Assembles the root, or the changes to export.
pub(super) fn build(
    root: &MachineRoot,
    written: &[WrittenDisk],
    ephemeral: bool,
) -> FileResult<RootBuild> {
    let layout = OverlayLayout::mount(root, written)?;
    let Some(upper) = &layout.upper else {
        return mount_read_only(&layout, written.len()).map(RootBuild::OverlayChanges);
    };
    make_dir(ROOT)?;
    let writable = mount_writable(upper, ephemeral)?;
    for (index, (at, lowest)) in layout.overlays.iter().enumerate() {
        // The mount point is in the previous overlay; only the `host` image has several.
        let target = format!("{ROOT}/{}", at.trim_start_matches('/'));
        let mut lowers = upper_layers(written.len(), index);
        lowers.push(lowest.clone());
        overlay(index, &target, &lowers.join(":"), layout.options, ephemeral)?;
    }
    Ok(RootBuild::Root(writable))
}

/// Mounts changes of earlier sandboxes and their base, read-only.
fn mount_read_only(layout: &OverlayLayout, written: usize) -> FileResult<Vec<OverlayChanges>> {
    let stage = |name: &str| Path::new(STAGE).join(name);
    let show = |name: String, lowers: &str| -> FileResult<PathBuf> {
        make_dir(&name)?;
        let options = format!("{}lowerdir={lowers}", layout.options);
        mount("overlay", &name, "overlay", MountFlags::RDONLY, &options)?;
        Ok(stage(&name))
    };
    let mut all = Vec::new();
    for (index, (at, lowest)) in layout.overlays.iter().enumerate() {
        let uppers = upper_layers(written, index);
        if uppers.is_empty() {
            continue;
        }
        // An overlay needs at least two layers.
        let base = match lowest.contains(':') {
            true => show(format!("base{index}"), lowest)?,
            false => stage(lowest),
        };
        let merged = show(format!("merged{index}"), &format!("{}:{lowest}", uppers.join(":")))?;
        let uppers = uppers.iter().map(|upper| stage(upper)).collect();
        all.push(OverlayChanges {
            at: at.clone(),
            merged,
            base,
            uppers,
            xattr_prefix: layout.xattr_prefix,
        });
    }
    Ok(all)
}

/// Opens host paths and volumes as detached mounts, to be attached after the pivot.
pub(super) fn open_mounts(mounts: &[MachineMount]) -> FileResult<Vec<OwnedFd>> {
    let clone_tree = |(index, wanted): (usize, &MachineMount)| -> FileResult<OwnedFd> {
        let share = format!("{STAGE}/mount{index}");
        make_dir(&share)?;
        match (wanted.disk, wanted.read_only) {
            (false, _) => mount(&wanted.tag, &share, "virtiofs", MountFlags::empty(), "")?,
            (true, true) => {
                mount(&device_path(&wanted.tag), &share, "ext4", MountFlags::RDONLY, "")?
            }
            (true, false) => {
                mount(&device_path(&wanted.tag), &share, "ext4", MountFlags::NOATIME, "")?
            }
        }
        let path = match &wanted.file {
            Some(name) => format!("{share}/{name}"),
            None => share,
        };
        let tree = clone_tree(&path)?;
        let attributes = Attributes {
            read_only: wanted.read_only,
            no_exec: wanted.no_exec,
            no_suid: true,
            no_dev: true,
            ..Attributes::default()
        };
        set_attributes(tree.as_fd(), &attributes).doing("mount", Path::new(&wanted.guest))?;
        Ok(tree)
    };
    mounts.iter().enumerate().map(clone_tree).collect()
}

/// Clones a mount, to be attached after the pivot.
pub(super) fn clone_tree(path: &str) -> FileResult<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    rustix::mount::open_tree(CWD, path, flags).context("open the mount", path)
}

/// Opens the file systems of writable volume disks, to be frozen before power-off.
pub(super) fn writable_disks(mounts: &[MachineMount]) -> FileResult<Vec<OwnedFd>> {
    let written = mounts.iter().enumerate().filter(|(_, mount)| mount.disk && !mount.read_only);
    written.map(|(index, _)| open(&format!("{STAGE}/mount{index}"), OFlags::RDONLY)).collect()
}

/// Pivots to the assembled root, with /proc, /sys and /dev. The old root is unmounted.
pub(super) fn enter(kernel: &KernelFs) -> FileResult<RootDir> {
    let root = format!("{STAGE}/{ROOT}");
    rustix::process::chdir(&root).context("enter", &root)?;
    // Stacks the old root on the new one, so that no directory is needed for it.
    rustix::process::pivot_root(".", ".").context("change to", &root)?;
    // The image controls paths from here on.
    let inside = RootDir::of(open("/", OFlags::PATH)?);
    for (mount, target) in [(&kernel.proc, "/proc"), (&kernel.sys, "/sys"), (&kernel.dev, "/dev")] {
        let path = Path::new(target);
        inside.make_directory(target, 0o755).doing("make directory", path)?;
        let open_path = inside.find_unlinked(target).doing("open", path)?;
        open_path.cover_with(mount.as_fd()).doing("mount at", path)?;
    }
    rustix::mount::unmount(".", UnmountFlags::DETACH).context("leave", "the boot disk")?;
    rustix::process::chdir("/").context("enter", "/")?;
    for (path, mode) in [("/tmp", 0o1777), ("/run", 0o755), ("/root", 0o700)] {
        // A failure is noticed by the program that needs the directory.
        let _ = inside.make_directory(path, mode);
    }
    Ok(inside)
}

/// Replaces /proc by one of the current pid namespace.
pub(super) fn remount_proc() -> FileResult<()> {
    rustix::mount::unmount("/proc", UnmountFlags::DETACH).context("leave", "/proc")?;
    mount("proc", "/proc", "proc", NOSUID_NODEV_NOEXEC, "")
}

/// Mounts tmpfs, host paths and volumes.
pub(super) fn mount_all(
    inside: &RootDir,
    tmpfs: &[MachineTmpfs],
    mounts: &[MachineMount],
    trees: &[OwnedFd],
) -> FileResult<()> {
    for wanted in tmpfs {
        let path = &wanted.guest;
        let open_path = make_mount_point(inside, path, false)?;
        let mount = new_tmpfs(wanted).context("mount tmpfs at", path)?;
        open_path.cover_with(mount.as_fd()).doing("mount at", Path::new(path))?;
    }
    for (wanted, tree) in mounts.iter().zip(trees) {
        let open_path = make_mount_point(inside, &wanted.guest, wanted.file.is_some())?;
        open_path.cover_with(tree.as_fd()).doing("mount at", Path::new(&wanted.guest))?;
    }
    Ok(())
}

/// A detached tmpfs that is writable for all users.
fn new_tmpfs(wanted: &MachineTmpfs) -> rustix::io::Result<OwnedFd> {
    let size = wanted.size.0;
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("source", "tmpfs"), ("mode", "1777"), ("size", &size.to_string())] {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    attributes.set(MountAttrFlags::MOUNT_ATTR_RDONLY, wanted.read_only);
    attributes.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, wanted.no_exec);
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Upper directories of earlier sandboxes for an overlay, the topmost first.
fn upper_layers(written: usize, index: usize) -> Vec<String> {
    let layers = (0..written).map(|at| format!("written{at}/upper{index}"));
    // A disk that was never written has none.
    layers.filter(|layer| Path::new(layer).is_dir()).collect()
}

/// Mounts the disk with the sandbox's changes.
fn mount_writable(device: &str, ephemeral: bool) -> FileResult<OwnedFd> {
    make_dir(WRITABLE)?;
    // An ephemeral disk needs no durability. Unused inode tables of a new disk stay unwritten.
    let options = match ephemeral {
        true => "noinit_itable,barrier=0,data=writeback,noauto_da_alloc,commit=300",
        false => "noinit_itable",
    };
    mount(&device_path(device), WRITABLE, "ext4", MountFlags::NOATIME, options)?;
    open(WRITABLE, OFlags::RDONLY)
}

/// Mounts one overlay, with its own directories on the writable disk.
fn overlay(
    index: usize,
    target: &str,
    lowers: &str,
    options: &str,
    ephemeral: bool,
) -> FileResult<()> {
    let (upper, work) = (format!("{WRITABLE}/upper{index}"), format!("{WRITABLE}/work{index}"));
    make_dir(&upper)?;
    make_dir(&work)?;
    let volatile = if ephemeral { ",volatile" } else { "" };
    let options = format!("{options}lowerdir={lowers},upperdir={upper},workdir={work}{volatile}");
    mount("overlay", target, "overlay", MountFlags::empty(), &options)
}

/// Mounts a file system; empty `options` are none.
pub(super) fn mount(
    source: &str,
    target: &str,
    fstype: &str,
    flags: MountFlags,
    options: &str,
) -> FileResult<()> {
    let options = (!options.is_empty()).then(|| CString::new(options)).transpose();
    let options = options.map_err(io::Error::from).doing("mount", Path::new(target))?;
    rustix::mount::mount(source, target, fstype, flags, options.as_deref())
        .map_err(io::Error::from)
        .doing(&format!("mount {fstype} at"), Path::new(target))
}

fn device_path(device: &str) -> String {
    format!("/dev/{device}")
}

fn open_path(path: &str) -> FileResult<OwnedFd> {
    open(path, OFlags::PATH)
}

fn open(path: &str, how: OFlags) -> FileResult<OwnedFd> {
    rustix::fs::open(path, how | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .context("open", path)
}

/// Creates a directory; it may exist.
pub(super) fn make_dir(path: &str) -> FileResult<()> {
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Err(error) if error != rustix::io::Errno::EXIST => {
            Err(io::Error::from(error)).doing("make directory", Path::new(path))
        }
        _ => Ok(()),
    }
}

/// Creates a mount point with its parents.
pub(super) fn make_mount_point(inside: &RootDir, path: &str, file: bool) -> FileResult<PathInRoot> {
    let made = if file { inside.make_file(path) } else { inside.make_directories(path) };
    made.doing("make the mount point", Path::new(path))
}

/// As [`WithContext`], for calls of rustix on paths of our own.
trait PathContext<T> {
    fn context(self, verb: &str, path: &str) -> FileResult<T>;
}

impl<T> PathContext<T> for rustix::io::Result<T> {
    fn context(self, verb: &str, path: &str) -> FileResult<T> {
        self.map_err(io::Error::from).doing(verb, Path::new(path))
    }
}
