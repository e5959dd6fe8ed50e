//! One command and the connection that it has to itself.
//!
//! What the command says is passed on as it comes, and no more of it is read than the worker
//! takes; what it is told waits here until it reads, and no more is taken from the worker meanwhile.

use super::PACKET;
use crate::commands::{Asked, Commands};
use msb_spec::TermSize;
use msb_sys::signal::SIGKILL;
use msb_wire::{
    Decoder, Frame, FrameKind, FromGuest, HEADER, LAST_WORDS, LAST_WORDS_LIMIT, MAX_REQUEST,
    SpawnFailure, encode, header,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::pipe::PipeFlags;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// What is read at once: with its header it is one packet.
pub(super) const CHUNK: usize = PACKET - HEADER;
/// What is kept for a command that does not read; more waits in the connection.
const STDIN_BACKLOG: usize = 64 << 10;
/// More than a terminal keeps of what a command wrote before it ended.
const TERMINAL_REST: u64 = 1 << 20;

/// Where something may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Worker,
    Stdin,
    Stdout,
    Stderr,
}

/// The connection has gone, and with it whoever wanted the command.
#[derive(Debug)]
pub(super) struct Gone;

type Alive = Result<(), Gone>;

#[derive(Debug)]
pub(super) struct Exec {
    pub(super) id: u64,
    /// The sandbox ends with it.
    pub(super) last: bool,
    socket: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    terminal: bool,
    stdin: Option<OwnedFd>,
    unread: VecDeque<u8>,
    stdin_closing: bool,
    stdout: Output,
    stderr: Output,
    /// How it has ended, while what it left behind is heard: until when, and when at the latest.
    lingers: Option<(FromGuest, Instant, Instant)>,
    ended: Option<FromGuest>,
    told: bool,
    lost: bool,
}

/// What a command says on one stream.
#[derive(Debug, Default)]
struct Output {
    fd: Option<OwnedFd>,
    /// What is still to be read of a command that has ended.
    rest: u64,
}

