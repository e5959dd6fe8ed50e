//! One Exec, on its connection to the worker.

use super::gone;
use crate::connection::{Connection, Waited};
use msb_api::{CodeEvent, Exec, ExecEvent, ExecInput};
use msb_spec::{Error, Exit, Kind, Result, TermSize};
use msb_wire::record::Ran;
use msb_wire::{CodeNote, FrameKind, Reply, encode, header};
use std::collections::VecDeque;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The largest piece of stdin in one frame: what the worker keeps for a slow reader.
const STDIN_PIECE: usize = 64 << 10;
/// Pieces of output before the report that the command runs; a hostile guest would send no end.
const EARLY_LIMIT: usize = 256;

/// The number of a sandbox's first Exec.
const FIRST: u64 = 1;

/// Who started an Exec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// It ends with us.
    ByUs,
    /// We only take part in it.
    ByOthers,
}

/// What was heard of the end of a command.
pub(super) enum End {
    /// How it ended.
    Told(Exit),
    /// It goes on.
    NotYet,
    /// The worker does not know of it any more.
    Gone,
}

/// Waits for the end of a command that somebody takes part in.
pub(super) fn end_of(mut connection: Connection, until: Instant) -> Result<End> {
    loop {
        let frame = match connection.frame_before(until) {
            Ok(Waited::Frame(frame)) => frame,
            Ok(Waited::TooLong) => return Ok(End::NotYet),
            Ok(Waited::Closed) | Err(_) => return Ok(End::Gone),
        };
        if frame.kind != FrameKind::Reply {
            continue;
        }
        match frame.value().map_err(gone)? {
            Reply::Exited(exit) => return Ok(End::Told(exit)),
            Reply::Failed(error) if error.kind() == Kind::NotFound => return Ok(End::Gone),
            Reply::Failed(error) => return Err(error),
            _ => {}
        }
    }
}

/// A command in a sandbox of this machine.
pub(super) struct Local {
    connection: Connection,
    input: Arc<Input>,
    id: u64,
    pid: u32,
    early: VecDeque<ExecEvent>,
    over: bool,
    begun: Begun,
}

impl Local {
    /// The first command of a sandbox, whose worker tells that it runs only with what it says.
    pub(super) fn first(stream: UnixStream) -> Result<Self> {
        let out = stream.try_clone().map_err(gone)?;
        Ok(Self {
            connection: Connection::on(stream),
            input: Arc::new(Input(Mutex::new(out))),
            id: FIRST,
            pid: 0,
            early: VecDeque::new(),
            over: false,
            begun: Begun::ByUs,
        })
    }

    /// Waits until the command runs.
    pub(super) fn begin(stream: UnixStream, begun: Begun) -> Result<Self> {
        let mut exec = Self::first(stream)?;
        exec.begun = begun;
        loop {
            match exec.hear()? {
                Heard::Started => return Ok(exec),
                Heard::Ready => {}
                // A quick command has said something before the guest could report it.
                Heard::Event(event) if exec.early.len() < EARLY_LIMIT => {
                    exec.early.push_back(event);
                }
                Heard::Event(_) => return Err(gone("a command talks that was never started")),
            }
        }
    }

    fn hear(&mut self) -> Result<Heard> {
        let frame = self.connection.next_frame()?;
        let frame = frame.ok_or_else(|| gone("it closed the connection"))?;
        match frame.kind {
            FrameKind::Stdout => Ok(Heard::Event(ExecEvent::Stdout(frame.payload))),
            FrameKind::Stderr => Ok(Heard::Event(ExecEvent::Stderr(frame.payload))),
            FrameKind::Reply => match frame.value().map_err(gone)? {
                Reply::Ready => Ok(Heard::Ready),
                Reply::Started { id, pid } => {
                    (self.id, self.pid) = (id, pid);
                    Ok(Heard::Started)
                }
                Reply::Exited(exit) => {
                    self.over = true;
                    Ok(Heard::Event(ExecEvent::Exited(exit)))
                }
                Reply::Failed(error) => Err(error),
                _ => Err(gone("it answered something else")),
            },
            _ => Err(gone("it answered something else")),
        }
    }
}

enum Heard {
    /// The sandbox runs.
    Ready,
    /// The command does.
    Started,
    Event(ExecEvent),
}

impl Exec for Local {
    fn id(&self) -> u64 {
        self.id
    }

    fn pid(&self) -> u32 {
        self.pid
    }

    fn next(&mut self) -> Result<Option<ExecEvent>> {
        if let Some(event) = self.early.pop_front() {
            return Ok(Some(event));
        }
        if self.over {
            return Ok(None);
        }
        // Of a first command it may come now that its sandbox, and then that it runs.
        for _ in 0..3 {
            if let Heard::Event(event) = self.hear()? {
                return Ok(Some(event));
            }
        }
        Err(gone("a command was started twice"))
    }

    fn input(&self) -> Arc<dyn ExecInput> {
        Arc::clone(&self.input) as Arc<dyn ExecInput>
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        // Others may still hold its input; the worker must learn that we have gone.
        if self.begun == Begun::ByUs {
            let stream = self.input.0.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The sending side. Each frame goes out whole.
struct Input(Mutex<UnixStream>);

impl Input {
    fn send(&self, frames: &[u8]) -> Result<()> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stream
            .write_all(frames)
            .map_err(|error| Error::new(Kind::State, "the command has ended").cause(error))
    }
}

impl ExecInput for Input {
    fn write(&self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(STDIN_PIECE) {
            let mut frame = header(FrameKind::Stdin, piece.len()).to_vec();
            frame.extend_from_slice(piece);
            self.send(&frame)?;
        }
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.send(&header(FrameKind::Stdin, 0))
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
            CodeEvent::Began(code) => {
                let Ran { mut argv, cut, by, .. } =
                    Ran::new(&[(*code).to_owned()], None, msb_api::asker());
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
