//! What commands have said and what happened to their sandbox, line by line.
//!
//! Logs are bounded files that lose their oldest lines, so a cursor names a line by what it is, not by
//! its place. One whose line is gone goes on behind its time.

use super::envelope::{Done, Failure, Outcome, Truncation, cut};
use super::selector::named;
use super::{Microsandbox, labels, read};
use crate::dialect::Call;
use msb_api::{Happened, LogFilter, LogLine, LogStream, Source, Summary};
use msb_spec::clock;
use msb_spec::{Ending, HealthStatus, Name};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Entries in one answer where the call does not say.
const USUAL: usize = 100;
/// Entries in one answer of `sandbox_logs_read`, which has no cursor to go on from.
const MOST: usize = 10_000;
/// How often a log is looked at that somebody waits for.
const LOOK: Duration = Duration::from_millis(50);

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Asked {
    name: String,
    tail: Option<usize>,
    since: Option<String>,
    until: Option<String>,
    sources: Vec<From>,
    grep: Option<String>,
    session_ids: Option<BTreeSet<u64>>,
    max_bytes: Option<u64>,
    from_cursor: Option<String>,
    follow: bool,
    follow_timeout_ms: u64,
    limit: Option<usize>,
}

/// Where an entry comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
enum From {
    Stdout,
    Stderr,
    /// What a command with a terminal says.
    Output,
    System,
    All,
}

impl From {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Output => "output",
            Self::System | Self::All => "system",
        }
    }
}

/// One line.
#[derive(Debug, Clone)]
struct Entry {
    time: u64,
    from: From,
    /// The Exec; none is the sandbox itself.
    exec: Option<u64>,
    bytes: Vec<u8>,
    cursor: String,
}

impl Asked {
    fn takes(&self, entry: &Entry) -> bool {
        let wanted = match self.sources.as_slice() {
            [] => entry.from != From::System,
            sources => sources.contains(&From::All) || sources.contains(&entry.from),
        };
        let of_session = |ids: &BTreeSet<u64>| entry.exec.is_some_and(|id| ids.contains(&id));
        wanted && self.session_ids.as_ref().is_none_or(of_session)
    }

    fn filter(&self) -> Result<LogFilter, Failure> {
        let time = |text: &Option<String>| match text.as_deref().filter(|it| !it.is_empty()) {
            None => Ok(None),
            Some(text) => match clock::read(text) {
                Some(ms) => Ok(Some(u64::try_from(ms).unwrap_or(0))),
                None => Err(Failure::new(format!("invalid date: {text}"))),
            },
        };
        Ok(LogFilter {
            since: time(&self.since)?,
            // Theirs is before that time, ours is up to it.
            until: time(&self.until)?.map(|until| until.saturating_sub(1)),
            ..LogFilter::default()
        })
    }
}

/// Reads the entries of one sandbox.
struct Reading<'a> {
    dialect: &'a Microsandbox,
    name: Name,
    asked: Asked,
    filter: LogFilter,
    sandbox: Summary,
    lines: Box<dyn LogStream>,
    /// How many lines of each millisecond, stream and Exec there were.
    seen: BTreeMap<(u64, From, Option<u64>), u32>,
}

impl<'a> Reading<'a> {
    fn new(dialect: &'a Microsandbox, asked: Asked) -> Result<Self, Failure> {
        let name = named(&asked.name)?;
        let sandbox = dialect.world.api.sandbox_summary(&name)?;
        let filter = asked.filter()?;
        let lines = dialect.world.api.sandbox_logs(&name, &filter)?;
        let seen = BTreeMap::new();
        Ok(Self { dialect, name, asked, filter, sandbox, lines, seen })
    }

    /// Everything that was said so far; what has no line end too, if nothing is waited for.
    fn all(&mut self, rest: bool) -> Result<Vec<Entry>, Failure> {
        let mut lines = self.lines.more()?;
        if rest {
            lines.extend(self.lines.rest());
        }
        let mut entries = self.entries(lines)?;
        let from = entries.len();
        entries.extend(self.happened()?);
        // Lines come as they are finished, events by themselves.
        if entries.len() > from {
            entries.sort_by_key(|entry| entry.time);
        }
        Ok(entries)
    }

    /// What was said since.
    fn more(&mut self) -> Result<Vec<Entry>, Failure> {
        let lines = self.lines.more()?;
        self.entries(lines)
    }

    fn entries(&mut self, lines: Vec<LogLine>) -> Result<Vec<Entry>, Failure> {
        if lines.is_empty() {
            return Ok(Vec::new());
        }
        let execs = self.dialect.world.api.exec_list(&self.name)?;
        let terminals: BTreeSet<u64> =
            execs.iter().filter(|exec| exec.tty).map(|exec| exec.id).collect();
        let entry = |line: LogLine| {
            let from = match line.source {
                Source::System => From::System,
                _ if terminals.contains(&line.exec) => From::Output,
                Source::Stdout => From::Stdout,
                Source::Stderr => From::Stderr,
            };
            let exec = Some(line.exec).filter(|_| from != From::System);
            (line.time, from, exec, line.bytes)
        };
        Ok(lines.into_iter().map(entry).map(|it| self.entry(it)).collect())
    }

    fn entry(&mut self, line: (u64, From, Option<u64>, Vec<u8>)) -> Entry {
        let (time, from, exec, bytes) = line;
        let count = self.seen.entry((time, from, exec)).or_insert(0);
        let nth = std::mem::replace(count, *count + 1);
        let cursor = format!("{time}-{}-{}-{nth}", from.name(), exec.unwrap_or(0));
        Entry { time, from, exec, bytes, cursor }
    }

