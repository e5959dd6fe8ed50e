//! The subscriber: one line for each event, with the spans around it.
//!
//! ```text
//! 2026-01-31T12:00:00.000Z DEBUG gateway sandbox{name=web}:flow{to=192.0.2.1:443}: allowed rule=1
//! ```

use crate::destination::Destination;
use crate::filter::{LogFilter, part_of};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::{Debug, Write as _};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

static INSTALLED: OnceLock<LineSubscriber> = OnceLock::new();

thread_local! {
    /// The spans that this thread has entered, innermost last.
    static ENTERED: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Writes enabled events. Lock order: `spans`, then `destination`; never both at once.
#[derive(Debug)]
pub(crate) struct LineSubscriber {
    filter: LogFilter,
    spans: Mutex<SpanTable>,
    destination: Mutex<Destination>,
}

#[derive(Debug, Default)]
struct SpanTable {
    last: u64,
    open: HashMap<u64, OpenSpan>,
}

#[derive(Debug)]
struct OpenSpan {
    /// The span with its fields, after those of its parents: `sandbox{name=web}:exec{id=1}`.
    path: String,
    references: usize,
}

impl LineSubscriber {
    /// Makes this the log of the process, unless one is installed.
    pub(crate) fn install(filter: LogFilter, destination: Destination) {
        let log = Self::new(filter, destination);
        if INSTALLED.set(log).is_ok() {
            // A program that has a subscriber of its own keeps it.
            let _ = tracing::subscriber::set_global_default(Installed);
        }
    }

    fn new(filter: LogFilter, destination: Destination) -> Self {
        let (spans, destination) = (Mutex::default(), Mutex::new(destination));
        Self { filter, spans, destination }
    }

    pub(crate) fn installed() -> Option<&'static Self> {
        INSTALLED.get()
    }

    pub(crate) fn with_destination<T>(&self, act: impl FnOnce(&mut Destination) -> T) -> T {
        act(&mut lock(&self.destination))
    }

    fn open(&self, span: &Attributes<'_>) -> u64 {
        let mut own = FieldText::default();
        span.record(&mut own);
        let mut spans = lock(&self.spans);
        let parent = match span.parent() {
            Some(parent) => Some(parent.into_u64()),
            None if span.is_contextual() => innermost(),
            None => None,
        };
        let mut path = String::new();
        if let Some(parent) = parent.and_then(|parent| spans.open.get(&parent)) {
            path.push_str(&parent.path);
            path.push(':');
        }
        path.push_str(span.metadata().name());
        if !own.text.is_empty() {
            let _ = write!(path, "{{{}}}", own.text);
        }
        spans.last += 1;
        let id = spans.last;
        spans.open.insert(id, OpenSpan { path, references: 1 });
        id
    }

    /// Fields that are recorded later follow the ones of the start.
    fn extend(&self, id: u64, values: &Record<'_>) {
        let mut more = FieldText::default();
        values.record(&mut more);
        if let Some(span) = lock(&self.spans).open.get_mut(&id) {
            let closed = span.path.pop_if_brace();
            let _ = write!(span.path, "{}{}}}", if closed { ' ' } else { '{' }, more.text);
        }
    }

    fn line(&self, event: &Event<'_>, now: u64) -> String {
        let metadata = event.metadata();
        let mut line = msb_spec::clock::written(now);
        let part = part_of(metadata.target()).unwrap_or_default();
        let _ = write!(line, " {:<5} {part}", metadata.level().as_str());
        let span = match event.parent() {
            Some(parent) => Some(parent.into_u64()),
            None => innermost(),
        };
        if let Some(span) = span
            && let Some(span) = lock(&self.spans).open.get(&span)
        {
            line.push(' ');
            line.push_str(&span.path);
        }
        let mut fields = FieldText::default();
        event.record(&mut fields);
        line.push(':');
        for text in [&fields.message, &fields.text] {
            if !text.is_empty() {
                line.push(' ');
                line.push_str(text);
            }
        }
        line.push('\n');
        line
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn innermost() -> Option<u64> {
    ENTERED.with_borrow(|entered| entered.last().copied())
}

trait PopBrace {
    /// Removes a closing brace at the end; whether there was one.
    fn pop_if_brace(&mut self) -> bool;
}

impl PopBrace for String {
    fn pop_if_brace(&mut self) -> bool {
        let closed = self.ends_with('}');
        if closed {
            self.pop();
        }
        closed
    }
}

/// What `tracing` calls: everything is in the static, which outlives forks.
struct Installed;

impl Installed {
    fn log() -> &'static LineSubscriber {
        INSTALLED.get().expect("it is set before this subscriber is installed")
    }
}

impl Subscriber for Installed {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.enabled(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let (filter, level) = (&Self::log().filter, *metadata.level());
        // A span names the sandbox, Exec or flow for events of other parts too.
        if metadata.is_span() {
            return part_of(metadata.target()).is_some() && level <= filter.most_verbose();
        }
        filter.allows(metadata.target(), level)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(Self::log().filter.most_verbose())
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        Id::from_u64(Self::log().open(span))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        Self::log().extend(span.into_u64(), values);
    }

    // "Follows from" has no place in a line.
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let log = Self::log();
        let line = log.line(event, msb_spec::clock::now());
        lock(&log.destination).write(&line);
    }

    fn enter(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| entered.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        ENTERED.with_borrow_mut(|entered| {
            if let Some(at) = entered.iter().rposition(|id| *id == span.into_u64()) {
                entered.remove(at);
            }
        });
    }

    fn clone_span(&self, span: &Id) -> Id {
        if let Some(open) = lock(&Self::log().spans).open.get_mut(&span.into_u64()) {
            open.references += 1;
        }
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut spans = lock(&Self::log().spans);
        let Some(open) = spans.open.get_mut(&span.into_u64()) else { return false };
        open.references -= 1;
        let closed = open.references == 0;
        if closed {
            spans.open.remove(&span.into_u64());
        }
        closed
    }
}

