//! Runs commands to completion, for tools that return one result.

use crate::cancel::Cancel;
use msb_api::{Api, CapturedOutput, Exec, capture};
use msb_spec::{Command, Exit, Name, Result, Stdin};
use msb_sys::signal::SIGKILL as KILL;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs a command to completion and captures up to `limit` bytes of each output stream. The
/// command is killed when the call is cancelled.
pub(crate) fn run(
    api: &dyn Api,
    name: &Name,
    mut command: Command,
    stdin: Option<Vec<u8>>,
    limit: usize,
    cancel: &Cancel,
) -> Result<CapturedOutput> {
    command.stdin = stdin_of(stdin.as_ref());
    let mut exec = api.exec_start(name, &command)?;
    finish(exec.as_mut(), stdin, limit, cancel)
}

/// A streamed stdin if there is input, else a closed one.
pub(crate) fn stdin_of(bytes: Option<&Vec<u8>>) -> Stdin {
    if bytes.is_some() { Stdin::Streamed } else { Stdin::Closed }
}

/// Waits for the end of a running command, as [`run`] does.
pub(crate) fn finish(
    exec: &mut dyn Exec,
    stdin: Option<Vec<u8>>,
    limit: usize,
    cancel: &Cancel,
) -> Result<CapturedOutput> {
    let input = exec.input();
    let killer = Arc::clone(&input);
    let _hook = cancel.when_cancelled(move || drop(killer.signal(KILL)));
    std::thread::scope(|scope| {
        if let Some(bytes) = stdin {
            // In a thread of its own: a command may write much before it reads.
            scope.spawn(move || input.write(&bytes).and_then(|()| input.close()));
        }
        capture(exec, limit)
    })
}

/// How often a waiting call checks for cancellation.
const NOTICE: Duration = Duration::from_millis(200);

/// Waits for the end of a detached command; none if it has not ended within the limit, or the
/// call was cancelled.
pub(crate) fn end(
    api: &dyn Api,
    name: &Name,
    id: u64,
    limit: Duration,
    cancel: &Cancel,
) -> Result<Option<Exit>> {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let exit = api.exec_wait(name, id, left.min(NOTICE))?;
        if exit.is_some() || left.is_zero() || cancel.is_cancelled() {
            return Ok(exit);
        }
    }
}
