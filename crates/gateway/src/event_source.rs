//! Event sources, each encoded in the 64-bit word that epoll and timers carry.

use crate::slab::SlabKey;

/// What an epoll event or a timer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EventSource {
    Link,
    Control,
    Interceptor,
    PeerListener,
    /// The count of dropped events is due.
    SkippedEvents,
    /// The egress rate allows more bytes.
    EgressRate,
    Published(SlabKey),
    Tcp(SlabKey),
    Udp(SlabKey),
    DnsQuery(SlabKey),
    IncomingPeer(SlabKey),
}

impl EventSource {
    pub(crate) fn to_bits(self) -> u64 {
        let (kind, key) = match self {
            Self::Link => (0, 0),
            Self::Control => (1, 0),
            Self::Interceptor => (2, 0),
            Self::PeerListener => (3, 0),
            Self::SkippedEvents => (4, 0),
            Self::EgressRate => (5, 0),
            Self::Published(key) => (6, key.to_bits()),
            Self::Tcp(key) => (7, key.to_bits()),
            Self::Udp(key) => (8, key.to_bits()),
            Self::DnsQuery(key) => (9, key.to_bits()),
            Self::IncomingPeer(key) => (10, key.to_bits()),
        };
        kind << 56 | key
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        let key = SlabKey::from_bits(bits);
        Some(match bits >> 56 {
            0 => Self::Link,
            1 => Self::Control,
            2 => Self::Interceptor,
            3 => Self::PeerListener,
            4 => Self::SkippedEvents,
            5 => Self::EgressRate,
            6 => Self::Published(key),
            7 => Self::Tcp(key),
            8 => Self::Udp(key),
            9 => Self::DnsQuery(key),
            10 => Self::IncomingPeer(key),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_read_as_it_is_written() {
        let key = SlabKey::from_bits(0x00ab_cdef_0123_4567);
        for source in [
            EventSource::Link,
            EventSource::EgressRate,
            EventSource::Tcp(key),
            EventSource::IncomingPeer(key),
        ] {
            assert_eq!(EventSource::from_bits(source.to_bits()), Some(source));
        }
        assert_eq!(EventSource::from_bits(u64::MAX), None);
    }
}
