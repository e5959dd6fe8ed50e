//! `msb exec`: a command in a sandbox that runs.

use super::{bare_engine, finished, say_detached};
use crate::arguments::{self, StreamArgs};
use crate::local_attach::{AttachOptions, AttachResult, ClosedOutput, attach, collect};
use crate::output::{self, Outcome};
use crate::remote_attach::{self, SignalForwarder};
use crate::target::Target;
use crate::verb_table::TargetVerb;
use crate::{host_programs, terminal};
use clap::Parser;
use msb_spec::{Command, Error, Name, Result, Rlimit, Span, UserRef};

/// Runs a command in a running sandbox; without one, at a terminal, opens a shell.
#[derive(Debug, Parser)]
#[command(override_usage = "msb exec [OPTIONS] NAME [[--] COMMAND...]")]
pub(crate) struct ExecArgs {
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
    /// Command and arguments; the sandbox's shell if there is none, at a terminal or with -i
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

impl TargetVerb for ExecArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let calls = match target {
            Target::Local => None,
            Target::Remote(_) => Some(SignalForwarder::collect()?),
        };
        let name = Name::parse(&self.name)?;
        self.streams.check_background(self.detach, "or leave out `-d`")?;
        let argv = match self.command.is_empty() {
            true => vec![self.shell(target, &name)?],
            false => self.command,
        };
        let (tty, stdin) = self.streams.choose(self.detach);
        let mut env: Vec<(String, String)> =
            arguments::environment(&self.env)?.into_iter().collect();
        arguments::pass_term(tty, &mut env);
        let command = Command {
            argv: argv.clone(),
            env,
            workdir: self.workdir,
            user: self.user,
            stdin,
            tty: tty.then(terminal::size),
            timeout: self.timeout,
            rlimits: self.rlimits,
            detached: self.detach,
            unlogged: false,
            origin: None,
        };
        let part = AttachOptions {
            stdin,
            tty,
            leave_at_once: self.detach,
            closed_output: ClosedOutput::ClosePipe,
        };
        let attended = match (target, calls) {
            (Target::Remote(server), Some(calls)) => {
                let api = server.api()?;
                let exec = api.exec_start(&name, &command)?;
                remote_attach::attach((&api, &name), exec, part, &calls)
            }
            _ => {
                // Before the command can run: a signal that came in between would end us alone.
                let _early =
                    collect().map_err(|error| Error::host("cannot collect signals", error))?;
                let engine = bare_engine()?;
                let begun = engine.exec(&name, command);
                begun.and_then(|exec| attach(exec.into_stream(), part)).map_err(|error| {
                    let program = argv.first().map(String::as_str);
                    match engine.existing(&name) {
                        Ok(plan) => host_programs::explain_missing(error, program, &plan.image),
                        Err(_) => error,
                    }
                })
            }
        };
        match attended? {
            AttachResult::Exited(exit) if self.quiet => Ok(exit.status()),
            AttachResult::Exited(exit) => Ok(finished(&exit)),
            AttachResult::Detached { exec } => {
                match self.detach {
                    true => output::result("id", exec),
                    false => say_detached(&name, exec),
                }
                Ok(0)
            }
        }
    }
}

impl ExecArgs {
    /// The shell of a sandbox, where one makes sense.
    fn shell(&self, target: &Target, name: &Name) -> Result<String> {
        if self.detach || !(self.streams.is_interactive() || terminal::is_there()) {
            return Err(Error::invalid("there is no command to run").hint(format!(
                "`msb exec {name} -- COMMAND` runs one; at a terminal or with `-i`, \
                 `msb exec {name}` opens a shell"
            )));
        }
        Ok(target.bare_api()?.sandbox_inspect(name)?.plan.shell)
    }
}
