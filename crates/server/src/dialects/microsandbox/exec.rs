//! Commands in a sandbox: run to their end, or started and polled.

use super::envelope::{Done, Failure, Outcome, Truncation};
use super::lifecycle::GRACE;
use super::selector::{named, shown};
use super::sessions::Begun;
use super::settings::milliseconds;
use super::{Microsandbox, read};
use crate::dialect::Call;
use crate::exec;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use msb_api::{Captured, Status};
use msb_spec::{Command, Ending, Kind, Name, Rlimit, Span, Stdin, TermSize, UserRef};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// A terminal of the usual size, for programs that want one and nobody looks at.
pub(super) const TERMINAL: TermSize = TermSize { rows: 24, cols: 80 };
const STARTED: &str = "sandbox was started for this command and will be stopped afterward";

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
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
    rlimits: Vec<LimitAsked>,
    stdin: Option<String>,
    stdin_base64: Option<String>,
    max_bytes: Option<u64>,
    start_if_stopped: bool,
    keep_running: bool,
    treat_non_zero_as_error: bool,
    shell: Option<Shell>,
    close_stdin: bool,
}

/// A resource limit as this dialect writes it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct LimitAsked {
    resource: String,
    soft: u64,
    hard: Option<u64>,
}

impl LimitAsked {
    pub(super) fn limit(&self) -> Result<Rlimit, Failure> {
        let name = self.resource.to_lowercase();
        let name = name.strip_prefix("rlimit_").unwrap_or(&name);
        let hard = self.hard.unwrap_or(self.soft);
        Ok(Rlimit::parse(&format!("{name}={}:{hard}", self.soft))?)
    }
}

/// A shell by its name, or whether there is one.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Shell {
    Flag(bool),
    Program(String),
}

impl Asked {
    fn argv(&self, tool: &str) -> Vec<String> {
        let shell = match (&self.shell, tool) {
            (Some(Shell::Program(program)), _) => Some(program.as_str()),
            (Some(Shell::Flag(true)), _) | (None, "sandbox_shell") => Some("sh"),
            (Some(Shell::Flag(false)) | None, _) => None,
        };
        let mut argv = match shell {
            Some(shell) => vec![shell.to_owned(), "-c".to_owned(), self.command.clone()],
            None => vec![self.command.clone()],
        };
        // A script that is given arguments has a name as its first, as with `sh -c`.
        if shell.is_some() && !self.args.is_empty() {
            argv.push("sh".to_owned());
        }
        argv.extend(self.args.iter().cloned());
        argv
    }

    fn limit(&self) -> Result<Option<Duration>, Failure> {
        match (self.timeout_ms, self.timeout) {
            (Some(ms), _) => Ok(Some(Duration::from_millis(ms))),
            (None, Some(seconds)) if seconds > 0.0 => Duration::try_from_secs_f64(seconds)
                .map(Some)
                .map_err(|_| Failure::new(format!("not a number of seconds: {seconds}"))),
            (None, _) => Ok(None),
        }
    }

    fn command(&self, tool: &str, limit: Option<Duration>) -> Result<Command, Failure> {
        if self.command.is_empty() || self.command.contains('\0') {
            return Err(Failure::new("command is empty or holds a zero byte"));
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
            rlimits: self.rlimits.iter().map(LimitAsked::limit).collect::<Result<_, _>>()?,
            detached: false,
            unlogged: false,
            asker: None,
        })
    }

    fn input(&self) -> Result<Option<Vec<u8>>, Failure> {
        match (&self.stdin_base64, &self.stdin) {
            (Some(text), _) => decoded("stdinBase64", text).map(Some),
            (None, text) => Ok(text.as_ref().map(|text| text.clone().into_bytes())),
        }
    }
}

/// Bytes that came as base64, with or without its padding.
pub(super) fn decoded(argument: &str, text: &str) -> Result<Vec<u8>, Failure> {
    let text: String = text.chars().filter(|it| !it.is_ascii_whitespace()).collect();
    let bare = text.trim_end_matches('=');
    base64::prelude::BASE64_STANDARD_NO_PAD
        .decode(bare)
        .map_err(|error| Failure::new(format!("{argument} is not base64: {error}")))
}

