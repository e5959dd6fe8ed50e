//! Mount calls that rustix lacks: `mount_setattr(2)`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Mount attributes to set; those that are false stay as they are.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one bit of the kernel's structure")]
pub struct Attributes<'a> {
    /// Refuse writes to files (`MOUNT_ATTR_RDONLY`).
    pub read_only: bool,
    /// Ignore setuid bits and file capabilities (`MOUNT_ATTR_NOSUID`).
    pub no_suid: bool,
    /// Ignore device nodes (`MOUNT_ATTR_NODEV`).
    pub no_dev: bool,
    /// Refuse to execute files (`MOUNT_ATTR_NOEXEC`).
    pub no_exec: bool,
    /// Private propagation: mounts below it neither reach peers nor come from them.
    pub private: bool,
    /// Also for all mounts below it (`AT_RECURSIVE`).
    pub recursive: bool,
    /// Map file ids by this user namespace (`MOUNT_ATTR_IDMAP`).
    pub id_map: Option<BorrowedFd<'a>>,
}

/// Sets attributes on a mount that is open by descriptor.
pub fn set_attributes(mount: BorrowedFd<'_>, attributes: &Attributes<'_>) -> io::Result<()> {
    // SAFETY: all-zero is a valid mount_attr.
    let mut raw: libc::mount_attr = unsafe { std::mem::zeroed() };
    for (wanted, bit) in [
        (attributes.read_only, libc::MOUNT_ATTR_RDONLY),
        (attributes.no_suid, libc::MOUNT_ATTR_NOSUID),
        (attributes.no_dev, libc::MOUNT_ATTR_NODEV),
        (attributes.no_exec, libc::MOUNT_ATTR_NOEXEC),
    ] {
        if wanted {
            raw.attr_set |= bit;
        }
    }
    if attributes.private {
        raw.propagation = libc::MS_PRIVATE;
    }
    if let Some(namespace) = attributes.id_map {
        raw.attr_set |= libc::MOUNT_ATTR_IDMAP;
        raw.userns_fd = namespace.as_raw_fd() as u64;
    }
    let recursive = if attributes.recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is an empty C string, `raw` lives until the call returns and its size is
    // passed.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | recursive,
            &raw const raw,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
