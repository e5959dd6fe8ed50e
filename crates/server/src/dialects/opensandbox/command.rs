//! Running commands, and ending them.

use super::arguments::{Interrupt, Run};
use super::measure::now;
use super::shown::{Complete, Execution, ExecutionError, Line, Logs};
use super::{Said, Surface, wrong};
use crate::cancel::Cancel;
use crate::dialect::Call;
use crate::exec;
use msb_api::{Exec, ExecEvent};
use msb_spec::{Command, Error, Exit, Kind, Name, Result, Stdin};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What of a stream an answer holds; the rest is counted.
const STREAM_LIMIT: usize = 1 << 20;
/// Lines of a stream in an answer: each costs far more than its own bytes.
const LINE_LIMIT: usize = 20_000;

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// How long a command may take to end after each of the signals.
const PATIENCE: Duration = Duration::from_millis(1500);

impl Surface {
    pub(super) fn run(&self, call: &Call, arguments: Run) -> Result<Said> {
        if let Some(place) = arguments.working_directory.as_ref().filter(|it| !it.starts_with('/'))
        {
            let what = format!("not an absolute path: `{}`", msb_spec::shown(place));
            return Err(wrong("working_directory", what));
        }
        if arguments.command.contains('\0') {
            return Err(wrong("command", "a command has no NUL"));
        }
        let used = self.connected(call, &arguments)?;
        let begun = Instant::now();
        let command = Command {
            argv: vec!["-c".to_owned(), arguments.command],
            workdir: arguments.working_directory,
            stdin: Stdin::Closed,
            detached: arguments.background,
            ..Command::default()
        };
        let mut exec = self.in_shell(&used.name, &command)?;
        let id = exec.id().to_string();
        if arguments.background {
            return Said::one(&Execution {
                id,
                execution_count: None,
                result: [],
                error: None,
                complete: Some(complete(begun)),
                exit_code: None,
                logs: Logs::default(),
            });
        }
        let (exit, logs) = listen(exec.as_mut(), &call.cancel)?;
        let error = (!exit.success()).then(|| told(&exit));
        Said::one(&Execution {
            id,
            execution_count: None,
            result: [],
            complete: error.is_none().then(|| complete(begun)),
            error,
            exit_code: Some(exit.status()),
            logs,
        })
    }

    /// With bash, as OpenSandbox does, or with the shell that every image has.
    fn in_shell(&self, name: &Name, command: &Command) -> Result<Box<dyn Exec>> {
        let with = |shell: &str| {
            let mut command = command.clone();
            command.argv.insert(0, shell.to_owned());
            self.api().exec_start(name, &command)
        };
        match with("bash") {
            Err(error) if error.kind() == Kind::CommandNotFound => with("sh"),
            begun => begun,
        }
    }

    pub(super) fn interrupt(&self, call: &Call, arguments: &Interrupt) -> Result<Said> {
        let used = self.connected(call, arguments)?;
        let unknown = || {
            let shown = msb_spec::shown(&arguments.execution_id);
            Error::new(Kind::NotFound, format!("no command `{shown}` runs in this sandbox"))
                .hint("it has ended, or `command_run` gave another id")
        };
        let id: u64 = arguments.execution_id.parse().map_err(|_| unknown())?;
        if !self.runs(&used.name, id)? {
            return Err(unknown());
        }
        for signal in [SIGINT, SIGTERM, SIGKILL] {
            match self.api().exec_signal(&used.name, id, signal) {
                // It has ended between two looks.
                Err(error) if error.kind() == Kind::NotFound => break,
                signalled => signalled?,
            }
            match exec::end(self.api(), &used.name, id, PATIENCE, &call.cancel) {
                Ok(Some(_)) => return Said::status("interrupted"),
                // Nobody remembers it any more.
                Err(error) if error.kind() == Kind::NotFound => break,
                Err(error) => return Err(error),
                Ok(None) if call.cancel.is_cancelled() => {
                    return Err(Error::new(Kind::Timeout, "the call was cancelled"));
                }
                Ok(None) => {}
            }
        }
        match self.runs(&used.name, id)? {
            false => Said::status("interrupted"),
            true => Err(Error::new(Kind::Timeout, format!("command `{id}` does not end"))
                .hint("`sandbox_kill` ends it with its sandbox")),
        }
    }

