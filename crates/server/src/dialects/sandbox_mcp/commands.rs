//! Runs commands one after the other in the shell of a sandbox.

use super::SandboxMcpState;
use super::active::ActiveSandbox;
use super::format::{chomped, cut, exact};
use super::shell::{CommandEnd, Shell, ShellLine, WORKSPACE};
use crate::dialect::ToolCall;
use crate::dialects::DialectName;
use msb_api::Place;
use msb_spec::{Error, Kind, Result};
use serde::Deserialize;
use std::time::{Duration, Instant};

/// The path of the script of `python` in the sandbox.
const SCRIPT: &str = "/tmp/_mcp_run.py";
/// Longest timeout in seconds, so that adding it to a clock cannot overflow.
const LONGEST: f64 = 30.0 * 86_400.0;
/// The exit code of a command that was interrupted or killed.
const ENDED: i32 = -1;

#[derive(Debug, Deserialize)]
pub(super) struct ExecArgs {
    command: String,
    timeout: f64,
    workdir: String,
    stdin: String,
    sandbox: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct PythonArgs {
    code: String,
    timeout: f64,
    sandbox: String,
}

/// A command, with its directory, input and timeout.
pub(super) struct ShellCommand<'a> {
    pub(super) command: &'a str,
    pub(super) workdir: &'a str,
    pub(super) stdin: Option<&'a [u8]>,
    pub(super) timeout: f64,
    /// Path and content of a file to write before the command, under the lock of the shell.
    pub(super) script: Option<(&'a str, &'a str)>,
}

impl<'a> ShellCommand<'a> {
    /// A command in the workspace with an empty stdin.
    pub(super) fn new(command: &'a str, timeout: f64) -> Self {
        Self { command, workdir: WORKSPACE, stdin: None, timeout, script: None }
    }
}

/// Output and exit code of a command.
pub(super) struct CommandOutput {
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) status: i32,
    pub(super) taken: Duration,
}

impl SandboxMcpState {
    pub(super) fn exec(&self, call: &ToolCall, args: &ExecArgs) -> Result<String> {
        let handle = self.ensure_active(call, &args.sandbox)?;
        let shell_command = ShellCommand {
            command: &args.command,
            workdir: &args.workdir,
            stdin: (!args.stdin.is_empty()).then_some(args.stdin.as_bytes()),
            timeout: args.timeout,
            script: None,
        };
        let output = match self.run(call, &handle, &shell_command) {
            Err(CommandFailure::Script(error)) => {
                return Ok(format!("Error preparing stdin: {}", super::full_text(&error)));
            }
            Err(CommandFailure::Command(error)) => return Err(error),
            Ok(output) => output,
        };
        self.records.add(&handle.name, &args.command, output.status, output.taken);
        Ok(shown(&output))
    }

    pub(super) fn python(&self, call: &ToolCall, args: &PythonArgs) -> Result<String> {
        let handle = self.ensure_active(call, &args.sandbox)?;
        let command = format!("python3 {SCRIPT}");
        let script = Some((SCRIPT, args.code.as_str()));
        let shell_command = ShellCommand { script, ..ShellCommand::new(&command, args.timeout) };
        let output = match self.run(call, &handle, &shell_command) {
            Err(CommandFailure::Script(error)) => {
                return Ok(format!("Error writing script: {}", super::full_text(&error)));
            }
            Err(CommandFailure::Command(error)) => return Err(error),
            Ok(output) => output,
        };
        self.records.add(&handle.name, &command, output.status, output.taken);
        Ok(shown(&output))
    }

    /// Runs an internal command that is not recorded in the history.
    pub(super) fn run_quietly(
        &self,
        call: &ToolCall,
        handle: &ActiveSandbox,
        shell_command: &ShellCommand<'_>,
    ) -> Result<CommandOutput> {
        self.run(call, handle, shell_command).map_err(|failed| match failed {
            CommandFailure::Script(error) | CommandFailure::Command(error) => error,
        })
    }

