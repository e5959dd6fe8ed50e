//! Commands that run in sandboxes.

use crate::Watch;
use crate::operation_types::*;
use msb_spec::{CallOrigin, Command, Error, Exit, Kind, Name, Result, Spec, TermSize};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// The Operations on Execs.
pub trait Execs {
    operations!(execs trait_method);

    /// Starts a command in a running sandbox.
    fn exec_start(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>>;

    /// Takes part in an Exec that runs: what it has said lately, then as it comes.
    fn exec_attach(&self, name: &Name, id: u64) -> Result<Box<dyn Exec>>;

    /// Makes a sandbox for the command of a Spec alone; it is gone when that ends, or when the
    /// Exec is dropped. Its stdin is open until it is closed.
    fn exec_run(&self, spec: &Spec, watch: &dyn Watch) -> Result<(Name, Box<dyn Exec>)>;
}

/// There is none by that number, and never was.
pub fn no_exec(name: &Name, id: u64) -> Error {
    Error::new(Kind::NotFound, format!("sandbox `{name}` has no exec {id}"))
}

/// A command that runs. Dropping it kills the command, unless it was started to go on alone.
pub trait Exec: Send {
    /// Its number in the sandbox.
    fn id(&self) -> u64;

    /// Its pid inside; zero while that is not known.
    fn pid(&self) -> u32;

    /// What it did next; waits for it. None after its end.
    fn next(&mut self) -> Result<Option<ExecEvent>>;

    /// The side that tells it something, for use from another thread.
    fn input(&self) -> Arc<dyn ExecInput>;
}

/// Tells a running command something.
pub trait ExecInput: Send + Sync {
    /// Writes to its stdin; waits while the command does not read.
    fn write(&self, bytes: &[u8]) -> Result<()>;

    /// Closes the stdin of the command.
    fn close(&self) -> Result<()>;

    /// Sends a signal to it and to what it started.
    fn signal(&self, signal: i32) -> Result<()>;

    /// Tells it that its terminal has another size.
    fn resize(&self, size: TermSize) -> Result<()>;

    /// Lets go of it: it runs on, and what it says goes to the log.
    fn detach(&self) -> Result<()>;

    /// Notes in the event log the code that an interpreter is given, with the caller, or how it ended. A
    /// server elsewhere notes what is told through itself.
    fn note(&self, _: &CodeEvent<'_>) -> Result<()> {
        Ok(())
    }
}

/// Something about code that an interpreter is told to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeEvent<'a> {
    /// It is told to.
    Began {
        /// The source text of the code.
        code: &'a str,
        /// The origin of the call that runs it.
        origin: &'a CallOrigin,
    },
    /// The code has ended.
    Ended {
        /// As a shell counts it; none if it had to be interrupted or killed.
        status: Option<i32>,
        /// How long it took.
        took: Duration,
    },
}

/// Something that a running command did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// It wrote this to its stdout, or to its terminal.
    Stdout(Vec<u8>),
    /// It wrote this to its stderr.
    Stderr(Vec<u8>),
    /// It is over. Always the last.
    Exited(Exit),
}

/// One Exec of a sandbox, running or over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ExecEntry {
    /// The number of the Exec in its sandbox.
    pub id: u64,
    /// The pid inside the sandbox.
    pub pid: u32,
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Whether it has a terminal.
    pub tty: bool,
    /// When, in milliseconds since 1970.
    pub started: u64,
    /// How it ended, if it has.
    pub exit: Option<Exit>,
}

/// What a command has said, up to a limit for each stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedOutput {
    /// The first bytes of its stdout.
    pub stdout: Vec<u8>,
    /// The first bytes of its stderr.
    pub stderr: Vec<u8>,
    /// How many bytes it wrote to its stdout in all.
    pub stdout_bytes: u64,
    /// All bytes of its stderr, also those that were not kept.
    pub stderr_bytes: u64,
    /// The exit status of the command.
    pub exit: Exit,
}

/// Takes everything that a command says and waits for its end. What is beyond the limit is
/// counted and thrown away.
pub fn capture(exec: &mut dyn Exec, limit: usize) -> Result<CapturedOutput> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (mut stdout_bytes, mut stderr_bytes) = (0, 0);
    let take = |kept: &mut Vec<u8>, count: &mut u64, bytes: &[u8]| {
        *count += bytes.len() as u64;
        let room = limit.saturating_sub(kept.len()).min(bytes.len());
        kept.extend_from_slice(&bytes[..room]);
    };
    while let Some(event) = exec.next()? {
        match event {
            ExecEvent::Stdout(bytes) => take(&mut stdout, &mut stdout_bytes, &bytes),
            ExecEvent::Stderr(bytes) => take(&mut stderr, &mut stderr_bytes, &bytes),
            ExecEvent::Exited(exit) => {
                return Ok(CapturedOutput { stdout, stderr, stdout_bytes, stderr_bytes, exit });
            }
        }
    }
    Err(Error::new(Kind::Protocol, "the end of the command was not told"))
}
