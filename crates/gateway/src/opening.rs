//! How TCP flows begin and end: a Verdict first, then somebody outside, then the sandbox.

use crate::budget::Share;
use crate::frames::{Packet, Segment, read_packet};
use crate::gateway::Gateway;
use crate::intercept::Intercepted;
use crate::intercept::refusal::{because, page};
use crate::joined;
use crate::outside;
use crate::place::is_gateway;
use crate::policy::{Flow, Judgement, Proof, Seen};
use crate::slots::Key;
use crate::sniff::{LIMIT, Sniffed, sniff, sniff_all};
use crate::source::Source;
use crate::streams::{BUFFERS, Ending, Ends, Stage, Stream};
use hyper::StatusCode;
use msb_spec::{Decision, Direction};
use msb_wire::{FlowKind, NetEvent, Verdict};
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use smoltcp::socket::tcp::State;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

/// A socket is told of once when it changes: what is left to do is remembered in its flow.
pub(crate) const ONCE: EventFlags =
    EventFlags::IN.union(EventFlags::OUT).union(EventFlags::RDHUP).union(EventFlags::ET);

/// How long bytes are held that could become a request and do not begin like one, in
/// microseconds: longer than a program takes between two writes, shorter than a person notices.
const GUESSING: u64 = 300_000;

/// Whether bytes begin as requests and hellos do, so that the rest is worth any wait.
fn is_of_the_web(bytes: &[u8]) -> bool {
    if bytes.first() == Some(&22) {
        return true;
    }
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    let target = bytes.get(method + 1).is_none_or(|byte| matches!(byte, b'/' | b'h' | b'*'));
    method > 0 && bytes.get(method).is_none_or(|byte| *byte == b' ') && target
}

impl Gateway {
    /// A segment of the sandbox.
    pub(crate) fn on_segment(&mut self, packet: &Packet<'_>) {
        let Some(segment) = Segment::read(packet.body) else { return };
        if segment.source == 0 || segment.target == 0 {
            return;
        }
        let remote = SocketAddr::new(packet.target, segment.target);
        let ends = Ends { guest: segment.source, remote };
        match self.streams.find(&ends) {
            Some(key) => {
                let connecting = self
                    .streams
                    .flows
                    .get(key)
                    .is_some_and(|stream| matches!(stream.stage, Stage::Connecting(Some(_))));
                match connecting {
                    // It asks again, or no longer.
                    true if segment.resets() => self.finish(key, Ending::Reset),
                    true => {}
                    false => {
                        let (streams, mut shared) = self.shared();
                        streams.ingest(key, packet.whole, &mut shared);
                    }
                }
            }
            None if segment.opens() => self.open(ends, packet, &segment),
            None if segment.resets() => {}
            None => self.link.send(&segment.reset(packet)),
        }
    }

    /// The sandbox asks for a stream.
    fn open(&mut self, ends: Ends, packet: &Packet<'_>, segment: &Segment) {
        let (address, port) = (ends.remote.ip(), ends.remote.port());
        let flow = Flow::Tcp(port);
        let tied = self.tied(address);
        let own = is_gateway(address);
        let mut judgement = match own && port == 53 {
            true => Judgement { decision: Decision::Allow, ..Judgement::refused("dns") },
            false => self.judge(flow, address, &tied),
        };
        if judgement.allows() && self.is_full() {
            judgement = Judgement { name: judgement.name, ..full() };
        }
        let verdict =
            self.verdict(FlowKind::Tcp, Direction::Egress, &judgement, Some(address), Some(port));
        if !judgement.allows() {
            self.tell(NetEvent::Decided(verdict));
            self.link.send(&segment.reset(packet));
            return;
        }
        let names = own && port == 53;
        let reads = self.rules.reads_first(flow, address, &tied);
        let syn = Some(Box::from(packet.whole));
        let stage = match (names, reads) {
            (true, _) => Stage::Names { open: 0 },
            (_, true) => Stage::Reading,
            _ => Stage::Connecting(syn),
        };
        let mut stream = Stream::new(ends, verdict, stage, self.now);
        stream.tied = tied;
        stream.proof = judgement.proof;
        if names {
            // Each question has a verdict of its own.
            stream.told = Some(false);
        }
        let key = self.streams.insert(stream);
        self.names.opened(address);
        if names || reads {
            let (streams, mut shared) = self.shared();
            streams.accept(key, packet.whole, &mut shared);
            return;
        }
        if !self.connect(key) {
            self.link.send(&segment.reset(packet));
            self.finish(key, Ending::Reset);
        }
    }

