//! The frame itself: how long, of what kind, and the bytes.

use serde::{Serialize, de::DeserializeOwned};
use std::fmt;

/// Bytes before the payload.
pub const HEADER: usize = 5;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame of a connection to a worker.
    Hello = 1,
    /// Bytes for a command; empty is end of file.
    Stdin = 2,
    /// A new terminal size.
    Resize = 3,
    /// A signal for the command.
    Signal = 4,
    /// The client leaves and the command goes on.
    Detach = 5,
    /// The sandbox is as the Plan wants it: start the first command.
    Go = 6,
    /// Nobody reads this stream any more (1 or 2, one byte).
    Hush = 7,
    /// What an interpreter was told to do, or how that ended; for the event log.
    Note = 8,
    /// A worker's or guest's answer.
    Reply = 16,
    /// Bytes from a command.
    Stdout = 17,
    /// Bytes from a command, second stream.
    Stderr = 18,
    /// What a worker tells a guest, or a guest its worker.
    Control = 32,
    /// A file operation.
    File = 48,
    /// One entry of a tree that is copied.
    Entry = 49,
    /// Bytes of a file; empty is the end of a stream without a known length.
    Bytes = 50,
    /// One change of a tree that is mirrored.
    Change = 51,
    /// A hole of a file: how many zero bytes it stands for.
    Hole = 52,
    /// What a guest says of a stream that leads into its sandbox.
    Link = 64,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Stdin,
            3 => Self::Resize,
            4 => Self::Signal,
            5 => Self::Detach,
            6 => Self::Go,
            7 => Self::Hush,
            8 => Self::Note,
            16 => Self::Reply,
            17 => Self::Stdout,
            18 => Self::Stderr,
            32 => Self::Control,
            48 => Self::File,
            49 => Self::Entry,
            50 => Self::Bytes,
            51 => Self::Change,
            52 => Self::Hole,
            64 => Self::Link,
            _ => return None,
        })
    }
}

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it carries.
    pub kind: FrameKind,
    /// The bytes.
    pub payload: Vec<u8>,
}

impl Frame {
    /// The payload as a value.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, Malformed> {
        decode(&self.payload)
    }
}

/// A part of a file that is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes as they are.
    Bytes(&'a [u8]),
    /// So many zeros that need no space on disk.
    Hole(u64),
}

/// What the other side sent is not a frame that we take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Longer than the reader's limit.
    TooLong {
        /// What the header claims.
        length: usize,
        /// What the reader takes.
        limit: usize,
    },
    /// A kind that does not exist.
    UnknownKind(u8),
    /// The payload is not the value it should be.
    Payload,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { length, limit } => {
                write!(f, "a frame of {length} bytes, where {limit} are allowed")
            }
            Self::UnknownKind(kind) => write!(f, "a frame of unknown kind {kind}"),
            Self::Payload => f.write_str("a frame whose content makes no sense"),
        }
    }
}

impl std::error::Error for Malformed {}

/// The header of a frame with a payload of this length.
pub fn header(kind: FrameKind, length: usize) -> [u8; HEADER] {
    let length = u32::try_from(length).expect("frames are cut well below 4 GiB by their writers");
    let [a, b, c, d] = length.to_le_bytes();
    [a, b, c, d, kind as u8]
}

/// A value as a whole frame.
pub fn encode<T: Serialize>(kind: FrameKind, value: &T) -> Vec<u8> {
    let payload = postcard::to_allocvec(value).expect("our own types always serialise");
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&header(kind, payload.len()));
    frame.extend_from_slice(&payload);
    frame
}

/// A payload as a value; bytes left over are an error.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(payload) {
        Ok((value, [])) => Ok(value),
        _ => Err(Malformed::Payload),
    }
}

/// The longest payload that is one number.
const LONGEST_NUMBER: usize = 10;

/// Puts frames together from bytes as they arrive.
#[derive(Debug)]
pub struct Decoder {
    limit: usize,
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// A decoder that refuses payloads longer than `limit`.
    pub fn new(limit: usize) -> Self {
        Self { limit, buffer: Vec::new(), start: 0 }
    }