    /// What happened to the sandbox, as far as its maker wants to know it.
    fn happened(&mut self) -> Result<Vec<Entry>, Failure> {
        let system = [From::System, From::All];
        if !self.asked.sources.iter().any(|from| system.contains(from)) {
            return Ok(Vec::new());
        }
        if labels::of(&self.sandbox, labels::QUIET).is_some() {
            return Ok(Vec::new());
        }
        let level = labels::of(&self.sandbox, labels::LOG_LEVEL).and_then(level).unwrap_or(INFO);
        let events = self.dialect.world.api.sandbox_events(&self.name)?.more()?;
        let (since, until) = (self.filter.since.unwrap_or(0), self.filter.until);
        let lines: Vec<_> = events
            .into_iter()
            .filter(|event| !event.happened.is_of_exec())
            .filter(|event| event.time >= since && until.is_none_or(|until| event.time <= until))
            .map(|event| (event.time, told(&event.happened)))
            .filter(|(_, (weight, _))| *weight <= level)
            .map(|(time, (_, text))| (time, From::System, None, format!("{text}\n").into_bytes()))
            .collect();
        Ok(lines.into_iter().map(|it| self.entry(it)).collect())
    }

    fn wanted(&self, entry: &Entry) -> bool {
        let held = |text: &String| String::from_utf8_lossy(&entry.bytes).contains(text.as_str());
        self.asked.takes(entry) && self.asked.grep.as_ref().is_none_or(held)
    }
}

const INFO: usize = 2;

fn level(name: &str) -> Option<usize> {
    ["error", "warn", "info", "debug", "trace"].iter().position(|level| *level == name)
}

/// How weighty something is, and what it is in words.
fn told(happened: &Happened) -> (usize, String) {
    const ERROR: usize = 0;
    const WARN: usize = 1;
    const DEBUG: usize = 3;
    match happened {
        Happened::Started { worker } => (INFO, format!("started, worker {worker}")),
        Happened::Draining => (INFO, "draining".to_owned()),
        Happened::Paused { .. } => (INFO, "paused".to_owned()),
        Happened::Resumed { .. } => (INFO, "resumed".to_owned()),
        Happened::Disconnected => (ERROR, "its gateway has ended".to_owned()),
        Happened::Restarted { exit, .. } => {
            (WARN, format!("its command ended with {} and was begun again", exit.status()))
        }
        Happened::Health { status, .. } => {
            let weight = if *status == HealthStatus::Unhealthy { WARN } else { INFO };
            (weight, status.as_str().to_owned())
        }
        Happened::Repaired => (WARN, "cleaned up behind a worker that died".to_owned()),
        Happened::Stopped { ending, .. } => {
            let weight = match ending {
                Ending::Crashed | Ending::Panicked => ERROR,
                Ending::Memory | Ending::MaxDuration | Ending::Idle => WARN,
                _ => INFO,
            };
            (weight, format!("stopped: {}", ending.reason().unwrap_or("it ended by itself")))
        }
        // Created, and what has no word of its own here.
        other => {
            let event = serde_json::to_value(other).unwrap_or_default();
            (DEBUG, event["event"].as_str().unwrap_or_default().replace('_', " "))
        }
    }
}

/// What comes behind a cursor.
fn behind(entries: Vec<Entry>, cursor: Option<&str>) -> Vec<Entry> {
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
    pub(super) fn sandbox_logs_read(&self, call: &Call) -> Outcome {
        let mut reading = Reading::new(self, read(call)?)?;
        let entries = reading.all(true)?;
        let last = entries.last().map(|entry| entry.cursor.clone());
        let wanted: Vec<Entry> = entries.into_iter().filter(|it| reading.wanted(it)).collect();
        let tail = reading.asked.tail.unwrap_or(MOST).min(MOST);
        let from = wanted.len().saturating_sub(tail);
        let dropped = from > 0 && reading.asked.tail.is_none();
        let warning = dropped.then(|| format!("only the last {MOST} entries are shown"));
        let done = self.entries(&wanted[from..], last.as_deref(), reading.asked.max_bytes);
        Ok(done.warning(warning))
    }

    pub(super) fn sandbox_logs_stream(&self, call: &Call) -> Outcome {
        let mut reading = Reading::new(self, read(call)?)?;
        let until = Instant::now() + Duration::from_millis(reading.asked.follow_timeout_ms);
        let limit = reading.asked.limit.unwrap_or(USUAL);
        let follow = reading.asked.follow;
        let mut cursor = reading.asked.from_cursor.clone();
        let mut found = Vec::new();
        let mut fresh = behind(reading.all(!follow)?, cursor.as_deref());
        loop {
            for entry in fresh {
                if found.len() >= limit {
                    break;
                }
                cursor = Some(entry.cursor.clone());
                if reading.wanted(&entry) {
                    found.push(entry);
                }
            }
            let over = !follow || !found.is_empty() || Instant::now() >= until;
            if over || call.cancel.is_cancelled() {
                break;
            }
            std::thread::sleep(LOOK.min(until.saturating_duration_since(Instant::now())));
            fresh = reading.more()?;
        }
        Ok(self.entries(&found, cursor.as_deref(), reading.asked.max_bytes))
    }

    fn entries(&self, entries: &[Entry], cursor: Option<&str>, max: Option<u64>) -> Done {
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
        Done::new(json!({"entries": shown, "nextCursor": cursor})).truncated(truncated)
    }
}
