//! Frames on one socket: a read buffer, a send queue, and the limit of its peer.
//!
//! The socket is any [`Read`] or [`Write`]. Nothing here opens, polls or waits for it; a socket
//! that would block says so, and its owner polls.

use crate::frame::{Decoder, Frame, FrameError, FrameKind, Piece, header};
use std::io::{self, ErrorKind, Read, Write};

/// Sent bytes that stay at the front of a queue before they are removed. A lower number would move
/// the rest of the queue more often.
const SENT_BACKLOG: usize = 1 << 20;

/// A socket that carries frames in both directions.
#[derive(Debug)]
pub struct FramedSocket<S> {
    socket: S,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
}

impl<S> FramedSocket<S> {
    /// Frames on `socket`, with payloads of at most `limit` bytes from the peer.
    pub fn new(socket: S, limit: usize) -> Self {
        Self { socket, decoder: Decoder::new(limit), out: Vec::new(), sent: 0 }
    }

    /// The socket itself, to poll it or to send descriptors.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// The socket itself, to change its state.
    pub fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// The socket, to be passed on; `None` if bytes of another frame were read from it already.
    pub fn into_socket(self) -> Option<S> {
        (!self.decoder.is_midway()).then_some(self.socket)
    }

    /// The next frame of what was received; `None` if more bytes are needed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        self.decoder.next_frame()
    }

    /// Bytes that are missing for the next step: of the header, then of the payload.
    pub fn missing(&self) -> Result<usize, FrameError> {
        self.decoder.missing()
    }

    /// Queues one or more encoded frames for [`FramedSocket::flush`].
    pub fn enqueue(&mut self, frames: &[u8]) {
        self.out.extend_from_slice(frames);
    }

    /// Queues one frame with a raw payload for [`FramedSocket::flush`].
    pub fn enqueue_payload(&mut self, kind: FrameKind, payload: &[u8]) {
        self.out.extend_from_slice(&header(kind, payload.len()));
        self.out.extend_from_slice(payload);
    }

    /// Number of queued bytes that are not sent yet.
    pub fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }
}

