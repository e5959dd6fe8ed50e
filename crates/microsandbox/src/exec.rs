//! One command in a sandbox while it runs: what it says, and what it is told.

use crate::command::{Command, Stdin};
use crate::output::Output;
use crate::worker::{Link, Socket, Worker, gone};
use msb_spec::{Error, Exit, Kind, Result, TermSize};
use msb_sys::signal::SIGKILL;
use msb_wire::{FrameKind, Request, WorkerEvent, encode, header};
use std::collections::VecDeque;
use std::sync::Arc;

/// Something that a running command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// It runs. Always the first.
    Started {
        /// Its number in this sandbox.
        id: u64,
        /// The pid inside the sandbox.
        pid: u32,
    },
    /// It wrote this to its stdout, or to its terminal.
    Stdout(Vec<u8>),
    /// It wrote this to its stderr.
    Stderr(Vec<u8>),
    /// It is over. Always the last.
    Exited(Exit),
}

/// A command that runs.
///
/// Events are taken with [`Exec::next`]; until its output is taken, a command waits.
/// Dropping the Exec kills the command, unless [`Exec::detach`] has let go of it.
#[derive(Debug)]
pub struct Exec {
    link: Link,
    input: ExecInput,
    id: u64,
    pid: u32,
    /// What is known and was not taken yet.
    known: VecDeque<ExecEvent>,
    /// Whether bytes for its stdin are still to be sent.
    feeding: bool,
    over: bool,
}

/// Tells a running command something. Clones may be used from other tasks while [`Exec::next`]
/// is awaited; they are of no use once the [`Exec`] is dropped.
#[derive(Debug, Clone)]
pub struct ExecInput {
    socket: Arc<Socket>,
    writable: bool,
}

/// The largest piece of stdin in one frame: what the worker keeps for a slow reader.
const STDIN_PIECE: usize = 64 << 10;

/// Pieces of output before the report that the command runs; a hostile guest would send no end.
const EARLY_LIMIT: usize = 256;

impl Exec {
    /// Starts a command and waits until it runs.
    pub(crate) async fn start(worker: &Worker, command: Command, unsaid: Stdin) -> Result<Self> {
        let (command, stdin) = command.finish(unsaid)?;
        let link = worker.connect(Request::Exec(command)).await?;
        let feeding = matches!(stdin, Stdin::Bytes(_));
        if let Stdin::Bytes(bytes) = &stdin {
            link.socket.enqueue(&stdin_frames(bytes));
            link.socket.enqueue(&header(FrameKind::Stdin, 0));
        }
        Self::begin(link, stdin == Stdin::Streamed, feeding).await
    }

    /// Takes part in a command that runs already.
    pub(crate) async fn attach(worker: &Worker, id: u64) -> Result<Self> {
        let link = worker.connect(Request::Attach { id }).await?;
        Self::begin(link, true, false).await
    }

    async fn begin(link: Link, writable: bool, feeding: bool) -> Result<Self> {
        let input = ExecInput { socket: Arc::clone(&link.socket), writable };
        let known = VecDeque::new();
        let mut exec = Self { link, input, id: 0, pid: 0, known, feeding, over: false };
        loop {
            match exec.hear().await? {
                ExecEvent::Started { id, pid } => {
                    (exec.id, exec.pid) = (id, pid);
                    exec.known.push_front(ExecEvent::Started { id, pid });
                    return Ok(exec);
                }
                // A quick command has said something before the guest could report it.
                event if exec.known.len() < EARLY_LIMIT => exec.known.push_back(event),
                _ => return Err(gone("a command talks that was never started")),
            }
        }
    }

