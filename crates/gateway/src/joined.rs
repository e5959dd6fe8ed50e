//! Sandboxes of one named network: they reach each other by name, from gateway to gateway.
//!
//! Each gateway listens in the directory of the network, by the name of its sandbox. Whoever
//! connects says what it wants and who it is, in one message:
//! `T` or `U` · port (2 bytes) · length of a name (1) · the name. A stream is answered by `+` once
//! the sandbox has accepted it, and then is the stream; datagrams follow each other with their
//! lengths (2 bytes) in front. The name is what a gateway says of itself: those who join a network
//! trust each other that far.

use crate::datagrams::{Line, Way};
use crate::gateway::Gateway;
use crate::policy::{Flow, Judgement};
use crate::slots::{Key, Slots};
use crate::source::Source;
use crate::start::Joined;
use crate::streams::Stage;
use msb_spec::{Direction, DomainName, Error, Result, addresses};
use msb_wire::FlowKind;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// Sandboxes that are known by an address.
const MOST: u32 = 4096;
/// Those who connected and have not said what they want.
const MOST_VISITORS: usize = 64;
/// How long they have for it, in microseconds.
const PATIENCE: u64 = 5_000_000;
/// The longest first message.
const LONGEST: usize = 4 + 255;
/// What stands behind the name of a sandbox.
const ZONE: &str = ".msb.internal";
/// The answer to who wants a stream.
pub(crate) const ACCEPTED: u8 = b'+';
/// The longest name whose socket a path has room for.
const LONGEST_NAME: usize = 96;

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// What is known of a named network.
#[derive(Debug)]
pub(crate) struct Neighbours {
    own: DomainName,
    listener: OwnedFd,
    addresses: HashMap<DomainName, u32>,
    names: Vec<DomainName>,
    visitors: Slots<OwnedFd>,
}

impl Neighbours {
    /// Takes this sandbox's place. Everything is found from the network's directory, which this
    /// process is in from now on.
    pub(crate) fn join(joined: &Joined) -> Result<Self> {
        let about = |error: Errno| Error::host("cannot join the network of sandboxes", error);
        let own = DomainName::parse(joined.name.as_str());
        let own = own.ok().filter(|own| own.as_str().len() <= LONGEST_NAME).ok_or_else(|| {
            Error::invalid(format!("no name to be reached by: `{}`", joined.name))
                .hint("give the sandbox a name that a host could have")
        })?;
        rustix::process::fchdir(&joined.directory).map_err(about)?;
        if dial(&own).is_ok() {
            return Err(Error::new(
                msb_spec::Kind::Exists,
                format!("a sandbox of that name is in the network already: `{own}`"),
            ));
        }
        // Left behind by one that is gone.
        let _ = rustix::fs::unlink(socket_of(&own));
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
                .map_err(about)?;
        let place = SocketAddrUnix::new(socket_of(&own)).map_err(about)?;
        rustix::net::bind(&listener, &place).map_err(about)?;
        rustix::net::listen(&listener, 128).map_err(about)?;
        let (addresses, names) = (HashMap::new(), Vec::new());
        Ok(Self { own, listener, addresses, names, visitors: Slots::default() })
    }

    /// The address that stands for a sandbox; none if there are too many.
    fn address(&mut self, name: &DomainName) -> Option<Ipv4Addr> {
        let number = match self.addresses.get(name) {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.names.len()).ok().filter(|n| *n < MOST)?;
                self.addresses.insert(name.clone(), number);
                self.names.push(name.clone());
                number
            }
        };
        Some(Ipv4Addr::from_bits(addresses::JOINED.to_bits() + number))
    }

    /// The sandbox that an address stands for.
    pub(crate) fn name(&self, address: IpAddr) -> Option<&DomainName> {
        let IpAddr::V4(address) = address else { return None };
        let number = address.to_bits().checked_sub(addresses::JOINED.to_bits())?;
        self.names.get(number as usize)
    }

    /// The address of a sandbox that is there, by its name with or without the zone.
    pub(crate) fn find(&mut self, asked: &DomainName) -> Option<Ipv4Addr> {
        let bare = asked.as_str().strip_suffix(ZONE).unwrap_or(asked.as_str());
        let name =
            DomainName::parse(bare).ok().filter(|name| name.as_str().len() <= LONGEST_NAME)?;
        if name == self.own {
            return Some(addresses::GUEST);
        }
        // Connected to and left at once, which says only that somebody is there.
        dial(&name).ok()?;
        self.address(&name)
    }

    /// What to say first to whom a flow is for.
    pub(crate) fn hello(&self, stream: bool, port: u16) -> Vec<u8> {
        let name = self.own.as_str().as_bytes();
        let mut hello = vec![if stream { b'T' } else { b'U' }];
        hello.extend_from_slice(&port.to_be_bytes());
        hello.push(name.len() as u8);
        hello.extend_from_slice(name);
        hello
    }
}