    /// Begins to connect to whom a flow is for; false if that is hopeless.
    fn connect(&mut self, key: Key) -> bool {
        let Some(stream) = self.streams.flows.get(key) else { return false };
        let remote = stream.ends.remote;
        let connected = match (self.neighbour(remote.ip()), self.proxy_for(stream)) {
            (Some(name), _) => joined::connect(name),
            (None, Some(_)) => self.connect_to_proxy(),
            (None, None) => outside::connect(outer(remote)),
        };
        let Ok((socket, connected)) = connected else { return false };
        if !self.attach(key, socket) {
            return false;
        }
        if connected {
            self.connected(key);
        }
        true
    }

    /// Gives a flow its socket of the host.
    fn attach(&mut self, key: Key, socket: OwnedFd) -> bool {
        let watched = self.watch(&socket, Source::Tcp(key), ONCE);
        // Few flows may hold as much as the kernel likes, for the sake of long ways.
        let (usual, large) = (BUFFERS[1].0, BUFFERS[0].1 + BUFFERS[1].1);
        if self.streams.flows.len() > large {
            outside::bound_unread(&socket, usual);
        }
        if let Some(stream) = self.streams.flows.get_mut(key) {
            stream.host = Some(socket);
        }
        watched
    }

    /// A socket of the host is connected, to whom the flow is for or to the proxy on the way.
    fn connected(&mut self, key: Key) {
        match self.begin_tunnel(key) {
            true => self.dig(key),
            false => self.joined(key),
        }
    }

    /// Whom it is for has answered: so can the sandbox be.
    pub(crate) fn joined(&mut self, key: Key) {
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        stream.tunnel = None;
        stream.writable = true;
        stream.readable = true;
        let proven = stream.proof == Proof::None;
        let asked = match &mut stream.stage {
            Stage::Connecting(asked) => asked.take(),
            _ => return,
        };
        let Some(syn) = asked else {
            // Its first bytes were seen before it was connected.
            stream.stage = Stage::Open;
            self.streams.queue(key);
            return;
        };
        stream.stage = if proven { Stage::Open } else { Stage::Proving };
        if proven {
            self.announce(key);
        }
        let (streams, mut shared) = self.shared();
        streams.accept(key, &syn, &mut shared);
    }

    /// Something happened to a flow's socket of the host.
    pub(crate) fn on_stream(&mut self, key: Key, flags: EventFlags) {
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        let broken = EventFlags::ERR | EventFlags::HUP;
        // Told once, maybe together with the connection itself.
        stream.hung_up |= flags.intersects(EventFlags::RDHUP | broken);
        if stream.tunnel.is_some() {
            return self.dig(key);
        }
        if matches!(stream.stage, Stage::Connecting(_)) {
            let settled = flags.intersects(EventFlags::OUT | broken);
            let Some(host) = stream.host.as_ref().filter(|_| settled) else { return };
            match sockopt::socket_error(host) {
                Ok(Ok(())) => self.connected(key),
                _ => self.fail(key),
            }
            return;
        }
        stream.readable |= flags.intersects(EventFlags::IN) || stream.hung_up;
        stream.writable |= flags.intersects(EventFlags::OUT | broken);
        self.streams.queue(key);
    }

    /// Nobody outside can be connected to.
    pub(crate) fn fail(&mut self, key: Key) {
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        let Stage::Connecting(asked) = &mut stream.stage else { return };
        match asked.take() {
            Some(syn) => {
                if let Some(packet) = read_packet(&syn)
                    && let Some(segment) = Segment::read(packet.body)
                {
                    self.link.send(&segment.reset(&packet));
                }
                self.finish(key, Ending::Reset);
            }
            None => self.streams.abort(key),
        }
    }

