//! Opens and closes TCP flows: first the policy decides, then the server is connected, then the
//! guest's SYN is accepted.

use crate::budget::ConnectionMemory;
use crate::event_loop::Gateway;
use crate::event_source::EventSource;
use crate::events::flow_span;
use crate::frames::{IpPacket, TcpSegment, read_packet};
use crate::host_socket;
use crate::intercept::FlowHandoff;
use crate::intercept::refusal::{because, http_page};
use crate::named_network;
use crate::policy::address_class::is_gateway;
use crate::policy::rules::{FlowProtocol, NameCheck, PolicyDecision, StreamAction};
use crate::slab::SlabKey;
use crate::tcp::flow_table::{BUFFERS, FlowEnd, FlowKey, FlowStage, TcpFlow};
use crate::tcp::sniff::{MAX_SNIFF_BYTES, SniffResult, sniff, sniff_all};
use hyper::StatusCode;
use msb_spec::{Decision, Direction};
use msb_wire::{FlowKind, NetEvent, Verdict};
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use smoltcp::socket::tcp::State;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use tracing::debug;

/// Edge-triggered events of a host socket; what is left to do is stored in its flow.
pub(crate) const EDGE_TRIGGERED: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// How long first bytes are held that may still become an HTTP request but do not start like one,
/// in microseconds: longer than the gap between two writes of a program, shorter than a person
/// notices.
const SNIFF_TIMEOUT: u64 = 300_000;

/// Whether bytes start like an HTTP request or a TLS ClientHello, so that it is worth waiting for
/// the rest.
fn looks_like_http_or_tls(bytes: &[u8]) -> bool {
    if bytes.first() == Some(&22) {
        return true;
    }
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    let target = bytes.get(method + 1).is_none_or(|byte| matches!(byte, b'/' | b'h' | b'*'));
    method > 0 && bytes.get(method).is_none_or(|byte| *byte == b' ') && target
}

impl Gateway {
    /// Handles a TCP segment of the guest.
    pub(crate) fn on_segment(&mut self, packet: &IpPacket<'_>) {
        let Some(segment) = TcpSegment::read(packet.payload) else { return };
        if segment.source == 0 || segment.target == 0 {
            return;
        }
        let remote = SocketAddr::new(packet.target, segment.target);
        let key = FlowKey { guest: segment.source, remote };
        match self.tcp.find(&key) {
            Some(key) => {
                let connecting = self
                    .tcp
                    .flows
                    .get(key)
                    .is_some_and(|flow| matches!(flow.stage, FlowStage::Connecting(Some(_))));
                match connecting {
                    // The guest has given up, or retransmits its SYN.
                    true if segment.is_rst() => self.close_flow(key, FlowEnd::Reset),
                    true => {}
                    false => {
                        let (tcp, mut shared) = self.tcp_context();
                        tcp.ingest(key, packet.bytes, &mut shared);
                    }
                }
            }
            None if segment.is_syn() => self.open_tcp_flow(key, packet, &segment),
            None if segment.is_rst() => {}
            None => self.link.send(&segment.rst_reply(packet)),
        }
    }