impl Output {
    /// Whether somebody could still write there.
    fn is_held(&self) -> bool {
        let Some(fd) = &self.fd else { return false };
        let mut wait = [PollFd::new(fd, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = poll(&mut wait, Some(&now));
        !wait[0].revents().contains(PollFlags::HUP)
    }
}

impl Exec {
    /// Starts a command and says how that went.
    pub(super) fn start(
        id: u64,
        asked: &Asked,
        last: bool,
        socket: OwnedFd,
        commands: &mut Commands,
    ) -> Self {
        let mut exec = Self {
            id,
            last,
            socket,
            decoder: Decoder::new(MAX_REQUEST),
            out: Vec::new(),
            sent: 0,
            terminal: asked.tty.is_some(),
            stdin: None,
            unread: VecDeque::new(),
            stdin_closing: false,
            stdout: Output::default(),
            stderr: Output::default(),
            lingers: None,
            ended: None,
            told: false,
            lost: false,
        };
        let answer = exec.try_start(asked, commands).unwrap_or_else(|errno| {
            // It may have begun, but nobody can hear it.
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

    fn try_start(&mut self, asked: &Asked, commands: &mut Commands) -> Result<FromGuest, Errno> {
        if self.terminal {
            let (answer, outer) = commands.start(self.id, asked, &[]);
            if let Some(outer) = outer {
                let outer = ours(outer)?;
                self.stdin = Some(rustix::io::fcntl_dupfd_cloexec(&outer, 0)?);
                self.stdout.fd = Some(outer);
            }
            return Ok(answer);
        }
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC);
        let ((theirs_in, stdin), (stdout, theirs_out), (stderr, theirs_err)) =
            (pipe()?, pipe()?, pipe()?);
        self.stdin = Some(ours(stdin)?);
        self.stdout.fd = Some(ours(stdout)?);
        self.stderr.fd = Some(ours(stderr)?);
        Ok(commands.start(self.id, asked, &[theirs_in, theirs_out, theirs_err]).0)
    }

    /// What to wait for.
    pub(super) fn waits(&self) -> impl Iterator<Item = (Side, BorrowedFd<'_>, PollFlags)> {
        let mut worker = PollFlags::RDHUP;
        worker.set(PollFlags::IN, self.told || self.takes_more());
        worker.set(PollFlags::OUT, !self.out.is_empty());
        let stdin = self.stdin.as_ref().filter(|_| !self.unread.is_empty());
        let reads = self.out.is_empty() && self.ended.is_none();
        [
            Some((Side::Worker, self.socket.as_fd(), worker)),
            stdin.map(|fd| (Side::Stdin, fd.as_fd(), PollFlags::OUT)),
            self.stdout
                .fd
                .as_ref()
                .filter(|_| reads)
                .map(|fd| (Side::Stdout, fd.as_fd(), PollFlags::IN)),
            self.stderr
                .fd
                .as_ref()
                .filter(|_| reads)
                .map(|fd| (Side::Stderr, fd.as_fd(), PollFlags::IN)),
        ]
        .into_iter()
        .flatten()
    }

    /// Does what can be done where something has happened.
    pub(super) fn advance(
        &mut self,
        side: Side,
        happened: PollFlags,
        buffer: &mut [u8],
        commands: &Commands,
    ) -> Alive {
        match side {
            _ if self.lost => Ok(()),
            Side::Worker => {
                if happened.contains(PollFlags::OUT) {
                    self.flush()?;
                }
                let heard = happened
                    .intersects(PollFlags::IN | PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
                if heard { self.hear(happened, buffer, commands) } else { Ok(()) }
            }
            Side::Stdin => {
                self.write_stdin();
                Ok(())
            }
            Side::Stdout | Side::Stderr => self.relay(side, buffer),
        }
    }

    /// The command has ended by itself. What it left behind may still say something.
    pub(super) fn exited(&mut self, how: FromGuest) {
        let held = [&self.stdout, &self.stderr].into_iter().any(Output::is_held);
        if self.terminal || !held {
            return self.end(how);
        }
        let now = Instant::now();
        self.stdin = None;
        self.unread.clear();
        self.lingers = Some((how, now + LAST_WORDS, now + LAST_WORDS_LIMIT));
    }

    /// When it is over at the latest, unless the worker has yet to take what was said.
    pub(super) fn silent_at(&self) -> Option<Instant> {
        self.lingers.as_ref().filter(|_| self.out.is_empty()).map(|(_, until, _)| *until)
    }

    /// Ends a command for which nobody speaks any more.
    pub(super) fn look(&mut self, now: Instant) {
        let closed = self.stdout.fd.is_none() && self.stderr.fd.is_none();
        let silent = closed || self.silent_at().is_some_and(|until| until <= now);
        if let Some((how, ..)) = self.lingers.take_if(|_| silent) {
            self.end(how);
        }
    }

    /// The command is over, or never began. What it has said goes before the news.
    pub(super) fn end(&mut self, how: FromGuest) {
        self.ended = Some(how);
        self.stdin = None;
        self.unread.clear();
        for output in [&mut self.stdout, &mut self.stderr] {
            // Only what is there now: something that it left behind may go on writing for ever.
            output.rest = match &output.fd {
                None => 0,
                Some(_) if self.terminal => TERMINAL_REST,
                Some(fd) => rustix::io::ioctl_fionread(fd).unwrap_or(0),
            };
        }
    }

    /// Whether the worker has been told of the end.
    pub(super) fn is_told(&self) -> bool {
        self.told && self.out.is_empty()
    }

    /// Sends what is waiting, and of a command that has ended the rest.
    pub(super) fn flush(&mut self) -> Alive {
        loop {
            while self.sent < self.out.len() {
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let end = self.out.len().min(self.sent + PACKET);
                match rustix::net::send(&self.socket, &self.out[self.sent..end], flags) {
                    Ok(n) => self.sent += n,
                    Err(Errno::INTR) => {}
                    Err(Errno::AGAIN) => return Ok(()),
                    Err(_) => return Err(Gone),
                }
            }
            self.out.clear();
            self.sent = 0;
            let Some(ended) = &self.ended else { return Ok(()) };
            if self.told {
                return Ok(());
            }
            // In as few packets as there can be: each one costs an exit of the machine.
            gather(&mut self.stdout, FrameKind::Stdout, &mut self.out);
            gather(&mut self.stderr, FrameKind::Stderr, &mut self.out);
            if self.stdout.rest + self.stderr.rest == 0 {
                self.out.extend_from_slice(&encode(FrameKind::Control, ended));
                self.told = true;
            }
        }
    }

    /// Passes on what the command says.
    fn relay(&mut self, side: Side, buffer: &mut [u8]) -> Alive {
        let (output, kind) = match side {
            Side::Stdout => (&mut self.stdout, FrameKind::Stdout),
            _ => (&mut self.stderr, FrameKind::Stderr),
        };
        let Some(fd) = output.fd.as_ref().filter(|_| self.out.is_empty() && self.ended.is_none())
        else {
            return Ok(());
        };
        let read = match rustix::io::read(fd, &mut buffer[HEADER..HEADER + CHUNK]) {
            Ok(n) if n > 0 => n,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            // A terminal whose other end is closed says EIO.
            _ => {
                output.fd = None;
                return Ok(());
            }
        };
        if let Some((_, until, latest)) = &mut self.lingers {
            *until = (*latest).min(Instant::now() + LAST_WORDS);
        }
        buffer[..HEADER].copy_from_slice(&header(kind, read));
        let frame = &buffer[..HEADER + read];
        match rustix::net::send(&self.socket, frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(n) => self.out.extend_from_slice(&frame[n..]),
            Err(Errno::AGAIN | Errno::INTR) => self.out.extend_from_slice(frame),
            Err(_) => return Err(Gone),
        }
        Ok(())
    }

    /// Takes what the worker says.
    fn hear(&mut self, happened: PollFlags, buffer: &mut [u8], commands: &Commands) -> Alive {
        let reads = self.told || self.takes_more();
        if !reads {
            // Nothing is read now, but whoever has left will not come back.
            let left = happened.intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
            return if left { Err(Gone) } else { Ok(()) };
        }
        match rustix::net::recv(&self.socket, &mut buffer[..CHUNK], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(Gone),
            Ok((_, n)) if self.ended.is_none() => {
                self.decoder.push(&buffer[..n]);
                while let Some(frame) = self.decoder.next_frame().map_err(|_| Gone)? {
                    self.obey(&frame, commands);
                }
                Ok(())
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(_) => Err(Gone),
        }
    }

    fn obey(&mut self, frame: &Frame, commands: &Commands) {
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
            FrameKind::Hush if frame.payload == [2] => self.stderr.fd = None,
            FrameKind::Hush if !self.terminal => self.stdout.fd = None,
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

    fn takes_more(&self) -> bool {
        self.ended.is_none() && self.unread.len() < STDIN_BACKLOG
    }

    fn feed(&mut self, bytes: &[u8]) {
        match (bytes.is_empty(), self.terminal) {
            (true, false) => self.stdin_closing = true,
            // A terminal has no end of file but the key for it.
            (true, true) => self.unread.push_back(4),
            (false, _) => self.unread.extend(bytes),
        }
        self.write_stdin();
    }

    fn write_stdin(&mut self) {
        while let (Some(stdin), false) = (&self.stdin, self.unread.is_empty()) {
            match rustix::io::write(stdin, self.unread.as_slices().0) {
                Ok(n) => drop(self.unread.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(_) => self.stdin = None,
            }
        }
        if self.stdin.is_none() {
            // The command reads no more; what is left has no reader.
            self.unread.clear();
        } else if self.stdin_closing {
            self.stdin = None;
        }
    }

    /// The connection has gone: nobody wants the command any more.
    pub(super) fn lose(&mut self, commands: &Commands) {
        if self.ended.is_none() && self.lingers.is_none() && !self.lost {
            commands.signal(self.id, SIGKILL);
        }
        self.lost = true;
    }

    /// Whether the connection has gone.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }
}

/// Adds what is left of a stream, a piece of it at a time.
fn gather(output: &mut Output, kind: FrameKind, out: &mut Vec<u8>) {
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

/// Our end of a stream never makes the loop wait.
fn ours(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}
