//! Datagrams and echoes: each pair of ends has a socket of the host, for as long as it is used.

use crate::frames::{self, Packet, Unreachable};
use crate::gateway::Gateway;
use crate::joined::Framed;
use crate::opening::{full, outer};
use crate::outside;
use crate::place::is_gateway;
use crate::policy::{Flow, Judgement};
use crate::slots::{Key, Slots};
use crate::source::Source;
use msb_spec::{Direction, DomainName, addresses};
use msb_wire::{FlowKind, NetEvent, Verdict};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// How long nothing has to happen until a flow is over, in microseconds: one that was answered,
/// as long as most routers on the way remember it.
const ANSWERED: u64 = 180_000_000;
/// One that was not.
const UNANSWERED: u64 = 30_000_000;
/// Silent for so long, a flow gives way to another where there is no more room.
const SILENT: u64 = 3_000_000;
/// For how long a refusal is not told again.
const REMEMBERED: u64 = 5_000_000;
/// Refusals that are remembered.
const MOST_REFUSALS: usize = 1024;
/// How long a decision counts while datagrams go on, in microseconds: unlike a stream, a flow of
/// them follows the host's routes, and could come to lead to the host itself.
const DECIDED: u64 = 1_000_000;
/// Datagrams of one socket that are read in a row.
const BATCH: usize = 64;

/// The two ends of a flow, as the sandbox sees them. An echo has a number in place of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    pub(crate) echo: bool,
    pub(crate) guest: u16,
    pub(crate) remote: SocketAddr,
}

/// How the other end is reached.
#[derive(Debug)]
pub(crate) enum Way {
    /// By a socket of its own.
    Socket(OwnedFd),
    /// By the socket of a published port, where this peer came in.
    Door(Key, SocketAddr),
    /// Through the gateway of another sandbox.
    Neighbour(Framed),
}

/// A flow of datagrams.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) line: Line,
    pub(crate) way: Way,
    pub(crate) verdict: Verdict,
    pub(crate) told: bool,
    pub(crate) tied: Vec<DomainName>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) since: u64,
    last: u64,
    /// When it was decided last.
    decided: u64,
}

impl Exchange {
    /// Notes that something came in; returns between whom.
    pub(crate) fn receive(&mut self, length: usize, now: u64) -> Line {
        self.received += length as u64;
        self.last = now;
        self.line
    }

    /// The socket that is its own.
    fn socket(&self) -> Option<&OwnedFd> {
        match &self.way {
            Way::Socket(socket) => Some(socket),
            Way::Neighbour(framed) => Some(&framed.socket),
            Way::Door(..) => None,
        }
    }

    /// Reads what came for the sandbox; none if nothing ever will.
    fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        match &mut self.way {
            Way::Socket(socket) => {
                rustix::net::recv(socket, buffer, RecvFlags::empty()).map(|(n, _)| Some(n))
            }
            Way::Neighbour(framed) => framed.receive(buffer),
            Way::Door(..) => Err(Errno::AGAIN),
        }
    }

    fn limit(&self) -> u64 {
        let answered = self.sent > 0 && self.received > 0;
        self.last + if answered { ANSWERED } else { UNANSWERED }
    }
}

/// All flows of datagrams.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    pub(crate) flows: Slots<Exchange>,
    index: HashMap<Line, Key>,
    doors: HashMap<(Key, SocketAddr), Key>,
    refusals: HashMap<Line, u64>,
}

impl Datagrams {
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// The flow that was silent longest, if that is long enough not to miss an answer.
    pub(crate) fn longest_silent(&self, now: u64) -> Option<Key> {
        let silent = self.flows.iter().filter(|(_, exchange)| exchange.last + SILENT <= now);
        silent.min_by_key(|(_, exchange)| exchange.last).map(|(key, _)| key)
    }

    pub(crate) fn is_free(&self, line: &Line) -> bool {
        !self.index.contains_key(line)
    }

