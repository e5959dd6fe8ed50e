//! `msb image …`: the images there are.

use super::diff::counted;
use crate::listing::{self, Listing};
use crate::output::{self, Failure, Outcome};
use crate::target::Target;
use crate::verb_table::TargetVerb;
use crate::{clock, image_text};
use clap::Parser;
use msb_engine::images::PruneReport;
use msb_spec::{Bytes, Name, Reference, Result, Span};

/// Lists images: sizes are those of their files, OWN is what no other image has.
#[derive(Debug, Parser)]
#[command(override_usage = "msb image ls [OPTIONS]")]
pub(crate) struct ImageLsArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print names only
    #[arg(long, short)]
    quiet: bool,
}

impl TargetVerb for ImageLsArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let images = target.api()?.image_list()?;
        if self.json {
            listing::json_with_times(&images, &["used"]);
            return Ok(0);
        }
        if self.quiet {
            images.iter().for_each(|image| output::print(&image.reference));
            return Ok(0);
        }
        let mut table =
            Listing::new(&["IMAGE", "DIGEST", "PLATFORM", "SIZE", "OWN", "USED", "SANDBOXES"]);
        for image in images {
            let sandboxes: Vec<&str> = image.sandboxes.iter().map(Name::as_str).collect();
            table.row(&[
                image.reference.short(),
                image.digest.short().to_owned(),
                image.platform,
                Bytes(image.size).to_string(),
                Bytes(image.own).to_string(),
                image.used.map_or_else(String::new, clock::ago),
                sandboxes.join(","),
            ]);
        }
        table.print();
        Ok(0)
    }
}

/// Shows everything about images: layers, how they are run, how they were made.
#[derive(Debug, Parser)]
#[command(override_usage = "msb image inspect [OPTIONS] IMAGE...")]
pub(crate) struct ImageInspectArgs {
    /// Names of images that are here
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<Reference>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for ImageInspectArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let found = self.images.iter().map(|name| api.image_inspect(name));
        let found = found.collect::<Result<Vec<_>>>()?;
        match (self.json, found.as_slice()) {
            (true, [one]) => listing::json_with_times(one, &["used"]),
            (true, several) => listing::json_with_times(&several, &["used"]),
            (false, several) => {
                let texts: Vec<String> = several.iter().map(image_text::written).collect();
                output::write_stdout(texts.join("\n").as_bytes());
            }
        }
        Ok(0)
    }
}

/// Removes images, and the layers that only they had.
#[derive(Debug, Parser)]
#[command(override_usage = "msb image rm [OPTIONS] IMAGE...")]
pub(crate) struct ImageRmArgs {
    /// Names of images that are here
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<Reference>,
    /// Also take away names that sandboxes use; they keep their layers
    #[arg(long, short)]
    force: bool,
}

impl TargetVerb for ImageRmArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let api = target.api()?;
        let mut failed = false;
        for name in &self.images {
            match api.image_remove(name, self.force) {
                Ok(removed) => output::result("image", removed),
                Err(error) => {
                    output::print_error(&error);
                    failed = true;
                }
            }
        }
        if failed { Err(Failure::Reported) } else { Ok(0) }
    }
}

/// Removes unfinished transfers, and layers and blobs that neither an image nor a sandbox needs.
#[derive(Debug, Parser)]
#[command(override_usage = "msb image prune [OPTIONS]")]
pub(crate) struct ImagePruneArgs {
    /// Also remove images that no sandbox uses
    #[arg(long)]
    all: bool,
    /// With --all, only images that were not used for this long
    #[arg(long, value_name = "TIME", requires = "all")]
    older_than: Option<Span>,
    /// Tell what would be removed and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for ImagePruneArgs {
    fn run_on(self, target: &Target) -> Outcome {
        let older_than = self.older_than.map(|span| span.0);
        let pruned = target.api()?.image_prune(self.all, older_than, self.dry_run)?;
        tell_pruned(&pruned, self.dry_run, self.json);
        if pruned.failed.is_empty() { Ok(0) } else { Err(Failure::Reported) }
    }
}

/// Says what was removed, or would be.
pub(crate) fn tell_pruned(pruned: &PruneReport, dry_run: bool, json: bool) {
    if json {
        listing::json(pruned);
        return;
    }
    let verb = if dry_run { "would remove" } else { "removed" };
    for name in &pruned.images {
        output::print(format!("{verb} image {name}"));
    }
    for (count, one, many) in [
        (pruned.layers, "layer", "layers"),
        (pruned.blobs, "blob", "blobs"),
        (pruned.disks, "disk for microVMs", "disks for microVMs"),
        (pruned.unfinished, "unfinished transfer", "unfinished transfers"),
        (
            pruned.host_layers,
            "outdated layer of the host image",
            "outdated layers of the host image",
        ),
    ] {
        if count > 0 {
            let count = usize::try_from(count).unwrap_or(usize::MAX);
            output::print(format!("{verb} {}", counted(count, one, many)));
        }
    }
    for failure in &pruned.failed {
        output::note(format!("not removed: {failure}"));
    }
    output::print(format!("{verb} {} in all", Bytes(pruned.bytes)));
}
