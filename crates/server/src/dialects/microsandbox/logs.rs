//! Log lines of commands and events of their sandbox.
//!
//! Logs are bounded and drop their oldest lines, so a cursor identifies a line by time, stream and
//! Exec, not by position. If its line was dropped, reading continues after its time.

use super::envelope::{Outcome, ToolFailure, ToolSuccess, Truncation, cut};
use super::selector::named;
use super::{Microsandbox, labels, read};
use crate::dialect::ToolCall;
use msb_api::{EventKind, LogFilter, LogLine, LogStream, Source, Summary};
use msb_spec::clock;
use msb_spec::{Ending, HealthStatus, Name};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Default number of entries in one result.
const DEFAULT_ENTRIES: usize = 100;
/// Most entries of `sandbox_logs_read`, which has no cursor to continue from.
const MOST_ENTRIES: usize = 10_000;
/// How often a followed log is read.
const POLL: Duration = Duration::from_millis(50);

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LogParams {
    name: String,
    tail: Option<usize>,
    since: Option<String>,
    until: Option<String>,
    sources: Vec<LogSource>,
    grep: Option<String>,
    session_ids: Option<BTreeSet<u64>>,
    max_bytes: Option<u64>,
    from_cursor: Option<String>,
    follow: bool,
    follow_timeout_ms: u64,
    limit: Option<usize>,
}

/// The source of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LogSource {
    Stdout,
    Stderr,
    /// Output of a command with a terminal.
    Output,
    System,
    All,
}

impl LogSource {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Output => "output",
            Self::System | Self::All => "system",
        }
    }
}

/// One entry of a log.
#[derive(Debug, Clone)]
struct LogEntry {
    time: u64,
    from: LogSource,
    /// The id of the Exec; none for the sandbox itself.
    exec: Option<u64>,
    bytes: Vec<u8>,
    cursor: String,
}

impl LogParams {
    fn takes(&self, entry: &LogEntry) -> bool {
        let from_source = match self.sources.as_slice() {
            [] => entry.from != LogSource::System,
            sources => sources.contains(&LogSource::All) || sources.contains(&entry.from),
        };
        let of_session = |ids: &BTreeSet<u64>| entry.exec.is_some_and(|id| ids.contains(&id));
        from_source && self.session_ids.as_ref().is_none_or(of_session)
    }

    fn filter(&self) -> Result<LogFilter, ToolFailure> {
        let time = |text: &Option<String>| match text.as_deref().filter(|it| !it.is_empty()) {
            None => Ok(None),
            Some(text) => match clock::read(text) {
                Some(ms) => Ok(Some(u64::try_from(ms).unwrap_or(0))),
                None => Err(ToolFailure::new(format!("invalid date: {text}"))),
            },
        };
        Ok(LogFilter {
            since: time(&self.since)?,
            // Their limit is exclusive, ours is inclusive.
            until: time(&self.until)?.map(|until| until.saturating_sub(1)),
            ..LogFilter::default()
        })
    }
}

/// Reads the entries of one sandbox.
struct LogReader<'a> {
    dialect: &'a Microsandbox,
    name: Name,
    params: LogParams,
    filter: LogFilter,
    sandbox: Summary,
    lines: Box<dyn LogStream>,
    /// Number of lines seen for each millisecond, stream and Exec.
    seen: BTreeMap<(u64, LogSource, Option<u64>), u32>,
}

impl<'a> LogReader<'a> {
    fn new(dialect: &'a Microsandbox, params: LogParams) -> Result<Self, ToolFailure> {
        let name = named(&params.name)?;
        let sandbox = dialect.config.api.sandbox_summary(&name)?;
        let filter = params.filter()?;
        let lines = dialect.config.api.sandbox_logs(&name, &filter)?;
        let seen = BTreeMap::new();
        Ok(Self { dialect, name, params, filter, sandbox, lines, seen })
    }

    /// All entries so far; with `rest`, unfinished lines as well.
    fn all(&mut self, rest: bool) -> Result<Vec<LogEntry>, ToolFailure> {
        let mut lines = self.lines.more()?;
        if rest {
            lines.extend(self.lines.rest());
        }
        let mut entries = self.entries(lines)?;
        let from = entries.len();
        entries.extend(self.happened()?);
        // Lines and events are two sequences, so they are merged by time.
        if entries.len() > from {
            entries.sort_by_key(|entry| entry.time);
        }
        Ok(entries)
    }

