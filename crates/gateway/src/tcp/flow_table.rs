//! The table of TCP flows. Each flow has a smoltcp socket towards the guest and a host socket
//! towards the server, and bytes are copied from the buffer of one straight into the other.
//!
//! A packet touches its own flow only, and nothing is allocated for it.

use crate::event_source::EventSource;
use crate::link::{Link, LinkDevice, LinkKind, capabilities};
use crate::policy::rules::NameCheck;
use crate::rate_limit::TokenBucket;
use crate::secrets::placeholder_scan::PlaceholderScan;
use crate::slab::{Slab, SlabKey};
use crate::tcp::tunnel::Tunnel;
use crate::timers::Timers;
use msb_spec::{DomainName, addresses};
use msb_wire::Verdict;
use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use smoltcp::iface::{Config, Interface, PollResult, SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

/// Buffer sizes for each direction, in bytes, and how many flows get each size. With
/// `DEFAULT_CONNECTIONS` flows the sum is a quarter of `GATEWAY_MEMORY`.
pub(crate) const BUFFERS: [(usize, usize); 3] =
    [(1 << 19, 32), (1 << 17, 128), (1 << 13, usize::MAX)];
/// Unused smoltcp sockets that are kept, for each size. Allocating the buffers costs more than all
/// else that a short flow does.
const MAX_SPARE_SOCKETS: usize = 32;

/// The guest's port and the remote address of a flow, as the guest sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct FlowKey {
    pub(crate) guest: u16,
    pub(crate) remote: SocketAddr,
}

/// How far a flow has progressed.
#[derive(Debug)]
pub(crate) enum FlowStage {
    /// The host socket connects; holds the guest's SYN until it is accepted.
    Connecting(Option<Box<[u8]>>),
    /// The guest is accepted; its first bytes decide where to connect.
    Reading,
    /// Both sides are connected; the first bytes are checked before they are sent.
    Checking,
    /// Bytes are copied in both directions.
    Open,
    /// The gateway connects to the guest, for a client or a peer.
    ConnectingToGuest,
    /// DNS queries over TCP.
    Dns {
        /// Queries that are not answered yet.
        open: u32,
    },
    /// The refusal was sent; further data is discarded.
    Refused,
}

/// One TCP flow with both of its sockets.
pub(crate) struct TcpFlow {
    pub(crate) key: FlowKey,
    pub(crate) verdict: Verdict,
    /// Whether the Verdict was recorded and not dropped; `None` before that.
    pub(crate) recorded: Option<bool>,
    pub(crate) resolved_names: Vec<DomainName>,
    pub(crate) name_check: NameCheck,
    pub(crate) stage: FlowStage,
    /// The smoltcp socket towards the guest.
    guest_socket: Option<GuestSocket>,
    /// The host socket towards the server or client.
    pub(crate) host: Option<OwnedFd>,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// The host socket has an end of file or an error to read.
    pub(crate) hung_up: bool,
    /// The guest has closed its side, and the host socket was shut down for writing.
    guest_done: bool,
    /// The host socket has reached its end of file.
    host_done: bool,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) since: u64,
    /// Since when its first bytes are held because their protocol is not clear, in microseconds.
    pub(crate) held_since: Option<u64>,
    /// Whether the peer gateway is told once the guest has accepted.
    pub(crate) sends_accepted: bool,
    /// The handshake with a proxy or a peer gateway, until it is done.
    pub(crate) tunnel: Option<Tunnel>,
    /// Searches outgoing bytes for placeholders.
    pub(crate) placeholder_scan: Option<Box<PlaceholderScan>>,
    queued: bool,
    link_blocked: bool,
    rate_limited: bool,
    /// When its timer is due, in microseconds.
    timer_at: u64,
    previous_state: State,
}

struct GuestSocket {
    sockets: SocketSet<'static>,
    handle: SocketHandle,
    /// The index of its buffer size in [`BUFFERS`].
    size: usize,
}