/// The fields of an event or span as `name=value`, and the message.
#[derive(Default)]
struct FieldText {
    message: String,
    text: String,
}

impl FieldText {
    fn add(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            push_printable(&mut self.message, value);
            return;
        }
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        let _ = write!(self.text, "{}=", field.name());
        let quoted = value.is_empty() || value.contains([' ', '"', '=', '{', '}']);
        let quoted = quoted && !value.starts_with('"');
        if quoted {
            let _ = write!(self.text, "{value:?}");
        } else {
            push_printable(&mut self.text, value);
        }
    }
}

impl Visit for FieldText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }
}

/// Values come from guests and peers too: no line breaks, and no sequences for a terminal.
fn push_printable(text: &mut String, value: &str) {
    for character in value.chars() {
        match character.is_control() {
            true => text.extend(character.escape_default()),
            false => text.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::{debug, debug_span, info, trace};

    /// The lines of a run, without their times.
    fn lines(filter: &str, run: impl FnOnce()) -> Vec<String> {
        let path = std::env::temp_dir().join(format!("msb-log-lines-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let filter = LogFilter::parse(filter).unwrap();
        LineSubscriber::install(filter, Destination::named_file(file));
        run();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    // One test, because a process has one log.
    #[test]
    fn events_have_their_spans_and_nothing_else_is_written() {
        let lines = lines("debug", || {
            let sandbox = debug_span!("sandbox", name = %"web").entered();
            debug!(code = 3, "command ended");
            let exec = debug_span!("exec", id = 1, tty = tracing::field::Empty);
            exec.record("tty", true);
            exec.in_scope(|| info!(path = "a b", "line\nbreak \u{1b}[31m"));
            debug!(parent: &exec, "by its parent");
            trace!("too verbose");
            debug!(target: "h2::codec", authorization = "value", "of a library");
            drop((exec, sandbox));
            debug!(text = "x\ny", empty = "", "outside");
            assert_eq!(lock(&LineSubscriber::installed().unwrap().spans).open.len(), 0);
        });
        assert_eq!(
            lines,
            [
                "DEBUG log sandbox{name=web}: command ended code=3",
                "INFO  log sandbox{name=web}:exec{id=1 tty=true}: line\\nbreak \\u{1b}[31m \
                 path=\"a b\"",
                "DEBUG log sandbox{name=web}:exec{id=1 tty=true}: by its parent",
                "DEBUG log: outside text=x\\ny empty=\"\"",
            ]
        );
    }
}