    /// Its number in this sandbox, for [`Sandbox::attach`](crate::Sandbox::attach) and logs.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its pid inside the sandbox.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// What it did next; none after [`ExecEvent::Exited`]. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Result<Option<ExecEvent>> {
        if let Some(event) = self.known.pop_front() {
            return Ok(Some(event));
        }
        if self.over {
            return Ok(None);
        }
        self.hear().await.map(Some)
    }

    /// Takes the rest of what it says and waits for its end. More than `limit` bytes is an error.
    pub(crate) async fn collect(mut self, limit: usize) -> Result<Output> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        while let Some(event) = self.next().await? {
            match event {
                ExecEvent::Started { .. } => {}
                ExecEvent::Stdout(bytes) => add(&mut stdout, bytes),
                ExecEvent::Stderr(bytes) => add(&mut stderr, bytes),
                ExecEvent::Exited(exit) => return Ok(Output { stdout, stderr, exit }),
            }
            if stdout.len() + stderr.len() > limit {
                let message = format!("the command said more than {limit} bytes");
                return Err(Error::new(Kind::Limit, message)
                    .hint("`exec_stream` has no limit; `max_output` sets another"));
            }
        }
        Err(gone("it closed the connection"))
    }

    /// Waits for its end; what it says meanwhile is thrown away.
    pub async fn wait(&mut self) -> Result<Exit> {
        while let Some(event) = self.next().await? {
            if let ExecEvent::Exited(exit) = event {
                return Ok(exit);
            }
        }
        Err(Error::new(Kind::State, "the end of the command was taken already"))
    }

    /// The side that tells the command something, for use from another task.
    pub fn input(&self) -> ExecInput {
        self.input.clone()
    }

    /// Writes to its stdin. Waits while the command does not read, so a command that answers
    /// needs its events taken meanwhile: see [`Exec::input`].
    pub async fn write_stdin(&self, bytes: impl AsRef<[u8]>) -> Result<()> {
        self.input.write(bytes).await
    }

    /// Closes the stdin of the command.
    pub async fn close_stdin(&self) -> Result<()> {
        self.input.close().await
    }

    /// Sends a signal to it and to what it started in its session.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        self.input.signal(signal).await
    }

    /// Kills it; its end is still told.
    pub async fn kill(&self) -> Result<()> {
        self.input.signal(SIGKILL).await
    }

    /// Tells it that its terminal has another size.
    pub async fn resize(&self, rows: u16, cols: u16) -> Result<()> {
        self.input.resize(rows, cols).await
    }

    /// Lets go of it: it runs on, and its output goes to the log. Gives its number.
    pub async fn detach(mut self) -> Result<u64> {
        let letting_go = header(FrameKind::Detach, 0);
        self.input.socket.send(&letting_go).await.map_err(gone)?;
        self.finish();
        Ok(self.id)
    }

    /// The next event from the worker, while what it reads is sent.
    async fn hear(&mut self) -> Result<ExecEvent> {
        loop {
            let event = if self.feeding {
                let socket = Arc::clone(&self.link.socket);
                tokio::select! {
                    biased;
                    event = self.link.next_event() => event,
                    // A command that reads no more says so by its end.
                    _ = socket.flush() => {
                        self.feeding = false;
                        continue;
                    }
                }
            } else {
                self.link.next_event().await
            };
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => return self.lost("it closed the connection"),
                Err(error) => return self.failed(error),
            };
            match event {
                WorkerEvent::Stdout(bytes) => return Ok(ExecEvent::Stdout(bytes)),
                WorkerEvent::Stderr(bytes) => return Ok(ExecEvent::Stderr(bytes)),
                WorkerEvent::Started { id, pid } => return Ok(ExecEvent::Started { id, pid }),
                WorkerEvent::Exited(exit) => {
                    self.finish();
                    return Ok(ExecEvent::Exited(exit));
                }
                WorkerEvent::Ready | WorkerEvent::Reply(_) => {}
            }
        }
    }

    fn lost(&mut self, cause: impl std::fmt::Display) -> Result<ExecEvent> {
        self.failed(gone(cause).under("the end of the command is not known"))
    }

    fn failed(&mut self, error: Error) -> Result<ExecEvent> {
        self.finish();
        Err(error)
    }

    fn finish(&mut self) {
        self.over = true;
        self.input.socket.finish();
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        // Inputs may live on; they must not keep the command alive.
        if !self.over {
            self.input.socket.close();
        }
    }
}

impl ExecInput {
    /// Writes to the command's stdin. Waits while the command does not read.
    pub async fn write(&self, bytes: impl AsRef<[u8]>) -> Result<()> {
        let bytes = bytes.as_ref();
        if !self.writable {
            return Err(Error::new(Kind::State, "the command's stdin is not streamed"));
        }
        for piece in bytes.chunks(STDIN_PIECE) {
            self.send(&stdin_frames(piece)).await?;
        }
        Ok(())
    }

    /// Ends the command's stdin; at a terminal, types the key for it.
    pub async fn close(&self) -> Result<()> {
        if !self.writable {
            return Ok(());
        }
        self.send(&header(FrameKind::Stdin, 0)).await
    }

    /// Sends a signal to the command and to what it started in its session.
    pub async fn signal(&self, signal: i32) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(Error::invalid(format!("no such signal: `{signal}`")));
        }
        self.send(&encode(FrameKind::Signal, &signal)).await
    }

    /// Tells the command that its terminal has another size.
    pub async fn resize(&self, rows: u16, cols: u16) -> Result<()> {
        self.send(&encode(FrameKind::Resize, &TermSize { rows, cols })).await
    }

    async fn send(&self, frame: &[u8]) -> Result<()> {
        self.socket
            .send(frame)
            .await
            .map_err(|error| Error::new(Kind::State, "the command is over").cause(error))
    }
}

fn stdin_frames(bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::with_capacity(bytes.len() + 64);
    for piece in bytes.chunks(STDIN_PIECE) {
        frames.extend_from_slice(&header(FrameKind::Stdin, piece.len()));
        frames.extend_from_slice(piece);
    }
    frames
}

/// The first piece is often the only one, and is not copied.
fn add(all: &mut Vec<u8>, piece: Vec<u8>) {
    if all.is_empty() {
        *all = piece;
    } else {
        all.extend_from_slice(&piece);
    }
}
