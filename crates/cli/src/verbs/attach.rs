//! `msb attach`: take part in a command that runs.

use super::{bare_engine, finished, say_detached};
use crate::local_attach::{AttachOptions, AttachResult, ClosedOutput, attach};
use crate::output::Outcome;
use crate::remote_attach::{self, SignalForwarder};
use crate::target::Target;
use crate::terminal;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_api::Api;
use msb_engine::Engine;
use msb_spec::{Error, Kind, Name, Result, Stdin};
use std::sync::Arc;

/// Shows a running command's output and sends it what is typed.
#[derive(Debug, Parser)]
#[command(override_usage = "msb attach [OPTIONS] NAME [ID]")]
pub(crate) struct AttachArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Which command; the only one if there is one
    #[arg(value_name = "ID")]
    exec: Option<u64>,
    /// Only watch
    #[arg(long)]
    no_stdin: bool,
    /// Connect stdin, which is the default
    #[arg(long, short, conflicts_with = "no_stdin")]
    interactive: bool,
    /// Refuse a command without a terminal; one that has a terminal is shown at yours anyway
    #[arg(long, short)]
    tty: bool,
}

impl TargetVerb for AttachArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let name = Name::parse(&self.name)?;
        let at = match target {
            Target::Local => Way::Here(bare_engine()?),
            Target::Remote(server) => {
                let calls = SignalForwarder::collect()?;
                Way::There(server.api()?, calls)
            }
        };
        let running = at.running(&name)?;
        let chosen = match (self.exec, running.as_slice()) {
            (Some(id), _) => running.iter().find(|(exec, _)| *exec == id),
            (None, [only]) => Some(only),
            (None, []) => {
                return Err(Error::new(Kind::NotFound, format!("nothing runs in `{name}`")).into());
            }
            (None, _) => {
                let hint = format!("give an id; `msb ps {name} --execs` lists them");
                return Err(Error::invalid(format!("several commands run in `{name}`"))
                    .hint(hint)
                    .into());
            }
        };
        let (id, has_terminal) = chosen.copied().unwrap_or((self.exec.unwrap_or(0), false));
        if self.tty && chosen.is_some() && !has_terminal {
            return Err(Error::new(Kind::State, format!("command {id} has no terminal"))
                .hint("leave out `-t`; `msb exec -t` starts a command with one")
                .into());
        }
        let tty = has_terminal && terminal::is_there();
        let closed = self.no_stdin && !self.interactive;
        let stdin = if closed { Stdin::Closed } else { Stdin::Streamed };
        match at.attach(
            &name,
            id,
            AttachOptions { stdin, tty, leave_at_once: false, closed_output: ClosedOutput::Detach },
        )? {
            AttachResult::Exited(exit) => Ok(finished(&exit)),
            AttachResult::Detached { exec } => {
                say_detached(&name, exec);
                Ok(0)
            }
        }
    }
}

/// How the command is reached.
enum Way {
    Here(Engine),
    There(Arc<dyn Api>, SignalForwarder),
}

impl Way {
    /// The commands that run, and whether each has a terminal.
    fn running(&self, name: &Name) -> Result<Vec<(u64, bool)>> {
        match self {
            Self::Here(engine) => {
                let running = engine.running_execs(name)?;
                Ok(running.iter().map(|exec| (exec.id, exec.tty)).collect())
            }
            Self::There(api, _) => {
                let execs = api.exec_list(name)?;
                let running = execs.iter().filter(|exec| exec.exit.is_none());
                Ok(running.map(|exec| (exec.id, exec.tty)).collect())
            }
        }
    }

    fn attach(&self, name: &Name, id: u64, options: AttachOptions) -> Result<AttachResult> {
        match self {
            Self::Here(engine) => attach(engine.attach(name, id)?.into_stream(), options),
            Self::There(api, calls) => {
                let exec = api.exec_attach(name, id)?;
                remote_attach::attach((api, name), exec, options, calls)
            }
        }
    }
}