    /// Runs a command in the shell of a sandbox, which is opened if there is none.
    fn run(
        &self,
        call: &ToolCall,
        handle: &ActiveSandbox,
        shell_command: &ShellCommand<'_>,
    ) -> Result<CommandOutput, CommandFailure> {
        if shell_command.command.contains('\0') || shell_command.workdir.contains('\0') {
            return Err(CommandFailure::Command(Error::invalid("a command must not contain NUL")));
        }
        let limit = limit(shell_command.timeout).map_err(CommandFailure::Command)?;
        let mut held = handle.shell();
        let kept = held.take().filter(Shell::is_alive);
        let origin = call.origin(DialectName::SandboxMcp);
        let mut shell = match kept {
            Some(shell) if shell.announce(shell_command.command, &origin).is_ok() => shell,
            kept => self
                .open_announced(call, handle, shell_command.command, kept.is_some())
                .map_err(CommandFailure::Command)?,
        };
        let mut temp_files =
            TempFiles { state: self, at: Place::sandbox(&handle.name), paths: Vec::new() };
        let (command, stdin) = match temp_files.prepare(&shell, shell_command) {
            Ok(prepared) => prepared,
            Err(failure) => {
                shell.record_end(None, Duration::ZERO);
                *held = Some(shell);
                return Err(failure);
            }
        };
        let line = ShellLine {
            command: &command,
            workdir: shell_command.workdir,
            stdin: stdin.as_deref(),
            limit,
        };
        let started = Instant::now();
        let ran = shell.run_announced(&line, &call.cancel).map_err(CommandFailure::Command)?;
        let taken = started.elapsed();
        drop(temp_files);
        let stdout = cut(ran.stdout.kept(), ran.stdout.total());
        let mut stderr = cut(ran.stderr.kept(), ran.stderr.total());
        let late = format!("Timed out after {:?}s", shell_command.timeout);
        let status = match ran.end {
            CommandEnd::Exited(status) | CommandEnd::ShellExited(status) => status,
            CommandEnd::Interrupted => {
                stderr = late;
                ENDED
            }
            CommandEnd::Killed => {
                stderr = format!(
                    "{late}; it was killed with its shell, and the shell variables are lost"
                );
                ENDED
            }
        };
        handle.touch();
        *held = match ran.end {
            CommandEnd::Exited(_) | CommandEnd::Interrupted => Some(shell),
            // Opened now, so that the next command does not wait. It fails if the sandbox has
            // ended.
            CommandEnd::ShellExited(_) | CommandEnd::Killed => self.open(handle).ok(),
        };
        handle.set_responds(held.is_some());
        Ok(CommandOutput { stdout, stderr, status, taken })
    }

    /// Opens a shell and announces a command to it. A kept shell that is gone may have belonged to a
    /// sandbox that another client has stopped or removed: its end is not read yet.
    fn open_announced(
        &self,
        call: &ToolCall,
        handle: &ActiveSandbox,
        command: &str,
        is_gone: bool,
    ) -> Result<Shell> {
        if is_gone {
            let _lifecycle = handle.lifecycle_lock();
            self.ensure_running(call, &handle.name)?;
        }
        let shell = self.open(handle)?;
        shell.announce(command, &call.origin(DialectName::SandboxMcp))?;
        Ok(shell)
    }

    fn open(&self, handle: &ActiveSandbox) -> Result<Shell> {
        // Children have no volume at this path, but commands start there all the same.
        let workspace = WORKSPACE.as_bytes();
        let _ = self.api().file_mkdir(&Place::sandbox(&handle.name), workspace, true);
        let opened = Shell::open(self.api(), &handle.name);
        handle.set_responds(opened.is_ok());
        opened
    }
}

/// Why a command has no output.
pub(super) enum CommandFailure {
    /// The script or stdin file could not be written.
    Script(Error),
    Command(Error),
}

/// Temporary files in the sandbox for one command.
struct TempFiles<'a> {
    state: &'a SandboxMcpState,
    at: Place,
    paths: Vec<String>,
}

impl TempFiles<'_> {
    /// Writes the script, stdin and a command that is too long for a line. Returns the command for the
    /// shell, and the path of its stdin.
    fn prepare(
        &mut self,
        shell: &Shell,
        shell_command: &ShellCommand<'_>,
    ) -> Result<(String, Option<String>), CommandFailure> {
        if let Some((path, text)) = shell_command.script {
            self.write(path, text.as_bytes(), false).map_err(CommandFailure::Script)?;
        }
        let mut stdin = None;
        if let Some(bytes) = shell_command.stdin {
            let path = format!("/tmp/.mcp-stdin-{}", super::active::hex());
            self.write(&path, bytes, true).map_err(CommandFailure::Script)?;
            stdin = Some(path);
        }
        if !shell.needs_file(shell_command.command, shell_command.workdir) {
            return Ok((shell_command.command.to_owned(), stdin));
        }
        let path = format!("/tmp/.mcp-command-{}", super::active::hex());
        let bytes = shell_command.command.as_bytes();
        self.write(&path, bytes, true).map_err(CommandFailure::Command)?;
        Ok((format!(". {path}"), stdin))
    }

    fn write(&mut self, path: &str, mut bytes: &[u8], brief: bool) -> Result<()> {
        if brief {
            self.paths.push(path.to_owned());
        }
        let mode = if brief { 0o600 } else { 0o644 };
        self.state.api().file_write(&self.at, path.as_bytes(), mode, false, &mut bytes).map(drop)
    }
}

impl Drop for TempFiles<'_> {
    fn drop(&mut self) {
        for path in &self.paths {
            // Ignored: the sandbox may have ended meanwhile.
            let _ = self.state.api().file_remove(&self.at, path.as_bytes(), false);
        }
    }
}

/// Parses a timeout in seconds.
pub(super) fn limit(seconds: f64) -> Result<Duration> {
    if seconds <= 0.0 {
        return Err(Error::new(Kind::Invalid, format!("not a timeout: `{seconds}`"))
            .hint("it is a number of seconds greater than 0"));
    }
    Ok(Duration::from_secs_f64(seconds.min(LONGEST)))
}

/// The output of a command, as text for the result.
pub(super) fn shown(output: &CommandOutput) -> String {
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
