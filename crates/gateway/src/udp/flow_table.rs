//! The table of UDP and ICMP echo flows. Each flow has a socket of the host while it is in use.

use crate::named_network::FramedDatagrams;
use crate::slab::{Slab, SlabKey};
use msb_spec::DomainName;
use msb_wire::Verdict;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// How long a flow that was answered may be idle, in microseconds: as long as most NAT routers keep
/// it.
const ANSWERED_TIMEOUT: u64 = 180_000_000;
/// How long a flow without an answer may be idle, in microseconds.
pub(super) const UNANSWERED_TIMEOUT: u64 = 30_000_000;
/// A flow that has been idle for so long, in microseconds, may be closed to make room for another.
const EVICTABLE_AFTER: u64 = 3_000_000;
/// For how long a repeated refusal is not recorded again, in microseconds.
const REFUSAL_REPEAT: u64 = 5_000_000;
/// The most refusals that are remembered.
const MAX_REFUSALS: usize = 1024;

/// The guest's port and the remote address of a flow, as the guest sees them. An echo has its
/// identifier in place of the port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct UdpFlowKey {
    pub(crate) echo: bool,
    pub(crate) guest: u16,
    pub(crate) remote: SocketAddr,
}

/// How the remote end of a flow is reached.
#[derive(Debug)]
pub(crate) enum UdpPeer {
    /// By a host socket of its own.
    Socket(OwnedFd),
    /// By the socket of a published port; the address is that of the client.
    PortListener(SlabKey, SocketAddr),
    /// Through the gateway of another sandbox of the named network.
    Sandbox(FramedDatagrams),
}

/// One flow of UDP datagrams or ICMP echoes.
#[derive(Debug)]
pub(crate) struct UdpFlow {
    pub(crate) key: UdpFlowKey,
    pub(crate) peer: UdpPeer,
    pub(crate) verdict: Verdict,
    pub(crate) recorded: bool,
    pub(crate) resolved_names: Vec<DomainName>,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) since: u64,
    pub(super) last_used: u64,
    /// When the policy last decided it, in microseconds.
    pub(super) checked_at: u64,
}

impl UdpFlow {
    /// Counts a received datagram; returns the key of the flow.
    pub(crate) fn receive(&mut self, length: usize, now: u64) -> UdpFlowKey {
        self.received += length as u64;
        self.last_used = now;
        self.key
    }

    /// The host socket of this flow, if it has its own.
    pub(super) fn socket(&self) -> Option<&OwnedFd> {
        match &self.peer {
            UdpPeer::Socket(socket) => Some(socket),
            UdpPeer::Sandbox(framed) => Some(&framed.socket),
            UdpPeer::PortListener(..) => None,
        }
    }

    /// Reads a datagram for the guest; `None` if the peer closed the connection.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Errno> {
        match &mut self.peer {
            UdpPeer::Socket(socket) => {
                rustix::net::recv(socket, buffer, RecvFlags::empty()).map(|(n, _)| Some(n))
            }
            UdpPeer::Sandbox(framed) => framed.receive(buffer),
            UdpPeer::PortListener(..) => Err(Errno::AGAIN),
        }
    }

    pub(super) fn expires_at(&self) -> u64 {
        let answered = self.sent > 0 && self.received > 0;
        self.last_used + if answered { ANSWERED_TIMEOUT } else { UNANSWERED_TIMEOUT }
    }
}

/// All UDP and ICMP echo flows, and recent refusals.
#[derive(Debug, Default)]
pub(crate) struct UdpFlows {
    pub(crate) flows: Slab<UdpFlow>,
    pub(super) index: HashMap<UdpFlowKey, SlabKey>,
    pub(super) by_published_port: HashMap<(SlabKey, SocketAddr), SlabKey>,
    refusals: HashMap<UdpFlowKey, u64>,
}

impl UdpFlows {
    pub(crate) fn len(&self) -> usize {
        self.flows.len()
    }

    /// The flow that was idle longest, if no answer to it is to be expected any more.
    pub(crate) fn longest_idle(&self, now: u64) -> Option<SlabKey> {
        let idle = self.flows.iter().filter(|(_, flow)| flow.last_used + EVICTABLE_AFTER <= now);
        idle.min_by_key(|(_, flow)| flow.last_used).map(|(key, _)| key)
    }

    pub(crate) fn is_free(&self, key: &UdpFlowKey) -> bool {
        !self.index.contains_key(key)
    }

    pub(crate) fn find_by_peer(&self, port: SlabKey, peer: SocketAddr) -> Option<SlabKey> {
        self.by_published_port.get(&(port, peer)).copied()
    }

    /// Whether this refusal was not recorded recently.
    pub(super) fn should_record_refusal(&mut self, key: UdpFlowKey, now: u64) -> bool {
        if self.refusals.len() >= MAX_REFUSALS {
            self.refusals.retain(|_, until| *until > now);
            if self.refusals.len() >= MAX_REFUSALS {
                self.refusals.clear();
            }
        }
        let until = self.refusals.insert(key, now + REFUSAL_REPEAT);
        until.is_none_or(|until| until <= now)
    }

    pub(super) fn remove(&mut self, key: SlabKey) -> Option<UdpFlow> {
        let flow = self.flows.remove(key)?;
        self.index.remove(&flow.key);
        if let UdpPeer::PortListener(port, peer) = &flow.peer {
            self.by_published_port.remove(&(*port, *peer));
        }
        Some(flow)
    }
}
