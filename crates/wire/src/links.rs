//! What a guest says of streams that lead into its sandbox, each on a connection of its own.
//!
//! The answer is one frame of kind `Link`. What follows it are the bytes of the stream and no frames, except where
//! somebody listens: there each frame tells of one who has connected.

use crate::frame::{Decoder, FrameKind, Malformed, header};
use serde::{Deserialize, Serialize};

/// Where something listens inside a sandbox, or can be reached from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// An address or a name, and a port; with none to listen at, one is chosen.
    Tcp {
        /// The address or name.
        host: String,
        /// The port.
        port: u16,
    },
    /// A socket of its file system.
    Unix {
        /// Its path; a relative one begins at the user's home.
        path: Vec<u8>,
    },
}

/// What a guest says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkReply {
    /// From here on the stream is open.
    Open,
    /// Somebody listens there.
    Listening {
        /// With the port that was chosen.
        at: Target,
    },
    /// Somebody has connected.
    Accepted {
        /// To be asked for with.
        number: u64,
        /// From where; empty for a socket of the file system.
        host: String,
        /// From which port.
        port: u16,
    },
    /// It could not be done.
    Failed {
        /// Why.
        failure: LinkFailure,
        /// What the kernel said, if it was asked.
        errno: i32,
    },
}

/// Why a stream does not lead anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkFailure {
    /// There is no such user or group inside.
    User,
    /// This sandbox has only root.
    OnlyRoot,
    /// What was asked for makes no sense.
    Invalid,
    /// Nobody knows the name.
    Name,
    /// Nobody listens there.
    Refused,
    /// The user may not.
    Denied,
    /// No way leads there.
    Unreachable,
    /// Nobody answered in time.
    Timeout,
    /// Somebody listens there already.
    InUse,
    /// As many as there may be are there already.
    TooMany,
    /// Nobody of that number waits.
    Gone,
    /// Something else; the kernel said what.
    System,
}

/// Longest piece of a stream in a frame.
const PIECE: usize = 64 << 10;

/// Puts a piece of a stream into frames, behind what is there; an empty one is its end. A
/// connection to a machine cannot be closed in one direction, so the end has a frame.
pub fn wrap(bytes: &[u8], out: &mut Vec<u8>) {
    for piece in bytes.chunks(PIECE) {
        out.extend_from_slice(&header(FrameKind::Bytes, piece.len()));
        out.extend_from_slice(piece);
    }
    if bytes.is_empty() {
        out.extend_from_slice(&header(FrameKind::Bytes, 0));
    }
}

/// Takes a stream out of its frames again.
#[derive(Debug)]
pub struct Unwrapping {
    decoder: Decoder,
}

impl Default for Unwrapping {
    fn default() -> Self {
        Self { decoder: Decoder::new(PIECE) }
    }
}

impl Unwrapping {
    /// Adds what the frames in these bytes hold to `out`; true once the stream has ended. What a
    /// guest says before the stream stays in its frame.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<bool, Malformed> {
        self.decoder.push(bytes);
        while let Some(frame) = self.decoder.next_frame()? {
            match frame.kind {
                FrameKind::Bytes if frame.payload.is_empty() => return Ok(true),
                FrameKind::Bytes => out.extend_from_slice(&frame.payload),
                FrameKind::Link => {
                    out.extend_from_slice(&header(FrameKind::Link, frame.payload.len()));
                    out.extend_from_slice(&frame.payload);
                }
                _ => return Err(Malformed::Payload),
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode, encode};

    #[test]
    fn an_answer_survives_the_way() {
        let at = Target::Tcp { host: "127.0.0.1".to_owned(), port: 7 };
        let reply = LinkReply::Listening { at };
        let frame = encode(FrameKind::Link, &reply);
        assert_eq!(decode(&frame[crate::HEADER..]), Ok(reply));
    }

    #[test]
    fn a_stream_comes_out_of_its_frames_as_it_went_in() {
        let reply = encode(FrameKind::Link, &LinkReply::Open);
        let bytes: Vec<u8> = (0..200_000u32).map(|number| number as u8).collect();
        let mut wrapped = reply.clone();
        wrap(&bytes, &mut wrapped);
        wrap(&[], &mut wrapped);
        let (mut unwrapping, mut out) = (Unwrapping::default(), Vec::new());
        let mut ended = false;
        for piece in wrapped.chunks(1000) {
            assert!(!ended);
            ended = unwrapping.take(piece, &mut out).unwrap();
        }
        assert!(ended);
        assert_eq!(out, [reply, bytes].concat());
    }

    #[test]
    fn nothing_else_is_a_stream() {
        let frame = encode(FrameKind::Reply, &7u8);
        let refused = Unwrapping::default().take(&frame, &mut Vec::new());
        assert_eq!(refused, Err(Malformed::Payload));
        let long = header(FrameKind::Bytes, PIECE + 1);
        assert!(Unwrapping::default().take(&long, &mut Vec::new()).is_err());
    }
}
