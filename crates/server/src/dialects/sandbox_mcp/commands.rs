//! Running commands: in the shell that stays, one after the other.

use super::Surface;
use super::live::Live;
use super::shell::{Ended, Line, Shell, WORKSPACE};
use super::text::{chomped, cut, exact};
use crate::dialect::Call;
use msb_api::Place;
use msb_spec::{Error, Kind, Result};
use serde::Deserialize;
use std::time::{Duration, Instant};

/// Where the script of `python` is.
const SCRIPT: &str = "/tmp/_mcp_run.py";
/// Nobody means more; clocks can still count it.
const LONGEST: f64 = 30.0 * 86_400.0;
/// What a command has that was ended.
const ENDED: i32 = -1;

#[derive(Debug, Deserialize)]
pub(super) struct Exec {
    command: String,
    timeout: f64,
    workdir: String,
    stdin: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Python {
    code: String,
    timeout: f64,
    sandbox: String,
}

/// A command and what belongs to it.
pub(super) struct Ask<'a> {
    pub(super) command: &'a str,
    pub(super) workdir: &'a str,
    pub(super) stdin: Option<&'a [u8]>,
    pub(super) timeout: f64,
    /// Written before it runs, while nobody else runs anything.
    pub(super) script: Option<(&'a str, &'a str)>,
}

impl<'a> Ask<'a> {
    /// One in the workspace that reads nothing.
    pub(super) fn new(command: &'a str, timeout: f64) -> Self {
        Self { command, workdir: WORKSPACE, stdin: None, timeout, script: None }
    }
}

/// What came of it.
pub(super) struct Output {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) status: i32,
    pub(super) taken: Duration,
}

impl Surface {
    pub(super) fn exec(&self, call: &Call, asked: &Exec) -> Result<String> {
        let live = self.used(call, &asked.sandbox)?;
        let ask = Ask {
            command: &asked.command,
            workdir: &asked.workdir,
            stdin: (!asked.stdin.is_empty()).then_some(asked.stdin.as_bytes()),
            timeout: asked.timeout,
            script: None,
        };
        let output = match self.run(call, &live, &ask) {
            Err(Failed::Script(error)) => {
                return Ok(format!("Error preparing stdin: {}", super::words(&error)));
            }
            Err(Failed::Command(error)) => return Err(error),
            Ok(output) => output,
        };
        self.ledger.add(&live.name, &asked.command, output.status, output.taken);
        Ok(shown(&output))
    }

    pub(super) fn python(&self, call: &Call, asked: &Python) -> Result<String> {
        let live = self.used(call, &asked.sandbox)?;
        let command = format!("python3 {SCRIPT}");
        let script = Some((SCRIPT, asked.code.as_str()));
        let ask = Ask { script, ..Ask::new(&command, asked.timeout) };
        let output = match self.run(call, &live, &ask) {
            Err(Failed::Script(error)) => {
                return Ok(format!("Error writing script: {}", super::words(&error)));
            }
            Err(Failed::Command(error)) => return Err(error),
            Ok(output) => output,
        };
        self.ledger.add(&live.name, &command, output.status, output.taken);
        Ok(shown(&output))
    }

    /// Runs a command of ours that history does not hold.
    pub(super) fn run_quietly(&self, call: &Call, live: &Live, ask: &Ask<'_>) -> Result<Output> {
        self.run(call, live, ask).map_err(|failed| match failed {
            Failed::Script(error) | Failed::Command(error) => error,
        })
    }

