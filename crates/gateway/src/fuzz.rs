//! Ways in for the fuzz targets, which are crates of their own. Nothing else uses them.

use crate::dns::{self, Asked, Outcome, Said};
use crate::frames::{self, Inbound, Segment, Unreachable};
use crate::intercept;
use crate::sniff::{self, Sniffed};
use msb_spec::DomainName;

/// First bytes of a stream: what is known of them stays true when more come.
pub fn sniff(bytes: &[u8]) {
    let whole = sniff::sniff(bytes);
    for end in [bytes.len() / 3, bytes.len() / 2, bytes.len().saturating_sub(1)] {
        let part = sniff::sniff(&bytes[..end]);
        assert!(part == Sniffed::More || part == whole, "{part:?}, then {whole:?}");
    }
    if bytes.len() >= sniff::LIMIT {
        assert_ne!(whole, Sniffed::More, "waits for ever");
    }
}

/// Requests of HTTP/1 as a client sends them, up to what the other side and the client see.
pub fn requests(bytes: &[u8]) {
    intercept::fuzz::requests(bytes);
}

/// A frame of the sandbox: what is answered fits into one, and can be read again.
pub fn frame(bytes: &[u8]) {
    let Some(Inbound::Packet(packet)) = frames::read(bytes) else { return };
    let refusal = frames::unreachable(&packet, Unreachable::Refused);
    assert!(frames::read_packet(&refusal).is_none_or(|told| told.whole == refusal));
    if let Some(segment) = Segment::read(packet.body) {
        let reset = segment.reset(&packet);
        assert!(reset.len() <= 60, "a reset carries nothing");
    }
}

/// A question of the sandbox, and what a server says to one.
pub fn names(bytes: &[u8]) {
    let Ok(name) = DomainName::parse("a.example") else { return };
    let asked = Asked::read(bytes);
    if let Ok(asked) = &asked {
        let answer = asked.answer(Outcome::NoSuchName);
        assert!(answer.len() <= 512, "an answer without records is short");
    }
    if let Said::Records(mut records) = dns::read_answer(bytes, 9, &name, dns::A_RECORD) {
        records.keep(|address| address.is_ipv4());
        if let Ok(asked) = Asked::read(&dns::question(9, &name, dns::A_RECORD)) {
            let answer = asked.answer_with(&records, 1, true);
            assert!(answer.len() <= 1232, "an answer fits into the asker's room");
        }
    }
}