fn socket_of(name: &DomainName) -> String {
    format!("{name}.gateway")
}

/// Connects to the gateway of a sandbox.
pub(crate) fn dial(name: &DomainName) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(socket_of(name))?)?;
    Ok(socket)
}

/// What a visitor wants.
struct Wish {
    stream: bool,
    port: u16,
    name: DomainName,
}

/// Reads a first message: the wish and its length, or none while more has to come.
fn read_wish(bytes: &[u8]) -> Result<Option<(Wish, usize)>, ()> {
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
        Some(name) => Ok(Some((Wish { stream, port, name }, length))),
        None => Err(()),
    }
}

impl Gateway {
    /// Decides a flow out of the sandbox, to whomever.
    pub(crate) fn judge(&self, flow: Flow, address: IpAddr, tied: &[DomainName]) -> Judgement {
        match self.neighbours.as_ref().and_then(|neighbours| neighbours.name(address)) {
            Some(name) => self.rules.judge_neighbour(flow, name),
            None => self.rules.judge(flow, address, tied),
        }
    }

    /// The sandbox that an address stands for.
    pub(crate) fn neighbour(&self, address: IpAddr) -> Option<&DomainName> {
        self.neighbours.as_ref().and_then(|neighbours| neighbours.name(address))
    }

    pub(crate) fn watch_neighbours(&self) {
        if let Some(neighbours) = &self.neighbours {
            self.watch(&neighbours.listener, Source::Joined, EventFlags::IN);
        }
    }

    /// Gateways of other sandboxes connect.
    pub(crate) fn on_joined(&mut self) {
        let Self { neighbours: Some(neighbours), epoll, timers, now, .. } = self else { return };
        while let Ok(socket) = rustix::net::accept_with(&neighbours.listener, FLAGS) {
            if neighbours.visitors.len() >= MOST_VISITORS {
                continue;
            }
            let key = neighbours.visitors.insert(socket);
            if let Some(socket) = neighbours.visitors.get(key) {
                let data = EventData::new_u64(Source::Visitor(key).to_bits());
                let _ = epoll::add(&*epoll, socket, data, EventFlags::IN);
                timers.set(*now + PATIENCE, Source::Visitor(key));
            }
        }
    }

    /// A visitor that does not say what it wants is shown the door.
    pub(crate) fn expire_visitor(&mut self, key: Key) {
        if let Some(neighbours) = &mut self.neighbours {
            neighbours.visitors.remove(key);
        }
    }

    /// A visitor says what it wants.
    pub(crate) fn on_visitor(&mut self, key: Key) {
        let Some(neighbours) = &mut self.neighbours else { return };
        let Some(socket) = neighbours.visitors.get(key) else { return };
        let mut buffer = [0; LONGEST];
        // Looked at and left there: what comes behind it is for the sandbox.
        let wish = match rustix::net::recv(socket, &mut buffer, RecvFlags::PEEK) {
            Ok((0, _)) => Err(()),
            Ok((n, _)) => read_wish(&buffer[..n]),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(_) => Err(()),
        };
        match wish {
            Ok(None) => {}
            Err(()) => drop(neighbours.visitors.remove(key)),
            Ok(Some((wish, length))) => {
                let taken = rustix::net::recv(socket, &mut buffer[..length], RecvFlags::empty());
                let Some(socket) = neighbours.visitors.remove(key) else { return };
                let address = neighbours.address(&wish.name).map(IpAddr::V4);
                if let (Ok((n, _)), Some(address)) = (taken, address)
                    && n == length
                {
                    self.let_in(&wish, address, socket);
                }
            }
        }
    }

