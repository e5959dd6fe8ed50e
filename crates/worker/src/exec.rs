//! One command: its streams on this side, and who watches it.

use crate::wired::Wired;
use msb_spec::{Asker, Command, Ending, Exit, TermSize};
use msb_wire::{FrameKind, LAST_WORDS, LAST_WORDS_LIMIT, encode};
use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

/// What late comers are shown of what was said before.
const RECENT: usize = 64 << 10;
/// What is kept for a command that does not read; more waits in the client's socket.
const STDIN_BACKLOG: usize = 64 << 10;

/// A command and its streams.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) id: u64,
    pub(crate) pid: u32,
    pub(crate) argv: Vec<String>,
    pub(crate) user: Option<String>,
    pub(crate) workdir: Option<String>,
    pub(crate) tty: bool,
    pub(crate) detached: bool,
    pub(crate) unlogged: bool,
    /// Whether it is the worker's: no client sees it, and it is not what the sandbox is for.
    pub(crate) own: bool,
    /// Whether it has begun; until then the guest may still refuse it.
    pub(crate) running: bool,
    /// Milliseconds since 1970.
    pub(crate) started: u64,
    /// The same by the clock that nobody sets.
    pub(crate) since: Instant,
    /// Who asked for it.
    pub(crate) asker: Option<Asker>,
    pub(crate) deadline: Option<Instant>,
    /// Why it will have ended, if not by itself.
    pub(crate) ending: Ending,
    pub(crate) watchers: Vec<u64>,
    /// How it has ended, while what it left behind is still heard.
    pub(crate) over: Option<Over>,
    stdin: Option<OwnedFd>,
    unread: VecDeque<u8>,
    stdin_closing: bool,
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    /// In a microVM: the connection that stands for all three.
    pub(crate) wired: Option<Wired>,
    remote: bool,
    size: Option<TermSize>,
    /// Signals for a command in a microVM that does not run yet.
    pub(crate) signals: Vec<i32>,
    recent: VecDeque<u8>,
}

/// The end of a command that others still speak for, like `tee` behind a shell.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Over {
    pub(crate) exit: Exit,
    pub(crate) until: Instant,
    latest: Instant,
}

/// The command's own ends of its streams, to be handed to the guest.
#[derive(Debug, Default)]
pub(crate) struct Ends(Option<[OwnedFd; 3]>);

impl Ends {
    pub(crate) fn borrow(&self) -> Vec<BorrowedFd<'_>> {
        self.0.iter().flatten().map(AsFd::as_fd).collect()
    }
}

/// Which stream something was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

/// What reading a stream brought.
pub(crate) enum Read {
    Bytes(usize),
    Nothing,
    Ended,
}

impl Exec {
    /// Makes the pipes of a command that is about to start.
    ///
    /// `root` is who root inside is outside: the streams belong to it, so that they can be opened
    /// by name inside, as in /dev/stdout.
    pub(crate) fn new(id: u64, command: &Command, root: (u32, u32)) -> io::Result<(Self, Ends)> {
        let mut exec = Self::without_streams(id, command);
        if exec.tty {
            return Ok((exec, Ends(None)));
        }
        let theirs_in = match command.stdin {
            msb_spec::Stdin::Closed => File::open("/dev/null")?.into(),
            msb_spec::Stdin::Streamed => {
                let (theirs, ours) = io::pipe()?;
                give(&theirs, root);
                exec.stdin = Some(ours_only(ours.into())?);
                theirs.into()
            }
        };
        let (out, theirs_out) = io::pipe()?;
        let (err, theirs_err) = io::pipe()?;
        give(&theirs_out, root);
        give(&theirs_err, root);
        exec.stdout = Some(ours_only(out.into())?);
        exec.stderr = Some(ours_only(err.into())?);
        Ok((exec, Ends(Some([theirs_in, theirs_out.into(), theirs_err.into()]))))
    }

    /// A command in a microVM, whose streams will be one connection.
    pub(crate) fn remote(id: u64, command: &Command) -> Self {
        let closed = command.stdin == msb_spec::Stdin::Closed && command.tty.is_none();
        let exec = Self::without_streams(id, command);
        Self { remote: true, stdin_closing: closed, ..exec }
    }

    fn without_streams(id: u64, command: &Command) -> Self {
        Self {
            id,
            pid: 0,
            argv: command.argv.clone(),
            user: command.user.as_ref().map(ToString::to_string),
            workdir: command.workdir.clone(),
            tty: command.tty.is_some(),
            detached: command.detached,
            unlogged: command.unlogged,
            own: false,
            running: false,
            started: crate::log::now_ms(),
            since: Instant::now(),
            asker: command.asker.clone(),
            deadline: command.timeout.map(|timeout| Instant::now() + timeout.0),
            ending: Ending::Own,
            watchers: Vec::new(),
            over: None,
            stdin: None,
            unread: VecDeque::new(),
            stdin_closing: false,
            stdout: None,
            stderr: None,
            wired: None,
            remote: false,
            size: None,
            signals: Vec::new(),
            recent: VecDeque::new(),
        }
    }

    /// Takes the connection to a command in a microVM, and says what waited for it.
    pub(crate) fn wire(&mut self, wired: Wired) {
        self.wired = Some(wired);
        if let Some(size) = self.size.take() {
            self.resize(size);
        }
        self.write_stdin();
    }

