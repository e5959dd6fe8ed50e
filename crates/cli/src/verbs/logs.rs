//! `msb logs`: what commands have said.

use crate::output::{self, Outcome};
use crate::target::{Target, runs};
use crate::verb_table::TargetVerb;
use crate::{clock, listing};
use clap::Parser;
use msb_api::{Api, LogFilter, LogLine, Source};
use msb_spec::{Error, Name};

/// Shows what commands have said, from the sandbox's own bounded log.
#[derive(Debug, Parser)]
#[command(override_usage = "msb logs [OPTIONS] NAME")]
pub(crate) struct LogsArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Go on as more is said, until the sandbox ends
    #[arg(long, short)]
    follow: bool,
    /// Only the last lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
    /// Only since a time (`10m` ago, or `2026-01-02T03:04:05Z`)
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only until a time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only lines that hold this text
    #[arg(long, value_name = "TEXT")]
    grep: Option<String>,
    /// Only the console, of the microVM or an init, and what msb itself says
    #[arg(long, conflicts_with = "source")]
    system: bool,
    /// Only this stream: stdout, stderr, system or all
    #[arg(long, value_name = "STREAM")]
    source: Option<String>,
    /// Only this command
    #[arg(long = "exec", value_name = "ID")]
    exec: Option<u64>,
    /// Put the time before each line
    #[arg(long, short = 't')]
    timestamps: bool,
    /// Print a JSON object for each line
    #[arg(long)]
    json: bool,
}

impl TargetVerb for LogsArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let name = Name::parse(&self.name)?;
        let asked = if self.system { Some("system") } else { self.source.as_deref() };
        let source = match asked {
            None | Some("all") => None,
            Some("stdout") => Some(Source::Stdout),
            Some("stderr") => Some(Source::Stderr),
            Some("system") => Some(Source::System),
            Some(other) => {
                let message = format!("no such stream: `{}`", other);
                let hint = "it is stdout, stderr, system or all";
                return Err(Error::invalid(message).hint(hint).into());
            }
        };
        let filter = LogFilter {
            exec: self.exec,
            source,
            since: self.since.as_deref().map(clock::moment).transpose()?,
            until: self.until.as_deref().map(clock::moment).transpose()?,
            grep: self.grep.clone(),
        };
        let mut reader = api.sandbox_logs(&name, &filter)?;
        // The kernel console is shown only with `--system`: it hides the output of commands.
        let wanted = |lines: Vec<LogLine>| -> Vec<LogLine> {
            let said = |line: &LogLine| asked.is_some() || line.source != Source::System;
            lines.into_iter().filter(said).collect()
        };
        let so_far = reader.more()?;
        let mut seen = so_far.len();
        let mut lines = wanted(so_far);
        if !self.follow {
            lines.extend(wanted(reader.rest()));
            // A line that was never ended belongs where it began.
            lines.sort_by_key(|line| line.time);
        }
        let skipped = self.tail.map_or(0, |tail| lines.len().saturating_sub(tail));
        self.show(&lines[skipped..]);
        tell_incomplete(&*api, &name);
        if !self.follow {
            return Ok(0);
        }
        loop {
            let running = runs(&*api, &name);
            // A server's lines come in pieces, which must not wait for each other.
            for _ in 0..PIECES {
                let came = reader.more()?;
                seen += came.len();
                if came.is_empty() {
                    break;
                }
                self.show(&wanted(came));
            }
            if !running {
                let last = match target {
                    Target::Local => reader.rest(),
                    Target::Remote(_) => unseen(&*api, &name, &filter, seen),
                };
                self.show(&wanted(last));
                return Ok(0);
            }
            if output::stdout_is_closed() {
                return Ok(0);
            }
            std::thread::sleep(target.interval());
        }
    }
}

/// Says that the worker could not write what commands have said, such as onto a full disk. It is
/// known as long as the sandbox runs.
fn tell_incomplete(api: &dyn Api, name: &Name) {
    let worker = api.sandbox_inspect(name).ok().and_then(|inspected| inspected.worker);
    if let Some(error) = worker.and_then(|worker| worker.log_failure) {
        output::note(format!("the log is incomplete, since it could not be written: {error}"));
        output::note("`msb df` shows what uses the disk, `msb prune` frees what nothing needs");
    }
}

/// Lines that are read at once while following.
const PIECES: usize = 64;

/// What a server had not sent yet when its sandbox ended, and lines that were never ended.
fn unseen(api: &dyn Api, name: &Name, filter: &LogFilter, seen: usize) -> Vec<LogLine> {
    // One that is removed with its end has nothing any more.
    let Ok(mut reader) = api.sandbox_logs(name, filter) else { return Vec::new() };
    let all = reader.more().unwrap_or_default();
    all.into_iter().skip(seen).chain(reader.rest()).collect()
}

impl LogsArgs {
    fn show(&self, lines: &[LogLine]) {
        let mut out = Vec::new();
        let mut before = None;
        for line in lines {
            if self.json {
                let value = serde_json::json!({
                    "time": clock::written(line.time),
                    "source": line.source,
                    "exec": line.exec,
                    "text": String::from_utf8_lossy(&line.bytes).trim_end_matches('\n'),
                });
                out.extend_from_slice(listing::safe(&value.to_string()).as_bytes());
                out.push(b'\n');
                continue;
            }
            // A line that was never ended does not run into another's; a long one stays whole.
            let from = (line.exec, line.source);
            if out.last().is_some_and(|byte| *byte != b'\n') && before != Some(from) {
                out.push(b'\n');
            }
            before = Some(from);
            if self.timestamps {
                out.extend_from_slice(clock::written(line.time).as_bytes());
                out.push(b' ');
            }
            match line.source {
                // Not a command's own words: nothing in it is for the terminal to obey.
                Source::System => {
                    let text = String::from_utf8_lossy(&line.bytes);
                    out.extend_from_slice(
                        listing::safe(text.trim_end_matches(['\r', '\n'])).as_bytes(),
                    );
                    out.push(b'\n');
                }
                _ => out.extend_from_slice(&line.bytes),
            }
        }
        if !out.is_empty() {
            output::write_stdout(&out);
        }
    }
}
