//! The frames between us and a driver: a letter, eight digits of length, a line end, the payload.
//!
//! The driver runs the code of others and is as hostile as they are: lengths are checked before
//! anything is kept, and what is no frame ends the interpreter.

use msb_spec::{Error, Kind, Result};

/// Bytes before the payload.
const HEADER: usize = 10;
/// The longest payload; drivers cut what they say into pieces of 64 KiB.
const LONGEST: usize = 128 << 10;
/// What stands before the code in an order, and before the mark in the report of its end.
const NUMBER: usize = 8;

/// What a driver reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// It waits for code.
    Ready,
    /// Code has written this to its stdout.
    Stdout(Vec<u8>),
    /// Code has written this to its stderr.
    Stderr(Vec<u8>),
    /// Code of this number has ended, well or not.
    Done {
        /// Which.
        number: u64,
        /// Whether nothing was thrown.
        well: bool,
    },
}

/// An order to run code.
pub(super) fn order(number: u64, code: &str) -> Vec<u8> {
    let mut frame = format!("c{:08x}\n", NUMBER + code.len()).into_bytes();
    frame.extend_from_slice(&number.to_be_bytes());
    frame.extend_from_slice(code.as_bytes());
    frame
}

/// Bytes on their way to frames.
#[derive(Debug, Default)]
pub(super) struct Decoder(Vec<u8>);

impl Decoder {
    /// Takes what was read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next frame, if it is whole.
    pub(super) fn next(&mut self) -> Result<Option<Frame>> {
        let Some((header, rest)) = self.0.split_at_checked(HEADER) else {
            return Ok(None);
        };
        let digits = std::str::from_utf8(&header[1..HEADER - 1]).map_err(|_| broken())?;
        let well = digits.bytes().all(|byte| byte.is_ascii_hexdigit()) && header[9] == b'\n';
        let length = usize::from_str_radix(digits, 16).map_err(|_| broken())?;
        if !well || length > LONGEST {
            return Err(broken());
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = match header[0] {
            b'r' if payload.is_empty() => Frame::Ready,
            b'o' => Frame::Stdout(payload.to_vec()),
            b'e' => Frame::Stderr(payload.to_vec()),
            b'd' => {
                let (number, mark) = payload.split_first_chunk::<NUMBER>().ok_or_else(broken)?;
                Frame::Done { number: u64::from_be_bytes(*number), well: mark == b"+" }
            }
            _ => return Err(broken()),
        };
        self.0.drain(..HEADER + length);
        Ok(Some(frame))
    }
}

fn broken() -> Error {
    Error::new(Kind::Protocol, "what the interpreter sent cannot be read")
        .hint("code must leave the interpreter's own descriptors alone")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], piece: usize) -> Result<Vec<Frame>> {
        let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(frame) = decoder.next()? {
                frames.push(frame);
            }
        }
        Ok(frames)
    }

    #[test]
    fn frames_are_read_however_they_are_cut() {
        let bytes = b"r00000000\no00000003\nr00e00000000\nd00000009\n\0\0\0\0\0\0\0\x07+";
        let frames = [
            Frame::Ready,
            Frame::Stdout(b"r00".to_vec()),
            Frame::Stderr(Vec::new()),
            Frame::Done { number: 7, well: true },
        ];
        for piece in [1, 7, bytes.len()] {
            assert_eq!(all(bytes, piece).unwrap(), frames, "{piece}");
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_before_it_is_kept() {
        let wrong = [
            &b"Traceback (most recent"[..],
            b"offffffff\n",
            b"o00020001\n",
            b"o+0000001\nx",
            b"x00000001\nx",
            b"d00000001\nx",
            b"r00000001\nx",
            b"o00000001 x",
            b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ];
        for wrong in wrong {
            assert!(all(wrong, wrong.len()).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn an_order_is_a_frame_of_its_number_and_code() {
        assert_eq!(order(258, "x=1"), b"c0000000b\n\0\0\0\0\0\0\x01\x02x=1");
    }
}
