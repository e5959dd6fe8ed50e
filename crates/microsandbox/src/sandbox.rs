//! The handle of one sandbox.

use crate::builder::SandboxBuilder;
use crate::command::{Command, Stdin};
use crate::exec::Exec;
use crate::fs::Fs;
use crate::log_stream::LogStream;
use crate::output::Output;
use crate::sandboxes::Sandboxes;
use crate::sync::{DirectorySync, SyncOptions};
use crate::worker::{Worker, gone};
use msb_engine::logs::{Filter, Line};
use msb_engine::{ExecEntry, Inspection, Metrics, SettingChange, Status, Summary};
use msb_spec::{Error, Kind, Modify, Name, Result};
use msb_wire::{FrameKind, Reply, Request, StopResult, header};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// One sandbox on this machine.
///
/// A sandbox that was created or started without being detached *ends with this handle*: when it
/// is dropped, and when the process dies, however it dies. It is then stopped and stays so, with
/// its files, logs and name, until [`Sandbox::start`] or [`Sandbox::remove`]; one that was made
/// [`ephemeral`](SandboxBuilder::ephemeral) is removed. [`Sandbox::detach`] lets go of it.
///
/// Dropping does not wait: the sandbox is gone some milliseconds later. To know when, call
/// [`Sandbox::stop_and_wait`] or [`Sandbox::kill`]. A child that this process forks and that never
/// executes another program inherits the handle, and the sandbox lives until it has ended too.
#[derive(Debug)]
pub struct Sandbox {
    pub(crate) worker: Worker,
    shell: String,
    /// The sandbox ends when this closes.
    tie: Mutex<Option<UnixStream>>,
}

/// How long a sandbox's commands may take to end when they are asked to.
const GRACE: Duration = Duration::from_secs(10);
/// A worker that is asked to stop kills after the grace; this much longer and it is stuck.
const STOP_MARGIN: Duration = Duration::from_secs(10);

impl Sandbox {
    pub(crate) fn new(worker: Worker, shell: String, tie: Option<UnixStream>) -> Self {
        Self { worker, shell, tie: Mutex::new(tie) }
    }

    /// Begins a new sandbox of this name.
    pub fn builder(name: impl AsRef<str>) -> SandboxBuilder {
        Sandboxes::new().builder(name)
    }

    /// One that exists, running or not. It does not end with this handle.
    pub async fn get(name: impl AsRef<str>) -> Result<Self> {
        Sandboxes::new().get(name).await
    }

    /// Every sandbox of this user, sorted by name.
    pub async fn list() -> Result<Vec<Summary>> {
        Sandboxes::new().list().await
    }

    /// Starts one that has stopped. It ends with this handle unless it ran already.
    pub async fn start(name: impl AsRef<str>) -> Result<Self> {
        Sandboxes::new().start(name).await
    }

    /// Starts one that has stopped. It goes on without us.
    pub async fn start_detached(name: impl AsRef<str>) -> Result<Self> {
        Sandboxes::new().start_detached(name).await
    }

    /// Removes one that does not run, with its files and logs.
    pub async fn remove(name: impl AsRef<str>) -> Result<()> {
        Sandboxes::new().remove(name).await
    }

    /// The name of the sandbox.
    pub fn name(&self) -> &Name {
        &self.worker.name
    }