    /// Takes the terminal that the guest has made.
    pub(crate) fn set_terminal(&mut self, terminal: OwnedFd) -> io::Result<()> {
        self.stdin = Some(terminal.try_clone()?);
        self.stdout = Some(ours_only(terminal)?);
        Ok(())
    }

    pub(crate) fn resize(&mut self, size: TermSize) {
        if self.remote {
            match &mut self.wired {
                Some(wired) => wired.send(&encode(FrameKind::Resize, &size)),
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
            let _ = rustix::termios::tcsetwinsize(terminal, size);
        }
    }

    /// Takes bytes for the command; none closes its stdin.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        match (bytes.is_empty(), self.tty) {
            (true, false) => self.stdin_closing = true,
            // A terminal has no end of file but the key for it.
            (true, true) => self.unread.push_back(4),
            (false, _) => self.unread.extend(bytes),
        }
        self.write_stdin();
    }

    /// Whether more may be read from whoever feeds it.
    pub(crate) fn takes_more(&self) -> bool {
        self.unread.len() < STDIN_BACKLOG
    }

    /// The stdin to wait for, if something is to be written.
    pub(crate) fn blocked_stdin(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.as_ref().filter(|_| !self.unread.is_empty()).map(AsFd::as_fd)
    }

    pub(crate) fn write_stdin(&mut self) {
        if self.remote {
            return self.send_stdin();
        }
        while let (Some(stdin), false) = (&self.stdin, self.unread.is_empty()) {
            match rustix::io::write(stdin, self.unread.as_slices().0) {
                Ok(n) => drop(self.unread.drain(..n)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // The command reads no more; what is left has no reader.
                Err(_) => {
                    self.unread.clear();
                    self.stdin = None;
                }
            }
        }
        // A terminal that is not there yet still gets what was typed early.
        if self.stdin_closing && self.unread.is_empty() {
            self.stdin = None;
        }
    }

    /// The same for a command in a microVM.
    fn send_stdin(&mut self) {
        let Some(wired) = &mut self.wired else { return };
        while !self.unread.is_empty() && wired.owed() < STDIN_BACKLOG {
            let piece = self.unread.as_slices().0;
            let length = piece.len().min(STDIN_BACKLOG);
            wired.send_bytes(FrameKind::Stdin, &piece[..length]);
            drop(self.unread.drain(..length));
        }
        if self.stdin_closing && self.unread.is_empty() {
            self.stdin_closing = false;
            wired.send_bytes(FrameKind::Stdin, &[]);
        }
    }

    /// Closes a stream that nobody reads any more, so that the command learns of it.
    pub(crate) fn hush(&mut self, stream: Stream) {
        if let Some(wired) = &mut self.wired {
            let number = if stream == Stream::Stderr { 2 } else { 1 };
            wired.send_bytes(FrameKind::Hush, &[number]);
        }
        match stream {
            Stream::Stdout if !self.tty => self.stdout = None,
            Stream::Stderr => self.stderr = None,
            Stream::Stdout => {}
        }
    }

    pub(crate) fn stream(&self, stream: Stream) -> Option<BorrowedFd<'_>> {
        match stream {
            Stream::Stdout => self.stdout.as_ref(),
            Stream::Stderr => self.stderr.as_ref(),
        }
        .map(AsFd::as_fd)
    }

    /// Whether something else holds what it has spoken on. A terminal is not waited for: what it left
    /// behind there was told to end.
    pub(crate) fn is_open(&self) -> bool {
        !self.tty && (self.stdout.is_some() || self.stderr.is_some())
    }

    /// It has ended; what it left behind is heard a little longer.
    pub(crate) fn linger(&mut self, exit: Exit) {
        let now = Instant::now();
        self.deadline = None;
        self.over = Some(Over { exit, until: now + LAST_WORDS, latest: now + LAST_WORDS_LIMIT });
    }

    /// Reads what a stream has; a stream that ended is closed.
    pub(crate) fn read(&mut self, stream: Stream, buffer: &mut [u8]) -> Read {
        let slot = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let Some(fd) = slot else { return Read::Ended };
        match rustix::io::read(fd, &mut *buffer) {
            Ok(n) if n > 0 => {
                self.remember(&buffer[..n]);
                if let Some(over) = &mut self.over {
                    over.until = over.latest.min(Instant::now() + LAST_WORDS);
                }
                Read::Bytes(n)
            }
            Err(Errno::AGAIN | Errno::INTR) => Read::Nothing,
            // A terminal whose other end is closed says EIO.
            _ => {
                *slot = None;
                Read::Ended
            }
        }
    }

    /// Keeps what was said lately.
    pub(crate) fn remember(&mut self, bytes: &[u8]) {
        self.recent.extend(&bytes[bytes.len().saturating_sub(RECENT)..]);
        let over = self.recent.len().saturating_sub(RECENT);
        self.recent.drain(..over);
    }

    /// What was said lately, for who comes late.
    pub(crate) fn recent(&mut self) -> &[u8] {
        self.recent.make_contiguous()
    }
}

/// Only root may give something away, and only root has to.
fn give(stream: impl AsFd, (uid, gid): (u32, u32)) {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let _ = rustix::fs::fchown(stream, Some(uid), Some(gid));
}

/// Our end of a stream never makes the loop wait.
fn ours_only(fd: OwnedFd) -> io::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&fd, true)?;
    Ok(fd)
}