impl GuestSocket {
    fn new(size: usize, link_kind: LinkKind) -> Self {
        let (bytes, _) = BUFFERS[size];
        // A multiple of the segment size, so that the ring buffer never splits a segment. The
        // smallest buffer holds less than one segment, and smoltcp sends shorter ones.
        let buffer = |mtu: usize| {
            let segments = (bytes / (mtu - 40)).max(1) * (mtu - 40);
            SocketBuffer::new(vec![0; segments.min(bytes)])
        };
        let mut sockets = SocketSet::new(Vec::with_capacity(1));
        let socket = Socket::new(buffer(link_kind.max_receive_len()), buffer(link_kind.mtu()));
        let handle = sockets.add(socket);
        Self { sockets, handle, size }
    }

    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.handle)
    }
}

/// The result of copying between the two sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SpliceResult {
    Done,
    /// The egress rate limit was reached.
    RateLimited,
    /// The host socket has failed.
    Broken,
}

impl TcpFlow {
    pub(crate) fn new(key: FlowKey, verdict: Verdict, stage: FlowStage, now: u64) -> Self {
        Self {
            key,
            verdict,
            recorded: None,
            resolved_names: Vec::new(),
            name_check: NameCheck::None,
            stage,
            guest_socket: None,
            host: None,
            readable: false,
            writable: false,
            hung_up: false,
            guest_done: false,
            host_done: false,
            sent: 0,
            received: 0,
            since: now,
            held_since: None,
            sends_accepted: false,
            tunnel: None,
            placeholder_scan: None,
            queued: false,
            link_blocked: false,
            rate_limited: false,
            timer_at: u64::MAX,
            previous_state: State::Listen,
        }
    }

    /// The smoltcp socket, once there is one.
    pub(crate) fn socket(&mut self) -> Option<&mut Socket<'static>> {
        self.guest_socket.as_mut().map(GuestSocket::socket)
    }

    /// Whether the guest has closed its side.
    pub(crate) fn guest_has_closed(&mut self) -> bool {
        let orderly = is_orderly(self.previous_state);
        self.socket().is_some_and(|socket| match socket.state() {
            State::CloseWait | State::LastAck | State::Closing | State::TimeWait => true,
            State::Closed => orderly,
            _ => false,
        })
    }

    /// Copies what can be copied between the two sockets.
    fn splice(&mut self, bucket: &mut TokenBucket, now: u64) -> SpliceResult {
        let sent = match self.stage {
            FlowStage::Open => self.send_to_host(bucket, now),
            _ => SpliceResult::Done,
        };
        if sent == SpliceResult::Broken {
            return sent;
        }
        match self.receive_from_host() {
            SpliceResult::Broken => SpliceResult::Broken,
            _ => sent,
        }
    }

    fn send_to_host(&mut self, bucket: &mut TokenBucket, now: u64) -> SpliceResult {
        let ended = self.guest_has_closed();
        let (Some(guest_socket), Some(host)) = (&mut self.guest_socket, &self.host) else {
            return SpliceResult::Done;
        };
        let socket = guest_socket.socket();
        while self.writable && socket.recv_queue() > 0 {
            let limit = bucket.allowance(socket.recv_queue(), now);
            if limit == 0 {
                return SpliceResult::RateLimited;
            }
            let mut complete = true;
            let wrote = socket.recv(|bytes| {
                let bytes = &bytes[..bytes.len().min(limit)];
                if let Some(placeholder_scan) = &mut self.placeholder_scan
                    && !placeholder_scan.scan(bytes)
                {
                    // A placeholder was found: `Gateway::poll_flow` closes the flow.
                    return (0, Err(Errno::AGAIN));
                }
                match rustix::net::send(host, bytes, SendFlags::NOSIGNAL) {
                    Ok(n) => {
                        complete = n == bytes.len();
                        (n, Ok(n))
                    }
                    Err(error) => (0, Err(error)),
                }
            });
            match wrote {
                Ok(Ok(n)) => {
                    bucket.consume(n);
                    self.sent += n as u64;
                    if let Some(placeholder_scan) = &mut self.placeholder_scan {
                        placeholder_scan.advance(n);
                    }
                    // epoll reports when the socket is writable again.
                    self.writable = complete;
                }
                Ok(Err(Errno::AGAIN)) => self.writable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(_)) | Err(_) => return SpliceResult::Broken,
            }
        }
        if ended && !self.guest_done && socket.recv_queue() == 0 {
            self.guest_done = true;
            // A failure means that the socket is closed, which the next read shows.
            let _ = rustix::net::shutdown(host, Shutdown::Write);
        }
        SpliceResult::Done
    }

    fn receive_from_host(&mut self) -> SpliceResult {
        let (Some(guest_socket), Some(host)) = (&mut self.guest_socket, &self.host) else {
            return SpliceResult::Done;
        };
        let socket = guest_socket.socket();
        while self.readable && !self.host_done && socket.can_send() {
            let mut complete = true;
            let read = socket.send(|room| match rustix::io::read(host, &mut *room) {
                Ok(n) => {
                    complete = n == room.len();
                    (n, Ok(n))
                }
                Err(error) => (0, Err(error)),
            });
            match read {
                Ok(Ok(0)) => {
                    self.host_done = true;
                    socket.close();
                }
                Ok(Ok(n)) => {
                    self.received += n as u64;
                    // A short read has emptied the socket, unless an end of file was reported with
                    // it.
                    self.readable = complete || self.hung_up;
                }
                Ok(Err(Errno::AGAIN)) => self.readable = false,
                Ok(Err(Errno::INTR)) => {}
                Ok(Err(_)) | Err(_) => return SpliceResult::Broken,
            }
        }
        SpliceResult::Done
    }

    /// Whether both sides have closed the flow, and how.
    fn flow_end(&mut self) -> Option<FlowEnd> {
        let (previous_state, guest_done, open) =
            (self.previous_state, self.guest_done, self.host.is_some() && !self.guest_done);
        let socket = self.socket()?;
        let drained = socket.recv_queue() == 0 && (guest_done || !open);
        match socket.state() {
            State::TimeWait if drained => Some(FlowEnd::Orderly),
            State::Closed if is_orderly(previous_state) => drained.then_some(FlowEnd::Orderly),
            // In smoltcp a RST during the handshake returns an accepted socket to the listen state.
            State::Closed | State::Listen => Some(FlowEnd::Reset),
            _ => None,
        }
    }
}

