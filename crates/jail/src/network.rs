//! The network namespace, made beside everything else.
//!
//! It takes the kernel longer than all the other namespaces together, and nothing else depends
//! on it until /sys is mounted. So a thread makes it while the root is put together.

use msb_spec::{Error, Result};
use msb_sys::process;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};

/// A network namespace in the making.
pub(crate) struct Network {
    maker: JoinHandle<io::Result<OwnedFd>>,
}

impl Network {
    /// Starts to make it, with its loopback device raised.
    pub(crate) fn begin() -> Result<Self> {
        let make = || {
            process::unshare(process::NETWORK_NAMESPACE)?;
            msb_sys::net::raise_loopback()?;
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            Ok(rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty())?)
        };
        thread::Builder::new().spawn(make).map(|maker| Self { maker }).map_err(failed)
    }

    /// Waits until it is made and enters it. The thread is gone afterwards.
    pub(crate) fn enter(self) -> Result<()> {
        let made = self.maker.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        let namespace = made.map_err(failed)?;
        process::enter(namespace.as_fd(), process::NETWORK_NAMESPACE).map_err(failed)
    }
}

fn failed(error: io::Error) -> Error {
    Error::host("cannot make a network namespace", error)
}
