//! `msb kill`: a signal for a command.

use crate::output::Outcome;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_spec::{Error, Name};

/// Sends a signal to commands that run in a sandbox.
#[derive(Debug, Parser)]
#[command(override_usage = "msb kill [OPTIONS] NAME ID...")]
pub(crate) struct KillArgs {
    /// Name of the sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Which commands
    #[arg(value_name = "ID", required = true)]
    execs: Vec<u64>,
    /// Signal, by name or number
    #[arg(long, short, default_value = "TERM", value_name = "SIGNAL")]
    signal: String,
}

impl TargetVerb for KillArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let name = Name::parse(&self.name)?;
        let signal = msb_sys::signal::parse(&self.signal).ok_or_else(|| {
            Error::invalid(format!("no such signal: `{}`", self.signal))
                .hint("write it as `TERM`, `SIGKILL` or `9`")
        })?;
        let api = target.bare_api()?;
        for exec in self.execs {
            api.exec_signal(&name, exec, signal)?;
        }
        Ok(0)
    }
}
