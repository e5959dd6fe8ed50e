//! A writable layer or a volume of a fixed size: an ext4 image behind a loop device.
//!
//! The image is only ever written through the kernel's own ext4, never by a sandbox directly.
//! It is mounted without being attached anywhere, so that nothing is left when the worker dies.

use msb_spec::{Error, Kind, Result};
use msb_sys::loopback_disk::{self, Attached};
use rustix::fs::{FlockOperation, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Attaching and mounting takes milliseconds, playing back a journal somewhat more.
const TURN_LIMIT: Duration = Duration::from_secs(30);

/// Mounts an image, attached nowhere yet.
pub(crate) fn mount(path: &Path) -> Result<OwnedFd> {
    let about = |error: std::io::Error| {
        Error::host(format!("cannot mount the disk `{}`", path.display()), error)
    };
    let file = File::options().read(true).write(true).open(path).map_err(about)?;
    let (device, _held) = loopback_disk::attach(&file).map_err(about)?;
    mount_device(&device, false).map_err(about)
}

/// Mounts an image that others may have mounted as well: all of them have the same file system
/// and one cache, because it is found by its loop device. Attached nowhere yet.
pub(crate) fn mount_shared(path: &Path, read_only: bool) -> Result<OwnedFd> {
    let about = |error: io::Error| {
        Error::host(format!("cannot mount the disk `{}`", path.display()), error)
    };
    let open = || {
        let mut options = File::options();
        options.read(true).write(!read_only).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        options.open(path)
    };
    let file = open().map_err(about)?;
    // One that the loop device does not keep: a lock ends with the last copy of its descriptor.
    let turn = open().map_err(about)?;
    let since = Instant::now();
    loop {
        let ours = rustix::fs::flock(&turn, FlockOperation::NonBlockingLockExclusive).is_ok();
        if ours && let Some((device, _held)) = device_of(&file, read_only).map_err(about)? {
            return mount_device(&device, read_only).map_err(|error| unmountable(path, error));
        }
        if since.elapsed() > TURN_LIMIT {
            return Err(Error::new(
                Kind::Timeout,
                format!("the disk `{}` is being mounted by another", path.display()),
            ));
        }
        let _ = rustix::fs::flock(&turn, FlockOperation::NonBlockingUnlock);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The loop device of an image, found or made. None while one that was attached in another way is
/// on its way out.
fn device_of(file: &File, read_only: bool) -> io::Result<Option<(String, OwnedFd)>> {
    match loopback_disk::find(file)? {
        Some(Attached { path, read_only: found, held }) if found == read_only => {
            Ok(Some((path, held)))
        }
        Some(_) => Ok(None),
        None => loopback_disk::attach(file).map(Some),
    }
}

fn unmountable(path: &Path, error: io::Error) -> Error {
    let kind = error.kind();
    let error = Error::host(format!("cannot mount the disk `{}`", path.display()), error);
    match kind {
        io::ErrorKind::ReadOnlyFilesystem => {
            error.hint("whoever wrote it last was killed: mount it once without `:ro`, to mend it")
        }
        _ => error,
    }
}

fn mount_device(device: &str, read_only: bool) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "source", device)?;
    if read_only {
        rustix::mount::fsconfig_set_flag(context.as_fd(), "ro")?;
    } else {
        // What is removed inside is given back to the host.
        rustix::mount::fsconfig_set_flag(context.as_fd(), "discard")?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let quiet = MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, quiet)?)
}
