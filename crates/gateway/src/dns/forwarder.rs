//! The DNS forwarder: a query is decided by the policy, sent to the host's servers, and the
//! addresses of the response are filtered.

use crate::dns::message::{self, DnsQuery, DnsRecords, DnsReply, QueryAction, ResponseCode};
use crate::event_loop::Gateway;
use crate::event_source::EventSource;
use crate::frames;
use crate::host_socket;
use crate::policy::rules::PolicyDecision;
use crate::slab::{Slab, SlabKey};
use crate::tcp::flow_table::FlowStage;
use msb_spec::{Decision, Direction, DomainName, addresses};
use msb_wire::{FlowKind, NetEvent};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How long a server has to respond by default, in microseconds.
const SERVER_TIMEOUT: u64 = 2_000_000;
/// How often a query is sent in all.
const MAX_TRIES: usize = 6;
/// Queries that may be pending at once; each costs a socket.
const MAX_PENDING: usize = 512;
/// Clients that may wait for the same response.
const MAX_CLIENTS: usize = 64;
/// The most responses that are cached.
const MAX_CACHED: usize = 1024;
/// The longest response that is cached, in bytes: the recommended size of a DNS datagram.
const MAX_CACHED_LEN: usize = 1232;
/// The longest query over TCP, in bytes: a name takes 255, the rest is options.
const MAX_TCP_QUERY_LEN: usize = 4096;
/// Queries of one TCP connection that may be pending at once.
const MAX_PER_STREAM: u32 = 32;

/// The client that a response is for.
#[derive(Debug, Clone, Copy)]
enum DnsClient {
    /// UDP, to this address of the gateway, from this port of the guest.
    Udp(IpAddr, u16),
    /// TCP, on this flow.
    Tcp(SlabKey),
}

/// A query that was sent to a server.
struct PendingQuery {
    name: DomainName,
    qtype: u16,
    id: u16,
    tries: usize,
    socket: OwnedFd,
    /// Bytes to be written and bytes read, over TCP.
    tcp_buffers: Option<(Vec<u8>, Vec<u8>)>,
    deadline: u64,
    clients: Vec<(DnsClient, DnsQuery)>,
}

struct CachedAnswer {
    since: u64,
    until: u64,
    records: DnsRecords,
}

/// Pending queries, cached responses and the flood guard.
pub(crate) struct DnsForwarder {
    servers: Vec<SocketAddr>,
    /// How long a server has to respond, in microseconds.
    server_timeout: u64,
    /// Whether answers keep private addresses.
    keeps_private: bool,
    pending: Slab<PendingQuery>,
    by_name: HashMap<(DomainName, u16), SlabKey>,
    cached: HashMap<(DomainName, u16), CachedAnswer>,
    flood_guard: FloodGuard,
}

impl DnsForwarder {
    pub(crate) fn new(
        servers: Vec<SocketAddr>,
        timeout: Option<Duration>,
        keeps_private: bool,
    ) -> Self {
        let server_timeout = timeout
            .map_or(SERVER_TIMEOUT, |limit| u64::try_from(limit.as_micros()).unwrap_or(u64::MAX));
        Self {
            servers,
            server_timeout,
            keeps_private,
            pending: Slab::default(),
            by_name: HashMap::new(),
            cached: HashMap::new(),
            flood_guard: FloodGuard::default(),
        }
    }

    /// Forgets all responses: they were filtered by other rules.
    pub(crate) fn clear_cache(&mut self) {
        self.cached.clear();
    }

    fn cache(&mut self, query: &PendingQuery, records: &DnsRecords, now: u64) {
        let ttl = u64::from(records.ttl());
        // A server under the sandbox's control can make its responses as long as TCP allows.
        if ttl == 0 || records.message_len() > MAX_CACHED_LEN {
            return;
        }
        if self.cached.len() >= MAX_CACHED {
            self.cached.retain(|_, cached| cached.until > now);
        }
        if self.cached.len() >= MAX_CACHED {
            self.cached.clear();
        }
        let cached =
            CachedAnswer { since: now, until: now + ttl * 1_000_000, records: records.clone() };
        self.cached.insert((query.name.clone(), query.qtype), cached);
    }
}

