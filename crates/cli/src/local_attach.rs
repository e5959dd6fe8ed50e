//! A command's streams joined to ours, until it ends or we leave.

use crate::terminal::{self, DetachKeys, Raw, TypedInput};
use msb_spec::{Error, Exit, Kind, Result, Stdin};
use msb_sys::signal::{self, Signals};
use msb_wire::{ClientMessage, WorkerClient, WorkerEvent};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io::{Write, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// How taking options ended.
#[derive(Debug)]
pub(crate) enum AttachResult {
    /// The command is over.
    Exited(Exit),
    /// We left and it goes on.
    Detached {
        /// The number of the Exec, which goes on.
        exec: u64,
    },
}

/// How we take options.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AttachOptions {
    /// Whether our stdin is its stdin.
    pub(crate) stdin: Stdin,
    /// Whether it has a terminal, so that ours must be raw.
    pub(crate) tty: bool,
    /// Leave as soon as it runs.
    pub(crate) leave_at_once: bool,
    /// What happens when our stdout is closed.
    pub(crate) closed_output: ClosedOutput,
}

/// What happens to a command when the stdout of its client is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClosedOutput {
    /// The command is the client's own: its pipe is closed too, as in a shell pipeline.
    ClosePipe,
    /// The client only views the command: it detaches, and the command goes on.
    Detach,
}

struct LocalAttach {
    stream: UnixStream,
    client: WorkerClient,
    /// Frames that the worker has not taken yet.
    out: Vec<u8>,
    reads_stdin: bool,
    keys: Option<DetachKeys>,
    signals: Signals,
    exec: u64,
    tty: bool,
    leave_at_once: bool,
    closed_output: ClosedOutput,
    /// How often we were asked to end; the command may ignore the first.
    end_signals: u32,
}

/// Joins our streams to a command's.
pub(crate) fn attach(stream: UnixStream, options: AttachOptions) -> Result<AttachResult> {
    let about = |error: std::io::Error| Error::host("cannot attend the command", error);
    let keys = if options.tty { Some(DetachKeys::configured()?) } else { None };
    let signals = collect().map_err(about)?;
    stream.set_nonblocking(true).map_err(about)?;
    // A command may have a terminal where we have none.
    let raw = options.tty && std::io::IsTerminal::is_terminal(&stdin());
    let _raw = if raw { Some(Raw::enter()?) } else { None };
    let session = LocalAttach {
        stream,
        client: WorkerClient::default(),
        out: Vec::new(),
        reads_stdin: options.stdin == Stdin::Streamed,
        keys,
        signals,
        exec: 0,
        tty: options.tty,
        leave_at_once: options.leave_at_once,
        closed_output: options.closed_output,
        end_signals: 0,
    };
    session.run()
}

/// Collects what is passed on to a command. A hang-up that `nohup` had us ignore is none for the command either.
pub(crate) fn collect() -> std::io::Result<Signals> {
    let mut wanted = vec![signal::SIGINT, signal::SIGTERM, signal::SIGQUIT, signal::SIGWINCH];
    if !signal::is_ignored(signal::SIGHUP) {
        wanted.push(signal::SIGHUP);
    }
    Signals::collect(&wanted)
}

impl LocalAttach {
    fn run(mut self) -> Result<AttachResult> {
        let mut buffer = vec![0u8; 64 << 10];
        loop {
            let [from_worker, to_worker, typed, signalled] = self.wait()?;
            if signalled {
                self.pass_signals();
            }
            if to_worker {
                self.flush()?;
            }
            if from_worker && let Some(ended) = self.read_worker(&mut buffer)? {
                return Ok(ended);
            }
            if typed && let Some(left) = self.read_stdin(&mut buffer)? {
                return Ok(left);
            }
        }
    }

