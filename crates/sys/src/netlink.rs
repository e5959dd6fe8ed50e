//! rtnetlink: addresses, routes and neighbours of a network namespace, without running `ip`.

use crate::net;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};

/// Configuration of one network device.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a> {
    /// Interface name, such as `eth0`.
    pub name: &'a str,
    /// MAC address of the device.
    pub link: [u8; 6],
    /// MTU of the device in bytes.
    pub mtu: u16,
    /// IP addresses, each with its prefix length in bits.
    pub addresses: &'a [(IpAddr, u8)],
    /// Default gateways, one for each address family.
    pub routers: &'a [IpAddr],
    /// MAC address of all default gateways, as permanent neighbour entries.
    pub router_link: [u8; 6],
}

/// Configures a device and sets it up. IPv6 parts are skipped where the kernel has no IPv6.
pub fn set_up(device: &Device<'_>) -> io::Result<()> {
    let index = index_of(device.name)?;
    let mut netlink = NetlinkSocket::open()?;
    netlink.request(&link_up(index, device))?;
    for (address, bits) in device.addresses {
        netlink.request_if_supported(*address, &new_address(index, *address, *bits))?;
    }
    for router in device.routers {
        netlink
            .request_if_supported(*router, &new_neighbour(index, *router, device.router_link))?;
        netlink.request_if_supported(*router, &default_route(index, *router))?;
    }
    Ok(())
}

/// Interface index of a device in this network namespace.
fn index_of(name: &str) -> io::Result<u32> {
    let family = AddressFamily::INET;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
}

/// A network namespace that has no process and one end of a veth pair. It lives as long as one of
/// its sockets.
#[derive(Debug)]
pub struct VethHolder {
    namespace: OwnedFd,
    netlink: NetlinkSocket,
    /// An `AF_PACKET` socket, bound by [`VethHolder::connect`].
    packets: OwnedFd,
}

/// Name of the end in the holder's namespace.
const HOLDER_END: &str = "gateway";

impl VethHolder {
    /// Makes the current network namespace, which must be new, into a holder.
    pub fn of_this_namespace() -> io::Result<Self> {
        // Without an address of its own the kernel answers nothing there. Where /proc/sys is
        // read-only, its own IPv6 multicast reaches nothing but the gateway, which drops it.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        let namespace = rustix::fs::open(
            "/proc/thread-self/ns/net",
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
            rustix::fs::Mode::empty(),
        )?;
        Ok(Self { namespace, netlink: NetlinkSocket::open()?, packets: net::packet_socket()? })
    }

    /// Creates `name` in the current network namespace, with its other end in the holder's, whose
    /// MAC address is `far_link`. Returns the packet socket of that end.
    pub fn connect(mut self, name: &str, far_link: [u8; 6], mtu: u16) -> io::Result<OwnedFd> {
        NetlinkSocket::open()?.request(&new_veth(name, self.namespace.as_raw_fd(), mtu))?;
        let index = rustix::net::netdevice::name_to_index(&self.packets, HOLDER_END)?;
        let far = Device {
            name: HOLDER_END,
            link: far_link,
            mtu,
            addresses: &[],
            routers: &[],
            router_link: far_link,
        };
        self.netlink.request(&link_up(index, &far))?;
        net::bind_packet_socket(&self.packets, index)?;
        Ok(self.packets)
    }
}

const IFLA_GSO_MAX_SEGS: u16 = 40;
const VETH_INFO_PEER: u16 = 1;

/// A veth pair whose ends send no frame longer than their MTU: the gateway takes one segment at a
/// time.
fn new_veth(name: &str, far_namespace: i32, mtu: u16) -> NetlinkMessage {
    let text = |name: &str| [name.as_bytes(), &[0]].concat();
    let mtu = u32::from(mtu).to_ne_bytes();
    let one = 1u32.to_ne_bytes();
    let peer = NetlinkMessage::new(0, 0, &[0; 16])
        .with(libc::IFLA_IFNAME, &text(HOLDER_END))
        .with(libc::IFLA_MTU, &mtu)
        .with(libc::IFLA_NET_NS_FD, &far_namespace.to_ne_bytes())
        .body;
    let data = attribute(VETH_INFO_PEER, &peer);
    let kind = attribute(libc::IFLA_INFO_KIND, b"veth");
    let info = [kind, attribute(libc::IFLA_INFO_DATA, &data)].concat();
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    NetlinkMessage::new(libc::RTM_NEWLINK, flags, &[0; 16])
        .with(libc::IFLA_IFNAME, &text(name))
        .with(libc::IFLA_MTU, &mtu)
        .with(IFLA_GSO_MAX_SEGS, &one)
        .with(libc::IFLA_LINKINFO, &info)
}

/// A `NETLINK_ROUTE` socket with its sequence number.
#[derive(Debug)]
struct NetlinkSocket {
    socket: OwnedFd,
    sequence: u32,
}

/// `nlmsghdr`, error number, and the `nlmsghdr` of the request.
const ACK_LENGTH: usize = 16 + 4 + 16;

