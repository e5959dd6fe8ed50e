//! The frame: length, kind and payload, encoded and decoded.

use serde::{Serialize, de::DeserializeOwned};
use std::fmt;

/// Bytes of the header: length and kind.
pub const HEADER: usize = 5;

/// Kind of a frame: which payload it carries, and its number on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// The first frame of a connection to a worker.
    Hello = 1,
    /// Bytes for the stdin of a command; an empty frame is end of file.
    Stdin = 2,
    /// A new terminal size in rows and columns.
    Resize = 3,
    /// A signal for the command of this connection.
    Signal = 4,
    /// The client disconnects and the command continues.
    Detach = 5,
    /// Patches are applied: the worker starts the first command.
    Go = 6,
    /// The reader of this output stream has gone (1 is stdout, 2 is stderr; one byte): the command
    /// gets a broken pipe.
    CloseOutput = 7,
    /// Start or end of a code run in an interpreter; for the event log.
    Note = 8,
    /// An answer of a worker or guest.
    Reply = 16,
    /// Bytes from the stdout of a command, or its terminal.
    Stdout = 17,
    /// Bytes from the stderr of a command.
    Stderr = 18,
    /// A message between worker and guest or gateway.
    Control = 32,
    /// A request for a file operation.
    File = 48,
    /// One entry of a copied tree.
    Entry = 49,
    /// Bytes of a file; an empty frame ends a stream of unknown length.
    Bytes = 50,
    /// One change to a mirrored tree.
    Change = 51,
    /// A hole of a file: its length in zero bytes.
    Hole = 52,
    /// The state of a stream into the sandbox.
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
            7 => Self::CloseOutput,
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

/// One frame with its payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Kind of the payload, from the header.
    pub kind: FrameKind,
    /// Bytes behind the header, as they arrived.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Decodes the payload as a value.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        decode(&self.payload)
    }
}

/// A part of a streamed file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Bytes of the file, as they are.
    Bytes(&'a [u8]),
    /// A hole of so many zero bytes, which needs no space on disk.
    Hole(u64),
}

/// Why bytes of a peer are no valid frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// The payload is longer than the reader's limit.
    TooLong {
        /// Length in bytes that the header claims.
        length: usize,
        /// Longest payload in bytes that the reader accepts.
        limit: usize,
    },
    /// The kind is not one of `FrameKind`.
    UnknownKind(u8),
    /// The payload does not decode as the expected value.
    Payload,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { length, limit } => {
                write!(f, "frame of {length} bytes exceeds the limit of {limit}")
            }
            Self::UnknownKind(kind) => write!(f, "frame of unknown kind {kind}"),
            Self::Payload => f.write_str("frame with an invalid payload"),
        }
    }
}

impl std::error::Error for FrameError {}

/// Header of a frame with a payload of `length` bytes.
pub fn header(kind: FrameKind, length: usize) -> [u8; HEADER] {
    let length = u32::try_from(length).expect("frames are cut well below 4 GiB by their writers");
    let [a, b, c, d] = length.to_le_bytes();
    [a, b, c, d, kind as u8]
}

/// Encodes a value as a complete frame, in postcard.
pub fn encode<T: Serialize>(kind: FrameKind, value: &T) -> Vec<u8> {
    let payload = postcard::to_allocvec(value).expect("our own types always serialise");
    let mut frame = Vec::with_capacity(HEADER + payload.len());
    frame.extend_from_slice(&header(kind, payload.len()));
    frame.extend_from_slice(&payload);
    frame
}

/// Decodes a payload; trailing bytes are an error.
pub fn decode<T: DeserializeOwned>(payload: &[u8]) -> Result<T, FrameError> {
    match postcard::take_from_bytes(payload) {
        Ok((value, [])) => Ok(value),
        _ => Err(FrameError::Payload),
    }
}

/// Longest postcard encoding of a `u64`, in bytes.
const LONGEST_VARINT: usize = 10;

