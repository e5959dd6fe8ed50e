//! Published ports: who comes in from outside is decided, and then the sandbox is connected to.

use crate::datagrams::{Line, Way};
use crate::gateway::{Gateway, cannot};
use crate::opening::{ONCE, full};
use crate::outside;
use crate::policy::{Flow, Judgement};
use crate::slots::Key;
use crate::source::Source;
use crate::streams::{Ending, Ends, Stage, Stream};
use msb_spec::{Direction, Protocol, Published, Result, addresses};
use msb_wire::{FlowKind, NetEvent};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// How long the sandbox has to answer, in microseconds.
const PATIENCE: u64 = 10_000_000;
/// How long nobody is let in when that failed, in microseconds.
const PAUSE: u64 = 100_000;
/// Who is let in before others have their turn.
const BATCH: usize = 64;
/// The ports that those who come in seem to come from.
const FIRST: u16 = 32768;

/// A published port.
#[derive(Debug)]
pub(crate) struct Door {
    pub(crate) published: Published,
    pub(crate) socket: OwnedFd,
}

impl Door {
    /// Takes the port of the host, any if none was named.
    pub(crate) fn open(published: &Published) -> Result<Self> {
        let stream = published.protocol == Protocol::Tcp;
        let address = SocketAddr::new(published.address, published.host);
        let failed = |error: rustix::io::Errno| {
            let (error_number, error) =
                (error, cannot(&format!("cannot publish `{published}`"), error));
            match error_number {
                rustix::io::Errno::ADDRINUSE => error.hint(
                    "another program has that port; `ss -lntup` tells which, and naming only the sandbox's port takes a free one",
                ),
                _ if (1..1024).contains(&published.host) => {
                    error.hint("ports below 1024 are for root; publish a higher one")
                }
                _ => error,
            }
        };
        let socket = outside::listen(address, stream).map_err(failed)?;
        let host = outside::address_of(&socket).map_or(published.host, |own| own.port());
        Ok(Self { published: Published { host, ..published.clone() }, socket })
    }
}

impl Gateway {
    pub(crate) fn add_door(&mut self, door: Door) {
        let key = self.doors.insert(door);
        self.watch_door(key);
    }

    /// Looks again who is at a published port.
    pub(crate) fn watch_door(&mut self, key: Key) {
        if let Some(door) = self.doors.get(key) {
            self.watch(&door.socket, Source::Published(key), EventFlags::IN);
        }
    }

    /// Somebody is at a published port.
    pub(crate) fn on_door(&mut self, key: Key) {
        for _ in 0..BATCH {
            let Some(door) = self.doors.get(key) else { return };
            let more = match door.published.protocol {
                Protocol::Tcp => self.admit_stream(key),
                Protocol::Udp => self.admit_datagram(key),
            };
            if !more {
                return;
            }
        }
    }

    /// Decides a peer; none if it may not come in.
    pub(crate) fn judge_peer(&mut self, kind: FlowKind, flow: Flow, peer: SocketAddr) -> Judgement {
        let judgement = self.rules.judge_peer(flow, peer.ip());
        let judgement = match judgement.allows() && self.is_full() {
            true => full(),
            false => judgement,
        };
        if !judgement.allows() {
            let port = match flow {
                Flow::Tcp(port) | Flow::Udp(port) => Some(port),
                Flow::Echo => None,
            };
            let address = Some(peer.ip());
            let verdict = self.verdict(kind, Direction::Ingress, &judgement, address, port);
            self.tell(NetEvent::Decided(verdict));
        }
        judgement
    }

