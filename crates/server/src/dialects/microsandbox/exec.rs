//! Commands in a sandbox: run to completion, or started and polled.

use super::envelope::{Outcome, ToolFailure, ToolSuccess, Truncation};
use super::exec_sessions::NewExecSession;
use super::lifecycle::GRACE;
use super::selector::{named, shown};
use super::settings::milliseconds;
use super::{Microsandbox, read};
use crate::dialect::ToolCall;
use crate::exec;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use msb_api::{CapturedOutput, Status};
use msb_spec::{Command, Ending, Kind, Name, Rlimit, Span, Stdin, TermSize, UserRef};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// The default terminal size, for commands with a terminal that is not displayed.
pub(super) const TERMINAL: TermSize = TermSize { rows: 24, cols: 80 };
const STARTED: &str = "sandbox was started for this command and will be stopped afterward";

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ExecParams {
    name: String,
    command: String,
    args: Vec<String>,
    cwd: Option<String>,
    workdir: Option<String>,
    env: BTreeMap<String, String>,
    user: Option<String>,
    tty: bool,
    timeout: Option<f64>,
    timeout_ms: Option<u64>,
    rlimits: Vec<RlimitParams>,
    stdin: Option<String>,
    stdin_base64: Option<String>,
    max_bytes: Option<u64>,
    start_if_stopped: bool,
    keep_running: bool,
    treat_non_zero_as_error: bool,
    shell: Option<ShellChoice>,
    close_stdin: bool,
}

/// A resource limit in the format of this dialect.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct RlimitParams {
    resource: String,
    soft: u64,
    hard: Option<u64>,
}

impl RlimitParams {
    pub(super) fn limit(&self) -> Result<Rlimit, ToolFailure> {
        let name = self.resource.to_lowercase();
        let name = name.strip_prefix("rlimit_").unwrap_or(&name);
        let hard = self.hard.unwrap_or(self.soft);
        Ok(Rlimit::parse(&format!("{name}={}:{hard}", self.soft))?)
    }
}

/// The name of a shell, or whether to use one.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ShellChoice {
    Flag(bool),
    Program(String),
}

impl ExecParams {
    fn argv(&self, tool: &str) -> Vec<String> {
        let shell = match (&self.shell, tool) {
            (Some(ShellChoice::Program(program)), _) => Some(program.as_str()),
            (Some(ShellChoice::Flag(true)), _) | (None, "sandbox_shell") => Some("sh"),
            (Some(ShellChoice::Flag(false)) | None, _) => None,
        };
        let mut argv = match shell {
            Some(shell) => vec![shell.to_owned(), "-c".to_owned(), self.command.clone()],
            None => vec![self.command.clone()],
        };
        // With `sh -c`, the first argument is `$0`.
        if shell.is_some() && !self.args.is_empty() {
            argv.push("sh".to_owned());
        }
        argv.extend(self.args.iter().cloned());
        argv
    }

    fn limit(&self) -> Result<Option<Duration>, ToolFailure> {
        match (self.timeout_ms, self.timeout) {
            (Some(ms), _) => Ok(Some(Duration::from_millis(ms))),
            (None, Some(seconds)) if seconds > 0.0 => Duration::try_from_secs_f64(seconds)
                .map(Some)
                .map_err(|_| ToolFailure::new(format!("not a number of seconds: {seconds}"))),
            (None, _) => Ok(None),
        }
    }

    fn command(&self, tool: &str, limit: Option<Duration>) -> Result<Command, ToolFailure> {
        if self.command.is_empty() || self.command.contains('\0') {
            return Err(ToolFailure::new("command is empty or contains a zero byte"));
        }
        let mut env: Vec<(String, String)> = self.env.clone().into_iter().collect();
        if self.tty && !self.env.contains_key("TERM") {
            env.push(("TERM".to_owned(), "xterm".to_owned()));
        }
        Ok(Command {
            argv: self.argv(tool),
            env,
            workdir: self.cwd.clone().or_else(|| self.workdir.clone()),
            user: self.user.as_deref().map(UserRef::parse).transpose()?,
            stdin: Stdin::Closed,
            tty: self.tty.then_some(TERMINAL),
            timeout: limit.map(Span),
            rlimits: self.rlimits.iter().map(RlimitParams::limit).collect::<Result<_, _>>()?,
            detached: false,
            unlogged: false,
            origin: None,
        })
    }

    fn input(&self) -> Result<Option<Vec<u8>>, ToolFailure> {
        match (&self.stdin_base64, &self.stdin) {
            (Some(text), _) => decoded("stdinBase64", text).map(Some),
            (None, text) => Ok(text.as_ref().map(|text| text.clone().into_bytes())),
        }
    }
}

/// Decodes base64, with or without padding.
pub(super) fn decoded(argument: &str, text: &str) -> Result<Vec<u8>, ToolFailure> {
    let text: String = text.chars().filter(|it| !it.is_ascii_whitespace()).collect();
    let bare = text.trim_end_matches('=');
    base64::prelude::BASE64_STANDARD_NO_PAD
        .decode(bare)
        .map_err(|error| ToolFailure::new(format!("{argument} is not base64: {error}")))
}

