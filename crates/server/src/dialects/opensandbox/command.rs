//! Runs commands and interrupts them.

use super::arguments::{InterruptArgs, RunArgs};
use super::metrics::now;
use super::output::{Execution, ExecutionComplete, ExecutionError, ExecutionLine, ExecutionLogs};
use super::{OpenSandboxState, ToolOutput, argument_error};
use crate::cancel::Cancel;
use crate::dialect::ToolCall;
use crate::exec;
use msb_api::{Exec, ExecEvent};
use msb_spec::{Command, Error, Exit, Kind, Name, Result, Stdin};
use msb_sys::signal::{SIGINT, SIGKILL, SIGTERM};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most bytes of a stream in a result; the rest is counted.
const STREAM_LIMIT: usize = 1 << 20;
/// Most lines of a stream in a result: each costs far more than its own bytes.
const LINE_LIMIT: usize = 20_000;

/// Time for a command to end after each signal.
const SIGNAL_GRACE: Duration = Duration::from_millis(1500);

impl OpenSandboxState {
    pub(super) fn run(&self, call: &ToolCall, arguments: RunArgs) -> Result<ToolOutput> {
        if let Some(place) = arguments.working_directory.as_ref().filter(|it| !it.starts_with('/'))
        {
            let what = format!("not an absolute path: `{}`", msb_spec::shown(place));
            return Err(argument_error("working_directory", what));
        }
        if arguments.command.contains('\0') {
            return Err(argument_error("command", "a command must not contain NUL"));
        }
        let connection = self.connected(call, &arguments)?;
        let started = Instant::now();
        let command = Command {
            argv: vec!["-c".to_owned(), arguments.command],
            workdir: arguments.working_directory,
            stdin: Stdin::Closed,
            detached: arguments.background,
            ..Command::default()
        };
        let mut exec = self.in_shell(&connection.name, &command)?;
        let id = exec.id().to_string();
        if arguments.background {
            return ToolOutput::one(&Execution {
                id,
                execution_count: None,
                result: [],
                error: None,
                complete: Some(complete(started)),
                exit_code: None,
                logs: ExecutionLogs::default(),
            });
        }
        let (exit, logs) = collect_output(exec.as_mut(), &call.cancel)?;
        let error = (!exit.success()).then(|| execution_error(&exit));
        ToolOutput::one(&Execution {
            id,
            execution_count: None,
            result: [],
            complete: error.is_none().then(|| complete(started)),
            error,
            exit_code: Some(exit.status()),
            logs,
        })
    }

    /// Runs with bash, as OpenSandbox does, or with `sh`, which every image has.
    fn in_shell(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        let with = |shell: &str| {
            let mut command = command.clone();
            command.argv.insert(0, shell.to_owned());
            self.api().exec_start(name, &command)
        };
        match with("bash") {
            Err(error) if error.kind() == Kind::CommandNotFound => with("sh"),
            started => started,
        }
    }

    pub(super) fn interrupt(
        &self,
        call: &ToolCall,
        arguments: &InterruptArgs,
    ) -> Result<ToolOutput> {
        let connection = self.connected(call, arguments)?;
        let unknown = || {
            let shown = msb_spec::shown(&arguments.execution_id);
            Error::new(Kind::NotFound, format!("no command `{shown}` runs in this sandbox"))
                .hint("it has ended, or `command_run` returned another id")
        };
        let id: u64 = arguments.execution_id.parse().map_err(|_| unknown())?;
        if !self.is_running(&connection.name, id)? {
            return Err(unknown());
        }
        for signal in [SIGINT, SIGTERM, SIGKILL] {
            match self.api().exec_signal(&connection.name, id, signal) {
                // It has ended since the last check.
                Err(error) if error.kind() == Kind::NotFound => break,
                signalled => signalled?,
            }
            match exec::end(self.api(), &connection.name, id, SIGNAL_GRACE, &call.cancel) {
                Ok(Some(_)) => return ToolOutput::status("interrupted"),
                // Its record has been removed.
                Err(error) if error.kind() == Kind::NotFound => break,
                Err(error) => return Err(error),
                Ok(None) if call.cancel.is_cancelled() => {
                    return Err(Error::new(Kind::Timeout, "the call was cancelled"));
                }
                Ok(None) => {}
            }
        }
        match self.is_running(&connection.name, id)? {
            false => ToolOutput::status("interrupted"),
            true => Err(Error::new(Kind::Timeout, format!("command `{id}` does not end"))
                .hint("`sandbox_kill` ends it with its sandbox")),
        }
    }

    fn is_running(&self, name: &Name, id: u64) -> Result<bool> {
        let execs = self.api().exec_list(name)?;
        Ok(execs.iter().any(|exec| exec.id == id && exec.exit.is_none()))
    }
}

