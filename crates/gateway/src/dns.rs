//! Messages of DNS: questions of the sandbox, which are hostile, and answers of servers.
//!
//! Answers are taken apart and written anew, so that the sandbox gets records that were read here
//! and nothing else.

use msb_spec::DomainName;
use simple_dns::rdata::{A, AAAA, OPT, RData};
use simple_dns::{
    CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, ResourceRecord, TYPE,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub(crate) const A_RECORD: u16 = 1;
pub(crate) const AAAA_RECORD: u16 = 28;
const SVCB: u16 = 64;
const HTTPS: u16 = 65;
const OPT_RECORD: u16 = 41;
const AXFR: u16 = 252;
const IXFR: u16 = 251;
const ANY: u16 = 255;
const INTERNET: u16 = 1;

/// Bytes that everybody takes over UDP.
const SMALLEST: usize = 512;
/// Bytes that we take over UDP: what no network on the way cuts in pieces.
const OURS: u16 = 1232;
/// The longest message over UDP that is written to the sandbox, whatever it says it takes.
const LARGEST: usize = 4096;

/// What is said when there is nothing to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Fine,
    Malformed,
    Failed,
    NoSuchName,
    NotKnown,
    Refused,
}

impl Outcome {
    fn code(self) -> RCODE {
        match self {
            Self::Fine => RCODE::NoError,
            Self::Malformed => RCODE::FormatError,
            Self::Failed => RCODE::ServerFailure,
            Self::NoSuchName => RCODE::NameError,
            Self::NotKnown => RCODE::NotImplemented,
            Self::Refused => RCODE::Refused,
        }
    }

    /// What a server's answer comes to; none if it is a failure of that server.
    fn of(code: RCODE) -> Option<Self> {
        match code {
            RCODE::NoError => Some(Self::Fine),
            RCODE::NameError => Some(Self::NoSuchName),
            _ => None,
        }
    }
}

/// A question of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Asked {
    id: u16,
    /// As it was written, to be repeated in the answer.
    question: Vec<u8>,
    pub(crate) name: DomainName,
    pub(crate) kind: u16,
    /// The longest answer over UDP that it takes.
    room: usize,
    extended: bool,
}

/// What to do with a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Treatment {
    /// Ask a server.
    Forward,
    /// Say that there is nothing: what it would tell hides names from us.
    Empty,
    /// Refuse.
    Refuse,
}

impl Asked {
    /// Reads a question. What is not one gets an answer that says so, or none at all.
    pub(crate) fn read(message: &[u8]) -> Result<Self, Option<Vec<u8>>> {
        let Some(head) = message.first_chunk::<12>() else { return Err(None) };
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let (id, flags) = (word(0), word(2));
        if flags & 0x8000 != 0 {
            return Err(None);
        }
        let refusal = |outcome: Outcome| Err(Some(bare(id, outcome)));
        if flags & 0x7800 != 0 {
            return refusal(Outcome::NotKnown);
        }
        if word(4) != 1 || word(6) != 0 || word(8) != 0 {
            return refusal(Outcome::Malformed);
        }
        let Some((name, length)) = read_name(&message[12..]) else {
            return refusal(Outcome::Malformed);
        };
        let Some(question) = message.get(12..12 + length + 4) else {
            return refusal(Outcome::Malformed);
        };
        let tail = |at: usize| u16::from_be_bytes([question[at], question[at + 1]]);
        let (kind, class) = (tail(length), tail(length + 2));
        let Some(name) = name.filter(|_| class == INTERNET) else {
            return refusal(Outcome::Refused);
        };
        let additional = &message[12 + question.len()..];
        let room = match additional {
            [0, kind @ .., _, _, _, _] if word(10) == 1 && kind.len() >= 4 => {
                let number = |at: usize| u16::from_be_bytes([kind[at], kind[at + 1]]);
                (number(0) == OPT_RECORD).then(|| usize::from(number(2)))
            }
            _ => None,
        };
        Ok(Self {
            id,
            question: question.to_vec(),
            name,
            kind,
            room: room.unwrap_or(SMALLEST).clamp(SMALLEST, LARGEST),
            extended: room.is_some(),
        })
    }

    pub(crate) fn treatment(&self) -> Treatment {
        match self.kind {
            // They carry keys that hide the name of a TLS hello.
            SVCB | HTTPS => Treatment::Empty,
            AXFR | IXFR | ANY | OPT_RECORD => Treatment::Refuse,
            _ => Treatment::Forward,
        }
    }

