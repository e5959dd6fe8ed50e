//! `msb exec`: a command in a sandbox that runs.

use super::{bare_engine, finished};
use crate::arguments::{self, StreamArgs};
use crate::at::At;
use crate::session::{Attended, Part, attend, collect};
use crate::session_elsewhere::{self, Calls};
use crate::table::ActAt;
use crate::terminal;
use crate::words::{self, Outcome};
use clap::Parser;
use msb_spec::{Command, Error, Name, Rlimit, Span, UserRef};

/// Runs a command in a running sandbox.
#[derive(Debug, Parser)]
#[command(override_usage = "msb exec [OPTIONS] NAME -- COMMAND...")]
pub(crate) struct Exec {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Leave it running in the background and print its id
    #[arg(long, short)]
    detach: bool,
    /// Environment variable; without a value, the caller's
    #[arg(long = "env", short, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// Working directory
    #[arg(long, short, value_name = "PATH")]
    workdir: Option<String>,
    /// User that runs it
    #[arg(long, short, value_name = "USER")]
    user: Option<UserRef>,
    /// Kill it after this long (exit code 124)
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// Resource limit, as in `nofile=1024:4096`
    #[arg(long = "rlimit", value_name = "NAME=SOFT[:HARD]")]
    rlimits: Vec<Rlimit>,
    #[command(flatten)]
    streams: StreamArgs,
    /// Say nothing but results and errors
    #[arg(long, short)]
    quiet: bool,
    /// Command and arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl ActAt for Exec {
    fn act_at(self, at: &At) -> Outcome {
        let calls = match at {
            At::Here => None,
            At::There(_) => Some(Calls::collect()?),
        };
        let name = Name::parse(&self.name)?;
        let (tty, stdin) = self.streams.choose(self.detach);
        let mut env: Vec<(String, String)> =
            arguments::environment(&self.env)?.into_iter().collect();
        arguments::pass_term(tty, &mut env);
        let command = Command {
            argv: self.command,
            env,
            workdir: self.workdir,
            user: self.user,
            stdin,
            tty: tty.then(terminal::size),
            timeout: self.timeout,
            rlimits: self.rlimits,
            detached: self.detach,
            unlogged: false,
            asker: None,
        };
        let part = Part { stdin, tty, leave_at_once: self.detach };
        let attended = match (at, calls) {
            (At::There(server), Some(calls)) => {
                let api = server.api()?;
                let exec = api.exec_start(&name, &command)?;
                session_elsewhere::attend((&api, &name), exec, part, &calls)
            }
            _ => {
                // Before the command can run: a signal that came in between would end us alone.
                let _early =
                    collect().map_err(|error| Error::host("cannot collect signals", error))?;
                attend(bare_engine()?.exec(&name, command)?.into_stream(), part)
            }
        };
        match attended? {
            Attended::Exited(exit) if self.quiet => Ok(exit.status()),
            Attended::Exited(exit) => Ok(finished(&exit)),
            Attended::Left { exec } => {
                words::say(exec);
                Ok(0)
            }
        }
    }
}
