//! /dev, /proc and /sys of a sandbox.

use crate::rootfs::{self, NOSUID_NODEV, attach, detach};
use crate::user_limits::UserLimits;
use msb_spec::{Error, Kind, Result};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::root_dir::{PathInRoot, RootDir};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::mount::MountAttrFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Device nodes that programs expect and that are safe to share.
const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// World-readable files of /proc that reveal host state: keys, kernel addresses, file locks, and
/// disks with the loop devices of other sandboxes. Files such as kcore, kmsg and sysrq-trigger
/// belong to the host's root, which does not exist inside.
const MASKED_FILES: [&str; 7] =
    ["keys", "key-users", "kallsyms", "locks", "partitions", "diskstats", "swaps"];

/// Directory of /proc that names the block devices of the host's file systems.
const MASKED_IN_PROC: &str = "fs";

/// Directories of /sys that reveal host state: firmware, and disks with the loop devices of other
/// sandboxes and their backing files.
const MASKED_IN_SYS: [&str; 10] = [
    "firmware",
    "block",
    "class/block",
    "class/bdi",
    "dev/block",
    "devices/virtual/block",
    "devices/virtual/bdi",
    "fs/btrfs",
    "fs/ext4",
    "fs/xfs",
];

/// Directory of /proc that becomes read-only, because root inside would own some of its files.
const READ_ONLY: &str = "sys";

pub(crate) const NOSUID_NODEV_NOEXEC: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// Mounts that must be opened before the host's root is left: a new /proc can only be mounted where
/// another is visible, and a user namespace cannot create device nodes.
#[derive(Debug)]
pub(crate) struct KernelMounts {
    proc: OwnedFd,
    sys: OwnedFd,
    nodes: Vec<OwnedFd>,
}

impl KernelMounts {
    pub(crate) fn open() -> Result<Self> {
        // The nodes are the host's own. Read-only mounts protect their times, modes and owners;
        // writing to the device itself still works.
        let attributes = Attributes { read_only: true, no_exec: true, ..Attributes::default() };
        let take = |name: &&str| {
            let node = detach(&Path::new("/dev").join(name), false)?;
            set_attributes(node.as_fd(), &attributes).map_err(|error| {
                Error::host(format!("cannot make `/dev/{name}` read-only"), error)
            })?;
            Ok(node)
        };
        let nodes = NODES.iter().map(take).collect::<Result<_>>()?;
        let sys =
            new_kernel_mount("sysfs", NOSUID_NODEV_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        Ok(Self { proc: new_kernel_mount("proc", NOSUID_NODEV_NOEXEC)?, sys, nodes })
    }

    /// Descriptors that are still needed after the pivot.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.proc, &self.sys].into_iter().chain(&self.nodes).map(AsFd::as_fd)
    }

    /// Forbids nested user namespaces, which would give back every capability over the kernel's
    /// network code that was just dropped.
    pub(crate) fn forbid_user_namespaces(&self) -> Result<()> {
        let path = "sys/user/max_user_namespaces";
        let write = || -> rustix::io::Result<usize> {
            let file = rustix::fs::openat(
                &self.proc,
                path,
                OFlags::WRONLY | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            rustix::io::write(file, b"0")
        };
        write().map(drop).map_err(|error| Error::host("cannot forbid user namespaces", error))
    }

    /// The /proc of the sandbox's pid namespace.
    pub(crate) fn proc(&self) -> BorrowedFd<'_> {
        self.proc.as_fd()
    }

    /// Sets the `user.*` sysctls of the sandbox's own user namespace.
    pub(crate) fn set_user_limits(&self, user_limits: &UserLimits) -> Result<()> {
        user_limits.set_sysctls(self.proc.as_fd())
    }

    /// Limits System V shared memory to a sixteenth of the memory limit. Unattached segments belong
    /// to no process, so polling could not count them.
    pub(crate) fn limit_shared_memory(&self, memory: u64) -> Result<()> {
        const SHARE: u64 = 16;
        let pages = (memory / SHARE / msb_sys::process::page_size()).max(1);
        let write = || -> rustix::io::Result<()> {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            let path = "sys/kernel/shmall";
            let file = rustix::fs::openat(&self.proc, path, flags, Mode::empty())?;
            rustix::io::write(file, pages.to_string().as_bytes()).map(drop)
        };
        write().map_err(|error| {
            Error::unsupported("this host cannot limit shared memory without a cgroup")
                .cause(error)
                .hint("Linux 5.19 can; have a cgroup delegated, or leave `--memory` out")
        })
    }

