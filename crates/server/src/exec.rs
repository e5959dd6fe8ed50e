//! Running commands to their end, for tools that answer once.

use crate::cancel::Cancel;
use msb_api::{Api, Captured, Exec, capture};
use msb_spec::{Command, Exit, Name, Result, Stdin};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Killed at once.
const KILL: i32 = 9;

/// Runs a command to its end, and keeps this many bytes of each of its streams. It is killed when the
/// call is cancelled.
pub(crate) fn run(
    api: &dyn Api,
    name: &Name,
    mut command: Command,
    stdin: Option<Vec<u8>>,
    limit: usize,
    cancel: &Cancel,
) -> Result<Captured> {
    command.stdin = stdin_of(stdin.as_ref());
    let mut exec = api.exec_start(name, &command)?;
    finish(exec.as_mut(), stdin, limit, cancel)
}

/// Open if there is something to be written to it.
pub(crate) fn stdin_of(bytes: Option<&Vec<u8>>) -> Stdin {
    if bytes.is_some() { Stdin::Streamed } else { Stdin::Closed }
}

/// The same for one that runs already.
pub(crate) fn finish(
    exec: &mut dyn Exec,
    stdin: Option<Vec<u8>>,
    limit: usize,
    cancel: &Cancel,
) -> Result<Captured> {
    let input = exec.input();
    let killer = Arc::clone(&input);
    let _hook = cancel.when_cancelled(move || drop(killer.signal(KILL)));
    std::thread::scope(|scope| {
        if let Some(bytes) = stdin {
            // Beside it: a command may say much before it reads.
            scope.spawn(move || input.write(&bytes).and_then(|()| input.close()));
        }
        capture(exec, limit)
    })
}

/// How soon it is noticed that a call was cancelled.
const NOTICE: Duration = Duration::from_millis(200);

/// Waits for the end of a command that runs by itself; none if it has not come within the limit, or
/// nobody waits any more.
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
