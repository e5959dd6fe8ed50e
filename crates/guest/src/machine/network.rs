//! The network of a microVM: its one device, and the files by which programs find their way.

use super::root;
use super::{Doing, Done};
use msb_spec::{addresses, lookup};
use msb_sys::netlink::{self, Device};
use msb_wire::BootNetwork;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Sets the device up.
pub(super) fn set_up() -> Done<()> {
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

/// Puts the files in place, as mounts over those of the image: nothing of them is kept.
pub(super) fn furnish(network: &BootNetwork, hostname: &str) -> Done<()> {
    // As far as its kernel has it; everybody inside may send echoes.
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    let read = |path: &str| msb_sys::net::read_ordinary(path, lookup::LIMIT);
    let files = lookup::files(hostname, network.authority.as_deref(), read);
    files.iter().try_for_each(|(text, places)| show(text, places))
}

/// Shows a file that lies in memory at places where the image may have one, or a link that leads
/// nowhere.
fn show(text: &[u8], places: &[&str]) -> Done<()> {
    let aside = Path::new("/dev/shm/.msb-file");
    fs::write(aside, text).doing("write", aside)?;
    fs::set_permissions(aside, fs::Permissions::from_mode(0o644)).doing("show", aside)?;
    for place in places {
        let path = Path::new(place);
        if path.is_symlink() && !path.exists() {
            fs::remove_file(path).doing("replace", path)?;
        }
        root::make_mount_point(place, true)?;
        rustix::mount::mount_bind(aside, path)
            .map_err(std::io::Error::from)
            .doing("mount at", path)?;
    }
    // What is mounted has no need of a name.
    fs::remove_file(aside).doing("remove", aside)
}