/// Reassembles frames from bytes as they arrive.
#[derive(Debug)]
pub(crate) struct Decoder {
    limit: usize,
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// A decoder that refuses payloads longer than `limit`.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, buffer: Vec::new(), start: 0 }
    }

    /// Adds received bytes to the buffer.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Bytes that are missing for the next step: of the header, then of the payload. A reader that
    /// takes no more than this never reads past the end of a frame.
    pub(crate) fn missing(&self) -> Result<usize, FrameError> {
        let have = self.buffer.len() - self.start;
        match self.peek()? {
            None => Ok(HEADER - have),
            Some((_, length)) => Ok((HEADER + length).saturating_sub(have)),
        }
    }

    /// The next complete frame; `None` if more bytes are needed.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
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

    /// Streams `left` bytes that arrive in `Bytes` and `Hole` frames to `take`, without buffering
    /// whole frames: first what is buffered, then directly from `read`, which fills the buffer that
    /// it is given.
    ///
    /// An end of file, an empty frame, another kind and more than `left` bytes are errors.
    pub(crate) fn stream<E: From<FrameError>>(
        &mut self,
        mut left: u64,
        buffer: &mut [u8],
        mut read: impl FnMut(&mut [u8]) -> Result<usize, E>,
        mut take: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while left > 0 {
            let (kind, length) = loop {
                match self.peek()? {
                    Some(header) => break header,
                    None => match read(buffer)? {
                        0 => return Err(FrameError::Payload.into()),
                        n => self.push(&buffer[..n]),
                    },
                }
            };
            if kind == FrameKind::Hole && length <= LONGEST_VARINT {
                let hole = self.hole(buffer, &mut read)?;
                if hole == 0 || hole > left {
                    return Err(FrameError::Payload.into());
                }
                take(Piece::Hole(hole))?;
                left -= hole;
                continue;
            }
            if kind != FrameKind::Bytes || length == 0 || length as u64 > left {
                return Err(FrameError::Payload.into());
            }
            self.start += HEADER;
            let buffered = (self.buffer.len() - self.start).min(length);
            take(Piece::Bytes(&self.buffer[self.start..self.start + buffered]))?;
            self.start += buffered;
            let mut rest = length - buffered;
            while rest > 0 {
                let most = rest.min(buffer.len());
                match read(&mut buffer[..most])? {
                    0 => return Err(FrameError::Payload.into()),
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

    /// Length of a hole, once its frame has arrived.
    fn hole<E: From<FrameError>>(
        &mut self,
        buffer: &mut [u8],
        read: &mut impl FnMut(&mut [u8]) -> Result<usize, E>,
    ) -> Result<u64, E> {
        loop {
            if let Some(frame) = self.next_frame()? {
                return Ok(frame.value()?);
            }
            match read(buffer)? {
                0 => return Err(FrameError::Payload.into()),
                n => self.push(&buffer[..n]),
            }
        }
    }

    /// Whether a frame is incomplete: an end of file now means a broken peer.
    pub(crate) fn is_midway(&self) -> bool {
        self.start < self.buffer.len()
    }

    fn peek(&self) -> Result<Option<(FrameKind, usize)>, FrameError> {
        let Some(&[a, b, c, d, kind]) = self.buffer.get(self.start..self.start + HEADER) else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length > self.limit {
            return Err(FrameError::TooLong { length, limit: self.limit });
        }
        let kind = FrameKind::from_byte(kind).ok_or(FrameError::UnknownKind(kind))?;
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
        let limit = FrameError::TooLong { length: 0xffff_ffff, limit: 100 };
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
            let (mut at, mut received, mut holes) = (0, Vec::new(), 0);
            let mut decoder = Decoder::new(100);
            let mut read = |buffer: &mut [u8]| -> Result<usize, FrameError> {
                let n = step.min(buffer.len()).min(wire.len() - at);
                buffer[..n].copy_from_slice(&wire[at..at + n]);
                at += n;
                Ok(n)
            };
            let take = |piece: Piece<'_>| -> Result<(), FrameError> {
                match piece {
                    Piece::Bytes(bytes) => received.extend_from_slice(bytes),
                    Piece::Hole(length) => holes += length,
                }
                Ok(())
            };
            decoder.stream(12 + (1 << 40), &mut [0; 64], &mut read, take).unwrap();
            assert_eq!((&received[..], holes), (&b"hello world!"[..], 1 << 40));
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
        let refused = decoder.stream(4, &mut [0; 8], |_| Ok(0), |_| Ok::<(), FrameError>(()));
        assert_eq!(refused, Err(FrameError::Payload));
        for hole in [0u64, 5, u64::MAX] {
            let mut decoder = Decoder::new(100);
            decoder.push(&encode(FrameKind::Hole, &hole));
            let refused = decoder.stream(4, &mut [0; 8], |_| Ok(0), |_| Ok::<(), FrameError>(()));
            assert_eq!(refused, Err(FrameError::Payload), "{hole}");
        }
    }

    #[test]
    fn an_unknown_kind_is_refused() {
        let mut decoder = Decoder::new(100);
        decoder.push(&[0, 0, 0, 0, 99]);
        assert_eq!(decoder.next_frame(), Err(FrameError::UnknownKind(99)));
    }

    #[test]
    fn bytes_behind_a_value_are_refused() {
        assert_eq!(decode::<u8>(&[1, 2]), Err(FrameError::Payload));
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
