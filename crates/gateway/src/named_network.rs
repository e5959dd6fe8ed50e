//! Named networks: sandboxes reach each other by name, from gateway to gateway.
//!
//! Each gateway listens on a Unix socket in the directory of the network, under the name of its
//! sandbox. A connecting gateway sends one hello: `T` (TCP) or `U` (UDP) · port (2 bytes) · length
//! of its name (1 byte) · its name. For TCP the reply is `+` once the guest has accepted, and then
//! the stream follows. UDP datagrams follow one another, each with its length (2 bytes) in front.
//! The name is not authenticated: sandboxes that join a network trust each other that far.

use crate::event_loop::Gateway;
use crate::event_source::EventSource;
use crate::policy::rules::{FlowProtocol, PolicyDecision};
use crate::slab::{Slab, SlabKey};
use crate::start::NetworkMember;
use crate::tcp::flow_table::FlowStage;
use crate::udp::flow_table::{UdpFlowKey, UdpPeer};
use msb_spec::{Direction, DomainName, Error, Result, addresses};
use msb_wire::FlowKind;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// The most sandboxes that get an address.
const MAX_PEERS: u32 = 4096;
/// The most connections that have not sent their hello yet.
const MAX_INCOMING: usize = 64;
/// How long a connection has to send its hello, in microseconds.
const HELLO_TIMEOUT: u64 = 5_000_000;
/// The length of the longest hello, in bytes.
const MAX_HELLO_LEN: usize = 4 + 255;
/// The DNS zone of sandbox names.
const ZONE: &str = ".msb.internal";
/// The reply to a TCP hello that the guest has accepted.
pub(crate) const ACCEPTED: u8 = b'+';
/// The longest name with a socket path that fits into `sockaddr_un`.
const MAX_NAME_LEN: usize = 96;

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// The listener of this sandbox in a named network, and the addresses of its peers.
#[derive(Debug)]
pub(crate) struct Peers {
    own: DomainName,
    listener: OwnedFd,
    addresses: HashMap<DomainName, u32>,
    names: Vec<DomainName>,
    incoming: Slab<OwnedFd>,
}

impl Peers {
    /// Binds this sandbox's socket. Fails if a running sandbox has the name. The working directory
    /// becomes that of the network, so that all paths are short and relative.
    pub(crate) fn join(joined: &NetworkMember) -> Result<Self> {
        let failed = |error: Errno| Error::host("cannot join the named network", error);
        let own = DomainName::parse(joined.name.as_str());
        let own = own.ok().filter(|own| own.as_str().len() <= MAX_NAME_LEN).ok_or_else(|| {
            Error::invalid(format!("the sandbox name is no host name: `{}`", joined.name))
                .hint("use a valid host name of at most 96 characters")
        })?;
        rustix::process::fchdir(&joined.directory).map_err(failed)?;
        if connect_to(&own).is_ok() {
            return Err(Error::new(
                msb_spec::Kind::Exists,
                format!("the name is taken in this network: `{own}`"),
            ));
        }
        // A stale socket of a gateway that has exited.
        let _ = rustix::fs::unlink(socket_path(&own));
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
                .map_err(failed)?;
        let address = SocketAddrUnix::new(socket_path(&own)).map_err(failed)?;
        rustix::net::bind(&listener, &address).map_err(failed)?;
        rustix::net::listen(&listener, 128).map_err(failed)?;
        let (addresses, names) = (HashMap::new(), Vec::new());
        Ok(Self { own, listener, addresses, names, incoming: Slab::default() })
    }

