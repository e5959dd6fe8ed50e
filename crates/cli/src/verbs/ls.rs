//! `msb ls`: the sandboxes there are.

use crate::listing::{self, Listing};
use crate::selection::pair;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use crate::{clock, output};
use clap::Parser;
use msb_api::Summary;
use msb_spec::{ImageRef, Result};

/// Lists sandboxes: running ones, with `--all` every one.
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

/// Where it is in its life, and how it is doing.
pub(super) fn status(sandbox: &Summary) -> String {
    let mut words = vec![sandbox.status.as_str().to_owned()];
    words.extend(sandbox.health.map(|health| health.as_str().to_owned()));
    words.extend(match sandbox.restarts {
        None | Some(0) => None,
        Some(1) => Some("1 restart".to_owned()),
        Some(count) => Some(format!("{count} restarts")),
    });
    words.join(", ")
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
        if self.json {
            listing::json(&sandboxes);
        } else if self.quiet {
            sandboxes.iter().for_each(|sandbox| output::print(&sandbox.name));
        } else {
            let mut table =
                Listing::new(&["NAME", "STATUS", "IMAGE", "ISOLATION", "AGE", "LABELS"]);
            for sandbox in sandboxes {
                let labels = sandbox.labels.iter().map(|(key, value)| format!("{key}={value}"));
                table.row(&[
                    sandbox.name.to_string(),
                    status(&sandbox),
                    short(&sandbox.image),
                    sandbox.isolation,
                    clock::ago(sandbox.created),
                    labels.collect::<Vec<_>>().join(","),
                ]);
            }
            table.print();
        }
        Ok(0)
    }
}