    /// Runs a program and captures what it says. That it failed is told by the [`Output`]; an
    /// error means that it could not be run.
    pub async fn exec(
        &self,
        program: impl Into<String>,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Output> {
        self.capture(Command::new(program).args(args)).await
    }

    /// Runs a command with all settings of a [`Command`]:
    /// `exec_with("wc", |command| command.arg("-c").stdin("hello"))`.
    pub async fn exec_with(
        &self,
        program: impl Into<String>,
        fill_in: impl FnOnce(Command) -> Command,
    ) -> Result<Output> {
        self.capture(fill_in(Command::new(program))).await
    }

    /// Runs a script in the sandbox's shell and captures what it says.
    pub async fn shell(&self, script: impl Into<String>) -> Result<Output> {
        self.capture(Command::new(&self.shell).arg("-c").arg(script)).await
    }

    /// Starts a program and gives what it does as it happens. Its stdin is open until
    /// [`Exec::close_stdin`].
    pub async fn exec_stream(
        &self,
        program: impl Into<String>,
        args: impl IntoIterator<Item = impl Into<String>>,
    ) -> Result<Exec> {
        Exec::start(&self.worker, Command::new(program).args(args), Stdin::Streamed).await
    }

    /// Starts a command with all settings of a [`Command`], as a stream of events.
    pub async fn exec_stream_with(
        &self,
        program: impl Into<String>,
        fill_in: impl FnOnce(Command) -> Command,
    ) -> Result<Exec> {
        Exec::start(&self.worker, fill_in(Command::new(program)), Stdin::Streamed).await
    }

    /// Takes part in an Exec that runs: what it said lately, then as it comes. It is killed with
    /// the last attached client unless it is detached.
    pub async fn attach(&self, exec: u64) -> Result<Exec> {
        Exec::attach(&self.worker, exec).await
    }

    /// Every Exec that is recorded, the oldest first.
    pub async fn execs(&self) -> Result<Vec<ExecEntry>> {
        self.worker.blocking(|engine, name| engine.execs(name)).await
    }

    /// Sends a signal to an Exec, as numbered by [`Exec::id`].
    pub async fn signal_exec(&self, exec: u64, signal: i32) -> Result<()> {
        self.worker.ask(Request::Kill { id: exec, signal }).await.map(drop)
    }

    /// Its files, while it runs.
    pub fn fs(&self) -> Fs<'_> {
        Fs::new(&self.worker)
    }

    /// Keeps a directory of the host in step inside while both are there: returns once a first
    /// copy is made, and sends what changes from then on. See docs/storage.md.
    pub async fn sync(
        &self,
        source: impl Into<PathBuf>,
        target: impl AsRef<Path>,
    ) -> Result<DirectorySync> {
        self.sync_with(source, target, |options| options).await
    }

    /// Starts a sync with options:
    /// `sync_with("./src", "/app", |options| options.exclude("*.log"))`.
    pub async fn sync_with(
        &self,
        source: impl Into<PathBuf>,
        target: impl AsRef<Path>,
        fill_in: impl FnOnce(SyncOptions) -> SyncOptions,
    ) -> Result<DirectorySync> {
        let options = fill_in(SyncOptions::default());
        DirectorySync::start(&self.worker, source.into(), target.as_ref(), options).await
    }

    /// What commands have said, from the sandbox's bounded log. Also of one that has stopped.
    pub async fn logs(&self, filter: Filter) -> Result<Vec<Line>> {
        self.worker
            .blocking(move |engine, name| {
                let mut reader = engine.logs(name, filter)?;
                let mut lines = reader.all()?;
                lines.extend(reader.rest());
                Ok(lines)
            })
            .await
    }

    /// What commands have said, and what they go on to say until the sandbox ends.
    pub async fn follow_logs(&self, filter: Filter) -> Result<LogStream> {
        LogStream::open(&self.worker, filter).await
    }

    /// How much it uses, while it runs.
    pub async fn metrics(&self) -> Result<Metrics> {
        self.worker.blocking(|engine, name| engine.metrics(name)).await
    }

    /// Where it is in its life. One that was ephemeral and has ended is not found.
    pub async fn status(&self) -> Result<Status> {
        self.worker.blocking(|engine, name| Ok(engine.summary(name)?.status)).await
    }

    /// Everything about the sandbox.
    pub async fn inspect(&self) -> Result<Inspection> {
        self.worker.blocking(|engine, name| engine.inspect(name)).await
    }

