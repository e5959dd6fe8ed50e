//! A session: one command in the sandbox, attached to a client.
//!
//! Two threads for each, because an Exec blocks: one forwards output, the other input. When the
//! client disconnects, the command gets SIGHUP, as from a terminal, and SIGKILL after a grace
//! period. Processes that left its session live on, as under sshd.

use crate::channel_writer::INTERNAL_FAILURE;
use crate::channels::{ChannelIo, Channels, Inbound, StopWork};
use crate::flow_control::FlowControl;
use crate::server::ServerState;
use msb_api::{Exec, ExecEvent, ExecInput};
use msb_spec::{Command, Error, Kind, Result};
use msb_sys::signal::{SIGHUP, SIGKILL};
use russh::ChannelId;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Time between SIGHUP and SIGKILL after the client disconnects.
const GRACE: Duration = Duration::from_secs(2);

/// State of an Exec, for threads that want to stop it.
pub(crate) struct ExecLifetime {
    server: Arc<ServerState>,
    state: Mutex<LifetimeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LifetimeState {
    exec: Option<u64>,
    ended: bool,
    cancelled: bool,
}

impl ExecLifetime {
    pub(crate) fn new(server: Arc<ServerState>) -> Self {
        Self { server, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Records the running Exec; false if it was cancelled before.
    fn set_started(&self, exec: u64) -> bool {
        let mut state = self.state();
        state.exec = Some(exec);
        !state.cancelled
    }

    fn set_ended(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    fn signal_exec(&self, exec: u64, signal: i32) -> Result<()> {
        self.server.api()?.exec_signal(&self.server.name, exec, signal)
    }

    fn state(&self) -> MutexGuard<'_, LifetimeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StopWork for Arc<ExecLifetime> {
    fn stop(&self) {
        let exec = {
            let mut state = self.state();
            state.cancelled = true;
            match state.exec {
                Some(exec) if !state.ended => exec,
                _ => return,
            }
        };
        let lifetime = Self::clone(self);
        let end = move || {
            let _ = lifetime.signal_exec(exec, SIGHUP);
            let waited =
                lifetime.changed.wait_timeout_while(lifetime.state(), GRACE, |state| !state.ended);
            if waited.is_ok_and(|(state, _)| !state.ended) {
                let _ = lifetime.signal_exec(exec, SIGKILL);
            }
        };
        let _ = thread::Builder::new().name("ssh-end".to_owned()).spawn(end);
    }

    fn signal(&self, number: i32) {
        let Some(exec) = self.state().exec else { return };
        let lifetime = Self::clone(self);
        // In its own thread, so that it does not wait behind input that the command does not read.
        let send = move || {
            if !lifetime.state().ended {
                let _ = lifetime.signal_exec(exec, number);
            }
        };
        let _ = thread::Builder::new().name("ssh-signal".to_owned()).spawn(send);
    }
}

/// Runs the command of a session to its end.
pub(crate) fn run_command(
    channels: &Channels,
    ends: ChannelIo,
    lifetime: &ExecLifetime,
    command: Result<Command>,
    tty: bool,
) {
    let ChannelIo { out, inbound } = ends;
    let id = out.id();
    let started = command
        .and_then(|command| channels.server.api()?.exec_start(&channels.server.name, &command));
    let result = match started {
        Ok(mut exec) if lifetime.set_started(exec.id()) => {
            let (input, flow) = (exec.input(), Arc::clone(&channels.flow));
            let feed = move || forward_input(inbound, &*input, &flow, id);
            match thread::Builder::new().name("ssh-in".to_owned()).spawn(feed) {
                Ok(_) => forward_output(&mut *exec, &out),
                Err(error) => Err(Error::host("cannot start the input thread", error)),
            }
        }
        // Dropping the Exec ends the command.
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    };
    lifetime.set_ended();
    if let Err(error) = result {
        let _ = out.write_error(&error, tty);
        let _ = out.send_status(INTERNAL_FAILURE);
        let _ = out.send_eof();
    }
    out.close();
    channels.remove(id);
}

/// Forwards output and exit of the command to the client.
fn forward_output(exec: &mut dyn Exec, out: &crate::channel_writer::ChannelWriter) -> Result<()> {
    // A closed client gets no output; the exit of the command is still awaited.
    let mut connected = true;
    while let Some(event) = exec.next()? {
        match event {
            ExecEvent::Stdout(bytes) if connected => connected = out.write_stdout(bytes).is_ok(),
            ExecEvent::Stderr(bytes) if connected => connected = out.write_stderr(bytes).is_ok(),
            ExecEvent::Stdout(_) | ExecEvent::Stderr(_) => {}
            ExecEvent::Exited(exit) => {
                // Before EOF: a client that has ended its input closes the channel at EOF.
                let _ = out.send_exit(&exit);
                let _ = out.send_eof();
                return Ok(());
            }
        }
    }
    Err(Error::new(Kind::Protocol, "the Exec ended without an exit"))
}

/// Forwards input of the client to the command, until there is no more.
fn forward_input(
    inbound: Receiver<Inbound>,
    input: &dyn ExecInput,
    flow: &FlowControl,
    id: ChannelId,
) {
    // Input that the command does not accept is dropped, so that no sender waits for it.
    let mut takes = true;
    for message in inbound {
        let length = match message {
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
        flow.consumed(id, length);
    }
}
