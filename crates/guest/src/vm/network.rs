//! The network of a microVM: its device, and files such as /etc/resolv.conf.

use super::rootfs;
use super::{FileResult, WithContext};
use msb_spec::{addresses, lookup};
use msb_sys::netlink::{self, Device};
use msb_sys::root_dir::RootDir;
use msb_wire::BootNetwork;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;

/// Sets addresses and routes of the device.
pub(super) fn set_up() -> FileResult<()> {
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
    netlink::set_up(&device).doing("set up", Path::new(addresses::DEVICE))
}

/// Mounts the files over those of the image, which stay unchanged below.
pub(super) fn bind_etc_files(
    inside: &RootDir,
    network: &BootNetwork,
    hostname: &str,
) -> FileResult<()> {
    // Every group inside may open ping sockets; not every kernel has this file.
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    let read = |path: &str| inside.read_ordinary(path, lookup::LIMIT);
    let files = lookup::files(hostname, network.authority.as_deref(), read);
    files.iter().try_for_each(|(text, targets)| bind_file(inside, text, targets))
}

/// Mounts a file in memory over several paths of the image. A dangling symlink is replaced; another
/// one is mounted over itself and not followed.
fn bind_file(inside: &RootDir, text: &[u8], targets: &[&str]) -> FileResult<()> {
    const STAGING_PATH: &str = "/dev/shm/.msb-file";
    let staging = Path::new(STAGING_PATH);
    let written = inside.write_new(STAGING_PATH, 0o644).and_then(|mut file| file.write_all(text));
    written.doing("write", staging)?;
    for target in targets {
        let path = Path::new(target);
        if inside.find_itself(target).is_ok_and(|found| found.is_link())
            && inside.find(target).is_err()
        {
            inside.remove_file(target).doing("replace", path)?;
        }
        let mount_point = rootfs::make_mount_point(inside, target, true)?;
        let file = inside.find_unlinked(STAGING_PATH).and_then(|file| file.detach(false));
        mount_point.cover_with(file.doing("open", staging)?.as_fd()).doing("mount at", path)?;
    }
    // A mounted file needs no name.
    inside.remove_file(STAGING_PATH).doing("remove", staging)
}
