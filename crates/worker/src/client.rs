//! One client connection to the worker: one Exec, one file operation or one query.

use msb_spec::Error;
use msb_sys::socket::NonblockingSocket;
use msb_wire::{
    FileFailure, FileReply, Frame, FrameError, FrameKind, FramedSocket, MAX_REQUEST, Reply, encode,
};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

/// Purpose of a connection, set by its first frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClientRole {
    /// No frame has arrived yet.
    New,
    /// Attached to this Exec: gets its output, may send stdin and signals.
    Exec(u64),
    /// Its command starts when the sandbox is no longer held for a copy. Input is not read until
    /// then.
    Delayed,
    /// Gets one reply when the sandbox has ended.
    Waiting,
    /// The sandbox is stopped when this connection closes.
    Owner,
    /// The sandbox is frozen for a copy until this connection closes.
    Holder,
    /// Answered; the connection is closed once the reply is sent.
    Leaving,
}

/// A client connection with its send buffer.
#[derive(Debug)]
pub(crate) struct ClientConn {
    frames: FramedSocket<NonblockingSocket>,
    /// Replies that are sent together with the next one.
    deferred: Vec<u8>,
    pub(crate) role: ClientRole,
    /// The read side has ended. Buffered replies are still sent.
    pub(crate) closed: bool,
    /// Whether the worker has handled the disconnect.
    pub(crate) disconnect_handled: bool,
    /// When the connection was accepted.
    pub(crate) since: Instant,
}

/// Result of reading from a client.
pub(crate) enum ClientRead {
    /// Zero or more frames may be complete.
    Some,
    /// The client closed the connection, or reading failed.
    Ended,
}

/// A client sends its first frame immediately; an idle connection is closed after this.
pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Unsent bytes for a slow client before the Exec it is attached to is no longer read.
const SEND_BACKLOG: usize = 1 << 20;

impl ClientConn {
    pub(crate) fn new(socket: OwnedFd, role: ClientRole, now: Instant) -> Self {
        Self {
            frames: FramedSocket::new(socket.into(), MAX_REQUEST),
            deferred: Vec::new(),
            role,
            closed: false,
            disconnect_handled: false,
            since: now,
        }
    }

    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.frames.socket().as_fd()
    }

    /// The socket, to be passed to the guest; `None` if bytes for the guest were read already.
    pub(crate) fn into_socket(self) -> Option<OwnedFd> {
        self.frames.into_socket().map(OwnedFd::from)
    }

    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> ClientRead {
        loop {
            // Bytes after the first frame may be for the guest, so they stay in the socket.
            let wanted = match self.role {
                ClientRole::New => match self.frames.missing() {
                    Ok(0) => return ClientRead::Some,
                    Ok(missing) => missing.min(buffer.len()),
                    Err(_) => return ClientRead::Some,
                },
                _ => buffer.len(),
            };
            match self.frames.receive(&mut buffer[..wanted]) {
                Ok(0) => return ClientRead::Ended,
                Ok(_) => {}
                Err(error) => {
                    let passing = [ErrorKind::WouldBlock, ErrorKind::Interrupted];
                    return match passing.contains(&error.kind()) {
                        true => ClientRead::Some,
                        false => ClientRead::Ended,
                    };
                }
            }
            if self.role != ClientRole::New {
                return ClientRead::Some;
            }
        }
    }

    pub(crate) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        self.frames.next_frame()
    }

    /// Drops the frames that were received. Bytes that are no frame close the connection.
    pub(crate) fn discard(&mut self) {
        loop {
            match self.next() {
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => {
                    self.closed = true;
                    return;
                }
            }
        }
    }

    /// Buffers a reply that is sent with the next one, which saves a wake-up of the client.
    pub(crate) fn defer(&mut self, reply: &Reply) {
        self.deferred.extend_from_slice(&encode(FrameKind::Reply, reply));
    }

    pub(crate) fn reply(&mut self, reply: &Reply) {
        self.enqueue_deferred();
        self.frames.enqueue(&encode(FrameKind::Reply, reply));
        self.flush();
    }

    /// Sends the last reply; the connection is closed after it.
    pub(crate) fn answer(&mut self, reply: &Reply) {
        self.role = ClientRole::Leaving;
        self.reply(reply);
    }

    pub(crate) fn refuse(&mut self, error: Error) {
        self.answer(&Reply::Failed(error));
    }

    /// Refuses a file operation, in the reply format that its client expects from the guest.
    pub(crate) fn refuse_files(&mut self, why: &str) {
        self.role = ClientRole::Leaving;
        let failed = FileFailure { doing: format!("be served: {why}"), errno: 0 };
        self.frames.enqueue(&encode(FrameKind::Reply, &FileReply::Failed(failed)));
        self.flush();
    }

    pub(crate) fn output(&mut self, kind: FrameKind, bytes: &[u8]) {
        self.enqueue_deferred();
        self.frames.enqueue_payload(kind, bytes);
        self.flush();
    }

    fn enqueue_deferred(&mut self) {
        self.frames.enqueue(&std::mem::take(&mut self.deferred));
    }

    /// Sends as much as the socket takes without blocking. The rest for a client that is gone is
    /// dropped.
    pub(crate) fn flush(&mut self) {
        self.closed |= self.frames.flush().is_err();
    }

    /// When a connection without a first frame is closed.
    pub(crate) fn hello_deadline(&self) -> Option<Instant> {
        (self.role == ClientRole::New).then(|| self.since + HELLO_LIMIT)
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.frames.unsent() == 0
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.frames.unsent() > SEND_BACKLOG
    }
}