    /// Whether it ends with this handle.
    pub fn is_owned(&self) -> bool {
        self.tie.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Ties a running sandbox to this handle: it ends with it from now on.
    pub async fn own(&self) -> Result<()> {
        let tie = self.worker.blocking(|engine, name| engine.own(name)).await?.into_stream();
        let before = self.tie.lock().unwrap_or_else(PoisonError::into_inner).replace(tie);
        // Two ties of ours would be one too many: closing the first would end the sandbox.
        before.map_or(Ok(()), |mut tie| let_go(&mut tie))
    }

    /// Lets go of the sandbox: it goes on when this handle or process ends.
    pub async fn detach(&self) -> Result<()> {
        let mut tie = self.tie.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = tie.as_mut() {
            let_go(stream)?;
        }
        *tie = None;
        Ok(())
    }

    /// Asks it to end and does not wait: its commands are told, and killed ten seconds later.
    pub async fn stop(&self) -> Result<()> {
        match self.worker.connect(Request::Stop { grace: milliseconds(GRACE) }).await {
            Err(error) if error.kind() == Kind::State => Ok(()),
            asked => asked.map(drop),
        }
    }

    /// Ends it and waits until it has: its commands are asked to end, and killed ten seconds
    /// later. Tells how it ended, also if it had before.
    pub async fn stop_and_wait(&self) -> Result<StopResult> {
        self.end(GRACE).await
    }

    /// Ends it at once and waits until it is gone.
    pub async fn kill(&self) -> Result<StopResult> {
        self.end(Duration::ZERO).await
    }

    /// Takes no new Execs and ends with the last one. False if it was not running.
    pub async fn drain(&self) -> Result<bool> {
        self.worker.blocking(|engine, name| engine.drain(name)).await
    }

    /// Stops everything inside where it is; it uses no processor until it is resumed.
    pub async fn pause(&self) -> Result<()> {
        self.worker.blocking(|engine, name| engine.pause(name)).await
    }

    /// Lets what was paused go on.
    pub async fn resume(&self) -> Result<()> {
        self.worker.blocking(|engine, name| engine.resume(name)).await
    }

    /// Changes what was decided about it: at once where that can be done, else from its next start on.
    pub async fn modify(&self, change: Modify) -> Result<Vec<SettingChange>> {
        self.worker.blocking(move |engine, name| engine.modify(name, &change)).await
    }

    /// Waits until it has ended, however that comes, and tells how.
    pub async fn wait(&self) -> Result<StopResult> {
        match self.worker.ask(Request::Wait).await {
            Ok(Reply::Stopped(stopped)) => Ok(stopped),
            // It does not run, or was killed: its files tell.
            _ => self.worker.blocking(|engine, name| engine.wait(name)).await,
        }
    }

    async fn capture(&self, command: Command) -> Result<Output> {
        let limit = command.output_limit();
        if command.is_streamed() {
            return Err(Error::invalid("the stdin of a captured command cannot be written to")
                .hint("`exec_stream_with` gives a way to write to its stdin"));
        }
        Exec::start(&self.worker, command, Stdin::Closed).await?.collect(limit).await
    }

    async fn end(&self, grace: Duration) -> Result<StopResult> {
        let asked = self.worker.ask(Request::Stop { grace: milliseconds(grace) });
        match tokio::time::timeout(grace + STOP_MARGIN, asked).await {
            Ok(Ok(Reply::Stopped(stopped))) => return Ok(stopped),
            Ok(Err(error)) if error.kind() == Kind::NotFound => return Err(error),
            _ => {}
        }
        // It does not run, or it is stuck and must be killed from outside.
        self.worker
            .blocking(|engine, name| {
                engine.stop(name, Duration::ZERO)?;
                engine.wait(name)
            })
            .await
    }
}

fn let_go(tie: &mut UnixStream) -> Result<()> {
    match tie.write_all(&header(FrameKind::Detach, 0)) {
        // It has ended: there is nothing to let go of.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(gone),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