impl<S: Read> FramedSocket<S> {
    /// Reads once, up to the length of `buffer`. Zero is the end of file.
    pub fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.socket.read(buffer)?;
        self.decoder.push(&buffer[..n]);
        Ok(n)
    }

    /// Reads the next frame; `None` at the end of file between two frames. An end of file within a
    /// frame is `UnexpectedEof`, a malformed frame is `InvalidData`.
    pub fn read_frame(&mut self, buffer: &mut [u8]) -> io::Result<Option<Frame>> {
        self.read_frame_by(buffer, usize::MAX)
    }

    /// Like [`FramedSocket::read_frame`], without a byte beyond the end of the frame: what follows
    /// is for another reader, or belongs to descriptors that are received with it.
    pub fn read_frame_only(&mut self, buffer: &mut [u8]) -> io::Result<Option<Frame>> {
        self.read_frame_by(buffer, 0)
    }

    /// Reads the next frame, and at most `ahead` bytes behind it.
    fn read_frame_by(&mut self, buffer: &mut [u8], ahead: usize) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(invalid)? {
                return Ok(Some(frame));
            }
            let missing = self.decoder.missing().map_err(invalid)?;
            let most = missing.saturating_add(ahead).min(buffer.len());
            match self.receive(&mut buffer[..most]) {
                Ok(0) if self.decoder.is_midway() => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Streams `left` bytes of announced content to `take`, without buffering whole frames.
    /// `on_error` names the failed read.
    ///
    /// An end of file, an empty frame, another kind and more than `left` bytes are errors.
    pub fn stream<E: From<FrameError>>(
        &mut self,
        left: u64,
        buffer: &mut [u8],
        on_error: impl Fn(io::Error) -> E,
        take: impl FnMut(Piece<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let socket = &mut self.socket;
        self.decoder.stream(left, buffer, |buffer| socket.read(buffer).map_err(&on_error), take)
    }
}

impl<S: Write> FramedSocket<S> {
    /// Sends what the socket takes; [`FramedSocket::unsent`] is the rest. After an error the peer
    /// is gone, and the queue is empty.
    pub fn flush(&mut self) -> io::Result<()> {
        let mut result = Ok(());
        while self.sent < self.out.len() {
            match self.socket.write(&self.out[self.sent..]) {
                Ok(n) if n > 0 => self.sent += n,
                Ok(_) => {
                    result = Err(ErrorKind::WriteZero.into());
                    break;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.sent > SENT_BACKLOG {
                        self.out.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(());
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        self.out.clear();
        self.sent = 0;
        result
    }
}

fn invalid(error: FrameError) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode;
    use std::collections::VecDeque;

    /// A socket with scripted reads, which takes `room` bytes before it would block.
    #[derive(Debug, Default)]
    struct ScriptedSocket {
        reads: VecDeque<io::Result<Vec<u8>>>,
        written: Vec<u8>,
        room: usize,
        closed: bool,
    }

    impl Read for ScriptedSocket {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.reads.pop_front() {
                None => Ok(0),
                Some(Err(error)) => Err(error),
                Some(Ok(mut bytes)) => {
                    let n = bytes.len().min(buffer.len());
                    buffer[..n].copy_from_slice(&bytes[..n]);
                    bytes.drain(..n);
                    if !bytes.is_empty() {
                        self.reads.push_front(Ok(bytes));
                    }
                    Ok(n)
                }
            }
        }
    }

    impl Write for ScriptedSocket {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.closed {
                return Err(ErrorKind::BrokenPipe.into());
            }
            let n = bytes.len().min(self.room);
            if n == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room -= n;
            self.written.extend_from_slice(&bytes[..n]);
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn reading(
        reads: impl IntoIterator<Item = io::Result<Vec<u8>>>,
    ) -> FramedSocket<ScriptedSocket> {
        let reads = reads.into_iter().collect();
        FramedSocket::new(ScriptedSocket { reads, ..ScriptedSocket::default() }, 100)
    }

    #[test]
    fn an_end_of_file_is_an_error_only_within_a_frame() {
        let frame = encode(FrameKind::Reply, &7u32);
        for cut in 0..=frame.len() {
            let mut socket = reading([Ok(frame[..cut].to_vec())]);
            match socket.read_frame(&mut [0; 64]) {
                Ok(None) => assert_eq!(cut, 0),
                Ok(Some(read)) => assert_eq!((cut, read.value()), (frame.len(), Ok(7u32))),
                Err(error) => {
                    assert!((1..frame.len()).contains(&cut), "{cut}");
                    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                }
            }
        }
    }

    #[test]
    fn an_interrupted_read_is_tried_again_and_one_that_would_block_is_not() {
        let frame = encode(FrameKind::Reply, &7u32);
        let (first, second) = frame.split_at(3);
        let mut socket = reading([
            Err(ErrorKind::Interrupted.into()),
            Ok(first.to_vec()),
            Err(ErrorKind::WouldBlock.into()),
            Ok(second.to_vec()),
        ]);
        let error = socket.read_frame(&mut [0; 64]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert_eq!(socket.read_frame(&mut [0; 64]).unwrap().unwrap().value(), Ok(7u32));
    }

    #[test]
    fn bytes_behind_a_frame_stay_in_the_socket() {
        let mut bytes = encode(FrameKind::Link, &7u32);
        bytes.extend_from_slice(b"raw bytes of the stream");
        for step in 1..bytes.len() {
            let mut socket = reading(bytes.chunks(step).map(|piece| Ok(piece.to_vec())));
            let frame = socket.read_frame_only(&mut [0; 64]).unwrap().unwrap();
            assert_eq!(frame.value(), Ok(7u32));
            let mut rest = Vec::new();
            socket.into_socket().unwrap().read_to_end(&mut rest).unwrap();
            assert_eq!(rest, b"raw bytes of the stream");
        }
    }

    #[test]
    fn a_socket_is_not_passed_on_within_a_frame() {
        let mut socket = reading([Ok(vec![1])]);
        socket.receive(&mut [0; 64]).unwrap();
        assert!(socket.into_socket().is_none());
    }

    #[test]
    fn hostile_lengths_and_kinds_are_invalid_data() {
        for bytes in [[0xff, 0xff, 0xff, 0xff, 17], [101, 0, 0, 0, 17], [0, 0, 0, 0, 99]] {
            let error = reading([Ok(bytes.to_vec())]).read_frame(&mut [0; 64]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData);
        }
    }

    #[test]
    fn a_queue_is_sent_in_order_as_far_as_the_socket_takes_it() {
        let mut socket = reading([]);
        socket.enqueue(&encode(FrameKind::Reply, &1u8));
        socket.enqueue_payload(FrameKind::Stdout, b"output");
        let whole = socket.unsent();
        let mut steps = 0;
        while socket.unsent() > 0 {
            socket.socket_mut().room = 4;
            socket.flush().unwrap();
            steps += 1;
        }
        assert_eq!(steps, whole.div_ceil(4));
        let expected = [encode(FrameKind::Reply, &1u8), vec![6, 0, 0, 0, 17], b"output".to_vec()];
        assert_eq!(socket.socket().written, expected.concat());
    }

    #[test]
    fn a_large_queue_does_not_keep_what_was_sent() {
        let mut socket = reading([]);
        socket.enqueue_payload(FrameKind::Stdout, &vec![7; 3 * SENT_BACKLOG]);
        socket.socket_mut().room = 2 * SENT_BACKLOG;
        socket.flush().unwrap();
        assert_eq!(socket.out.len(), socket.unsent());
    }

    #[test]
    fn a_queue_for_a_closed_socket_is_dropped() {
        let mut socket = reading([]);
        socket.socket_mut().closed = true;
        socket.enqueue(b"frames");
        assert_eq!(socket.flush().unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert_eq!(socket.unsent(), 0);
    }
}
