//! One Exec: the worker's ends of its streams, and the clients attached to it.

use crate::vsock_conn::VsockConn;
use msb_spec::{CallOrigin, Command, Ending, Exit, TermSize};
use msb_wire::{FrameKind, OutputDrain, encode};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Bytes of earlier output that a newly attached client gets.
const RECENT: usize = 64 << 10;
/// Bytes buffered for a command that does not read stdin; more stays in the client's socket.
const STDIN_BACKLOG: usize = 64 << 10;

/// A command with its streams and attached clients.
#[derive(Debug)]
pub(crate) struct ExecHandle {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    pub(crate) argv: Vec<String>,
    pub(crate) user: Option<String>,
    pub(crate) workdir: Option<String>,
    pub(crate) tty: bool,
    pub(crate) detached: bool,
    pub(crate) unlogged: bool,
    /// Started by the worker itself (health checks). Clients cannot see it, and it does not keep
    /// the sandbox busy.
    pub(crate) internal: bool,
    /// Whether the guest has started it; until then it may still fail to start.
    pub(crate) running: bool,
    /// Start time in milliseconds since 1970.
    pub(crate) started: u64,
    /// Start time by the monotonic clock.
    pub(crate) since: Instant,
    /// Origin of the request, for the event log.
    pub(crate) origin: Option<CallOrigin>,
    pub(crate) deadline: Option<Instant>,
    /// Why it was killed, or [`Ending::Own`].
    pub(crate) ending: Ending,
    pub(crate) watchers: Vec<u64>,
    /// Set when it has exited while its output is still drained.
    pub(crate) exited: Option<ExitDrain>,
    stdin: Option<OwnedFd>,
    stdin_queue: VecDeque<u8>,
    stdin_closing: bool,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    /// In a microVM, the connection that carries all three streams.
    pub(crate) vsock: Option<VsockConn>,
    in_vm: bool,
    size: Option<TermSize>,
    /// Signals that arrived before a command in a microVM was started.
    pub(crate) signals: Vec<i32>,
    recent: VecDeque<u8>,
}

/// A command that has exited while other processes hold its output pipes, as `tee` does behind a
/// shell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExitDrain {
    pub(crate) exit: Exit,
    pub(crate) output: OutputDrain,
}

/// The command's ends of its streams, which are passed to the guest.
#[derive(Debug, Default)]
pub(crate) struct ChildStreams(Option<[OwnedFd; 3]>);

impl ChildStreams {
    pub(crate) fn borrow(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().flatten().map(AsFd::as_fd).collect()
    }
}

/// An output stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

/// Result of reading an output stream.
pub(crate) enum StreamRead {
    Bytes(usize),
    Nothing,
    Ended,
}

impl ExecHandle {
    /// Creates the pipes of a command that is about to start.
    ///
    /// `root` is the host uid and gid of root inside. It gets the pipes, so that they can be opened
    /// as /dev/stdout inside.
    pub(crate) fn new(
        id: u64,
        command: &Command,
        root: (u32, u32),
        now: Instant,
    ) -> io::Result<(Self, ChildStreams)> {
        let mut exec = Self::without_pipes(id, command, now);
        if exec.tty {
            return Ok((exec, ChildStreams(None)));
        }
        let theirs_in = match command.stdin {
            msb_spec::Stdin::Closed => File::open("/dev/null")?.into(),
            msb_spec::Stdin::Streamed => {
                let (theirs, ours) = io::pipe()?;
                chown_to(&theirs, root);
                exec.stdin = Some(nonblocking(ours.into())?);
                theirs.into()
            }
        };
        let (out, theirs_out) = io::pipe()?;
        let (err, theirs_err) = io::pipe()?;
        chown_to(&theirs_out, root);
        chown_to(&theirs_err, root);
        exec.stdout = Some(nonblocking(out.into())?);
        exec.stderr = Some(nonblocking(err.into())?);
        Ok((exec, ChildStreams(Some([theirs_in, theirs_out.into(), theirs_err.into()]))))
    }

