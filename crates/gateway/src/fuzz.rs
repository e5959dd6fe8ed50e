//! Entry points for the fuzz targets of `crates/gateway/fuzz`. Nothing else uses them.

use crate::dns::message::{self, DnsQuery, DnsReply, ResponseCode};
use crate::frames::{self, Inbound, TcpSegment, Unreachable};
use crate::intercept;
use crate::tcp::sniff::{self, SniffResult};
use msb_spec::DomainName;

/// Sniffs first bytes of a stream. A result on a prefix stays true when more bytes come.
pub fn sniff(bytes: &[u8]) {
    let whole = sniff::sniff(bytes);
    for end in [bytes.len() / 3, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let part = sniff::sniff(&bytes[..end]);
        assert!(part == SniffResult::Incomplete || part == whole, "{part:?}, then {whole:?}");
    }
    if bytes.len() >= sniff::MAX_SNIFF_BYTES {
        assert_ne!(whole, SniffResult::Incomplete, "waits for ever");
    }
}

/// Parses and decides HTTP/1 requests of a client, up to what the server and the client see.
pub fn requests(bytes: &[u8]) {
    intercept::fuzz::requests(bytes);
}

/// Reads a frame of the guest. A reply to it fits into a frame and can be parsed again.
pub fn frame(bytes: &[u8]) {
    let Some(Inbound::IpPacket(packet)) = frames::read(bytes) else { return };
    let refusal = frames::unreachable(&packet, Unreachable::Refused);
    assert!(frames::read_packet(&refusal).is_none_or(|packet| packet.bytes == refusal));
    if let Some(segment) = TcpSegment::read(packet.payload) {
        let reset = segment.rst_reply(&packet);
        assert!(reset.len() <= 60, "a reset carries nothing");
    }
}

/// Parses a DNS query of the guest, and a server's response to one.
pub fn dns(bytes: &[u8]) {
    let Ok(name) = DomainName::parse("a.example") else { return };
    let query = DnsQuery::parse(bytes);
    if let Ok(query) = &query {
        let answer = query.respond(ResponseCode::NxDomain);
        assert!(answer.len() <= 512, "an answer without records is short");
    }
    if let DnsReply::Records(mut records) =
        message::parse_response(bytes, 9, &name, message::A_RECORD)
    {
        records.retain_addresses(|address| address.is_ipv4());
        if let Ok(query) = DnsQuery::parse(&message::build_query(9, &name, message::A_RECORD)) {
            let answer = query.respond_with_records(&records, 1, true);
            assert!(answer.len() <= 1232, "an answer fits into the asker's room");
        }
    }
}
