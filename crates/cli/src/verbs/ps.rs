//! `msb ps`: what runs.

use crate::listing::{self, Listing};
use crate::selection::Selection;
use crate::target::{Target, is_up};
use crate::verb_table::TargetVerb;
use crate::{clock, output};
use clap::Parser;
use msb_api::{Api, ExecEntry, Summary};
use msb_spec::{Error, Name, Result};
use serde::Serialize;

/// Shows running sandboxes, or the commands in them.
#[derive(Debug, Parser)]
#[command(override_usage = "msb ps [OPTIONS] [NAME...]")]
pub(crate) struct PsArgs {
    #[command(flatten)]
    which: Selection,
    /// Show the commands that run inside
    #[arg(long)]
    execs: bool,
    /// With --execs: commands that have ended, too
    #[arg(long, short)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    sandbox: Name,
    #[serde(flatten)]
    exec: ExecEntry,
}

impl TargetVerb for PsArgs {
    fn run_on(self, target: &Target) -> output::Outcome {
        if self.all && !self.execs {
            return Err(Error::invalid("`msb ps` shows what runs; `-a` is for `--execs`")
                .hint("`msb ls` lists stopped sandboxes, too")
                .into());
        }
        let api = target.api()?;
        if self.execs {
            let mut rows = Vec::new();
            for name in self.which.optional(&*api)? {
                let entries = api.exec_list(&name)?.into_iter();
                let shown = entries.filter(|entry| self.all || entry.exit.is_none());
                rows.extend(shown.map(|exec| Row { sandbox: name.clone(), exec }));
            }
            show_execs(&rows, self.json);
            return Ok(0);
        }
        let sandboxes = self.sandboxes(&*api)?;
        if self.json {
            listing::json(&sandboxes);
            return Ok(0);
        }
        let mut table = Listing::new(&["NAME", "STATUS", "EXECS", "MEMORY", "PIDS", "AGE"]);
        for sandbox in sandboxes {
            let execs = api.exec_list(&sandbox.name).ok().filter(|_| is_up(sandbox.status));
            let running = |execs: Vec<ExecEntry>| {
                execs.iter().filter(|exec| exec.exit.is_none()).count().to_string()
            };
            let metrics = api.sandbox_metrics(&sandbox.name);
            let dash = || "-".to_owned();
            table.row(&[
                sandbox.name.to_string(),
                super::ls::status(&sandbox),
                execs.map_or_else(dash, running),
                metrics.as_ref().map_or_else(|_| dash(), |m| msb_spec::Bytes(m.memory).to_string()),
                metrics.as_ref().map_or_else(|_| dash(), |m| m.pids.to_string()),
                clock::ago(sandbox.created),
            ]);
        }
        table.print();
        Ok(0)
    }
}

impl PsArgs {
    /// Those that were named; all that run if none was.
    fn sandboxes(&self, api: &dyn Api) -> Result<Vec<Summary>> {
        if self.which.is_given() {
            let names = self.which.optional(api)?;
            return names.iter().map(|name| api.sandbox_summary(name)).collect();
        }
        let mut sandboxes = api.sandbox_list()?;
        sandboxes.retain(|sandbox| is_up(sandbox.status));
        Ok(sandboxes)
    }
}

fn show_execs(rows: &[Row], json: bool) {
    if json {
        return listing::json(&rows);
    }
    let mut table = Listing::new(&["SANDBOX", "ID", "PID", "STATUS", "AGE", "COMMAND"]);
    for Row { sandbox, exec } in rows {
        let status =
            exec.exit.map_or("running".to_owned(), |exit| format!("exited {}", exit.status()));
        table.row(&[
            sandbox.to_string(),
            exec.id.to_string(),
            exec.pid.to_string(),
            status,
            clock::ago(exec.started),
            exec.argv.join(" "),
        ]);
    }
    table.print();
}