    /// An answer without records.
    pub(crate) fn answer(&self, outcome: Outcome) -> Vec<u8> {
        self.write(&Records { outcome, ..Records::default() }, 0, false)
    }

    /// An answer of our own.
    pub(crate) fn answer_address(&self, address: Option<IpAddr>) -> Vec<u8> {
        let rdata = match (address, self.kind) {
            (Some(IpAddr::V4(four)), A_RECORD) => Some(RData::A(A { address: four.to_bits() })),
            (Some(IpAddr::V6(six)), AAAA_RECORD) => {
                Some(RData::AAAA(AAAA { address: six.to_bits() }))
            }
            _ => None,
        };
        let name = Name::new_unchecked(self.name.as_str()).into_owned();
        let record = rdata.map(|rdata| ResourceRecord::new(name, CLASS::IN, OWN_TTL, rdata));
        let records = Records { answers: record.into_iter().collect(), ..Records::default() };
        self.write(&records, 0, false)
    }

    /// The answer of a server, some seconds after it came; cut to what fits into a datagram.
    pub(crate) fn answer_with(&self, records: &Records, age: u32, datagram: bool) -> Vec<u8> {
        self.write(records, age, datagram)
    }

    fn write(&self, records: &Records, age: u32, datagram: bool) -> Vec<u8> {
        let bytes = self.compose(records, age, PacketFlag::empty());
        if datagram && bytes.len() > self.room {
            let cut = Records { outcome: records.outcome, ..Records::default() };
            return self.compose(&cut, 0, PacketFlag::TRUNCATION);
        }
        bytes
    }

    fn compose(&self, records: &Records, age: u32, flags: PacketFlag) -> Vec<u8> {
        let mut packet = Packet::new_reply(self.id);
        packet.set_flags(flags | PacketFlag::RECURSION_DESIRED | PacketFlag::RECURSION_AVAILABLE);
        *packet.rcode_mut() = records.outcome.code();
        packet.questions.push(Question::new(
            Name::new_unchecked(self.name.as_str()),
            QTYPE::TYPE(TYPE::from(self.kind)),
            QCLASS::CLASS(CLASS::IN),
            false,
        ));
        let aged = |record: &ResourceRecord<'static>| {
            let mut record = record.clone();
            record.ttl = record.ttl.saturating_sub(age);
            record
        };
        packet.answers = records.answers.iter().map(aged).collect();
        packet.name_servers = records.authority.iter().map(aged).collect();
        if self.extended {
            *packet.opt_mut() =
                Some(OPT { opt_codes: Vec::new(), udp_packet_size: OURS, version: 0 });
        }
        let Ok(mut bytes) = packet.build_bytes_vec_compressed() else {
            return bare(self.id, Outcome::Failed);
        };
        // Letters as they were asked: some clients compare them.
        if let Some(question) = bytes.get_mut(12..12 + self.question.len()) {
            question.copy_from_slice(&self.question);
        }
        bytes
    }
}

/// For how long an answer of our own counts, in seconds: rules change.
const OWN_TTL: u32 = 5;

/// A head without anything behind it.
fn bare(id: u16, outcome: Outcome) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes[..2].copy_from_slice(&id.to_be_bytes());
    bytes[2] = 0x80;
    bytes[3] = 0x80 | outcome.code() as u8;
    bytes
}

/// The name at the begin of `bytes`, none if it is no host name, and the bytes that it takes.
fn read_name(bytes: &[u8]) -> Option<(Option<DomainName>, usize)> {
    let mut text = String::new();
    let mut at = 0;
    let mut plain = true;
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        // No pointers: there is nothing before the only question that it could point to.
        if length > 63 || at > 255 {
            return None;
        }
        let label = bytes.get(at..at + length)?;
        plain &= label.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'.');
        if plain {
            if !text.is_empty() {
                text.push('.');
            }
            text.extend(label.iter().map(|byte| char::from(*byte)));
        }
        at += length;
    }
    let name = if plain { DomainName::parse(&text).ok() } else { None };
    Some((name, at))
}

/// A question for a server.
pub(crate) fn question(id: u16, name: &DomainName, kind: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.as_str().len() + 29);
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    for label in name.as_str().split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&INTERNET.to_be_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&OPT_RECORD.to_be_bytes());
    bytes.extend_from_slice(&OURS.to_be_bytes());
    bytes.extend_from_slice(&[0; 6]);
    bytes
}

