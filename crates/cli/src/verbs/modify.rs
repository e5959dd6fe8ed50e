//! `msb modify` and `msb rename`: a sandbox that exists, changed.

use crate::listing::{self, Listing};
use crate::output::{self, Outcome};
use crate::selection::pair;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use crate::{arguments, host_limits};
use clap::Parser;
use msb_spec::{Bytes, Cpus, Name, Restart, Result, Span};
use std::collections::BTreeMap;

/// Changes a sandbox: at once where that can be done, else from its next start on.
#[derive(Debug, Parser)]
#[command(override_usage = "msb modify [OPTIONS] NAME")]
pub(crate) struct ModifyArgs {
    /// Which sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// Memory, as in `512M`; a bare number is MiB
    #[arg(long, short, value_name = "SIZE", value_parser = Bytes::parse_size)]
    memory: Option<Bytes>,
    /// Processors, as in `2` or `0.5`
    #[arg(long, value_name = "N")]
    cpus: Option<Cpus>,
    /// Processes and threads
    #[arg(long, value_name = "N")]
    pids: Option<u32>,
    /// Label to set
    #[arg(long = "label", short, value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Label to take away
    #[arg(long = "label-rm", value_name = "KEY")]
    unlabel: Vec<String>,
    /// Environment variable of commands from now on; without a value, the caller's
    #[arg(long = "env", short, value_name = "NAME[=VALUE]")]
    env: Vec<String>,
    /// End it when nothing ran in it for this long; 0 is never
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<Span>,
    /// End it this long after its start; 0 is never
    #[arg(long, value_name = "TIME")]
    max_duration: Option<Span>,
    /// Pause it when nothing happened in it for this long; 0 is never
    #[arg(long, value_name = "TIME")]
    idle_pause: Option<Span>,
    /// Begin its command again when it ends: no, on-failure[:N] or always[:N]
    #[arg(long, value_name = "POLICY")]
    restart: Option<Restart>,
    /// Print what would change and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ModifyArgs {
    fn change(&self) -> Result<msb_spec::Modify> {
        let labels = self
            .labels
            .iter()
            .map(|label| pair(label).map(|(key, value)| (key.to_owned(), value.to_owned())));
        Ok(msb_spec::Modify {
            memory: self.memory,
            cpus: self.cpus,
            pids: self.pids,
            labels: labels.collect::<Result<BTreeMap<_, _>>>()?,
            unlabel: self.unlabel.clone(),
            env: arguments::environment(&self.env)?.into_iter().collect(),
            idle_timeout: self.idle_timeout,
            max_duration: self.max_duration,
            idle_pause: self.idle_pause,
            restart: self.restart,
            dry_run: self.dry_run,
        })
    }
}

impl TargetVerb for ModifyArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let (name, change) = (Name::parse(&self.name)?, self.change()?);
        change.validate()?;
        if matches!(target, Target::Local) {
            host_limits::check(change.cpus, change.memory)?;
        }
        let changed = target.api()?.sandbox_modify(&name, &change)?;
        if self.json {
            listing::json(&changed);
            return Ok(0);
        }
        if changed.is_empty() {
            output::note(format!("sandbox `{name}` is so already"));
            return Ok(0);
        }
        let mut table = Listing::new(&["WHAT", "FROM", "TO", "HOLDS"]);
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        for one in changed {
            table.row(&[one.what, shown(one.from), shown(one.to), one.holds.as_str().to_owned()]);
        }
        table.print();
        Ok(0)
    }
}

/// Gives a sandbox that has stopped another name.
#[derive(Debug, Parser)]
#[command(override_usage = "msb rename NAME NEW")]
pub(crate) struct RenameArgs {
    /// Which sandbox
    #[arg(value_name = "NAME")]
    name: String,
    /// What it is to be called
    #[arg(value_name = "NEW")]
    to: String,
}

impl TargetVerb for RenameArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let (name, to) = (Name::parse(&self.name)?, Name::parse(&self.to)?);
        target.api()?.sandbox_rename(&name, &to)?;
        output::result("name", &to);
        Ok(0)
    }
}
