//! `msb df` and `msb prune`: what uses the disk, and getting it back.

use super::engine;
use super::image::tell_pruned;
use crate::listing::{self, Listing};
use crate::target::Target;
use crate::verb_table::{LocalVerb, TargetVerb};

use crate::output::{self, Failure, Outcome};
use clap::Parser;
use msb_engine::PrunedVolumes;
use msb_engine::images::{Prune, PruneReport};
use msb_spec::Bytes;
use serde::Serialize;

/// Shows what uses the disk.
#[derive(Debug, Parser)]
#[command(override_usage = "msb df [OPTIONS]")]
pub(crate) struct DfArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for DfArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let usage = target.api()?.disk_usage()?;
        if self.json {
            listing::json(&usage);
            return Ok(0);
        }
        let images = usage.images;
        let mut table = Listing::new(&["WHAT", "COUNT", "SIZE"]);
        for (what, count, bytes) in [
            ("images, unpacked", Some(images.images), images.layers),
            ("images, as pulled", None, images.blobs),
            ("images, for microVMs", None, images.disks),
            ("unfinished transfers", None, images.unfinished),
            ("layers of the host image", None, images.host_layers),
            ("build cache", None, usage.build_cache),
            ("sandboxes", Some(usage.sandboxes), usage.sandbox_bytes),
            ("snapshots", Some(usage.snapshots), usage.frozen_bytes),
            ("volumes", Some(usage.volumes), usage.volume_bytes),
        ] {
            let count = count.map_or_else(String::new, |count| count.to_string());
            table.row(&[what.to_owned(), count, Bytes(bytes).to_string()]);
        }
        table.print();
        output::print(format!(
            "\n`msb prune` gives back {}, `msb prune --all` {}",
            Bytes(usage.reclaimable),
            Bytes(usage.reclaimable_all)
        ));
        Ok(0)
    }
}

/// Gives back what nothing needs: leftovers and the build cache. Sandboxes, snapshots and
/// volumes stay.
#[derive(Debug, Parser)]
#[command(override_usage = "msb prune [OPTIONS]")]
pub(crate) struct PruneArgs {
    /// Also remove images that no sandbox uses
    #[arg(long)]
    all: bool,
    /// Also remove volumes that no sandbox uses, running or not, with all they hold
    #[arg(long)]
    volumes: bool,
    /// Tell what would be removed and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Everything that was removed, for programs.
#[derive(Debug, Serialize)]
struct All<'a> {
    #[serde(flatten)]
    pruned: &'a PruneReport,
    #[serde(flatten)]
    volumes: &'a PrunedVolumes,
}

impl LocalVerb for PruneArgs {
    fn run(self) -> Outcome {
        let prune = Prune { all: self.all, dry_run: self.dry_run, older_than: None };
        let engine = engine()?;
        let volumes = match self.volumes {
            true => engine.volumes().prune(self.dry_run)?,
            false => PrunedVolumes::default(),
        };
        let mut pruned = engine.prune(&prune)?;
        pruned.bytes += volumes.volume_bytes;
        if self.json {
            listing::json(&All { pruned: &pruned, volumes: &volumes });
        } else {
            let verb = if self.dry_run { "would remove" } else { "removed" };
            volumes.volumes.iter().for_each(|name| output::print(format!("{verb} volume {name}")));
            tell_pruned(&pruned, self.dry_run, false);
        }
        if pruned.failed.is_empty() { Ok(0) } else { Err(Failure::Reported) }
    }
}
