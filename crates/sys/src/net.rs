//! Network devices and addresses, and name lookup without NSS plugins.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Sets `lo` up in this network namespace.
pub fn raise_loopback() -> io::Result<()> {
    // SAFETY: creates a descriptor and touches no memory.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned a new descriptor that has no other owner.
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

/// The device that makes TAP devices.
pub const TUN: &str = "/dev/net/tun";

/// Creates a TAP device in this network namespace. Each packet read or written has a 12-byte
/// `virtio_net_hdr` before it (offloaded checksums, for example).
pub fn make_tap(name: &str) -> io::Result<OwnedFd> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let tap = rustix::fs::open(TUN, flags, rustix::fs::Mode::empty())?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let limit = request.ifr_name.len() - 1;
    for (target, byte) in request.ifr_name.iter_mut().zip(name.bytes().take(limit)) {
        *target = byte as libc::c_char;
    }
    let kind = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = kind as libc::c_short;
    let check = |done: libc::c_int| match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: TUNSETIFF reads and writes an ifreq, which lives until the call returns.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    let header: libc::c_int = 12;
    // SAFETY: TUNSETVNETHDRSZ reads an int, which lives until the call returns.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETVNETHDRSZ, &raw const header) })?;
    // SAFETY: TUNSETOFFLOAD takes its flags by value.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETOFFLOAD, TUN_F_CSUM) })?;
    Ok(tap)
}

const TUNSETVNETHDRSZ: libc::Ioctl = 0x4004_54d8;
const TUNSETOFFLOAD: libc::Ioctl = 0x4004_54d0;
/// Packets that never leave this host's memory need no checksum.
const TUN_F_CSUM: libc::c_ulong = 1;

/// Creates an `AF_PACKET` socket in this network namespace that receives nothing yet. Each packet
/// read or written has a 10-byte `virtio_net_hdr` before it, as with [`make_tap`] but without the
/// field `num_buffers`.
pub(crate) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: creates a descriptor and touches no memory.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel returned a new descriptor that has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let set = |level: libc::c_int, option: libc::c_int, value: libc::c_int| {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        let value = (&raw const value).cast();
        // SAFETY: reads an int, which lives until the call returns.
        let done = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, length) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    set(libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
    set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)?;
    // As much as the host allows: a few packets of the largest size. The kernel drops what is more,
    // and TCP sends it again.
    set(libc::SOL_SOCKET, libc::SO_RCVBUF, PACKET_BUFFER)?;
    set(libc::SOL_SOCKET, libc::SO_SNDBUF, PACKET_BUFFER)?;
    Ok(socket)
}

/// What a TAP device queues: 500 packets of ordinary size.
const PACKET_BUFFER: libc::c_int = 8 << 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

/// Has an `AF_PACKET` socket receive all packets of one device of its network namespace.
pub(crate) fn bind_packet_socket(socket: &OwnedFd, index: u32) -> io::Result<()> {
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: reads a sockaddr_ll of that length, which lives until the call returns.
    let done = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// IP addresses of all interfaces of this host.
pub fn own_addresses() -> io::Result<Vec<std::net::IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the C library writes one pointer, which lives until the call returns.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: each element was allocated by getifaddrs and lives until freeifaddrs below.
    while let Some(device) = unsafe { next.as_ref() } {
        next = device.ifa_next;
        // SAFETY: null, or an address that lives as long as its element.
        let Some(address) = (unsafe { device.ifa_addr.as_ref() }) else { continue };
        match i32::from(address.sa_family) {
            libc::AF_INET => {
                // SAFETY: the family says which structure it is; an unaligned read is allowed.
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
    // SAFETY: allocated by getifaddrs above, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

/// Limits host name lookup to /etc/hosts and DNS, with code linked into this program.
///
/// A static program crashes when it loads NSS plugins of another glibc version, as
/// /etc/nsswitch.conf may ask.
pub fn resolve_without_plugins() {
    unsafe extern "C" {
        fn __nss_configure_lookup(
            database: *const libc::c_char,
            services: *const libc::c_char,
        ) -> libc::c_int;
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: both are C strings, which the C library copies; called once and before any
        // lookup, as it demands.
        unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    });
}
