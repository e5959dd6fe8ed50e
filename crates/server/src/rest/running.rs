//! A command that runs, for answers that come piece by piece.

use super::pieces::Kept;
use super::waiting::KILL;
use crate::cancel::{Cancel, Hook};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use msb_api::http::streams::{Heard, Piece, StartExec, StartRun, Started};
use msb_api::{Api, Exec, ExecEvent, ExecInput, Watch};
use msb_spec::{Command, Name, Result, Spec, Stdin};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// What is to be started.
pub(super) enum Start {
    Exec(Name, Box<Command>),
    Run(Box<Spec>),
    Attach(Name, u64),
}

impl Start {
    pub(super) fn exec(name: Name, ask: StartExec) -> (Self, Option<String>) {
        let command = Command { stdin: Stdin::Streamed, ..ask.command };
        (Self::Exec(name, Box::new(command)), ask.stdin)
    }

    pub(super) fn run(api: &Arc<dyn Api>, ask: StartRun) -> (Arc<dyn Api>, Self, Option<String>) {
        let api = match ask.secrets.is_empty() {
            true => Arc::clone(api),
            false => {
                let values = ask.secrets.into_iter();
                api.giving(values.map(|(name, value)| (name, value.into_bytes())).collect())
            }
        };
        (api, Self::Run(Box::new(ask.spec)), ask.stdin)
    }

    /// Whether it goes on when nobody listens.
    fn goes_on(&self) -> bool {
        match self {
            Self::Exec(_, command) => command.detached,
            Self::Run(_) => false,
            Self::Attach(..) => true,
        }
    }

    /// Starts it. It ends when the call is cancelled, unless it is to go on.
    pub(super) fn begin(
        self,
        api: &dyn Api,
        watch: &dyn Watch,
        cancel: &Cancel,
    ) -> Result<Running> {
        let goes_on = Arc::new(AtomicBool::new(self.goes_on()));
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
        let (told, stays) = (Arc::clone(&input), Arc::clone(&goes_on));
        let hook = cancel.when_cancelled(move || {
            let _ = if stays.load(Relaxed) { told.detach() } else { told.signal(KILL) };
        });
        let started = Started { id: exec.id(), pid: exec.pid(), sandbox };
        Ok(Running { exec, input, started, goes_on, _hook: Kept::new(hook) })
    }
}

/// It runs.
pub(super) struct Running {
    exec: Box<dyn Exec>,
    pub(super) input: Arc<dyn ExecInput>,
    pub(super) started: Started,
    /// Whether it goes on when nobody listens.
    pub(super) goes_on: Arc<AtomicBool>,
    _hook: Kept<Hook>,
}

impl Running {
    /// What it did next; none after its end.
    pub(super) fn next(&mut self) -> Result<Option<ExecEvent>> {
        self.exec.next()
    }
}

/// An event of a command, as text.
pub(super) fn heard(event: ExecEvent) -> Heard {
    match event {
        ExecEvent::Stdout(bytes) => Heard::Stdout(piece(bytes)),
        ExecEvent::Stderr(bytes) => Heard::Stderr(piece(bytes)),
        ExecEvent::Exited(exit) => Heard::Exited(exit),
    }
}

fn piece(bytes: Vec<u8>) -> Piece {
    match String::from_utf8(bytes) {
        Ok(text) => Piece::Text(text),
        Err(error) => Piece::Base64(STANDARD.encode(error.as_bytes())),
    }
}
