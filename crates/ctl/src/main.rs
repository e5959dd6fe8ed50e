//! `sandbox-ctl`: requests child sandboxes from the host, inside a sandbox.
//!
//! One request is one connection to the socket that the host mounts inside. The program decides
//! nothing: the spawn policy of the sandbox does.

mod args;
mod request;

use args::{CtlArgs, Verb};
use request::RequestError;
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let args = match CtlArgs::parse(&arguments) {
        Ok(args) => args,
        Err(args::ArgsError::Help) => return print(args::HELP),
        Err(args::ArgsError::Usage(what)) => {
            print_error(&format!("{what}\n{}", args::USAGE));
            return ExitCode::from(2);
        }
    };
    match request::send(&args.verb.request(), &mut |stream, bytes| write_output(stream, bytes)) {
        Ok(reply) if args.json => print(&format!("{reply}\n")),
        Ok(reply) => print_result(&args.verb, &reply["result"]),
        Err(RequestError::Refused(reply)) if args.json => {
            print(&format!("{reply}\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            print_error(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Prints a result for users.
fn print_result(verb: &Verb, result: &Value) -> ExitCode {
    let text = |key: &str| result[key].as_str().unwrap_or_default();
    match verb {
        Verb::Ping => print(&format!("ok (parent: {})\n", text("parent"))),
        Verb::Spawn { .. } => print(&format!("{}\n", text("name"))),
        Verb::Destroy { name } => print(&format!("{name}\n")),
        Verb::List => print(&table(result)),
        Verb::Exec { .. } | Verb::Run { .. } => print_output(&result["result"]),
    }
}

/// Prints the output of a command; its exit code becomes ours.
fn print_output(result: &Value) -> ExitCode {
    let line = |text: &str| match text {
        "" => String::new(),
        text if text.ends_with('\n') => text.to_owned(),
        text => format!("{text}\n"),
    };
    let _ = io::stdout().write_all(line(result["stdout"].as_str().unwrap_or_default()).as_bytes());
    for line_text in result["stderr"].as_str().unwrap_or_default().lines() {
        let _ = writeln!(io::stderr(), "[stderr] {line_text}");
    }
    let code = result["exit_code"].as_i64().unwrap_or(1);
    // A code that does not fit is still a failure.
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

fn table(result: &Value) -> String {
    let none = Vec::new();
    let children = result["children"].as_array().unwrap_or(&none);
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

/// Writes streamed output of a command at once.
fn write_output(stream: &str, bytes: &[u8]) -> io::Result<()> {
    match stream {
        "stderr" => io::stderr().write_all(bytes),
        _ => io::stdout().write_all(bytes).and_then(|()| io::stdout().flush()),
    }
}

fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        // A closed pipe is no error.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn print_error(what: &str) {
    let _ = writeln!(io::stderr(), "sandbox-ctl: {what}");
}
