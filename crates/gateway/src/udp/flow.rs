//! UDP datagrams and ICMP echo: each flow has a socket of the host while it is in use.

use crate::event_loop::Gateway;
use crate::event_source::EventSource;
use crate::frames::{self, IpPacket, Unreachable};
use crate::host_socket;
use crate::policy::address_class::is_gateway;
use crate::policy::rules::{FlowProtocol, PolicyDecision};
use crate::slab::SlabKey;
use crate::tcp::flow::{host_address, too_many_flows};
use crate::udp::flow_table::{UNANSWERED_TIMEOUT, UdpFlow, UdpFlowKey, UdpPeer};
use msb_spec::{Direction, DomainName, addresses};
use msb_wire::{FlowKind, NetEvent, Verdict};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::net::{IpAddr, SocketAddr};

/// How long a decision holds while a flow is used, in microseconds. Unlike a TCP connection, a UDP
/// flow follows the host's routes and could come to lead to the host itself.
const RECHECK_INTERVAL: u64 = 1_000_000;
/// Datagrams that are read from one socket before other events are handled.
const DATAGRAMS_PER_WAKEUP: usize = 64;

impl Gateway {
    /// Handles a UDP datagram of the guest.
    pub(crate) fn on_datagram(&mut self, packet: &IpPacket<'_>) {
        let Some(head) = packet.payload.first_chunk::<8>() else { return };
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let (guest, port, length) = (word(0), word(2), usize::from(word(4)));
        let Some(body) = packet.payload.get(8..length) else { return };
        if guest == 0 || port == 0 {
            return;
        }
        if is_gateway(packet.target) && port == 53 {
            return self.on_dns_query(packet.target, guest, body);
        }
        let key = UdpFlowKey { echo: false, guest, remote: SocketAddr::new(packet.target, port) };
        let Some(key) = self.find_or_open_udp_flow(key, packet) else { return };
        self.send_udp(key, packet, body);
    }

    /// Handles an ICMP echo request of the guest.
    pub(crate) fn on_echo(&mut self, packet: &IpPacket<'_>) {
        let Some(head) = packet.payload.first_chunk::<8>() else { return };
        let (request, reply) = if packet.target.is_ipv4() { (8, 0) } else { (128, 129) };
        if head[0] != request || head[1] != 0 {
            return;
        }
        if is_gateway(packet.target) {
            let mut body = packet.payload.to_vec();
            body[0] = reply;
            let (source, target) = (packet.target, packet.source);
            self.link.send(&frames::packet(source, target, packet.protocol, 64, &body));
            return;
        }
        let guest = u16::from_be_bytes([head[4], head[5]]);
        let key = UdpFlowKey { echo: true, guest, remote: SocketAddr::new(packet.target, 0) };
        let Some(key) = self.find_or_open_udp_flow(key, packet) else { return };
        self.send_udp(key, packet, packet.payload);
    }

    /// Finds the flow of a packet, or decides and opens a new one.
    fn find_or_open_udp_flow(&mut self, key: UdpFlowKey, packet: &IpPacket<'_>) -> Option<SlabKey> {
        let (address, port) = (key.remote.ip(), key.remote.port());
        let protocol = if key.echo { FlowProtocol::Echo } else { FlowProtocol::Udp(port) };
        if let Some(key) = self.udp.index.get(&key).copied() {
            if self.is_still_allowed(key, protocol) {
                return Some(key);
            }
            self.close_udp_flow(key);
        }
        let resolved_names = self.resolved_names(address);
        let mut decision = self.decide_flow(protocol, address, &resolved_names);
        if decision.allows() && self.is_full() {
            decision = PolicyDecision { name: decision.name, ..too_many_flows() };
        }
        let mut peer = None;
        if decision.allows() {
            match self.open_udp_peer(key) {
                Ok(opened) => peer = Some(opened),
                Err(Errno::ACCESS | Errno::PERM) if key.echo => {
                    let why = "the host does not let this user ping (ping_group_range)";
                    decision =
                        PolicyDecision { name: decision.name, ..PolicyDecision::refused(why) };
                }
                Err(_) => {
                    self.link.send(&frames::unreachable(packet, Unreachable::Host));
                    return None;
                }
            }
        }
        let kind = if key.echo { FlowKind::Icmp } else { FlowKind::Udp };
        let port = (!key.echo).then_some(port);
        let Some(peer) = peer else {
            if self.udp.should_record_refusal(key, self.now) {
                let verdict = self.verdict(kind, Direction::Egress, &decision, Some(address), port);
                self.record(NetEvent::Decided(verdict));
            }
            self.link.send(&frames::unreachable(packet, Unreachable::Refused));
            return None;
        };
        let verdict = self.verdict(kind, Direction::Egress, &decision, Some(address), port);
        self.dns_cache.flow_opened(address);
        Some(self.add_udp_flow(key, peer, verdict, resolved_names))
    }

