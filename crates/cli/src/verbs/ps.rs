//! `msb ps`: what runs.

use super::engine;
use crate::listing::{self, Listing};
use crate::selection::Selection;
use crate::table::Act;
use crate::{clock, words};
use clap::Parser;
use msb_engine::{ExecEntry, Status};
use msb_spec::Name;
use serde::Serialize;

/// Shows running sandboxes, or the commands in them.
#[derive(Debug, Parser)]
#[command(override_usage = "msb ps [OPTIONS] [NAME...]")]
pub(crate) struct Ps {
    #[command(flatten)]
    which: Selection,
    /// Show the commands that run inside
    #[arg(long)]
    execs: bool,
    /// Commands that have ended, too
    #[arg(long, short, requires = "execs")]
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

impl Act for Ps {
    fn act(self) -> words::Outcome {
        let engine = engine()?;
        let names = self.which.optional(&engine)?;
        if self.execs {
            let mut rows = Vec::new();
            for name in names {
                let entries = engine.execs(&name)?.into_iter();
                let shown = entries.filter(|entry| self.all || entry.exit.is_none());
                rows.extend(shown.map(|exec| Row { sandbox: name.clone(), exec }));
            }
            show_execs(&rows, self.json);
            return Ok(0);
        }
        let mut sandboxes =
            names.iter().map(|name| engine.summary(name)).collect::<Result<Vec<_>, _>>()?;
        if !self.which.is_given() {
            sandboxes.retain(|one| {
                matches!(one.status, Status::Running | Status::Paused | Status::Draining)
            });
        }
        if self.json {
            listing::json(&sandboxes);
            return Ok(0);
        }
        let mut table = Listing::new(&["NAME", "STATUS", "EXECS", "MEMORY", "PIDS", "AGE"]);
        for sandbox in sandboxes {
            let execs = engine.running_execs(&sandbox.name).map(|execs| execs.len().to_string());
            let metrics = engine.metrics(&sandbox.name);
            let dash = || "-".to_owned();
            table.row(&[
                sandbox.name.to_string(),
                sandbox.status.as_str().to_owned(),
                execs.unwrap_or_else(|_| dash()),
                metrics.as_ref().map_or_else(|_| dash(), |m| msb_spec::Bytes(m.memory).to_string()),
                metrics.as_ref().map_or_else(|_| dash(), |m| m.pids.to_string()),
                clock::ago(sandbox.created),
            ]);
        }
        table.print();
        Ok(0)
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
