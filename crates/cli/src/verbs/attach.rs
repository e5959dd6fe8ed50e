//! `msb attach`: take part in a command that runs.

use super::{bare_engine, finished};
use crate::session::{Attended, Part, attend};
use crate::table::Act;
use crate::terminal;
use crate::words::{self, Outcome};
use clap::Parser;
use msb_spec::{Error, Kind, Name, Stdin};

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

impl Act for Attach {
    fn act(self) -> Outcome {
        let engine = bare_engine()?;
        let name = Name::parse(&self.name)?;
        let running = engine.running_execs(&name)?;
        let chosen = match (self.exec, running.as_slice()) {
            (Some(id), _) => running.iter().find(|exec| exec.id == id),
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
        let (id, has_terminal) =
            chosen.map_or((self.exec.unwrap_or(0), false), |exec| (exec.id, exec.tty));
        let tty = has_terminal && terminal::is_there();
        let stdin = if self.no_stdin { Stdin::Closed } else { Stdin::Streamed };
        let connection = engine.attach(&name, id)?;
        match attend(connection.into_stream(), Part { stdin, tty, leave_at_once: false })? {
            Attended::Exited(exit) => Ok(finished(&exit)),
            Attended::Left { exec } => {
                words::note(format!("left command {exec} of `{name}` running"));
                Ok(0)
            }
        }
    }
}
