//! One Exec over its connection to the worker.

use super::worker_gone;
use crate::connection::{Connection, EventWait};
use crate::sandboxes::Engine;
use msb_api::{CodeEvent, Exec, ExecEvent, ExecInput};
use msb_spec::{Error, Exit, Kind, Name, Result, TermSize};
use msb_wire::record::CommandRecord;
use msb_wire::{ClientMessage, CodeNote, FrameKind, WorkerEvent, encode};
use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The most bytes of stdin in one frame: as many as the worker buffers for a slow reader.
const STDIN_CHUNK: usize = 64 << 10;
/// Output frames accepted before the `Started` reply. A hostile guest would send an endless stream.
const EARLY_LIMIT: usize = 256;

/// The id of the first Exec of a sandbox.
const FIRST_EXEC_ID: u64 = 1;

/// How a connection relates to the Exec on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExecRole {
    /// This connection started the Exec: closing it ends the Exec.
    Owner,
    /// Another connection started the Exec; this one is attached to it.
    Attached,
}

/// The result of waiting for the end of an Exec.
pub(super) enum ExecWait {
    /// The Exec has ended with this status.
    Exited(Exit),
    /// The Exec still runs when the limit is reached.
    TimedOut,
    /// The worker has no running Exec with this id.
    Unknown,
}

/// Waits on an attached connection until the Exec ends or `until` is reached.
pub(super) fn wait_for_exit(mut connection: Connection, until: Instant) -> Result<ExecWait> {
    loop {
        match connection.event_before(until) {
            Ok(EventWait::Event(WorkerEvent::Exited(exit))) => return Ok(ExecWait::Exited(exit)),
            Ok(EventWait::Event(_)) => {}
            Ok(EventWait::Refused(error)) if error.kind() != Kind::NotFound => return Err(error),
            Ok(EventWait::TimedOut) => return Ok(ExecWait::TimedOut),
            Ok(EventWait::Refused(_) | EventWait::Closed) | Err(_) => {
                return Ok(ExecWait::Unknown);
            }
        }
    }
}

/// An Exec in a sandbox of this machine.
pub(super) struct LocalExec {
    connection: Connection,
    input: Arc<ExecSender>,
    id: u64,
    pid: u32,
    early_output: VecDeque<ExecEvent>,
    started: bool,
    finished: bool,
    role: ExecRole,
}

impl LocalExec {
    /// The first Exec of a sandbox. Its worker sends `Started` together with the first output.
    pub(super) fn first(engine: &Engine, name: &Name, stream: UnixStream) -> Result<Self> {
        let input = ExecSender {
            stream: Mutex::new(stream.try_clone().map_err(worker_gone)?),
            closer: stream.try_clone().map_err(worker_gone)?,
            engine: engine.clone(),
            name: name.clone(),
            id: AtomicU64::new(FIRST_EXEC_ID),
            has_stdin: AtomicBool::new(false),
        };
        Ok(Self {
            connection: Connection::from_stream(stream),
            input: Arc::new(input),
            id: FIRST_EXEC_ID,
            pid: 0,
            early_output: VecDeque::new(),
            started: false,
            finished: false,
            role: ExecRole::Owner,
        })
    }

    /// Waits until the command runs.
    pub(super) fn begin(
        engine: &Engine,
        name: &Name,
        stream: UnixStream,
        role: ExecRole,
    ) -> Result<Self> {
        let mut exec = Self::first(engine, name, stream)?;
        exec.role = role;
        loop {
            match exec.read_event()? {
                None if exec.started => return Ok(exec),
                None => {}
                // A short command may write output before the guest reports its start.
                Some(event) if exec.early_output.len() < EARLY_LIMIT => {
                    exec.early_output.push_back(event);
                }
                Some(_) => {
                    return Err(worker_gone("it sent output of a command that was never started"));
                }
            }
        }
    }