impl Gateway {
    /// Handles a DNS query in a UDP datagram.
    pub(crate) fn on_dns_query(&mut self, own: IpAddr, port: u16, message: &[u8]) {
        self.handle_query(message, DnsClient::Udp(own, port));
    }

    /// Reads the DNS queries of a TCP flow.
    pub(crate) fn read_dns_queries(&mut self, key: SlabKey) {
        loop {
            let Some(flow) = self.tcp.flows.get_mut(key) else { return };
            let ended = flow.guest_has_closed();
            let FlowStage::Dns { open: pending } = flow.stage else { return };
            let Some(socket) = flow.socket() else { return };
            let mut head = [0; 2];
            let have = socket.peek_slice(&mut head).unwrap_or(0);
            let length = usize::from(u16::from_be_bytes(head));
            if have == 2 && length > MAX_TCP_QUERY_LEN {
                return self.tcp.abort(key);
            }
            if have < 2 || socket.recv_queue() < 2 + length || pending >= MAX_PER_STREAM {
                if ended && pending == 0 {
                    socket.close();
                }
                return;
            }
            let mut message = vec![0; 2 + length];
            if socket.recv_slice(&mut message).is_err() {
                return;
            }
            flow.stage = FlowStage::Dns { open: pending + 1 };
            self.handle_query(&message[2..], DnsClient::Tcp(key));
        }
    }

    fn handle_query(&mut self, message: &[u8], client: DnsClient) {
        let query = match DnsQuery::parse(message) {
            Ok(query) => query,
            Err(Some(refusal)) => return self.send_response(client, &refusal),
            Err(None) => return self.send_response(client, &[]),
        };
        if let Some(response) = self.local_response(&query) {
            return self.send_response(client, &response);
        }
        let decision = self.rules.decide_dns_query(&query.name);
        if !decision.allows() {
            self.record_dns_verdict(&decision);
            return self.send_response(client, &query.respond(ResponseCode::NxDomain));
        }
        match query.action() {
            QueryAction::Forward => {}
            QueryAction::Empty => {
                return self.send_response(client, &query.respond(ResponseCode::NoError));
            }
            QueryAction::Refuse => {
                return self.send_response(client, &query.respond(ResponseCode::Refused));
            }
        }
        let key = (query.name.clone(), query.qtype);
        if let Some(hit) = self.dns.cached.get(&key)
            && hit.until > self.now
        {
            let age = ((self.now - hit.since) / 1_000_000) as u32;
            let records = hit.records.clone();
            self.record_dns_verdict(&decision);
            return self.send_records(client, &query, &records, age);
        }
        if let Some(key) = self.dns.by_name.get(&key)
            && let Some(pending) = self.dns.pending.get_mut(*key)
        {
            if pending.clients.len() < MAX_CLIENTS {
                pending.clients.push((client, query));
            }
            return;
        }
        if let Some(first) = self.dns.flood_guard.count(&query.name, self.now) {
            if first {
                let flood = PolicyDecision::refused("too many new names of one zone");
                self.record_dns_verdict(&PolicyDecision {
                    name: Some(query.name.clone()),
                    ..flood
                });
            }
            return self.send_response(client, &query.respond(ResponseCode::Refused));
        }
        self.forward(client, query);
    }

    /// The response to names that the gateway itself serves: the host and peers.
    fn local_response(&mut self, query: &DnsQuery) -> Option<Vec<u8>> {
        let is_host = addresses::HOST_NAMES.contains(&query.name.as_str());
        // A sandbox cannot take over a name of the host, such as `host`.
        if let Some(peers) = self.peers.as_mut().filter(|_| !is_host)
            && let Some(address) = peers.find(&query.name)
        {
            let address = (query.qtype == message::A_RECORD).then_some(IpAddr::V4(address));
            return Some(query.respond_with_address(address));
        }
        if !is_host {
            return None;
        }
        if !self.rules.reaches_host() {
            let refused = PolicyDecision::refused("no rule allows the host");
            self.record_dns_verdict(&PolicyDecision { name: Some(query.name.clone()), ..refused });
            return Some(query.respond(ResponseCode::NxDomain));
        }
        let address = match query.qtype {
            message::A_RECORD => Some(IpAddr::V4(addresses::GATEWAY)),
            message::AAAA_RECORD => Some(IpAddr::V6(addresses::GATEWAY6)),
            _ => None,
        };
        Some(query.respond_with_address(address))
    }

