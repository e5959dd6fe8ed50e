//! Finds where HTTP/1 requests begin and end, and refuses ambiguous framing (request smuggling).
//!
//! hyper is too lenient here: it ignores a `Content-Length` beside a `Transfer-Encoding` and
//! accepts a bare line feed. Input that two parsers could split differently is refused before any
//! of it is forwarded.

use crate::tcp::sniff::{MAX_SNIFF_BYTES, is_token};

/// The most headers of a request, more than any client sends.
pub(crate) const MAX_HEADERS: usize = 256;

/// The longest line of a chunk size with its extensions, which no client uses.
const MAX_CHUNK_LINE: usize = 4 << 10;

/// What is wrong with a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FramingFault {
    /// It is no request head of HTTP/1.
    FrameError,
    /// It exceeds the length limit.
    TooLong,
    /// A line does not end with CR LF.
    LineEnd,
    /// A header is folded onto the next line.
    Folded,
    /// The length of its body is ambiguous or invalid.
    Length,
}

impl FramingFault {
    /// The reason as it is shown and recorded.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::FrameError => "a malformed request",
            Self::TooLong => "a request head that is too long",
            Self::LineEnd => "a request head with bare line ends",
            Self::Folded => "a request head with a folded header",
            Self::Length => "a request body whose length is ambiguous",
        }
    }
}

/// What is parsed next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramingState {
    Head,
    Body(u64),
    ChunkLine(usize),
    Chunk(u64),
    /// CR and LF after a chunk; how many of them were read.
    ChunkEnd(usize),
    /// Trailers: the length of the current line, and of all lines.
    Trailer(usize, usize),
    /// A WebSocket was requested: what follows depends on the answer.
    WebSocketPending,
    /// A WebSocket: bytes are forwarded unparsed.
    Raw,
    /// The end: further bytes are discarded.
    Over,
}

/// Splits the bytes of one connection into requests.
#[derive(Debug)]
pub(crate) struct RequestFraming {
    state: FramingState,
    head: Vec<u8>,
    /// The chunk size parsed so far.
    length: u64,
    /// Whether the chunk size has ended and an extension follows.
    extended: bool,
    /// The previous byte, in lines of chunks and trailers.
    previous: u8,
    broken_in_body: bool,
}

impl Default for RequestFraming {
    fn default() -> Self {
        Self {
            state: FramingState::Head,
            head: Vec::new(),
            length: 0,
            extended: false,
            previous: 0,
            broken_in_body: false,
        }
    }
}

impl RequestFraming {
    /// Parses received bytes and appends to `out` what may be forwarded. Returns the bytes taken;
    /// the rest has to wait for [`RequestFraming::websocket_answered`]. After an error nothing more
    /// is taken.
    pub(crate) fn take(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, FramingFault> {
        let mut taken = 0;
        while taken < input.len() && self.state != FramingState::WebSocketPending {
            let rest = &input[taken..];
            match self.step(rest, out) {
                Ok(count) => taken += count,
                Err(fault) => {
                    self.broken_in_body = self.state != FramingState::Head;
                    self.state = FramingState::Over;
                    return Err(fault);
                }
            }
        }
        Ok(taken)
    }

    /// Whether a request head has begun and is incomplete.
    pub(crate) fn is_inside_head(&self) -> bool {
        self.state == FramingState::Head && !self.head.is_empty()
    }

    /// Whether input waits for the answer to a WebSocket request.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == FramingState::WebSocketPending
    }

    /// Whether further input is discarded.
    pub(crate) fn is_over(&self) -> bool {
        self.state == FramingState::Over
    }

    /// Whether the error is in a body, after its head was forwarded.
    pub(crate) fn is_broken_in_body(&self) -> bool {
        self.broken_in_body
    }

    /// The answer to a WebSocket request: whether it was granted.
    pub(crate) fn websocket_answered(&mut self, granted: bool) {
        if self.state == FramingState::WebSocketPending {
            self.state = if granted { FramingState::Raw } else { FramingState::Head };
        }
    }

