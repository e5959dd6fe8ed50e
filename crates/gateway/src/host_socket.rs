//! Sockets of the host. All of them are non-blocking and close-on-exec.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// The send buffer of each end of a socket pair inside this process, in bytes.
const PAIR_BUFFER: usize = 64 << 10;

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Starts to connect a TCP socket; returns whether it is connected already.
pub(crate) fn connect(address: SocketAddr) -> Result<(OwnedFd, bool), Errno> {
    let family = family(address.ip());
    let socket = rustix::net::socket_with(family, SocketType::STREAM, FLAGS, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => Ok((socket, true)),
        Err(Errno::INPROGRESS) => Ok((socket, false)),
        Err(error) => Err(error),
    }
}

/// A UDP socket that is connected to one peer, from any port.
pub(crate) fn udp(peer: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = family(peer.ip());
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, FLAGS, None)?;
    rustix::net::connect(&socket, &peer)?;
    Ok(socket)
}

/// An ICMP echo socket for one peer. The kernel permits it to users in `ping_group_range`.
pub(crate) fn icmp_echo(peer: IpAddr) -> Result<OwnedFd, Errno> {
    let protocol = if peer.is_ipv4() { ipproto::ICMP } else { ipproto::ICMPV6 };
    let socket = rustix::net::socket_with(family(peer), SocketType::DGRAM, FLAGS, Some(protocol))?;
    rustix::net::connect(&socket, &SocketAddr::new(peer, 0))?;
    Ok(socket)
}

/// A listening TCP socket if `stream`, else a bound UDP socket.
pub(crate) fn listen(address: SocketAddr, stream: bool) -> Result<OwnedFd, Errno> {
    let kind = if stream { SocketType::STREAM } else { SocketType::DGRAM };
    let socket = rustix::net::socket_with(family(address.ip()), kind, FLAGS, None)?;
    if address.is_ipv6() {
        // `[::]` is IPv6 only; IPv4 is published by a second entry.
        sockopt::set_ipv6_v6only(&socket, true)?;
    }
    if stream {
        sockopt::set_socket_reuseaddr(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    if stream {
        rustix::net::listen(&socket, 1024)?;
    }
    Ok(socket)
}

/// The local address of a socket; `None` if it has no internet address.
pub(crate) fn local_address(socket: &OwnedFd) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()
}

/// A pair of connected Unix stream sockets inside this process.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    for end in [&pair.0, &pair.1] {
        sockopt::set_socket_send_buffer_size(end, PAIR_BUFFER)?;
    }
    Ok(pair)
}

/// Limits the receive buffer of a socket to `bytes`.
pub(crate) fn limit_receive_buffer(socket: &impl std::os::fd::AsFd, bytes: usize) {
    // On failure the system's default stays.
    let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
}

/// A random number from `getrandom(2)`.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Fails only before the kernel's random pool is initialised, early at boot.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
