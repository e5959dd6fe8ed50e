//! Tells the host's own addresses by asking the kernel for a route at each decision.
//!
//! A list that was read once is wrong after the host has changed networks. The `NETLINK_ROUTE`
//! socket is opened before the gateway is jailed; a query on it needs no privilege and changes
//! nothing.

use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;

/// Tells the host's own addresses from all others.
#[derive(Debug)]
pub struct HostAddresses(AddressSource);

#[derive(Debug)]
enum AddressSource {
    /// A connected socket of `NETLINK_ROUTE`, and the sequence number of the last request.
    Kernel {
        socket: OwnedFd,
        sequence: Cell<u32>,
    },
    Listed(Vec<IpAddr>),
}

impl HostAddresses {
    /// Asks the kernel about each address. Fails if the kernel has no local route to 127.0.0.1.
    pub fn of_kernel() -> std::io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let family = AddressFamily::NETLINK;
        let socket = rustix::net::socket_with(family, SocketType::RAW, flags, None)?;
        // Connected to port 0, the socket takes messages of the kernel only.
        rustix::net::connect(&socket, &SocketAddrNetlink::new(0, 0))?;
        let sequence = Cell::new(0);
        match route_type(&socket, &sequence, IpAddr::V4(Ipv4Addr::LOCALHOST))? {
            Some(LOCAL) => Ok(Self(AddressSource::Kernel { socket, sequence })),
            _ => Err(std::io::Error::other("the kernel has no route to loopback")),
        }
    }

    /// Treats these addresses, and no others, as the host's own.
    pub fn listed(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let addresses = addresses.into_iter().map(|address| address.to_canonical());
        Self(AddressSource::Listed(addresses.collect()))
    }

    /// Whether packets to this address arrive at the host itself. True if the kernel gives no
    /// answer.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        match &self.0 {
            AddressSource::Listed(own) => own.contains(&address),
            AddressSource::Kernel { socket, sequence } => {
                match route_type(socket, sequence, address) {
                    Ok(Some(kind)) => matches!(kind, LOCAL | BROADCAST | ANYCAST),
                    Ok(None) => false,
                    Err(_) => true,
                }
            }
        }
    }
}

const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
const RTA_DST: u16 = 1;
/// Types of routes that end at this host (`rtm_type`).
const LOCAL: u8 = 2;
const BROADCAST: u8 = 3;
const ANYCAST: u8 = 4;
/// The length of `struct nlmsghdr` in bytes.
const HEADER: usize = 16;
/// Replies to earlier requests that are skipped before giving up.
const MAX_STALE_REPLIES: usize = 16;