    /// Lets every group inside open ping sockets, or at least gid 0 where not all groups are
    /// mapped.
    pub(crate) fn allow_ping(&self) {
        let path = "sys/net/ipv4/ping_group_range";
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&self.proc, path, flags, Mode::empty()) else { return };
        let wide = rustix::io::write(&file, b"0 65535");
        let _ = wide.or_else(|_| rustix::io::write(&file, b"0 0"));
    }

    /// Mounts /dev with its nodes, symlinks, devpts and shm.
    pub(crate) fn mount_dev(&self, root: &RootDir, shm_size: u64) -> Result<RootDir> {
        let mount_point = require_directory(root, "/dev")?;
        // /dev/shm is a directory of this tmpfs: another mount would cost as much as the rest of
        // /dev.
        let size = shm_size.to_string();
        let mount = rootfs::new_mount("tmpfs", &[("mode", "755"), ("size", &size)], NOSUID_NODEV)?;
        attach(mount.as_fd(), &mount_point, "/dev")?;
        let dev = RootDir::of(mount);
        let about = |name: &str| format!("cannot make `/dev/{name}`");
        for (name, node) in NODES.iter().zip(&self.nodes) {
            let mount_point =
                dev.make_file(name).map_err(|error| Error::host(about(name), error))?;
            attach(node.as_fd(), &mount_point, name)?;
        }
        for (link, target) in [
            ("fd", "/proc/self/fd"),
            ("stdin", "/proc/self/fd/0"),
            ("stdout", "/proc/self/fd/1"),
            ("stderr", "/proc/self/fd/2"),
            ("ptmx", "pts/ptmx"),
        ] {
            dev.make_link(target, link).map_err(|error| Error::host(about(link), error))?;
        }
        for (directory, mode) in [("pts", 0o755), ("shm", 0o1777)] {
            let made = dev.make_directory(directory, mode);
            made.map_err(|error| Error::host(about(directory), error))?;
        }
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        // Each devpts mount is a separate instance. The host has 4096 terminals in total, so
        // without a maximum one sandbox could take all that are not reserved.
        let options = [("ptmxmode", "0666"), ("mode", "620"), ("max", "256")];
        let devpts = rootfs::new_mount("devpts", &options, flags)?;
        let mount_point =
            dev.find_unlinked("pts").map_err(|error| Error::host(about("pts"), error))?;
        attach(devpts.as_fd(), &mount_point, "/dev/pts")?;
        Ok(dev)
    }

    /// Mounts /sys and /proc. They come last: a path through /proc may lead anywhere, and no path
    /// of the image is resolved after this.
    pub(crate) fn mount_proc_and_sys(
        self,
        mount_points: &ViewMountPoints,
        dev: &RootDir,
        empty_dir: &OwnedFd,
    ) -> Result<()> {
        attach(self.proc.as_fd(), &mount_points.proc, "/proc")?;
        mask_proc(&RootDir::of(self.proc), dev, empty_dir)?;
        attach(self.sys.as_fd(), &mount_points.sys, "/sys")?;
        let sys = RootDir::of(self.sys);
        for name in MASKED_IN_SYS {
            mask(&sys, name, || rootfs::detach_fd(empty_dir, false))?;
        }
        Ok(())
    }
}

/// Mount points of /proc and /sys.
#[derive(Debug)]
pub(crate) struct ViewMountPoints {
    proc: PathInRoot,
    sys: PathInRoot,
}

impl ViewMountPoints {
    pub(crate) fn find(root: &RootDir) -> Result<Self> {
        Ok(Self { proc: require_directory(root, "/proc")?, sys: require_directory(root, "/sys")? })
    }
}

/// Returns a mount point that must be a directory of the image. A symlink would move our mount
/// elsewhere, and the guest would use the image's /dev/null or /proc.
fn require_directory(root: &RootDir, path: &str) -> Result<PathInRoot> {
    let failed = |error| Error::host(format!("cannot make `{path}`"), error);
    root.make_directory(path, 0o755).map_err(failed)?;
    let refused = |error| {
        Error::new(Kind::Invalid, format!("the image must have a directory at `{path}`"))
            .cause(error)
            .hint("/dev, /proc and /sys are mount points; a symlink cannot replace them")
    };
    let mount_point = root.find_unlinked(path).map_err(|error| refused(error.to_string()))?;
    match mount_point.is_directory() {
        true => Ok(mount_point),
        false => Err(refused("not a directory".to_owned())),
    }
}