pub(super) fn encoded(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// The result of starting a command.
type StartResult = msb_spec::Result<Box<dyn msb_api::Exec>>;

/// The sandbox of a command.
struct ExecTarget {
    name: Name,
    /// Whether it was started for this command only.
    stop_after: bool,
}

impl ExecTarget {
    fn warning(&self) -> Option<&'static str> {
        self.stop_after.then_some(STARTED)
    }
}

impl Microsandbox {
    /// The tools `sandbox_exec` and `sandbox_shell`.
    pub(super) fn sandbox_exec(&self, call: &ToolCall) -> Outcome {
        let params: ExecParams = read(call)?;
        let limit = params.limit()?.unwrap_or(self.settings.default_timeout);
        let mut command = params.command(&call.tool, Some(limit))?;
        let input = params.input()?;
        command.stdin = exec::stdin_of(input.as_ref());
        let (target, started) = self.start(&params, &command)?;
        let bytes = self.settings.limit(params.max_bytes);
        let api = self.config.api.as_ref();
        let captured = started
            .and_then(|mut started| exec::finish(started.as_mut(), input, bytes, &call.cancel));
        if target.stop_after {
            let _ = api.sandbox_stop(&target.name, GRACE);
        }
        let outcome = command_result(&captured?, limit, params.treat_non_zero_as_error)?;
        Ok(outcome.warning(target.warning()))
    }

    pub(super) fn sandbox_exec_start(&self, call: &ToolCall) -> Outcome {
        let params: ExecParams = read(call)?;
        let mut command = params.command(&call.tool, params.limit()?)?;
        command.stdin = Stdin::Streamed;
        let input = params.input()?;
        let target = self.ensure_running(&params)?;
        let start = || {
            let exec = self.config.api.exec_start(&target.name, &command)?;
            let started = NewExecSession {
                exec,
                stop: target.stop_after.then(|| target.name.clone()),
                keep: params.max_bytes.map(|bytes| self.settings.limit(Some(bytes))),
                strict: params.treat_non_zero_as_error,
                input: input.clone(),
                close: params.close_stdin,
            };
            self.sessions.add(started, &call.caller)
        };
        let started = start();
        if started.is_err() && target.stop_after {
            let _ = self.config.api.sandbox_stop(&target.name, GRACE);
        }
        let stop = target.stop_after.then_some(&target.name);
        let data = json!({
            "execSessionId": started?,
            "sandbox": target.name,
            "stopSandboxOnExit": stop,
        });
        Ok(ToolSuccess::new(data).warning(target.warning()))
    }

    /// Tries to start the command first: most sandboxes are running, and a status check would cost
    /// a
    /// fifth of the call.
    fn start(
        &self,
        params: &ExecParams,
        command: &Command,
    ) -> Result<(ExecTarget, StartResult), ToolFailure> {
        let (name, api) = (named(&params.name)?, self.config.api.as_ref());
        match api.exec_start(&name, command) {
            Err(error) if matches!(error.kind(), Kind::State | Kind::NotFound) => {
                let target = self.ensure_running(params)?;
                let started = api.exec_start(&target.name, command);
                Ok((target, started))
            }
            started => Ok((ExecTarget { name, stop_after: false }, started)),
        }
    }

    fn ensure_running(&self, params: &ExecParams) -> Result<ExecTarget, ToolFailure> {
        let name = named(&params.name)?;
        let status = self.config.api.sandbox_summary(&name)?.status;
        let stopped = matches!(status, Status::Stopped | Status::Crashed);
        if stopped && !params.start_if_stopped {
            let text = format!("sandbox {name} is not running: {}", shown(status));
            let hint = "sandbox_start starts it, or startIfStopped for this command alone";
            return Err(ToolFailure::new(text).detail("hint", hint));
        }
        // If another client was faster, that client stops it.
        let started = stopped && self.config.api.sandbox_start(&name)?;
        Ok(ExecTarget { name, stop_after: started && !params.keep_running })
    }
}

/// Output and exit of a command, as a result.
pub(super) fn command_result(captured: &CapturedOutput, limit: Duration, strict: bool) -> Outcome {
    let (data, truncated) = data(captured);
    if captured.exit.ending == Ending::Timeout {
        let text = format!("command timed out after {} ms", milliseconds(limit));
        return Err(ToolFailure::new(text).detailed(data).retryable());
    }
    if strict && !captured.exit.success() {
        let text = format!("command exited with status {}", captured.exit.status());
        return Err(ToolFailure::of("exec_failed", text).detailed(data));
    }
    let reason = captured.exit.reason();
    Ok(ToolSuccess::new(data).truncated(truncated).warning(reason))
}

fn data(captured: &CapturedOutput) -> (Value, Vec<Truncation>) {
    let stream = |bytes: &[u8], total: u64, field: &str| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        (text, Truncation::of(field, bytes.len(), total))
    };
    let (stdout, first) = stream(&captured.stdout, captured.stdout_bytes, "stdout");
    let (stderr, second) = stream(&captured.stderr, captured.stderr_bytes, "stderr");
    let data = json!({
        "stdout": stdout,
        "stderr": stderr,
        "exitCode": captured.exit.status(),
        "success": captured.exit.success(),
    });
    (data, first.into_iter().chain(second).collect())
}