    pub(crate) fn of_peer(&self, door: Key, peer: SocketAddr) -> Option<Key> {
        self.doors.get(&(door, peer)).copied()
    }

    /// Whether this refusal is new, so that it is told.
    fn is_news(&mut self, line: Line, now: u64) -> bool {
        if self.refusals.len() >= MOST_REFUSALS {
            self.refusals.retain(|_, until| *until > now);
            if self.refusals.len() >= MOST_REFUSALS {
                self.refusals.clear();
            }
        }
        let until = self.refusals.insert(line, now + REMEMBERED);
        until.is_none_or(|until| until <= now)
    }

    fn remove(&mut self, key: Key) -> Option<Exchange> {
        let exchange = self.flows.remove(key)?;
        self.index.remove(&exchange.line);
        if let Way::Door(door, peer) = &exchange.way {
            self.doors.remove(&(*door, *peer));
        }
        Some(exchange)
    }
}

impl Gateway {
    /// A datagram of the sandbox.
    pub(crate) fn on_datagram(&mut self, packet: &Packet<'_>) {
        let Some(head) = packet.body.first_chunk::<8>() else { return };
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let (guest, port, length) = (word(0), word(2), usize::from(word(4)));
        let Some(body) = packet.body.get(8..length) else { return };
        if guest == 0 || port == 0 {
            return;
        }
        if is_gateway(packet.target) && port == 53 {
            return self.on_question(packet.target, guest, body);
        }
        let line = Line { echo: false, guest, remote: SocketAddr::new(packet.target, port) };
        let Some(key) = self.find_exchange(line, packet) else { return };
        self.send_out(key, packet, body);
    }

    /// An echo of the sandbox.
    pub(crate) fn on_echo(&mut self, packet: &Packet<'_>) {
        let Some(head) = packet.body.first_chunk::<8>() else { return };
        let (request, reply) = if packet.target.is_ipv4() { (8, 0) } else { (128, 129) };
        if head[0] != request || head[1] != 0 {
            return;
        }
        if is_gateway(packet.target) {
            let mut body = packet.body.to_vec();
            body[0] = reply;
            let (source, target) = (packet.target, packet.source);
            self.link.send(&frames::packet(source, target, packet.protocol, 64, &body));
            return;
        }
        let guest = u16::from_be_bytes([head[4], head[5]]);
        let line = Line { echo: true, guest, remote: SocketAddr::new(packet.target, 0) };
        let Some(key) = self.find_exchange(line, packet) else { return };
        self.send_out(key, packet, packet.body);
    }

    /// The flow that a packet belongs to, which may be a new one.
    fn find_exchange(&mut self, line: Line, packet: &Packet<'_>) -> Option<Key> {
        let (address, port) = (line.remote.ip(), line.remote.port());
        let flow = if line.echo { Flow::Echo } else { Flow::Udp(port) };
        if let Some(key) = self.datagrams.index.get(&line).copied() {
            if self.is_still_allowed(key, flow) {
                return Some(key);
            }
            self.end_exchange(key);
        }
        let tied = self.tied(address);
        let mut judgement = self.judge(flow, address, &tied);
        if judgement.allows() && self.is_full() {
            judgement = Judgement { name: judgement.name, ..full() };
        }
        let mut way = None;
        if judgement.allows() {
            match self.open_way(line) {
                Ok(opened) => way = Some(opened),
                Err(Errno::ACCESS | Errno::PERM) if line.echo => {
                    let why = "the host lets this user send no echoes (ping_group_range)";
                    judgement = Judgement { name: judgement.name, ..Judgement::refused(why) };
                }
                Err(_) => {
                    self.link.send(&frames::unreachable(packet, Unreachable::Host));
                    return None;
                }
            }
        }
        let kind = if line.echo { FlowKind::Icmp } else { FlowKind::Udp };
        let port = (!line.echo).then_some(port);
        let Some(way) = way else {
            if self.datagrams.is_news(line, self.now) {
                let verdict =
                    self.verdict(kind, Direction::Egress, &judgement, Some(address), port);
                self.tell(NetEvent::Decided(verdict));
            }
            self.link.send(&frames::unreachable(packet, Unreachable::Refused));
            return None;
        };
        let verdict = self.verdict(kind, Direction::Egress, &judgement, Some(address), port);
        self.names.opened(address);
        Some(self.add_exchange(line, way, verdict, tied))
    }

