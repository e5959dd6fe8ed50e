//! One Exec over its connection to the worker.

use super::worker_gone;
use crate::connection::{Connection, FrameWait};
use msb_api::{CodeEvent, Exec, ExecEvent, ExecInput};
use msb_spec::{Error, Exit, Kind, Result, TermSize};
use msb_wire::record::CommandRecord;
use msb_wire::{CodeNote, FrameKind, Reply, encode, header};
use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
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
        let frame = match connection.frame_before(until) {
            Ok(FrameWait::Frame(frame)) => frame,
            Ok(FrameWait::TimedOut) => return Ok(ExecWait::TimedOut),
            Ok(FrameWait::Closed) | Err(_) => return Ok(ExecWait::Unknown),
        };
        if frame.kind != FrameKind::Reply {
            continue;
        }
        match frame.value().map_err(worker_gone)? {
            Reply::Exited(exit) => return Ok(ExecWait::Exited(exit)),
            Reply::Failed(error) if error.kind() == Kind::NotFound => return Ok(ExecWait::Unknown),
            Reply::Failed(error) => return Err(error),
            _ => {}
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
    finished: bool,
    role: ExecRole,
}

impl LocalExec {
    /// The first Exec of a sandbox. Its worker sends `Started` together with the first output.
    pub(super) fn first(stream: UnixStream) -> Result<Self> {
        let out = stream.try_clone().map_err(worker_gone)?;
        Ok(Self {
            connection: Connection::from_stream(stream),
            input: Arc::new(ExecSender(Mutex::new(out))),
            id: FIRST_EXEC_ID,
            pid: 0,
            early_output: VecDeque::new(),
            finished: false,
            role: ExecRole::Owner,
        })
    }

    /// Waits until the command runs.
    pub(super) fn begin(stream: UnixStream, role: ExecRole) -> Result<Self> {
        let mut exec = Self::first(stream)?;
        exec.role = role;
        loop {
            match exec.read_frame()? {
                WorkerFrame::Started => return Ok(exec),
                WorkerFrame::Ready => {}
                // A short command may write output before the guest reports its start.
                WorkerFrame::Event(event) if exec.early_output.len() < EARLY_LIMIT => {
                    exec.early_output.push_back(event);
                }
                WorkerFrame::Event(_) => {
                    return Err(worker_gone("it sent output of a command that was never started"));
                }
            }
        }
    }

    fn read_frame(&mut self) -> Result<WorkerFrame> {
        let frame = self.connection.next_frame()?;
        let frame = frame.ok_or_else(|| worker_gone("it closed the connection"))?;
        match frame.kind {
            FrameKind::Stdout => Ok(WorkerFrame::Event(ExecEvent::Stdout(frame.payload))),
            FrameKind::Stderr => Ok(WorkerFrame::Event(ExecEvent::Stderr(frame.payload))),
            FrameKind::Reply => match frame.value().map_err(worker_gone)? {
                Reply::Ready => Ok(WorkerFrame::Ready),
                Reply::Started { id, pid } => {
                    (self.id, self.pid) = (id, pid);
                    Ok(WorkerFrame::Started)
                }
                Reply::Exited(exit) => {
                    self.finished = true;
                    Ok(WorkerFrame::Event(ExecEvent::Exited(exit)))
                }
                Reply::Failed(error) => Err(error),
                _ => Err(worker_gone("it sent an unexpected reply")),
            },
            _ => Err(worker_gone("it sent an unexpected reply")),
        }
    }
}

enum WorkerFrame {
    /// The sandbox is up.
    Ready,
    /// The Exec has started.
    Started,
    Event(ExecEvent),
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
        for _ in 0..3 {
            if let WorkerFrame::Event(event) = self.read_frame()? {
                return Ok(Some(event));
            }
        }
        Err(worker_gone("it reported the start of a command twice"))
    }

    fn input(&self) -> Arc<dyn ExecInput> {
        Arc::clone(&self.input) as Arc<dyn ExecInput>
    }
}

impl Drop for LocalExec {
    fn drop(&mut self) {
        // The input half may still be referenced; the worker must see the connection close.
        if self.role == ExecRole::Owner {
            let stream = self.input.0.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The sending side of the connection. The lock keeps frames from interleaving.
struct ExecSender(Mutex<UnixStream>);

impl ExecSender {
    fn send(&self, frames: &[u8]) -> Result<()> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream
            .write_all(frames)
            .map_err(|error| Error::new(Kind::State, "the command has ended").cause(error))
    }
}

impl ExecInput for ExecSender {
    fn write(&self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(STDIN_CHUNK) {
            let mut frame = header(FrameKind::Stdin, piece.len()).to_vec();
            frame.extend_from_slice(piece);
            self.send(&frame)?;
        }
        Ok(())
    }

    fn close(&self) -> Result<()> {
        // A command that has ended has no stdin that could be open.
        let _ = self.send(&header(FrameKind::Stdin, 0));
        Ok(())
    }

    fn signal(&self, signal: i32) -> Result<()> {
        self.send(&encode(FrameKind::Signal, &signal))
    }

    fn resize(&self, size: TermSize) -> Result<()> {
        self.send(&encode(FrameKind::Resize, &size))
    }

    fn detach(&self) -> Result<()> {
        self.send(&header(FrameKind::Detach, 0))
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