    /// A command in a microVM. Its streams are one vsock connection, attached later.
    pub(crate) fn in_vm(id: u64, command: &Command, now: Instant) -> Self {
        let closed = command.stdin == msb_spec::Stdin::Closed && command.tty.is_none();
        let exec = Self::without_pipes(id, command, now);
        Self { in_vm: true, stdin_closing: closed, ..exec }
    }

    fn without_pipes(id: u64, command: &Command, now: Instant) -> Self {
        Self {
            id,
            pid: 0,
            argv: command.argv.clone(),
            user: command.user.as_ref().map(ToString::to_string),
            workdir: command.workdir.clone(),
            tty: command.tty.is_some(),
            detached: command.detached,
            unlogged: command.unlogged,
            internal: false,
            running: false,
            started: crate::log::now_ms(),
            since: now,
            origin: command.origin.clone(),
            deadline: command.timeout.map(|timeout| now + timeout.0),
            ending: Ending::Own,
            watchers: Vec::new(),
            exited: None,
            stdin: None,
            stdin_queue: VecDeque::new(),
            stdin_closing: false,
            stdout: None,
            stderr: None,
            vsock: None,
            in_vm: false,
            size: None,
            signals: Vec::new(),
            recent: VecDeque::new(),
        }
    }

    /// Attaches the connection of a command in a microVM, and sends what was queued for it.
    pub(crate) fn attach_vsock(&mut self, vsock: VsockConn) {
        self.vsock = Some(vsock);
        if let Some(size) = self.size.take() {
            self.resize(size);
        }
        self.write_stdin();
    }

    /// Takes the terminal that the guest has opened.
    pub(crate) fn set_terminal(&mut self, terminal: OwnedFd) -> io::Result<()> {
        self.stdin = Some(terminal.try_clone()?);
        self.stdout = Some(nonblocking(terminal)?);
        Ok(())
    }

