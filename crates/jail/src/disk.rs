//! A writable layer of a fixed size: an ext4 image behind a loop device.
//!
//! The image is only ever written through the kernel's own ext4, never by a sandbox directly.
//! It is mounted without being attached anywhere, so that nothing is left when the worker dies.

use msb_spec::{Error, Result};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Mounts an image, attached nowhere yet.
pub(crate) fn mount(path: &Path) -> Result<OwnedFd> {
    let about = |error: std::io::Error| {
        Error::host(format!("cannot mount the disk `{}`", path.display()), error)
    };
    let file = File::options().read(true).write(true).open(path).map_err(about)?;
    let (device, _held) = msb_sys::loopback_disk::attach(&file).map_err(about)?;
    let mount = || -> rustix::io::Result<OwnedFd> {
        let context = rustix::mount::fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_set_string(context.as_fd(), "source", &device)?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        let quiet = MountAttrFlags::MOUNT_ATTR_NODEV;
        rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, quiet)
    };
    mount().map_err(|error| about(error.into()))
}