    /// Looks after a flow: what was read is looked at, moved, answered.
    pub(crate) fn tend(&mut self, key: Key) {
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        match stream.stage {
            Stage::Reading | Stage::Proving => self.look(key),
            Stage::Names { .. } => self.read_questions(key),
            Stage::Reaching => {
                if let Some(socket) = stream.socket()
                    && socket.state() == State::Established
                {
                    socket.set_timeout(None);
                    stream.stage = Stage::Open;
                    stream.readable = true;
                    stream.writable = true;
                    self.greet(key);
                }
            }
            Stage::Refused => {
                // What still comes is thrown away, so that the answer is not lost to a reset.
                if let Some(socket) = stream.socket() {
                    while socket.recv_queue() > 0 && socket.recv(|bytes| (bytes.len(), ())).is_ok()
                    {
                    }
                }
            }
            Stage::Connecting(_) | Stage::Open => {}
        }
        let (streams, mut shared) = self.shared();
        let ending = streams.tend(key, &mut shared);
        let stream = self.streams.flows.get_mut(key);
        let found = stream.and_then(|stream| stream.watching.as_ref()?.found());
        if let Some(of) = found {
            self.refuse_secret(key, of);
        }
        if let Some(ending) = ending {
            self.finish(key, ending);
        }
    }

    /// Looks at the first bytes of a flow, and decides what becomes of it.
    fn look(&mut self, key: Key) {
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        let ended = stream.has_ended();
        let Some(socket) = stream.socket() else { return };
        // Nothing more fits: it is longer than any hello or head that is waited for.
        let full = socket.recv_queue() == socket.recv_capacity();
        let look = if ended || full { sniff_all } else { sniff };
        let (sniffed, begun, web) = match socket.peek(LIMIT) {
            Ok(bytes) => (look(bytes), !bytes.is_empty(), is_of_the_web(bytes)),
            Err(_) => (Sniffed::More, false, false),
        };
        let (address, port) = (stream.ends.remote.ip(), stream.ends.remote.port());
        let shows = self.rules.must_show(Flow::Tcp(port), address, stream.proof);
        let must_show = shows && matches!(port, 80 | 443);
        // Elsewhere, what is allowed by its name is for that address, whatever it is.
        let guesses = !shows || matches!(stream.proof, Proof::Name | Proof::Requests);
        let sniffed = match sniffed {
            // Nothing more comes: it is what it is.
            Sniffed::More if ended => Sniffed::Other,
            // Servers of HTTP and TLS never speak first.
            Sniffed::More if begun && !must_show && stream.received > 0 => Sniffed::Other,
            Sniffed::More if begun && !must_show && !web && guesses => {
                let Some(since) = stream.held_since else {
                    stream.held_since = Some(self.now);
                    self.timers.set(self.now + GUESSING, Source::Tcp(key));
                    return;
                };
                if self.now < since + GUESSING {
                    return;
                }
                Sniffed::Other
            }
            Sniffed::More => return,
            other => other,
        };
        let seen = self.rules.look(port, address, &stream.tied, stream.proof, &sniffed);
        match seen {
            Seen::Pass(name) => {
                if name.is_some() {
                    stream.verdict.name.clone_from(&name);
                    stream.tied = name.into_iter().collect();
                }
                stream.watching = self.rules.watching(&sniffed, stream.verdict.name.as_ref());
                let reading = matches!(stream.stage, Stage::Reading);
                stream.stage = if reading { Stage::Connecting(None) } else { Stage::Open };
                self.announce(key);
                if reading && !self.connect(key) {
                    self.streams.abort(key);
                }
            }
            Seen::Intercept(name) => {
                // What the server said before cannot be unsaid, and it was not meant to speak.
                let late = stream.received > 0;
                stream.verdict.name = Some(name.clone());
                stream.tied = vec![name.clone()];
                let tls = matches!(sniffed, Sniffed::Tls { .. });
                let possible = (self.has_authority() || !tls) && !late;
                let share = self.budget.share();
                let judgement = match (possible && self.interceptor().is_some(), share) {
                    (true, Some(share)) => return self.divert(key, tls, share),
                    (true, None) => Judgement::refused("the memory of the gateway is in use"),
                    (false, _) => Judgement::refused("it cannot be looked into"),
                };
                self.refuse(key, Judgement { name: Some(name), ..judgement }, &sniffed);
            }
            Seen::Refuse(judgement) => self.refuse(key, judgement, &sniffed),
        }
    }

    /// Hands a flow over to be looked into.
    fn divert(&mut self, key: Key, tls: bool, share: Share) {
        self.announce(key);
        let Ok((ours, theirs)) = outside::pair() else { return self.streams.abort(key) };
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        let Some(name) = stream.tied.first().cloned() else { return };
        let (flow, address) = (stream.verdict.flow, outer(stream.ends.remote));
        let is_host = self.rules.is_host(stream.ends.remote.ip());
        stream.stage = Stage::Open;
        stream.writable = true;
        stream.readable = true;
        // Whoever was connected to before is let go, with all that was heard of it.
        stream.hung_up = false;
        if !self.attach(key, ours) {
            return self.streams.abort(key);
        }
        if let Some(interceptor) = self.interceptor() {
            interceptor.take(Intercepted {
                flow,
                socket: theirs,
                name,
                address,
                is_host,
                tls,
                share,
            });
        }
        self.streams.queue(key);
    }