    /// Reads one event of the worker; `None` is one about the start, which callers do not see.
    fn read_event(&mut self) -> Result<Option<ExecEvent>> {
        let event = self.connection.next_event();
        let event = event.map_err(|error| error.into_error(|cause| worker_gone(cause)))?;
        match event.ok_or_else(|| worker_gone("it closed the connection"))? {
            WorkerEvent::Stdout(bytes) => Ok(Some(ExecEvent::Stdout(bytes))),
            WorkerEvent::Stderr(bytes) => Ok(Some(ExecEvent::Stderr(bytes))),
            WorkerEvent::Ready => Ok(None),
            WorkerEvent::Started { id, pid } => {
                (self.id, self.pid, self.started) = (id, pid, true);
                self.input.id.store(id, Relaxed);
                Ok(None)
            }
            WorkerEvent::Exited(exit) => {
                self.finished = true;
                Ok(Some(ExecEvent::Exited(exit)))
            }
            WorkerEvent::Reply(_) => Err(worker_gone("it sent an unexpected reply")),
        }
    }
}

impl Exec for LocalExec {
    fn id(&self) -> u64 {
        self.id
    }

    fn pid(&self) -> u32 {
        self.pid
    }

    fn next(&mut self) -> Result<Option<ExecEvent>> {
        if let Some(event) = self.early_output.pop_front() {
            return Ok(Some(event));
        }
        if self.finished {
            return Ok(None);
        }
        // For a first Exec, `Ready` and `Started` may come before the first output.
        loop {
            if let Some(event) = self.read_event()? {
                return Ok(Some(event));
            }
        }
    }

    fn input(&self) -> Arc<dyn ExecInput> {
        Arc::clone(&self.input) as Arc<dyn ExecInput>
    }
}

impl Drop for LocalExec {
    fn drop(&mut self) {
        // The input half may still be referenced; the worker must see the connection close.
        if self.role == ExecRole::Owner {
            // Without the lock: a write to the stdin of a command that does not read holds it.
            let _ = self.input.closer.shutdown(Shutdown::Both);
        }
    }
}

/// The sending side of the connection.
struct ExecSender {
    /// The lock keeps frames from interleaving.
    stream: Mutex<UnixStream>,
    /// A second descriptor of the connection, to close it while a write waits.
    closer: UnixStream,
    engine: Engine,
    name: Name,
    id: AtomicU64,
    /// Whether frames may wait behind bytes that the command does not read.
    has_stdin: AtomicBool,
}

impl ExecSender {
    fn send(&self, frames: &[u8]) -> Result<()> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream
            .write_all(frames)
            .map_err(|error| Error::new(Kind::State, "the command has ended").cause(error))
    }
}

impl ExecInput for ExecSender {
    fn write(&self, bytes: &[u8]) -> Result<()> {
        self.has_stdin.store(true, Relaxed);
        for piece in bytes.chunks(STDIN_CHUNK) {
            self.send(&ClientMessage::Stdin(piece).encode())?;
        }
        Ok(())
    }

    fn close(&self) -> Result<()> {
        // A command that has ended has no stdin that could be open.
        let _ = self.send(&ClientMessage::Stdin(&[]).encode());
        Ok(())
    }

    fn signal(&self, signal: i32) -> Result<()> {
        match self.has_stdin.load(Relaxed) {
            // On a connection of its own: this one may be full of bytes that the command never reads.
            true => self.engine.kill(&self.name, self.id.load(Relaxed), signal),
            false => self.send(&ClientMessage::Signal(signal).encode()),
        }
    }

    fn resize(&self, size: TermSize) -> Result<()> {
        self.send(&ClientMessage::Resize(size).encode())
    }

    fn detach(&self) -> Result<()> {
        self.send(&ClientMessage::Detach.encode())?;
        // The worker reads the end of this connection after the message, and closes it: a reader that
        // waits for the next event returns.
        let _ = self.closer.shutdown(Shutdown::Write);
        Ok(())
    }

    fn note(&self, event: &CodeEvent<'_>) -> Result<()> {
        let note = match event {
            CodeEvent::Began { code, origin } => {
                let by = Some((*origin).clone());
                let CommandRecord { mut argv, cut, by, .. } =
                    CommandRecord::new(&[(*code).to_owned()], None, by);
                CodeNote::Began { code: argv.pop().unwrap_or_default(), cut, by }
            }
            CodeEvent::Ended { status, took } => {
                let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                CodeNote::Ended { status: *status, duration_ms }
            }
        };
        self.send(&encode(FrameKind::Note, &note))
    }
}