    /// Decides a SYN of the guest and opens a flow for it.
    fn open_tcp_flow(&mut self, key: FlowKey, packet: &IpPacket<'_>, segment: &TcpSegment) {
        let (address, port) = (key.remote.ip(), key.remote.port());
        let protocol = FlowProtocol::Tcp(port);
        let resolved_names = self.resolved_names(address);
        let is_gateway_address = is_gateway(address);
        let mut decision = match is_gateway_address && port == 53 {
            true => PolicyDecision { action: Decision::Allow, ..PolicyDecision::refused("dns") },
            false => self.decide_flow(protocol, address, &resolved_names),
        };
        if decision.allows() && self.is_full() {
            decision = PolicyDecision { name: decision.name, ..too_many_flows() };
        }
        let verdict =
            self.verdict(FlowKind::Tcp, Direction::Egress, &decision, Some(address), Some(port));
        if !decision.allows() {
            self.record(NetEvent::Decided(verdict));
            self.link.send(&segment.rst_reply(packet));
            return;
        }
        let is_dns = is_gateway_address && port == 53;
        let read_first = self.rules.must_read_first(protocol, address, &resolved_names);
        let syn = Some(Box::from(packet.bytes));
        let stage = match (is_dns, read_first) {
            (true, _) => FlowStage::Dns { open: 0 },
            (_, true) => FlowStage::Reading,
            _ => FlowStage::Connecting(syn),
        };
        let mut flow = TcpFlow::new(key, verdict, stage, self.now);
        flow.resolved_names = resolved_names;
        flow.name_check = decision.name_check;
        if is_dns {
            // Each DNS query has a Verdict of its own.
            flow.recorded = Some(false);
        }
        let key = self.tcp.insert(flow);
        self.dns_cache.flow_opened(address);
        if is_dns || read_first {
            let (tcp, mut shared) = self.tcp_context();
            tcp.accept(key, packet.bytes, &mut shared);
            return;
        }
        if !self.connect_upstream(key) {
            self.link.send(&segment.rst_reply(packet));
            self.close_flow(key, FlowEnd::Reset);
        }
    }

    /// Starts to connect a flow to its server, proxy or peer; returns false if that fails at once.
    fn connect_upstream(&mut self, key: SlabKey) -> bool {
        let Some(flow) = self.tcp.flows.get(key) else { return false };
        let (remote, span) = (flow.key.remote, flow_span(&flow.verdict));
        let on_connected = match (self.peer_sandbox(remote.ip()), self.proxy_for(flow)) {
            (Some(name), _) => named_network::connect(name),
            (None, Some(_)) => self.connect_to_proxy(),
            (None, None) => host_socket::connect(host_address(remote)),
        };
        let (socket, on_connected) = match on_connected {
            Ok(connecting) => connecting,
            Err(error) => {
                span.in_scope(|| debug!(%error, "cannot connect"));
                return false;
            }
        };
        if !self.attach_host_socket(key, socket) {
            return false;
        }
        if on_connected {
            self.on_connected(key);
        }
        true
    }

    /// Attaches a host socket to a flow; returns false if epoll cannot watch it.
    fn attach_host_socket(&mut self, key: SlabKey, socket: OwnedFd) -> bool {
        let watched = self.watch(&socket, EventSource::Tcp(key), EDGE_TRIGGERED);
        // While few flows are open, the kernel may buffer as much as it likes, which long round
        // trips need.
        let (usual, large) = (BUFFERS[1].0, BUFFERS[0].1 + BUFFERS[1].1);
        if self.tcp.flows.len() > large {
            host_socket::limit_receive_buffer(&socket, usual);
        }
        if let Some(flow) = self.tcp.flows.get_mut(key) {
            flow.host = Some(socket);
        }
        watched
    }

    /// The host socket is connected, to the server or to the proxy before it.
    fn on_connected(&mut self, key: SlabKey) {
        match self.begin_tunnel(key) {
            true => self.poll_tunnel(key),
            false => self.on_upstream_ready(key),
        }
    }

    /// The server is reachable: accepts the guest's SYN or starts to copy.
    pub(crate) fn on_upstream_ready(&mut self, key: SlabKey) {
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        flow.tunnel = None;
        flow.writable = true;
        flow.readable = true;
        let proven = flow.name_check == NameCheck::None;
        let syn = match &mut flow.stage {
            FlowStage::Connecting(syn) => syn.take(),
            _ => return,
        };
        let Some(syn) = syn else {
            // The guest was accepted earlier, to read its first bytes.
            flow.stage = FlowStage::Open;
            self.tcp.queue(key);
            return;
        };
        flow.stage = if proven { FlowStage::Open } else { FlowStage::Checking };
        if proven {
            self.record_verdict(key);
        }
        let (tcp, mut shared) = self.tcp_context();
        tcp.accept(key, &syn, &mut shared);
    }