    /// New entries since the last call.
    fn more(&mut self) -> Result<Vec<LogEntry>, ToolFailure> {
        let lines = self.lines.more()?;
        self.entries(lines)
    }

    fn entries(&mut self, lines: Vec<LogLine>) -> Result<Vec<LogEntry>, ToolFailure> {
        if lines.is_empty() {
            return Ok(Vec::new());
        }
        let execs = self.dialect.config.api.exec_list(&self.name)?;
        let terminals: BTreeSet<u64> =
            execs.iter().filter(|exec| exec.tty).map(|exec| exec.id).collect();
        let entry = |line: LogLine| {
            let from = match line.source {
                Source::System => LogSource::System,
                _ if terminals.contains(&line.exec) => LogSource::Output,
                Source::Stdout => LogSource::Stdout,
                Source::Stderr => LogSource::Stderr,
            };
            let exec = Some(line.exec).filter(|_| from != LogSource::System);
            (line.time, from, exec, line.bytes)
        };
        Ok(lines.into_iter().map(entry).map(|it| self.entry(it)).collect())
    }

    fn entry(&mut self, line: (u64, LogSource, Option<u64>, Vec<u8>)) -> LogEntry {
        let (time, from, exec, bytes) = line;
        let count = self.seen.entry((time, from, exec)).or_insert(0);
        let nth = std::mem::replace(count, *count + 1);
        let cursor = format!("{time}-{}-{}-{nth}", from.name(), exec.unwrap_or(0));
        LogEntry { time, from, exec, bytes, cursor }
    }

    /// Events of the sandbox, at the log level of its creator.
    fn happened(&mut self) -> Result<Vec<LogEntry>, ToolFailure> {
        let system = [LogSource::System, LogSource::All];
        if !self.params.sources.iter().any(|from| system.contains(from)) {
            return Ok(Vec::new());
        }
        if labels::of(&self.sandbox, labels::QUIET).is_some() {
            return Ok(Vec::new());
        }
        let level = labels::of(&self.sandbox, labels::LOG_LEVEL).and_then(level).unwrap_or(INFO);
        let events = self.dialect.config.api.sandbox_events(&self.name)?.more()?;
        let (since, until) = (self.filter.since.unwrap_or(0), self.filter.until);
        let lines: Vec<_> = events
            .into_iter()
            .filter(|event| !event.happened.is_of_exec())
            .filter(|event| event.time >= since && until.is_none_or(|until| event.time <= until))
            .map(|event| (event.time, describe_event(&event.happened)))
            .filter(|(_, (weight, _))| *weight <= level)
            .map(|(time, (_, text))| {
                (time, LogSource::System, None, format!("{text}\n").into_bytes())
            })
            .collect();
        Ok(lines.into_iter().map(|it| self.entry(it)).collect())
    }

    fn matches(&self, entry: &LogEntry) -> bool {
        let held = |text: &String| String::from_utf8_lossy(&entry.bytes).contains(text.as_str());
        self.params.takes(entry) && self.params.grep.as_ref().is_none_or(held)
    }
}

const INFO: usize = 2;

fn level(name: &str) -> Option<usize> {
    ["error", "warn", "info", "debug", "trace"].iter().position(|level| *level == name)
}

