//! Where requests of HTTP/1 begin and end in what a client sends, read in one way only.
//!
//! The server behind it is more forgiving than is good here: it skips a `Content-Length` beside a
//! `Transfer-Encoding` and takes a bare line feed. What two readers could cut differently is
//! refused before any of it is handed on.

use crate::sniff::{LIMIT, is_token};

/// More headers than any client sends.
pub(crate) const MOST_HEADERS: usize = 256;

/// Chunks may say more than their length, which nobody uses: a line of them is short.
const CHUNK_LINE: usize = 4 << 10;

/// What is wrong with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is no head of HTTP/1.
    Malformed,
    /// It has no end within the limit.
    TooLong,
    /// Its lines are not ended by CR LF.
    LineEnd,
    /// A header goes on in the next line.
    Folded,
    /// Its body has two ends, or an end that cannot be told.
    Length,
}

impl Fault {
    /// As it is told and recorded.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Malformed => "a malformed request",
            Self::TooLong => "a request head that is too long",
            Self::LineEnd => "a request head with bare line ends",
            Self::Folded => "a request head with a folded header",
            Self::Length => "a request body whose length is ambiguous",
        }
    }
}

/// What is read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Body(u64),
    ChunkLine(usize),
    Chunk(u64),
    /// CR and LF behind a chunk; how many of them have come.
    ChunkEnd(usize),
    /// Behind the last chunk; how long the line is so far, and all of them.
    Trailer(usize, usize),
    /// A WebSocket was asked for: what follows is for whoever answers.
    Asked,
    /// No HTTP any more.
    Raw,
    /// Nothing more is taken.
    Over,
}

/// Cuts one connection into requests.
#[derive(Debug)]
pub(crate) struct Framing {
    state: State,
    head: Vec<u8>,
    /// The chunk's length so far.
    length: u64,
    /// Whether the chunk's length is over and something else stands behind it.
    extended: bool,
    /// The byte before, in lines of chunks and trailers.
    previous: u8,
    broken_in_body: bool,
}

impl Default for Framing {
    fn default() -> Self {
        Self {
            state: State::Head,
            head: Vec::new(),
            length: 0,
            extended: false,
            previous: 0,
            broken_in_body: false,
        }
    }
}

impl Framing {
    /// Takes what was received and appends to `out` what may be handed on. What is left over has
    /// to wait for [`Framing::answered`]. After a fault in a head nothing more is taken.
    pub(crate) fn take(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
        let mut taken = 0;
        while taken < input.len() && self.state != State::Asked {
            let rest = &input[taken..];
            match self.step(rest, out) {
                Ok(some) => taken += some,
                Err(fault) => {
                    self.broken_in_body = self.state != State::Head;
                    self.state = State::Over;
                    return Err(fault);
                }
            }
        }
        Ok(taken)
    }

    /// Whether a head has begun and not ended.
    pub(crate) fn is_inside_head(&self) -> bool {
        self.state == State::Head && !self.head.is_empty()
    }

    /// Whether nothing goes on until the answer to a request is known.
    pub(crate) fn is_waiting(&self) -> bool {
        self.state == State::Asked
    }

    /// Whether nothing more is taken.
    pub(crate) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether the fault came when the request had already been handed on.
    pub(crate) fn is_broken_in_body(&self) -> bool {
        self.broken_in_body
    }

    /// The answer to a request for WebSocket: whether it was granted.
    pub(crate) fn answered(&mut self, granted: bool) {
        if self.state == State::Asked {
            self.state = if granted { State::Raw } else { State::Head };
        }
    }

    /// At least one byte of what is not empty.
    fn step(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
        match self.state {
            State::Head => self.head(rest, out),
            State::Body(left) | State::Chunk(left) => {
                let taken = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                out.extend_from_slice(&rest[..taken]);
                let left = left - taken as u64;
                self.state = match (self.state, left) {
                    (State::Body(_), 0) => State::Head,
                    (State::Body(_), left) => State::Body(left),
                    (_, 0) => State::ChunkEnd(0),
                    (_, left) => State::Chunk(left),
                };
                Ok(taken)
            }
            State::ChunkLine(at) => self.chunk_line(at, rest[0], out),
            State::ChunkEnd(at) => {
                if rest[0] != b"\r\n"[at] {
                    return Err(Fault::Length);
                }
                out.push(rest[0]);
                self.state = if at == 0 { State::ChunkEnd(1) } else { self.begin_chunk() };
                Ok(1)
            }
            State::Trailer(line, all) => {
                let byte = rest[0];
                self.state = match (byte, line) {
                    _ if all >= LIMIT => return Err(Fault::TooLong),
                    (b'\n', _) if self.previous != b'\r' => return Err(Fault::LineEnd),
                    (b'\n', 1) => State::Head,
                    (b'\n', _) => State::Trailer(0, all + 1),
                    _ => State::Trailer(line + 1, all + 1),
                };
                self.previous = byte;
                out.push(byte);
                Ok(1)
            }
            State::Raw => {
                out.extend_from_slice(rest);
                Ok(rest.len())
            }
            State::Asked | State::Over => Ok(rest.len()),
        }
    }

