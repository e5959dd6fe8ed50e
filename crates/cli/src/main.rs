//! The `msb` command.
//!
//! Finds the verb, builds only that verb's flags, and runs it: `run` and `exec` must not pay for
//! the help of everything else.

mod arguments;
mod change_text;
mod clock;
mod colour;
mod completion;
mod event_text;
mod gateway;
mod git_patch_text;
mod habits;
mod host_limits;
mod host_programs;
mod http_server;
mod image_text;
mod listing;
mod local_attach;
mod loose_command;
mod net_text;
mod network_arguments;
mod output;
mod plan_text;
mod pull_progress;
mod remote;
mod remote_attach;
mod secret_argument;
mod selection;
mod service_arguments;
mod settings_file;
mod sparkline;
mod target;
mod terminal;
mod verb_table;
mod verbs;
mod workspace_target;

use msb_engine::images::IMAGE_HELPER_ARGUMENT;
use msb_engine::snapshots::TIDY_ARGUMENT;
use msb_engine::workspace::REVIEW_ARGUMENT;
use msb_engine::{CTL_ARGUMENT, Launcher, SYNC_ARGUMENT, WORKER_ARGUMENT, WorkerStart};
use msb_spec::{Error, Result};
use msb_wire::VOLUME_ARGUMENT;
use output::Failure;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match msb_sys::init::fork_if_init() {
        Ok(None) => {}
        Ok(Some(code)) => return ExitCode::from(code),
        Err(error) => {
            let error = Error::host("cannot fork as PID 1", error).into();
            return ExitCode::from(u8::try_from(output::report(&error)).unwrap_or(125));
        }
    }
    let rest: Vec<OsString> = std::env::args_os().skip(1).collect();
    if rest.first().is_some_and(|word| word == WORKER_ARGUMENT) {
        return become_worker(msb_log::init());
    }
    if rest.first().is_some_and(|word| word == SYNC_ARGUMENT) {
        return ExitCode::from(
            u8::try_from(msb_engine::serve_sync()).unwrap_or(output::OUR_FAILURE),
        );
    }
    if let [word, letter] = rest.as_slice()
        && word == IMAGE_HELPER_ARGUMENT
    {
        let code = msb_engine::images::serve(&letter.to_string_lossy());
        return ExitCode::from(u8::try_from(code).unwrap_or(output::OUR_FAILURE));
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
        return ExitCode::from(u8::try_from(code).unwrap_or(output::OUR_FAILURE));
    }
    if rest.first().is_some_and(|word| word == REVIEW_ARGUMENT) {
        let code = msb_engine::workspace::serve();
        return ExitCode::from(u8::try_from(code).unwrap_or(output::OUR_FAILURE));
    }
    if let [word, letter] = rest.as_slice()
        && word == VOLUME_ARGUMENT
    {
        return serve_volume(&letter.to_string_lossy());
    }
    if let [word, words @ ..] = rest.as_slice()
        && word == completion::ARGUMENT
    {
        return ExitCode::from(u8::try_from(completion::run(words)).unwrap_or(output::OUR_FAILURE));
    }
    let done = msb_log::init().map_err(Failure::from).and_then(|()| verb_table::dispatch(rest));
    let code = done.unwrap_or_else(|failure| output::report(&failure));
    ExitCode::from(u8::try_from(code).unwrap_or(output::OUR_FAILURE))
}

/// How this program starts workers: it is one.
pub(crate) fn launcher() -> Launcher {
    Launcher::Fork(|start| work(start, Ok(())))
}

/// Runs the worker, or reports to its caller that the log cannot be written.
fn work(start: WorkerStart, log: Result<()>) -> i32 {
    let WorkerStart { plan, directory, lock, held, caller, last_event, last_exec, secrets } = start;
    let has_secrets = !secrets.is_empty();
    let _span = tracing::error_span!("sandbox", name = %plan.name).entered();
    let log = log.and_then(|()| msb_log::write_to(&directory));
    let gateway = log.and_then(|()| gateway::start(&plan, &directory, secrets));
    // The worker reads what a hostile guest sends, and the variables have values of Secrets.
    if has_secrets && msb_sys::process::wipe_cmdline_and_env().is_err() {
        return i32::from(output::OUR_FAILURE);
    }
    msb_worker::run(msb_worker::WorkerArgs {
        plan,
        directory,
        lock,
        volume_locks: held,
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
        msb_engine::Engine::at(home, launcher()).snapshots().tidy();
    }
    ExitCode::SUCCESS
}

/// For a program that uses the SDK: how to begin is on stdin. Forks once, so that the worker is
/// not that program's child.
fn become_worker(log: Result<()>) -> ExitCode {
    match msb_engine::receive_start() {
        Ok(start) => match msb_sys::process::fork() {
            Ok(true) => msb_sys::process::leave(work(start, log)),
            Ok(false) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(output::OUR_FAILURE),
        },
        Err(error) => ExitCode::from(u8::try_from(output::report(&error.into())).unwrap_or(125)),
    }
}

/// Serves the files of a volume to the socket that is stdin, after one line that says whether that
/// is possible.
fn serve_volume(letter: &str) -> ExitCode {
    let tell = |result: Result<()>| {
        output::print(serde_json::to_string(&result).expect("our own types always serialise"));
    };
    let client = std::io::stdin().as_fd().try_clone_to_owned();
    let served = client
        .map_err(|error| Error::host("cannot take the client over", error))
        .and_then(|client| msb_worker::serve_volume(letter, client, || tell(Ok(()))));
    let code = served.unwrap_or_else(|error| {
        tell(Err(error));
        i32::from(output::OUR_FAILURE)
    });
    ExitCode::from(u8::try_from(code).unwrap_or(output::OUR_FAILURE))
}
