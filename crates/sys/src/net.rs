//! The network device that every sandbox has, and names without the C library's plugins.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Raises `lo` in this network namespace.
pub fn raise_loopback() -> io::Result<()> {
    // SAFETY: makes a descriptor and touches no memory.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned a new descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which lives until the call returns.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a network device whose packets we are given, in this network namespace. Each is read and
/// written behind the twelve bytes in which kernels tell each other what they left out of it.
pub fn make_tap(name: &str) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let tap = rustix::fs::open("/dev/net/tun", flags, rustix::fs::Mode::empty())?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let most = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes().take(most)) {
        *place = byte as libc::c_char;
    }
    let kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = kind as libc::c_short;
    let told = |done: libc::c_int| match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: TUNSETIFF reads and writes an ifreq, which lives until the call returns.
    told(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    let header: libc::c_int = 12;
    // SAFETY: TUNSETVNETHDRSZ reads an int, which lives until the call returns.
    told(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETVNETHDRSZ, &raw const header) })?;
    // SAFETY: TUNSETOFFLOAD takes its flags by value.
    told(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETOFFLOAD, TUN_F_CSUM) })?;
    Ok(tap)
}

const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;
/// Nobody sums what never leaves this machine's memory.
const TUN_F_CSUM: libc::c_ulong = 1;

/// The addresses of this host's devices.
pub fn own_addresses() -> io::Result<Vec<std::net::IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the C library writes one pointer, which lives until the call returns.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: each element was made by getifaddrs and lives until freeifaddrs below.
    while let Some(device) = unsafe { next.as_ref() } {
        next = device.ifa_next;
        // SAFETY: null, or an address that lives as long as its element.
        let Some(address) = (unsafe { device.ifa_addr.as_ref() }) else { continue };
        match i32::from(address.sa_family) {
            libc::AF_INET => {
                // SAFETY: the family says which kind it is; it may be read from any place.
                let four = unsafe { device.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                let bits = u32::from_be(four.sin_addr.s_addr);
                addresses.push(std::net::Ipv4Addr::from_bits(bits).into());
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let six = unsafe { device.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                addresses.push(std::net::Ipv6Addr::from(six.sin6_addr.s6_addr).into());
            }
            _ => {}
        }
    }
    // SAFETY: made by getifaddrs above, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

/// Has names looked up in /etc/hosts and by DNS only, by code that is in this program.
///
/// A static program that loads the plugins of another version of the C library, as
/// /etc/nsswitch.conf may ask, does not survive it.
pub fn resolve_without_plugins() {
    unsafe extern "C" {
        fn __nss_configure_lookup(
            database: *const libc::c_char,
            services: *const libc::c_char,
        ) -> libc::c_int;
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: both are C strings, which the C library copies; called once, before any name
        // is looked up, as it demands.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    });
}
