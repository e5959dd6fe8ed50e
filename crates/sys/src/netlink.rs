//! Devices, addresses and routes of a network namespace, set without any program's help.

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

/// A device and everything that programs behind it need.
#[derive(Debug, Clone, Copy)]
pub struct Device<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its link address.
    pub link: [u8; 6],
    /// Its largest packet.
    pub mtu: u16,
    /// Its addresses, with the bits of the network that each is in.
    pub addresses: &'a [(IpAddr, u8)],
    /// Who forwards what is for others, by address.
    pub routers: &'a [IpAddr],
    /// The link address of all routers.
    pub router_link: [u8; 6],
}

/// Sets up a device and raises it. A kernel without IPv6 gets none.
pub fn set_up(device: &Device<'_>) -> io::Result<()> {
    let index = index_of(device.name)?;
    let mut talk = Talk::begin()?;
    talk.ask(&link_up(index, device))?;
    for (address, bits) in device.addresses {
        talk.ask_of(*address, &new_address(index, *address, *bits))?;
    }
    for router in device.routers {
        talk.ask_of(*router, &new_neighbour(index, *router, device.router_link))?;
        talk.ask_of(*router, &default_route(index, *router))?;
    }
    Ok(())
}

/// The number of a device in this network namespace.
fn index_of(name: &str) -> io::Result<u32> {
    let family = AddressFamily::INET;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(rustix::net::netdevice::name_to_index(&socket, name)?)
}

/// A conversation with the kernel.
struct Talk {
    socket: OwnedFd,
    number: u32,
}

/// An answer is a header, an error number and the header of what was asked.
const ANSWER: usize = 16 + 4 + 16;

impl Talk {
    fn begin() -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            // Routes and devices are what it speaks of first.
            None,
        )?;
        Ok(Self { socket, number: 0 })
    }

    /// The same for what a kernel without IPv6 may refuse.
    fn ask_of(&mut self, address: IpAddr, message: &Message) -> io::Result<()> {
        let unknown = [libc::EAFNOSUPPORT, libc::EOPNOTSUPP, libc::EACCES, libc::ENODEV];
        match self.ask(message) {
            Err(error)
                if address.is_ipv6()
                    && error.raw_os_error().is_some_and(|e| unknown.contains(&e)) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    /// Asks for one thing and waits for the answer, which the kernel has at once.
    fn ask(&mut self, message: &Message) -> io::Result<()> {
        self.number += 1;
        rustix::net::send(&self.socket, &message.bytes(self.number), SendFlags::empty())?;
        let mut answer = [0u8; 4096];
        let (length, _) = rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty())?;
        let error = answer[..length]
            .get(16..20)
            .filter(|_| length >= ANSWER)
            .and_then(|bytes| Some(i32::from_ne_bytes(bytes.try_into().ok()?)));
        match error {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// A request: its kind, flags, and everything behind the header.
struct Message {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: i32, fixed: &[u8]) -> Self {
        let flags = (flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        Self { kind, flags, body: fixed.to_vec() }
    }

    /// Adds an attribute; all of them begin at a multiple of four.
    fn with(mut self, kind: u16, value: &[u8]) -> Self {
        let length = u16::try_from(value.len() + 4).expect("attributes here are short");
        self.body.extend(length.to_ne_bytes());
        self.body.extend(kind.to_ne_bytes());
        self.body.extend(value);
        self.body.resize(self.body.len().next_multiple_of(4), 0);
        self
    }

    fn bytes(&self, number: u32) -> Vec<u8> {
        let length = u32::try_from(self.body.len() + 16).expect("messages here are short");
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(number.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&self.body);
        bytes
    }
}

/// How a kernel makes addresses of its own for a device: not at all.
const NO_ADDRESSES_OF_ITS_OWN: u8 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;

fn link_up(index: u32, device: &Device<'_>) -> Message {
    let up = (libc::IFF_UP as u32).to_ne_bytes();
    let mut fixed = vec![0; 4];
    fixed.extend(index.to_ne_bytes());
    // What it is to be, and which of its flags are meant.
    fixed.extend(up);
    fixed.extend(up);
    let mode = attribute(IFLA_INET6_ADDR_GEN_MODE, &[NO_ADDRESSES_OF_ITS_OWN]);
    let six = attribute(libc::AF_INET6 as u16, &mode);
    let message = Message::new(libc::RTM_NEWLINK, 0, &fixed)
        .with(libc::IFLA_MTU, &u32::from(device.mtu).to_ne_bytes())
        .with(libc::IFLA_ADDRESS, &device.link);
    match std::path::Path::new("/proc/sys/net/ipv6").exists() {
        true => message.with(libc::IFLA_AF_SPEC, &six),
        false => message,
    }
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    Message::new(0, 0, &[]).with(kind, value).body
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

fn new_address(index: u32, address: IpAddr, bits: u8) -> Message {
    // Nobody else is on this link, so nobody is asked whether the address is free.
    let flags = (libc::IFA_F_NODAD | libc::IFA_F_PERMANENT) as u8;
    let mut fixed = vec![family(address), bits, flags, 0];
    fixed.extend(index.to_ne_bytes());
    Message::new(libc::RTM_NEWADDR, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &fixed)
        .with(libc::IFA_LOCAL, &octets(address))
        .with(libc::IFA_ADDRESS, &octets(address))
}

fn new_neighbour(index: u32, address: IpAddr, link: [u8; 6]) -> Message {
    let mut fixed = vec![family(address), 0, 0, 0];
    fixed.extend(index.to_ne_bytes());
    fixed.extend(libc::NUD_PERMANENT.to_ne_bytes());
    fixed.extend([0, 0]);
    Message::new(libc::RTM_NEWNEIGH, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &fixed)
        .with(libc::NDA_DST, &octets(address))
        .with(libc::NDA_LLADDR, &link)
}

fn default_route(index: u32, router: IpAddr) -> Message {
    let table = libc::RT_TABLE_MAIN;
    let mut fixed = vec![family(router), 0, 0, 0, table, libc::RTPROT_STATIC];
    fixed.extend([libc::RT_SCOPE_UNIVERSE, libc::RTN_UNICAST]);
    fixed.extend([0; 4]);
    Message::new(libc::RTM_NEWROUTE, libc::NLM_F_CREATE | libc::NLM_F_REPLACE, &fixed)
        .with(libc::RTA_GATEWAY, &octets(router))
        .with(libc::RTA_OIF, &index.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_begin_at_multiples_of_four() {
        let message = Message::new(1, 0, &[0; 8]).with(7, b"abc").with(8, b"d");
        assert_eq!(message.body.len(), 8 + 8 + 8);
        assert_eq!(&message.body[8..16], &[7, 0, 7, 0, b'a', b'b', b'c', 0]);
        assert_eq!(message.bytes(1).len(), 16 + 24);
    }
}