    /// Handles events of a flow's host socket.
    pub(crate) fn on_tcp_socket(&mut self, key: SlabKey, flags: EventFlags) {
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        let broken = EventFlags::ERR | EventFlags::HUP;
        // Reported once, perhaps together with the connection itself.
        flow.hung_up |= flags.intersects(EventFlags::RDHUP | broken);
        if flow.tunnel.is_some() {
            return self.poll_tunnel(key);
        }
        if matches!(flow.stage, FlowStage::Connecting(_)) {
            let connect_done = flags.intersects(EventFlags::OUT | broken);
            let Some(host) = flow.host.as_ref().filter(|_| connect_done) else { return };
            match sockopt::socket_error(host) {
                Ok(Ok(())) => self.on_connected(key),
                Ok(Err(error)) | Err(error) => {
                    flow_span(&flow.verdict).in_scope(|| debug!(%error, "cannot connect"));
                    self.on_connect_failed(key);
                }
            }
            return;
        }
        flow.readable |= flags.intersects(EventFlags::IN) || flow.hung_up;
        flow.writable |= flags.intersects(EventFlags::OUT | broken);
        self.tcp.queue(key);
    }

    /// Connecting failed: the guest gets a RST.
    pub(crate) fn on_connect_failed(&mut self, key: SlabKey) {
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        let FlowStage::Connecting(syn) = &mut flow.stage else { return };
        match syn.take() {
            Some(syn) => {
                if let Some(packet) = read_packet(&syn)
                    && let Some(segment) = TcpSegment::read(packet.payload)
                {
                    self.link.send(&segment.rst_reply(&packet));
                }
                self.close_flow(key, FlowEnd::Reset);
            }
            None => self.tcp.abort(key),
        }
    }

    /// Advances a flow: its first bytes are classified, data is copied, timers are set.
    pub(crate) fn poll_flow(&mut self, key: SlabKey) {
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        match flow.stage {
            FlowStage::Reading | FlowStage::Checking => self.classify(key),
            FlowStage::Dns { .. } => self.read_dns_queries(key),
            FlowStage::ConnectingToGuest => {
                if let Some(socket) = flow.socket()
                    && socket.state() == State::Established
                {
                    socket.set_timeout(None);
                    flow.stage = FlowStage::Open;
                    flow.readable = true;
                    flow.writable = true;
                    self.send_accepted(key);
                }
            }
            FlowStage::Refused => {
                // Further data is discarded: unread data would turn the close into a RST, and the
                // response would be lost.
                if let Some(socket) = flow.socket() {
                    while socket.recv_queue() > 0 && socket.recv(|bytes| (bytes.len(), ())).is_ok()
                    {
                    }
                }
            }
            FlowStage::Connecting(_) | FlowStage::Open => {}
        }
        let (tcp, mut shared) = self.tcp_context();
        let ending = tcp.poll(key, &mut shared);
        let flow = self.tcp.flows.get_mut(key);
        let found = flow.and_then(|flow| flow.placeholder_scan.as_ref()?.found());
        if let Some(of) = found {
            self.refuse_placeholder(key, of);
        }
        if let Some(ending) = ending {
            self.close_flow(key, ending);
        }
    }

