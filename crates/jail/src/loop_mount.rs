//! Mounts ext4 images of a fixed size through loop devices, for writable layers and volumes.
//!
//! A sandbox never writes the image directly, only through the kernel's ext4. Mounts are detached,
//! so nothing is left when the worker dies.

use msb_spec::{Error, Kind, Result};
use msb_sys::loopback_disk::{self, LoopDevice};
use rustix::fs::{FlockOperation, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Attaching and mounting takes milliseconds; replaying a journal takes a little longer.
const LOCK_LIMIT: Duration = Duration::from_secs(30);

/// Mounts an image. The mount is detached.
pub(crate) fn mount(path: &Path) -> Result<OwnedFd> {
    let about = |error: std::io::Error| {
        Error::host(format!("cannot mount the disk `{}`", path.display()), error)
    };
    let file = File::options().read(true).write(true).open(path).map_err(about)?;
    let (device, _fd) = loopback_disk::attach(&file).map_err(about)?;
    mount_device(&device, false).map_err(about)
}

/// Mounts an image that other sandboxes may have mounted as well. All share one loop device, and so
/// one file system and one cache. The mount is detached.
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
    // Opened again, because the loop device keeps `file`: an flock lasts as long as any copy of its
    // descriptor.
    let lock = open().map_err(about)?;
    let since = Instant::now();
    loop {
        let locked = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if locked && let Some((device, _fd)) = find_or_attach(&file, read_only).map_err(about)? {
            return mount_device(&device, read_only).map_err(|error| mount_error(path, error));
        }
        if since.elapsed() > LOCK_LIMIT {
            return Err(Error::new(
                Kind::Timeout,
                format!("the disk `{}` is being mounted by another process", path.display()),
            ));
        }
        let _ = rustix::fs::flock(&lock, FlockOperation::NonBlockingUnlock);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Finds the loop device of an image, or attaches one. None while one with the other read-only flag
/// is still in use.
fn find_or_attach(file: &File, read_only: bool) -> io::Result<Option<(String, OwnedFd)>> {
    match loopback_disk::find(file)? {
        Some(LoopDevice { path, read_only: found, held }) if found == read_only => {
            Ok(Some((path, held)))
        }
        Some(_) => Ok(None),
        None => loopback_disk::attach(file).map(Some),
    }
}

fn mount_error(path: &Path, error: io::Error) -> Error {
    let kind = error.kind();
    let error = Error::host(format!("cannot mount the disk `{}`", path.display()), error);
    match kind {
        io::ErrorKind::ReadOnlyFilesystem => error
            .hint("its last writer was killed: mount it once without `:ro` to replay the journal"),
        _ => error,
    }
}

fn mount_device(device: &str, read_only: bool) -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_set_string(context.as_fd(), "source", device)?;
    if read_only {
        rustix::mount::fsconfig_set_flag(context.as_fd(), "ro")?;
    } else {
        // Blocks freed inside are returned to the host.
        rustix::mount::fsconfig_set_flag(context.as_fd(), "discard")?;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NODEV;
    Ok(rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}