    /// The address of a peer, assigned on first use; `None` if there are too many.
    fn address(&mut self, name: &DomainName) -> Option<Ipv4Addr> {
        let number = match self.addresses.get(name) {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.names.len()).ok().filter(|n| *n < MAX_PEERS)?;
                self.addresses.insert(name.clone(), number);
                self.names.push(name.clone());
                number
            }
        };
        Some(Ipv4Addr::from_bits(addresses::JOINED.to_bits() + number))
    }

    /// The name of the peer with this address.
    pub(crate) fn name(&self, address: IpAddr) -> Option<&DomainName> {
        let IpAddr::V4(address) = address else { return None };
        let number = address.to_bits().checked_sub(addresses::JOINED.to_bits())?;
        self.names.get(number as usize)
    }

    /// The address of a running peer, by its name with or without the zone.
    pub(crate) fn find(&mut self, name_or_fqdn: &DomainName) -> Option<Ipv4Addr> {
        let bare = name_or_fqdn.as_str().strip_suffix(ZONE).unwrap_or(name_or_fqdn.as_str());
        let name =
            DomainName::parse(bare).ok().filter(|name| name.as_str().len() <= MAX_NAME_LEN)?;
        if name == self.own {
            return Some(addresses::GUEST);
        }
        // A connection that is closed at once only shows that the peer's gateway listens.
        connect_to(&name).ok()?;
        self.address(&name)
    }

    /// The hello for a flow to `port` of a peer.
    pub(crate) fn hello_message(&self, stream: bool, port: u16) -> Vec<u8> {
        let name = self.own.as_str().as_bytes();
        let mut hello = vec![if stream { b'T' } else { b'U' }];
        hello.extend_from_slice(&port.to_be_bytes());
        hello.push(name.len() as u8);
        hello.extend_from_slice(name);
        hello
    }
}

fn socket_path(name: &DomainName) -> String {
    format!("{name}.gateway")
}

/// Connects to the gateway of a peer.
pub(crate) fn connect_to(name: &DomainName) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(socket_path(name))?)?;
    Ok(socket)
}

/// The hello of a connecting gateway.
struct PeerHello {
    stream: bool,
    port: u16,
    name: DomainName,
}

/// Parses a hello, with its length; `None` while it is incomplete.
fn parse_hello(bytes: &[u8]) -> Result<Option<(PeerHello, usize)>, ()> {
    let Some(head) = bytes.first_chunk::<4>() else { return Ok(None) };
    let stream = match head[0] {
        b'T' => true,
        b'U' => false,
        _ => return Err(()),
    };
    let port = u16::from_be_bytes([head[1], head[2]]);
    let length = 4 + usize::from(head[3]);
    let Some(name) = bytes.get(4..length) else { return Ok(None) };
    let name = std::str::from_utf8(name).ok().and_then(|name| DomainName::parse(name).ok());
    match name.filter(|_| port != 0) {
        Some(name) => Ok(Some((PeerHello { stream, port, name }, length))),
        None => Err(()),
    }
}

impl Gateway {
    /// Decides a flow out of the sandbox, to a peer or to any other address.
    pub(crate) fn decide_flow(
        &self,
        flow: FlowProtocol,
        address: IpAddr,
        resolved_names: &[DomainName],
    ) -> PolicyDecision {
        match self.peers.as_ref().and_then(|peers| peers.name(address)) {
            Some(name) => self.rules.decide_peer_sandbox(flow, name),
            None => self.rules.decide(flow, address, resolved_names),
        }
    }

    /// The name of the peer with this address.
    pub(crate) fn peer_sandbox(&self, address: IpAddr) -> Option<&DomainName> {
        self.peers.as_ref().and_then(|peers| peers.name(address))
    }

    pub(crate) fn watch_peers(&self) {
        if let Some(peers) = &self.peers {
            self.watch(&peers.listener, EventSource::PeerListener, EventFlags::IN);
        }
    }

    /// Accepts connections of other gateways.
    pub(crate) fn on_peer_listener(&mut self) {
        let Self { peers: Some(peers), epoll, timers, now, .. } = self else { return };
        while let Ok(socket) = rustix::net::accept_with(&peers.listener, FLAGS) {
            if peers.incoming.len() >= MAX_INCOMING {
                continue;
            }
            let key = peers.incoming.insert(socket);
            if let Some(socket) = peers.incoming.get(key) {
                let data = EventData::new_u64(EventSource::IncomingPeer(key).to_bits());
                msb_log::debug_on_failure!(
                    epoll::add(&*epoll, socket, data, EventFlags::IN),
                    "cannot wait for peers"
                );
                timers.set(*now + HELLO_TIMEOUT, EventSource::IncomingPeer(key));
            }
        }
    }