    fn admit_stream(&mut self, key: Key) -> bool {
        let Some(door) = self.doors.get(key) else { return false };
        let (own, guest) = (own_address(&door.published), door.published.guest.get());
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, peer) = match rustix::net::acceptfrom_with(&door.socket, flags) {
            Ok((socket, peer)) => (socket, peer),
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR | Errno::CONNABORTED) => return true,
            // Out of descriptors: whoever waits keeps waiting, and is not looked at all the time.
            Err(_) => {
                let _ = rustix::event::epoll::delete(&self.epoll, &door.socket);
                self.timers.set(self.now + PAUSE, Source::Published(key));
                return false;
            }
        };
        let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else { return true };
        let judgement = self.judge_peer(FlowKind::Tcp, Flow::Tcp(guest), peer);
        if judgement.allows() {
            let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
            self.reach(own, guest, socket, peer.ip(), &judgement, false);
        } else {
            reset(&socket);
        }
        true
    }

    /// Connects to a port of the sandbox for a peer that may come in, and who seems to be at `own`.
    pub(crate) fn reach(
        &mut self,
        own: IpAddr,
        guest: u16,
        socket: OwnedFd,
        peer: IpAddr,
        judgement: &Judgement,
        greets: bool,
    ) {
        let free = self.free_port(|gateway, port| {
            let ends = Ends { guest, remote: SocketAddr::new(own, port) };
            gateway.streams.find(&ends).is_none()
        });
        let Some(port) = free else { return reset(&socket) };
        let ends = Ends { guest, remote: SocketAddr::new(own, port) };
        let (address, port) = (Some(peer), Some(guest));
        let verdict = self.verdict(FlowKind::Tcp, Direction::Ingress, judgement, address, port);
        let mut stream = Stream::new(ends, verdict, Stage::Reaching, self.now);
        stream.greets = greets;
        let key = self.streams.insert(stream);
        self.announce(key);
        let watched = self.watch(&socket, Source::Tcp(key), ONCE);
        if let Some(stream) = self.streams.flows.get_mut(key) {
            stream.host = Some(socket);
        }
        if !watched || !self.streams.reach(key, PATIENCE) {
            return self.finish(key, Ending::Reset);
        }
        self.streams.queue(key);
    }

    /// A port that nobody who is inside came from.
    pub(crate) fn free_port(&mut self, is_free: impl Fn(&Self, u16) -> bool) -> Option<u16> {
        for _ in 0..u16::MAX - FIRST {
            self.port = if self.port == u16::MAX { FIRST } else { self.port.max(FIRST) + 1 };
            if is_free(self, self.port) {
                return Some(self.port);
            }
        }
        None
    }

    fn admit_datagram(&mut self, key: Key) -> bool {
        let mut buffer = std::mem::take(&mut self.datagram);
        let more = self.receive_datagram(key, &mut buffer);
        self.datagram = buffer;
        more
    }

    fn receive_datagram(&mut self, key: Key, buffer: &mut [u8]) -> bool {
        let Some(door) = self.doors.get(key) else { return false };
        let (own, guest) = (own_address(&door.published), door.published.guest.get());
        let (n, peer) = match rustix::net::recvfrom(&door.socket, &mut *buffer, RecvFlags::empty())
        {
            Ok((n, _, peer)) => (n, peer),
            Err(Errno::AGAIN) => return false,
            // A datagram that was sent before found nobody.
            Err(_) => return true,
        };
        let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else { return true };
        let exchange = match self.datagrams.of_peer(key, peer) {
            Some(exchange) => exchange,
            None => {
                let judgement = self.judge_peer(FlowKind::Udp, Flow::Udp(guest), peer);
                if !judgement.allows() {
                    return true;
                }
                let line = |port| Line { echo: false, guest, remote: SocketAddr::new(own, port) };
                let free = self.free_port(|gateway, port| gateway.datagrams.is_free(&line(port)));
                let Some(port) = free else { return true };
                let (address, guest) = (Some(peer.ip()), Some(guest));
                let verdict =
                    self.verdict(FlowKind::Udp, Direction::Ingress, &judgement, address, guest);
                self.add_exchange(line(port), Way::Door(key, peer), verdict, Vec::new())
            }
        };
        let now = self.now;
        if let Some(exchange) = self.datagrams.flows.get_mut(exchange) {
            let line = exchange.receive(n, now);
            self.bring_in(line, &mut buffer[..n]);
        }
        true
    }
}

/// Whom the sandbox sees when somebody comes in.
fn own_address(published: &Published) -> IpAddr {
    match published.address {
        IpAddr::V4(_) => IpAddr::V4(addresses::GATEWAY),
        IpAddr::V6(_) => IpAddr::V6(addresses::GATEWAY6),
    }
}

/// Closes a socket so that its peer sees that it was refused.
fn reset(socket: &OwnedFd) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
}
