//! Runs code and commands.

use super::Server;
use super::args::{CallContext, RunCodeArgs, RunCommandArgs, sandbox_name};
use super::start::isolation_reason;
use crate::repl::{
    CodeEnd, CodeRequest, CodeResult, InterruptReason, LONGEST_LIMIT, Language, OutputLines,
    OutputStream, USUAL_LIMIT,
};
use msb_api::{Api, ExecEvent};
use msb_spec::{Command, Error, Kind, Name, Result, Span};
use msb_sys::signal::SIGKILL as KILL;
use serde_json::{Value, json};
use std::time::Duration;

impl Server {
    /// Runs code in the interpreter of a sandbox.
    pub(crate) fn run_code(&self, context: &CallContext<'_>, code: &RunCodeArgs) -> Result<Value> {
        let sandbox = sandbox_name(&code.sandbox)?;
        let language = Language::parse(&code.language)
            .map_err(|error| error.under(format!("argument `language`: `{}`", code.language)))?;
        let view = self.view(context, code.namespace.as_deref())?;
        let result = self.interpreters.run(
            &view.api,
            &CodeRequest {
                scope: &view.scope,
                sandbox: &sandbox,
                language,
                code: &code.code,
                limit: code.timeout.map(|timeout| timeout.0),
                cancel: context.cancel,
                origin: &context.origin,
            },
        )?;
        Ok(with_isolation(code_result(language, &result), view.api.as_ref(), &sandbox))
    }

    /// Runs a command in a sandbox and waits for its end.
    pub(crate) fn run_command(
        &self,
        context: &CallContext<'_>,
        line: &RunCommandArgs,
    ) -> Result<Value> {
        let sandbox = sandbox_name(&line.sandbox)?;
        if line.command.is_empty() {
            return Err(Error::invalid("argument `command`: there is no program"));
        }
        let view = self.view(context, line.namespace.as_deref())?;
        let args = line.args.clone().unwrap_or_default();
        let argv = std::iter::once(&line.command).chain(&args).cloned().collect();
        let limit = line.timeout.map_or(USUAL_LIMIT, |timeout| timeout.0).min(LONGEST_LIMIT);
        let command = Command { argv, timeout: Some(Span(limit)), ..Command::default() };
        let mut exec = view.api.exec_start(&sandbox, &command)?;
        let killer = exec.input();
        let _hook = context.cancel.when_cancelled(move || drop(killer.signal(KILL)));
        let mut lines = OutputLines::default();
        let exit = loop {
            match exec.next()? {
                Some(ExecEvent::Stdout(bytes)) => lines.push(OutputStream::Stdout, &bytes),
                Some(ExecEvent::Stderr(bytes)) => lines.push(OutputStream::Stderr, &bytes),
                Some(ExecEvent::Exited(exit)) => break exit,
                None => {
                    return Err(Error::new(
                        Kind::Protocol,
                        "the exit status of the command is missing",
                    ));
                }
            }
        };
        if let Some(reason) = exit.reason() {
            let after = match exit.ending {
                msb_spec::Ending::Timeout => format!(" after {}", format_seconds(limit)),
                _ => String::new(),
            };
            lines.push(
                OutputStream::Stderr,
                format!("\n[the command ended{after}: {reason}]").as_bytes(),
            );
        }
        let result = json!({
            "command": line.command,
            "args": args,
            "exit_code": exit.status(),
            "success": exit.success(),
            "output": lines.finish(),
        });
        Ok(with_isolation(result, view.api.as_ref(), &sandbox))
    }
}

/// Adds the reason why the sandbox is not a microVM, if there is one.
fn with_isolation(mut result: Value, api: &dyn Api, sandbox: &Name) -> Value {
    if let Some(reason) = isolation_reason(api, sandbox) {
        result["isolation_reason"] = json!(reason);
    }
    result
}

/// The result of running code, as JSON.
fn code_result(language: Language, result: &CodeResult) -> Value {
    let lost = "; its definitions are lost, and the next call starts a new interpreter";
    let (status, note) = match &result.ended {
        CodeEnd::Succeeded => ("success", None),
        CodeEnd::Thrown => ("exception", None),
        CodeEnd::Interrupted(why) => {
            ("error", Some(format!("{}, and was interrupted", describe_interrupt(*why))))
        }
        CodeEnd::Killed(why) => {
            ("error", Some(format!("{}, and was killed{lost}", describe_interrupt(*why))))
        }
        CodeEnd::Crashed(how) => ("error", Some(format!("{how}{lost}"))),
    };
    let mut output = json!(result.lines);
    if let (Some(note), Some(output)) = (note, output.as_array_mut()) {
        output.push(json!({"stream": OutputStream::Stderr, "text": format!("[{note}]")}));
    }
    json!({"status": status, "language": language.as_str(), "output": output})
}

fn describe_interrupt(why: InterruptReason) -> String {
    match why {
        InterruptReason::Timeout(limit) => {
            format!("the code took longer than {}", format_seconds(limit))
        }
        InterruptReason::Cancelled => "the call was cancelled".to_owned(),
    }
}

fn format_seconds(span: Duration) -> String {
    format!("{} s", span.as_secs_f64())
}
