//! The network of a microVM: its one device, and the files by which programs find their way.

use super::root;
use super::{Doing, Done};
use msb_spec::{addresses, lookup};
use msb_sys::netlink::{self, Device};
use msb_sys::root_dir::RootDir;
use msb_wire::BootNetwork;
use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::AsFd;
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
pub(super) fn furnish(inside: &RootDir, network: &BootNetwork, hostname: &str) -> Done<()> {
    // As far as its kernel has it; everybody inside may send echoes.
    let _ = fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    let read = |path: &str| inside.read_ordinary(path, lookup::LIMIT);
    let files = lookup::files(hostname, network.authority.as_deref(), read);
    files.iter().try_for_each(|(text, places)| show(inside, text, places))
}

/// Shows a file that lies in memory at places where the image may have one. A link that leads nowhere
/// is replaced, any other is covered itself.
fn show(inside: &RootDir, text: &[u8], places: &[&str]) -> Done<()> {
    const ASIDE: &str = "/dev/shm/.msb-file";
    let aside = Path::new(ASIDE);
    let written = inside.write_new(ASIDE, 0o644).and_then(|mut file| file.write_all(text));
    written.doing("write", aside)?;
    for place in places {
        let path = Path::new(place);
        if inside.find_itself(place).is_ok_and(|found| found.is_link())
            && inside.find(place).is_err()
        {
            inside.remove_file(place).doing("replace", path)?;
        }
        let target = root::make_mount_point(inside, place, true)?;
        let file = inside.find_unlinked(ASIDE).and_then(|file| file.detach(false));
        target.cover_with(file.doing("open", aside)?.as_fd()).doing("mount at", path)?;
    }
    // What is mounted has no need of a name.
    inside.remove_file(ASIDE).doing("remove", aside)
}
