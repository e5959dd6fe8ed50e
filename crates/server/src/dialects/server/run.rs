//! Code and commands are run.

use super::Server;
use super::asked::{Asked, Code, Line, sandbox_name};
use crate::repl::{Ask, Ended, LONGEST_LIMIT, Language, Lines, Ran, Stream, USUAL_LIMIT, Why};
use msb_api::ExecEvent;
use msb_spec::{Command, Error, Kind, Result, Span};
use serde_json::{Value, json};
use std::time::Duration;

const KILL: i32 = 9;

impl Server {
    /// Runs code in the interpreter of a sandbox.
    pub(crate) fn run_code(&self, asked: &Asked<'_>, code: &Code) -> Result<Value> {
        let sandbox = sandbox_name(&code.sandbox)?;
        let language = Language::parse(&code.language)
            .map_err(|error| error.under(format!("argument `language`: `{}`", code.language)))?;
        let view = self.view(asked.who, code.namespace.as_deref())?;
        let ran = self.repls.run(
            &view.api,
            &Ask {
                scope: &view.scope,
                sandbox: &sandbox,
                language,
                code: &code.code,
                limit: code.timeout.map(|timeout| timeout.0),
                cancel: asked.cancel,
            },
        )?;
        Ok(told(language, &ran))
    }

    /// Runs a command in a sandbox to its end.
    pub(crate) fn run_command(&self, asked: &Asked<'_>, line: &Line) -> Result<Value> {
        let sandbox = sandbox_name(&line.sandbox)?;
        if line.command.is_empty() {
            return Err(Error::invalid("argument `command`: there is no program"));
        }
        let view = self.view(asked.who, line.namespace.as_deref())?;
        let args = line.args.clone().unwrap_or_default();
        let argv = std::iter::once(&line.command).chain(&args).cloned().collect();
        let limit = line.timeout.map_or(USUAL_LIMIT, |timeout| timeout.0).min(LONGEST_LIMIT);
        let command = Command { argv, timeout: Some(Span(limit)), ..Command::default() };
        let mut exec = view.api.exec_start(&sandbox, &command)?;
        let killer = exec.input();
        let _hook = asked.cancel.when_cancelled(move || drop(killer.signal(KILL)));
        let mut lines = Lines::default();
        let exit = loop {
            match exec.next()? {
                Some(ExecEvent::Stdout(bytes)) => lines.push(Stream::Stdout, &bytes),
                Some(ExecEvent::Stderr(bytes)) => lines.push(Stream::Stderr, &bytes),
                Some(ExecEvent::Exited(exit)) => break exit,
                None => return Err(Error::new(Kind::Protocol, "the end was not told")),
            }
        };
        if let Some(reason) = exit.reason() {
            let after = match exit.ending {
                msb_spec::Ending::Timeout => format!(" after {}", seconds(limit)),
                _ => String::new(),
            };
            lines
                .push(Stream::Stderr, format!("\n[the command ended{after}: {reason}]").as_bytes());
        }
        Ok(json!({
            "command": line.command,
            "args": args,
            "exit_code": exit.status(),
            "success": exit.success(),
            "output": lines.finish(),
        }))
    }
}

/// What came of code.
fn told(language: Language, ran: &Ran) -> Value {
    let lost = "; what it had defined is lost, and the next call has a new interpreter";
    let (status, note) = match &ran.ended {
        Ended::Well => ("success", None),
        Ended::Thrown => ("exception", None),
        Ended::Interrupted(why) => ("error", Some(format!("{}, and was interrupted", words(*why)))),
        Ended::Killed(why) => ("error", Some(format!("{}, and was killed{lost}", words(*why)))),
        Ended::Crashed(how) => ("error", Some(format!("{how}{lost}"))),
    };
    let mut output = json!(ran.lines);
    if let (Some(note), Some(output)) = (note, output.as_array_mut()) {
        output.push(json!({"stream": Stream::Stderr, "text": format!("[{note}]")}));
    }
    json!({"status": status, "language": language.as_str(), "output": output})
}

fn words(why: Why) -> String {
    match why {
        Why::Timeout(limit) => format!("the code took longer than {}", seconds(limit)),
        Why::Cancelled => "nobody waited for the code any more".to_owned(),
    }
}

fn seconds(span: Duration) -> String {
    format!("{} s", span.as_secs_f64())
}
