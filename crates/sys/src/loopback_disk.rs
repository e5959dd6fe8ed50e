//! Loop devices: a file as a block device that detaches by itself.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// The kernel's `loop_config`, of which we set three fields.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    before_flags: [u8; 52],
    flags: u32,
    rest: [u8; 176],
    reserved: [u64; 8],
}

/// `LOOP_CTL_GET_FREE` reserves nothing: another process may attach to the device first. Losing
/// this race so many times in a row does not happen.
const TRIES: usize = 64;

/// Attaches a file to a free loop device with `LO_FLAGS_AUTOCLEAR`: it detaches when the last user
/// closes it. Returns the device's path and a descriptor that keeps it until it is mounted.
pub fn attach(file: &File) -> io::Result<(String, OwnedFd)> {
    let control = File::options().read(true).write(true).open("/dev/loop-control")?;
    for _ in 0..TRIES {
        // SAFETY: takes no argument and returns a number.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        let path = format!("/dev/loop{number}");
        let c_path = crate::process::c_string(path.as_bytes())?;
        // SAFETY: the path is a C string.
        let fd = unsafe { libc::open(c_path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel returned a new descriptor that has no other owner.
        let device = unsafe { OwnedFd::from_raw_fd(fd) };
        let config = LoopConfig {
            fd: file.as_raw_fd() as u32,
            block_size: 0,
            before_flags: [0; 52],
            flags: LO_FLAGS_AUTOCLEAR,
            rest: [0; 176],
            reserved: [0; 8],
        };
        // SAFETY: the structure has the kernel's layout and lives until the call returns.
        if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
            return Ok((path, device));
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EBUSY) {
            return Err(error);
        }
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

/// The kernel's `loop_info64`, of which we read three fields.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    before_flags: [u8; 36],
    flags: u32,
    rest: [u8; 176],
}

/// A loop device that a file is attached to.
#[derive(Debug)]
pub struct LoopDevice {
    /// Path of the device: `/dev/loopN`.
    pub path: String,
    /// Whether the device refuses writes.
    pub read_only: bool,
    /// Open descriptor that keeps the device attached.
    pub held: OwnedFd,
}

/// The loop device that a file is already attached to, if any. A file system must not be mounted
/// through two of them: each has a page cache of its own.
pub fn find(file: &File) -> io::Result<Option<LoopDevice>> {
    let wanted = file.metadata()?;
    for entry in fs::read_dir("/dev")?.filter_map(Result::ok) {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("loop"));
        if number.is_none_or(|number| number.parse::<u32>().is_err()) {
            continue;
        }
        let Ok(device) = File::open(Path::new("/dev").join(&name)) else { continue };
        // SAFETY: all-zero is a valid loop_info64.
        let mut info: LoopInfo = unsafe { std::mem::zeroed() };
        // SAFETY: the structure has the kernel's layout and lives until the call returns.
        let attached =
            unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } == 0;
        if attached && (info.device, info.inode) == (wanted.dev(), wanted.ino()) {
            let path = format!("/dev/{}", name.to_string_lossy());
            let read_only = info.flags & LO_FLAGS_READ_ONLY != 0;
            return Ok(Some(LoopDevice { path, read_only, held: device.into() }));
        }
    }
    Ok(None)
}

const _: () = assert!(size_of::<LoopConfig>() == 304, "the layout of loop_config");
const _: () = assert!(size_of::<LoopInfo>() == 232, "the layout of loop_info64");
