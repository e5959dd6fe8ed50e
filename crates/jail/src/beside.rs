//! A place for an image's own init: PID 1 of a pid namespace below the guest's.
//!
//! The guest stays where it is, one namespace above: nobody inside can see, signal or trace it,
//! it can stop and end the init as no process beside it could, and when it leaves everything is
//! gone. Whatever it starts from now on is born into the namespace below.
//!
//! The init is a fork of the guest after everything was taken away, so it has exactly what a
//! command has, and is of one Landlock domain with them. By then nobody may mount any more, so
//! the /proc of the new namespace is put in place by a helper that was left behind before.

use crate::devices;
use crate::layers::{self, attach};
use msb_spec::{Error, Kind, Result, Stage};
use msb_sys::root_dir::RootDir;
use msb_sys::{process, socket};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountAttrFlags;
use rustix::thread::LinkNameSpaceType;
use std::os::fd::{AsFd, OwnedFd};

/// What the guest has of the init to be.
#[derive(Debug)]
pub struct Beside {
    /// Its pid, as the guest sees it.
    pub pid: i32,
    /// The way to it until it is the image's program: what that is goes down, why it is not
    /// comes up.
    pub turn: OwnedFd,
    /// /proc as the guest sees it; inside there is another.
    pub proc: OwnedFd,
}

/// What the init-to-be becomes: it is given its way to the guest and its console, and returns the
/// exit code.
pub type BecomeInit = fn(OwnedFd, &OwnedFd) -> i32;

/// Everything that is needed once nothing can be mounted any more.
#[derive(Debug)]
pub(crate) struct Prepared {
    helper: OwnedFd,
    proc: OwnedFd,
}

/// The longest reason that is read.
const REASON: usize = 4096;
const DONE: &[u8] = b"!";

/// Leaves the helper behind and makes the namespace that children are born into.
pub(crate) fn prepare() -> Result<Prepared> {
    let failed = |error| Error::host("cannot make room for the init", error);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = rustix::fs::open("/proc", flags, Mode::empty())
        .map_err(|error| Error::host("cannot open /proc", error))?;
    let (ours, theirs) = socket::pair().map_err(failed)?;
    if process::fork_child().map_err(failed)?.is_none() {
        drop(ours);
        help(&theirs);
        process::leave(0);
    }
    process::unshare(process::PID_NAMESPACE).map_err(failed)?;
    Ok(Prepared { helper: ours, proc })
}

/// The helper: enters the namespace and shows its /proc. Its end closes the socket.
fn help(guest: &OwnedFd) {
    let mut fds = Vec::new();
    let namespace = match socket::receive(guest.as_fd(), &mut [0], &mut fds) {
        Ok(1) => fds.pop(),
        _ => None,
    };
    // Whoever prepared us has gone.
    let Some(namespace) = namespace else { return };
    let shown = show(&namespace);
    if let Err(error) = shown {
        let reason = serde_json::to_vec(&error).unwrap_or_default();
        let _ = socket::send_all(guest.as_fd(), &reason[..reason.len().min(REASON)], &[]);
        return;
    }
    let _ = socket::send_all(guest.as_fd(), DONE, &[]);
}

fn show(namespace: &OwnedFd) -> Result<()> {
    let failed = |error| Error::host("cannot show /proc to the init", error);
    let kind = Some(LinkNameSpaceType::ProcessID);
    rustix::thread::move_into_link_name_space(namespace.as_fd(), kind)
        .map_err(|error| failed(error.into()))?;
    // Only a child is in it, and /proc shows the namespace of whoever mounts it.
    let (ours, theirs) = socket::pair().map_err(failed)?;
    if process::fork_child().map_err(failed)?.is_none() {
        drop(ours);
        let mounted = cover_proc();
        let said = match &mounted {
            Ok(()) => DONE.to_vec(),
            Err(error) => serde_json::to_vec(error).unwrap_or_default(),
        };
        let _ = socket::send_all(theirs.as_fd(), &said, &[]);
        process::leave(0);
    }
    drop(theirs);
    answer(&ours)
}

/// Mounts the /proc of this pid namespace over the one that is there. Nothing of the image is on the
/// way: /proc and /dev are ours, and neither is a link.
fn cover_proc() -> Result<()> {
    let failed = |error| Error::host("cannot find /proc", error);
    let mount = devices::kernel_view("proc", devices::QUIET)?;
    let root = RootDir::current().map_err(failed)?;
    attach(mount.as_fd(), &root.find_unlinked("/proc").map_err(failed)?, "/proc")?;
    let dev = root.find_unlinked("/dev").map_err(failed)?;
    let closed = devices::QUIET | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let nothing = layers::file_system("tmpfs", &[("mode", "555"), ("size", "4k")], closed)?;
    devices::hide_in_proc(&RootDir::of(mount), &RootDir::of(dev.into()), &nothing)
}

/// Whether it was done, or why it was not.
fn answer(from: &OwnedFd) -> Result<()> {
    let failed = || Error::new(Kind::Protocol, "whoever shows /proc to the init went away");
    let mut said = vec![0; REASON];
    let length = socket::receive(from.as_fd(), &mut said, &mut Vec::new()).unwrap_or(0);
    match &said[..length] {
        DONE => Ok(()),
        reason => Err(serde_json::from_slice(reason).unwrap_or_else(|_| failed())),
    }
}

impl Prepared {
    /// Forks the init-to-be, once everything was taken away that it is not to have.
    pub(crate) fn split(self, console: &OwnedFd, init: BecomeInit) -> Result<Beside> {
        let failed = |error| Error::host("cannot make room for the init", error);
        let (ours, theirs) = socket::pair().map_err(failed)?;
        let Some(pid) = process::fork_child().map_err(failed)? else {
            // Nothing that owns a descriptor is dropped from here on.
            let kept = process::keep_these([theirs.as_fd(), console.as_fd()]);
            let code = match kept {
                Ok([turn, console]) => init(turn, &console),
                Err(_) => 125,
            };
            process::leave(code);
        };
        // There is no such link before somebody is in it.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let namespace =
            rustix::fs::openat(&self.proc, "self/ns/pid_for_children", flags, Mode::empty())
                .map_err(|error| failed(error.into()))?;
        socket::send_all(self.helper.as_fd(), b"?", &[namespace.as_fd()]).map_err(failed)?;
        answer(&self.helper).map_err(|error| error.at(Stage::Boot))?;
        Ok(Beside { pid, turn: ours, proc: self.proc })
    }
}