    /// Whether a flow of the sandbox that is open may go on.
    fn is_still_allowed(&mut self, key: Key, flow: Flow) -> bool {
        let Some(exchange) = self.datagrams.flows.get(key) else { return false };
        let own = exchange.verdict.direction == Direction::Egress;
        if !own || self.now < exchange.decided + DECIDED {
            return true;
        }
        let allows = self.judge(flow, exchange.line.remote.ip(), &exchange.tied).allows();
        if let Some(exchange) = self.datagrams.flows.get_mut(key) {
            exchange.decided = self.now;
        }
        allows
    }

    fn open_way(&self, line: Line) -> Result<Way, Errno> {
        let outer = outer(line.remote);
        match (self.neighbour(line.remote.ip()), line.echo) {
            (Some(name), false) => self.open_line(name, line.remote.port()),
            // Other sandboxes are reached by what they serve.
            (Some(_), true) => Err(Errno::HOSTUNREACH),
            (None, true) => outside::echoes(outer.ip()).map(Way::Socket),
            (None, false) => outside::datagrams(outer).map(Way::Socket),
        }
    }

    /// Opens a flow that was allowed.
    pub(crate) fn add_exchange(
        &mut self,
        line: Line,
        way: Way,
        verdict: Verdict,
        tied: Vec<DomainName>,
    ) -> Key {
        let told = self.tell(NetEvent::Decided(verdict.clone()));
        let now = self.now;
        let door = match &way {
            Way::Door(door, peer) => Some((*door, *peer)),
            Way::Socket(_) | Way::Neighbour(_) => None,
        };
        let (sent, received, since, last) = (0, 0, now, now);
        let key = self.datagrams.flows.insert(Exchange {
            line,
            way,
            verdict,
            told,
            tied,
            sent,
            received,
            since,
            last,
            decided: now,
        });
        self.datagrams.index.insert(line, key);
        if let Some(door) = door {
            self.datagrams.doors.insert(door, key);
        }
        let socket = self.datagrams.flows.get(key).and_then(Exchange::socket);
        if let Some(socket) = socket {
            self.watch(socket, Source::Datagrams(key), EventFlags::IN);
        }
        self.timers.set(now + UNANSWERED, Source::Datagrams(key));
        key
    }

    fn send_out(&mut self, key: Key, packet: &Packet<'_>, body: &[u8]) {
        // Above the rate it is lost, as on a line that is too thin.
        if self.bucket.allowance(body.len(), self.now) < body.len() {
            return;
        }
        let Some(exchange) = self.datagrams.flows.get_mut(key) else { return };
        exchange.last = self.now;
        let sent = match &mut exchange.way {
            Way::Neighbour(framed) => framed.send(body),
            Way::Socket(socket) => {
                let sent = rustix::net::send(&*socket, body, SendFlags::NOSIGNAL);
                match sent {
                    // What came of the one before; this one was not sent yet.
                    Err(Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                        rustix::net::send(&*socket, body, SendFlags::NOSIGNAL)
                    }
                    other => other,
                }
            }
            Way::Door(door, peer) => match self.doors.get(*door) {
                Some(door) => rustix::net::sendto(&door.socket, body, SendFlags::NOSIGNAL, peer),
                None => return,
            },
        };
        if let Way::Neighbour(framed) = &exchange.way
            && framed.waits()
        {
            let data = EventData::new_u64(Source::Datagrams(key).to_bits());
            let both = EventFlags::IN | EventFlags::OUT;
            let _ = epoll::modify(&self.epoll, &framed.socket, data, both);
        }
        match sent {
            Ok(n) => {
                exchange.sent += n as u64;
                self.bucket.take(n);
            }
            Err(Errno::CONNREFUSED) => {
                self.link.send(&frames::unreachable(packet, Unreachable::Port));
            }
            Err(Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                self.link.send(&frames::unreachable(packet, Unreachable::Host));
            }
            Err(_) => {}
        }
    }

