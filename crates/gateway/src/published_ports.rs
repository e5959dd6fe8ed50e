//! Published ports: a client of the host port is decided by the ingress rules, then connected to
//! the guest.

use crate::event_loop::{Gateway, host_error};
use crate::event_source::EventSource;
use crate::host_socket;
use crate::policy::rules::{FlowProtocol, PolicyDecision};
use crate::slab::SlabKey;
use crate::tcp::flow::{EDGE_TRIGGERED, too_many_flows};
use crate::tcp::flow_table::{FlowEnd, FlowKey, FlowStage, TcpFlow};
use crate::udp::flow_table::{UdpFlowKey, UdpPeer};
use msb_spec::{Direction, Protocol, PublishedPort, Result, addresses};
use msb_wire::{FlowKind, NetEvent};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// How long the guest has to accept a connection, in microseconds.
const CONNECT_TIMEOUT: u64 = 10_000_000;
/// How long no client is accepted after `accept(2)` failed, in microseconds.
const ACCEPT_RETRY_DELAY: u64 = 100_000;
/// Clients that are accepted before other events are handled.
const ACCEPTS_PER_WAKEUP: usize = 64;
/// The first source port of connections to the guest.
const FIRST_PORT: u16 = 32768;

/// A listening TCP or bound UDP socket of the host.
#[derive(Debug)]
pub(crate) struct PortListener {
    pub(crate) published: PublishedPort,
    pub(crate) socket: OwnedFd,
}

impl PortListener {
    /// Binds the host port; port 0 takes a free one. Fails if the port is in use or privileged.
    pub(crate) fn open(published: &PublishedPort) -> Result<Self> {
        let stream = published.protocol == Protocol::Tcp;
        let address = SocketAddr::new(published.address, published.host);
        let failed = |error: rustix::io::Errno| {
            let (error_number, error) =
                (error, host_error(&format!("cannot publish `{published}`"), error));
            match error_number {
                rustix::io::Errno::ADDRINUSE => error.hint(
                    "another program uses that port (`ss -lntup`); give only the sandbox's port to \
                     get a free one",
                ),
                _ if (1..1024).contains(&published.host) => {
                    error.hint("ports below 1024 are for root; publish a higher one")
                }
                _ => error,
            }
        };
        let socket = host_socket::listen(address, stream).map_err(failed)?;
        let host = host_socket::local_address(&socket).map_or(published.host, |own| own.port());
        Ok(Self { published: PublishedPort { host, ..published.clone() }, socket })
    }
}

impl Gateway {
    pub(crate) fn add_published_port(&mut self, port: PortListener) {
        let key = self.published.insert(port);
        self.watch_published_port(key);
    }

    /// Waits for clients of a published port, at first and after a failed `accept(2)`.
    pub(crate) fn watch_published_port(&mut self, key: SlabKey) {
        if let Some(port) = self.published.get(key) {
            self.watch(&port.socket, EventSource::Published(key), EventFlags::IN);
        }
    }

    /// Accepts clients or datagrams of a published port.
    pub(crate) fn on_published_port(&mut self, key: SlabKey) {
        for _ in 0..ACCEPTS_PER_WAKEUP {
            let Some(port) = self.published.get(key) else { return };
            let more = match port.published.protocol {
                Protocol::Tcp => self.accept_tcp(key),
                Protocol::Udp => self.accept_udp(key),
            };
            if !more {
                return;
            }
        }
    }

    /// Decides an incoming flow; a refusal is recorded.
    pub(crate) fn decide_ingress(
        &mut self,
        kind: FlowKind,
        flow: FlowProtocol,
        peer: SocketAddr,
    ) -> PolicyDecision {
        let decision = self.rules.decide_ingress(flow, peer.ip());
        let decision = match decision.allows() && self.is_full() {
            true => too_many_flows(),
            false => decision,
        };
        if !decision.allows() {
            let port = match flow {
                FlowProtocol::Tcp(port) | FlowProtocol::Udp(port) => Some(port),
                FlowProtocol::Echo => None,
            };
            let address = Some(peer.ip());
            let verdict = self.verdict(kind, Direction::Ingress, &decision, address, port);
            self.record(NetEvent::Decided(verdict));
        }
        decision
    }