impl NetlinkSocket {
    fn open() -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            // Protocol 0 is NETLINK_ROUTE.
            None,
        )?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Sends a request; for an IPv6 address, errors of a kernel without IPv6 are ignored.
    fn request_if_supported(
        &mut self,
        address: IpAddr,
        message: &NetlinkMessage,
    ) -> io::Result<()> {
        let unknown = [libc::EAFNOSUPPORT, libc::EOPNOTSUPP, libc::EACCES, libc::ENODEV];
        match self.request(message) {
            Err(error)
                if address.is_ipv6()
                    && error.raw_os_error().is_some_and(|e| unknown.contains(&e)) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Sends one request and reads its acknowledgement, which the kernel sends at once.
    fn request(&mut self, message: &NetlinkMessage) -> io::Result<()> {
        self.sequence += 1;
        rustix::net::send(&self.socket, &message.bytes(self.sequence), SendFlags::empty())?;
        let mut reply = [0u8; 4096];
        let (length, _) = rustix::net::recv(&self.socket, &mut reply, RecvFlags::empty())?;
        let error = reply[..length]
            .get(16..20)
            .filter(|_| length >= ACK_LENGTH)
            .and_then(|bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?)));
        match error {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A request: type, flags and all bytes after `nlmsghdr`.
struct NetlinkMessage {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl NetlinkMessage {
    fn new(kind: u16, flags: i32, fixed: &[u8]) -> Self {
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        Self { kind, flags, body: fixed.to_vec() }
    }

    /// Appends an attribute (`rtattr`), padded to a multiple of four bytes.
    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).expect("attributes here are short");
        self.body.extend(length.to_ne_bytes());
        self.body.extend(kind.to_ne_bytes());
        self.body.extend(value);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
        self
    }

    fn bytes(&self, sequence: u32) -> Vec<u8> {
        let length = u32::try_from(self.body.len() + 16).expect("messages here are short");
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&self.body);
        bytes
    }
}

/// The kernel generates no link-local IPv6 address for the device.
const IN6_ADDR_GEN_MODE_NONE: u8 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;

fn link_up(index: u32, device: &Device<'_>) -> NetlinkMessage {
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    let mut fixed = vec![0; 4];
    fixed.extend(index.to_ne_bytes());
    // `ifi_flags` and `ifi_change`.
    fixed.extend(up);
    fixed.extend(up);
    let address_mode = attribute(IFLA_INET6_ADDR_GEN_MODE, &[IN6_ADDR_GEN_MODE_NONE]);
    let ipv6 = attribute(libc::AF_INET6 as u16, &address_mode);
    let message = NetlinkMessage::new(libc::RTM_NEWLINK, 0, &fixed)
        .with(libc::IFLA_MTU, &u32::from(device.mtu).to_ne_bytes())
        .with(libc::IFLA_ADDRESS, &device.link);
    match std::path::Path::new("/proc/sys/net/ipv6").exists() {
        true => message.with(libc::IFLA_AF_SPEC, &ipv6),
        false => message,
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    NetlinkMessage::new(0, 0, &[]).with(kind, value).body
}

fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(four) => four.octets().to_vec(),
        IpAddr::V6(six) => six.octets().to_vec(),
    }
}

fn new_address(index: u32, address: IpAddr, bits: u8) -> NetlinkMessage {
    // A point-to-point link: duplicate address detection is not needed.
    let flags = (libc::IFA_F_NODAD | libc::IFA_F_PERMANENT) as u8;
    let mut fixed = vec![family(address), bits, flags, 0];
    fixed.extend(index.to_ne_bytes());
    NetlinkMessage::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &fixed)
        .with(libc::IFA_LOCAL, &octets(address))
        .with(libc::IFA_ADDRESS, &octets(address))
}

fn new_neighbour(index: u32, address: IpAddr, link: [u8; 6]) -> NetlinkMessage {
    let mut fixed = vec![family(address), 0, 0, 0];
    fixed.extend(index.to_ne_bytes());
    fixed.extend(libc::NUD_PERMANENT.to_ne_bytes());
    fixed.extend([0, 0]);
    NetlinkMessage::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &fixed)
        .with(libc::NDA_DST, &octets(address))
        .with(libc::NDA_LLADDR, &link)
}

fn default_route(index: u32, router: IpAddr) -> NetlinkMessage {
    let table = libc::RT_TABLE_MAIN;
    let mut fixed = vec![family(router), 0, 0, 0, table, libc::RTPROT_STATIC];
    fixed.extend([libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST]);
    fixed.extend([0; 4]);
    NetlinkMessage::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &fixed)
        .with(libc::RTA_GATEWAY, &octets(router))
        .with(libc::RTA_OIF, &index.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_begin_at_multiples_of_four() {
        let message = NetlinkMessage::new(1, 0, &[0; 8]).with(7, b"abc").with(8, b"d");
        assert_eq!(message.body.len(), 8 + 8 + 8);
        assert_eq!(&message.body[8..16], &[7, 0, 7, 0, b'a', b'b', b'c', 0]);
        assert_eq!(message.bytes(1).len(), 16 + 24);
    }
}
