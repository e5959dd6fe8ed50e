//! `msb spawn` and `msb children`: sandboxes made for sandboxes.

use crate::clock::now_ms;
use crate::listing::{self, Listing};
use crate::output::{self, Outcome};
use crate::pull_progress::Steps;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_api::ChildSpec;
use msb_spec::{Bytes, Cpus, ImageRef, Name, Span};
use std::time::Duration;

/// Makes a child of a running sandbox, within the budget that it was made with (`--spawn`).
///
/// The child is removed with its parent, when that is reset, and when its time is over.
#[derive(Debug, Parser)]
#[command(override_usage = "msb spawn [OPTIONS] PARENT")]
pub(crate) struct SpawnArgs {
    /// Name of the sandbox that it is for
    #[arg(value_name = "PARENT")]
    parent: String,
    /// What it starts from, one of those that its parent's policy names
    #[arg(long, value_name = "IMAGE")]
    image: Option<ImageRef>,
    /// Its name [default: PARENT-child-NNNN]
    #[arg(long, short, value_name = "NAME")]
    name: Option<Name>,
    /// Processors; no more than the policy gives to each
    #[arg(long, value_name = "N")]
    cpus: Option<Cpus>,
    /// Memory; no more than the policy gives to each
    #[arg(long, short, value_name = "SIZE")]
    memory: Option<Bytes>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Say nothing but its name
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for SpawnArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let parent = Name::parse(&self.parent)?;
        let Self { image, name, cpus, memory, .. } = self;
        let steps = Steps::new(self.quiet || self.json);
        let child = api.child_spawn(&parent, &ChildSpec { image, name, cpus, memory }, &steps);
        drop(steps);
        let child = child?;
        match self.json {
            true => listing::json(&child),
            false => output::print(child.name),
        }
        Ok(0)
    }
}

/// Lists the children of a sandbox.
#[derive(Debug, Parser)]
#[command(override_usage = "msb children [OPTIONS] PARENT")]
pub(crate) struct ChildrenArgs {
    /// Name of the parent sandbox
    #[arg(value_name = "PARENT")]
    parent: String,
    /// Print JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Print names only
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for ChildrenArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let list = api.child_list(&Name::parse(&self.parent)?)?;
        if self.json {
            listing::json(&list);
            return Ok(0);
        }
        if self.quiet {
            list.children.iter().for_each(|child| output::print(&child.name));
            return Ok(0);
        }
        let mut table = Listing::new(&["NAME", "STATUS", "IMAGE", "CPUS", "MEMORY", "ENDS IN"]);
        for child in &list.children {
            let left = child.expires.map(|at| at.saturating_sub(now_ms()) / 1000);
            table.row(&[
                child.name.to_string(),
                child.status.as_str().to_owned(),
                child.image.to_string(),
                child.cpus.to_string(),
                child.memory.to_string(),
                left.map_or("-".to_owned(), |left| Span(Duration::from_secs(left)).to_string()),
            ]);
        }
        table.print();
        match list.max_total {
            Some(most) => output::note(format!("{} of {most} children were made", list.spawned)),
            None => output::note("it may have no children: it was made without `--spawn`"),
        }
        Ok(0)
    }
}