    fn head(&mut self, rest: &[u8], out: &mut Vec<u8>) -> Result<usize, Fault> {
        let mut taken = 0;
        while let Some(byte) = rest.get(taken) {
            taken += 1;
            // Empty lines in front are skipped, as everybody does.
            if self.head.is_empty() && b"\r\n".contains(byte) {
                continue;
            }
            if *byte == b'\n' && self.head.last() != Some(&b'\r') {
                return Err(Fault::LineEnd);
            }
            self.head.push(*byte);
            if *byte == b'\n' && self.head.ends_with(b"\r\n\r\n") {
                self.state = follows(&self.head)?;
                if self.state == State::ChunkLine(0) {
                    self.state = self.begin_chunk();
                }
                out.append(&mut self.head);
                return Ok(taken);
            }
            if self.head.len() >= LIMIT {
                return Err(Fault::TooLong);
            }
        }
        Ok(taken)
    }

    fn begin_chunk(&mut self) -> State {
        self.length = 0;
        self.extended = false;
        self.previous = 0;
        State::ChunkLine(0)
    }

    fn chunk_line(&mut self, at: usize, byte: u8, out: &mut Vec<u8>) -> Result<usize, Fault> {
        let digit = char::from(byte).to_digit(16).filter(|_| !self.extended);
        let ending = self.previous == b'\r';
        self.state = match (digit, byte) {
            _ if at >= CHUNK_LINE => return Err(Fault::Length),
            (Some(digit), _) if at < 15 => {
                self.length = self.length << 4 | u64::from(digit);
                State::ChunkLine(at + 1)
            }
            (None, b';') if at > 0 => {
                self.extended = true;
                State::ChunkLine(at + 1)
            }
            (None, b'\r') if at > 0 && !ending => {
                self.extended = true;
                State::ChunkLine(at + 1)
            }
            (None, b'\n') if ending => match self.length {
                0 => State::Trailer(0, 0),
                length => State::Chunk(length),
            },
            (None, b' '..=b'~' | b'\t') if self.extended && !ending => State::ChunkLine(at + 1),
            _ => return Err(Fault::Length),
        };
        self.previous = byte;
        out.push(byte);
        Ok(1)
    }
}

/// What follows a complete head.
fn follows(head: &[u8]) -> Result<State, Fault> {
    let mut lines = head[..head.len() - 4].split(|byte| *byte == b'\n').map(|line| {
        // All but the last still have their CR.
        line.strip_suffix(b"\r").unwrap_or(line)
    });
    let (connect, modern) = request_line(lines.next().unwrap_or_default())?;
    let mut length = None;
    let mut chunked = false;
    let mut websocket = false;
    for (count, line) in lines.enumerate() {
        if count >= MOST_HEADERS {
            return Err(Fault::TooLong);
        }
        let (name, value) = header(line)?;
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
            if !digits || length.is_some() {
                return Err(Fault::Length);
            }
            length = value.iter().try_fold(0_u64, |length, digit| {
                length.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
            });
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if chunked || !modern || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Length);
            }
            chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            websocket |= value.eq_ignore_ascii_case(b"websocket");
        }
    }
    match (chunked, length) {
        (true, Some(_)) => Err(Fault::Length),
        _ if connect => Ok(State::Over),
        (true, None) => Ok(State::ChunkLine(0)),
        (false, Some(1..)) => Ok(State::Body(length.unwrap_or(0))),
        (false, _) if websocket => Ok(State::Asked),
        (false, _) => Ok(State::Head),
    }
}

/// Whether the method is CONNECT, and whether the version is 1.1.
fn request_line(line: &[u8]) -> Result<(bool, bool), Fault> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Fault::Malformed);
    };
    let modern = match version {
        b"HTTP/1.1" => true,
        b"HTTP/1.0" => false,
        _ => return Err(Fault::Malformed),
    };
    let word = !method.is_empty() && method.iter().all(|byte| is_token(*byte));
    let plain = !target.is_empty() && target.iter().all(u8::is_ascii_graphic);
    match word && plain {
        true => Ok((method == b"CONNECT", modern)),
        false => Err(Fault::Malformed),
    }
}

