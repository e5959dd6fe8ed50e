//! /dev, /proc and /sys as a sandbox sees them.

use crate::layers::{attach, detach, make_dir, mount_tmpfs};
use msb_spec::{Error, Result};
use msb_sys::mount::{Attributes, set_attributes};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Devices that every program expects and that lead nowhere.
const NODES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

/// Files of /proc that everybody may read and that tell of the host. Others, such as kcore, kmsg
/// and sysrq-trigger, belong to the host's root, who does not exist inside.
const HIDDEN_FILES: [&str; 3] = ["/proc/keys", "/proc/key-users", "/proc/kallsyms"];

/// A directory that tells of the host.
const HIDDEN_DIRECTORY: &str = "/sys/firmware";

/// May be read and not written: some of it would belong to root inside.
const READ_ONLY: [&str; 1] = ["/proc/sys"];

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
        let nodes = NODES
            .iter()
            .map(|name| detach(&Path::new("/dev").join(name), false))
            .collect::<Result<_>>()?;
        let sys = file_system("sysfs", QUIET | MountAttrFlags::MOUNT_ATTR_RDONLY)?;
        Ok(Self { proc: file_system("proc", QUIET)?, sys, nodes })
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

    /// Lets everybody inside send echoes. As far as its groups go: not all of them may exist.
    pub(crate) fn allow_echoes(&self) {
        let path = "sys/net/ipv4/ping_group_range";
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(&self.proc, path, flags, Mode::empty()) else { return };
        let wide = rustix::io::write(&file, b"0 65535");
        let _ = wide.or_else(|_| rustix::io::write(&file, b"0 0"));
    }

    /// Puts everything in place below the sandbox's own root.
    pub(crate) fn place(self, nothing: &OwnedFd, shm_size: u64) -> Result<()> {
        for directory in ["/proc", "/sys", "/dev"] {
            make_dir(Path::new(directory))?;
        }
        attach(self.proc.as_fd(), Path::new("/proc"))?;
        attach(self.sys.as_fd(), Path::new("/sys"))?;
        // With /dev/shm in it: a file system of its own for that costs as much as the rest of /dev.
        mount_tmpfs(Path::new("/dev"), &format!("mode=755,size={shm_size}"))?;
        for (name, node) in NODES.iter().zip(&self.nodes) {
            let target = Path::new("/dev").join(name);
            make_file(&target)?;
            attach(node.as_fd(), &target)?;
        }
        for (link, target) in [
            ("/dev/fd", "/proc/self/fd"),
            ("/dev/stdin", "/proc/self/fd/0"),
            ("/dev/stdout", "/proc/self/fd/1"),
            ("/dev/stderr", "/proc/self/fd/2"),
            ("/dev/ptmx", "pts/ptmx"),
        ] {
            rustix::fs::symlink(target, link)
                .map_err(|error| Error::host(format!("cannot make `{link}`"), error))?;
        }
        for directory in ["/dev/pts", "/dev/shm"] {
            make_dir(Path::new(directory))?;
        }
        let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
        let options = c"newinstance,ptmxmode=0666,mode=620";
        rustix::mount::mount("devpts", "/dev/pts", "devpts", flags, options)
            .map_err(|error| Error::host("cannot mount terminals", error))?;
        rustix::fs::chmod("/dev/shm", Mode::from_raw_mode(0o1777))
            .map_err(|error| Error::host("cannot open /dev/shm to everybody", error))?;
        hide_in_proc()?;
        if Path::new(HIDDEN_DIRECTORY).is_dir() {
            attach(nothing.as_fd(), Path::new(HIDDEN_DIRECTORY))?;
        }
        Ok(())
    }
}

/// What init says is read where init has it: there is no other console.
pub(crate) fn link_console() -> Result<()> {
    rustix::fs::symlink("/proc/1/fd/1", "/dev/console")
        .map_err(|error| Error::host("cannot make `/dev/console`", error))
}

/// Covers what tells of the host in /proc and closes what speaks to it.
pub(crate) fn hide_in_proc() -> Result<()> {
    for path in READ_ONLY.map(Path::new).iter().filter(|path| path.exists()) {
        let part = detach(path, true)?;
        let read_only = Attributes { read_only: true, recursive: true, ..Attributes::default() };
        set_attributes(part.as_fd(), &read_only)
            .map_err(|error| Error::host(format!("cannot close `{}`", path.display()), error))?;
        attach(part.as_fd(), path)?;
    }
    for path in HIDDEN_FILES.map(Path::new).iter().filter(|path| path.exists()) {
        attach(detach(Path::new("/dev/null"), false)?.as_fd(), path)?;
    }
    Ok(())
}

/// A new mount of a file system, not attached yet.
pub(crate) fn file_system(name: &str, attributes: MountAttrFlags) -> Result<OwnedFd> {
    let make = || -> rustix::io::Result<OwnedFd> {
        let context = rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    make().map_err(|error| {
        Error::host(format!("cannot mount {name}"), error).hint(
            "inside a container, its masked /proc and /sys forbid this: run it with \
             `--security-opt systempaths=unconfined`, or use the host",
        )
    })
}

pub(crate) fn make_file(path: &Path) -> Result<()> {
    let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::from_raw_mode(0o666))
        .map(drop)
        .map_err(|error| Error::host(format!("cannot make `{}`", path.display()), error))
}

/// Directories that every program expects, made if the image lacks them.
pub(crate) fn make_usual_directories() -> Result<()> {
    for (path, mode) in [("/tmp", 0o1777), ("/run", 0o755), ("/root", 0o700)] {
        if rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(mode)).is_ok() {
            use std::os::unix::fs::PermissionsExt;
            let _ = fs::set_permissions(path, fs::Permissions::from_mode(mode));
        }
    }
    Ok(())
}
