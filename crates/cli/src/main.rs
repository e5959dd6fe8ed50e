//! The `msb` command.
//!
//! Finds the verb, builds only that verb's flags, and runs it: `run` and `exec` must not pay for
//! the help of everything else.

mod arguments;
mod at;
mod change_text;
mod clock;
mod elsewhere;
mod event_text;
mod fetching;
mod gateway;
mod image_text;
mod listing;
mod net_text;
mod network_arguments;
mod places;
mod plan_text;
mod secret_argument;
mod selection;
mod service_arguments;
mod serving;
mod session;
mod session_elsewhere;
mod spark;
mod table;
mod terminal;
mod verbs;
mod words;

use msb_engine::images::APART_ARGUMENT;
use msb_engine::snapshots::TIDY_ARGUMENT;
use msb_engine::workspace::REVIEW_ARGUMENT;
use msb_engine::{CTL_ARGUMENT, Launcher, SYNC_ARGUMENT, WORKER_ARGUMENT, WorkerStart};
use msb_spec::{Error, Result};
use msb_wire::VOLUME_ARGUMENT;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let rest: Vec<OsString> = std::env::args_os().skip(1).collect();
    if rest.first().is_some_and(|word| word == WORKER_ARGUMENT) {
        return become_worker();
    }
    if rest.first().is_some_and(|word| word == SYNC_ARGUMENT) {
        return ExitCode::from(
            u8::try_from(msb_engine::serve_sync()).unwrap_or(words::OUR_FAILURE),
        );
    }
    if let [word, letter] = rest.as_slice()
        && word == APART_ARGUMENT
    {
        let code = msb_engine::images::serve(&letter.to_string_lossy());
        return ExitCode::from(u8::try_from(code).unwrap_or(words::OUR_FAILURE));
    }
    if let [word, home] = rest.as_slice()
        && word == TIDY_ARGUMENT
    {
        return tidy(Path::new(home));
    }
    if let [word, home, name] = rest.as_slice()
        && word == CTL_ARGUMENT
    {
        let code = msb_engine::serve_ctl(Path::new(home), &name.to_string_lossy());
        return ExitCode::from(u8::try_from(code).unwrap_or(words::OUR_FAILURE));
    }
    if rest.first().is_some_and(|word| word == REVIEW_ARGUMENT) {
        let code = msb_engine::workspace::serve();
        return ExitCode::from(u8::try_from(code).unwrap_or(words::OUR_FAILURE));
    }
    if let [word, letter] = rest.as_slice()
        && word == VOLUME_ARGUMENT
    {
        return serve_volume(&letter.to_string_lossy());
    }
    let code = table::dispatch(rest).unwrap_or_else(|failure| words::report(&failure));
    ExitCode::from(u8::try_from(code).unwrap_or(words::OUR_FAILURE))
}

/// How this program starts workers: it is one.
pub(crate) fn launcher() -> Launcher {
    Launcher::Fork(work)
}

fn work(start: WorkerStart) -> i32 {
    let WorkerStart { plan, directory, lock, held, caller, last_event, last_exec, secrets } = start;
    let has_secrets = !secrets.is_empty();
    let gateway = gateway::start(&plan, &directory, secrets);
    // The worker reads what a hostile guest sends, and the variables have values of Secrets.
    if has_secrets && msb_sys::process::forget_origin().is_err() {
        return i32::from(words::OUR_FAILURE);
    }
    msb_worker::run(msb_worker::Start {
        plan,
        directory,
        lock,
        held,
        caller,
        last_event,
        last_exec,
        gateway,
    })
}

/// For a program that uses the SDK: tidies up after snapshots, and lets it go on.
fn tidy(home: &Path) -> ExitCode {
    if msb_sys::process::fork().unwrap_or(false)
        && let Ok(home) = msb_engine::Home::at(home)
    {
        msb_engine::Engine::at(home, launcher()).tidy();
    }
    ExitCode::SUCCESS
}

/// For a program that uses the SDK: how to begin is on stdin. Forks once, so that the worker is
/// not that program's child.
fn become_worker() -> ExitCode {
    match msb_engine::receive_start() {
        Ok(start) => match msb_sys::process::fork() {
            Ok(true) => msb_sys::process::leave(work(start)),
            Ok(false) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(words::OUR_FAILURE),
        },
        Err(error) => ExitCode::from(u8::try_from(words::report(&error.into())).unwrap_or(125)),
    }
}

/// Serves the files of a volume to the socket that is stdin, after one line that says whether that
/// is possible.
fn serve_volume(letter: &str) -> ExitCode {
    let tell = |result: Result<()>| {
        words::say(serde_json::to_string(&result).expect("our own types always serialise"));
    };
    let client = std::io::stdin().as_fd().try_clone_to_owned();
    let served = client
        .map_err(|error| Error::host("cannot take the client over", error))
        .and_then(|client| msb_worker::serve_volume(letter, client, || tell(Ok(()))));
    let code = served.unwrap_or_else(|error| {
        tell(Err(error));
        i32::from(words::OUR_FAILURE)
    });
    ExitCode::from(u8::try_from(code).unwrap_or(words::OUR_FAILURE))
}