    /// Sniffs the first bytes of a flow and decides whether it passes, is intercepted or refused.
    fn classify(&mut self, key: SlabKey) {
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        let ended = flow.guest_has_closed();
        let Some(socket) = flow.socket() else { return };
        // The buffer is full: this is longer than any ClientHello or request head that is waited
        // for.
        let full = socket.recv_queue() == socket.recv_capacity();
        let sniffer = if ended || full { sniff_all } else { sniff };
        let (sniffed, has_bytes, looks_like_web) = match socket.peek(MAX_SNIFF_BYTES) {
            Ok(bytes) => (sniffer(bytes), !bytes.is_empty(), looks_like_http_or_tls(bytes)),
            Err(_) => (SniffResult::Incomplete, false, false),
        };
        let (address, port) = (flow.key.remote.ip(), flow.key.remote.port());
        let must_show =
            self.rules.must_show_name(FlowProtocol::Tcp(port), address, flow.name_check);
        let must_show_name = must_show && matches!(port, 80 | 443);
        // On other ports a flow that a name allowed may carry any protocol.
        let guesses =
            !must_show || matches!(flow.name_check, NameCheck::Name | NameCheck::Requests);
        let sniffed = match sniffed {
            // The guest has closed its side, so no more comes.
            SniffResult::Incomplete if ended => SniffResult::Other,
            // The server has sent data first, which HTTP and TLS servers do not.
            SniffResult::Incomplete if has_bytes && !must_show_name && flow.received > 0 => {
                SniffResult::Other
            }
            SniffResult::Incomplete
                if has_bytes && !must_show_name && !looks_like_web && guesses =>
            {
                let Some(since) = flow.held_since else {
                    flow.held_since = Some(self.now);
                    self.timers.set(self.now + SNIFF_TIMEOUT, EventSource::Tcp(key));
                    return;
                };
                if self.now < since + SNIFF_TIMEOUT {
                    return;
                }
                SniffResult::Other
            }
            SniffResult::Incomplete => return,
            other => other,
        };
        let action =
            self.rules.classify(port, address, &flow.resolved_names, flow.name_check, &sniffed);
        match action {
            StreamAction::Pass(name) => {
                if name.is_some() {
                    flow.verdict.name.clone_from(&name);
                    flow.resolved_names = name.into_iter().collect();
                }
                flow.placeholder_scan =
                    self.rules.placeholder_scan(&sniffed, flow.verdict.name.as_ref());
                let reading = matches!(flow.stage, FlowStage::Reading);
                flow.stage = if reading { FlowStage::Connecting(None) } else { FlowStage::Open };
                self.record_verdict(key);
                if reading && !self.connect_upstream(key) {
                    self.tcp.abort(key);
                }
            }
            StreamAction::Intercept(name) => {
                // The server has sent data already, which the Interceptor could not take back.
                let late = flow.received > 0;
                flow.verdict.name = Some(name.clone());
                flow.resolved_names = vec![name.clone()];
                let tls = matches!(sniffed, SniffResult::Tls { .. });
                let possible = (self.can_intercept_tls() || !tls) && !late;
                let memory = self.budget.connection();
                let decision = match (possible && self.interceptor().is_some(), memory) {
                    (true, Some(memory)) => return self.intercept(key, tls, memory),
                    (true, None) => PolicyDecision::refused("the gateway's memory is used up"),
                    (false, _) => PolicyDecision::refused("this flow cannot be intercepted"),
                };
                self.refuse_flow(key, PolicyDecision { name: Some(name), ..decision }, &sniffed);
            }
            StreamAction::Refuse(decision) => self.refuse_flow(key, decision, &sniffed),
        }
    }

    /// Hands a flow over to the Interceptor.
    fn intercept(&mut self, key: SlabKey, tls: bool, memory: ConnectionMemory) {
        self.record_verdict(key);
        let Ok((ours, theirs)) = host_socket::pair() else { return self.tcp.abort(key) };
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        let Some(name) = flow.resolved_names.first().cloned() else { return };
        let (number, address) = (flow.verdict.flow, host_address(flow.key.remote));
        let is_host = self.rules.is_host(flow.key.remote.ip());
        flow.stage = FlowStage::Open;
        flow.writable = true;
        flow.readable = true;
        // The connection that was opened before is dropped with its state.
        flow.hung_up = false;
        if !self.attach_host_socket(key, ours) {
            return self.tcp.abort(key);
        }
        if let Some(interceptor) = self.interceptor() {
            interceptor.take(FlowHandoff {
                flow: number,
                socket: theirs,
                name,
                address,
                is_host,
                tls,
                memory,
            });
        }
        self.tcp.queue(key);
    }