/// What a server said.
#[derive(Debug)]
pub(crate) enum Said {
    /// Something that is not an answer to this question.
    Nothing,
    /// That it cannot tell.
    Failed,
    /// That the answer is too long for a datagram.
    TooLong,
    Records(Records),
}

/// The records of an answer.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    pub(crate) outcome: Outcome,
    answers: Vec<ResourceRecord<'static>>,
    /// For how long it counts that there is nothing.
    authority: Vec<ResourceRecord<'static>>,
    /// The length of the message that it was read from.
    size: usize,
}

impl Default for Records {
    fn default() -> Self {
        Self { outcome: Outcome::Fine, answers: Vec::new(), authority: Vec::new(), size: 0 }
    }
}

/// Records of one answer; a server that sends more has something else in mind.
const MOST_RECORDS: usize = 512;

/// Reads what a server sent in answer to `question(id, name, kind)`.
pub(crate) fn read_answer(message: &[u8], id: u16, name: &DomainName, kind: u16) -> Said {
    let Some(head) = message.first_chunk::<12>() else { return Said::Nothing };
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    if word(0) != id || word(2) & 0xf800 != 0x8000 || word(4) != 1 {
        return Said::Nothing;
    }
    let Some((asked, length)) = read_name(&message[12..]) else { return Said::Nothing };
    let tail = message.get(12 + length..12 + length + 4);
    let wanted = [kind.to_be_bytes(), INTERNET.to_be_bytes()].concat();
    if asked.as_ref() != Some(name) || tail != Some(&wanted[..]) {
        return Said::Nothing;
    }
    if word(2) & 0x0200 != 0 {
        return Said::TooLong;
    }
    // A record has eleven bytes at least: claims of more would only cost memory.
    let claimed = usize::from(word(6)) + usize::from(word(8)) + usize::from(word(10));
    if claimed > MOST_RECORDS || claimed * 11 > message.len() {
        return Said::Failed;
    }
    let Ok(packet) = Packet::parse(message) else { return Said::Failed };
    let Some(outcome) = Outcome::of(packet.rcode()) else { return Said::Failed };
    let usual = |record: &ResourceRecord<'_>| {
        let hides = matches!(u16::from(record.rdata.type_code()), SVCB | HTTPS | OPT_RECORD);
        record.class == CLASS::IN && !hides
    };
    let own = |records: Vec<ResourceRecord<'_>>| -> Vec<_> {
        records.into_iter().filter(usual).map(ResourceRecord::into_owned).collect()
    };
    let mut authority = own(packet.name_servers);
    authority.retain(|record| matches!(record.rdata, RData::SOA(_)));
    let answers = own(packet.answers);
    Said::Records(Records { outcome, answers, authority, size: message.len() })
}

impl Records {
    /// The addresses, each with the seconds that it counts for.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (IpAddr, u32)> {
        self.answers.iter().filter_map(|record| Some((address(record)?, record.ttl)))
    }

    /// Drops the addresses that `may` does not let pass; whether there were any, and none is left.
    pub(crate) fn keep(&mut self, may: impl Fn(IpAddr) -> bool) -> bool {
        let before = self.addresses().count();
        self.answers.retain(|record| address(record).is_none_or(&may));
        before > 0 && self.addresses().count() == 0
    }

    /// The length of the message that it was read from.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// For how many seconds all of it counts.
    pub(crate) fn ttl(&self) -> u32 {
        let soonest = self.answers.iter().map(|record| record.ttl).min();
        let nothing = self.authority.iter().filter_map(|record| match &record.rdata {
            RData::SOA(soa) => Some(soa.minimum.min(record.ttl)),
            _ => None,
        });
        soonest.or_else(|| nothing.min()).unwrap_or(0).min(MOST_TTL)
    }
}

/// Longest that an answer is remembered, in seconds.
const MOST_TTL: u32 = 3600;

fn address(record: &ResourceRecord<'_>) -> Option<IpAddr> {
    match &record.rdata {
        RData::A(a) => Some(IpAddr::V4(Ipv4Addr::from_bits(a.address))),
        RData::AAAA(aaaa) => Some(IpAddr::V6(Ipv6Addr::from_bits(aaaa.address))),
        _ => None,
    }
}

#[cfg(test)]
#[path = "dns_tests.rs"]
mod tests;
