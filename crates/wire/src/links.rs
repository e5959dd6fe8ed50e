//! Replies of a guest about streams into its sandbox, each on its own connection.
//!
//! The reply is one frame of kind `Link`. The raw bytes of the stream follow it, without frames. A
//! listener is the exception: each further `Link` frame there reports one incoming connection.

use crate::frame::{Decoder, FrameError, FrameKind, header};
use serde::{Deserialize, Serialize};

/// Address of a socket inside a sandbox, or reachable from there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A host and a TCP port; a listener with port 0 gets a free one.
    Tcp {
        /// IP address or host name.
        host: String,
        /// TCP port; 0 for any, when listening.
        port: u16,
    },
    /// A Unix socket of the sandbox.
    Unix {
        /// Path inside; a relative one starts at the user's home.
        path: Vec<u8>,
    },
}

/// Reply of a guest about one stream or listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkReply {
    /// The stream is open: its bytes follow.
    Open,
    /// The listener is open.
    Listening {
        /// Address, with the port that was chosen.
        at: Target,
    },
    /// A peer has connected to the listener.
    Accepted {
        /// Number by which `Accept` requests this connection.
        number: u64,
        /// IP address of the peer; empty for a Unix socket.
        host: String,
        /// Port of the peer; 0 for a Unix socket.
        port: u16,
    },
    /// The stream or listener was not opened.
    Failed {
        /// Kind of failure, as far as it is known.
        failure: LinkFailure,
        /// Error number of the kernel; 0 if it was not called.
        errno: i32,
    },
}

/// Why a stream or listener was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkFailure {
    /// There is no such user or group inside.
    User,
    /// Another user than root was requested, and only root is mapped in this sandbox.
    OnlyRoot,
    /// The address is not valid.
    Invalid,
    /// The host name does not resolve.
    Name,
    /// No process listens at the address.
    Refused,
    /// The user lacks the permission.
    Denied,
    /// The network has no route to the address.
    Unreachable,
    /// The peer did not answer in time.
    Timeout,
    /// The address is in use by another listener.
    InUse,
    /// The limit of open streams is reached.
    TooMany,
    /// No waiting connection has this number.
    Gone,
    /// Another error; `errno` says which.
    System,
}

/// Longest piece of a stream in one frame, in bytes.
const PIECE: usize = 64 << 10;

/// Appends a piece of a stream to `out` as frames; an empty piece is the end of the stream. A vsock
/// connection to a microVM cannot be half-closed, so the end is a frame.
pub fn wrap(bytes: &[u8], out: &mut Vec<u8>) {
    for piece in bytes.chunks(PIECE) {
        out.extend_from_slice(&header(FrameKind::Bytes, piece.len()));
        out.extend_from_slice(piece);
    }
    if bytes.is_empty() {
        out.extend_from_slice(&header(FrameKind::Bytes, 0));
    }
}

/// Extracts a stream from its frames.
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
    /// Appends the stream bytes of these frames to `out`; true once the stream has ended. A `Link`
    /// frame before the stream is copied as a frame.
    pub fn take(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> Result<bool, FrameError> {
        self.decoder.push(bytes);
        while let Some(frame) = self.decoder.next_frame()? {
            match frame.kind {
                FrameKind::Bytes if frame.payload.is_empty() => return Ok(true),
                FrameKind::Bytes => out.extend_from_slice(&frame.payload),
                FrameKind::Link => {
                    out.extend_from_slice(&header(FrameKind::Link, frame.payload.len()));
                    out.extend_from_slice(&frame.payload);
                }
                _ => return Err(FrameError::Payload),
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
    fn a_reply_is_decoded_as_it_was_encoded() {
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
    fn other_frames_are_refused() {
        let frame = encode(FrameKind::Reply, &7u8);
        let refused = Unwrapping::default().take(&frame, &mut Vec::new());
        assert_eq!(refused, Err(FrameError::Payload));
        let long = header(FrameKind::Bytes, PIECE + 1);
        assert!(Unwrapping::default().take(&long, &mut Vec::new()).is_err());
    }
}
