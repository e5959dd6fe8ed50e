//! The network of a sandbox on the `process` tier: a device whose other end is handed to its
//! gateway, and files such as /etc/resolv.conf.
//!
//! The device is a TAP device. Where /dev/net/tun cannot be opened, it is one end of a veth pair; the
//! other end is in a network namespace that has nothing else, and an `AF_PACKET` socket of that
//! namespace is handed over instead.

use crate::rootfs;
use msb_spec::{Error, Result, Stage, addresses, lookup};
use msb_sys::net;
use msb_sys::netlink::{self, Device, VethHolder};
use msb_sys::root_dir::{PathInRoot, RootDir};
use msb_sys::{process, socket};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// What is needed to hand the device to the gateway.
#[derive(Debug, Clone, Copy)]
pub struct NetDeviceHandoff<'a> {
    /// Socket to the gateway that the device is sent over.
    pub link: BorrowedFd<'a>,
    /// CA certificate of the gateway in PEM, if it intercepts TLS.
    pub ca_cert: Option<&'a str>,
}

/// The kinds of network devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetDevice {
    /// A TAP device, by /dev/net/tun.
    Tap,
    /// A veth pair with a packet socket.
    Veth,
}

impl NetDevice {
    /// Message that accompanies the descriptor for the gateway.
    fn message(self) -> &'static [u8] {
        match self {
            Self::Tap => b"T",
            Self::Veth => b"P",
        }
    }
}

/// Creates a network namespace with loopback, and a device if there is a gateway. This happens
/// in the child rather than at the fork: it takes longer than all other namespaces together, and
/// the worker continues meanwhile.
pub(crate) fn enter(gateway: Option<&NetDeviceHandoff<'_>>) -> Result<()> {
    let Some(gateway) = gateway else { return new_namespace() };
    let sent = make_device().and_then(|(kind, device)| gateway.send_device(kind, &device));
    sent.map_err(|error| error.at(Stage::Network))
}

fn new_namespace() -> Result<()> {
    let failed = |error| Error::host("cannot make a network namespace", error);
    process::unshare(process::NETWORK_NAMESPACE).map_err(failed)?;
    net::raise_loopback().map_err(failed)
}

/// Creates a network namespace with a device, and returns what the gateway gets for it. This
/// precedes the change of ids: only the caller may be allowed to open /dev/net/tun.
fn make_device() -> Result<(NetDevice, OwnedFd)> {
    new_namespace()?;
    let no_tap = match net::make_tap(addresses::DEVICE) {
        Ok(tap) => return Ok((NetDevice::Tap, tap)),
        Err(error) => error,
    };
    let make = || -> Result<OwnedFd> {
        let failed = |error: io::Error| Error::host("cannot make a veth pair", error);
        let holder = VethHolder::of_this_namespace().map_err(failed)?;
        new_namespace()?;
        holder.connect(addresses::DEVICE, addresses::GATEWAY_LINK, addresses::MTU).map_err(failed)
    };
    make().map(|packets| (NetDevice::Veth, packets)).map_err(|error| {
        Error::unsupported("cannot make a network device")
            .cause(format!("{}: {no_tap}", net::TUN))
            .cause(format!("{}: {}", error.message(), error.causes().join(": ")))
            .hint("`msb doctor` tells what is missing; `--no-net` does without")
    })
}

/// Tries a device in a child process with namespaces of its own, for `msb doctor`.
pub fn try_device() -> io::Result<NetDevice> {
    const VETH: i32 = 1;
    const NONE: i32 = 2;
    let namespaces = process::USER_NAMESPACE | process::NETWORK_NAMESPACE;
    match process::fork_into(namespaces, None)? {
        process::Fork::Child => process::leave(match make_device() {
            Ok((NetDevice::Tap, _)) => 0,
            Ok((NetDevice::Veth, _)) => VETH,
            Err(_) => NONE,
        }),
        process::Fork::Parent { pidfd, .. } => {
            let status = rustix::process::waitid(
                rustix::process::WaitId::PidFd(pidfd.as_fd()),
                rustix::process::WaitIdOptions::EXITED,
            )?;
            match status.and_then(|status| status.exit_status()) {
                Some(0) => Ok(NetDevice::Tap),
                Some(VETH) => Ok(NetDevice::Veth),
                _ => Err(io::Error::other("no veth pair can be made")),
            }
        }
    }
}

impl NetDeviceHandoff<'_> {
    /// Sets the device up and sends its other end to the gateway.
    fn send_device(&self, kind: NetDevice, other_end: &OwnedFd) -> Result<()> {
        let device = Device {
            name: addresses::DEVICE,
            link: addresses::GUEST_LINK,
            mtu: addresses::MTU,
            addresses: &[
                (IpAddr::V4(addresses::GUEST), addresses::BITS),
                (IpAddr::V6(addresses::GUEST6), addresses::BITS6),
            ],
            routers: &[IpAddr::V4(addresses::GATEWAY), IpAddr::V6(addresses::GATEWAY6)],
            router_link: addresses::GATEWAY_LINK,
        };
        netlink::set_up(&device)
            .map_err(|error| Error::host("cannot set up the network device", error))?;
        socket::send_all(self.link, kind.message(), &[other_end.as_fd()])
            .map_err(|error| Error::host("the gateway has exited", error))
    }

    /// Mounts the files over those of the image, which stay unchanged below.
    pub(crate) fn mount_etc_files(
        &self,
        root: &RootDir,
        dev: &RootDir,
        hostname: &str,
    ) -> Result<()> {
        let read = |path: &str| root.read_ordinary(path, lookup::LIMIT);
        let files = lookup::files(hostname, self.ca_cert, read);
        files.iter().try_for_each(|(text, targets)| mount_file(root, dev, text, targets))
    }
}

/// Mounts a file in memory over several paths of the image. A symlink there is mounted over itself
/// and not followed.
fn mount_file(root: &RootDir, dev: &RootDir, text: &[u8], targets: &[&str]) -> Result<()> {
    const STAGING_NAME: &str = ".msb-file";
    let failed = |error| Error::host("cannot mount the sandbox's network files", error);
    let written = dev.write_new(STAGING_NAME, 0o644).and_then(|mut file| file.write_all(text));
    written.map_err(failed)?;
    for path in targets {
        let target = make_file_mount_point(root, path)?;
        let file =
            dev.find_unlinked(STAGING_NAME).and_then(|file| file.detach(false)).map_err(failed)?;
        rootfs::attach(file.as_fd(), &target, path)?;
    }
    // A mounted file needs no name.
    dev.remove_file(STAGING_NAME).map_err(failed)
}

/// Creates a mount point if the image has no file there. The mtime of its directory is restored, so
/// that the image does not appear changed.
fn make_file_mount_point(root: &RootDir, path: &str) -> Result<PathInRoot> {
    if let Ok(found) = root.find_itself(path) {
        return Ok(found);
    }
    let above = Path::new(path).ancestors().skip(1);
    let directory = above.filter_map(|path| root.find(path).ok()).find_map(|directory| {
        let before = directory.stat().ok()?;
        Some((directory, before))
    });
    let made = rootfs::make_mount_point(root, path, true)?;
    if let Some((directory, before)) = directory {
        directory
            .set_times(&before)
            .map_err(|error| Error::host("cannot mount the sandbox's network files", error))?;
    }
    Ok(made)
}