    /// Somebody outside answered.
    pub(crate) fn on_datagrams(&mut self, key: Key) {
        if let Some(Exchange { way: Way::Neighbour(framed), .. }) =
            self.datagrams.flows.get_mut(key)
            && framed.waits()
            && framed.flush()
        {
            let data = EventData::new_u64(Source::Datagrams(key).to_bits());
            let _ = epoll::modify(&self.epoll, &framed.socket, data, EventFlags::IN);
        }
        let mut buffer = std::mem::take(&mut self.datagram);
        for _ in 0..BATCH {
            let Some(exchange) = self.datagrams.flows.get_mut(key) else { break };
            match exchange.read(&mut buffer) {
                Ok(None) => {
                    self.end_exchange(key);
                    break;
                }
                Ok(Some(n)) => {
                    let line = exchange.receive(n, self.now);
                    self.bring_in(line, &mut buffer[..n]);
                }
                Err(Errno::INTR) => {}
                Err(Errno::CONNREFUSED) => {
                    let line = exchange.line;
                    self.tell_refused(line);
                }
                Err(_) => break,
            }
        }
        self.datagram = buffer;
    }

    /// Gives the sandbox a datagram or an echo.
    pub(crate) fn bring_in(&mut self, line: Line, body: &mut [u8]) {
        if !line.echo {
            return frames::send_datagram(&mut self.link, line.remote, line.guest, body);
        }
        let source = line.remote.ip();
        let (reply, protocol, target) = match source {
            IpAddr::V4(_) => (0, frames::ICMP, IpAddr::V4(addresses::GUEST)),
            IpAddr::V6(_) => (129, frames::ICMP6, IpAddr::V6(addresses::GUEST6)),
        };
        if body.len() < 8 || body[0] != reply {
            return;
        }
        // The kernel put its own number in, to find the socket again.
        body[4..6].copy_from_slice(&line.guest.to_be_bytes());
        self.link.send(&frames::packet(source, target, protocol, 64, body));
    }

    /// Nobody listens where the sandbox sent a datagram: it is told as if by them.
    fn tell_refused(&mut self, line: Line) {
        let guest = match line.remote {
            SocketAddr::V4(_) => IpAddr::V4(addresses::GUEST),
            SocketAddr::V6(_) => IpAddr::V6(addresses::GUEST6),
        };
        let mut head = [0; 8];
        head[..2].copy_from_slice(&line.guest.to_be_bytes());
        head[2..4].copy_from_slice(&line.remote.port().to_be_bytes());
        head[5] = 8;
        let sent = frames::packet(guest, line.remote.ip(), frames::UDP, 64, &head);
        if let Some(packet) = frames::read_packet(&sent) {
            self.link.send(&frames::unreachable(&packet, Unreachable::Port));
        }
    }

    /// Ends a flow that nothing happened to for long enough.
    pub(crate) fn expire_datagrams(&mut self, key: Key) {
        let Some(exchange) = self.datagrams.flows.get(key) else { return };
        let limit = exchange.limit();
        match limit <= self.now {
            true => self.end_exchange(key),
            false => self.timers.set(limit, Source::Datagrams(key)),
        }
    }

    pub(crate) fn end_exchange(&mut self, key: Key) {
        let Some(exchange) = self.datagrams.remove(key) else { return };
        if exchange.verdict.direction == Direction::Egress {
            self.names.closed(exchange.line.remote.ip(), self.millis());
        }
        let (flow, told) = (exchange.verdict.flow, exchange.told);
        self.tell_end(flow, told, exchange.sent, exchange.received);
    }
}
