//! `sandbox-ctl`: asks the host for child sandboxes, from inside of one.
//!
//! One request is one connection to the socket that the host shows inside. It decides nothing: what
//! may be had is up to whoever made this sandbox.

mod asking;
mod words;

use asking::Failure;
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use words::{Asked, Verb};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let asked = match Asked::parse(&words) {
        Ok(asked) => asked,
        Err(words::Wrong::Help) => return show(words::HELP),
        Err(words::Wrong::Words(what)) => {
            complain(&format!("{what}\n{}", words::USAGE));
            return ExitCode::from(2);
        }
    };
    match asking::ask(&asked.verb.request(), &mut |stream, bytes| pass_on(stream, bytes)) {
        Ok(answer) if asked.json => show(&format!("{answer}\n")),
        Ok(answer) => told(&asked.verb, &answer["result"]),
        Err(Failure::Refused(answer)) if asked.json => {
            show(&format!("{answer}\n"));
            ExitCode::FAILURE
        }
        Err(failure) => {
            complain(&failure.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Shows an answer as people read it.
fn told(verb: &Verb, result: &Value) -> ExitCode {
    let text = |key: &str| result[key].as_str().unwrap_or_default();
    match verb {
        Verb::Ping => show(&format!("ok (parent: {})\n", text("parent"))),
        Verb::Spawn { .. } => show(&format!("{}\n", text("name"))),
        Verb::Destroy { name } => show(&format!("{name}\n")),
        Verb::List => show(&table(result)),
        Verb::Exec { .. } | Verb::Run { .. } => ended(&result["result"]),
    }
}

/// What a command has said, and its exit code as ours.
fn ended(result: &Value) -> ExitCode {
    let line = |text: &str| match text {
        "" => String::new(),
        text if text.ends_with('\n') => text.to_owned(),
        text => format!("{text}\n"),
    };
    let _ = io::stdout().write_all(line(result["stdout"].as_str().unwrap_or_default()).as_bytes());
    for said in result["stderr"].as_str().unwrap_or_default().lines() {
        let _ = writeln!(io::stderr(), "[stderr] {said}");
    }
    let code = result["exit_code"].as_i64().unwrap_or(1);
    // What no exit code can be is still no success.
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn table(result: &Value) -> String {
    let nobody = Vec::new();
    let children = result["children"].as_array().unwrap_or(&nobody);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let mut rows = vec![["NAME", "IMAGE", "CPUS", "MEM(MB)", "TTL"].map(str::to_owned)];
    for child in children {
        let left = match child["expires_at"].as_f64() {
            None => "-".to_owned(),
            Some(at) if at <= now => "expired".to_owned(),
            Some(at) => format!("{:.0}s", at - now),
        };
        let text = |key: &str| child[key].as_str().unwrap_or_default().to_owned();
        let number = |key: &str| child[key].to_string();
        rows.push([text("name"), text("image"), number("cpus"), number("memory_mb"), left]);
    }
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut table = String::new();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        table.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        table.push('\n');
    }
    table
}

/// What a command says, as it says it.
fn pass_on(stream: &str, bytes: &[u8]) -> io::Result<()> {
    match stream {
        "stderr" => io::stderr().write_all(bytes),
        _ => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
    }
}

fn show(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        // Nobody reads on, which is no mistake.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn complain(what: &str) {
    let _ = writeln!(io::stderr(), "sandbox-ctl: {what}");
}