    /// Runs a command in the shell of a sandbox, which is opened if need be.
    fn run(&self, call: &Call, live: &Live, ask: &Ask<'_>) -> Result<Output, Failed> {
        if ask.command.contains('\0') || ask.workdir.contains('\0') {
            return Err(Failed::Command(Error::invalid("a command has no NUL")));
        }
        let limit = limit(ask.timeout).map_err(Failed::Command)?;
        let mut held = live.shell();
        let mut shell = match held.take().filter(Shell::is_alive) {
            Some(shell) => shell,
            None => self.open(live).map_err(Failed::Command)?,
        };
        let mut scratch =
            Scratch { surface: self, at: Place::sandbox(&live.name), paths: Vec::new() };
        if let Some((path, text)) = ask.script {
            scratch.write(path, text.as_bytes(), false).map_err(Failed::Script)?;
        }
        let mut stdin = None;
        if let Some(bytes) = ask.stdin {
            let path = format!("/tmp/.mcp-stdin-{}", super::live::hex());
            scratch.write(&path, bytes, true).map_err(Failed::Script)?;
            stdin = Some(path);
        }
        let mut command = ask.command.to_owned();
        if shell.needs_file(ask.command, ask.workdir) {
            let path = format!("/tmp/.mcp-command-{}", super::live::hex());
            scratch.write(&path, ask.command.as_bytes(), true).map_err(Failed::Command)?;
            command = format!(". {path}");
        }
        let line = Line { command: &command, workdir: ask.workdir, stdin: stdin.as_deref(), limit };
        let begun = Instant::now();
        let ran = shell.run_for(ask.command, &line, &call.cancel).map_err(Failed::Command)?;
        let taken = begun.elapsed();
        drop(scratch);
        let stdout = cut(ran.stdout.kept(), ran.stdout.total());
        let mut stderr = cut(ran.stderr.kept(), ran.stderr.total());
        let late = format!("Timed out after {:?}s", ask.timeout);
        let status = match ran.ended {
            Ended::Well(status) | Ended::WithShell(status) => status,
            Ended::Interrupted => {
                stderr = late;
                ENDED
            }
            Ended::Killed => {
                stderr =
                    format!("{late}; it had to be killed with its shell, whose variables are gone");
                ENDED
            }
        };
        live.touch();
        *held = match ran.ended {
            Ended::Well(_) | Ended::Interrupted => Some(shell),
            // Now, so that the next command does not wait for it. A sandbox that has ended has none.
            Ended::WithShell(_) | Ended::Killed => self.open(live).ok(),
        };
        live.answered(held.is_some());
        Ok(Output { stdout, stderr, status, taken })
    }

    fn open(&self, live: &Live) -> Result<Shell> {
        // Children have no volume there, and a command begins there all the same.
        let workspace = WORKSPACE.as_bytes();
        let _ = self.api().file_mkdir(&Place::sandbox(&live.name), workspace, true);
        let opened = Shell::open(self.api(), &live.name);
        live.answered(opened.is_ok());
        opened
    }
}

/// Why there is nothing to tell of a command.
pub(super) enum Failed {
    /// What it needs could not be written.
    Script(Error),
    Command(Error),
}

/// Files that are there for one command.
struct Scratch<'a> {
    surface: &'a Surface,
    at: Place,
    paths: Vec<String>,
}

impl Scratch<'_> {
    fn write(&mut self, path: &str, mut bytes: &[u8], brief: bool) -> Result<()> {
        if brief {
            self.paths.push(path.to_owned());
        }
        let mode = if brief { 0o600 } else { 0o644 };
        self.surface.api().file_write(&self.at, path.as_bytes(), mode, false, &mut bytes).map(drop)
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        for path in &self.paths {
            // The sandbox may have ended meanwhile.
            let _ = self.surface.api().file_remove(&self.at, path.as_bytes(), false);
        }
    }
}

/// Seconds, as clients write them.
pub(super) fn limit(seconds: f64) -> Result<Duration> {
    if seconds <= 0.0 {
        return Err(Error::new(Kind::Invalid, format!("not a timeout: `{seconds}`"))
            .hint("it is a number of seconds above 0"));
    }
    Ok(Duration::from_secs_f64(seconds.min(LONGEST)))
}

/// A command's output as answers have it.
pub(super) fn shown(output: &Output) -> String {
    let mut parts = Vec::new();
    let (stdout, stderr) = (chomped(&output.stdout), chomped(&output.stderr));
    if !stdout.is_empty() {
        parts.push(stdout.to_owned());
    }
    if !stderr.is_empty() {
        parts.push(format!("[stderr] {stderr}"));
    }
    if output.status != 0 {
        parts.push(format!("[exit code {}]", output.status));
    }
    parts.push(exact(output.taken));
    parts.join("\n")
}