    /// Records the Verdict of a query.
    fn record_dns_verdict(&mut self, decision: &PolicyDecision) {
        let verdict = self.verdict(FlowKind::Dns, Direction::Egress, decision, None, None);
        self.record(NetEvent::Decided(verdict));
    }

    fn forward(&mut self, client: DnsClient, query: DnsQuery) {
        let full = self.dns.pending.len() >= MAX_PENDING;
        let socket = match self.dns.servers.first() {
            Some(server) if !full => host_socket::udp(*server).ok(),
            _ => None,
        };
        let Some(socket) = socket else {
            return self.send_response(client, &query.respond(ResponseCode::ServFail));
        };
        let pending = PendingQuery {
            name: query.name.clone(),
            qtype: query.qtype,
            id: 0,
            tries: 0,
            socket,
            tcp_buffers: None,
            deadline: 0,
            clients: vec![(client, query)],
        };
        let name = (pending.name.clone(), pending.qtype);
        let key = self.dns.pending.insert(pending);
        self.dns.by_name.insert(name, key);
        self.send_to_server(key, false);
    }

    /// Sends a query to a server, each time from another port and with another id.
    fn send_to_server(&mut self, key: SlabKey, over_tcp: bool) {
        let Self { dns, epoll, timers, now, .. } = self;
        let Some(query) = dns.pending.get_mut(key) else { return };
        let server = dns.servers[query.tries % dns.servers.len()];
        query.id = host_socket::random() as u16;
        let message = message::build_query(query.id, &query.name, query.qtype);
        let socket = match over_tcp {
            true => host_socket::connect(server).map(|(socket, _)| socket),
            false => host_socket::udp(server),
        };
        query.deadline = now.saturating_add(dns.server_timeout);
        timers.set(query.deadline, EventSource::DnsQuery(key));
        // A server that cannot be reached counts as silent: the timer moves on to the next.
        let Ok(socket) = socket else { return };
        let data = rustix::event::epoll::EventData::new_u64(EventSource::DnsQuery(key).to_bits());
        let room = if over_tcp { EventFlags::OUT } else { EventFlags::empty() };
        msb_log::debug_on_failure!(
            rustix::event::epoll::add(epoll, &socket, data, EventFlags::IN | room),
            "cannot wait for a DNS server"
        );
        query.socket = socket;
        query.tcp_buffers = None;
        if over_tcp {
            let mut out = (message.len() as u16).to_be_bytes().to_vec();
            out.extend_from_slice(&message);
            query.tcp_buffers = Some((out, Vec::new()));
            return;
        }
        msb_log::debug_on_failure!(
            rustix::net::send(&query.socket, &message, SendFlags::NOSIGNAL),
            "cannot send to a DNS server"
        );
    }

    /// The timeout of a server has passed.
    pub(crate) fn on_server_timeout(&mut self, key: SlabKey) {
        let Some(query) = self.dns.pending.get(key) else { return };
        if query.deadline <= self.now {
            self.next_server(key);
        }
    }

    fn next_server(&mut self, key: SlabKey) {
        let max_tries = MAX_TRIES.min(2 * self.dns.servers.len());
        let Some(query) = self.dns.pending.get_mut(key) else { return };
        query.tries += 1;
        tracing::debug!(name = %query.name, tries = query.tries, "a DNS server did not answer");
        match query.tries < max_tries {
            true => self.send_to_server(key, false),
            false => self.finish_query(key, None),
        }
    }

