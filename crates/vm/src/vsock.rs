//! The vsock port of a microVM: each connection that the guest opens becomes a socket of the
//! worker. Its bytes are not inspected here.

use crate::link::{Link, Report};
use msb_krun::backends::vsock::{
    VsockConnectRequest, VsockConnectState, VsockNotifier, VsockPortBackend, VsockShutdown,
    VsockStreamBackend,
};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// More than a worker has clients; further connections are refused.
const MAX_CONNECTIONS: usize = 768;

/// Accepts connections of the guest to the port.
pub(crate) struct VsockPort {
    link: Link,
    open: Arc<AtomicUsize>,
}

impl VsockPort {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, open: Arc::default() }
    }
}

impl VsockPortBackend for VsockPort {
    fn connect(
        &self,
        _request: VsockConnectRequest,
        _notifier: VsockNotifier,
    ) -> io::Result<Box<dyn VsockStreamBackend>> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let open = OpenConnection(Arc::clone(&self.open));
        let (ours, theirs) = msb_sys::socket::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        self.link.report(&Report::Connection(theirs))?;
        Ok(Box::new(VsockConnection {
            socket: ours,
            state_queried: AtomicBool::new(false),
            _open: open,
        }))
    }
}

/// Counts one open connection until it is dropped.
struct OpenConnection(Arc<AtomicUsize>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct VsockConnection {
    socket: OwnedFd,
    /// Whether the VMM has queried the state before.
    state_queried: AtomicBool,
    _open: OpenConnection,
}

impl VsockStreamBackend for VsockConnection {
    /// Reports `Connecting` at the first query, so that the thread that forwards bytes also sends
    /// the reply to the guest. Otherwise bytes of the worker overtake that reply, and the guest
    /// resets the connection.
    fn connect_state(&self) -> io::Result<VsockConnectState> {
        Ok(match self.state_queried.swap(true, Ordering::Relaxed) {
            false => VsockConnectState::Connecting,
            true => VsockConnectState::Connected,
        })
    }

    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let (read, _) = rustix::net::recv(&self.socket, buf, RecvFlags::empty())?;
        Ok(read)
    }

    fn write(&self, buf: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.socket, buf, SendFlags::NOSIGNAL)?)
    }

    fn shutdown(&self, how: VsockShutdown) -> io::Result<()> {
        let how = match how {
            VsockShutdown::Read => Shutdown::Read,
            VsockShutdown::Write => Shutdown::Write,
            VsockShutdown::Both => Shutdown::Both,
        };
        Ok(rustix::net::shutdown(&self.socket, how)?)
    }

    fn pollable(&self) -> Option<RawFd> {
        Some(self.socket.as_raw_fd())
    }
}