    /// Closes a flow after its first bytes were refused. An HTTP client gets a response with the
    /// reason.
    fn refuse_flow(&mut self, key: SlabKey, decision: PolicyDecision, sniffed: &SniffResult) {
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        flow.verdict.decision = Decision::Deny;
        flow.verdict.rule = decision.rule;
        if decision.name.is_some() {
            flow.verdict.name = decision.name;
        }
        flow.host = None;
        let answer = refusal_page(&flow.verdict);
        let recorded = match (sniffed, flow.socket()) {
            (SniffResult::Http { .. }, Some(socket)) => {
                let written = socket.send_slice(&answer).is_ok();
                socket.close();
                written
            }
            _ => false,
        };
        flow.stage = FlowStage::Refused;
        self.record_verdict(key);
        match recorded {
            true => self.tcp.queue(key),
            false => self.tcp.abort(key),
        }
    }

    /// Closes a flow that was about to send a placeholder, with a response that tells why.
    fn refuse_placeholder(&mut self, key: SlabKey, of: usize) {
        const WHY: &str = "a secret that is for other hosts";
        let secret = self.rules.secret_name(of).unwrap_or_default().to_owned();
        let Some(flow) = self.tcp.flows.get_mut(key) else { return };
        flow.host = None;
        flow.placeholder_scan = None;
        flow.stage = FlowStage::Refused;
        let refused = Verdict {
            decision: Decision::Deny,
            kind: FlowKind::Http,
            rule: WHY.to_owned(),
            secrets: vec![secret.clone()],
            ..flow.verdict.clone()
        };
        let text = because(&display_host(&refused), &format!("{WHY}: `{secret}`"), None);
        if let Some(socket) = flow.socket() {
            // What does not fit into the buffer is dropped.
            let _ = socket.send_slice(&http_page(StatusCode::FORBIDDEN, &text));
            socket.close();
        }
        self.record(NetEvent::Decided(refused));
        self.tcp.queue(key);
    }

    /// Records the Verdict of a flow, once.
    pub(crate) fn record_verdict(&mut self, key: SlabKey) {
        let Some(flow) = self.tcp.flows.get(key) else { return };
        if flow.recorded.is_none() {
            let verdict = flow.verdict.clone();
            let recorded = self.record(NetEvent::Decided(verdict));
            if let Some(flow) = self.tcp.flows.get_mut(key) {
                flow.recorded = Some(recorded);
            }
        }
    }

    /// Closes a flow and records its end.
    pub(crate) fn close_flow(&mut self, key: SlabKey, ending: FlowEnd) {
        self.record_verdict(key);
        let Some(flow) = self.tcp.remove(key) else { return };
        if flow.verdict.direction == Direction::Egress {
            self.dns_cache.flow_closed(flow.key.remote.ip(), self.millis());
        }
        let is_dns = matches!(flow.stage, FlowStage::Dns { .. });
        if flow.verdict.decision == Decision::Allow && !is_dns {
            let (number, recorded) = (flow.verdict.flow, flow.recorded == Some(true));
            self.record_end(number, recorded, flow.sent, flow.received);
        }
        flow.close(ending);
    }
}

/// The refusal when too many flows are open.
pub(crate) fn too_many_flows() -> PolicyDecision {
    PolicyDecision::refused("--net-max-connections")
}

/// The address that the host connects to. The gateway's own address stands for the host's loopback.
pub(crate) fn host_address(remote: SocketAddr) -> SocketAddr {
    let address = match remote.ip().to_canonical() {
        address if !is_gateway(address) => address,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(address, remote.port())
}

/// The name of a flow's target, or its address.
fn display_host(verdict: &Verdict) -> String {
    let name = verdict.name.as_ref().map(ToString::to_string);
    let name = name.or_else(|| verdict.address.map(|address| address.to_string()));
    name.unwrap_or_default()
}

/// The HTTP response to a refused request.
fn refusal_page(verdict: &Verdict) -> Vec<u8> {
    let host = display_host(verdict);
    let text = format!(
        "msb: the network policy of this sandbox refused a request to {host}\n\
         rule: {}\n\
         to allow it, on the host: `msb run --net-rule 'allow@{host}' …`, before other rules, or \
         `msb net NAME --allow '{host}'` while it runs\n",
        verdict.rule
    );
    http_page(StatusCode::FORBIDDEN, &text)
}
