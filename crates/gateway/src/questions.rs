//! Questions for names: decided, asked of the host's servers, and what they say is filtered.

use crate::dns::{self, Asked, Outcome, Records, Said, Treatment};
use crate::frames;
use crate::gateway::Gateway;
use crate::outside;
use crate::policy::Judgement;
use crate::slots::{Key, Slots};
use crate::source::Source;
use crate::streams::Stage;
use msb_spec::{Decision, Direction, DomainName, addresses};
use msb_wire::{FlowKind, NetEvent};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

/// How long a server has for its answer, in microseconds.
const PATIENCE: u64 = 2_000_000;
/// How often a question is asked in all.
const TRIES: usize = 6;
/// Questions that may be open at once; each costs a socket.
const MOST_OPEN: usize = 512;
/// Who may wait for the same answer.
const MOST_ASKERS: usize = 64;
/// Answers that are remembered.
const MOST_REMEMBERED: usize = 1024;
/// The longest answer that is remembered: what a datagram is advised to hold.
const LONGEST_REMEMBERED: usize = 1232;
/// The longest question that a stream may hold: a name has 255 bytes, the rest is options.
const LONGEST_QUESTION: usize = 4096;
/// Questions of one stream that may be open at once.
const MOST_OF_STREAM: u32 = 32;

/// Whom an answer is for.
#[derive(Debug, Clone, Copy)]
enum Asker {
    /// A datagram to this address of ours, from this port.
    Datagram(IpAddr, u16),
    /// A stream.
    Stream(Key),
}

/// A question that a server was asked.
struct Question {
    name: DomainName,
    kind: u16,
    id: u16,
    tries: usize,
    socket: OwnedFd,
    /// What was to be written and what was read, over TCP.
    stream: Option<(Vec<u8>, Vec<u8>)>,
    deadline: u64,
    askers: Vec<(Asker, Asked)>,
}

struct Remembered {
    since: u64,
    until: u64,
    records: Records,
}

/// All questions.
pub(crate) struct Questions {
    servers: Vec<SocketAddr>,
    open: Slots<Question>,
    asked: HashMap<(DomainName, u16), Key>,
    remembered: HashMap<(DomainName, u16), Remembered>,
    floods: Floods,
}

impl Questions {
    pub(crate) fn new(servers: Vec<SocketAddr>) -> Self {
        Self {
            servers,
            open: Slots::default(),
            asked: HashMap::new(),
            remembered: HashMap::new(),
            floods: Floods::default(),
        }
    }

    /// What was answered by other rules does not count any more.
    pub(crate) fn forget(&mut self) {
        self.remembered.clear();
    }

    fn remember(&mut self, question: &Question, records: &Records, now: u64) {
        let ttl = u64::from(records.ttl());
        // A server of the sandbox's own can make its answers as long as a stream allows.
        if ttl == 0 || records.size() > LONGEST_REMEMBERED {
            return;
        }
        if self.remembered.len() >= MOST_REMEMBERED {
            self.remembered.retain(|_, remembered| remembered.until > now);
        }
        if self.remembered.len() >= MOST_REMEMBERED {
            self.remembered.clear();
        }
        let remembered =
            Remembered { since: now, until: now + ttl * 1_000_000, records: records.clone() };
        self.remembered.insert((question.name.clone(), question.kind), remembered);
    }
}

impl Gateway {
    /// A question in a datagram.
    pub(crate) fn on_question(&mut self, own: IpAddr, port: u16, message: &[u8]) {
        self.ask(message, Asker::Datagram(own, port));
    }

    /// Reads questions that came on a stream.
    pub(crate) fn read_questions(&mut self, key: Key) {
        loop {
            let Some(stream) = self.streams.flows.get_mut(key) else { return };
            let ended = stream.has_ended();
            let Stage::Names { open } = stream.stage else { return };
            let Some(socket) = stream.socket() else { return };
            let mut head = [0; 2];
            let have = socket.peek_slice(&mut head).unwrap_or(0);
            let length = usize::from(u16::from_be_bytes(head));
            if have == 2 && length > LONGEST_QUESTION {
                return self.streams.abort(key);
            }
            if have < 2 || socket.recv_queue() < 2 + length || open >= MOST_OF_STREAM {
                if ended && open == 0 {
                    socket.close();
                }
                return;
            }
            let mut message = vec![0; 2 + length];
            if socket.recv_slice(&mut message).is_err() {
                return;
            }
            stream.stage = Stage::Names { open: open + 1 };
            self.ask(&message[2..], Asker::Stream(key));
        }
    }