/// Links /dev/console to the stdout of PID 1, which is the only console.
pub(crate) fn link_console(dev: &RootDir) -> Result<()> {
    dev.make_link("/proc/1/fd/1", "console")
        .map_err(|error| Error::host("cannot make `/dev/console`", error))
}

/// Masks files of /proc that reveal host state, and makes /proc/sys read-only. `empty_dir` is
/// attached here, and can be cloned for other mount points afterwards.
pub(crate) fn mask_proc(proc: &RootDir, dev: &RootDir, empty_dir: &OwnedFd) -> Result<()> {
    let about = |name: &str| format!("cannot mask `/proc/{name}`");
    if let Ok(mount_point) = proc.find_unlinked(READ_ONLY) {
        let part =
            mount_point.detach(true).map_err(|error| Error::host(about(READ_ONLY), error))?;
        let read_only = Attributes { read_only: true, recursive: true, ..Attributes::default() };
        set_attributes(part.as_fd(), &read_only)
            .map_err(|error| Error::host(about(READ_ONLY), error))?;
        attach(part.as_fd(), &mount_point, "/proc/sys")?;
    }
    let null = dev.find_unlinked("null").map_err(|error| Error::host(about("keys"), error))?;
    for name in MASKED_FILES {
        let source = || null.detach(false).map_err(|error| Error::host(about(name), error));
        mask(proc, name, source)?;
    }
    let root_only = root_only_files(proc)?;
    for name in &root_only {
        let source = || null.detach(false).map_err(|error| Error::host(about(name), error));
        mask(proc, name, source)?;
    }
    let mount_point = proc.find_unlinked(MASKED_IN_PROC);
    let mount_point = mount_point.map_err(|error| Error::host(about(MASKED_IN_PROC), error))?;
    attach(empty_dir.as_fd(), &mount_point, MASKED_IN_PROC)?;
    for name in ROOT_ONLY_DIRS.iter().filter(|_| !root_only.is_empty()) {
        mask(proc, name, || rootfs::detach_fd(empty_dir, false))?;
    }
    Ok(())
}

/// Directories of /proc with files that root of the host may write without a capability.
const ROOT_ONLY_DIRS: [&str; 5] = ["acpi", "bus", "driver", "irq", "scsi"];

/// Files of /proc that root of the host may write, or it alone may read, if that root is root
/// inside: where msb runs as root in a user namespace that maps it. `sysrq-trigger` is one of them.
fn root_only_files(proc: &RootDir) -> Result<Vec<String>> {
    let list = || -> rustix::io::Result<Vec<String>> {
        let mut names = Vec::new();
        if rustix::fs::statat(proc, "version", AtFlags::empty())?.st_uid != 0 {
            return Ok(names);
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for entry in Dir::read_from(rustix::fs::openat(proc, ".", flags, Mode::empty())?)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let Ok(stat) = rustix::fs::statat(proc, &name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            if is_file && (stat.st_mode & 0o222 != 0 || stat.st_mode & 0o004 == 0) {
                names.push(name);
            }
        }
        Ok(names)
    };
    list().map_err(|error| Error::host("cannot list /proc", error))
}

/// Mounts over a path of /proc or /sys, if this kernel has it.
fn mask(root: &RootDir, name: &str, source: impl Fn() -> Result<OwnedFd>) -> Result<()> {
    match root.find_unlinked(name) {
        Ok(mount_point) => attach(source()?.as_fd(), &mount_point, name),
        Err(_) => Ok(()),
    }
}

/// A new, detached mount of proc or sysfs.
pub(crate) fn new_kernel_mount(name: &str, attributes: MountAttrFlags) -> Result<OwnedFd> {
    rootfs::new_mount(name, &[], attributes).map_err(|error| {
        error.hint(
            "inside a container, its masked /proc and /sys forbid this: run it with \
             `--security-opt systempaths=unconfined`, or use the host",
        )
    })
}

/// Creates directories that programs expect, if the image lacks them.
pub(crate) fn make_default_directories(root: &RootDir) {
    for (path, mode) in [("/tmp", 0o1777), ("/run", 0o755), ("/root", 0o700)] {
        // A failure is noticed by the program that needs the directory.
        let _ = root.make_directory(path, mode);
    }
}
