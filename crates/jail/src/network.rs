//! The network of a sandbox on the `process` tier: a device whose packets its gateway is given,
//! and the files by which programs find their way.

use crate::layers;
use msb_spec::{Error, Result, Stage, addresses, lookup};
use msb_sys::net;
use msb_sys::netlink::{self, Device};
use msb_sys::root_dir::{PathInRoot, RootDir};
use msb_sys::{process, socket};
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// The way to the gateway.
#[derive(Debug, Clone, Copy)]
pub struct Outward<'a> {
    /// Where the device is handed over.
    pub link: BorrowedFd<'a>,
    /// The certificate of the gateway's own authority, in PEM, if it looks into anything.
    pub authority: Option<&'a str>,
}

/// What the gateway is told when it gets the device.
const DEVICE: &[u8] = b"T";

/// An own network with loopback, and with a device if there is a gateway. Made in here rather than at
/// the fork, because it takes longer than all other namespaces together and the worker has other
/// things to do meanwhile.
pub(crate) fn enter(outward: Option<&Outward<'_>>) -> Result<()> {
    let failed = |error| Error::host("cannot make a network namespace", error);
    process::unshare(process::NETWORK_NAMESPACE).map_err(failed)?;
    net::raise_loopback().map_err(failed)?;
    outward.map_or(Ok(()), |outward| outward.hand_over().map_err(|error| error.at(Stage::Network)))
}

impl Outward<'_> {
    /// Makes the device, before the ids of the sandbox are taken: it may be the caller's to open.
    fn hand_over(&self) -> Result<()> {
        let tap = net::make_tap(addresses::DEVICE).map_err(|error| {
            Error::unsupported("cannot make a network device with `/dev/net/tun`")
                .cause(error)
                .hint("`msb doctor` tells what is missing; `--no-net` does without")
        })?;
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
        socket::send_all(self.link, DEVICE, &[tap.as_fd()])
            .map_err(|error| Error::host("the gateway went away", error))
    }

    /// Puts the files in place, as mounts over those of the image: nothing of them is kept.
    pub(crate) fn place_files(&self, root: &RootDir, dev: &RootDir, hostname: &str) -> Result<()> {
        let read = |path: &str| root.read_ordinary(path, lookup::LIMIT);
        let files = lookup::files(hostname, self.authority, read);
        files.iter().try_for_each(|(text, places)| show(root, dev, text, places))
    }
}

/// Shows a file that lies in memory at places where the image may have one. A link there is covered
/// itself, wherever it leads: it is the image's, and stays.
fn show(root: &RootDir, dev: &RootDir, text: &[u8], places: &[&str]) -> Result<()> {
    const ASIDE: &str = ".msb-file";
    let failed = |error| Error::host("cannot tell the sandbox of its network", error);
    let written = dev.write_new(ASIDE, 0o644).and_then(|mut file| file.write_all(text));
    written.map_err(failed)?;
    for place in places {
        let target = make_place(root, place)?;
        let file = dev.find_unlinked(ASIDE).and_then(|file| file.detach(false)).map_err(failed)?;
        layers::attach(file.as_fd(), &target, place)?;
    }
    // What is mounted has no need of a name.
    dev.remove_file(ASIDE).map_err(failed)
}

/// Makes a mount point where the image has nothing. The directory that it is in does not become newer
/// by it: nothing of the image's has changed.
fn make_place(root: &RootDir, place: &str) -> Result<PathInRoot> {
    if let Ok(found) = root.find_itself(place) {
        return Ok(found);
    }
    let above = Path::new(place).ancestors().skip(1);
    let directory = above.filter_map(|path| root.find(path).ok()).find_map(|directory| {
        let before = directory.stat().ok()?;
        Some((directory, before))
    });
    let made = layers::make_mount_point(root, place, true)?;
    if let Some((directory, before)) = directory {
        directory
            .set_times(&before)
            .map_err(|error| Error::host("cannot tell the sandbox of its network", error))?;
    }
    Ok(made)
}
