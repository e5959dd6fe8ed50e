//! Kernel calls that only PID 1 of a microVM makes: vsock, entropy, freezing file systems.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The vsock CID of the host.
pub const HOST: u32 = libc::VMADDR_CID_HOST;

/// Socket buffer in bytes: as much as the VMM promises to hold in one direction. The VMM sends a
/// credit update when half of it is forwarded, and a kernel never has more in flight than its own
/// buffer holds. With the default of 256 KiB both sides would wait for each other.
const WINDOW: u64 = 8 << 20;

/// Starts a non-blocking vsock connection; the socket is writable once it is established.
pub fn connect(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: creates a descriptor and touches no memory.
    let fd = unsafe { libc::socket(libc::AF_VSOCK, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned a new descriptor that has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // `SO_VM_SOCKETS_BUFFER_MAX_SIZE` and `SO_VM_SOCKETS_BUFFER_SIZE`, which the libc crate lacks.
    for option in [2, 0] {
        let window = WINDOW;
        // SAFETY: the kernel reads the number, which outlives the call, up to its size.
        let done = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::AF_VSOCK,
                option,
                (&raw const window).cast(),
                size_of::<u64>() as libc::socklen_t,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: all-zero is a valid sockaddr_vm.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    // SAFETY: the kernel reads the address, which lives until the call returns, up to its size.
    let done = unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_vm>() as libc::socklen_t,
        )
    };
    match done {
        0 => Ok(socket),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
            error => Err(error),
        },
    }
}

/// Adds 256 bits of entropy to the kernel's random generator and credits them. `device` is
/// /dev/urandom.
pub fn add_entropy(device: BorrowedFd<'_>, bytes: &[u8; 32]) -> io::Result<()> {
    /// `_IOW('R', 3, int[2])`, which the libc crate lacks.
    const RNDADDENTROPY: u32 = 0x4008_5203;
    #[repr(C)]
    struct RandPoolInfo {
        bits: libc::c_int,
        size: libc::c_int,
        bytes: [u8; 32],
    }
    let pool = RandPoolInfo { bits: 256, size: 32, bytes: *bytes };
    // SAFETY: the kernel reads two numbers and as many bytes as the second says, all of which
    // live until the call returns.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), RNDADDENTROPY as _, &raw const pool) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Freezes a file system (`FIFREEZE`): flushes it to its disk and blocks writes, so that it needs
/// no repair at the next mount.
pub fn freeze(directory: BorrowedFd<'_>) -> io::Result<()> {
    /// `_IOWR('X', 119, int)`, which the libc crate lacks.
    const FIFREEZE: u32 = 0xc004_5877;
    // SAFETY: this request ignores its argument.
    let done = unsafe { libc::ioctl(directory.as_raw_fd(), FIFREEZE as _, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Thaws a frozen file system (`FITHAW`): writes continue.
pub fn thaw(directory: BorrowedFd<'_>) -> io::Result<()> {
    /// `_IOWR('X', 120, int)`, which the libc crate lacks.
    const FITHAW: u32 = 0xc004_5878;
    // SAFETY: this request ignores its argument.
    let done = unsafe { libc::ioctl(directory.as_raw_fd(), FITHAW as _, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