    fn runs(&self, name: &Name, id: u64) -> Result<bool> {
        let execs = self.api().exec_list(name)?;
        Ok(execs.iter().any(|exec| exec.id == id && exec.exit.is_none()))
    }
}

fn complete(begun: Instant) -> Complete {
    let taken = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    Complete { timestamp: now(), execution_time_in_millis: taken }
}

/// How a command ended that did not end well.
fn told(exit: &Exit) -> ExecutionError {
    let status = match (exit.code, exit.signal) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "it was not told how it ended".to_owned(),
    };
    let reason = exit.reason().map(str::to_owned);
    ExecutionError {
        name: "CommandExecError",
        value: exit.status().to_string(),
        timestamp: now(),
        traceback: [status].into_iter().chain(reason).collect(),
    }
}

/// Takes what a command says until it ends. It is killed when the call is cancelled.
fn listen(exec: &mut dyn Exec, cancel: &Cancel) -> Result<(Exit, Logs)> {
    let killer = Arc::clone(&exec.input());
    let _hook = cancel.when_cancelled(move || drop(killer.signal(SIGKILL)));
    let (mut stdout, mut stderr) = (Lines::default(), Lines::default());
    while let Some(event) = exec.next()? {
        match event {
            ExecEvent::Stdout(bytes) => stdout.take(&bytes, now()),
            ExecEvent::Stderr(bytes) => stderr.take(&bytes, now()),
            ExecEvent::Exited(exit) => {
                let logs = Logs { stdout: stdout.finish(false), stderr: stderr.finish(true) };
                return Ok((exit, logs));
            }
        }
    }
    Err(Error::new(Kind::Protocol, "the end of the command was not told"))
}

/// A stream on its way into lines.
#[derive(Default)]
struct Lines {
    /// Whole lines and when each ended.
    lines: Vec<(Vec<u8>, u64)>,
    /// What has no end yet, and when it was last said.
    rest: Vec<u8>,
    time: u64,
    kept: usize,
    left_out: u64,
}

impl Lines {
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

    fn finish(mut self, is_error: bool) -> Vec<Line> {
        if !self.rest.is_empty() {
            self.lines.push((self.rest, self.time));
        }
        let line = |(bytes, timestamp): (Vec<u8>, u64)| Line {
            text: String::from_utf8_lossy(bytes.strip_suffix(b"\r").unwrap_or(&bytes)).into_owned(),
            timestamp,
            is_error,
        };
        let mut lines: Vec<Line> = self.lines.into_iter().map(line).collect();
        if self.left_out > 0 {
            let text = format!(
                "[msb: {} more bytes were left out; send the output to a file and read that]",
                self.left_out
            );
            lines.push(Line { text, timestamp: self.time, is_error });
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::default();
        pieces.iter().for_each(|piece| lines.take(piece, 7));
        lines.finish(false).into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn output_becomes_lines_however_it_comes() {
        assert_eq!(texts(&[]), [""; 0]);
        assert_eq!(texts(&[b"a\nb"]), ["a", "b"]);
        assert_eq!(texts(&[b"a", b"b\n\n", b"c\r\n"]), ["ab", "", "c"]);
        // A letter that comes in two pieces stays whole.
        assert_eq!(texts(&["ä".as_bytes().split_at(1).0, "ä".as_bytes().split_at(1).1]), ["ä"]);
    }

    #[test]
    fn what_is_left_out_is_said() {
        let all = texts(&[&[b'x'; STREAM_LIMIT], b"yyy"]);
        assert_eq!(all[0].len(), STREAM_LIMIT);
        assert!(all[1].contains("3 more bytes"), "{}", all[1]);
        let all = texts(&[&[b'\n'; LINE_LIMIT + 5], b"z"]);
        assert_eq!(all.len(), LINE_LIMIT + 1);
        assert!(all[LINE_LIMIT].contains("6 more bytes"), "{}", all[LINE_LIMIT]);
    }
}