    fn wait(&self) -> Result<[bool; 4]> {
        let (input, worker) = (stdin(), self.stream.as_fd());
        let mut flags = PollFlags::IN;
        if !self.out.is_empty() {
            flags |= PollFlags::OUT;
        }
        let mut waits = vec![
            PollFd::from_borrowed_fd(worker, flags),
            PollFd::new(self.signals.fd(), PollFlags::IN),
        ];
        // What the worker has not taken yet is not added to.
        if self.reads_stdin && self.out.is_empty() {
            waits.push(PollFd::new(&input, PollFlags::IN));
        }
        match rustix::event::poll(&mut waits, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Error::host("cannot wait", error)),
        }
        let worker = waits[0].revents();
        let typed = waits.get(2).is_some_and(|wait| !wait.revents().is_empty());
        Ok([
            worker.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR),
            worker.contains(PollFlags::OUT),
            typed,
            !waits[1].revents().is_empty(),
        ])
    }

    /// Reads what the worker sends and brings it where it belongs.
    fn read_worker(&mut self, buffer: &mut [u8]) -> Result<Option<AttachResult>> {
        let n = match rustix::io::read(&self.stream, &mut *buffer) {
            Ok(0) => return Err(gone()),
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(_) => return Err(gone()),
        };
        self.client.receive(&buffer[..n]);
        let broken = |cause: &dyn std::fmt::Display| gone().cause(cause);
        while let Some(event) =
            self.client.next_event().map_err(|error| error.into_error(broken))?
        {
            match event {
                WorkerEvent::Stdout(bytes) => {
                    let mut out = stdout().lock();
                    let written = out.write_all(&bytes).and_then(|()| out.flush());
                    if written.is_err() && self.broken_pipe(1)? {
                        return Ok(Some(AttachResult::Detached { exec: self.exec }));
                    }
                }
                WorkerEvent::Stderr(bytes) => {
                    let written = stderr().lock().write_all(&bytes);
                    if written.is_err() && self.broken_pipe(2)? {
                        return Ok(Some(AttachResult::Detached { exec: self.exec }));
                    }
                }
                WorkerEvent::Started { id, .. } => {
                    self.exec = id;
                    if self.leave_at_once {
                        return Ok(Some(AttachResult::Detached { exec: id }));
                    }
                    // It may have changed since the command was planned.
                    self.resize();
                }
                WorkerEvent::Exited(exit) => return Ok(Some(AttachResult::Exited(exit))),
                WorkerEvent::Ready | WorkerEvent::Reply(_) => {}
            }
        }
        Ok(None)
    }

    fn read_stdin(&mut self, buffer: &mut [u8]) -> Result<Option<AttachResult>> {
        let n = match rustix::io::read(stdin(), &mut *buffer) {
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            // A stdin that cannot be read has ended.
            Err(_) => 0,
        };
        let typed = &buffer[..n];
        let (bytes, leaving) = match &mut self.keys {
            Some(keys) if n > 0 => match keys.filter(typed) {
                TypedInput::Send(bytes) => (bytes, false),
                TypedInput::SendAndDetach(bytes) => (bytes, true),
            },
            _ => (typed.to_vec(), false),
        };
        if n == 0 {
            self.reads_stdin = false;
        }
        if n == 0 || !bytes.is_empty() {
            ClientMessage::Stdin(&bytes).append_to(&mut self.out);
        }
        if leaving {
            self.detach()?;
            return Ok(Some(AttachResult::Detached { exec: self.exec }));
        }
        self.flush()?;
        Ok(None)
    }

    fn flush(&mut self) -> Result<()> {
        while !self.out.is_empty() {
            let flags = rustix::net::SendFlags::NOSIGNAL;
            match rustix::net::send(&self.stream, &self.out, flags) {
                Ok(n) => drop(self.out.drain(..n)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                // Its last words may still be there to read.
                Err(_) => {
                    self.out.clear();
                    self.reads_stdin = false;
                }
            }
        }
        Ok(())
    }

    fn pass_signals(&mut self) {
        while let Some(number) = self.signals.take() {
            if number == signal::SIGWINCH {
                self.resize();
                continue;
            }
            self.end_signals += 1;
            // The third signal kills: the command ignored two.
            let number = if self.end_signals >= 3 { signal::SIGKILL } else { number };
            ClientMessage::Signal(number).append_to(&mut self.out);
        }
        let _ = self.flush();
    }

    /// Tells the worker that we detach, after everything that was sent before.
    fn detach(&mut self) -> Result<()> {
        ClientMessage::Detach.append_to(&mut self.out);
        self.stream.set_nonblocking(false).map_err(|_| gone())?;
        (&self.stream).write_all(&self.out).map_err(|_| gone())
    }

    /// Our stdout or stderr is closed. A viewer detaches, and this is true; a command of our own gets
    /// a closed pipe, as it would without us.
    fn broken_pipe(&mut self, stream: u8) -> Result<bool> {
        if self.closed_output == ClosedOutput::Detach {
            return self.detach().map(|()| true);
        }
        if self.tty {
            ClientMessage::Signal(signal::SIGHUP).append_to(&mut self.out);
            return Ok(false);
        }
        ClientMessage::CloseOutput(stream).append_to(&mut self.out);
        let _ = self.flush();
        Ok(false)
    }

    fn resize(&mut self) {
        if self.tty {
            ClientMessage::Resize(terminal::size()).append_to(&mut self.out);
            let _ = self.flush();
        }
    }
}

fn gone() -> Error {
    Error::new(Kind::Protocol, "the worker went away before the command ended")
        .hint("it may have been killed; `msb ls` shows what is left")
}