    /// Takes at least one byte of `rest`, which is not empty.
    fn step(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Result<usize, FramingFault> {
        match self.state {
            FramingState::Head => self.head(rest, out),
            FramingState::Body(left) | FramingState::Chunk(left) => {
                let taken = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                out.extend_from_slice(&rest[..taken]);
                let left = left - taken as u64;
                self.state = match (self.state, left) {
                    (FramingState::Body(_), 0) => FramingState::Head,
                    (FramingState::Body(_), left) => FramingState::Body(left),
                    (_, 0) => FramingState::ChunkEnd(0),
                    (_, left) => FramingState::Chunk(left),
                };
                Ok(taken)
            }
            FramingState::ChunkLine(at) => self.chunk_line(at, rest[0], out),
            FramingState::ChunkEnd(at) => {
                if rest[0] != b"\r\n"[at] {
                    return Err(FramingFault::Length);
                }
                out.push(rest[0]);
                self.state = if at == 0 { FramingState::ChunkEnd(1) } else { self.begin_chunk() };
                Ok(1)
            }
            FramingState::Trailer(line, all) => {
                let byte = rest[0];
                self.state = match (byte, line) {
                    _ if all >= MAX_SNIFF_BYTES => return Err(FramingFault::TooLong),
                    (b'\n', _) if self.previous != b'\r' => return Err(FramingFault::LineEnd),
                    (b'\n', 1) => FramingState::Head,
                    (b'\n', _) => FramingState::Trailer(0, all + 1),
                    _ => FramingState::Trailer(line + 1, all + 1),
                };
                self.previous = byte;
                out.push(byte);
                Ok(1)
            }
            FramingState::Raw => {
                out.extend_from_slice(rest);
                Ok(rest.len())
            }
            FramingState::WebSocketPending | FramingState::Over => Ok(rest.len()),
        }
    }

    fn head(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Result<usize, FramingFault> {
        let mut taken = 0;
        while let Some(byte) = rest.get(taken) {
            taken += 1;
            // Empty lines before a request are skipped, as RFC 9112 recommends.
            if self.head.is_empty() && b"\r\n".contains(byte) {
                continue;
            }
            if *byte == b'\n' && self.head.last() != Some(&b'\r') {
                return Err(FramingFault::LineEnd);
            }
            self.head.push(*byte);
            if *byte == b'\n' && self.head.ends_with(b"\r\n\r\n") {
                self.state = state_after_head(&self.head)?;
                if self.state == FramingState::ChunkLine(0) {
                    self.state = self.begin_chunk();
                }
                out.append(&mut self.head);
                return Ok(taken);
            }
            if self.head.len() >= MAX_SNIFF_BYTES {
                return Err(FramingFault::TooLong);
            }
        }
        Ok(taken)
    }

    fn begin_chunk(&mut self) -> FramingState {
        self.length = 0;
        self.extended = false;
        self.previous = 0;
        FramingState::ChunkLine(0)
    }

    fn chunk_line(
        &mut self,
        at: usize,
        byte: u8,
        out: &mut Vec<u8>,
    ) -> Result<usize, FramingFault> {
        let digit = char::from(byte).to_digit(16).filter(|_| !self.extended);
        let ending = self.previous == b'\r';
        self.state = match (digit, byte) {
            _ if at >= MAX_CHUNK_LINE => return Err(FramingFault::Length),
            (Some(digit), _) if at < 15 => {
                self.length = self.length << 4 | u64::from(digit);
                FramingState::ChunkLine(at + 1)
            }
            (None, b';') if at > 0 => {
                self.extended = true;
                FramingState::ChunkLine(at + 1)
            }
            (None, b'\r') if at > 0 && !ending => {
                self.extended = true;
                FramingState::ChunkLine(at + 1)
            }
            (None, b'\n') if ending => match self.length {
                0 => FramingState::Trailer(0, 0),
                length => FramingState::Chunk(length),
            },
            (None, b' '..=b'~' | b'\t') if self.extended && !ending => {
                FramingState::ChunkLine(at + 1)
            }
            _ => return Err(FramingFault::Length),
        };
        self.previous = byte;
        out.push(byte);
        Ok(1)
    }
}

/// What follows a complete request head.
fn state_after_head(head: &[u8]) -> Result<FramingState, FramingFault> {
    let mut lines = head[..head.len() - 4].split(|byte| *byte == b'\n').map(|line| {
        // All lines but the last still end with CR.
        line.strip_suffix(b"\r").unwrap_or(line)
    });
    let (connect, is_http11) = parse_request_line(lines.next().unwrap_or_default())?;
    let mut length = None;
    let mut chunked = false;
    let mut websocket = false;
    for (count, line) in lines.enumerate() {
        if count >= MAX_HEADERS {
            return Err(FramingFault::TooLong);
        }
        let (name, value) = parse_header(line)?;
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
            if !digits || length.is_some() {
                return Err(FramingFault::Length);
            }
            length = value.iter().try_fold(0_u64, |length, digit| {
                length.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
            });
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunked || !is_http11 || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(FramingFault::Length);
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            websocket |= value.eq_ignore_ascii_case(b"websocket");
        }
    }
    match (chunked, length) {
        (true, Some(_)) => Err(FramingFault::Length),
        _ if connect => Ok(FramingState::Over),
        (true, None) => Ok(FramingState::ChunkLine(0)),
        (false, Some(1..)) => Ok(FramingState::Body(length.unwrap_or(0))),
        (false, _) if websocket => Ok(FramingState::WebSocketPending),
        (false, _) => Ok(FramingState::Head),
    }
}

/// Parses a request line: whether the method is CONNECT, and whether the version is 1.1.
fn parse_request_line(line: &[u8]) -> Result<(bool, bool), FramingFault> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(FramingFault::FrameError);
    };
    let is_http11 = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return Err(FramingFault::FrameError),
    };
    let word = !method.is_empty() && method.iter().all(|byte| is_token(*byte));
    let plain = !target.is_empty() && target.iter().all(u8::is_ascii_graphic);
    match word && plain {
        true => Ok((method == b"CONNECT", is_http11)),
        false => Err(FramingFault::FrameError),
    }
}

