//! DNS messages: queries of the guest, which are untrusted, and responses of servers.
//!
//! Responses are parsed and encoded again, so that the guest gets only records that were understood
//! here.

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

/// The message length that every client accepts over UDP, in bytes (RFC 1035).
const MIN_UDP_LEN: usize = 512;
/// The UDP message length that we advertise, in bytes: short enough not to be fragmented.
const ADVERTISED_UDP_LEN: u16 = 1232;
/// The longest message sent to the guest over UDP, in bytes, whatever it advertises.
const MAX_UDP_LEN: usize = 4096;

/// The response codes that are used (RFC 1035, section 4.1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseCode {
    NoError,
    FormErr,
    ServFail,
    NxDomain,
    NotImp,
    Refused,
}

impl ResponseCode {
    fn rcode(self) -> RCODE {
        match self {
            Self::NoError => RCODE::NoError,
            Self::FormErr => RCODE::FormatError,
            Self::ServFail => RCODE::ServerFailure,
            Self::NxDomain => RCODE::NameError,
            Self::NotImp => RCODE::NotImplemented,
            Self::Refused => RCODE::Refused,
        }
    }

    /// The code of a server's response; `None` if it is a failure of that server.
    fn of(rcode: RCODE) -> Option<Self> {
        match rcode {
            RCODE::NoError => Some(Self::NoError),
            RCODE::NameError => Some(Self::NxDomain),
            _ => None,
        }
    }
}

/// A DNS query of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DnsQuery {
    id: u16,
    /// The question section as received, to be copied into the response.
    raw_question: Vec<u8>,
    pub(crate) name: DomainName,
    pub(crate) qtype: u16,
    /// The longest response over UDP that the client accepts, in bytes.
    max_udp_len: usize,
    has_edns: bool,
}

/// What to do with a query, by its record type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueryAction {
    /// Forward it to a server.
    Forward,
    /// Answer without records: SVCB and HTTPS records could hide the server name (ECH).
    Empty,
    /// Answer with the code REFUSED.
    Refuse,
}

impl DnsQuery {
    /// Parses a query. The error is the response to send for a malformed one, or `None` for no
    /// response.
    pub(crate) fn parse(message: &[u8]) -> Result<Self, Option<Vec<u8>>> {
        let Some(head) = message.first_chunk::<12>() else { return Err(None) };
        let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let (id, flags) = (word(0), word(2));
        if flags & 0x8000 != 0 {
            return Err(None);
        }
        let refusal = |code: ResponseCode| Err(Some(header_only(id, code)));
        if flags & 0x7800 != 0 {
            return refusal(ResponseCode::NotImp);
        }
        if word(4) != 1 || word(6) != 0 || word(8) != 0 {
            return refusal(ResponseCode::FormErr);
        }
        let Some((name, length)) = parse_name(&message[12..]) else {
            return refusal(ResponseCode::FormErr);
        };
        let Some(raw_question) = message.get(12..12 + length + 4) else {
            return refusal(ResponseCode::FormErr);
        };
        let tail = |at: usize| u16::from_be_bytes([raw_question[at], raw_question[at + 1]]);
        let (qtype, class) = (tail(length), tail(length + 2));
        let Some(name) = name.filter(|_| class == INTERNET) else {
            return refusal(ResponseCode::Refused);
        };
        let additional = &message[12 + raw_question.len()..];
        let max_udp_len = match additional {
            [0, opt @ .., _, _, _, _] if word(10) == 1 && opt.len() >= 4 => {
                let number = |at: usize| u16::from_be_bytes([opt[at], opt[at + 1]]);
                (number(0) == OPT_RECORD).then(|| usize::from(number(2)))
            }
            _ => None,
        };
        Ok(Self {
            id,
            raw_question: raw_question.to_vec(),
            name,
            qtype,
            max_udp_len: max_udp_len.unwrap_or(MIN_UDP_LEN).clamp(MIN_UDP_LEN, MAX_UDP_LEN),
            has_edns: max_udp_len.is_some(),
        })
    }

    pub(crate) fn action(&self) -> QueryAction {
        match self.qtype {
            // They carry the keys that encrypt the server name of a ClientHello.
            SVCB | HTTPS => QueryAction::Empty,
            AXFR | IXFR | ANY | OPT_RECORD => QueryAction::Refuse,
            _ => QueryAction::Forward,
        }
    }

    /// A response without any records.
    pub(crate) fn respond(&self, code: ResponseCode) -> Vec<u8> {
        self.encode_fitting(&DnsRecords { code, ..DnsRecords::default() }, 0, false)
    }

