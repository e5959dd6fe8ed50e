//! The event loop: one thread that waits with `epoll` for the link, sockets of the host, the worker
//! and timers.

use crate::budget::MemoryBudget;
use crate::control::ControlSocket;
use crate::dns::cache::DnsCache;
use crate::dns::forwarder::DnsForwarder;
use crate::event_source::EventSource;
use crate::events::{self, EventLimiter};
use crate::frames::{self, Inbound, IpPacket, MAX_FRAME_LEN};
use crate::host_socket;
use crate::intercept::{InterceptSettings, Interceptor};
use crate::link::{Link, LinkKind};
use crate::named_network::Peers;
use crate::policy::rules::{PolicyDecision, Rules};
use crate::proxy::HttpProxy;
use crate::published_ports::PortListener;
use crate::rate_limit::TokenBucket;
use crate::slab::Slab;
use crate::start::Start;
use crate::tcp::flow_table::{TcpContext, TcpFlows};
use crate::timers::Timers;
use crate::udp::flow_table::UdpFlows;
use msb_spec::{Direction, DomainName, Error, PublishedPort, Result, Stage};
use msb_wire::{FlowKind, FromGateway, NetEvent, Verdict};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

/// Frames that are read before the flows they touched are polled: enough to save system calls, few
/// enough to keep latency low.
const FRAMES_PER_WAKEUP: usize = 32;

/// The state of one sandbox's network, owned by the event loop.
pub(crate) struct Gateway {
    pub(crate) epoll: OwnedFd,
    started: Instant,
    /// Microseconds since the start, as of the last wakeup.
    pub(crate) now: u64,
    pub(crate) link: Link,
    /// Whether epoll waits until the link can be written.
    watches_link_writable: bool,
    pub(crate) control: ControlSocket,
    watches_control_writable: bool,
    pub(crate) events: EventLimiter,
    reports_skipped: bool,
    pub(crate) rules: Rules,
    pub(crate) dns_cache: DnsCache,
    pub(crate) timers: Timers,
    pub(crate) bucket: TokenBucket,
    pub(crate) tcp: TcpFlows,
    pub(crate) udp: UdpFlows,
    pub(crate) dns: DnsForwarder,
    pub(crate) published: Slab<PortListener>,
    pub(crate) peers: Option<Peers>,
    pub(crate) interceptor: Option<Interceptor>,
    /// How to start an Interceptor, until one has been started.
    intercept_settings: Option<InterceptSettings>,
    pub(crate) proxy: Option<Arc<HttpProxy>>,
    pub(crate) max_flows: usize,
    /// Memory for intercepted connections and their requests.
    pub(crate) budget: MemoryBudget,
    last_flow: u64,
    pub(crate) has_ca: bool,
    frame: Vec<u8>,
    /// A buffer for one datagram from a host socket.
    pub(crate) udp_buffer: Vec<u8>,
    /// The source port that the last connection to the guest was given.
    pub(crate) last_ingress_port: u16,
    /// The count of packets to the guest when the worker paused the sandbox. The worker is told
    /// when the count changes.
    pub(crate) armed_wakeup: Option<u64>,
}

