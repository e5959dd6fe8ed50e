//! Unix sockets: `SCM_RIGHTS` beside the bytes, and socket paths of any length.

use rustix::fs::{Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Size of `sun_path`, with its terminating zero.
const MAX_PATH: usize = 108;

/// Largest number of descriptors sent with one frame.
pub const MAX_FDS: usize = 3;

/// A connected pair of stream sockets, close-on-exec.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// A connected pair of `SOCK_SEQPACKET` sockets with a large send buffer, for packets.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    /// Bytes of send buffer; the kernel caps it at `net.core.wmem_max`.
    const ROOM: usize = 4 << 20;
    let kind = SocketType::SEQPACKET;
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    for socket in [&one, &other] {
        rustix::net::sockopt::set_socket_send_buffer_size(socket, ROOM)?;
    }
    Ok((one, other))
}

/// A stream socket that is read and written without waiting, whatever flags its descriptor has.
#[derive(Debug)]
pub struct NonblockingSocket(OwnedFd);

impl From<OwnedFd> for NonblockingSocket {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl From<NonblockingSocket> for OwnedFd {
    fn from(socket: NonblockingSocket) -> Self {
        socket.0
    }
}

impl AsFd for NonblockingSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for NonblockingSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.0, buffer, RecvFlags::DONTWAIT)?.0)
    }
}

impl Write for NonblockingSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream socket that collects the descriptors beside the bytes that are read.
#[derive(Debug)]
pub struct DescriptorSocket {
    socket: OwnedFd,
    /// Descriptors that arrived, oldest first.
    pub fds: Vec<OwnedFd>,
}

impl From<OwnedFd> for DescriptorSocket {
    fn from(socket: OwnedFd) -> Self {
        Self { socket, fds: Vec::new() }
    }
}

impl AsFd for DescriptorSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for DescriptorSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        receive(self.socket.as_fd(), buffer, &mut self.fds)
    }
}

/// Error of a send on a socket.
#[derive(Debug)]
pub struct Unsent {
    /// Error that the kernel returned.
    pub error: io::Error,
    /// Whether some bytes were sent before: the peer then has a partial frame.
    pub begun: bool,
}

impl Unsent {
    /// Whether the kernel lacked buffers or descriptors: the peer is there, and a later try may
    /// succeed.
    pub fn is_shortage(&self) -> bool {
        let shortages = [
            libc::ETOOMANYREFS,
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOBUFS,
            libc::ENOMEM,
            libc::ENOSPC,
            libc::EAGAIN,
        ];
        !self.begun && self.error.raw_os_error().is_some_and(|errno| shortages.contains(&errno))
    }
}

/// Sends all bytes; the descriptors go with the first byte.
pub fn send_all(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_or_tell(socket, bytes, fds).map_err(|unsent| unsent.error)
}

/// Like [`send_all`]; the error says whether some bytes were sent.
///
/// The kernel counts descriptors in flight for each user and refuses more than the sender's
/// RLIMIT_NOFILE. Other processes of the user may have that many in flight, so the soft limit is
/// raised to the hard one on ETOOMANYREFS.
pub fn send_or_tell(
    socket: BorrowedFd<'_>,
    mut bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Unsent> {
    let whole = bytes.len();
    let mut raised = false;
    let mut fds = Some(fds).filter(|fds| !fds.is_empty());
    while !bytes.is_empty() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if let Some(fds) = fds {
            let fits = ancillary.push(SendAncillaryMessage::ScmRights(fds));
            assert!(fits, "at most MAX_FDS descriptors are sent at once");
        }
        let slices = [IoSlice::new(bytes)];
        match rustix::net::sendmsg(socket, &slices, &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(n) => {
                bytes = &bytes[n..];
                fds = None;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::TOOMANYREFS) if !raised => {
                raised = true;
                let resource = rustix::process::Resource::Nofile;
                let limit = rustix::process::getrlimit(resource);
                let limit = rustix::process::Rlimit { current: limit.maximum, ..limit };
                // If this fails, the next send fails with the same error.
                let _ = rustix::process::setrlimit(resource, limit);
            }
            Err(error) => {
                return Err(Unsent { error: error.into(), begun: bytes.len() < whole });
            }
        }
    }
    Ok(())
}

/// Receives available bytes, up to the buffer's length, and the descriptors beside them. Zero is
/// end of file. More than [`MAX_FDS`] descriptors at once are closed by the kernel.
pub fn receive(
    socket: BorrowedFd<'_>,
    buffer: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(buffer)];
    let received =
        rustix::net::recvmsg(socket, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    Ok(received.bytes)
}

/// Listens at `directory/name`. The address goes through /proc/self/fd of the open directory,
/// because a socket's own path may have only 107 bytes.
pub fn listen(directory: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &address(directory, name)?)?;
    rustix::net::listen(&socket, 128)?;
    Ok(socket)
}

/// Connects to the socket `directory/name`, blocking.
pub fn connect(directory: &Path, name: &str) -> io::Result<OwnedFd> {
    let socket = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Most paths are short enough for sun_path.
    let path = directory.join(name);
    if path.as_os_str().len() < MAX_PATH {
        rustix::net::connect(&socket, &SocketAddrUnix::new(&path)?)?;
        return Ok(socket);
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    rustix::net::connect(&socket, &address(directory.as_fd(), name)?)?;
    Ok(socket)
}

fn address(directory: BorrowedFd<'_>, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))?)
}