    /// Adds bytes that were received.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// How many bytes are missing until the next step: of the header, then of the payload.
    /// A reader that takes no more than this never reads past the end of a frame.
    pub fn missing(&self) -> Result<usize, Malformed> {
        let have = self.buffer.len() - self.start;
        match self.peek()? {
            None => Ok(HEADER - have),
            Some((_, length)) => Ok((HEADER + length).saturating_sub(have)),
        }
    }

    /// The next whole frame, if it has arrived.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some((kind, length)) = self.peek()? else {
            return Ok(None);
        };
        let payload_at = self.start + HEADER;
        let Some(payload) = self.buffer.get(payload_at..payload_at + length) else {
            return Ok(None);
        };
        let frame = Frame { kind, payload: payload.to_vec() };
        self.start = payload_at + length;
        if self.start > self.limit {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        Ok(Some(frame))
    }

    /// Takes `left` bytes that arrive in `Bytes` and `Hole` frames, without keeping them: what is
    /// buffered first, then straight from `read`, which fills the buffer that it is given.
    ///
    /// `read` returning zero, an empty frame, another kind and more than `left` are all refused.
    pub fn stream<E: From<Malformed>>(
        &mut self,
        mut left: u64,
        buffer: &mut [u8],
        mut read: impl FnMut(&mut [u8]) -> Result<usize, E>,
        mut take: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while left > 0 {
            let (kind, length) = loop {
                match self.peek()? {
                    Some(begun) => break begun,
                    None => match read(buffer)? {
                        0 => return Err(Malformed::Payload.into()),
                        n => self.push(&buffer[..n]),
                    },
                }
            };
            if kind == FrameKind::Hole && length <= LONGEST_NUMBER {
                let hole = self.hole(buffer, &mut read)?;
                if hole == 0 || hole > left {
                    return Err(Malformed::Payload.into());
                }
                take(Piece::Hole(hole))?;
                left -= hole;
                continue;
            }
            if kind != FrameKind::Bytes || length == 0 || length as u64 > left {
                return Err(Malformed::Payload.into());
            }
            self.start += HEADER;
            let buffered = (self.buffer.len() - self.start).min(length);
            take(Piece::Bytes(&self.buffer[self.start..self.start + buffered]))?;
            self.start += buffered;
            let mut rest = length - buffered;
            while rest > 0 {
                let most = rest.min(buffer.len());
                match read(&mut buffer[..most])? {
                    0 => return Err(Malformed::Payload.into()),
                    n => {
                        take(Piece::Bytes(&buffer[..n]))?;
                        rest -= n;
                    }
                }
            }
            left -= length as u64;
        }
        Ok(())
    }

    /// The length of a hole whose frame has begun.
    fn hole<E: From<Malformed>>(
        &mut self,
        buffer: &mut [u8],
        read: &mut impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<u64, E> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(frame.value()?);
            }
            match read(buffer)? {
                0 => return Err(Malformed::Payload.into()),
                n => self.push(&buffer[..n]),
            }
        }
    }

    /// Whether a frame has begun and not ended, so that an end of file now is a broken peer.
    pub fn is_midway(&self) -> bool {
        self.start < self.buffer.len()
    }

    fn peek(&self) -> Result<Option<(FrameKind, usize)>, Malformed> {
        let Some(&[a, b, c, d, kind]) = self.buffer.get(self.start..self.start + HEADER) else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > self.limit {
            return Err(Malformed::TooLong { length, limit: self.limit });
        }
        let kind = FrameKind::from_byte(kind).ok_or(Malformed::UnknownKind(kind))?;
        Ok(Some((kind, length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_arrives_byte_by_byte() {
        let bytes = encode(FrameKind::Reply, &("hello".to_owned(), 7u32));
        let mut decoder = Decoder::new(100);
        for byte in &bytes[..bytes.len() - 1] {
            decoder.push(&[*byte]);
            assert_eq!(decoder.next_frame(), Ok(None));
        }
        assert_eq!(decoder.missing(), Ok(1));
        decoder.push(&bytes[bytes.len() - 1..]);
        let frame = decoder.next_frame().unwrap().unwrap();
        assert_eq!(frame.value::<(String, u32)>().unwrap(), ("hello".to_owned(), 7));
        assert!(!decoder.is_midway());
    }

    #[test]
    fn a_length_over_the_limit_is_refused_before_its_payload_arrives() {
        let mut decoder = Decoder::new(100);
        decoder.push(&[0xff, 0xff, 0xff, 0xff, 17]);
        let limit = Malformed::TooLong { length: 0xffff_ffff, limit: 100 };
        assert_eq!(decoder.next_frame(), Err(limit));
    }

    #[test]
    fn bytes_are_streamed_past_the_buffer() {
        let mut wire = Vec::new();
        for piece in [&b"hello "[..], b"world", b"!"] {
            wire.extend_from_slice(&header(FrameKind::Bytes, piece.len()));
            wire.extend_from_slice(piece);
        }
        wire.extend_from_slice(&encode(FrameKind::Hole, &(1u64 << 40)));
        wire.extend_from_slice(&encode(FrameKind::Reply, &7u8));
        for step in 1..wire.len() {
            let (mut at, mut said, mut holes) = (0, Vec::new(), 0);
            let mut decoder = Decoder::new(100);
            let mut read = |buffer: &mut [u8]| -> Result<usize, Malformed> {
                let n = step.min(buffer.len()).min(wire.len() - at);
                buffer[..n].copy_from_slice(&wire[at..at + n]);
                at += n;
                Ok(n)
            };
            let take = |piece: Piece<'_>| -> Result<(), Malformed> {
                match piece {
                    Piece::Bytes(bytes) => said.extend_from_slice(bytes),
                    Piece::Hole(length) => holes += length,
                }
                Ok(())
            };
            decoder.stream(12 + (1 << 40), &mut [0; 64], &mut read, take).unwrap();
            assert_eq!((&said[..], holes), (&b"hello world!"[..], 1 << 40));
            let reply = loop {
                if let Some(frame) = decoder.next_frame().unwrap() {
                    break frame;
                }
                let mut buffer = [0; 64];
                let n = read(&mut buffer).unwrap();
                decoder.push(&buffer[..n]);
            };
            assert_eq!(reply.value(), Ok(7u8));
        }
    }

    #[test]
    fn more_bytes_than_promised_are_refused() {
        let mut decoder = Decoder::new(100);
        decoder.push(&header(FrameKind::Bytes, 5));
        let refused = decoder.stream(4, &mut [0; 8], |_| Ok(0), |_| Ok::<(), Malformed>(()));
        assert_eq!(refused, Err(Malformed::Payload));
        for hole in [0u64, 5, u64::MAX] {
            let mut decoder = Decoder::new(100);
            decoder.push(&encode(FrameKind::Hole, &hole));
            let refused = decoder.stream(4, &mut [0; 8], |_| Ok(0), |_| Ok::<(), Malformed>(()));
            assert_eq!(refused, Err(Malformed::Payload), "{hole}");
        }
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let mut decoder = Decoder::new(100);
        decoder.push(&[0, 0, 0, 0, 99]);
        assert_eq!(decoder.next_frame(), Err(Malformed::UnknownKind(99)));
    }

    #[test]
    fn bytes_behind_a_value_are_refused() {
        assert_eq!(decode::<u8>(&[1, 2]), Err(Malformed::Payload));
    }

    #[test]
    fn many_frames_do_not_grow_the_buffer() {
        let frame = encode(FrameKind::Stdout, &vec![7u8; 64]);
        let mut decoder = Decoder::new(1000);
        for _ in 0..1000 {
            decoder.push(&frame);
            assert!(decoder.next_frame().unwrap().is_some());
        }
        assert!(decoder.buffer.capacity() < 4096);
    }
}