    fn ask(&mut self, message: &[u8], asker: Asker) {
        let asked = match Asked::read(message) {
            Ok(asked) => asked,
            Err(Some(refusal)) => return self.answer(asker, &refusal),
            Err(None) => return self.answer(asker, &[]),
        };
        if let Some(answer) = self.own_answer(&asked) {
            return self.answer(asker, &answer);
        }
        let judgement = self.rules.judge_question(&asked.name);
        if !judgement.allows() {
            self.decide(&judgement);
            return self.answer(asker, &asked.answer(Outcome::NoSuchName));
        }
        match asked.treatment() {
            Treatment::Forward => {}
            Treatment::Empty => return self.answer(asker, &asked.answer(Outcome::Fine)),
            Treatment::Refuse => return self.answer(asker, &asked.answer(Outcome::Refused)),
        }
        let place = (asked.name.clone(), asked.kind);
        if let Some(found) = self.questions.remembered.get(&place)
            && found.until > self.now
        {
            let age = ((self.now - found.since) / 1_000_000) as u32;
            let records = found.records.clone();
            self.decide(&judgement);
            return self.answer_with(asker, &asked, &records, age);
        }
        if let Some(key) = self.questions.asked.get(&place)
            && let Some(open) = self.questions.open.get_mut(*key)
        {
            if open.askers.len() < MOST_ASKERS {
                open.askers.push((asker, asked));
            }
            return;
        }
        if let Some(first) = self.questions.floods.count(&asked.name, self.now) {
            if first {
                let flood = Judgement::refused("too many new names of one zone");
                self.decide(&Judgement { name: Some(asked.name.clone()), ..flood });
            }
            return self.answer(asker, &asked.answer(Outcome::Refused));
        }
        self.begin(asker, asked);
    }

    /// What the gateway itself knows.
    fn own_answer(&mut self, asked: &Asked) -> Option<Vec<u8>> {
        let is_host = addresses::HOST_NAMES.contains(&asked.name.as_str());
        // No sandbox takes the place of the host by a name such as `host`.
        if let Some(neighbours) = self.neighbours.as_mut().filter(|_| !is_host)
            && let Some(address) = neighbours.find(&asked.name)
        {
            let address = (asked.kind == dns::A_RECORD).then_some(IpAddr::V4(address));
            return Some(asked.answer_address(address));
        }
        if !is_host {
            return None;
        }
        if !self.rules.reaches_host() {
            let refused = Judgement::refused("the host is not allowed");
            self.decide(&Judgement { name: Some(asked.name.clone()), ..refused });
            return Some(asked.answer(Outcome::NoSuchName));
        }
        let address = match asked.kind {
            dns::A_RECORD => Some(IpAddr::V4(addresses::GATEWAY)),
            dns::AAAA_RECORD => Some(IpAddr::V6(addresses::GATEWAY6)),
            _ => None,
        };
        Some(asked.answer_address(address))
    }

    /// Records what became of a question.
    fn decide(&mut self, judgement: &Judgement) {
        let verdict = self.verdict(FlowKind::Dns, Direction::Egress, judgement, None, None);
        self.tell(NetEvent::Decided(verdict));
    }

    fn begin(&mut self, asker: Asker, asked: Asked) {
        let full = self.questions.open.len() >= MOST_OPEN;
        let socket = match self.questions.servers.first() {
            Some(server) if !full => outside::datagrams(*server).ok(),
            _ => None,
        };
        let Some(socket) = socket else {
            return self.answer(asker, &asked.answer(Outcome::Failed));
        };
        let question = Question {
            name: asked.name.clone(),
            kind: asked.kind,
            id: 0,
            tries: 0,
            socket,
            stream: None,
            deadline: 0,
            askers: vec![(asker, asked)],
        };
        let place = (question.name.clone(), question.kind);
        let key = self.questions.open.insert(question);
        self.questions.asked.insert(place, key);
        self.try_server(key, false);
    }

