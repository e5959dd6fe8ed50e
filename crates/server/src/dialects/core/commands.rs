//! Tools that run commands: in a new sandbox, in an existing one, or in the background.

use super::sandboxes::NetworkAccess;
use super::{Core, MOST_TEXT};
use crate::dialect::ToolCall;
use crate::exec;
use msb_api::{CapturedOutput, LogFilter};
use msb_spec::{Bytes, Command, Ending, Error, Exit, ImageRef, Kind, Name, Result, Span, UserRef};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

const TIMEOUT: f64 = 120.0;
/// Longest wait of `exec_poll` in seconds: clients wait no longer for a result.
const MOST_WAITING: f64 = 60.0;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunArguments {
    command: Option<String>,
    code: Option<String>,
    language: Option<CodeLanguage>,
    image: Option<ImageRef>,
    stdin: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    network: Option<NetworkAccess>,
    memory: Option<Bytes>,
    timeout_seconds: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CodeLanguage {
    Python,
    Javascript,
    Bash,
}

impl CodeLanguage {
    /// A command that runs the code.
    fn argv(self, code: String) -> Vec<String> {
        let program = match self {
            Self::Python => ["python3", "-c"],
            Self::Javascript => ["node", "-e"],
            Self::Bash => ["bash", "-c"],
        };
        program.into_iter().map(str::to_owned).chain([code]).collect()
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExecArguments {
    sandbox: Name,
    command: String,
    workdir: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    user: Option<UserRef>,
    stdin: Option<String>,
    #[serde(default)]
    background: bool,
    timeout_seconds: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PollArguments {
    sandbox: Name,
    exec: u64,
    #[serde(default)]
    since: usize,
    #[serde(default)]
    wait_seconds: f64,
    stdin: Option<String>,
    signal: Option<PollSignal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum PollSignal {
    Hup = 1,
    Int = 2,
    Kill = 9,
    Term = 15,
}

impl Core {
    pub(super) fn run(&self, call: &ToolCall, arguments: RunArguments) -> Result<Value> {
        let mut spec = self.spec(arguments.image, arguments.network)?;
        spec.command = match (arguments.command, arguments.code) {
            (Some(command), None) => vec!["sh".to_owned(), "-c".to_owned(), command],
            (None, Some(code)) => arguments.language.unwrap_or(CodeLanguage::Python).argv(code),
            _ => {
                let text = "`run` needs either `command` or `code`";
                return Err(Error::invalid(text).hint("`code` goes with `language`"));
            }
        };
        spec.env = arguments.env;
        spec.memory = arguments.memory.or(spec.memory);
        spec.timeout = Some(span(arguments.timeout_seconds.unwrap_or(TIMEOUT))?);
        let (_, mut exec) = self.config.api.exec_run(&spec, call.watch.as_ref())?;
        let stdin = Some(arguments.stdin.unwrap_or_default().into_bytes());
        let captured = exec::finish(exec.as_mut(), stdin, MOST_TEXT, &call.cancel)?;
        Ok(ended(captured, None))
    }

    pub(super) fn exec(&self, call: &ToolCall, arguments: ExecArguments) -> Result<Value> {
        let name = &arguments.sandbox;
        let note = self.awake(name)?;
        let seconds = arguments.timeout_seconds.or((!arguments.background).then_some(TIMEOUT));
        let command = Command {
            argv: vec!["sh".to_owned(), "-c".to_owned(), arguments.command],
            env: arguments.env.into_iter().collect(),
            workdir: arguments.workdir,
            user: arguments.user,
            timeout: seconds.map(span).transpose()?,
            detached: arguments.background,
            ..Command::default()
        };
        let stdin = arguments.stdin.map(String::into_bytes);
        let api = self.config.api.as_ref();
        if !arguments.background {
            let captured = exec::run(api, name, command, stdin, MOST_TEXT, &call.cancel)?;
            return Ok(ended(captured, note));
        }
        let command = Command { stdin: msb_spec::Stdin::Streamed, ..command };
        let exec = api.exec_start(name, &command)?;
        let input = exec.input();
        if let Some(bytes) = stdin {
            input.write(&bytes)?;
        }
        input.detach()?;
        let note = "the command is running; exec_poll returns its output";
        Ok(json!({
            "exit_code": null, "stdout": "", "stderr": "",
            "exec": exec.id(), "running": true, "note": note,
        }))
    }

    pub(super) fn exec_poll(&self, call: &ToolCall, arguments: &PollArguments) -> Result<Value> {
        let PollArguments { sandbox, exec, .. } = arguments;
        let api = self.config.api.as_ref();
        if let Some(text) = &arguments.stdin {
            let attached = api.exec_attach(sandbox, *exec)?;
            attached.input().write(text.as_bytes())?;
        }
        if let Some(signal) = arguments.signal {
            api.exec_signal(sandbox, *exec, signal as i32)?;
        }
        let limit = span(arguments.wait_seconds.min(MOST_WAITING))?.0;
        let exit = exec::end(api, sandbox, *exec, limit, &call.cancel);
        let exit = exit.map_err(|error| match error.kind() {
            Kind::NotFound if error.advice().is_none() => {
                error.hint("`exec` with `background` returns the number")
            }
            _ => error,
        })?;
        let filter = LogFilter { exec: Some(*exec), ..LogFilter::default() };
        let mut log = api.sandbox_logs(sandbox, &filter)?;
        let mut bytes: Vec<u8> = log.more()?.into_iter().flat_map(|line| line.bytes).collect();
        bytes.extend(log.rest().into_iter().flat_map(|line| line.bytes));
        let mut note = None;
        let mut from = arguments.since;
        if from > bytes.len() {
            // The log is bounded, so its oldest part may be gone.
            (from, note) = (0, Some("the oldest output was dropped; this is the rest of it"));
        }
        let end = bytes.len().min(from + MOST_TEXT);
        if end < bytes.len() {
            note = Some("there is more output: poll again with `next`");
        }
        let mut answer = json!({
            "output": String::from_utf8_lossy(&bytes[from..end]),
            "next": end,
            "running": exit.is_none(),
            "exit_code": exit.map(|exit| exit.status()),
        });
        if let Some(note) = note {
            answer["note"] = json!(note);
        }
        Ok(answer)
    }
}

/// The result of a command that has ended.
fn ended(captured: CapturedOutput, note: Option<&str>) -> Value {
    let CapturedOutput { stdout, stderr, stdout_bytes, stderr_bytes, exit } = captured;
    let mut notes: Vec<String> = note.into_iter().map(str::to_owned).collect();
    for (name, kept, all) in [("stdout", &stdout, stdout_bytes), ("stderr", &stderr, stderr_bytes)]
    {
        if kept.len() as u64 != all {
            notes.push(format!(
                "{name} has {all} bytes, and only the first {} are shown; write it to a file and \
                 read that in parts",
                kept.len()
            ));
        }
    }
    notes.extend(reason(&exit));
    let mut answer = json!({
        "exit_code": exit.status(),
        "stdout": String::from_utf8_lossy(&stdout),
        "stderr": String::from_utf8_lossy(&stderr),
    });
    if !notes.is_empty() {
        answer["note"] = json!(notes.join("; "));
    }
    answer
}

fn reason(exit: &Exit) -> Option<String> {
    let reason = exit.reason()?;
    Some(match exit.ending {
        Ending::Timeout => {
            format!("{reason}: give more timeout_seconds, or run it in the background")
        }
        Ending::Memory => format!("{reason}: create a sandbox with more memory"),
        _ => reason.to_owned(),
    })
}

fn span(seconds: f64) -> Result<Span> {
    Duration::try_from_secs_f64(seconds)
        .map(Span)
        .map_err(|_| Error::invalid(format!("not a number of seconds: {seconds}")))
}