    /// Reads the response of a server.
    pub(crate) fn on_dns_response(&mut self, key: SlabKey) {
        let Some(query) = self.dns.pending.get_mut(key) else { return };
        let reply = match query.tcp_buffers.is_some() {
            true => match query.poll_tcp() {
                Some(reply) => reply,
                None => return self.watch_for_response(key),
            },
            false => {
                let mut buffer = [0; 4096];
                match rustix::net::recv(&query.socket, &mut buffer, RecvFlags::empty()) {
                    Ok((n, _)) => {
                        message::parse_response(&buffer[..n], query.id, &query.name, query.qtype)
                    }
                    Err(Errno::AGAIN | Errno::INTR) => return,
                    Err(_) => DnsReply::Failed,
                }
            }
        };
        match reply {
            // Perhaps a forged message: the real response may still come.
            DnsReply::Unrelated => {}
            DnsReply::Truncated => self.send_to_server(key, true),
            DnsReply::Failed => self.next_server(key),
            DnsReply::Records(records) => self.finish_query(key, Some(records)),
        }
    }

    /// Once the query is written, waits for the response only.
    fn watch_for_response(&mut self, key: SlabKey) {
        let Some(query) = self.dns.pending.get(key) else { return };
        if query.tcp_buffers.as_ref().is_some_and(|(out, _)| out.is_empty()) {
            let data =
                rustix::event::epoll::EventData::new_u64(EventSource::DnsQuery(key).to_bits());
            let epoll = &self.epoll;
            msb_log::debug_on_failure!(
                rustix::event::epoll::modify(epoll, &query.socket, data, EventFlags::IN),
                "cannot wait for a DNS server"
            );
        }
    }

    /// Answers all clients of a query, with the records or with a failure.
    fn finish_query(&mut self, key: SlabKey, records: Option<DnsRecords>) {
        let Some(query) = self.dns.pending.remove(key) else { return };
        self.dns.by_name.remove(&(query.name.clone(), query.qtype));
        let decision = self.rules.decide_dns_query(&query.name);
        let Some(mut records) = records else {
            self.record_dns_verdict(&decision);
            for (client, query) in &query.clients {
                self.send_response(*client, &query.respond(ResponseCode::ServFail));
            }
            return;
        };
        let keeps_private = self.dns.keeps_private;
        let all_removed =
            records.retain_addresses(|address| self.rules.allows_answer(address, keeps_private));
        // The rules may have changed since the query was sent.
        if all_removed || !decision.allows() {
            let private = PolicyDecision {
                action: Decision::Deny,
                rule: "private answer".to_owned(),
                ..decision.clone()
            };
            self.record_dns_verdict(if all_removed { &private } else { &decision });
            for (client, query) in &query.clients {
                self.send_response(*client, &query.respond(ResponseCode::NxDomain));
            }
            return;
        }
        self.dns.cache(&query, &records, self.now);
        for (client, query) in &query.clients {
            self.record_dns_verdict(&decision);
            self.send_records(*client, query, &records, 0);
        }
    }

    fn send_records(
        &mut self,
        client: DnsClient,
        query: &DnsQuery,
        records: &DnsRecords,
        age: u32,
    ) {
        let now = self.millis();
        for (address, ttl) in records.addresses() {
            self.dns_cache.insert(&query.name, address, ttl.saturating_sub(age), now);
        }
        let datagram = matches!(client, DnsClient::Udp(..));
        self.send_response(client, &query.respond_with_records(records, age, datagram));
    }

    /// Sends a response to a client; an empty message is not sent.
    fn send_response(&mut self, client: DnsClient, message: &[u8]) {
        match client {
            DnsClient::Udp(own, port) => {
                if !message.is_empty() {
                    let own = SocketAddr::new(own, 53);
                    frames::send_datagram(&mut self.link, own, port, message);
                }
            }
            DnsClient::Tcp(key) => {
                let Some(flow) = self.tcp.flows.get_mut(key) else { return };
                if let FlowStage::Dns { open: pending } = &mut flow.stage {
                    *pending = pending.saturating_sub(1);
                }
                if let Some(socket) = flow.socket()
                    && let Ok(length) = u16::try_from(message.len())
                    && length > 0
                {
                    let room = socket.send_capacity() - socket.send_queue();
                    // Responses are dropped for a client that does not read them.
                    if room >= message.len() + 2 {
                        let _ = socket.send_slice(&length.to_be_bytes());
                        let _ = socket.send_slice(message);
                    }
                }
                self.tcp.queue(key);
            }
        }
    }
}

