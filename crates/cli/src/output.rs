//! Everything that is said to a person: the only place that prints talk.

use msb_spec::{Error, Kind, shown};
use rustix::event::{PollFd, PollFlags};
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code for a failure of ours rather than the command's.
pub(crate) const OUR_FAILURE: u8 = 125;

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
            let ours = std::error::Error::source(&**error).and_then(|e| e.downcast_ref::<Error>());
            if let Some(ours) = ours {
                // Said by clap, the hint would be lost.
                let flag = error.get(clap::error::ContextKind::InvalidArg);
                let flag = flag.map_or_else(String::new, ToString::to_string);
                let flag = flag.split_whitespace().next().unwrap_or_default();
                let ours = ours.clone();
                // `<NAME>` is no flag that was typed; the error itself says what is wrong.
                print_error(&match flag.starts_with('-') {
                    true => ours.under(format!("cannot use the value of `{flag}`")),
                    false => ours,
                });
                return i32::from(OUR_FAILURE);
            }
            let _ = error.print();
            if error.use_stderr() { i32::from(OUR_FAILURE) } else { 0 }
        }
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
    let mut text = format!("{} {}\n", paint("error:", RED), shown(error.message()));
    for cause in error.causes() {
        text.push_str(&format!("  cause: {}\n", shown(cause)));
    }
    if let Some(hint) = error.advice() {
        text.push_str(&format!("{} {}\n", paint("hint:", CYAN), shown(hint)));
    }
    stderr(&text);
}

/// Tells something that is not an error and not a result.
pub(crate) fn note(text: impl Display) {
    stderr(&format!("{} {}\n", paint("note:", CYAN), shown(&text.to_string())));
}

/// Asks for something to be typed.
pub(crate) fn prompt(text: &str) {
    stderr(text);
}

/// Tells how far something has come.
pub(crate) fn progress(text: impl Display) {
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

/// Writes bytes of a result as they are.
pub(crate) fn write_stdout(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    if out.write_all(bytes).and_then(|()| out.flush()).is_err() {
        CLOSED.store(true, Ordering::Relaxed);
    }
}

fn stderr(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

const RED: &str = "31;1";
const CYAN: &str = "36";

fn paint(word: &str, colour: &str) -> String {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if plain || !std::io::stderr().is_terminal() {
        return word.to_owned();
    }
    format!("\x1b[{colour}m{word}\x1b[0m")
}