/// Serves one sandbox until its worker closes the control socket; returns the exit status of the
/// process.
pub(crate) fn run(start: Start) -> i32 {
    let Start { network, values, resolvers, host_addresses, proxy, roots, link, .. } = start;
    let mut control = ControlSocket::new(start.control);
    let proxy = proxy.map(Arc::new);
    let budget = MemoryBudget::new(network.gateway_memory.0);
    let mut intercept_settings = Some(InterceptSettings {
        policy: network.policy.clone(),
        secrets: network.secrets.iter().cloned().zip(values).collect(),
        proxy: proxy.clone(),
        roots,
        budget: budget.clone(),
    });
    raise_fd_limit();
    let ready = open_published_ports(&network.ports).and_then(|published| {
        let peers = start.joined.as_ref().map(Peers::join).transpose()?;
        (start.confine)()?;
        let interceptor = match intercept_settings.take_if(|_| network.intercepts()) {
            Some(intercept_settings) => Some(Interceptor::start(intercept_settings)?),
            None => None,
        };
        Ok((published, peers, interceptor))
    });
    let (published, peers, interceptor) = match ready {
        Ok(ready) => ready,
        Err(error) => {
            control.send(&FromGateway::Failed(error));
            control.flush();
            return 1;
        }
    };
    let ports = published.iter().map(|port| port.published.clone()).collect();
    let (interceptor, ca) = interceptor.unzip();
    let has_ca = ca.is_some();
    let authority = ca.map(|ca| ca.pem);
    let mut ready = Some(FromGateway::Ready { ports, authority });
    // With a CA the worker is told first: the sandbox has to trust the CA before it has a device.
    // Without one the device comes first, so that an unusable device fails the start.
    if let Some(ready) = ready.take_if(|_| has_ca) {
        control.send(&ready);
        control.flush();
    }
    let link = match start.device {
        true => wait_for_device(&link, &control),
        false => Ok((link, LinkKind::Vm)),
    };
    let link = link.and_then(|(link, kind)| Ok((Link::new(link, kind)?, kind)));
    let (link, link_kind) = match link {
        Ok(link) => link,
        // The process that makes the device has failed and reports why itself.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return 0,
        Err(error) => {
            let failed = Error::host("cannot take the network device", error);
            control.send(&FromGateway::Failed(failed.at(Stage::Network)));
            control.flush();
            return 1;
        }
    };
    if let Some(ready) = ready {
        control.send(&ready);
        control.flush();
    }
    let rules = Rules::new(network.policy, host_addresses, network.secrets, network.bypass);
    let Ok(epoll) = epoll::create(epoll::CreateFlags::CLOEXEC) else { return 1 };
    let mut gateway = Gateway {
        epoll,
        started: Instant::now(),
        now: 0,
        link,
        watches_link_writable: false,
        control,
        watches_control_writable: false,
        events: EventLimiter::default(),
        reports_skipped: false,
        rules,
        dns_cache: DnsCache::default(),
        timers: Timers::default(),
        bucket: TokenBucket::new(network.egress_rate),
        tcp: TcpFlows::new(host_socket::random(), link_kind),
        udp: UdpFlows::default(),
        dns: DnsForwarder::new(
            resolvers,
            network.dns_timeout.map(|limit| limit.0),
            network.dns_private,
        ),
        published: Slab::default(),
        peers,
        interceptor,
        intercept_settings,
        proxy,
        max_flows: network.max_connections as usize,
        budget,
        last_flow: 0,
        has_ca,
        frame: vec![0; MAX_FRAME_LEN],
        udp_buffer: vec![0; 1 << 16],
        last_ingress_port: 0,
        armed_wakeup: None,
    };
    for port in published {
        gateway.add_published_port(port);
    }
    let served = gateway.serve();
    gateway.shutdown();
    i32::from(served.is_err())
}

/// Raises the soft limit on open files to the hard limit: each flow has a socket.
fn raise_fd_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.or(limit.current);
    // On failure fewer flows can be open; opening one more then fails.
    msb_log::debug_on_failure!(
        setrlimit(Resource::Nofile, limit),
        "cannot raise the limit of open files"
    );
}

fn open_published_ports(ports: &[PublishedPort]) -> Result<Vec<PortListener>> {
    ports.iter().map(PortListener::open).collect()
}