    /// A response of the gateway itself, with one address or none.
    pub(crate) fn respond_with_address(&self, address: Option<IpAddr>) -> Vec<u8> {
        let rdata = match (address, self.qtype) {
            (Some(IpAddr::V4(four)), A_RECORD) => Some(RData::A(A { address: four.to_bits() })),
            (Some(IpAddr::V6(six)), AAAA_RECORD) => {
                Some(RData::AAAA(AAAA { address: six.to_bits() }))
            }
            _ => None,
        };
        let name = Name::new_unchecked(self.name.as_str()).into_owned();
        let record = rdata.map(|rdata| ResourceRecord::new(name, CLASS::IN, OWN_TTL, rdata));
        let records = DnsRecords { answers: record.into_iter().collect(), ..DnsRecords::default() };
        self.encode_fitting(&records, 0, false)
    }

    /// A response with the records of a server, `age` seconds after they came; truncated to what
    /// fits into a UDP datagram.
    pub(crate) fn respond_with_records(
        &self,
        records: &DnsRecords,
        age: u32,
        datagram: bool,
    ) -> Vec<u8> {
        self.encode_fitting(records, age, datagram)
    }

    fn encode_fitting(&self, records: &DnsRecords, age: u32, datagram: bool) -> Vec<u8> {
        let bytes = self.encode(records, age, PacketFlag::empty());
        if datagram && bytes.len() > self.max_udp_len {
            let truncated = DnsRecords { code: records.code, ..DnsRecords::default() };
            return self.encode(&truncated, 0, PacketFlag::TRUNCATION);
        }
        bytes
    }