/// How a flow was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlowEnd {
    /// Both sides sent a FIN.
    Orderly,
    /// One side sent a RST or failed.
    Reset,
}

/// Whether both sides have closed a socket that went from this state to `Closed`.
fn is_orderly(previous_state: State) -> bool {
    matches!(previous_state, State::LastAck | State::Closing | State::TimeWait)
}

/// All TCP flows, with the smoltcp interface that they share.
pub(crate) struct TcpFlows {
    pub(crate) flows: Slab<TcpFlow>,
    index: HashMap<FlowKey, SlabKey>,
    interface: Interface,
    /// Unused sockets, and how many are in use, by size.
    spare: [Vec<GuestSocket>; BUFFERS.len()],
    in_use: [usize; BUFFERS.len()],
    link_kind: LinkKind,
    /// Flows to poll before the event loop sleeps.
    queue: Vec<SlabKey>,
    /// Flows that wait until the link can be written.
    link_blocked: Vec<SlabKey>,
    /// Flows that wait for the egress rate limit.
    rate_limited: Vec<SlabKey>,
}

/// What a TCP flow needs while it is polled.
pub(crate) struct TcpContext<'a> {
    pub(crate) link: &'a mut Link,
    pub(crate) bucket: &'a mut TokenBucket,
    pub(crate) timers: &'a mut Timers,
    pub(crate) now: u64,
}

