//! Frames between the server and a driver: a letter, eight digits of length, a line feed, the
//! payload.
//!
//! The driver runs untrusted code and is untrusted itself. Lengths are checked before anything is
//! buffered, and an invalid frame ends the interpreter.

use msb_spec::{Error, Kind, Result};

/// Bytes before the payload.
const HEADER: usize = 10;
/// Longest payload in bytes; drivers split output into chunks of 64 KiB.
const LONGEST: usize = 128 << 10;
/// Bytes of the call number before the code, and before the status of its end.
const NUMBER: usize = 8;

/// A message of the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DriverFrame {
    /// The driver waits for code.
    Ready,
    /// Output of the code on stdout.
    Stdout(Vec<u8>),
    /// Output of the code on stderr.
    Stderr(Vec<u8>),
    /// The code of this call has ended.
    Done {
        /// The number of the call.
        number: u64,
        /// Whether it ended without an exception.
        succeeded: bool,
    },
}

/// Encodes a request to run code.
pub(super) fn encode_request(number: u64, code: &str) -> Vec<u8> {
    let mut frame = format!("c{:08x}\n", NUMBER + code.len()).into_bytes();
    frame.extend_from_slice(&number.to_be_bytes());
    frame.extend_from_slice(code.as_bytes());
    frame
}

/// Collects bytes until a frame is complete.
#[derive(Debug, Default)]
pub(super) struct FrameDecoder(Vec<u8>);

impl FrameDecoder {
    /// Adds received bytes to the buffer.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next frame, if it is complete.
    pub(super) fn next(&mut self) -> Result<Option<DriverFrame>> {
        let Some((header, rest)) = self.0.split_at_checked(HEADER) else {
            return Ok(None);
        };
        let digits = std::str::from_utf8(&header[1..HEADER - 1]).map_err(|_| invalid_frame())?;
        let succeeded = digits.bytes().all(|byte| byte.is_ascii_hexdigit()) && header[9] == b'\n';
        let length = usize::from_str_radix(digits, 16).map_err(|_| invalid_frame())?;
        if !succeeded || length > LONGEST {
            return Err(invalid_frame());
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = match header[0] {
            b'r' if payload.is_empty() => DriverFrame::Ready,
            b'o' => DriverFrame::Stdout(payload.to_vec()),
            b'e' => DriverFrame::Stderr(payload.to_vec()),
            b'd' => {
                let (number, mark) =
                    payload.split_first_chunk::<NUMBER>().ok_or_else(invalid_frame)?;
                DriverFrame::Done { number: u64::from_be_bytes(*number), succeeded: mark == b"+" }
            }
            _ => return Err(invalid_frame()),
        };
        self.0.drain(..HEADER + length);
        Ok(Some(frame))
    }
}

fn invalid_frame() -> Error {
    Error::new(Kind::Protocol, "the interpreter sent an invalid frame")
        .hint("code must not write to the interpreter's own descriptors")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8], piece: usize) -> Result<Vec<DriverFrame>> {
        let (mut decoder, mut frames) = (FrameDecoder::default(), Vec::new());
        for piece in bytes.chunks(piece) {
            decoder.push(piece);
            while let Some(frame) = decoder.next()? {
                frames.push(frame);
            }
        }
        Ok(frames)
    }

    #[test]
    fn frames_are_decoded_in_any_chunks() {
        let bytes = b"r00000000\no00000003\nr00e00000000\nd00000009\n\0\0\0\0\0\0\0\x07+";
        let frames = [
            DriverFrame::Ready,
            DriverFrame::Stdout(b"r00".to_vec()),
            DriverFrame::Stderr(Vec::new()),
            DriverFrame::Done { number: 7, succeeded: true },
        ];
        for piece in [1, 7, bytes.len()] {
            assert_eq!(all(bytes, piece).unwrap(), frames, "{piece}");
        }
    }

    #[test]
    fn invalid_frames_are_rejected_before_they_are_buffered() {
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
    fn a_request_is_a_frame_of_number_and_code() {
        assert_eq!(encode_request(258, "x=1"), b"c0000000b\n\0\0\0\0\0\0\x01\x02x=1");
    }
}
