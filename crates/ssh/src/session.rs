//! A session: one command in the sandbox, and a client that takes part in it.
//!
//! Two threads each, because an Exec blocks: this one says what the command says, another feeds it. A command whose
//! client has gone is told so as a terminal would, and killed if it stays; what has made itself independent
//! of its session lives on, as it would under sshd.

use crate::board::{Board, Ends, Inbound, Stop};
use crate::gate::Gate;
use crate::out::OUR_FAILURE;
use crate::server::Site;
use msb_api::{Exec, ExecEvent, ExecInput};
use msb_spec::{Command, Error, Kind, Result};
use russh::ChannelId;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How long a command may tidy up when its client has gone.
const GRACE: Duration = Duration::from_secs(2);
const SIGHUP: i32 = 1;
const SIGKILL: i32 = 9;

/// Where an Exec stands, for those who want to end it.
pub(crate) struct Life {
    site: Arc<Site>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    exec: Option<u64>,
    over: bool,
    unwanted: bool,
}

impl Life {
    pub(crate) fn new(site: Arc<Site>) -> Self {
        Self { site, state: Mutex::default(), changed: Condvar::new() }
    }

    /// It runs; false if nobody wants it any more.
    fn began(&self, exec: u64) -> bool {
        let mut state = self.state();
        state.exec = Some(exec);
        !state.unwanted
    }

    fn ended(&self) {
        self.state().over = true;
        self.changed.notify_all();
    }

    fn tell(&self, exec: u64, signal: i32) -> Result<()> {
        self.site.api()?.exec_signal(&self.site.name, exec, signal)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stop for Arc<Life> {
    fn stop(&self) {
        let exec = {
            let mut state = self.state();
            state.unwanted = true;
            match state.exec {
                Some(exec) if !state.over => exec,
                _ => return,
            }
        };
        let life = Self::clone(self);
        let end = move || {
            let _ = life.tell(exec, SIGHUP);
            let waited = life.changed.wait_timeout_while(life.state(), GRACE, |state| !state.over);
            if waited.is_ok_and(|(state, _)| !state.over) {
                let _ = life.tell(exec, SIGKILL);
            }
        };
        let _ = thread::Builder::new().name("ssh-end".to_owned()).spawn(end);
    }

    fn signal(&self, number: i32) {
        let Some(exec) = self.state().exec else { return };
        let life = Self::clone(self);
        // It goes its own way, so that it does not wait behind what the command does not read.
        let send = move || {
            if !life.state().over {
                let _ = life.tell(exec, number);
            }
        };
        let _ = thread::Builder::new().name("ssh-signal".to_owned()).spawn(send);
    }
}

/// Runs the command of a session to its end.
pub(crate) fn attend(board: &Board, ends: Ends, life: &Life, command: Result<Command>, tty: bool) {
    let Ends { out, fed } = ends;
    let id = out.id();
    let started =
        command.and_then(|command| board.site.api()?.exec_start(&board.site.name, &command));
    let said = match started {
        Ok(mut exec) if life.began(exec.id()) => {
            let (input, gate) = (exec.input(), Arc::clone(&board.gate));
            let feeds = move || pour(fed, &*input, &gate, id);
            match thread::Builder::new().name("ssh-in".to_owned()).spawn(feeds) {
                Ok(_) => listen(&mut *exec, &out),
                Err(error) => Err(Error::host("cannot attend the command", error)),
            }
        }
        // Dropping it ends it.
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    life.ended();
    if let Err(error) = said {
        let _ = out.tell(&error, tty);
        let _ = out.status(OUR_FAILURE);
        let _ = out.eof();
    }
    out.close();
    board.remove(id);
}

/// Tells the client what the command says, and how it ended.
fn listen(exec: &mut dyn Exec, out: &crate::out::Out) -> Result<()> {
    // A client that has gone need not be told; the end of the command is still waited for.
    let mut listens = true;
    while let Some(event) = exec.next()? {
        match event {
            ExecEvent::Stdout(bytes) if listens => listens = out.say(bytes).is_ok(),
            ExecEvent::Stderr(bytes) if listens => listens = out.complain(bytes).is_ok(),
            ExecEvent::Stdout(_) | ExecEvent::Stderr(_) => {}
            ExecEvent::Exited(exit) => {
                // Before the end of the output: a client that has ended its input closes the channel then.
                let _ = out.ended(&exit);
                let _ = out.eof();
                return Ok(());
            }
        }
    }
    Err(Error::new(Kind::Protocol, "the end of the command was not told"))
}

/// Feeds a command what the client sends, until there is no more.
fn pour(fed: Receiver<Inbound>, input: &dyn ExecInput, gate: &Gate, id: ChannelId) {
    // What a command does not take any more is thrown away, so that nobody waits for it.
    let mut takes = true;
    for inbound in fed {
        let length = match inbound {
            Inbound::Data(bytes) => {
                takes = takes && input.write(&bytes).is_ok();
                bytes.len()
            }
            Inbound::Eof => {
                let _ = input.close();
                0
            }
            Inbound::Resize(size) => {
                let _ = input.resize(size);
                0
            }
        };
        gate.taken(id, length);
    }
}
