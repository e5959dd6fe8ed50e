//! One command in a microVM and its vsock connection.
//!
//! Output is forwarded as it comes, and not read while the worker does not take it. Stdin is queued
//! until the command reads it, and the connection is not read while the queue is full.

use super::PACKET;
use crate::commands::{Commands, SpawnRequest};
use msb_spec::TermSize;
use msb_sys::signal::SIGKILL;
use msb_sys::socket::NonblockingSocket;
use msb_wire::{
    Frame, FrameKind, FramedSocket, FromGuest, HEADER, MAX_REQUEST, OutputDrain, SpawnFailure,
    encode, header,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::pipe::PipeFlags;
use std::collections::VecDeque;
use std::io::ErrorKind::{Interrupted, WouldBlock};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// Bytes read at once: one packet with its header.
pub(super) const CHUNK: usize = PACKET - HEADER;
/// Bytes queued for a command that does not read; more stays in the connection.
const STDIN_BACKLOG: usize = 64 << 10;
/// Bytes read from the terminal of an exited command: more than its buffer holds.
const TERMINAL_REST: u64 = 1 << 20;

/// A descriptor of an Exec that is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExecFd {
    Worker,
    Stdin,
    Stdout,
    Stderr,
}

/// The connection is closed, so no client wants the command.
#[derive(Debug)]
pub(super) struct ConnClosed;

type Alive = Result<(), ConnClosed>;

#[derive(Debug)]
pub(super) struct VmExec {
    pub(super) id: u64,
    /// Whether the sandbox ends with it.
    pub(super) is_main: bool,
    socket: FramedSocket<NonblockingSocket>,
    out: Vec<u8>,
    sent: usize,
    terminal: bool,
    stdin: Option<OwnedFd>,
    stdin_queue: VecDeque<u8>,
    stdin_closing: bool,
    stdout: OutputPipe,
    stderr: OutputPipe,
    /// Its exit while output is drained.
    draining: Option<(FromGuest, OutputDrain)>,
    ended: Option<FromGuest>,
    reported: bool,
    closed: bool,
}

/// Our end of an output stream.
#[derive(Debug, Default)]
struct OutputPipe {
    fd: Option<OwnedFd>,
    /// Bytes still to be read after the exit.
    rest: u64,
}

