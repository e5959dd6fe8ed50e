//! /dev, /proc and /sys as a sandbox sees them.

use crate::ceilings::Ceilings;
use crate::layers::{self, PLAIN, attach, detach};
use msb_spec::{Error, Kind, Result};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::root_dir::{PathInRoot, RootDir};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Devices that every program expects and that lead nowhere.
const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files of /proc that everybody may read and that tell of the host: its keys, its kernel's addresses,
/// who locks which file, and its disks with the loop devices of other sandboxes. Others, such as kcore,
/// kmsg and sysrq-trigger, belong to the host's root, who does not exist inside.
const HIDDEN_FILES: [&str; 7] =
    ["keys", "key-users", "kallsyms", "locks", "partitions", "diskstats", "swaps"];

/// A directory of /proc that names the disks on which the host has file systems.
const HIDDEN_IN_PROC: &str = "fs";

/// Directories of /sys that tell of the host: its firmware, and its disks with the loop devices of other
/// sandboxes, which name the files behind them.
const HIDDEN_IN_SYS: [&str; 10] = [
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

/// A directory of /proc that may be read and not written: some of it would belong to root inside.
const READ_ONLY: &str = "sys";

pub(crate) const QUIET: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

/// What must be taken from the host before its root is left: the kernel shows a new /proc only
/// to those who can see an old one, and device nodes cannot be made in a user namespace.
#[derive(Debug)]
pub(crate) struct Kernel {
    proc: OwnedFd,
    sys: OwnedFd,
    nodes: Vec<OwnedFd>,
}

impl Kernel {
    pub(crate) fn take() -> Result<Self> {
        // The nodes are the host's own. Read-only, their times, modes and owners cannot be changed by
        // those inside, nor seen to change; it does not keep anybody from writing to a device.
        let closed = Attributes { read_only: true, no_exec: true, ..Attributes::default() };
        let take = |name: &&str| {
            let node = detach(&Path::new("/dev").join(name), false)?;
            set_attributes(node.as_fd(), &closed)
                .map_err(|error| Error::host(format!("cannot close `/dev/{name}`"), error))?;
            Ok(node)
        };
        let nodes = NODES.iter().map(take).collect::<Result<_>>()?;
        let sys = kernel_view("sysfs", QUIET | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        Ok(Self { proc: kernel_view("proc", QUIET)?, sys, nodes })
    }

    /// Every descriptor that is still needed once the host's root was left.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        [&self.proc, &self.sys].into_iter().chain(&self.nodes).map(AsFd::as_fd)
    }

    /// No user namespaces in this one from now on: they would hand back every capability over
    /// the kernel's network code that was just dropped.
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

    /// Sets the ceilings of the sandbox's own user namespace.
    pub(crate) fn set_ceilings(&self, ceilings: &Ceilings) -> Result<()> {
        ceilings.set_sysctls(self.proc.as_fd())
    }

    /// Has System V shared memory be a small part of the memory that a sandbox may have. Segments that
    /// no process has attached are in no process's memory, where a watched limit could count them.
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

    /// Lets everybody inside send echoes. As far as its groups go: not all of them may exist.
    pub(crate) fn allow_echoes(&self) {
        let path = "sys/net/ipv4/ping_group_range";
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&self.proc, path, flags, Mode::empty()) else { return };
        let wide = rustix::io::write(&file, b"0 65535");
        let _ = wide.or_else(|_| rustix::io::write(&file, b"0 0"));
    }

    /// Puts /dev in place below the sandbox's own root.
    pub(crate) fn place_devices(&self, root: &RootDir, shm_size: u64) -> Result<RootDir> {
        let place = own_directory(root, "/dev")?;
        // With /dev/shm in it: a file system of its own for that costs as much as the rest of /dev.
        let size = shm_size.to_string();
        let mount = layers::file_system("tmpfs", &[("mode", "755"), ("size", &size)], PLAIN)?;
        attach(mount.as_fd(), &place, "/dev")?;
        let dev = RootDir::of(mount);
        let about = |name: &str| format!("cannot make `/dev/{name}`");
        for (name, node) in NODES.iter().zip(&self.nodes) {
            let place = dev.make_file(name).map_err(|error| Error::host(about(name), error))?;
            attach(node.as_fd(), &place, name)?;
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
        let quiet = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        // Each mount of it is an instance of its own. The host has 4096 terminals for everybody: without
        // a maximum one sandbox could take all that the host does not keep for itself.
        let options = [("ptmxmode", "0666"), ("mode", "620"), ("max", "256")];
        let terminals = layers::file_system("devpts", &options, quiet)?;
        let place = dev.find_unlinked("pts").map_err(|error| Error::host(about("pts"), error))?;
        attach(terminals.as_fd(), &place, "/dev/pts")?;
        Ok(dev)
    }

    /// Puts /sys and /proc in place. They come last: a path through /proc may lead anywhere, and
    /// nothing of the image is looked for once it is there.
    pub(crate) fn place_views(
        self,
        places: &Views,
        dev: &RootDir,
        nothing: &OwnedFd,
    ) -> Result<()> {
        attach(self.proc.as_fd(), &places.proc, "/proc")?;
        hide_in_proc(&RootDir::of(self.proc), dev, nothing)?;
        attach(self.sys.as_fd(), &places.sys, "/sys")?;
        let sys = RootDir::of(self.sys);
        for name in HIDDEN_IN_SYS {
            hide(&sys, name, || layers::detach_found(nothing, false))?;
        }
        Ok(())
    }
}

/// Where /proc and /sys will be.
#[derive(Debug)]
pub(crate) struct Views {
    proc: PathInRoot,
    sys: PathInRoot,
}

impl Views {
    pub(crate) fn find(root: &RootDir) -> Result<Self> {
        Ok(Self { proc: own_directory(root, "/proc")?, sys: own_directory(root, "/sys")? })
    }
}

/// A directory of the image that is covered by one of ours. A link there would have ours at another
/// place, and what the guest takes for /dev/null or /proc would be the image's.
fn own_directory(root: &RootDir, path: &str) -> Result<PathInRoot> {
    let failed = |error| Error::host(format!("cannot make `{path}`"), error);
    root.make_directory(path, 0o755).map_err(failed)?;
    let refused = |error| {
        Error::new(Kind::Invalid, format!("the image must have a directory at `{path}`"))
            .cause(error)
            .hint("/dev, /proc and /sys are the sandbox's own; a link cannot stand for them")
    };
    let place = root.find_unlinked(path).map_err(|error| refused(error.to_string()))?;
    match place.is_directory() {
        true => Ok(place),
        false => Err(refused("it is a file".to_owned())),
    }
}

/// What init says is read where init has it: there is no other console.
pub(crate) fn link_console(dev: &RootDir) -> Result<()> {
    dev.make_link("/proc/1/fd/1", "console")
        .map_err(|error| Error::host("cannot make `/dev/console`", error))
}

/// Covers what tells of the host in /proc and closes what speaks to it. `nothing` is an empty directory;
/// it is attached afterwards, and can be shown elsewhere too.
pub(crate) fn hide_in_proc(proc: &RootDir, dev: &RootDir, nothing: &OwnedFd) -> Result<()> {
    let about = |name: &str| format!("cannot close `/proc/{name}`");
    if let Ok(place) = proc.find_unlinked(READ_ONLY) {
        let part = place.detach(true).map_err(|error| Error::host(about(READ_ONLY), error))?;
        let read_only = Attributes { read_only: true, recursive: true, ..Attributes::default() };
        set_attributes(part.as_fd(), &read_only)
            .map_err(|error| Error::host(about(READ_ONLY), error))?;
        attach(part.as_fd(), &place, "/proc/sys")?;
    }
    let null = dev.find_unlinked("null").map_err(|error| Error::host(about("keys"), error))?;
    for name in HIDDEN_FILES {
        let cover = || null.detach(false).map_err(|error| Error::host(about(name), error));
        hide(proc, name, cover)?;
    }
    let place = proc.find_unlinked(HIDDEN_IN_PROC);
    let place = place.map_err(|error| Error::host(about(HIDDEN_IN_PROC), error))?;
    attach(nothing.as_fd(), &place, HIDDEN_IN_PROC)
}

/// Covers a name of a kernel's view, if this kernel has it.
fn hide(view: &RootDir, name: &str, cover: impl Fn() -> Result<OwnedFd>) -> Result<()> {
    match view.find_unlinked(name) {
        Ok(place) => attach(cover()?.as_fd(), &place, name),
        Err(_) => Ok(()),
    }
}

/// What the kernel shows of itself, not attached yet.
pub(crate) fn kernel_view(name: &str, attributes: MountAttrFlags) -> Result<OwnedFd> {
    layers::file_system(name, &[], attributes).map_err(|error| {
        error.hint(
            "inside a container, its masked /proc and /sys forbid this: run it with \
             `--security-opt systempaths=unconfined`, or use the host",
        )
    })
}

/// Directories that every program expects, made if the image lacks them.
pub(crate) fn make_usual_directories(root: &RootDir) {
    for (path, mode) in [("/tmp", 0o1777), ("/run", 0o755), ("/root", 0o700)] {
        // One that cannot be made is missed by the program that wants it.
        let _ = root.make_directory(path, mode);
    }
}