    /// Ends a flow that showed what may not pass; who speaks HTTP is told why.
    fn refuse(&mut self, key: Key, judgement: Judgement, sniffed: &Sniffed) {
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        stream.verdict.decision = Decision::Deny;
        stream.verdict.rule = judgement.rule;
        if judgement.name.is_some() {
            stream.verdict.name = judgement.name;
        }
        stream.host = None;
        let answer = refusal(&stream.verdict);
        let told = match (sniffed, stream.socket()) {
            (Sniffed::Http { .. }, Some(socket)) => {
                let written = socket.send_slice(&answer).is_ok();
                socket.close();
                written
            }
            _ => false,
        };
        stream.stage = Stage::Refused;
        self.announce(key);
        match told {
            true => self.streams.queue(key),
            false => self.streams.abort(key),
        }
    }

    /// Ends a flow with a placeholder in what was to leave, and tells why.
    fn refuse_secret(&mut self, key: Key, of: usize) {
        const WHY: &str = "a secret that is for other hosts";
        let secret = self.rules.secret(of).unwrap_or_default().to_owned();
        let Some(stream) = self.streams.flows.get_mut(key) else { return };
        stream.host = None;
        stream.watching = None;
        stream.stage = Stage::Refused;
        let refused = Verdict {
            decision: Decision::Deny,
            kind: FlowKind::Http,
            rule: WHY.to_owned(),
            secrets: vec![secret.clone()],
            ..stream.verdict.clone()
        };
        let text = because(&host_of(&refused), &format!("{WHY}: `{secret}`"), None);
        if let Some(socket) = stream.socket() {
            // What does not fit is lost with the rest of the flow.
            let _ = socket.send_slice(&page(StatusCode::FORBIDDEN, &text));
            socket.close();
        }
        self.tell(NetEvent::Decided(refused));
        self.streams.queue(key);
    }

    /// Tells the verdict of a flow, once.
    pub(crate) fn announce(&mut self, key: Key) {
        let Some(stream) = self.streams.flows.get(key) else { return };
        if stream.told.is_none() {
            let verdict = stream.verdict.clone();
            let told = self.tell(NetEvent::Decided(verdict));
            if let Some(stream) = self.streams.flows.get_mut(key) {
                stream.told = Some(told);
            }
        }
    }

    /// A flow is over.
    pub(crate) fn finish(&mut self, key: Key, ending: Ending) {
        self.announce(key);
        let Some(stream) = self.streams.remove(key) else { return };
        if stream.verdict.direction == Direction::Egress {
            self.names.closed(stream.ends.remote.ip(), self.millis());
        }
        let questions = matches!(stream.stage, Stage::Names { .. });
        if stream.verdict.decision == Decision::Allow && !questions {
            let (flow, told) = (stream.verdict.flow, stream.told == Some(true));
            self.tell_end(flow, told, stream.sent, stream.received);
        }
        stream.close(ending);
    }
}

/// Too many flows.
pub(crate) fn full() -> Judgement {
    Judgement::refused("--net-max-connections")
}

/// Where the host reaches whom the sandbox calls by this address.
pub(crate) fn outer(remote: SocketAddr) -> SocketAddr {
    let address = match remote.ip().to_canonical() {
        address if !is_gateway(address) => address,
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    SocketAddr::new(address, remote.port())
}

/// How whoever a flow is for is called.
fn host_of(verdict: &Verdict) -> String {
    let name = verdict.name.as_ref().map(ToString::to_string);
    let name = name.or_else(|| verdict.address.map(|address| address.to_string()));
    name.unwrap_or_default()
}

/// What a request that may not pass is answered.
fn refusal(verdict: &Verdict) -> Vec<u8> {
    let host = host_of(verdict);
    let text = format!(
        "msb: the network policy of this sandbox refused a request to {host}\n\
         rule: {}\n\
         to allow it, on the host: `msb run --net-rule 'allow@{host}' …`, before other rules, or \
         `msb net NAME --allow '{host}'` while it runs\n",
        verdict.rule
    );
    page(StatusCode::FORBIDDEN, &text)
}
