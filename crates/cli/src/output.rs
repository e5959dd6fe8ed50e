//! Everything that is said to a person: the only place that prints talk.

use crate::colour::{BOLD_RED, CYAN, OutputStream};
use crate::listing;
use msb_spec::{Error, Kind, disturbs, shown};
use rustix::event::{PollFd, PollFlags};
use serde::Serialize;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fmt::Display;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code for a failure of ours rather than the command's.
pub(crate) const OUR_FAILURE: u8 = 125;

/// Whether results, errors and notes are JSON, as `--json` asks for.
static JSON: AtomicBool = AtomicBool::new(false);

/// The flag that asks for JSON, here and among what clap found.
pub(crate) const JSON_FLAG: &str = "json";

/// Sets whether this command line asks for JSON.
pub(crate) fn set_json(is_json: bool) {
    JSON.store(is_json, Ordering::Relaxed);
}

/// Whether a command line has `--json` before the command that runs inside. Errors of a command line
/// that clap does not understand are told by this.
pub(crate) fn asks_for_json(words: &[OsString]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| word == "--json")
}

/// The flag for verbs without a JSON form of their own: each result is an object on its line.
pub(crate) fn json_flag() -> clap::Arg {
    clap::Arg::new(JSON_FLAG)
        .long(JSON_FLAG)
        .action(clap::ArgAction::SetTrue)
        .help("Print results and errors as JSON, an object a line")
}

/// Set by the first result that could not be written.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether nothing reads our stdout any more. A verb that follows something asks this each time it has
/// looked, because it may have nothing to write for hours.
pub(crate) fn stdout_is_closed() -> bool {
    let stdout = std::io::stdout();
    let mut wait = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let polled = rustix::event::poll(&mut wait, Some(&at_once));
    let broken = polled.is_ok() && wait[0].revents().contains(PollFlags::ERR);
    broken || CLOSED.load(Ordering::Relaxed)
}

/// Why a verb did not do what it was asked.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something failed, and this is how it is told.
    Error(Box<Error>),
    /// Several did, and each was told already.
    Reported,
    /// The command line made no sense; clap tells it best.
    Usage(Box<clap::Error>),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(Box::new(error))
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        Self::Usage(Box::new(error))
    }
}

/// What a verb returns: the exit code of the process.
pub(crate) type Outcome = Result<i32, Failure>;

/// Tells a failure and gives the exit code for it.
pub(crate) fn report(failure: &Failure) -> i32 {
    match failure {
        Failure::Error(error) => {
            print_error(error);
            code(error.kind())
        }
        Failure::Reported => i32::from(OUR_FAILURE),
        Failure::Usage(error) => {
            if error.use_stderr() && JSON.load(Ordering::Relaxed) {
                print_error(&usage_error(error));
                return i32::from(OUR_FAILURE);
            }
            let ours = std::error::Error::source(&**error).and_then(|e| e.downcast_ref::<Error>());
            if ours.is_some() {
                // Said by clap, the hint would be lost.
                print_error(&usage_error(error));
                return i32::from(OUR_FAILURE);
            }
            let _ = error.print();
            if error.use_stderr() { i32::from(OUR_FAILURE) } else { 0 }
        }
    }
}

/// What clap says about a command line, as an error of ours.
fn usage_error(error: &clap::Error) -> Error {
    let ours = std::error::Error::source(error).and_then(|e| e.downcast_ref::<Error>());
    if let Some(ours) = ours {
        let flag = error.get(clap::error::ContextKind::InvalidArg);
        let flag = flag.map_or_else(String::new, ToString::to_string);
        let flag = flag.split_whitespace().next().unwrap_or_default();
        let ours = ours.clone();
        // `<NAME>` is no flag that was typed; the error itself says what is wrong.
        return match flag.starts_with('-') {
            true => ours.under(format!("cannot use the value of `{flag}`")),
            false => ours,
        };
    }
    let text = error.render().to_string();
    // The first paragraph is the message, the last says what to type.
    let mut paragraphs = text.split("\n\n").map(|it| it.split_whitespace().collect::<Vec<_>>());
    let message = paragraphs.next().unwrap_or_default().join(" ");
    let usage = paragraphs.find(|words| words.first() == Some(&"Usage:"));
    let error = Error::invalid(message.strip_prefix("error: ").unwrap_or(&message));
    match usage {
        Some(usage) => error.hint(format!("usage: `{}`", usage[1..].join(" "))),
        None => error.hint("`--help` lists the flags"),
    }
}

/// The exit code for a kind of failure, as shells have it.
fn code(kind: Kind) -> i32 {
    match kind {
        Kind::CommandNotFound => 127,
        Kind::NotExecutable => 126,
        _ => i32::from(OUR_FAILURE),
    }
}

/// Tells an error: what failed, the causes, what to do.
pub(crate) fn print_error(error: &Error) {
    if JSON.load(Ordering::Relaxed) {
        return stderr_line(&json!({"error": error}));
    }
    let mut text =
        format!("{} {}\n", OutputStream::Stderr.paint("error:", BOLD_RED), shown(error.message()));
    for cause in error.causes() {
        text.push_str(&format!("  cause: {}\n", shown(cause)));
    }
    if let Some(hint) = error.advice() {
        text.push_str(&format!("{} {}\n", OutputStream::Stderr.paint("hint:", CYAN), shown(hint)));
    }
    stderr(&text);
}

/// Tells something that is not an error and not a result.
pub(crate) fn note(text: impl Display) {
    if JSON.load(Ordering::Relaxed) {
        return stderr_line(&json!({"note": text.to_string()}));
    }
    stderr(&format!(
        "{} {}\n",
        OutputStream::Stderr.paint("note:", CYAN),
        shown(&text.to_string())
    ));
}

/// Asks for something to be typed.
pub(crate) fn prompt(text: &str) {
    stderr(text);
}

/// Tells how far something has come.
pub(crate) fn progress(text: impl Display) {
    if JSON.load(Ordering::Relaxed) {
        return stderr_line(&json!({"progress": text.to_string()}));
    }
    stderr(&format!("{}\n", shown(&text.to_string())));
}

/// Hands on what a command says beside its result, as it is.
pub(crate) fn write_stderr(bytes: &[u8]) {
    let _ = std::io::stderr().lock().write_all(bytes);
}

/// Writes a result. A closed pipe is no error.
pub(crate) fn print(text: impl Display) {
    write_stdout(format!("{text}\n").as_bytes());
}

/// Writes one result of a verb: the bare value for people, an object with this member for programs.
pub(crate) fn result(member: &str, value: impl Display + Serialize) {
    let object = json!({member: value});
    record(&object, value);
}

/// Writes one result of a verb: this text for people, this object for programs.
pub(crate) fn record(object: &Value, text: impl Display) {
    match JSON.load(Ordering::Relaxed) {
        true => print(listing::safe(&object.to_string())),
        false => print(text),
    }
}

/// Writes bytes of a result as they are.
pub(crate) fn write_stdout(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Text as a terminal may show it, line by line.
pub(crate) fn harmless(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => safe.push(c),
            c if disturbs(c) => safe.extend(c.escape_default()),
            c => safe.push(c),
        }
    }
    safe
}

fn stderr_line(value: &Value) {
    stderr(&format!("{}\n", listing::safe(&value.to_string())));
}

fn stderr(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}
