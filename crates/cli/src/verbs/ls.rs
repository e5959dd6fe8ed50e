//! `msb ls`: the sandboxes there are.

use crate::listing::{self, Listing};
use crate::selection::pair;
use crate::target::{Target, is_up};
use crate::verb_table::TargetVerb;
use crate::{clock, output};
use clap::Parser;
use msb_api::{Api, Summary};
use msb_spec::{Ending, HealthStatus, ImageRef, Name, PublishedPort, Result};
use serde::Serialize;
use std::collections::BTreeMap;

/// Lists sandboxes: running ones and stopped ones.
#[derive(Debug, Parser)]
#[command(override_usage = "msb ls [OPTIONS]")]
pub(crate) struct LsArgs {
    /// Only those with this label (may be given several times; all must match)
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print names only
    #[arg(long, short)]
    quiet: bool,
}

/// An image as people call it.
fn short(image: &str) -> String {
    match ImageRef::parse(image) {
        Ok(ImageRef::Name(name)) => name.short(),
        _ => image.to_owned(),
    }
}

/// A sandbox as listings show it.
#[derive(Debug, Serialize)]
pub(super) struct SandboxRow {
    pub(super) name: Name,
    /// Where it is in its life; [`REVIEW`] is a value that only listings have.
    status: &'static str,
    /// How its first command exited, as in shells; none while it runs or without a command.
    exit_code: Option<i32>,
    /// Why it ended, as a sentence; none if its command exited by itself.
    reason: Option<String>,
    isolation: String,
    isolation_reason: Option<String>,
    image: String,
    /// The ports of the host that lead into it now.
    ports: Vec<PublishedPort>,
    /// When it was made, in milliseconds since 1970.
    pub(super) created: u64,
    labels: BTreeMap<String, String>,
    ephemeral: bool,
    restarts: Option<u32>,
    health: Option<HealthStatus>,
    /// Reasons that the status repeats are not shown again.
    #[serde(skip)]
    ending: Option<Ending>,
}

/// The status of a sandbox that `msb run --workspace` has left: only its changes are kept, until
/// they are applied or discarded.
const REVIEW: &str = "review";

/// Whether a sandbox is only kept for the review of its workspace.
pub(super) fn is_for_review(sandbox: &Summary) -> bool {
    sandbox.ephemeral && !is_up(sandbox.status)
}

impl SandboxRow {
    /// Asks for what a summary does not have: how it ended, or its ports.
    pub(super) fn of(api: &dyn Api, summary: Summary) -> Self {
        let up = is_up(summary.status);
        // It may end or be removed meanwhile, and one without a network has no ports.
        let ports = up.then(|| api.network_table(&summary.name).ok()).flatten();
        let inspected = (!up).then(|| api.sandbox_inspect(&summary.name).ok()).flatten();
        let stopped = inspected.as_ref().and_then(|inspected| inspected.stopped);
        let status = if is_for_review(&summary) { REVIEW } else { summary.status.as_str() };
        let Summary { name, isolation, isolation_reason, image, created, labels, .. } = summary;
        Self {
            name,
            status,
            exit_code: stopped.and_then(|stopped| stopped.exit).map(|exit| exit.status()),
            reason: inspected.and_then(|inspected| inspected.reason),
            isolation,
            isolation_reason,
            image,
            ports: ports.map(|table| table.ports).unwrap_or_default(),
            created,
            labels,
            ephemeral: summary.ephemeral,
            restarts: summary.restarts,
            health: summary.health,
            ending: stopped.map(|stopped| stopped.ending),
        }
    }

    /// Where it is in its life, how it is doing, and how it ended.
    pub(super) fn status(&self) -> String {
        if self.status == REVIEW {
            return "changes to review".to_owned();
        }
        let mut words = vec![self.status.to_owned()];
        words.extend(self.health.map(|health| health.as_str().to_owned()));
        words.extend(match self.restarts {
            None | Some(0) => None,
            Some(1) => Some("1 restart".to_owned()),
            Some(count) => Some(format!("{count} restarts")),
        });
        words.extend(self.exit_code.map(|code| format!("exit {code}")));
        let repeated = matches!(self.ending, Some(Ending::Stopped | Ending::Crashed));
        words.extend(self.reason.clone().filter(|_| !repeated));
        words.join(", ")
    }
}

impl TargetVerb for LsArgs {
    fn run_on(self, target: &Target) -> output::Outcome {
        let api = target.api()?;
        let labels = self.labels.iter().map(|label| pair(label)).collect::<Result<Vec<_>>>()?;
        let mut sandboxes = api.sandbox_list()?;
        sandboxes.retain(|sandbox| {
            labels
                .iter()
                .all(|(key, value)| sandbox.labels.get(*key).is_some_and(|own| own == value))
        });
        if self.quiet && !self.json {
            sandboxes.iter().for_each(|sandbox| output::print(&sandbox.name));
            return Ok(0);
        }
        let rows: Vec<SandboxRow> =
            sandboxes.into_iter().map(|sandbox| SandboxRow::of(&*api, sandbox)).collect();
        if self.json {
            listing::json(&rows);
            return Ok(0);
        }
        let mut table =
            Listing::new(&["NAME", "STATUS", "IMAGE", "ISOLATION", "PORTS", "AGE", "LABELS"]);
        for row in rows {
            let labels = row.labels.iter().map(|(key, value)| format!("{key}={value}"));
            table.row(&[
                row.name.to_string(),
                row.status(),
                short(&row.image),
                row.isolation.clone(),
                row.ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
                clock::ago(row.created),
                labels.collect::<Vec<_>>().join(","),
            ]);
        }
        table.print();
        Ok(0)
    }
}