    /// Asks a server; each time from another port and by another number.
    fn try_server(&mut self, key: Key, stream: bool) {
        let Self { questions, epoll, timers, now, .. } = self;
        let Some(question) = questions.open.get_mut(key) else { return };
        let server = questions.servers[question.tries % questions.servers.len()];
        question.id = outside::random() as u16;
        let message = dns::question(question.id, &question.name, question.kind);
        let socket = match stream {
            true => outside::connect(server).map(|(socket, _)| socket),
            false => outside::datagrams(server),
        };
        question.deadline = *now + PATIENCE;
        timers.set(question.deadline, Source::Question(key));
        // Who cannot be asked is one who does not answer: the clock brings the next.
        let Ok(socket) = socket else { return };
        let data = rustix::event::epoll::EventData::new_u64(Source::Question(key).to_bits());
        let room = if stream { EventFlags::OUT } else { EventFlags::empty() };
        let _ = rustix::event::epoll::add(epoll, &socket, data, EventFlags::IN | room);
        question.socket = socket;
        question.stream = None;
        if stream {
            let mut out = (message.len() as u16).to_be_bytes().to_vec();
            out.extend_from_slice(&message);
            question.stream = Some((out, Vec::new()));
            return;
        }
        let _ = rustix::net::send(&question.socket, &message, SendFlags::NOSIGNAL);
    }

    /// A server did not answer in time.
    pub(crate) fn give_up_on_server(&mut self, key: Key) {
        let Some(question) = self.questions.open.get(key) else { return };
        if question.deadline <= self.now {
            self.next_server(key);
        }
    }

    fn next_server(&mut self, key: Key) {
        let most = TRIES.min(2 * self.questions.servers.len());
        let Some(question) = self.questions.open.get_mut(key) else { return };
        question.tries += 1;
        match question.tries < most {
            true => self.try_server(key, false),
            false => self.conclude(key, None),
        }
    }

    /// A server's socket has something.
    pub(crate) fn on_answer(&mut self, key: Key) {
        let Some(question) = self.questions.open.get_mut(key) else { return };
        let said = match question.stream.is_some() {
            true => match question.converse() {
                Some(said) => said,
                None => return self.watch_answer(key),
            },
            false => {
                let mut buffer = [0; 4096];
                match rustix::net::recv(&question.socket, &mut buffer, RecvFlags::empty()) {
                    Ok((n, _)) => {
                        dns::read_answer(&buffer[..n], question.id, &question.name, question.kind)
                    }
                    Err(Errno::AGAIN | Errno::INTR) => return,
                    Err(_) => Said::Failed,
                }
            }
        };
        match said {
            // A forgery, perhaps: the real one may still come.
            Said::Nothing => {}
            Said::TooLong => self.try_server(key, true),
            Said::Failed => self.next_server(key),
            Said::Records(records) => self.conclude(key, Some(records)),
        }
    }

    /// Once the question is written, only the answer is waited for.
    fn watch_answer(&mut self, key: Key) {
        let Some(question) = self.questions.open.get(key) else { return };
        if question.stream.as_ref().is_some_and(|(out, _)| out.is_empty()) {
            let data = rustix::event::epoll::EventData::new_u64(Source::Question(key).to_bits());
            let epoll = &self.epoll;
            let _ = rustix::event::epoll::modify(epoll, &question.socket, data, EventFlags::IN);
        }
    }

    /// A question is answered, or cannot be.
    fn conclude(&mut self, key: Key, records: Option<Records>) {
        let Some(question) = self.questions.open.remove(key) else { return };
        self.questions.asked.remove(&(question.name.clone(), question.kind));
        let judgement = self.rules.judge_question(&question.name);
        let Some(mut records) = records else {
            self.decide(&judgement);
            for (asker, asked) in &question.askers {
                self.answer(*asker, &asked.answer(Outcome::Failed));
            }
            return;
        };
        let emptied = records.keep(|address| self.rules.may_answer(address));
        // The rules may have changed since it was asked.
        if emptied || !judgement.allows() {
            let private = Judgement {
                decision: Decision::Deny,
                rule: "private answer".to_owned(),
                ..judgement.clone()
            };
            self.decide(if emptied { &private } else { &judgement });
            for (asker, asked) in &question.askers {
                self.answer(*asker, &asked.answer(Outcome::NoSuchName));
            }
            return;
        }
        self.questions.remember(&question, &records, self.now);
        for (asker, asked) in &question.askers {
            self.decide(&judgement);
            self.answer_with(*asker, asked, &records, 0);
        }
    }

    fn answer_with(&mut self, asker: Asker, asked: &Asked, records: &Records, age: u32) {
        let now = self.millis();
        for (address, ttl) in records.addresses() {
            self.names.tie(&asked.name, address, ttl.saturating_sub(age), now);
        }
        let datagram = matches!(asker, Asker::Datagram(..));
        self.answer(asker, &asked.answer_with(records, age, datagram));
    }