    /// Decides a visitor and connects it to the sandbox.
    fn let_in(&mut self, wish: &Wish, address: IpAddr, socket: OwnedFd) {
        let (kind, flow) = match wish.stream {
            true => (FlowKind::Tcp, Flow::Tcp(wish.port)),
            false => (FlowKind::Udp, Flow::Udp(wish.port)),
        };
        let mut judgement = self.judge_peer(kind, flow, SocketAddr::new(address, 0));
        if !judgement.allows() {
            return;
        }
        judgement.name = Some(wish.name.clone());
        let _ = epoll::delete(&self.epoll, &socket);
        if wish.stream {
            return self.reach(address, wish.port, socket, address, &judgement, true);
        }
        let guest = wish.port;
        let line = |port| Line { echo: false, guest, remote: SocketAddr::new(address, port) };
        let free = self.free_port(|gateway, port| gateway.datagrams.is_free(&line(port)));
        let Some(port) = free else { return };
        let (address, guest) = (Some(address), Some(guest));
        let verdict = self.verdict(kind, Direction::Ingress, &judgement, address, guest);
        self.add_exchange(line(port), Way::Neighbour(Framed::new(socket)), verdict, Vec::new());
    }

    /// Tells a visitor that the sandbox has accepted its stream.
    pub(crate) fn greet(&mut self, key: Key) {
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        if let (Stage::Open, true, Some(host)) = (&stream.stage, stream.greets, &stream.host) {
            stream.greets = false;
            // There is room for one byte in a socket that nothing was written to.
            let _ = rustix::net::send(host, &[ACCEPTED], SendFlags::NOSIGNAL);
        }
    }

    /// Datagrams to another sandbox.
    pub(crate) fn open_line(&self, name: &DomainName, port: u16) -> Result<Way, Errno> {
        let Some(neighbours) = &self.neighbours else { return Err(Errno::NOENT) };
        let socket = dial(name)?;
        let hello = neighbours.hello(false, port);
        match rustix::net::send(&socket, &hello, SendFlags::NOSIGNAL)? {
            n if n == hello.len() => Ok(Way::Neighbour(Framed::new(socket))),
            _ => Err(Errno::AGAIN),
        }
    }
}

/// Datagrams on a stream, each with its length in front.
#[derive(Debug)]
pub(crate) struct Framed {
    pub(crate) socket: OwnedFd,
    /// Of the one that was written in part.
    out: Vec<u8>,
    input: Vec<u8>,
}

impl Framed {
    fn new(socket: OwnedFd) -> Self {
        Self { socket, out: Vec::new(), input: Vec::new() }
    }

    /// Whether a part of a datagram waits for room.
    pub(crate) fn waits(&self) -> bool {
        !self.out.is_empty()
    }

    /// Writes what was left; whether nothing is.
    pub(crate) fn flush(&mut self) -> bool {
        if !self.out.is_empty()
            && let Ok(n) = rustix::net::send(&self.socket, &self.out, SendFlags::NOSIGNAL)
        {
            self.out.drain(..n);
        }
        self.out.is_empty()
    }

    /// Sends a datagram; it is lost where there is no room for its begin.
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

    /// The next datagram into `buffer`; none at the end.
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
            // A datagram and its length fit, so this ends.
            match rustix::net::recv(&self.socket, &mut *buffer, RecvFlags::empty())? {
                (0, _) => return Ok(None),
                (n, _) => self.input.extend_from_slice(&buffer[..n]),
            }
        }
    }
}

/// A stream to another sandbox, not yet greeted.
pub(crate) fn connect(name: &DomainName) -> Result<(OwnedFd, bool), Errno> {
    dial(name).map(|socket| (socket, true))
}

/// Whether this is the answer of a sandbox that has accepted.
pub(crate) fn is_accepted(heard: &[u8]) -> bool {
    heard.first() == Some(&ACCEPTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_read_when_it_is_whole() {
        let bytes = b"T\x00\x50\x03webrest";
        for end in 0..7 {
            assert!(matches!(read_wish(&bytes[..end]), Ok(None)), "{end}");
        }
        let (wish, length) = read_wish(bytes).unwrap().unwrap();
        assert_eq!((wish.stream, wish.port, wish.name.as_str(), length), (true, 80, "web", 7));
        for wrong in [&b"X\x00\x50\x03web"[..], b"T\x00\x00\x03web", b"T\x00\x50\x03w b"] {
            assert!(read_wish(wrong).is_err());
        }
    }

    #[test]
    fn datagrams_keep_their_borders() {
        let (ours, theirs) = crate::outside::pair().unwrap();
        let (mut ours, mut theirs) = (Framed::new(ours), Framed::new(theirs));
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
