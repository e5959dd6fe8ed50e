//! The root of a machine: put together beside the boot disk, then changed to.
//!
//! Nothing of an image is followed before the root has changed, so that no link in it leads to
//! what lies beside it. Afterwards its paths are resolved in it, and through no magic link: the guest
//! holds descriptors of what lies beside.

use super::layer::Written;
use crate::files::{Doing, Done};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::root_dir::{PathInRoot, RootDir};
use msb_wire::{MachineMount, MachineRoot, ShareOverlay, WrittenDisk};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags,
};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

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

/// A machine's overlays, before any of them is mounted.
struct Laid {
    /// The device of what the sandbox writes.
    upper: Option<String>,
    /// How the overlays are mounted.
    options: &'static str,
    /// How the names of attributes begin that are theirs.
    marks: &'static str,
    /// Where each appears, and what the image has there: directories as overlayfs lists them.
    overlays: Vec<(String, String)>,
}

impl Laid {
    /// Mounts what the overlays lie on, and enters the stage.
    fn out(root: &MachineRoot, written: &[WrittenDisk]) -> Done<Self> {
        rustix::process::chdir(STAGE).told("enter", STAGE)?;
        for (index, WrittenDisk { device, fstype }) in written.iter().enumerate() {
            let at = format!("written{index}");
            make_dir(&at)?;
            mount(&block(device), &at, fstype, MountFlags::RDONLY, unplayed(fstype))?;
        }
        match root {
            MachineRoot::Image { device, fstype, upper } => {
                make_dir("lower")?;
                mount(&block(device), "lower", fstype, MountFlags::RDONLY, unplayed(fstype))?;
                Ok(Self {
                    upper: upper.clone(),
                    // A renamed directory and a changed mode need no copy of what is below.
                    options: "redirect_dir=on,metacopy=on,xino=auto,",
                    marks: "trusted.overlay.",
                    overlays: vec![("/".to_owned(), "lower".to_owned())],
                })
            }
            MachineRoot::Shares { overlays, upper } => {
                let mut shares = 0;
                let mut laid = Vec::new();
                for ShareOverlay { at, tags } in overlays {
                    let mut lowers = Vec::new();
                    for tag in tags {
                        shares += 1;
                        let lower = format!("lower{shares}");
                        make_dir(&lower)?;
                        mount(tag, &lower, "virtiofs", MountFlags::RDONLY, "")?;
                        lowers.push(lower);
                    }
                    laid.push((at.clone(), lowers.join(":")));
                }
                // Layers of the other tier mark directories in `user` attributes.
                let (options, marks) = ("userxattr,", "user.overlay.");
                Ok(Self { upper: upper.clone(), options, marks, overlays: laid })
            }
        }
    }
}

/// A journal that was left full cannot be played back on a disk that is only read.
fn unplayed(fstype: &str) -> &'static str {
    if fstype == "ext4" { "noload" } else { "" }
}

/// What a machine is made of.
pub(super) enum Built {
    /// A root, and a directory of the file system that the sandbox writes to.
    Root(OwnedFd),
    /// Nothing to run commands in: what sandboxes wrote before.
    Written(Vec<Written>),
}

/// Puts together what the machine is for.
pub(super) fn build(root: &MachineRoot, written: &[WrittenDisk], ephemeral: bool) -> Done<Built> {
    let laid = Laid::out(root, written)?;
    let Some(upper) = &laid.upper else {
        return look_into(&laid, written.len()).map(Built::Written);
    };
    make_dir(ROOT)?;
    let writable = mount_writable(upper, ephemeral)?;
    for (index, (at, lowest)) in laid.overlays.iter().enumerate() {
        // The mount point lies in the overlay below, which is ours: only the `host` image has
        // more than one.
        let target = format!("{ROOT}/{}", at.trim_start_matches('/'));
        let mut lowers = over(written.len(), index);
        lowers.push(lowest.clone());
        overlay(index, &target, &lowers.join(":"), laid.options, ephemeral)?;
    }
    Ok(Built::Root(writable))
}