pub(super) fn encoded(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// What came of starting a command.
type Started = msb_spec::Result<Box<dyn msb_api::Exec>>;

/// A sandbox that a command is to run in.
struct Opened {
    name: Name,
    /// Whether it was started for that alone.
    stop_after: bool,
}

impl Opened {
    fn warning(&self) -> Option<&'static str> {
        self.stop_after.then_some(STARTED)
    }
}

impl Microsandbox {
    /// `sandbox_exec` and `sandbox_shell`.
    pub(super) fn sandbox_exec(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let limit = asked.limit()?.unwrap_or(self.settings.default_timeout);
        let mut command = asked.command(&call.tool, Some(limit))?;
        let input = asked.input()?;
        command.stdin = exec::stdin_of(input.as_ref());
        let (opened, begun) = self.begin(&asked, &command)?;
        let bytes = self.settings.limit(asked.max_bytes);
        let api = self.world.api.as_ref();
        let captured =
            begun.and_then(|mut begun| exec::finish(begun.as_mut(), input, bytes, &call.cancel));
        if opened.stop_after {
            let _ = api.sandbox_stop(&opened.name, GRACE);
        }
        let outcome = said(&captured?, limit, asked.treat_non_zero_as_error)?;
        Ok(outcome.warning(opened.warning()))
    }

    pub(super) fn sandbox_exec_start(&self, call: &Call) -> Outcome {
        let asked: Asked = read(call)?;
        let mut command = asked.command(&call.tool, asked.limit()?)?;
        command.stdin = Stdin::Streamed;
        let input = asked.input()?;
        let opened = self.open(&asked)?;
        let begin = || {
            let exec = self.world.api.exec_start(&opened.name, &command)?;
            let begun = Begun {
                exec,
                stop: opened.stop_after.then(|| opened.name.clone()),
                keep: asked.max_bytes.map(|bytes| self.settings.limit(Some(bytes))),
                strict: asked.treat_non_zero_as_error,
                input: input.clone(),
                close: asked.close_stdin,
            };
            self.sessions.add(begun, &call.who)
        };
        let begun = begin();
        if begun.is_err() && opened.stop_after {
            let _ = self.world.api.sandbox_stop(&opened.name, GRACE);
        }
        let stop = opened.stop_after.then_some(&opened.name);
        let data = json!({
            "execSessionId": begun?,
            "sandbox": opened.name,
            "stopSandboxOnExit": stop,
        });
        Ok(Done::new(data).warning(opened.warning()))
    }

    /// Most sandboxes run, and a look at each before its command costs a fifth of the call.
    fn begin(&self, asked: &Asked, command: &Command) -> Result<(Opened, Started), Failure> {
        let (name, api) = (named(&asked.name)?, self.world.api.as_ref());
        match api.exec_start(&name, command) {
            Err(error) if matches!(error.kind(), Kind::State | Kind::NotFound) => {
                let opened = self.open(asked)?;
                let begun = api.exec_start(&opened.name, command);
                Ok((opened, begun))
            }
            begun => Ok((Opened { name, stop_after: false }, begun)),
        }
    }

    fn open(&self, asked: &Asked) -> Result<Opened, Failure> {
        let name = named(&asked.name)?;
        let status = self.world.api.sandbox_summary(&name)?.status;
        let stopped = matches!(status, Status::Stopped | Status::Crashed);
        if stopped && !asked.start_if_stopped {
            let text = format!("sandbox {name} is not running: {}", shown(status));
            let hint = "sandbox_start starts it, or startIfStopped for this command alone";
            return Err(Failure::new(text).detail("hint", hint));
        }
        // Somebody else may have been faster; then it is theirs to stop.
        let started = stopped && self.world.api.sandbox_start(&name)?;
        Ok(Opened { name, stop_after: started && !asked.keep_running })
    }
}

/// What a command said and how it ended.
pub(super) fn said(captured: &Captured, limit: Duration, strict: bool) -> Outcome {
    let (data, truncated) = data(captured);
    if captured.exit.ending == Ending::Timeout {
        let text = format!("command timed out after {} ms", milliseconds(limit));
        return Err(Failure::new(text).detailed(data).retryable());
    }
    if strict && !captured.exit.success() {
        let text = format!("command exited with status {}", captured.exit.status());
        return Err(Failure::of("exec_failed", text).detailed(data));
    }
    let reason = captured.exit.reason();
    Ok(Done::new(data).truncated(truncated).warning(reason))
}

fn data(captured: &Captured) -> (Value, Vec<Truncation>) {
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
