//! What woke the gateway up, as the one word that epoll and timers keep.

use crate::slots::Key;

/// Whom an event or a timer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    Link,
    Control,
    Interceptor,
    Joined,
    /// Events that were left out are to be told.
    Events,
    /// The egress rate allows more.
    Rate,
    Published(Key),
    Tcp(Key),
    Datagrams(Key),
    Question(Key),
    Visitor(Key),
}

impl Source {
    pub(crate) fn to_bits(self) -> u64 {
        let (kind, key) = match self {
            Self::Link => (0, 0),
            Self::Control => (1, 0),
            Self::Interceptor => (2, 0),
            Self::Joined => (3, 0),
            Self::Events => (4, 0),
            Self::Rate => (5, 0),
            Self::Published(key) => (6, key.to_bits()),
            Self::Tcp(key) => (7, key.to_bits()),
            Self::Datagrams(key) => (8, key.to_bits()),
            Self::Question(key) => (9, key.to_bits()),
            Self::Visitor(key) => (10, key.to_bits()),
        };
        kind << 56 | key
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        let key = Key::from_bits(bits);
        Some(match bits >> 56 {
            0 => Self::Link,
            1 => Self::Control,
            2 => Self::Interceptor,
            3 => Self::Joined,
            4 => Self::Events,
            5 => Self::Rate,
            6 => Self::Published(key),
            7 => Self::Tcp(key),
            8 => Self::Datagrams(key),
            9 => Self::Question(key),
            10 => Self::Visitor(key),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_read_as_it_is_written() {
        let key = Key::from_bits(0x00ab_cdef_0123_4567);
        for source in [Source::Link, Source::Rate, Source::Tcp(key), Source::Visitor(key)] {
            assert_eq!(Source::from_bits(source.to_bits()), Some(source));
        }
        assert_eq!(Source::from_bits(u64::MAX), None);
    }
}