fn header(line: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    if line.first().is_some_and(|byte| b" \t".contains(byte)) {
        return Err(Fault::Folded);
    }
    let colon = line.iter().position(|byte| *byte == b':').ok_or(Fault::Malformed)?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    let word = !name.is_empty() && name.iter().all(|byte| is_token(*byte));
    // A CR inside of a line is a line end to some.
    let plain = !line.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t');
    if word && plain { Ok((name, value)) } else { Err(Fault::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "POST /x HTTP/1.1\r\nHost: a.example\r\n";

    /// Feeds in pieces of `size` and gives what was handed on.
    fn fed(input: &[u8], size: usize) -> Result<Vec<u8>, Fault> {
        let mut framing = Framing::default();
        let mut out = Vec::new();
        for piece in input.chunks(size) {
            assert_eq!(framing.take(piece, &mut out)?, piece.len());
        }
        Ok(out)
    }

    #[test]
    fn whole_requests_are_handed_on_as_they_are() {
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
                assert_eq!(fed(both.as_bytes(), size), Ok(both.clone().into_bytes()), "{rest}");
            }
        }
        let skipped = format!("\r\n{START}\r\n\r\n\r\n");
        assert_eq!(fed(skipped.as_bytes(), 3), Ok(format!("{START}\r\n").into_bytes()));
    }

    #[test]
    fn nothing_of_a_head_is_handed_on_before_its_end() {
        let mut out = Vec::new();
        let mut framing = Framing::default();
        framing.take(START.as_bytes(), &mut out).unwrap();
        assert!(out.is_empty() && framing.is_inside_head());
        framing.take(b"\r\n", &mut out).unwrap();
        assert!(!out.is_empty() && !framing.is_inside_head());
    }

    #[test]
    fn what_could_be_cut_in_two_ways_is_refused() {
        for (rest, fault) in [
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::Length),
            ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", Fault::Length),
            ("Content-Length: 5\r\nContent-Length: 6\r\n\r\n", Fault::Length),
            ("Content-Length: 5\r\ncontent-length: 5\r\n\r\n", Fault::Length),
            ("Content-Length: 5, 5\r\n\r\n", Fault::Length),
            ("Content-Length: +5\r\n\r\n", Fault::Length),
            ("Content-Length: -1\r\n\r\n", Fault::Length),
            ("Content-Length: 0x5\r\n\r\n", Fault::Length),
            ("Content-Length:\r\n\r\n", Fault::Length),
            ("Content-Length: 99999999999999999999\r\n\r\n", Fault::Length),
            ("Transfer-Encoding: gzip, chunked\r\n\r\n", Fault::Length),
            ("Transfer-Encoding: identity\r\n\r\n", Fault::Length),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::Length),
            ("Transfer-Encoding: \u{b}chunked\r\n\r\n", Fault::Malformed),
            ("Transfer-Encoding : chunked\r\n\r\n", Fault::Malformed),
            ("Transfer-Encoding\r\n : chunked\r\n\r\n", Fault::Malformed),
            ("X: y\r\n Content-Length: 5\r\n\r\n", Fault::Folded),
            ("X: y\r\n\tz\r\n\r\n", Fault::Folded),
            ("X: y\nContent-Length: 5\r\n\r\n", Fault::LineEnd),
            ("X: y\r\n\n", Fault::LineEnd),
            ("X: y\rContent-Length: 5\r\n\r\n", Fault::Malformed),
            ("X: a\0b\r\n\r\n", Fault::Malformed),
            (": y\r\n\r\n", Fault::Malformed),
            ("Transfer-Encoding: chunked\r\n\r\n5\nhello", Fault::Length),
            ("Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", Fault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n\r\n", Fault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n0x5\r\n", Fault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n 5\r\n", Fault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n5 \r\n", Fault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n5\r\nhelloX\r\n", Fault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n5;\n\r\n", Fault::Length),
            ("Transfer-Encoding: chunked\r\n\r\n0\r\nA: b\n\r\n", Fault::LineEnd),
        ] {
            let input = format!("{START}{rest}");
            for size in 1..=input.len() {
                assert_eq!(fed(input.as_bytes(), size), Err(fault), "{rest:?} {size}");
            }
        }
        for line in
            ["GET /", "GET  / HTTP/1.1", "GET / HTTP/2.0", "GET /\t HTTP/1.1", "PRI * HTTP/2.0"]
        {
            let input = format!("{line}\r\nHost: a.example\r\n\r\n");
            assert_eq!(fed(input.as_bytes(), 7), Err(Fault::Malformed), "{line}");
        }
        let old = "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(fed(old.as_bytes(), 7), Err(Fault::Length));
        let long = format!("{START}X: {}", "y".repeat(LIMIT));
        assert_eq!(fed(long.as_bytes(), 1000), Err(Fault::TooLong));
        let many = format!("{START}{}\r\n", "X: y\r\n".repeat(MOST_HEADERS));
        assert_eq!(fed(many.as_bytes(), 1000), Err(Fault::TooLong));
    }

    #[test]
    fn nothing_follows_a_websocket_request_until_it_is_answered() {
        let head = format!("{START}Upgrade: WebSocket\r\n\r\n");
        for (granted, then) in [(true, &b"\x81\x00\n\n"[..]), (false, b"GET / HTTP/1.1\r\n\r\n")] {
            let input = [head.as_bytes(), then].concat();
            let mut framing = Framing::default();
            let mut out = Vec::new();
            assert_eq!(framing.take(&input, &mut out), Ok(head.len()));
            assert!(framing.is_waiting());
            framing.answered(granted);
            assert_eq!(framing.take(then, &mut out), Ok(then.len()));
            assert_eq!(out, input);
        }
    }

    #[test]
    fn nothing_follows_connect() {
        let connect = "CONNECT b.example:25 HTTP/1.1\r\nHost: b.example\r\n\r\n";
        let input = format!("{connect}{START}\r\n");
        assert_eq!(fed(input.as_bytes(), 10), Ok(connect.as_bytes().to_vec()));
    }
}