    /// Closes a connection that did not send its hello in time.
    pub(crate) fn expire_incoming_peer(&mut self, key: SlabKey) {
        if let Some(peers) = &mut self.peers {
            peers.incoming.remove(key);
        }
    }

    /// Reads the hello of a connection.
    pub(crate) fn on_incoming_peer(&mut self, key: SlabKey) {
        let Some(peers) = &mut self.peers else { return };
        let Some(socket) = peers.incoming.get(key) else { return };
        let mut buffer = [0; MAX_HELLO_LEN];
        // Peeked at, not consumed: what follows the hello is for the guest.
        let hello = match rustix::net::recv(socket, &mut buffer, RecvFlags::PEEK) {
            Ok((0, _)) => Err(()),
            Ok((n, _)) => parse_hello(&buffer[..n]),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(_) => Err(()),
        };
        match hello {
            Ok(None) => {}
            Err(()) => drop(peers.incoming.remove(key)),
            Ok(Some((hello, length))) => {
                let taken = rustix::net::recv(socket, &mut buffer[..length], RecvFlags::empty());
                let Some(socket) = peers.incoming.remove(key) else { return };
                let address = peers.address(&hello.name).map(IpAddr::V4);
                if let (Ok((n, _)), Some(address)) = (taken, address)
                    && n == length
                {
                    self.accept_peer(&hello, address, socket);
                }
            }
        }
    }

    /// Decides an incoming flow of a peer and connects it to the guest.
    fn accept_peer(&mut self, hello: &PeerHello, address: IpAddr, socket: OwnedFd) {
        let (kind, flow) = match hello.stream {
            true => (FlowKind::Tcp, FlowProtocol::Tcp(hello.port)),
            false => (FlowKind::Udp, FlowProtocol::Udp(hello.port)),
        };
        let mut decision = self.decide_ingress(kind, flow, SocketAddr::new(address, 0));
        if !decision.allows() {
            return;
        }
        decision.name = Some(hello.name.clone());
        let _ = epoll::delete(&self.epoll, &socket);
        if hello.stream {
            return self.connect_guest(address, hello.port, socket, address, &decision, true);
        }
        let guest = hello.port;
        let key = |port| UdpFlowKey { echo: false, guest, remote: SocketAddr::new(address, port) };
        let free = self.free_port(|gateway, port| gateway.udp.is_free(&key(port)));
        let Some(port) = free else { return };
        let (address, guest) = (Some(address), Some(guest));
        let verdict = self.verdict(kind, Direction::Ingress, &decision, address, guest);
        self.add_udp_flow(
            key(port),
            UdpPeer::Sandbox(FramedDatagrams::new(socket)),
            verdict,
            Vec::new(),
        );
    }

    /// Tells a peer that the guest has accepted its connection.
    pub(crate) fn send_accepted(&mut self, key: SlabKey) {
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        if let (FlowStage::Open, true, Some(host)) = (&flow.stage, flow.sends_accepted, &flow.host)
        {
            flow.sends_accepted = false;
            // One byte fits into a socket that nothing was written to.
            msb_log::debug_on_failure!(
                rustix::net::send(host, &[ACCEPTED], SendFlags::NOSIGNAL),
                "cannot answer a peer"
            );
        }
    }

    /// Opens a connection for UDP datagrams to a peer.
    pub(crate) fn open_peer_datagrams(
        &self,
        name: &DomainName,
        port: u16,
    ) -> Result<UdpPeer, Errno> {
        let Some(peers) = &self.peers else { return Err(Errno::NOENT) };
        let socket = connect_to(name)?;
        let hello = peers.hello_message(false, port);
        match rustix::net::send(&socket, &hello, SendFlags::NOSIGNAL)? {
            n if n == hello.len() => Ok(UdpPeer::Sandbox(FramedDatagrams::new(socket))),
            _ => Err(Errno::AGAIN),
        }
    }
}

