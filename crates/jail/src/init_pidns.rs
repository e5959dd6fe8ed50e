//! A pid namespace for the image's own init, nested in that of the guest.
//!
//! The guest stays in the outer namespace. Processes inside cannot see, signal or trace it; it can
//! stop and kill the init, and everything inside dies when it exits. Its later children are created
//! in the inner namespace.
//!
//! The init is forked from the guest after all confinement, so it has exactly the rights of a
//! command and shares its Landlock domain. Mounting is no longer possible then, so a helper
//! process, forked earlier, mounts the /proc of the new namespace.

use crate::devices;
use crate::rootfs::{self, attach};
use msb_spec::{Error, Kind, Result, Stage};
use msb_sys::root_dir::RootDir;
use msb_sys::{process, socket};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use rustix::thread::LinkNameSpaceType;
use std::os::fd::{AsFd, OwnedFd};

/// What the guest has of the process that will become the init.
#[derive(Debug)]
pub struct InitHandoff {
    /// Its pid in the guest's namespace.
    pub pid: i32,
    /// Socket to it: the program to execute goes down, an error comes up. Closed by execve.
    pub start_pipe: OwnedFd,
    /// The guest's own /proc; a different one is mounted inside.
    pub proc: OwnedFd,
}

/// Entry point of the init process: gets its start pipe and its console, and returns the exit code
/// on failure.
pub type InitEntry = fn(OwnedFd, &OwnedFd) -> i32;

/// The helper process and the guest's /proc, opened while mounting is possible.
#[derive(Debug)]
pub(crate) struct InitHelper {
    helper: OwnedFd,
    proc: OwnedFd,
}

/// Bytes of the longest error that is read.
const MAX_REASON: usize = 4096;
const DONE: &[u8] = b"!";

/// Forks the helper and creates the pid namespace for later children.
pub(crate) fn prepare() -> Result<InitHelper> {
    let failed = |error| Error::host("cannot create the pid namespace of the init", error);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = rustix::fs::open("/proc", flags, Mode::empty())
        .map_err(|error| Error::host("cannot open /proc", error))?;
    let (ours, theirs) = socket::pair().map_err(failed)?;
    if process::fork_child().map_err(failed)?.is_none() {
        drop(ours);
        run_helper(&theirs);
        process::leave(0);
    }
    process::unshare(process::PID_NAMESPACE).map_err(failed)?;
    Ok(InitHelper { helper: ours, proc })
}

/// The helper: mounts /proc of the namespace that it receives, and replies. Its exit closes the
/// socket.
fn run_helper(guest: &OwnedFd) {
    let mut fds = Vec::new();
    let namespace = match socket::receive(guest.as_fd(), &mut [0], &mut fds) {
        Ok(1) => fds.pop(),
        _ => None,
    };
    // The guest is gone.
    let Some(namespace) = namespace else { return };
    let mounted = mount_init_proc(&namespace);
    if let Err(error) = mounted {
        let reason = serde_json::to_vec(&error).unwrap_or_default();
        let _ = socket::send_all(guest.as_fd(), &reason[..reason.len().min(MAX_REASON)], &[]);
        return;
    }
    let _ = socket::send_all(guest.as_fd(), DONE, &[]);
}

fn mount_init_proc(namespace: &OwnedFd) -> Result<()> {
    let failed = |error| Error::host("cannot mount /proc for the init", error);
    let kind = Some(LinkNameSpaceType::ProcessID);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)
        .map_err(|error| failed(error.into()))?;
    // setns to a pid namespace applies to children only, and /proc shows the namespace of the
    // process that mounts it.
    let (ours, theirs) = socket::pair().map_err(failed)?;
    if process::fork_child().map_err(failed)?.is_none() {
        drop(ours);
        let mounted = mount_proc();
        let reply = match &mounted {
            Ok(()) => DONE.to_vec(),
            Err(error) => serde_json::to_vec(error).unwrap_or_default(),
        };
        let _ = socket::send_all(theirs.as_fd(), &reply, &[]);
        process::leave(0);
    }
    drop(theirs);
    read_result(&ours)
}

/// Mounts the /proc of this pid namespace over the existing one. The image cannot interfere: /proc
/// and /dev are our mounts, not symlinks.
fn mount_proc() -> Result<()> {
    let failed = |error| Error::host("cannot find /proc", error);
    let mount = devices::new_kernel_mount("proc", devices::NOSUID_NODEV_NOEXEC)?;
    let root = RootDir::current().map_err(failed)?;
    attach(mount.as_fd(), &root.find_unlinked("/proc").map_err(failed)?, "/proc")?;
    let dev = root.find_unlinked("/dev").map_err(failed)?;
    let closed = devices::NOSUID_NODEV_NOEXEC | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let empty_dir = rootfs::new_mount("tmpfs", &[("mode", "555"), ("size", "4k")], closed)?;
    devices::mask_proc(&RootDir::of(mount), &RootDir::of(dev.into()), &empty_dir)
}

/// Reads the helper's result.
fn read_result(from: &OwnedFd) -> Result<()> {
    let failed =
        || Error::new(Kind::Protocol, "the helper that mounts /proc for the init has exited");
    let mut reply = vec![0; MAX_REASON];
    let length = socket::receive(from.as_fd(), &mut reply, &mut Vec::new()).unwrap_or(0);
    match &reply[..length] {
        DONE => Ok(()),
        reason => Err(serde_json::from_slice(reason).unwrap_or_else(|_| failed())),
    }
}

impl InitHelper {
    /// Forks the init process. All confinement is done by then.
    pub(crate) fn fork_init(self, console: &OwnedFd, init: InitEntry) -> Result<InitHandoff> {
        let failed = |error| Error::host("cannot create the pid namespace of the init", error);
        let (ours, theirs) = socket::pair().map_err(failed)?;
        let Some(pid) = process::fork_child().map_err(failed)? else {
            // Values that own a descriptor must not be dropped from here on.
            let kept = process::keep_these([theirs.as_fd(), console.as_fd()]);
            let code = match kept {
                Ok([start_pipe, console]) => init(start_pipe, &console),
                Err(_) => 125,
            };
            process::leave(code);
        };
        // This link exists only once the namespace has a process.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let namespace =
            rustix::fs::openat(&self.proc, "self/ns/pid_for_children", flags, Mode::empty())
                .map_err(|error| failed(error.into()))?;
        socket::send_all(self.helper.as_fd(), b"?", &[namespace.as_fd()]).map_err(failed)?;
        read_result(&self.helper).map_err(|error| error.at(Stage::Boot))?;
        Ok(InitHandoff { pid, start_pipe: ours, proc: self.proc })
    }
}