/// Shows what sandboxes wrote before, and what they wrote it over.
fn look_into(laid: &Laid, written: usize) -> Done<Vec<Written>> {
    let stage = |name: &str| Path::new(STAGE).join(name);
    let show = |name: String, lowers: &str| -> Done<PathBuf> {
        make_dir(&name)?;
        let options = format!("{}lowerdir={lowers}", laid.options);
        mount("overlay", &name, "overlay", MountFlags::RDONLY, &options)?;
        Ok(stage(&name))
    };
    let mut all = Vec::new();
    for (index, (at, lowest)) in laid.overlays.iter().enumerate() {
        let uppers = over(written, index);
        if uppers.is_empty() {
            continue;
        }
        // An overlay has two layers at least.
        let base = match lowest.contains(':') {
            true => show(format!("base{index}"), lowest)?,
            false => stage(lowest),
        };
        let merged = show(format!("merged{index}"), &format!("{}:{lowest}", uppers.join(":")))?;
        let uppers = uppers.iter().map(|upper| stage(upper)).collect();
        all.push(Written { at: at.clone(), merged, base, uppers, marks: laid.marks });
    }
    Ok(all)
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
        let tree = take(&path)?;
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

/// Takes hold of something, to be attached once the root has changed.
pub(super) fn take(path: &str) -> Done<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    rustix::mount::open_tree(CWD, path, flags).told("take hold of", path)
}

/// The file systems of disks that are shown to be written, for when they are left.
pub(super) fn written_disks(mounts: &[MachineMount]) -> Done<Vec<OwnedFd>> {
    let written = mounts.iter().enumerate().filter(|(_, mount)| mount.disk && !mount.read_only);
    written.map(|(index, _)| open(&format!("{STAGE}/mount{index}"), OFlags::RDONLY)).collect()
}

/// Makes what was put together the root, with what the kernel shows in it. The old one is gone
/// afterwards.
pub(super) fn enter(kernel: &Kernel) -> Done<RootDir> {
    let root = format!("{STAGE}/{ROOT}");
    rustix::process::chdir(&root).told("enter", &root)?;
    // Stacks the old root on the new one, so that no directory is needed to put it.
    rustix::process::pivot_root(".", ".").told("change to", &root)?;
    // From here on the image shapes the paths.
    let inside = RootDir::of(open("/", OFlags::PATH)?);
    for (mount, target) in [(&kernel.proc, "/proc"), (&kernel.sys, "/sys"), (&kernel.dev, "/dev")] {
        let path = Path::new(target);
        inside.make_directory(target, 0o755).doing("make directory", path)?;
        let place = inside.find_unlinked(target).doing("open", path)?;
        place.cover_with(mount.as_fd()).doing("mount at", path)?;
    }
    rustix::mount::unmount(".", UnmountFlags::DETACH).told("leave", "the boot disk")?;
    rustix::process::chdir("/").told("enter", "/")?;
    for (path, mode) in [("/tmp", 0o1777), ("/run", 0o755), ("/root", 0o700)] {
        // One that cannot be made is missed by the program that wants it.
        let _ = inside.make_directory(path, mode);
    }
    Ok(inside)
}

/// A /proc that shows the pid namespace of whoever asks, in place of the one that was there.
pub(super) fn renew_proc() -> Done<()> {
    rustix::mount::unmount("/proc", UnmountFlags::DETACH).told("leave", "/proc")?;
    mount("proc", "/proc", "proc", QUIET, "")
}

/// Shows what the sandbox was promised besides its root.
pub(super) fn furnish(
    inside: &RootDir,
    tmpfs: &[(String, msb_spec::Bytes)],
    mounts: &[MachineMount],
    trees: &[OwnedFd],
) -> Done<()> {
    for (path, size) in tmpfs {
        let place = make_mount_point(inside, path, false)?;
        let mount = memory(size.0).told("mount tmpfs at", path)?;
        place.cover_with(mount.as_fd()).doing("mount at", Path::new(path))?;
    }
    for (wanted, tree) in mounts.iter().zip(trees) {
        let place = make_mount_point(inside, &wanted.guest, wanted.file.is_some())?;
        place.cover_with(tree.as_fd()).doing("mount at", Path::new(&wanted.guest))?;
    }
    Ok(())
}

/// A file system in memory that everybody may write, not attached yet.
fn memory(size: u64) -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in [("source", "tmpfs"), ("mode", "1777"), ("size", &size.to_string())] {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// What sandboxes wrote before over an overlay, the topmost first.
fn over(written: usize, index: usize) -> Vec<String> {
    let layers = (0..written).map(|at| format!("written{at}/upper{index}"));
    // A disk that nobody ever wrote has none.
    layers.filter(|layer| Path::new(layer).is_dir()).collect()
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

/// Makes a mount point for a directory or a file, with what is above it.
pub(super) fn make_mount_point(inside: &RootDir, path: &str, file: bool) -> Done<PathInRoot> {
    let made = if file { inside.make_file(path) } else { inside.make_directories(path) };
    made.doing("make the mount point", Path::new(path))
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