    fn encode(&self, records: &DnsRecords, age: u32, flags: PacketFlag) -> Vec<u8> {
        let mut packet = Packet::new_reply(self.id);
        packet.set_flags(flags | PacketFlag::RECURSION_DESIRED | PacketFlag::RECURSION_AVAILABLE);
        *packet.rcode_mut() = records.code.rcode();
        packet.questions.push(Question::new(
            Name::new_unchecked(self.name.as_str()),
            QTYPE::TYPE(TYPE::from(self.qtype)),
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
        if self.has_edns {
            *packet.opt_mut() = Some(OPT {
                opt_codes: Vec::new(),
                udp_packet_size: ADVERTISED_UDP_LEN,
                version: 0,
            });
        }
        let Ok(mut bytes) = packet.build_bytes_vec_compressed() else {
            return header_only(self.id, ResponseCode::ServFail);
        };
        // Copies the question back with its letter case, which some clients compare.
        if let Some(raw_question) = bytes.get_mut(12..12 + self.raw_question.len()) {
            raw_question.copy_from_slice(&self.raw_question);
        }
        bytes
    }
}

/// The TTL of the gateway's own answers, in seconds: rules may change.
const OWN_TTL: u32 = 5;

/// A response that consists of the header only.
fn header_only(id: u16, code: ResponseCode) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes[..2].copy_from_slice(&id.to_be_bytes());
    bytes[2] = 0x80;
    bytes[3] = 0x80 | code.rcode() as u8;
    bytes
}

/// Parses the name at the start of `bytes`; the inner `None` means that it is no host name. Returns
/// the bytes that it takes.
fn parse_name(bytes: &[u8]) -> Option<(Option<DomainName>, usize)> {
    let mut text = String::new();
    let mut at = 0;
    let mut plain = true;
    loop {
        let length = usize::from(*bytes.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        // Compression pointers are refused: nothing stands before the only question.
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

/// Builds a query for a server.
pub(crate) fn build_query(id: u16, name: &DomainName, qtype: u16) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(name.as_str().len() + 29);
    bytes.extend_from_slice(&id.to_be_bytes());
    bytes.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    for label in name.as_str().split('.') {
        bytes.push(label.len() as u8);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&qtype.to_be_bytes());
    bytes.extend_from_slice(&INTERNET.to_be_bytes());
    bytes.push(0);
    bytes.extend_from_slice(&OPT_RECORD.to_be_bytes());
    bytes.extend_from_slice(&ADVERTISED_UDP_LEN.to_be_bytes());
    bytes.extend_from_slice(&[0; 6]);
    bytes
}

/// The parsed response of a server.
#[derive(Debug)]
pub(crate) enum DnsReply {
    /// The message does not answer this query.
    Unrelated,
    /// The server failed, or the message is malformed.
    Failed,
    /// The response is too long for UDP (the TC bit).
    Truncated,
    Records(DnsRecords),
}

/// The records of a response.
#[derive(Debug, Clone)]
pub(crate) struct DnsRecords {
    pub(crate) code: ResponseCode,
    answers: Vec<ResourceRecord<'static>>,
    /// SOA records, which tell how long a negative answer is valid.
    authority: Vec<ResourceRecord<'static>>,
    /// The length of the message that they were parsed from, in bytes.
    message_len: usize,
}

impl Default for DnsRecords {
    fn default() -> Self {
        Self {
            code: ResponseCode::NoError,
            answers: Vec::new(),
            authority: Vec::new(),
            message_len: 0,
        }
    }
}

/// The most records of one response; a longer one is refused.
const MAX_RECORDS: usize = 512;

/// Parses a server's response to `build_query(id, name, qtype)`.
pub(crate) fn parse_response(message: &[u8], id: u16, name: &DomainName, qtype: u16) -> DnsReply {
    let Some(head) = message.first_chunk::<12>() else { return DnsReply::Unrelated };
    let word = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    if word(0) != id || word(2) & 0xf800 != 0x8000 || word(4) != 1 {
        return DnsReply::Unrelated;
    }
    let Some((answered_name, length)) = parse_name(&message[12..]) else {
        return DnsReply::Unrelated;
    };
    let tail = message.get(12 + length..12 + length + 4);
    let wanted = [qtype.to_be_bytes(), INTERNET.to_be_bytes()].concat();
    if answered_name.as_ref() != Some(name) || tail != Some(&wanted[..]) {
        return DnsReply::Unrelated;
    }
    if word(2) & 0x0200 != 0 {
        return DnsReply::Truncated;
    }
    // A record takes at least eleven bytes, so higher counts are false.
    let claimed = usize::from(word(6)) + usize::from(word(8)) + usize::from(word(10));
    if claimed > MAX_RECORDS || claimed * 11 > message.len() {
        return DnsReply::Failed;
    }
    let Ok(packet) = Packet::parse(message) else { return DnsReply::Failed };
    let Some(code) = ResponseCode::of(packet.rcode()) else { return DnsReply::Failed };
    let passes = |record: &ResourceRecord<'_>| {
        let hides = matches!(u16::from(record.rdata.type_code()), SVCB | HTTPS | OPT_RECORD);
        record.class == CLASS::IN && !hides
    };
    let retained = |records: Vec<ResourceRecord<'_>>| -> Vec<_> {
        records.into_iter().filter(passes).map(ResourceRecord::into_owned).collect()
    };
    let mut authority = retained(packet.name_servers);
    authority.retain(|record| matches!(record.rdata, RData::SOA(_)));
    let answers = retained(packet.answers);
    DnsReply::Records(DnsRecords { code, answers, authority, message_len: message.len() })
}

impl DnsRecords {
    /// The addresses of the answer, each with its TTL in seconds.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (IpAddr, u32)> {
        self.answers.iter().filter_map(|record| Some((address(record)?, record.ttl)))
    }

    /// Removes addresses that are not `allowed`; returns whether there were any and none is left.
    pub(crate) fn retain_addresses(&mut self, allowed: impl Fn(IpAddr) -> bool) -> bool {
        let before = self.addresses().count();
        self.answers.retain(|record| address(record).is_none_or(&allowed));
        before > 0 && self.addresses().count() == 0
    }

    /// The length of the message that they were parsed from, in bytes.
    pub(crate) fn message_len(&self) -> usize {
        self.message_len
    }

    /// The TTL of the whole response in seconds: the shortest of its records, at most [`MAX_TTL`].
    pub(crate) fn ttl(&self) -> u32 {
        let soonest = self.answers.iter().map(|record| record.ttl).min();
        let nothing = self.authority.iter().filter_map(|record| match &record.rdata {
            RData::SOA(soa) => Some(soa.minimum.min(record.ttl)),
            _ => None,
        });
        soonest.or_else(|| nothing.min()).unwrap_or(0).min(MAX_TTL)
    }
}

/// The longest time that a response is cached, in seconds.
const MAX_TTL: u32 = 3600;

fn address(record: &ResourceRecord<'_>) -> Option<IpAddr> {
    match &record.rdata {
        RData::A(a) => Some(IpAddr::V4(Ipv4Addr::from_bits(a.address))),
        RData::AAAA(aaaa) => Some(IpAddr::V6(Ipv6Addr::from_bits(aaaa.address))),
        _ => None,
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