/// UDP datagrams on a Unix stream, each with its length in front.
#[derive(Debug)]
pub(crate) struct FramedDatagrams {
    pub(crate) socket: OwnedFd,
    /// The rest of a datagram that was written in part.
    out: Vec<u8>,
    input: Vec<u8>,
}

impl FramedDatagrams {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, out: Vec::new(), input: Vec::new() }
    }

    /// Whether the rest of a datagram waits to be written.
    pub(crate) fn has_pending(&self) -> bool {
        !self.out.is_empty()
    }

    /// Writes the rest of a datagram; returns whether nothing is left.
    pub(crate) fn flush(&mut self) -> bool {
        if !self.out.is_empty()
            && let Ok(n) = rustix::net::send(&self.socket, &self.out, SendFlags::NOSIGNAL)
        {
            self.out.drain(..n);
        }
        self.out.is_empty()
    }

    /// Sends a datagram. It is dropped if the socket has no room for its first byte.
    pub(crate) fn send(&mut self, body: &[u8]) -> Result<usize, Errno> {
        let length = u16::try_from(body.len()).map_err(|_| Errno::MSGSIZE)?;
        if !self.flush() {
            return Err(Errno::AGAIN);
        }
        let frame = [&length.to_be_bytes()[..], body].concat();
        let n = rustix::net::send(&self.socket, &frame, SendFlags::NOSIGNAL)?;
        self.out.extend_from_slice(&frame[n..]);
        Ok(body.len())
    }

    /// Reads the next datagram into `buffer`; `None` at the end of the stream.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        loop {
            if let Some(head) = self.input.first_chunk::<2>() {
                let length = usize::from(u16::from_be_bytes(*head));
                if let (Some(body), Some(room)) =
                    (self.input.get(2..2 + length), buffer.get_mut(..length))
                {
                    room.copy_from_slice(body);
                    self.input.drain(..2 + length);
                    return Ok(Some(length));
                }
            }
            // `buffer` holds the longest datagram, so this ends.
            match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty())? {
                (0, _) => return Ok(None),
                (n, _) => self.input.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

/// Connects to a peer for a TCP flow; the hello is still to be sent.
pub(crate) fn connect(name: &DomainName) -> Result<(OwnedFd, bool), Errno> {
    connect_to(name).map(|socket| (socket, true))
}

/// Whether a peer has accepted the connection.
pub(crate) fn is_accepted(reply: &[u8]) -> bool {
    reply.first() == Some(&ACCEPTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_parsed_once_it_is_complete() {
        let bytes = b"T\x00\x50\x03webrest";
        for end in 0..7 {
            assert!(matches!(parse_hello(&bytes[..end]), Ok(None)), "{end}");
        }
        let (hello, length) = parse_hello(bytes).unwrap().unwrap();
        assert_eq!((hello.stream, hello.port, hello.name.as_str(), length), (true, 80, "web", 7));
        for wrong in [&b"X\x00\x50\x03web"[..], b"T\x00\x00\x03web", b"T\x00\x50\x03w b"] {
            assert!(parse_hello(wrong).is_err());
        }
    }

    #[test]
    fn datagram_boundaries_are_kept() {
        let (ours, theirs) = crate::host_socket::pair().unwrap();
        let (mut ours, mut theirs) = (FramedDatagrams::new(ours), FramedDatagrams::new(theirs));
        for body in [&b"one"[..], b"", b"three"] {
            ours.send(body).unwrap();
        }
        let mut buffer = vec![0; 1 << 16];
        for body in [&b"one"[..], b"", b"three"] {
            let n = theirs.receive(&mut buffer).unwrap().unwrap();
            assert_eq!(&buffer[..n], body);
        }
        assert_eq!(theirs.receive(&mut buffer), Err(Errno::AGAIN));
        drop(ours);
        assert_eq!(theirs.receive(&mut buffer), Ok(None));
    }
}
