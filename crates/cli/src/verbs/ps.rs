//! `msb ps`: what runs.

use super::ls::SandboxRow;
use crate::listing::{self, Listing};
use crate::selection::Selection;
use crate::target::{Target, is_up};
use crate::verb_table::TargetVerb;
use crate::{clock, output};
use clap::Parser;
use msb_api::{Api, ExecEntry, Summary};
use msb_spec::{Bytes, Error, Name, Result};
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

/// A sandbox with what it uses now; none of it while it does not run.
#[derive(Serialize)]
struct RunningRow {
    #[serde(flatten)]
    sandbox: SandboxRow,
    /// The number of running commands.
    execs: Option<usize>,
    /// Memory in use, in bytes.
    memory: Option<u64>,
    /// The number of processes and threads.
    pids: Option<u32>,
}

impl RunningRow {
    fn of(api: &dyn Api, summary: Summary) -> Self {
        let (name, up) = (summary.name.clone(), is_up(summary.status));
        let execs = up.then(|| api.exec_list(&name).ok()).flatten();
        let metrics = up.then(|| api.sandbox_metrics(&name).ok()).flatten();
        let running = |execs: Vec<ExecEntry>| execs.iter().filter(|it| it.exit.is_none()).count();
        Self {
            sandbox: SandboxRow::of(api, summary),
            execs: execs.map(running),
            memory: metrics.as_ref().map(|metrics| metrics.memory),
            pids: metrics.as_ref().map(|metrics| metrics.pids),
        }
    }
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
        let sandboxes = self.sandboxes(&*api)?.into_iter();
        let rows: Vec<RunningRow> = sandboxes.map(|it| RunningRow::of(&*api, it)).collect();
        if self.json {
            listing::json(&rows);
            return Ok(0);
        }
        let mut table = Listing::new(&["NAME", "STATUS", "EXECS", "MEMORY", "PIDS", "AGE"]);
        for row in rows {
            table.row(&[
                row.sandbox.name.to_string(),
                row.sandbox.status(),
                or_dash(row.execs),
                or_dash(row.memory.map(Bytes)),
                or_dash(row.pids),
                clock::ago(row.sandbox.created),
            ]);
        }
        table.print();
        Ok(0)
    }
}

fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
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
