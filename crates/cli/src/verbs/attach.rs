//! `msb attach`: take part in a command that runs.

use super::{bare_engine, finished};
use crate::at::At;
use crate::session::{Attended, Part, attend};
use crate::session_elsewhere::{self, Calls};
use crate::table::ActAt;
use crate::terminal;
use crate::words::{self, Outcome};
use clap::Parser;
use msb_api::Api;
use msb_engine::Engine;
use msb_spec::{Error, Kind, Name, Result, Stdin};
use std::sync::Arc;

/// Shows a running command's output and sends it what is typed.
#[derive(Debug, Parser)]
#[command(override_usage = "msb attach [OPTIONS] NAME [ID]")]
pub(crate) struct Attach {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Which command; the only one if there is one
    #[arg(value_name = "ID")]
    exec: Option<u64>,
    /// Only watch
    #[arg(long)]
    no_stdin: bool,
}

impl ActAt for Attach {
    fn act_at(self, at: &At) -> Outcome {
        let name = Name::parse(&self.name)?;
        let at = match at {
            At::Here => Way::Here(bare_engine()?),
            At::There(server) => {
                let calls = Calls::collect()?;
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
        let tty = has_terminal && terminal::is_there();
        let stdin = if self.no_stdin { Stdin::Closed } else { Stdin::Streamed };
        match at.attend(&name, id, Part { stdin, tty, leave_at_once: false })? {
            Attended::Exited(exit) => Ok(finished(&exit)),
            Attended::Left { exec } => {
                words::note(format!("left command {exec} of `{name}` running"));
                Ok(0)
            }
        }
    }
}

/// How the command is reached.
enum Way {
    Here(Engine),
    There(Arc<dyn Api>, Calls),
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

    fn attend(&self, name: &Name, id: u64, part: Part) -> Result<Attended> {
        match self {
            Self::Here(engine) => attend(engine.attach(name, id)?.into_stream(), part),
            Self::There(api, calls) => {
                let exec = api.exec_attach(name, id)?;
                session_elsewhere::attend((api, name), exec, part, calls)
            }
        }
    }
}
