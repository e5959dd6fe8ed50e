//! A running command behind an event stream or a WebSocket.

use super::body_stream::BodyGuard;
use super::disconnect::KILL;
use crate::cancel::{Cancel, CancelHook};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use msb_api::http::streams::{ExecMessage, ExecStart, Piece, StartExec, StartRun};
use msb_api::{Api, Exec, ExecEvent, ExecInput, Watch};
use msb_spec::{Command, Name, Result, Spec, Stdin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// The command to start or to attach to.
pub(crate) enum CommandStart {
    Exec(Name, Box<Command>),
    Run(Box<Spec>),
    Attach(Name, u64),
}

impl CommandStart {
    pub(super) fn exec(name: Name, ask: StartExec) -> (Self, Option<String>) {
        let command = Command { stdin: Stdin::Streamed, ..ask.command };
        (Self::Exec(name, Box::new(command)), ask.stdin)
    }

    pub(super) fn run(api: &Arc<dyn Api>, ask: StartRun) -> (Arc<dyn Api>, Self, Option<String>) {
        let api = match ask.secrets.is_empty() {
            true => Arc::clone(api),
            false => {
                let values = ask.secrets.into_iter();
                api.with_secrets(values.map(|(name, value)| (name, value.into_bytes())).collect())
            }
        };
        (api, Self::Run(Box::new(ask.spec)), ask.stdin)
    }

    /// Whether the client may write to the stdin of the command.
    pub(crate) fn reads_stdin(&self) -> bool {
        match self {
            Self::Exec(_, command) => command.stdin == Stdin::Streamed,
            Self::Run(_) | Self::Attach(..) => true,
        }
    }

    /// Whether the command goes on after the client has disconnected.
    fn is_detached(&self) -> bool {
        match self {
            Self::Exec(_, command) => command.detached,
            Self::Run(_) => false,
            Self::Attach(..) => true,
        }
    }

    /// Starts or attaches. The command is killed when the call is cancelled, unless it is detached.
    pub(crate) fn start(
        self,
        api: &dyn Api,
        watch: &dyn Watch,
        cancel: &Cancel,
    ) -> Result<RunningCommand> {
        let is_detached = Arc::new(AtomicBool::new(self.is_detached()));
        let (sandbox, exec) = match self {
            Self::Exec(name, command) => {
                let exec = api.exec_start(&name, &command)?;
                (name, exec)
            }
            Self::Run(spec) => api.exec_run(&spec, watch)?,
            Self::Attach(name, id) => {
                let exec = api.exec_attach(&name, id)?;
                (name, exec)
            }
        };
        let input = exec.input();
        let (signal_input, detached) = (Arc::clone(&input), Arc::clone(&is_detached));
        let hook = cancel.when_cancelled(move || {
            let _ = if detached.load(Relaxed) {
                signal_input.detach()
            } else {
                signal_input.signal(KILL)
            };
        });
        let started = ExecStart { id: exec.id(), pid: exec.pid(), sandbox };
        Ok(RunningCommand { exec, input, started, is_detached, _hook: BodyGuard::new(hook) })
    }
}

/// A command that has been started.
pub(crate) struct RunningCommand {
    exec: Box<dyn Exec>,
    pub(crate) input: Arc<dyn ExecInput>,
    pub(crate) started: ExecStart,
    /// Whether the command goes on after the client has disconnected.
    pub(crate) is_detached: Arc<AtomicBool>,
    _hook: BodyGuard<CancelHook>,
}

impl RunningCommand {
    /// The next event of the command; none after its end.
    pub(crate) fn next(&mut self) -> Result<Option<ExecEvent>> {
        self.exec.next()
    }
}

/// Converts an event of a command to a message.
pub(super) fn to_message(event: ExecEvent) -> ExecMessage {
    match event {
        ExecEvent::Stdout(bytes) => ExecMessage::Stdout(to_piece(bytes)),
        ExecEvent::Stderr(bytes) => ExecMessage::Stderr(to_piece(bytes)),
        ExecEvent::Exited(exit) => ExecMessage::Exited(exit),
    }
}

fn to_piece(bytes: Vec<u8>) -> Piece {
    match String::from_utf8(bytes) {
        Ok(text) => Piece::Text(text),
        Err(error) => Piece::Base64(STANDARD.encode(error.as_bytes())),
    }
}