    /// Whether an open flow of the guest is still allowed; decided again after
    /// [`RECHECK_INTERVAL`].
    fn is_still_allowed(&mut self, key: SlabKey, protocol: FlowProtocol) -> bool {
        let Some(flow) = self.udp.flows.get(key) else { return false };
        let is_egress = flow.verdict.direction == Direction::Egress;
        if !is_egress || self.now < flow.checked_at + RECHECK_INTERVAL {
            return true;
        }
        let allows =
            self.decide_flow(protocol, flow.key.remote.ip(), &flow.resolved_names).allows();
        if let Some(flow) = self.udp.flows.get_mut(key) {
            flow.checked_at = self.now;
        }
        allows
    }

    fn open_udp_peer(&self, key: UdpFlowKey) -> Result<UdpPeer, Errno> {
        let host_address = host_address(key.remote);
        match (self.peer_sandbox(key.remote.ip()), key.echo) {
            (Some(name), false) => self.open_peer_datagrams(name, key.remote.port()),
            // Named networks carry TCP and UDP only.
            (Some(_), true) => Err(Errno::HOSTUNREACH),
            (None, true) => host_socket::icmp_echo(host_address.ip()).map(UdpPeer::Socket),
            (None, false) => host_socket::udp(host_address).map(UdpPeer::Socket),
        }
    }

    /// Adds a flow that was allowed, and records its Verdict.
    pub(crate) fn add_udp_flow(
        &mut self,
        flow_key: UdpFlowKey,
        peer: UdpPeer,
        verdict: Verdict,
        resolved_names: Vec<DomainName>,
    ) -> SlabKey {
        let recorded = self.record(NetEvent::Decided(verdict.clone()));
        let now = self.now;
        let port = match &peer {
            UdpPeer::PortListener(port, peer) => Some((*port, *peer)),
            UdpPeer::Socket(_) | UdpPeer::Sandbox(_) => None,
        };
        let (sent, received, since, last_used) = (0, 0, now, now);
        let key = self.udp.flows.insert(UdpFlow {
            key: flow_key,
            peer,
            verdict,
            recorded,
            resolved_names,
            sent,
            received,
            since,
            last_used,
            checked_at: now,
        });
        self.udp.index.insert(flow_key, key);
        if let Some(port) = port {
            self.udp.by_published_port.insert(port, key);
        }
        let socket = self.udp.flows.get(key).and_then(UdpFlow::socket);
        if let Some(socket) = socket {
            self.watch(socket, EventSource::Udp(key), EventFlags::IN);
        }
        self.timers.set(now + UNANSWERED_TIMEOUT, EventSource::Udp(key));
        key
    }