    fn accept_tcp(&mut self, key: SlabKey) -> bool {
        let Some(port) = self.published.get(key) else { return false };
        let (own, guest) = (gateway_address(&port.published), port.published.guest.get());
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, peer) = match rustix::net::acceptfrom_with(&port.socket, flags) {
            Ok((socket, peer)) => (socket, peer),
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR | Errno::CONNABORTED) => return true,
            // Out of descriptors: clients stay in the backlog, and the socket is not polled for a
            // while.
            Err(_) => {
                let _ = rustix::event::epoll::delete(&self.epoll, &port.socket);
                self.timers.set(self.now + ACCEPT_RETRY_DELAY, EventSource::Published(key));
                return false;
            }
        };
        let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else { return true };
        let decision = self.decide_ingress(FlowKind::Tcp, FlowProtocol::Tcp(guest), peer);
        if decision.allows() {
            let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
            self.connect_guest(own, guest, socket, peer.ip(), &decision, false);
        } else {
            reset_on_close(&socket);
        }
        true
    }

    /// Connects to a port of the guest for an allowed client, which appears to the guest as `own`.
    pub(crate) fn connect_guest(
        &mut self,
        own: IpAddr,
        guest: u16,
        socket: OwnedFd,
        peer: IpAddr,
        decision: &PolicyDecision,
        sends_accepted: bool,
    ) {
        let free = self.free_port(|gateway, port| {
            let key = FlowKey { guest, remote: SocketAddr::new(own, port) };
            gateway.tcp.find(&key).is_none()
        });
        let Some(port) = free else { return reset_on_close(&socket) };
        let key = FlowKey { guest, remote: SocketAddr::new(own, port) };
        let (address, port) = (Some(peer), Some(guest));
        let verdict = self.verdict(FlowKind::Tcp, Direction::Ingress, decision, address, port);
        let mut flow = TcpFlow::new(key, verdict, FlowStage::ConnectingToGuest, self.now);
        flow.sends_accepted = sends_accepted;
        let key = self.tcp.insert(flow);
        self.record_verdict(key);
        let watched = self.watch(&socket, EventSource::Tcp(key), EDGE_TRIGGERED);
        if let Some(flow) = self.tcp.flows.get_mut(key) {
            flow.host = Some(socket);
        }
        if !watched || !self.tcp.connect_guest(key, CONNECT_TIMEOUT) {
            return self.close_flow(key, FlowEnd::Reset);
        }
        self.tcp.queue(key);
    }

    /// A source port that no open flow to the guest uses.
    pub(crate) fn free_port(&mut self, is_free: impl Fn(&Self, u16) -> bool) -> Option<u16> {
        for _ in 0..u16::MAX - FIRST_PORT {
            self.last_ingress_port = if self.last_ingress_port == u16::MAX {
                FIRST_PORT
            } else {
                self.last_ingress_port.max(FIRST_PORT) + 1
            };
            if is_free(self, self.last_ingress_port) {
                return Some(self.last_ingress_port);
            }
        }
        None
    }

    fn accept_udp(&mut self, key: SlabKey) -> bool {
        let mut buffer = std::mem::take(&mut self.udp_buffer);
        let more = self.receive_udp(key, &mut buffer);
        self.udp_buffer = buffer;
        more
    }

    fn receive_udp(&mut self, key: SlabKey, buffer: &mut [u8]) -> bool {
        let Some(port) = self.published.get(key) else { return false };
        let (own, guest) = (gateway_address(&port.published), port.published.guest.get());
        let (n, peer) = match rustix::net::recvfrom(&port.socket, &mut *buffer, RecvFlags::empty())
        {
            Ok((n, _, peer)) => (n, peer),
            Err(Errno::AGAIN) => return false,
            // An ICMP error for a datagram that was sent before.
            Err(_) => return true,
        };
        let Some(peer) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) else { return true };
        let flow = match self.udp.find_by_peer(key, peer) {
            Some(flow) => flow,
            None => {
                let decision = self.decide_ingress(FlowKind::Udp, FlowProtocol::Udp(guest), peer);
                if !decision.allows() {
                    return true;
                }
                let flow_key =
                    |port| UdpFlowKey { echo: false, guest, remote: SocketAddr::new(own, port) };
                let free = self.free_port(|gateway, port| gateway.udp.is_free(&flow_key(port)));
                let Some(port) = free else { return true };
                let (address, guest) = (Some(peer.ip()), Some(guest));
                let verdict =
                    self.verdict(FlowKind::Udp, Direction::Ingress, &decision, address, guest);
                self.add_udp_flow(
                    flow_key(port),
                    UdpPeer::PortListener(key, peer),
                    verdict,
                    Vec::new(),
                )
            }
        };
        let now = self.now;
        if let Some(flow) = self.udp.flows.get_mut(flow) {
            let key = flow.receive(n, now);
            self.deliver_to_guest(key, &mut buffer[..n]);
        }
        true
    }
}

/// The source address that the guest sees for clients of a published port.
fn gateway_address(published: &PublishedPort) -> IpAddr {
    match published.address {
        IpAddr::V4(_) => IpAddr::V4(addresses::GATEWAY),
        IpAddr::V6(_) => IpAddr::V6(addresses::GATEWAY6),
    }
}

/// Makes the close of a socket send a RST, so that the client sees a refusal.
fn reset_on_close(socket: &OwnedFd) {
    let _ = rustix::net::sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
}