/// Log level and text of an event.
fn describe_event(happened: &EventKind) -> (usize, String) {
    const ERROR: usize = 0;
    const WARN: usize = 1;
    const DEBUG: usize = 3;
    match happened {
        EventKind::Started { worker } => (INFO, format!("started, worker {worker}")),
        EventKind::Draining => (INFO, "draining".to_owned()),
        EventKind::Paused { .. } => (INFO, "paused".to_owned()),
        EventKind::Resumed { .. } => (INFO, "resumed".to_owned()),
        EventKind::Disconnected => (ERROR, "its gateway has ended".to_owned()),
        EventKind::Restarted { exit, .. } => {
            (WARN, format!("its command ended with {} and was restarted", exit.status()))
        }
        EventKind::Health { status, .. } => {
            let weight = if *status == HealthStatus::Unhealthy { WARN } else { INFO };
            (weight, status.as_str().to_owned())
        }
        EventKind::Repaired => (WARN, "cleaned up after its worker died".to_owned()),
        EventKind::Stopped { ending, .. } => {
            let weight = match ending {
                Ending::Crashed | Ending::Panicked => ERROR,
                Ending::Memory | Ending::MaxDuration | Ending::Idle => WARN,
                _ => INFO,
            };
            (weight, format!("stopped: {}", ending.reason().unwrap_or("it ended by itself")))
        }
        // Creation, and events without a text here.
        other => {
            let event = serde_json::to_value(other).unwrap_or_default();
            (DEBUG, event["event"].as_str().unwrap_or_default().replace('_', " "))
        }
    }
}

/// The entries after a cursor.
fn after_cursor(entries: Vec<LogEntry>, cursor: Option<&str>) -> Vec<LogEntry> {
    let Some(cursor) = cursor else {
        return entries;
    };
    if let Some(at) = entries.iter().position(|entry| entry.cursor == cursor) {
        return entries.into_iter().skip(at + 1).collect();
    }
    let time = cursor.split('-').next().and_then(|time| time.parse().ok()).unwrap_or(0);
    entries.into_iter().filter(|entry| entry.time > time).collect()
}

impl Microsandbox {
    pub(super) fn sandbox_logs_read(&self, call: &ToolCall) -> Outcome {
        let mut reading = LogReader::new(self, read(call)?)?;
        let entries = reading.all(true)?;
        let last = entries.last().map(|entry| entry.cursor.clone());
        let matching: Vec<LogEntry> =
            entries.into_iter().filter(|it| reading.matches(it)).collect();
        let tail = reading.params.tail.unwrap_or(MOST_ENTRIES).min(MOST_ENTRIES);
        let from = matching.len().saturating_sub(tail);
        let dropped = from > 0 && reading.params.tail.is_none();
        let warning = dropped.then(|| format!("only the last {MOST_ENTRIES} entries are shown"));
        let done = self.entries(&matching[from..], last.as_deref(), reading.params.max_bytes);
        Ok(done.warning(warning))
    }

    pub(super) fn sandbox_logs_stream(&self, call: &ToolCall) -> Outcome {
        let mut reading = LogReader::new(self, read(call)?)?;
        let until = Instant::now() + Duration::from_millis(reading.params.follow_timeout_ms);
        let limit = reading.params.limit.unwrap_or(DEFAULT_ENTRIES);
        let follow = reading.params.follow;
        let mut cursor = reading.params.from_cursor.clone();
        let mut found = Vec::new();
        let mut fresh = after_cursor(reading.all(!follow)?, cursor.as_deref());
        loop {
            for entry in fresh {
                if found.len() >= limit {
                    break;
                }
                cursor = Some(entry.cursor.clone());
                if reading.matches(&entry) {
                    found.push(entry);
                }
            }
            let over = !follow || !found.is_empty() || Instant::now() >= until;
            if over || call.cancel.is_cancelled() {
                break;
            }
            std::thread::sleep(POLL.min(until.saturating_duration_since(Instant::now())));
            fresh = reading.more()?;
        }
        Ok(self.entries(&found, cursor.as_deref(), reading.params.max_bytes))
    }

    fn entries(&self, entries: &[LogEntry], cursor: Option<&str>, max: Option<u64>) -> ToolSuccess {
        let limit = self.settings.limit(max);
        let mut truncated: Vec<Truncation> = Vec::new();
        let shown: Vec<Value> = entries
            .iter()
            .enumerate()
            .map(|(at, entry)| {
                let (text, cut) = cut(&entry.bytes, limit, &format!("entries.{at}.text"));
                truncated.extend(cut);
                json!({
                    "timestamp": clock::written(entry.time),
                    "source": entry.from.name(),
                    "sessionId": entry.exec,
                    "text": text,
                    "cursor": entry.cursor,
                })
            })
            .collect();
        ToolSuccess::new(json!({"entries": shown, "nextCursor": cursor})).truncated(truncated)
    }
}