    fn send_udp(&mut self, key: SlabKey, packet: &IpPacket<'_>, body: &[u8]) {
        // Above the egress rate a datagram is dropped.
        if self.bucket.allowance(body.len(), self.now) < body.len() {
            return;
        }
        let Some(flow) = self.udp.flows.get_mut(key) else { return };
        flow.last_used = self.now;
        let sent = match &mut flow.peer {
            UdpPeer::Sandbox(framed) => framed.send(body),
            UdpPeer::Socket(socket) => {
                let sent = rustix::net::send(&*socket, body, SendFlags::NOSIGNAL);
                match sent {
                    // The error belongs to an earlier datagram; this one was not sent yet.
                    Err(Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                        rustix::net::send(&*socket, body, SendFlags::NOSIGNAL)
                    }
                    other => other,
                }
            }
            UdpPeer::PortListener(port, peer) => match self.published.get(*port) {
                Some(port) => rustix::net::sendto(&port.socket, body, SendFlags::NOSIGNAL, peer),
                None => return,
            },
        };
        if let UdpPeer::Sandbox(framed) = &flow.peer
            && framed.has_pending()
        {
            let data = EventData::new_u64(EventSource::Udp(key).to_bits());
            let both = EventFlags::IN | EventFlags::OUT;
            msb_log::debug_on_failure!(
                epoll::modify(&self.epoll, &framed.socket, data, both),
                "cannot wait for a socket"
            );
        }
        match sent {
            Ok(n) => {
                flow.sent += n as u64;
                self.bucket.consume(n);
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

    /// Reads datagrams of a flow's host socket.
    pub(crate) fn on_udp_socket(&mut self, key: SlabKey) {
        if let Some(UdpFlow { peer: UdpPeer::Sandbox(framed), .. }) = self.udp.flows.get_mut(key)
            && framed.has_pending()
            && framed.flush()
        {
            let data = EventData::new_u64(EventSource::Udp(key).to_bits());
            msb_log::debug_on_failure!(
                epoll::modify(&self.epoll, &framed.socket, data, EventFlags::IN),
                "cannot wait for a socket"
            );
        }
        let mut buffer = std::mem::take(&mut self.udp_buffer);
        for _ in 0..DATAGRAMS_PER_WAKEUP {
            let Some(flow) = self.udp.flows.get_mut(key) else { break };
            match flow.read(&mut buffer) {
                Ok(None) => {
                    self.close_udp_flow(key);
                    break;
                }
                Ok(Some(n)) => {
                    let key = flow.receive(n, self.now);
                    self.deliver_to_guest(key, &mut buffer[..n]);
                }
                Err(Errno::INTR) => {}
                Err(Errno::CONNREFUSED) => {
                    let key = flow.key;
                    self.send_port_unreachable(key);
                }
                Err(_) => break,
            }
        }
        self.udp_buffer = buffer;
    }

    /// Sends a UDP datagram or an echo reply to the guest.
    pub(crate) fn deliver_to_guest(&mut self, key: UdpFlowKey, body: &mut [u8]) {
        if !key.echo {
            return frames::send_datagram(&mut self.link, key.remote, key.guest, body);
        }
        let source = key.remote.ip();
        let (reply, protocol, target) = match source {
            IpAddr::V4(_) => (0, frames::ICMP, IpAddr::V4(addresses::GUEST)),
            IpAddr::V6(_) => (129, frames::ICMP6, IpAddr::V6(addresses::GUEST6)),
        };
        if body.len() < 8 || body[0] != reply {
            return;
        }
        // The kernel replaced the identifier by one of its own.
        body[4..6].copy_from_slice(&key.guest.to_be_bytes());
        self.link.send(&frames::packet(source, target, protocol, 64, body));
    }

    /// Sends the guest a port unreachable message in the name of the remote host.
    fn send_port_unreachable(&mut self, key: UdpFlowKey) {
        let guest = match key.remote {
            SocketAddr::V4(_) => IpAddr::V4(addresses::GUEST),
            SocketAddr::V6(_) => IpAddr::V6(addresses::GUEST6),
        };
        let mut head = [0; 8];
        head[..2].copy_from_slice(&key.guest.to_be_bytes());
        head[2..4].copy_from_slice(&key.remote.port().to_be_bytes());
        head[5] = 8;
        let sent = frames::packet(guest, key.remote.ip(), frames::UDP, 64, &head);
        if let Some(packet) = frames::read_packet(&sent) {
            self.link.send(&frames::unreachable(&packet, Unreachable::Port));
        }
    }

    /// Closes a flow that has been idle for long enough, or sets its timer again.
    pub(crate) fn expire_udp_flow(&mut self, key: SlabKey) {
        let Some(flow) = self.udp.flows.get(key) else { return };
        let expires_at = flow.expires_at();
        match expires_at <= self.now {
            true => self.close_udp_flow(key),
            false => self.timers.set(expires_at, EventSource::Udp(key)),
        }
    }

    pub(crate) fn close_udp_flow(&mut self, key: SlabKey) {
        let Some(flow) = self.udp.remove(key) else { return };
        if flow.verdict.direction == Direction::Egress {
            self.dns_cache.flow_closed(flow.key.remote.ip(), self.millis());
        }
        let (number, recorded) = (flow.verdict.flow, flow.recorded);
        self.record_end(number, recorded, flow.sent, flow.received);
    }
}
