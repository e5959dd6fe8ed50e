//! Sockets of the host, made so that nothing ever waits in them.

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// What the kernel holds between the two ends of a stream inside this process, either way.
const PAIR: usize = 64 << 10;

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

/// Begins to connect a stream; whether it is connected already.
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

/// A socket for datagrams with one peer, from any port.
pub(crate) fn datagrams(peer: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = family(peer.ip());
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, FLAGS, None)?;
    rustix::net::connect(&socket, &peer)?;
    Ok(socket)
}

/// A socket for echoes with one peer, which the kernel lets ordinary users have.
pub(crate) fn echoes(peer: IpAddr) -> Result<OwnedFd, Errno> {
    let protocol = if peer.is_ipv4() { ipproto::ICMP } else { ipproto::ICMPV6 };
    let socket = rustix::net::socket_with(family(peer), SocketType::DGRAM, FLAGS, Some(protocol))?;
    rustix::net::connect(&socket, &SocketAddr::new(peer, 0))?;
    Ok(socket)
}

/// A socket that others connect to, or send datagrams to.
pub(crate) fn listen(address: SocketAddr, stream: bool) -> Result<OwnedFd, Errno> {
    let kind = if stream { SocketType::STREAM } else { SocketType::DGRAM };
    let socket = rustix::net::socket_with(family(address.ip()), kind, FLAGS, None)?;
    if address.is_ipv6() {
        // `[::]` says IPv6; who wants both publishes both.
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

/// Where a socket is, as an address of the internet.
pub(crate) fn address_of(socket: &OwnedFd) -> Option<SocketAddr> {
    SocketAddr::try_from(rustix::net::getsockname(socket).ok()?).ok()
}

/// Two ends of a stream inside this process.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    let pair = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    for end in [&pair.0, &pair.1] {
        sockopt::set_socket_send_buffer_size(end, PAIR)?;
    }
    Ok(pair)
}

/// Bounds what the kernel holds of a stream that is not read.
pub(crate) fn bound_unread(socket: &impl std::os::fd::AsFd, bytes: usize) {
    // Refused, it is what the system gives to everybody.
    let _ = sockopt::set_socket_recv_buffer_size(socket, bytes);
}

/// Random bytes as a number.
pub(crate) fn random() -> u64 {
    let mut bytes = [0; 8];
    // Only interrupted or broken in the earliest moments of a machine's life.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}