/// The type of the route to an address; `None` if there is no route. The kernel replies while the
/// request is sent, so this does not block.
fn route_type(
    socket: &OwnedFd,
    sequence: &Cell<u32>,
    address: IpAddr,
) -> Result<Option<u8>, Errno> {
    let number = sequence.get().wrapping_add(1);
    sequence.set(number);
    rustix::net::send(socket, &route_request(number, address), SendFlags::NOSIGNAL)?;
    let mut buffer = [0; 4096];
    for _ in 0..MAX_STALE_REPLIES {
        let length = match rustix::net::recv(socket, &mut buffer, RecvFlags::empty()) {
            Ok((length, _)) => length,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        if let Some(answer) = parse_reply(&buffer[..length], number) {
            return answer;
        }
    }
    Err(Errno::PROTO)
}

fn route_request(number: u32, address: IpAddr) -> Vec<u8> {
    let (family, octets) = match address {
        IpAddr::V4(four) => (AddressFamily::INET, four.octets().to_vec()),
        IpAddr::V6(six) => (AddressFamily::INET6, six.octets().to_vec()),
    };
    let bits = (octets.len() * 8) as u8;
    // `struct rtmsg`, of which a request fills in the family and the prefix length.
    let mut body = vec![family.as_raw() as u8, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    body.extend_from_slice(&((4 + octets.len()) as u16).to_ne_bytes());
    body.extend_from_slice(&RTA_DST.to_ne_bytes());
    body.extend_from_slice(&octets);
    let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    message.extend_from_slice(&RTM_GETROUTE.to_ne_bytes());
    message.extend_from_slice(&NLM_F_REQUEST.to_ne_bytes());
    message.extend_from_slice(&number.to_ne_bytes());
    message.extend_from_slice(&0u32.to_ne_bytes());
    message.extend_from_slice(&body);
    message
}

/// Parses the reply with this sequence number; `None` if it is for another request.
fn parse_reply(message: &[u8], number: u32) -> Option<Result<Option<u8>, Errno>> {
    let word = |at: usize| message.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let kind = message.get(4..6)?.try_into().ok().map(u16::from_ne_bytes)?;
    if message.len() < HEADER || word(8)? != number {
        return None;
    }
    match kind {
        // `struct rtmsg` again: its eighth byte is `rtm_type`.
        RTM_NEWROUTE => Some(message.get(HEADER + 7).copied().map(Some).ok_or(Errno::PROTO)),
        NLMSG_ERROR => {
            let error = Errno::from_raw_os_error(word(HEADER)?.cast_signed().wrapping_neg());
            Some(match error {
                // No route, a prohibiting route or no such protocol: the address is not the host's
                // own.
                Errno::NETUNREACH
                | Errno::HOSTUNREACH
                | Errno::ACCESS
                | Errno::INVAL
                | Errno::NETDOWN
                | Errno::AFNOSUPPORT
                | Errno::OPNOTSUPP => Ok(None),
                error => Err(error),
            })
        }
        _ => Some(Err(Errno::PROTO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_its_own_addresses() {
        let own = HostAddresses::of_kernel().unwrap();
        assert!(own.contains("127.0.0.1".parse().unwrap()));
        assert!(own.contains("127.9.9.9".parse().unwrap()));
        assert!(own.contains("::ffff:127.0.0.1".parse().unwrap()));
        // Documentation addresses (RFC 5737, RFC 3849) belong to no host.
        for text in ["192.0.2.77", "2001:db8:7777::1"] {
            assert!(!own.contains(text.parse().unwrap()), "{text}");
        }
    }

    #[test]
    fn answers_are_read_by_their_number() {
        let answer = |kind: u16, number: u32, body: &[u8]| {
            let mut message = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
            message.extend_from_slice(&kind.to_ne_bytes());
            message.extend_from_slice(&[0, 0]);
            message.extend_from_slice(&number.to_ne_bytes());
            message.extend_from_slice(&[0; 4]);
            message.extend_from_slice(body);
            message
        };
        let error = |errno: Errno| errno.raw_os_error().wrapping_neg().to_ne_bytes();
        let route = [2, 32, 0, 0, 255, 2, 254, LOCAL, 0, 0, 0, 0];
        assert_eq!(parse_reply(&answer(RTM_NEWROUTE, 7, &route), 7), Some(Ok(Some(LOCAL))));
        assert_eq!(parse_reply(&answer(RTM_NEWROUTE, 6, &route), 7), None);
        assert_eq!(parse_reply(&answer(RTM_NEWROUTE, 7, &route[..4]), 7), Some(Err(Errno::PROTO)));
        let unreachable = answer(NLMSG_ERROR, 7, &error(Errno::NETUNREACH));
        assert_eq!(parse_reply(&unreachable, 7), Some(Ok(None)));
        let denied = answer(NLMSG_ERROR, 7, &error(Errno::PERM));
        assert_eq!(parse_reply(&denied, 7), Some(Err(Errno::PERM)));
        for length in 0..HEADER {
            assert_eq!(parse_reply(&answer(RTM_NEWROUTE, 7, &route)[..length], 7), None);
        }
    }
}
