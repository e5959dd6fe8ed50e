//! Finds where messages end in a stream, by its protocol, whatever they contain.
//!
//! A value does not span messages, so nothing has to be held back after the end of one. Only the
//! framing is parsed: no byte of a value decides.

use crate::secrets::value_search::ValueSearch;
use hyper::header::{CONTENT_TYPE, HeaderMap};

/// How a stream is divided into messages.
pub(crate) enum MessageEnd {
    /// One message: only the end of the stream ends it.
    Never,
    /// Lines: server-sent events, JSON lines, logs.
    UpstreamConn,
    /// Length-prefixed messages of gRPC.
    GrpcFrames(GrpcFrames),
    /// Frames of a WebSocket connection.
    WebSocketFrames(WebSocketFrames),
}

impl MessageEnd {
    /// For the body of a response, by its content type.
    pub(crate) fn of_body(headers: &HeaderMap, values: &ValueSearch) -> Self {
        let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes().to_ascii_lowercase());
        match kind {
            Some(kind) if kind.starts_with(b"application/grpc") => {
                Self::GrpcFrames(GrpcFrames::default())
            }
            _ if values.has_line_end() => Self::Never,
            _ => Self::UpstreamConn,
        }
    }

    /// For what a server sends on a WebSocket.
    pub(crate) fn of_websocket() -> Self {
        Self::WebSocketFrames(WebSocketFrames::default())
    }

    /// Takes the next chunk of the stream; returns the offset after the last message end in it.
    pub(crate) fn last_end_in(&mut self, piece: &[u8]) -> Option<usize> {
        match self {
            Self::Never => None,
            Self::UpstreamConn => piece.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1),
            Self::GrpcFrames(grpc) => last_end_in(piece, |rest| grpc.take(rest)),
            Self::WebSocketFrames(websocket) => last_end_in(piece, |rest| websocket.take(rest)),
        }
    }
}

/// Feeds a parser that returns how much it took, and whether a message ends there.
fn last_end_in(piece: &[u8], mut take: impl FnMut(&[u8]) -> (usize, bool)) -> Option<usize> {
    let (mut at, mut last) = (0, None);
    while at < piece.len() {
        let (taken, ends) = take(&piece[at..]);
        at += taken;
        if ends {
            last = Some(at);
        }
    }
    last
}

/// Parses the prefix of each message: a flag and the length in four bytes.
#[derive(Default)]
pub(crate) struct GrpcFrames {
    prefix: Vec<u8>,
    left: u64,
}

impl GrpcFrames {
    fn take(&mut self, rest: &[u8]) -> (usize, bool) {
        if self.prefix.len() < 5 {
            self.prefix.push(rest[0]);
            if let [_, length @ ..] = &self.prefix[..]
                && let Ok(length) = length.try_into()
            {
                self.left = u64::from(u32::from_be_bytes(length));
                return (1, self.ends());
            }
            return (1, false);
        }
        let taken = take_len(self.left, rest);
        self.left -= taken as u64;
        (taken, self.ends())
    }

    fn ends(&mut self) -> bool {
        let ends = self.left == 0;
        if ends {
            self.prefix.clear();
        }
        ends
    }
}

/// Parses the header of each frame (RFC 6455, section 5.2).
#[derive(Default)]
pub(crate) struct WebSocketFrames {
    head: Vec<u8>,
    left: u64,
    /// Whether the last frame of a fragmented message is still to come.
    open: bool,
}

impl WebSocketFrames {
    fn take(&mut self, rest: &[u8]) -> (usize, bool) {
        if self.head.len() < self.head_length() {
            self.head.push(rest[0]);
            if self.head.len() < self.head_length() {
                return (1, false);
            }
            let length = match self.head[1] & 0x7f {
                126 => 2..4,
                127 => 2..10,
                _ => 1..2,
            };
            let own =
                self.head[length].iter().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
            self.left = if self.head[1] & 0x7f < 126 { own & 0x7f } else { own };
            return (1, self.ends());
        }
        let taken = take_len(self.left, rest);
        self.left -= taken as u64;
        (taken, self.ends())
    }

    /// The length of the frame header, as far as it is known.
    fn head_length(&self) -> usize {
        let Some(second) = self.head.get(1) else { return 2 };
        let mask = if second & 0x80 == 0 { 0 } else { 4 };
        mask + match second & 0x7f {
            126 => 4,
            127 => 10,
            _ => 2,
        }
    }

    fn ends(&mut self) -> bool {
        if self.left > 0 {
            return false;
        }
        let (last, control) = (self.head[0] & 0x80 != 0, self.head[0] & 8 != 0);
        self.head.clear();
        if !control {
            self.open = !last;
        }
        !self.open
    }
}

fn take_len(left: u64, rest: &[u8]) -> usize {
    usize::try_from(left).map_or(rest.len(), |left| left.min(rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All message ends, found byte by byte and in one chunk.
    fn ends(new: impl Fn() -> MessageEnd, stream: &[u8]) -> Vec<usize> {
        let mut all = Vec::new();
        let mut by_byte = new();
        for (at, byte) in stream.iter().enumerate() {
            all.extend(by_byte.last_end_in(&[*byte]).map(|end| at + end));
        }
        assert_eq!(new().last_end_in(stream), all.last().copied());
        all
    }

    #[test]
    fn messages_end_where_their_protocol_says() {
        assert_eq!(ends(|| MessageEnd::UpstreamConn, b"data: x\n\ny"), [8, 9]);
        assert_eq!(ends(|| MessageEnd::Never, b"data: x\n\ny"), [0; 0]);
        let grpc = b"\0\0\0\0\x02ab\0\0\0\0\0\0\0\0\0\x03abc\0";
        assert_eq!(ends(|| MessageEnd::GrpcFrames(GrpcFrames::default()), grpc), [7, 12, 20]);
        let mut frames = b"\x81\x02hi\x01\x01a\x89\x00\x80\x01b".to_vec();
        frames.extend([&b"\x82\x7e\x01\x00"[..], &[7; 256]].concat());
        frames.extend([&b"\x82\x7f\0\0\0\0\0\0\x01\x00"[..], &[7; 256]].concat());
        let wanted = [4, 12, 12 + 260, 12 + 260 + 266];
        assert_eq!(ends(MessageEnd::of_websocket, &frames), wanted);
    }
}
