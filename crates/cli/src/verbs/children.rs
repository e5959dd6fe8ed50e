//! `msb spawn` and `msb children`: sandboxes made for sandboxes.

use crate::clock::{now_ms, whole_seconds};
use crate::listing::{self, Listing};
use crate::output::{self, Outcome};
use crate::pull_progress::Steps;
use crate::target::Target;
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_api::{Child, ChildSpec, Status};
use msb_spec::{Bytes, Cpus, ImageRef, Isolation, Name, Peers, WayOut};
use serde::Serialize;

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
    /// Memory, as in `128M`; a bare number is MiB; no more than the policy gives to each
    #[arg(long, short, value_name = "SIZE", value_parser = Bytes::parse_size)]
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
            true => listing::json(&ChildRow::of(&child)),
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
            listing::json(&ChildrenReport {
                children: list.children.iter().map(ChildRow::of).collect(),
                spawned: list.spawned,
                max_total: list.max_total,
            });
            return Ok(0);
        }
        if self.quiet {
            list.children.iter().for_each(|child| output::print(&child.name));
            return Ok(0);
        }
        let mut table = Listing::new(&["NAME", "STATUS", "IMAGE", "CPUS", "MEMORY", "ENDS IN"]);
        for child in &list.children {
            let left = child.expires.map(|at| at.saturating_sub(now_ms()));
            table.row(&[
                child.name.to_string(),
                child.status.as_str().to_owned(),
                child.image.to_string(),
                child.cpus.to_string(),
                child.memory.to_string(),
                left.map_or("-".to_owned(), whole_seconds),
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

/// The children of a sandbox for programs, with amounts as numbers.
#[derive(Debug, Serialize)]
struct ChildrenReport<'a> {
    children: Vec<ChildRow<'a>>,
    spawned: u32,
    max_total: Option<u32>,
}

/// One child for programs. The HTTP API has its amounts as text.
#[derive(Debug, Serialize)]
struct ChildRow<'a> {
    name: &'a Name,
    parent: &'a Name,
    image: &'a ImageRef,
    isolation: Isolation,
    status: Status,
    /// The number of its processors, with a fraction.
    cpus: f64,
    /// The limit of its memory, in bytes.
    memory: u64,
    /// When it was made, in milliseconds since 1970.
    created: u64,
    /// When it ends, in milliseconds since 1970; none with its parent.
    expires: Option<u64>,
    generation: u32,
    peers: Peers,
    net: WayOut,
    ports: bool,
}

impl<'a> ChildRow<'a> {
    fn of(child: &'a Child) -> Self {
        let Child {
            name, parent, image, isolation, status, cpus, memory, created, expires, ..
        } = child;
        Self {
            name,
            parent,
            image,
            isolation: *isolation,
            status: *status,
            cpus: f64::from(cpus.millis) / 1000.0,
            memory: memory.0,
            created: *created,
            expires: *expires,
            generation: child.generation,
            peers: child.peers,
            net: child.net,
            ports: child.ports,
        }
    }
}
