//! A running command on a stream: output to the client, input and signals from it.

use super::calls::{control, watch};
use super::flow::{InputItem, cancelled};
use super::{SessionFrameKind, StreamCall};
use crate::rest::{CommandStart, RunningCommand};
use msb_api::{Api, ExecEvent, ExecInput};
use msb_spec::{Error, Kind, Result, TermSize};
use serde::Deserialize;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// A message for a running command.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Control {
    /// Sends a signal, by its number.
    Signal(i32),
    /// Changes the size of its terminal.
    Resize(TermSize),
    /// Ends the stream; the command goes on.
    Detach,
}

/// Starts or attaches to a command and carries its streams. The response is its exit.
pub(super) fn stream(api: &dyn Api, call: &StreamCall, start: CommandStart) -> Result<String> {
    let reads = start.reads_stdin();
    if reads {
        call.input.expect_reader();
    }
    let mut running = start.start(api, &watch(call), &call.cancel)?;
    call.out.event(&json!({"started": running.started}))?;
    if reads {
        let (input, call) = (Arc::clone(&running.input), call.clone());
        // In a thread of its own: a command may write much before it reads.
        spawn("session-stdin", move || forward_stdin(input.as_ref(), &call))?;
    }
    let (input, is_detached) = (Arc::clone(&running.input), Arc::clone(&running.is_detached));
    let of_call = call.clone();
    call.input.when_controlled(move || {
        // Without a thread the messages are lost; the command itself goes on.
        let _ = spawn("session-control", move || apply_controls(&*input, &is_detached, &of_call));
    });
    let done = forward_output(&mut running, call);
    if call.cancel.is_cancelled() {
        return match running.is_detached.load(Relaxed) {
            true => Ok(json!({"detached": true}).to_string()),
            false => Err(cancelled()),
        };
    }
    done
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|error| Error::host("cannot start a thread for the command", error))
}

/// Sends output until the command has ended. The text is the JSON of its exit.
fn forward_output(running: &mut RunningCommand, call: &StreamCall) -> Result<String> {
    while let Some(event) = running.next()? {
        match event {
            ExecEvent::Stdout(bytes) => call.out.bytes(SessionFrameKind::Stdout, &bytes)?,
            ExecEvent::Stderr(bytes) => call.out.bytes(SessionFrameKind::Stderr, &bytes)?,
            ExecEvent::Exited(exit) => {
                return serde_json::to_string(&exit)
                    .map_err(|error| Error::host("cannot encode the exit", error));
            }
        }
    }
    Err(Error::new(Kind::Protocol, "the end of the command is missing"))
}

/// Writes the client's bytes to the command. What a command that has ended does not read is dropped.
fn forward_stdin(input: &dyn ExecInput, call: &StreamCall) {
    while let Some(item) = call.input.next() {
        let consumed = match item {
            InputItem::Bytes(bytes) => {
                let _ = input.write(&bytes);
                call.input.consumed(bytes.len(), call.out.stream, &call.out.frames)
            }
            InputItem::End => input.close(),
        };
        if consumed.is_err() {
            return;
        }
    }
}

/// Applies signals, terminal sizes and a detach in their order.
fn apply_controls(input: &dyn ExecInput, is_detached: &AtomicBool, call: &StreamCall) {
    while let Some(message) = call.input.next_control() {
        let applied = control(&message).and_then(|control| match control {
            Control::Signal(signal) => input.signal(signal),
            Control::Resize(size) => input.resize(size),
            Control::Detach => {
                // What the client sent before reaches the command.
                call.input.wait_until_read();
                is_detached.store(true, Relaxed);
                // Before the worker closes the connection, or that would pass for a failure. The hook
                // of the command detaches from it.
                call.cancel.cancel();
                call.out.credit.close();
                Ok(())
            }
        });
        if let Err(error) = applied {
            tracing::debug!(%error, "a message for a command had no effect");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_read_as_documented() {
        let read = |text: &str| control(text.as_bytes()).ok();
        assert_eq!(read(r#"{"signal": 15}"#), Some(Control::Signal(15)));
        let size = TermSize { rows: 24, cols: 80 };
        assert_eq!(read(r#"{"resize": {"rows": 24, "cols": 80}}"#), Some(Control::Resize(size)));
        assert_eq!(read(r#""detach""#), Some(Control::Detach));
        for wrong in ["", "{}", "15", r#"{"signal": "x"}"#, r#"{"signal": 1, "resize": 2}"#] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