    pub(crate) fn resize(&mut self, size: TermSize) {
        if self.in_vm {
            match &mut self.vsock {
                Some(vsock) => vsock.send(&encode(FrameKind::Resize, &size)),
                None => self.size = Some(size),
            }
            return;
        }
        if let (true, Some(terminal)) = (self.tty, &self.stdout) {
            let size = rustix::termios::Winsize {
                ws_row: size.rows,
                ws_col: size.cols,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            msb_log::debug_on_failure!(
                rustix::termios::tcsetwinsize(terminal, size),
                "cannot set the size of a terminal"
            );
        }
    }

    /// Queues bytes for stdin; an empty slice closes it.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        match (bytes.is_empty(), self.tty) {
            (true, false) => self.stdin_closing = true,
            // A terminal has no end of file, so send Ctrl-D.
            (true, true) => self.stdin_queue.push_back(4),
            (false, _) => self.stdin_queue.extend(bytes),
        }
        self.write_stdin();
    }

    /// Whether the stdin queue has room for more.
    pub(crate) fn accepts_stdin(&self) -> bool {
        self.stdin_queue.len() < STDIN_BACKLOG
    }

    /// The stdin to poll for writing, if bytes are queued.
    pub(crate) fn blocked_stdin(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.as_ref().filter(|_| !self.stdin_queue.is_empty()).map(AsFd::as_fd)
    }

    pub(crate) fn write_stdin(&mut self) {
        if self.in_vm {
            return self.send_stdin();
        }
        while let (Some(stdin), false) = (&self.stdin, self.stdin_queue.is_empty()) {
            match rustix::io::write(stdin, self.stdin_queue.as_slices().0) {
                Ok(n) => drop(self.stdin_queue.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The command has closed stdin, so the queue is dropped.
                Err(_) => {
                    self.stdin_queue.clear();
                    self.stdin = None;
                }
            }
        }
        // A terminal that is not open yet keeps what was typed early.
        if self.stdin_closing && self.stdin_queue.is_empty() {
            self.stdin = None;
        }
    }

    /// Sends queued stdin over the vsock connection.
    fn send_stdin(&mut self) {
        let Some(vsock) = &mut self.vsock else { return };
        while !self.stdin_queue.is_empty() && vsock.pending_bytes() < STDIN_BACKLOG {
            let piece = self.stdin_queue.as_slices().0;
            let length = piece.len().min(STDIN_BACKLOG);
            vsock.send_bytes(FrameKind::Stdin, &piece[..length]);
            drop(self.stdin_queue.drain(..length));
        }
        if self.stdin_closing && self.stdin_queue.is_empty() {
            self.stdin_closing = false;
            vsock.send_bytes(FrameKind::Stdin, &[]);
        }
    }

    /// Closes an output stream that no client reads, so that the command gets SIGPIPE.
    pub(crate) fn close_output(&mut self, stream: OutputStream) {
        if let Some(vsock) = &mut self.vsock {
            let number = if stream == OutputStream::Stderr { 2 } else { 1 };
            vsock.send_bytes(FrameKind::CloseOutput, &[number]);
        }
        match stream {
            OutputStream::Stdout if !self.tty => self.stdout = None,
            OutputStream::Stderr => self.stderr = None,
            OutputStream::Stdout => {}
        }
    }

    pub(crate) fn stream(&self, stream: OutputStream) -> Option<BorrowedFd<'_>> {
        match stream {
            OutputStream::Stdout => self.stdout.as_ref(),
            OutputStream::Stderr => self.stderr.as_ref(),
        }
        .map(AsFd::as_fd)
    }

    /// Whether the guest has not reported its start yet.
    pub(crate) fn is_starting(&self) -> bool {
        !self.running && self.exited.is_none()
    }

    /// Whether another process may still hold the output pipes. A terminal does not count: its
    /// other processes get SIGHUP.
    pub(crate) fn is_open(&self) -> bool {
        !self.tty && (self.stdout.is_some() || self.stderr.is_some())
    }

    /// The command has exited; its output is drained for a short time.
    pub(crate) fn drain_output(&mut self, exit: Exit, now: Instant) {
        self.deadline = None;
        self.exited = Some(ExitDrain { exit, output: OutputDrain::new(now) });
    }

    /// Reads from a stream, and closes it at its end.
    pub(crate) fn read(
        &mut self,
        stream: OutputStream,
        buffer: &mut [u8],
        now: Instant,
    ) -> StreamRead {
        let slot = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        let Some(fd) = slot else { return StreamRead::Ended };
        match rustix::io::read(fd, &mut *buffer) {
            Ok(n) if n > 0 => {
                self.remember(&buffer[..n]);
                if let Some(exited) = &mut self.exited {
                    exited.output.on_output(now);
                }
                StreamRead::Bytes(n)
            }
            Err(Errno::AGAIN | Errno::INTR) => StreamRead::Nothing,
            // A terminal returns EIO once its other side is closed.
            _ => {
                *slot = None;
                StreamRead::Ended
            }
        }
    }

    /// Keeps the last [`RECENT`] bytes of output.
    pub(crate) fn remember(&mut self, bytes: &[u8]) {
        self.recent.extend(&bytes[bytes.len().saturating_sub(RECENT)..]);
        let excess = self.recent.len().saturating_sub(RECENT);
        self.recent.drain(..excess);
    }

    /// Recent output, for a client that attaches later.
    pub(crate) fn recent(&mut self) -> &[u8] {
        self.recent.make_contiguous()
    }
}

/// Changes the owner of a pipe. Only root can, and only root needs to, so failure is ignored.
fn chown_to(stream: impl AsFd, (uid, gid): (u32, u32)) {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    msb_log::debug_on_failure!(
        rustix::fs::fchown(stream, Some(uid), Some(gid)),
        "cannot give a pipe to the user of the command"
    );
}

/// Sets our end of a stream to non-blocking.
fn nonblocking(fd: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}