fn complete(started: Instant) -> ExecutionComplete {
    let taken = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    ExecutionComplete { timestamp: now(), execution_time_in_millis: taken }
}

/// The error of a command that failed.
fn execution_error(exit: &Exit) -> ExecutionError {
    let status = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "unknown exit status".to_owned(),
    };
    let reason = exit.reason().map(str::to_owned);
    ExecutionError {
        name: "CommandExecError",
        value: exit.status().to_string(),
        timestamp: now(),
        traceback: [status].into_iter().chain(reason).collect(),
    }
}

/// Collects the output of a command until it ends. The command is killed on cancellation.
fn collect_output(exec: &mut dyn Exec, cancel: &Cancel) -> Result<(Exit, ExecutionLogs)> {
    let killer = Arc::clone(&exec.input());
    let _hook = cancel.when_cancelled(move || drop(killer.signal(SIGKILL)));
    let (mut stdout, mut stderr) = (LineSplitter::default(), LineSplitter::default());
    while let Some(event) = exec.next()? {
        match event {
            ExecEvent::Stdout(bytes) => stdout.take(&bytes, now()),
            ExecEvent::Stderr(bytes) => stderr.take(&bytes, now()),
            ExecEvent::Exited(exit) => {
                let logs =
                    ExecutionLogs { stdout: stdout.finish(false), stderr: stderr.finish(true) };
                return Ok((exit, logs));
            }
        }
    }
    Err(Error::new(Kind::Protocol, "the exit status of the command is missing"))
}

/// Splits a stream into lines.
#[derive(Default)]
struct LineSplitter {
    /// Complete lines, and when each ended.
    lines: Vec<(Vec<u8>, u64)>,
    /// The unfinished line, and when it was last extended.
    rest: Vec<u8>,
    time: u64,
    kept: usize,
    left_out: u64,
}

impl LineSplitter {
    fn take(&mut self, bytes: &[u8], time: u64) {
        let room = STREAM_LIMIT.saturating_sub(self.kept).min(bytes.len());
        let room = if self.lines.len() < LINE_LIMIT { room } else { 0 };
        let (bytes, beyond) = bytes.split_at(room);
        self.kept += bytes.len();
        self.left_out += beyond.len() as u64;
        self.time = time;
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            match piece.strip_suffix(b"\n") {
                Some(end) if self.lines.len() < LINE_LIMIT => {
                    self.rest.extend_from_slice(end);
                    self.lines.push((std::mem::take(&mut self.rest), time));
                }
                Some(_) => self.left_out += piece.len() as u64,
                None => self.rest.extend_from_slice(piece),
            }
        }
    }

    fn finish(mut self, is_error: bool) -> Vec<ExecutionLine> {
        if !self.rest.is_empty() {
            self.lines.push((self.rest, self.time));
        }
        let line = |(bytes, timestamp): (Vec<u8>, u64)| ExecutionLine {
            text: String::from_utf8_lossy(bytes.strip_suffix(b"\r").unwrap_or(&bytes)).into_owned(),
            timestamp,
            is_error,
        };
        let mut lines: Vec<ExecutionLine> = self.lines.into_iter().map(line).collect();
        if self.left_out > 0 {
            let text = format!(
                "[msb: {} more bytes were dropped; redirect the output to a file and read that]",
                self.left_out
            );
            lines.push(ExecutionLine { text, timestamp: self.time, is_error });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = LineSplitter::default();
        pieces.iter().for_each(|piece| lines.take(piece, 7));
        lines.finish(false).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn output_becomes_lines_however_it_comes() {
        assert_eq!(texts(&[]), [""; 0]);
        assert_eq!(texts(&[b"a\nb"]), ["a", "b"]);
        assert_eq!(texts(&[b"a", b"b\n\n", b"c\r\n"]), ["ab", "", "c"]);
        // A character that is split into two chunks stays whole.
        assert_eq!(texts(&["ä".as_bytes().split_at(1).0, "ä".as_bytes().split_at(1).1]), ["ä"]);
    }

    #[test]
    fn dropped_output_is_reported() {
        let all = texts(&[&[b'x'; STREAM_LIMIT], b"yyy"]);
        assert_eq!(all[0].len(), STREAM_LIMIT);
        assert!(all[1].contains("3 more bytes"), "{}", all[1]);
        let all = texts(&[&[b'\n'; LINE_LIMIT + 5], b"z"]);
        assert_eq!(all.len(), LINE_LIMIT + 1);
        assert!(all[LINE_LIMIT].contains("6 more bytes"), "{}", all[LINE_LIMIT]);
    }
}
