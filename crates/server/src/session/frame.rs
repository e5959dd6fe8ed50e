//! Frames of the session protocol: encoding, decoding and limits.

use msb_spec::{Error, Kind, Result};

/// Bytes of a header: length, kind and stream.
const HEADER: usize = 9;
/// Largest payload of a request, as of an HTTP body.
const LARGEST_REQUEST: usize = 32 << 20;
/// Largest payload of any other frame.
const LARGEST: usize = 1 << 20;

/// The kind of a frame, by its number in the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum SessionFrameKind {
    Hello = 0,
    Request = 1,
    Response = 2,
    Error = 3,
    Event = 4,
    Data = 5,
    Stdout = 6,
    Stderr = 7,
    End = 8,
    Credit = 9,
    Cancel = 10,
    Control = 11,
}

impl SessionFrameKind {
    const ALL: [Self; 12] = [
        Self::Hello,
        Self::Request,
        Self::Response,
        Self::Error,
        Self::Event,
        Self::Data,
        Self::Stdout,
        Self::Stderr,
        Self::End,
        Self::Credit,
        Self::Cancel,
        Self::Control,
    ];

    fn largest(self) -> usize {
        match self {
            Self::Request => LARGEST_REQUEST,
            _ => LARGEST,
        }
    }
}

/// One frame: its kind, its stream and its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionFrame {
    pub(crate) kind: SessionFrameKind,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// Encodes the header of a frame.
pub(crate) fn header(kind: SessionFrameKind, stream: u32, length: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    let length = u32::try_from(length).expect("no payload of ours has 4 GiB");
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes[4] = kind as u8;
    bytes[5..].copy_from_slice(&stream.to_le_bytes());
    bytes
}

/// Decodes frames from bytes that arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct SessionFrameDecoder {
    bytes: Vec<u8>,
    /// Bytes at the beginning that belong to frames that were taken.
    taken: usize,
}

impl SessionFrameDecoder {
    /// Adds bytes of the peer.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame. A header that announces too much is an error before its payload arrives.
    pub(crate) fn next(&mut self) -> Result<Option<SessionFrame>> {
        let rest = &self.bytes[self.taken..];
        let Some((head, rest)) = rest.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [l0, l1, l2, l3, kind, s0, s1, s2, s3] = *head;
        let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3])).unwrap_or(usize::MAX);
        let stream = u32::from_le_bytes([s0, s1, s2, s3]);
        let Some(&kind) = SessionFrameKind::ALL.get(usize::from(kind)) else {
            return Err(violation(format!("there is no frame of kind {kind}")));
        };
        if length > kind.largest() {
            return Err(violation(format!(
                "a frame of this kind has {} bytes at most, not {length}",
                kind.largest()
            )));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let frame = SessionFrame { kind, stream, payload: payload.to_vec() };
        self.taken += HEADER + length;
        Ok(Some(frame))
    }

    /// Whether the bytes so far end with a whole frame.
    pub(crate) fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }
}

/// The error of a peer that violates the protocol.
pub(crate) fn violation(message: impl Into<String>) -> Error {
    Error::new(Kind::Protocol, message).hint("docs/session-protocol.md has the rules")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(kind: SessionFrameKind, stream: u32, payload: &[u8]) -> Vec<u8> {
        [&header(kind, stream, payload.len())[..], payload].concat()
    }

    #[test]
    fn frames_arrive_whole_wherever_they_are_cut() {
        let frames = [
            (SessionFrameKind::Hello, 0, &b"{}"[..]),
            (SessionFrameKind::Data, 7, &[0, 255, 10][..]),
            (SessionFrameKind::End, u32::MAX, &[][..]),
        ];
        let bytes: Vec<u8> = frames
            .iter()
            .flat_map(|(kind, stream, payload)| encode(*kind, *stream, payload))
            .collect();
        for first in 0..=bytes.len() {
            for second in first..=bytes.len() {
                let mut decoder = SessionFrameDecoder::default();
                let mut decoded = Vec::new();
                for piece in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    decoder.push(piece);
                    while let Some(frame) = decoder.next().expect("valid frames") {
                        decoded.push(frame);
                    }
                }
                let decoded: Vec<_> =
                    decoded.iter().map(|it| (it.kind, it.stream, &it.payload[..])).collect();
                assert_eq!(decoded, frames);
                assert!(decoder.is_empty());
            }
        }
    }

    #[test]
    fn a_header_is_refused_before_its_payload_arrives() {
        let largest = |kind: SessionFrameKind, more: usize| {
            let mut decoder = SessionFrameDecoder::default();
            decoder.push(&header(kind, 1, kind.largest() + more));
            decoder.next()
        };
        for kind in SessionFrameKind::ALL {
            assert_eq!(largest(kind, 0).expect("it may be that long"), None);
            assert_eq!(largest(kind, 1).expect_err("too long").kind(), Kind::Protocol);
        }
        let mut decoder = SessionFrameDecoder::default();
        decoder.push(&[0, 0, 0, 0, 12, 0, 0, 0, 0]);
        assert_eq!(decoder.next().expect_err("an unknown kind").kind(), Kind::Protocol);
    }

    #[test]
    fn any_bytes_are_frames_or_an_error() {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..2_000 {
            let mut decoder = SessionFrameDecoder::default();
            for _ in 0..40 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                // Small lengths often, so that payloads are complete.
                let mut bytes = random.to_le_bytes();
                bytes[1] &= u8::from(random.is_multiple_of(3));
                bytes[2] &= u8::from(random.is_multiple_of(5));
                bytes[3] &= u8::from(random.is_multiple_of(7));
                decoder.push(&bytes);
                match decoder.next() {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Protocol);
                        break;
                    }
                }
            }
        }
    }
}