fn parse_header(line: &[u8]) -> Result<(&[u8], &[u8]), FramingFault> {
    if line.first().is_some_and(|byte| b" \t".contains(byte)) {
        return Err(FramingFault::Folded);
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or(FramingFault::FrameError)?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    let word = !name.is_empty() && name.iter().all(|byte| is_token(*byte));
    // Some parsers take a lone CR for a line end.
    let plain = !line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t');
    if word && plain { Ok((name, value)) } else { Err(FramingFault::FrameError) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "POST /x HTTP/1.1\r\nHost: a.example\r\n";

    /// Feeds input in chunks of `size` and returns what was forwarded.
    fn feed(input: &[u8], size: usize) -> Result<Vec<u8>, FramingFault> {
        let mut framing = RequestFraming::default();
        let mut out = Vec::new();
        for piece in input.chunks(size) {
            assert_eq!(framing.take(piece, &mut out)?, piece.len());
        }
        Ok(out)
    }

    #[test]
    fn complete_requests_pass_unchanged() {
        for rest in [
            "\r\n",
            "Content-Length: 0\r\n\r\n",
            "Content-Length: 5\r\n\r\nhello",
            "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "Transfer-Encoding: Chunked\r\n\r\nA;x=\"y\"\r\n0123456789\r\n0\r\nSum: x\r\n\r\n",
            "Upgrade: h2c\r\n\r\n",
        ] {
            let one = format!("{START}{rest}");
            let both = format!("{one}{one}");
            for size in 1..=both.len() {
                assert_eq!(feed(both.as_bytes(), size), Ok(both.clone().into_bytes()), "{rest}");
            }
        }
        let skipped = format!("\r\n{START}\r\n\r\n\r\n");
        assert_eq!(feed(skipped.as_bytes(), 3), Ok(format!("{START}\r\n").into_bytes()));
    }

    #[test]
    fn a_head_is_held_until_it_is_complete() {
        let mut out = Vec::new();
        let mut framing = RequestFraming::default();
        framing.take(START.as_bytes(), &mut out).unwrap();
        assert!(out.is_empty() && framing.is_inside_head());
        framing.take(b"\r\n", &mut out).unwrap();
        assert!(!out.is_empty() && !framing.is_inside_head());
    }

    #[test]
    fn ambiguous_framing_is_refused() {
        for (rest, fault) in [
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", FramingFault::Length),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", FramingFault::Length),
            ("Content-Length: 5\r\nContent-Length: 6\r\n\r\n", FramingFault::Length),
            ("Content-Length: 5\r\ncontent-length: 5\r\n\r\n", FramingFault::Length),
            ("Content-Length: 5, 5\r\n\r\n", FramingFault::Length),
            ("Content-Length: +5\r\n\r\n", FramingFault::Length),
            ("Content-Length: -1\r\n\r\n", FramingFault::Length),
            ("Content-Length: 0x5\r\n\r\n", FramingFault::Length),
            ("Content-Length:\r\n\r\n", FramingFault::Length),
            ("Content-Length: 99999999999999999999\r\n\r\n", FramingFault::Length),
            ("Transfer-Encoding: gzip, chunked\r\n\r\n", FramingFault::Length),
            ("Transfer-Encoding: identity\r\n\r\n", FramingFault::Length),
            (
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
                FramingFault::Length,
            ),
            ("Transfer-Encoding: \u{b}chunked\r\n\r\n", FramingFault::FrameError),
            ("Transfer-Encoding : chunked\r\n\r\n", FramingFault::FrameError),
            ("Transfer-Encoding\r\n : chunked\r\n\r\n", FramingFault::FrameError),
            ("X: y\r\n Content-Length: 5\r\n\r\n", FramingFault::Folded),
            ("X: y\r\n\tz\r\n\r\n", FramingFault::Folded),
            ("X: y\nContent-Length: 5\r\n\r\n", FramingFault::LineEnd),
            ("X: y\r\n\n", FramingFault::LineEnd),
            ("X: y\rContent-Length: 5\r\n\r\n", FramingFault::FrameError),
            ("X: a\0b\r\n\r\n", FramingFault::FrameError),
            (": y\r\n\r\n", FramingFault::FrameError),
            ("Transfer-Encoding: chunked\r\n\r\n5\nhello", FramingFault::Length),
            ("Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", FramingFault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n\r\n", FramingFault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n0x5\r\n", FramingFault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n 5\r\n", FramingFault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n5 \r\n", FramingFault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n", FramingFault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n5;\n\r\n", FramingFault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n", FramingFault::LineEnd),
        ] {
            let input = format!("{START}{rest}");
            for size in 1..=input.len() {
                assert_eq!(feed(input.as_bytes(), size), Err(fault), "{rest:?} {size}");
            }
        }
        for line in
            ["GET /", "GET  / HTTP/1.1", "GET / HTTP/2.0", "GET /\t HTTP/1.1", "PRI * HTTP/2.0"]
        {
            let input = format!("{line}\r\nHost: a.example\r\n\r\n");
            assert_eq!(feed(input.as_bytes(), 7), Err(FramingFault::FrameError), "{line}");
        }
        let old = "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(feed(old.as_bytes(), 7), Err(FramingFault::Length));
        let long = format!("{START}X: {}", "y".repeat(MAX_SNIFF_BYTES));
        assert_eq!(feed(long.as_bytes(), 1000), Err(FramingFault::TooLong));
        let many = format!("{START}{}\r\n", "X: y\r\n".repeat(MAX_HEADERS));
        assert_eq!(feed(many.as_bytes(), 1000), Err(FramingFault::TooLong));
    }

    #[test]
    fn bytes_after_a_websocket_request_wait_for_its_answer() {
        let head = format!("{START}Upgrade: WebSocket\r\n\r\n");
        for (granted, then) in [(true, &b"\x81\x00\n\n"[..]), (false, b"GET / HTTP/1.1\r\n\r\n")] {
            let input = [head.as_bytes(), then].concat();
            let mut framing = RequestFraming::default();
            let mut out = Vec::new();
            assert_eq!(framing.take(&input, &mut out), Ok(head.len()));
            assert!(framing.is_waiting());
            framing.websocket_answered(granted);
            assert_eq!(framing.take(then, &mut out), Ok(then.len()));
            assert_eq!(out, input);
        }
    }

    #[test]
    fn bytes_after_connect_are_dropped() {
        let connect = "CONNECT b.example:25 HTTP/1.1\r\nHost: b.example\r\n\r\n";
        let input = format!("{connect}{START}\r\n");
        assert_eq!(feed(input.as_bytes(), 10), Ok(connect.as_bytes().to_vec()));
    }
}