/// Waits for the descriptor of the device. Fails with `UnexpectedEof` if the worker exits first.
fn wait_for_device(link: &OwnedFd, control: &ControlSocket) -> io::Result<(OwnedFd, LinkKind)> {
    loop {
        let mut polled = [PollFd::new(link, PollFlags::IN), PollFd::new(control, PollFlags::RDHUP)];
        match rustix::event::poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        if !polled[0].revents().is_empty() {
            return Link::receive_device(link);
        }
        if !polled[1].revents().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

impl Gateway {
    pub(crate) fn watch(&self, fd: impl AsFd, source: EventSource, flags: EventFlags) -> bool {
        epoll::add(&self.epoll, fd, EventData::new_u64(source.to_bits()), flags).is_ok()
    }

    fn serve(&mut self) -> io::Result<()> {
        self.watch_peers();
        self.watch(&self.link, EventSource::Link, EventFlags::IN);
        self.watch(&self.control, EventSource::Control, EventFlags::IN);
        if let Some(interceptor) = &self.interceptor {
            self.watch(interceptor.wake(), EventSource::Interceptor, EventFlags::IN);
        }
        let mut events = Vec::with_capacity(256);
        loop {
            let timeout = self.timers.next().map(|at| {
                let wait = at.saturating_sub(self.now);
                Timespec {
                    tv_sec: (wait / 1_000_000) as i64,
                    tv_nsec: (wait % 1_000_000 * 1000) as i64,
                }
            });
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                other => drop(other?),
            }
            self.now = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
            for event in events.drain(..) {
                let (data, flags) = (event.data.u64(), event.flags);
                if let Some(source) = EventSource::from_bits(data)
                    && !self.on_event(source, flags)
                {
                    return Ok(());
                }
            }
            while let Some(source) = self.timers.due(self.now) {
                self.on_timer(source);
            }
            self.flush_pending();
        }
    }

    /// Closes published ports first, because the next gateway may be waiting for them, then records
    /// the ends of all flows.
    fn shutdown(&mut self) {
        self.published = Slab::default();
        self.close_all_flows();
        if let Some(skipped) = self.events.skipped() {
            self.control.send(&FromGateway::EventKind(skipped));
        }
        self.control.flush();
    }

    /// Polls the flows that changed, then updates what epoll waits for and writes queued messages.
    fn flush_pending(&mut self) {
        while let Some(key) = self.tcp.next() {
            self.poll_flow(key);
        }
        if self.link.is_blocked() != self.watches_link_writable {
            self.watches_link_writable = !self.watches_link_writable;
            let room =
                if self.watches_link_writable { EventFlags::OUT } else { EventFlags::empty() };
            let data = EventData::new_u64(EventSource::Link.to_bits());
            msb_log::warn_on_failure!(
                epoll::modify(&self.epoll, &self.link, data, EventFlags::IN | room),
                "cannot wait for the link"
            );
        }
        if let Some(due) = self.events.due()
            && !self.reports_skipped
        {
            self.reports_skipped = true;
            self.timers.set(due, EventSource::SkippedEvents);
        }
        if self.armed_wakeup.is_some_and(|packets| packets != self.link.packet_counts().1) {
            self.armed_wakeup = None;
            self.control.send(&FromGateway::WakeRequested);
        }
        let waits = self.control.flush();
        if waits != self.watches_control_writable {
            self.watches_control_writable = waits;
            let room = if waits { EventFlags::OUT } else { EventFlags::empty() };
            let data = EventData::new_u64(EventSource::Control.to_bits());
            msb_log::warn_on_failure!(
                epoll::modify(&self.epoll, &self.control, data, EventFlags::IN | room),
                "cannot wait for the worker"
            );
        }
    }

    /// Handles one epoll event. Returns false when the gateway has to exit.
    fn on_event(&mut self, source: EventSource, flags: EventFlags) -> bool {
        match source {
            EventSource::Link => {
                if self.watches_link_writable && self.link.flush() {
                    self.tcp.resume_link_blocked();
                }
                return self.read_link();
            }
            EventSource::Control => match self.control.read() {
                Ok(request) => request.into_iter().for_each(|request| self.apply_request(request)),
                Err(_) => return false,
            },
            EventSource::Interceptor => self.relay_verdicts(),
            EventSource::Published(key) => self.on_published_port(key),
            EventSource::Tcp(key) => self.on_tcp_socket(key, flags),
            EventSource::Udp(key) => self.on_udp_socket(key),
            EventSource::DnsQuery(key) => self.on_dns_response(key),
            EventSource::PeerListener => self.on_peer_listener(),
            EventSource::IncomingPeer(key) => self.on_incoming_peer(key),
            EventSource::SkippedEvents | EventSource::EgressRate => {}
        }
        true
    }

    fn on_timer(&mut self, source: EventSource) {
        match source {
            EventSource::Tcp(key) => self.tcp.on_timer(key),
            EventSource::Udp(key) => self.expire_udp_flow(key),
            EventSource::DnsQuery(key) => self.on_server_timeout(key),
            EventSource::IncomingPeer(key) => self.expire_incoming_peer(key),
            EventSource::Published(key) => self.watch_published_port(key),
            EventSource::EgressRate => self.tcp.resume_rate_limited(),
            EventSource::SkippedEvents => {
                self.reports_skipped = false;
                if let Some(skipped) = self.events.skipped() {
                    self.control.send(&FromGateway::EventKind(skipped));
                }
            }
            _ => {}
        }
    }

    /// Reads frames of the guest; returns false if the link is closed.
    fn read_link(&mut self) -> bool {
        let mut frame = std::mem::take(&mut self.frame);
        let mut alive = true;
        for _ in 0..FRAMES_PER_WAKEUP {
            match self.link.read(&mut frame) {
                Ok(Some(length)) => self.on_frame(&frame[..length]),
                Ok(None) => break,
                Err(_) => {
                    alive = false;
                    break;
                }
            }
        }
        self.frame = frame;
        alive
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.link.learn_guest_mac(frame);
        match frames::read(frame) {
            None => {}
            Some(Inbound::LinkQuery(reply)) => self.link.send_reply(&reply),
            Some(Inbound::IpPacket(packet)) => {
                self.link.count_packet_in();
                self.on_packet(&packet);
            }
        }
    }

    fn on_packet(&mut self, packet: &IpPacket<'_>) {
        match packet.protocol {
            frames::TCP => self.on_segment(packet),
            frames::UDP => self.on_datagram(packet),
            frames::ICMP | frames::ICMP6 => self.on_echo(packet),
            _ => {}
        }
    }

    /// The TCP flows, and what they share while one of them is polled.
    pub(crate) fn tcp_context(&mut self) -> (&mut TcpFlows, TcpContext<'_>) {
        let tcp_context = TcpContext {
            link: &mut self.link,
            bucket: &mut self.bucket,
            timers: &mut self.timers,
            now: self.now,
        };
        (&mut self.tcp, tcp_context)
    }

    /// Milliseconds since the gateway started, as of the last wakeup.
    pub(crate) fn millis(&self) -> u64 {
        self.now / 1000
    }

    /// Whether no other flow may be opened. UDP flows have no visible end, so the one that was idle
    /// longest is closed to make room.
    pub(crate) fn is_full(&mut self) -> bool {
        if self.tcp.flows.len() + self.udp.len() < self.max_flows {
            return false;
        }
        let silent = self.udp.longest_idle(self.now);
        silent.map(|key| self.close_udp_flow(key)).is_none()
    }

    /// Builds a Verdict with a new flow number.
    pub(crate) fn verdict(
        &mut self,
        kind: FlowKind,
        direction: Direction,
        decision: &PolicyDecision,
        address: Option<IpAddr>,
        port: Option<u16>,
    ) -> Verdict {
        self.last_flow += 1;
        Verdict {
            flow: self.last_flow,
            decision: decision.action,
            direction,
            kind,
            name: decision.name.clone(),
            address,
            port,
            rule: decision.rule.clone(),
            request: None,
            secrets: Vec::new(),
        }
    }

    /// Sends an event to the worker; returns false if it was dropped and counted.
    pub(crate) fn record(&mut self, event: NetEvent) -> bool {
        events::log(&event);
        if !self.control.has_room() {
            self.events.skip();
            return false;
        }
        let recorded = self.events.admit(&event, self.now);
        if recorded {
            self.control.send(&FromGateway::EventKind(event));
        }
        recorded
    }

    /// Records the end of an allowed flow, if its begin was recorded.
    pub(crate) fn record_end(&mut self, flow: u64, recorded: bool, sent: u64, received: u64) {
        match recorded {
            true => {
                self.record(NetEvent::Ended { flow, sent, received });
            }
            false => self.events.skip(),
        }
    }

    /// The Interceptor, which is started now if no flow needed it before. One that was not started
    /// with the sandbox has no CA that the sandbox trusts, and handles plain HTTP only.
    pub(crate) fn interceptor(&mut self) -> Option<&Interceptor> {
        if let Some(intercept_settings) = self.intercept_settings.take() {
            let intercept_settings =
                InterceptSettings { policy: self.rules.policy().clone(), ..intercept_settings };
            let interceptor = Interceptor::start_plain(intercept_settings).ok()?;
            self.watch(interceptor.wake(), EventSource::Interceptor, EventFlags::IN);
            self.interceptor = Some(interceptor);
        }
        self.interceptor.as_ref()
    }

    /// Whether TLS can be intercepted: the sandbox trusts our CA.
    pub(crate) fn can_intercept_tls(&self) -> bool {
        self.has_ca
    }

    fn relay_verdicts(&mut self) {
        while let Some(event) = self.interceptor.as_ref().and_then(Interceptor::next) {
            self.record(event);
        }
    }

    /// The names with DNS answers that contained this address.
    pub(crate) fn resolved_names(&self, address: IpAddr) -> Vec<DomainName> {
        self.dns_cache.names_of(address, self.millis())
    }
}

/// An error of the host, with what could not be done.
pub(crate) fn host_error(what: &str, error: rustix::io::Errno) -> Error {
    Error::host(what.to_owned(), io::Error::from(error))
}
