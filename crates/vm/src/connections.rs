//! The one vsock port of a machine: every connection that the guest opens becomes a socket of the
//! worker. Nothing that goes through is looked at here.

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

/// More than a worker has clients; a guest that opens more is refused.
const MOST: usize = 768;

/// Takes connections to the port.
pub(crate) struct Port {
    link: Link,
    open: Arc<AtomicUsize>,
}

impl Port {
    pub(crate) fn new(link: Link) -> Self {
        Self { link, open: Arc::default() }
    }
}

impl VsockPortBackend for Port {
    fn connect(
        &self,
        _request: VsockConnectRequest,
        _notifier: VsockNotifier,
    ) -> io::Result<Box<dyn VsockStreamBackend>> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.open.fetch_sub(1, Ordering::Relaxed);
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let counted = Counted(Arc::clone(&self.open));
        let (ours, theirs) = msb_sys::socket::pair()?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        self.link.tell(&Report::Connection(theirs))?;
        Ok(Box::new(Connection { socket: ours, begun: AtomicBool::new(false), _counted: counted }))
    }
}

/// One that is open.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Connection {
    socket: OwnedFd,
    /// Whether the VMM has asked for the state before.
    begun: AtomicBool,
    _counted: Counted,
}

impl VsockStreamBackend for Connection {
    /// Not up when first asked, so that the thread which passes bytes on also tells the guest that
    /// it is up. Otherwise bytes of the worker overtake that, and the guest refuses the connection.
    fn connect_state(&self) -> io::Result<VsockConnectState> {
        Ok(match self.begun.swap(true, Ordering::Relaxed) {
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