impl TcpFlows {
    pub(crate) fn new(seed: u64, link_kind: LinkKind) -> Self {
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut NoDevice(link_kind), Instant::ZERO);
        interface.update_ip_addrs(|own| {
            // smoltcp is built with room for two addresses.
            let _ = own.push(IpCidr::new(addresses::GATEWAY.into(), addresses::BITS));
            let _ = own.push(IpCidr::new(addresses::GATEWAY6.into(), addresses::BITS6));
        });
        // Packets to any address are accepted: the gateway answers for all servers.
        interface.set_any_ip(true);
        Self {
            flows: Slab::default(),
            index: HashMap::new(),
            interface,
            spare: Default::default(),
            in_use: [0; BUFFERS.len()],
            link_kind,
            queue: Vec::new(),
            link_blocked: Vec::new(),
            rate_limited: Vec::new(),
        }
    }

    pub(crate) fn find(&self, key: &FlowKey) -> Option<SlabKey> {
        self.index.get(key).copied()
    }

    pub(crate) fn insert(&mut self, flow: TcpFlow) -> SlabKey {
        let flow_key = flow.key;
        let key = self.flows.insert(flow);
        self.index.insert(flow_key, key);
        key
    }

    /// Removes a flow; its smoltcp socket is kept for another one.
    pub(crate) fn remove(&mut self, key: SlabKey) -> Option<TcpFlow> {
        let mut flow = self.flows.remove(key)?;
        self.index.remove(&flow.key);
        if let Some(mut guest_socket) = flow.guest_socket.take() {
            self.in_use[guest_socket.size] -= 1;
            let spare = &mut self.spare[guest_socket.size];
            if spare.len() < MAX_SPARE_SOCKETS {
                guest_socket.socket().abort();
                spare.push(guest_socket);
            }
        }
        Some(flow)
    }

    fn prepare(&mut self, key: SlabKey) -> Option<(&mut Interface, &mut TcpFlow, SocketHandle)> {
        let flow = self.flows.get_mut(key)?;
        let room = self.in_use.iter().zip(BUFFERS).position(|(in_use, (_, limit))| *in_use < limit);
        let size = room.unwrap_or(BUFFERS.len() - 1);
        self.in_use[size] += 1;
        let guest_socket =
            self.spare[size].pop().unwrap_or_else(|| GuestSocket::new(size, self.link_kind));
        let guest_socket = flow.guest_socket.insert(guest_socket);
        let handle = guest_socket.handle;
        let socket = guest_socket.socket();
        // The kernels on both sides delay small packets and ACKs themselves.
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        socket.set_timeout(None);
        Some((&mut self.interface, flow, handle))
    }

    /// Accepts the connection of a SYN of the guest.
    pub(crate) fn accept(&mut self, key: SlabKey, syn: &[u8], context: &mut TcpContext<'_>) {
        let Some((_, flow, _)) = self.prepare(key) else { return };
        let remote = flow.key.remote;
        if let Some(socket) = flow.socket() {
            socket.listen(remote).expect("a socket that was aborted listens to any port but zero");
        }
        self.ingest(key, syn, context);
    }

    /// Starts to connect to the guest, with a limit in microseconds.
    pub(crate) fn connect_guest(&mut self, key: SlabKey, limit: u64) -> bool {
        let Some((interface, flow, handle)) = self.prepare(key) else { return false };
        let (key, guest_socket) = (flow.key, flow.guest_socket.as_mut());
        let Some(socket) =
            guest_socket.map(|guest_socket| guest_socket.sockets.get_mut::<Socket<'_>>(handle))
        else {
            return false;
        };
        let guest = match key.remote {
            SocketAddr::V4(_) => SocketAddr::from((addresses::GUEST, key.guest)),
            SocketAddr::V6(_) => SocketAddr::from((addresses::GUEST6, key.guest)),
        };
        socket.set_timeout(Some(smoltcp::time::Duration::from_micros(limit)));
        flow.previous_state = State::SynSent;
        socket.connect(interface.context(), guest, key.remote).is_ok()
    }

    /// Passes a packet of the guest to its flow.
    pub(crate) fn ingest(&mut self, key: SlabKey, packet: &[u8], context: &mut TcpContext<'_>) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        if let Some(guest_socket) = &mut flow.guest_socket {
            let mut port = LinkDevice { link: context.link, packet: Some(packet) };
            let now = Instant::from_micros(context.now as i64);
            self.interface.poll_ingress_single(now, &mut port, &mut guest_socket.sockets);
        }
        self.queue(key);
    }

    /// Marks a flow to be polled before the event loop sleeps.
    pub(crate) fn queue(&mut self, key: SlabKey) {
        if let Some(flow) = self.flows.get_mut(key)
            && !flow.queued
        {
            flow.queued = true;
            self.queue.push(key);
        }
    }

    pub(crate) fn next(&mut self) -> Option<SlabKey> {
        let key = self.queue.pop()?;
        if let Some(flow) = self.flows.get_mut(key) {
            flow.queued = false;
        }
        Some(key)
    }

    /// The link can be written again.
    pub(crate) fn resume_link_blocked(&mut self) {
        for key in std::mem::take(&mut self.link_blocked) {
            if let Some(flow) = self.flows.get_mut(key) {
                flow.link_blocked = false;
            }
            self.queue(key);
        }
    }

    /// The egress rate limit allows more bytes.
    pub(crate) fn resume_rate_limited(&mut self) {
        for key in std::mem::take(&mut self.rate_limited) {
            if let Some(flow) = self.flows.get_mut(key) {
                flow.rate_limited = false;
            }
            self.queue(key);
        }
    }

    /// The timer of a flow is due.
    pub(crate) fn on_timer(&mut self, key: SlabKey) {
        if let Some(flow) = self.flows.get_mut(key) {
            flow.timer_at = u64::MAX;
        }
        self.queue(key);
    }

    /// Resets a flow on the guest's side.
    pub(crate) fn abort(&mut self, key: SlabKey) {
        if let Some(flow) = self.flows.get_mut(key) {
            if let Some(socket) = flow.socket() {
                socket.abort();
            }
            flow.previous_state = State::Established;
        }
        self.queue(key);
    }

    /// Copies bytes, sends packets and sets the timer of a flow; returns how it ended, if it did.
    pub(crate) fn poll(&mut self, key: SlabKey, context: &mut TcpContext<'_>) -> Option<FlowEnd> {
        let flow = self.flows.get_mut(key)?;
        let moved = match flow.stage {
            FlowStage::Open | FlowStage::Checking => flow.splice(context.bucket, context.now),
            _ => SpliceResult::Done,
        };
        let guest_socket = flow.guest_socket.as_mut()?;
        match moved {
            SpliceResult::Done => {}
            SpliceResult::Broken => guest_socket.socket().abort(),
            SpliceResult::RateLimited => {
                if self.rate_limited.is_empty() {
                    context
                        .timers
                        .set(context.bucket.retry_at(context.now), EventSource::EgressRate);
                }
                if !flow.rate_limited {
                    flow.rate_limited = true;
                    self.rate_limited.push(key);
                }
            }
        }
        let now = Instant::from_micros(context.now as i64);
        let mut port = LinkDevice { link: context.link, packet: None };
        let sent = |interface: &mut Interface,
                    port: &mut LinkDevice<'_>,
                    guest_socket: &mut GuestSocket| {
            interface.poll_egress(now, port, &mut guest_socket.sockets)
                == PollResult::SocketStateChanged
        };
        while sent(&mut self.interface, &mut port, guest_socket) {}
        let flow_end = match moved {
            // The RST was sent, or there was no room for it and the guest's next packet gets one.
            SpliceResult::Broken => Some(FlowEnd::Reset),
            _ => flow.flow_end(),
        };
        if flow_end.is_some() {
            return flow_end;
        }
        let guest_socket = flow.guest_socket.as_mut()?;
        flow.previous_state = guest_socket.socket().state();
        if context.link.is_blocked() {
            if !flow.link_blocked {
                flow.link_blocked = true;
                self.link_blocked.push(key);
            }
            return None;
        }
        if let Some(at) = self.interface.poll_at(now, &guest_socket.sockets) {
            // A packet that is due and was not sent waits for the link, not for the clock.
            let at = u64::try_from(at.total_micros()).unwrap_or(0).max(context.now + 1000);
            if at < flow.timer_at {
                flow.timer_at = at;
                context.timers.set(at, EventSource::Tcp(key));
            }
        }
        None
    }
}

impl TcpFlow {
    /// Closes the host socket in the way the guest's side was closed.
    pub(crate) fn close(self, flow_end: FlowEnd) {
        if let (FlowEnd::Reset, Some(host)) = (flow_end, &self.host) {
            // A zero linger time makes the close send a RST instead of a FIN.
            let _ = rustix::net::sockopt::set_socket_linger(
                host.as_fd(),
                Some(std::time::Duration::ZERO),
            );
        }
    }
}

/// A device without a link, for creating the smoltcp interface.
struct NoDevice(LinkKind);

impl smoltcp::phy::Device for NoDevice {
    type RxToken<'a> = crate::link::RxPacket<'a>;
    type TxToken<'a> = crate::link::TxSlot<'a>;

    fn receive(&mut self, _: Instant) -> Option<(Self::RxToken<'_>, Self::TxToken<'_>)> {
        None
    }

    fn transmit(&mut self, _: Instant) -> Option<Self::TxToken<'_>> {
        None
    }

    fn capabilities(&self) -> smoltcp::phy::DeviceCapabilities {
        capabilities(self.0)
    }
}