impl OutputPipe {
    /// Whether a process could still write to it.
    fn has_writer(&self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut wait = [PollFd::new(fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = poll(&mut wait, Some(&now));
        !wait[0].revents().contains(PollFlags::HUP)
    }
}

impl VmExec {
    /// Starts a command and queues the reply.
    pub(super) fn start(
        id: u64,
        request: &SpawnRequest,
        is_main: bool,
        socket: OwnedFd,
        commands: &mut Commands,
    ) -> Self {
        let mut exec = Self {
            id,
            is_main,
            socket: FramedSocket::new(socket.into(), MAX_REQUEST),
            out: Vec::new(),
            sent: 0,
            terminal: request.tty.is_some(),
            stdin: None,
            stdin_queue: VecDeque::new(),
            stdin_closing: false,
            stdout: OutputPipe::default(),
            stderr: OutputPipe::default(),
            draining: None,
            ended: None,
            reported: false,
            closed: false,
        };
        let answer = exec.try_start(request, commands).unwrap_or_else(|errno| {
            // It may have started, but its output cannot be read.
            commands.signal(id, SIGKILL);
            FromGuest::Failed { id, failure: SpawnFailure::Process, errno: errno.raw_os_error() }
        });
        if matches!(answer, FromGuest::Failed { .. }) {
            exec.end(answer);
        } else {
            exec.out = encode(FrameKind::Control, &answer);
        }
        exec
    }

    fn try_start(
        &mut self,
        request: &SpawnRequest,
        commands: &mut Commands,
    ) -> Result<FromGuest, Errno> {
        if self.terminal {
            let (answer, outer) = commands.start(self.id, request, &[]);
            if let Some(outer) = outer {
                let outer = nonblocking(outer)?;
                self.stdin = Some(rustix::io::fcntl_dupfd_cloexec(&outer, 0)?);
                self.stdout.fd = Some(outer);
            }
            return Ok(answer);
        }
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let ((theirs_in, stdin), (stdout, theirs_out), (stderr, theirs_err)) =
            (pipe()?, pipe()?, pipe()?);
        self.stdin = Some(nonblocking(stdin)?);
        self.stdout.fd = Some(nonblocking(stdout)?);
        self.stderr.fd = Some(nonblocking(stderr)?);
        Ok(commands.start(self.id, request, &[theirs_in, theirs_out, theirs_err]).0)
    }

    /// What to poll for.
    pub(super) fn waits(&self) -> impl Iterator<Item = (ExecFd, BorrowedFd<'_>, PollFlags)> {
        let mut worker = PollFlags::RDHUP;
        worker.set(PollFlags::IN, self.reported || self.accepts_stdin());
        worker.set(PollFlags::OUT, !self.out.is_empty());
        let stdin = self.stdin.as_ref().filter(|_| !self.stdin_queue.is_empty());
        let reads = self.out.is_empty() && self.ended.is_none();
        [
            Some((ExecFd::Worker, self.socket.socket().as_fd(), worker)),
            stdin.map(|fd| (ExecFd::Stdin, fd.as_fd(), PollFlags::OUT)),
            self.stdout
                .fd
                .as_ref()
                .filter(|_| reads)
                .map(|fd| (ExecFd::Stdout, fd.as_fd(), PollFlags::IN)),
            self.stderr
                .fd
                .as_ref()
                .filter(|_| reads)
                .map(|fd| (ExecFd::Stderr, fd.as_fd(), PollFlags::IN)),
        ]
        .into_iter()
        .flatten()
    }

    /// Handles poll flags of one descriptor.
    pub(super) fn advance(
        &mut self,
        side: ExecFd,
        happened: PollFlags,
        buffer: &mut [u8],
        commands: &Commands,
    ) -> Alive {
        match side {
            _ if self.closed => Ok(()),
            ExecFd::Worker => {
                if happened.contains(PollFlags::OUT) {
                    self.flush()?;
                }
                let readable = happened
                    .intersects(PollFlags::IN | PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
                if readable { self.read_worker(happened, buffer, commands) } else { Ok(()) }
            }
            ExecFd::Stdin => {
                self.write_stdin();
                Ok(())
            }
            ExecFd::Stdout | ExecFd::Stderr => self.forward(side, buffer),
        }
    }

    /// The command has exited. Other processes may still write to its pipes.
    pub(super) fn exited(&mut self, how: FromGuest) {
        let has_writer = [&self.stdout, &self.stderr].into_iter().any(OutputPipe::has_writer);
        if self.terminal || !has_writer {
            return self.end(how);
        }
        let now = Instant::now();
        self.stdin = None;
        self.stdin_queue.clear();
        self.draining = Some((how, OutputDrain::new(now)));
    }

    /// When draining ends, unless the worker still has to take output.
    pub(super) fn drain_deadline(&self) -> Option<Instant> {
        self.draining.as_ref().filter(|_| self.out.is_empty()).map(|(_, drain)| drain.deadline())
    }

    /// Finishes the command once its output is closed or silent.
    pub(super) fn finish_if_drained(&mut self, now: Instant) {
        let closed = self.stdout.fd.is_none() && self.stderr.fd.is_none();
        let sent = self.out.is_empty();
        let is_over = |drain: &mut OutputDrain| closed || sent && drain.is_over(now);
        if let Some((how, _)) = self.draining.take_if(|(_, drain)| is_over(drain)) {
            self.end(how);
        }
    }

    /// The command has ended, or failed to start. Its output is sent before that is reported.
    pub(super) fn end(&mut self, how: FromGuest) {
        self.ended = Some(how);
        self.stdin = None;
        self.stdin_queue.clear();
        for output in [&mut self.stdout, &mut self.stderr] {
            // Only what is in the pipe now: other processes may go on writing.
            output.rest = match &output.fd {
                None => 0,
                Some(_) if self.terminal => TERMINAL_REST,
                Some(fd) => rustix::io::ioctl_fionread(fd).unwrap_or(0),
            };
        }
    }

    /// Whether its end was reported to the worker.
    pub(super) fn is_reported(&self) -> bool {
        self.reported && self.out.is_empty()
    }

    /// Sends pending data, and after the exit the rest of the output.
    pub(super) fn flush(&mut self) -> Alive {
        loop {
            while self.sent < self.out.len() {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let end = self.out.len().min(self.sent + PACKET);
                match rustix::net::send(self.socket.socket(), &self.out[self.sent..end], flags) {
                    Ok(n) => self.sent += n,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(_) => return Err(ConnClosed),
                }
            }
            self.out.clear();
            self.sent = 0;
            let Some(ended) = &self.ended else { return Ok(()) };
            if self.reported {
                return Ok(());
            }
            // In as few packets as possible: each one costs a VM exit.
            append_rest(&mut self.stdout, FrameKind::Stdout, &mut self.out);
            append_rest(&mut self.stderr, FrameKind::Stderr, &mut self.out);
            if self.stdout.rest + self.stderr.rest == 0 {
                self.out.extend_from_slice(&encode(FrameKind::Control, ended));
                self.reported = true;
            }
        }
    }

    /// Forwards output of the command.
    fn forward(&mut self, side: ExecFd, buffer: &mut [u8]) -> Alive {
        let (output, kind) = match side {
            ExecFd::Stdout => (&mut self.stdout, FrameKind::Stdout),
            _ => (&mut self.stderr, FrameKind::Stderr),
        };
        let Some(fd) = output.fd.as_ref().filter(|_| self.out.is_empty() && self.ended.is_none())
        else {
            return Ok(());
        };
        let read = match rustix::io::read(fd, &mut buffer[HEADER..HEADER + CHUNK]) {
            Ok(n) if n > 0 => n,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            // A terminal returns EIO once its other side is closed.
            _ => {
                output.fd = None;
                return Ok(());
            }
        };
        if let Some((_, drain)) = &mut self.draining {
            drain.on_output(Instant::now());
        }
        buffer[..HEADER].copy_from_slice(&header(kind, read));
        let frame = &buffer[..HEADER + read];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(self.socket.socket(), frame, flags) {
            Ok(n) => self.out.extend_from_slice(&frame[n..]),
            Err(Errno::AGAIN | Errno::INTR) => self.out.extend_from_slice(frame),
            Err(_) => return Err(ConnClosed),
        }
        Ok(())
    }

    /// Reads frames of the worker.
    fn read_worker(
        &mut self,
        happened: PollFlags,
        buffer: &mut [u8],
        commands: &Commands,
    ) -> Alive {
        let reads = self.reported || self.accepts_stdin();
        if !reads {
            // Nothing is read now, but a closed connection ends the command.
            let left = happened.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
            return if left { Err(ConnClosed) } else { Ok(()) };
        }
        match self.socket.receive(&mut buffer[..CHUNK]) {
            Ok(0) => return Err(ConnClosed),
            Ok(_) => {}
            Err(error) if matches!(error.kind(), WouldBlock | Interrupted) => return Ok(()),
            Err(_) => return Err(ConnClosed),
        }
        while let Some(frame) = self.socket.next_frame().map_err(|_| ConnClosed)? {
            // What arrives after the end of the command is only taken off the socket.
            if self.ended.is_none() {
                self.on_frame(&frame, commands);
            }
        }
        Ok(())
    }

    fn on_frame(&mut self, frame: &Frame, commands: &Commands) {
        match frame.kind {
            FrameKind::Stdin => self.feed(&frame.payload),
            FrameKind::Signal => {
                if let Ok(signal) = frame.value() {
                    commands.signal(self.id, signal);
                }
            }
            FrameKind::Resize => {
                if let Ok(size) = frame.value() {
                    self.resize(size);
                }
            }
            FrameKind::CloseOutput if frame.payload == [2] => self.stderr.fd = None,
            FrameKind::CloseOutput if !self.terminal => self.stdout.fd = None,
            _ => {}
        }
    }

    fn resize(&self, size: TermSize) {
        if let (true, Some(terminal)) = (self.terminal, &self.stdout.fd) {
            let size = rustix::termios::Winsize {
                ws_row: size.rows,
                ws_col: size.cols,
                ws_xpixel: 0,
                ws_ypixel: 0,
            };
            let _ = rustix::termios::tcsetwinsize(terminal, size);
        }
    }

    fn accepts_stdin(&self) -> bool {
        self.ended.is_none() && self.stdin_queue.len() < STDIN_BACKLOG
    }

    fn feed(&mut self, bytes: &[u8]) {
        match (bytes.is_empty(), self.terminal) {
            (true, false) => self.stdin_closing = true,
            // A terminal has no end of file, so send Ctrl-D.
            (true, true) => self.stdin_queue.push_back(4),
            (false, _) => self.stdin_queue.extend(bytes),
        }
        self.write_stdin();
    }

    fn write_stdin(&mut self) {
        while let (Some(stdin), false) = (&self.stdin, self.stdin_queue.is_empty()) {
            match rustix::io::write(stdin, self.stdin_queue.as_slices().0) {
                Ok(n) => drop(self.stdin_queue.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.stdin = None,
            }
        }
        if self.stdin.is_none() {
            // The command has closed stdin, so the queue is dropped.
            self.stdin_queue.clear();
        } else if self.stdin_closing {
            self.stdin = None;
        }
    }

    /// The connection is closed: kills the command.
    pub(super) fn on_closed(&mut self, commands: &Commands) {
        if self.ended.is_none() && self.draining.is_none() && !self.closed {
            commands.signal(self.id, SIGKILL);
        }
        self.closed = true;
    }

    /// Whether the connection is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }
}

/// Appends a piece of the remaining output.
fn append_rest(output: &mut OutputPipe, kind: FrameKind, out: &mut Vec<u8>) {
    let Some(fd) = output.fd.as_ref().filter(|_| output.rest > 0) else {
        output.rest = 0;
        return;
    };
    let wanted = output.rest.min(CHUNK as u64) as usize;
    let start = out.len();
    out.resize(start + HEADER + wanted, 0);
    let read = loop {
        match rustix::io::read(fd, &mut out[start + HEADER..]) {
            Err(Errno::INTR) => {}
            other => break other.unwrap_or(0),
        }
    };
    if read == 0 {
        output.rest = 0;
        out.truncate(start);
        return;
    }
    output.rest -= read as u64;
    out[start..start + HEADER].copy_from_slice(&header(kind, read));
    out.truncate(start + HEADER + read);
}

/// Sets our end of a stream to non-blocking.
fn nonblocking(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}