impl PendingQuery {
    /// Writes the query and reads the response over TCP; `None` while that is incomplete.
    fn poll_tcp(&mut self) -> Option<DnsReply> {
        let (out, input) = self.tcp_buffers.as_mut()?;
        while !out.is_empty() {
            match rustix::net::send(&self.socket, out, SendFlags::NOSIGNAL) {
                Ok(n) => drop(out.drain(..n)),
                Err(Errno::AGAIN | Errno::NOTCONN) => return None,
                Err(Errno::INTR) => {}
                Err(_) => return Some(DnsReply::Failed),
            }
        }
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => return Some(DnsReply::Failed),
                Ok(n) => input.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                Err(_) => return Some(DnsReply::Failed),
            }
            let Some(head) = input.first_chunk::<2>() else { continue };
            let length = usize::from(u16::from_be_bytes(*head));
            let Some(message) = input.get(2..2 + length) else { continue };
            let reply = match message::parse_response(message, self.id, &self.name, self.qtype) {
                // On a TCP connection only the server itself can write.
                DnsReply::Unrelated | DnsReply::Truncated => DnsReply::Failed,
                reply => reply,
            };
            return Some(reply);
        }
    }
}

/// Limits new names of one zone: data can leave the sandbox as labels of queries.
#[derive(Default)]
struct FloodGuard {
    zones: HashMap<String, ZoneCount>,
    state: RandomState,
}

struct ZoneCount {
    since: u64,
    /// Hashes of the names that were queried.
    names: HashSet<u64>,
    reported: bool,
}

/// The length of the counting window, in microseconds.
const FLOOD_WINDOW: u64 = 10_000_000;
/// New names of one zone that are allowed in that time.
const MAX_NEW_NAMES: usize = 100;
/// The most zones that are counted at once.
const MAX_ZONES: usize = 1024;

impl FloodGuard {
    /// Counts a name. `None` if it is allowed; otherwise whether it is the first one refused in
    /// this window.
    fn count(&mut self, name: &DomainName, now: u64) -> Option<bool> {
        let text = name.as_str();
        let dots = text.rmatch_indices('.').nth(1);
        let zone = dots.map_or(text, |(at, _)| &text[at + 1..]);
        if self.zones.len() >= MAX_ZONES && !self.zones.contains_key(zone) {
            self.zones.retain(|_, zone| now - zone.since < FLOOD_WINDOW);
            if self.zones.len() >= MAX_ZONES {
                self.zones.clear();
            }
        }
        let fresh = || ZoneCount { since: now, names: HashSet::new(), reported: false };
        let counted = self.zones.entry(zone.to_owned()).or_insert_with(fresh);
        if now - counted.since >= FLOOD_WINDOW {
            *counted = fresh();
        }
        let hash = self.state.hash_one(text);
        if counted.names.contains(&hash) {
            return None;
        }
        if counted.names.len() >= MAX_NEW_NAMES {
            return Some(!std::mem::replace(&mut counted.reported, true));
        }
        counted.names.insert(hash);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_new_names_is_reported_once() {
        let mut flood_guard = FloodGuard::default();
        let name = |n: usize| DomainName::parse(&format!("x{n}.evil.example")).unwrap();
        for n in 0..MAX_NEW_NAMES {
            assert_eq!(flood_guard.count(&name(n), 5), None);
        }
        assert_eq!(flood_guard.count(&name(MAX_NEW_NAMES), 6), Some(true));
        assert_eq!(flood_guard.count(&name(MAX_NEW_NAMES + 1), 7), Some(false));
        assert_eq!(flood_guard.count(&name(3), 8), None);
        let other = DomainName::parse("good.test").unwrap();
        assert_eq!(flood_guard.count(&other, 8), None);
        assert_eq!(flood_guard.count(&name(MAX_NEW_NAMES), 5 + FLOOD_WINDOW), None);
    }
}