    /// Sends an answer; an empty one is none.
    fn answer(&mut self, asker: Asker, message: &[u8]) {
        match asker {
            Asker::Datagram(own, port) => {
                if !message.is_empty() {
                    let own = SocketAddr::new(own, 53);
                    frames::send_datagram(&mut self.link, own, port, message);
                }
            }
            Asker::Stream(key) => {
                let Some(stream) = self.streams.flows.get_mut(key) else { return };
                if let Stage::Names { open } = &mut stream.stage {
                    *open = open.saturating_sub(1);
                }
                if let Some(socket) = stream.socket()
                    && let Ok(length) = u16::try_from(message.len())
                    && length > 0
                {
                    let room = socket.send_capacity() - socket.send_queue();
                    // Who does not read its answers gets no more of them.
                    if room >= message.len() + 2 {
                        let _ = socket.send_slice(&length.to_be_bytes());
                        let _ = socket.send_slice(message);
                    }
                }
                self.streams.queue(key);
            }
        }
    }
}

impl Question {
    /// Writes the question and reads the answer over TCP; none while that takes.
    fn converse(&mut self) -> Option<Said> {
        let (out, input) = self.stream.as_mut()?;
        while !out.is_empty() {
            match rustix::net::send(&self.socket, out, SendFlags::NOSIGNAL) {
                Ok(n) => drop(out.drain(..n)),
                Err(Errno::AGAIN | Errno::NOTCONN) => return None,
                Err(Errno::INTR) => {}
                Err(_) => return Some(Said::Failed),
            }
        }
        let mut buffer = [0; 4096];
        loop {
            match rustix::io::read(&self.socket, &mut buffer) {
                Ok(0) => return Some(Said::Failed),
                Ok(n) => input.extend_from_slice(&buffer[..n]),
                Err(Errno::AGAIN) => return None,
                Err(Errno::INTR) => {}
                Err(_) => return Some(Said::Failed),
            }
            let Some(head) = input.first_chunk::<2>() else { continue };
            let length = usize::from(u16::from_be_bytes(*head));
            let Some(message) = input.get(2..2 + length) else { continue };
            let said = match dns::read_answer(message, self.id, &self.name, self.kind) {
                // Nobody else could have written into this stream.
                Said::Nothing | Said::TooLong => Said::Failed,
                said => said,
            };
            return Some(said);
        }
    }
}

/// New names of one zone that are asked for in a while: data leaves as labels, too.
#[derive(Default)]
struct Floods {
    zones: HashMap<String, Zone>,
    state: RandomState,
}

struct Zone {
    since: u64,
    /// Of each name, as much as is needed to tell it from the others.
    names: HashSet<u64>,
    told: bool,
}

/// How long names are counted for, in microseconds.
const WHILE: u64 = 10_000_000;
/// New names of one zone that are usual in that time.
const USUAL: usize = 100;
/// Zones that are counted at once.
const ZONES: usize = 1024;

impl Floods {
    /// Counts a name; if it is one too many, whether that is the first time in this while.
    fn count(&mut self, name: &DomainName, now: u64) -> Option<bool> {
        let text = name.as_str();
        let dots = text.rmatch_indices('.').nth(1);
        let zone = dots.map_or(text, |(at, _)| &text[at + 1..]);
        if self.zones.len() >= ZONES && !self.zones.contains_key(zone) {
            self.zones.retain(|_, zone| now - zone.since < WHILE);
            if self.zones.len() >= ZONES {
                self.zones.clear();
            }
        }
        let fresh = || Zone { since: now, names: HashSet::new(), told: false };
        let counted = self.zones.entry(zone.to_owned()).or_insert_with(fresh);
        if now - counted.since >= WHILE {
            *counted = fresh();
        }
        let hash = self.state.hash_one(text);
        if counted.names.contains(&hash) {
            return None;
        }
        if counted.names.len() >= USUAL {
            return Some(!std::mem::replace(&mut counted.told, true));
        }
        counted.names.insert(hash);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_labels_is_noticed_once() {
        let mut floods = Floods::default();
        let name = |n: usize| DomainName::parse(&format!("x{n}.evil.example")).unwrap();
        for n in 0..USUAL {
            assert_eq!(floods.count(&name(n), 5), None);
        }
        assert_eq!(floods.count(&name(USUAL), 6), Some(true));
        assert_eq!(floods.count(&name(USUAL + 1), 7), Some(false));
        assert_eq!(floods.count(&name(3), 8), None);
        let other = DomainName::parse("good.test").unwrap();
        assert_eq!(floods.count(&other, 8), None);
        assert_eq!(floods.count(&name(USUAL), 5 + WHILE), None);
    }
}
