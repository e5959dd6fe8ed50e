//! `msb spawn` and `msb children`: sandboxes made for sandboxes.

use crate::at::At;
use crate::clock::now_ms;
use crate::fetching::Steps;
use crate::listing::{self, Listing};
use crate::table::ActAt;
use crate::words::{self, Outcome};
use clap::Parser;
use msb_api::ChildSpec;
use msb_spec::{Bytes, Cpus, ImageRef, Name, Span};
use std::time::Duration;

/// Makes a child of a running sandbox, within the budget that it was made with (`--spawn`).
///
/// The child is removed with its parent, when that is reset, and when its time is over.
#[derive(Debug, Parser)]
#[command(override_usage = "msb spawn [OPTIONS] PARENT")]
pub(crate) struct Spawn {
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

impl ActAt for Spawn {
    fn act_at(self, at: &At) -> Outcome {
        let api = at.api()?;
        let parent = Name::parse(&self.parent)?;
        let Self { image, name, cpus, memory, .. } = self;
        let steps = Steps::new(self.quiet || self.json);
        let child = api.child_spawn(&parent, &ChildSpec { image, name, cpus, memory }, &steps);
        drop(steps);
        let child = child?;
        match self.json {
            true => listing::json(&child),
            false => words::say(child.name),
        }
        Ok(0)
    }
}

/// Lists the children of a sandbox.
#[derive(Debug, Parser)]
#[command(override_usage = "msb children [OPTIONS] PARENT")]
pub(crate) struct Children {
    /// Name of the sandbox whose children they are
    #[arg(value_name = "PARENT")]
    parent: String,
    /// Print JSON
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    /// Print names only
    #[arg(long, short)]
    quiet: bool,
}

impl ActAt for Children {
    fn act_at(self, at: &At) -> Outcome {
        let api = at.api()?;
        let brood = api.child_list(&Name::parse(&self.parent)?)?;
        if self.json {
            listing::json(&brood);
            return Ok(0);
        }
        if self.quiet {
            brood.children.iter().for_each(|child| words::say(&child.name));
            return Ok(0);
        }
        let mut table = Listing::new(&["NAME", "STATUS", "IMAGE", "CPUS", "MEMORY", "ENDS IN"]);
        for child in &brood.children {
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
        match brood.max_total {
            Some(most) => words::note(format!("{} of {most} children were made", brood.spawned)),
            None => words::note("it may have no children: it was made without `--spawn`"),
        }
        Ok(0)
    }
}
