//! `msb image …`: the images there are.

use crate::at::At;
use crate::listing::{self, Listing};
use crate::table::ActAt;
use crate::words::{self, Failure, Outcome};
use crate::{clock, image_text};
use clap::Parser;
use msb_engine::images::{Prune, Pruned};
use msb_spec::{Bytes, Name, Reference, Result, Span};

/// Lists images: sizes are those of their files, OWN is what no other image has.
#[derive(Debug, Parser)]
#[command(override_usage = "msb image ls [OPTIONS]")]
pub(crate) struct Ls {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print names only
    #[arg(long, short)]
    quiet: bool,
}

impl ActAt for Ls {
    fn act_at(self, at: &At) -> Outcome {
        let images = at.api()?.image_list()?;
        if self.json {
            listing::json(&images);
            return Ok(0);
        }
        if self.quiet {
            images.iter().for_each(|image| words::say(&image.reference));
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
                image_text::size(image.size),
                image_text::size(image.own),
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
pub(crate) struct Inspect {
    /// Names of images that are here
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<Reference>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ActAt for Inspect {
    fn act_at(self, at: &At) -> Outcome {
        let api = at.api()?;
        let found = self.images.iter().map(|name| api.image_inspect(name));
        let found = found.collect::<Result<Vec<_>>>()?;
        match (self.json, found.as_slice()) {
            (true, [one]) => listing::json(one),
            (true, several) => listing::json(&several),
            (false, several) => {
                let texts: Vec<String> = several.iter().map(image_text::written).collect();
                words::stdout(texts.join("\n").as_bytes());
            }
        }
        Ok(0)
    }
}

/// Removes images, and the layers that only they had.
#[derive(Debug, Parser)]
#[command(override_usage = "msb image rm [OPTIONS] IMAGE...")]
pub(crate) struct Rm {
    /// Names of images that are here
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<Reference>,
    /// Also take away names that sandboxes use; they keep their layers
    #[arg(long, short)]
    force: bool,
}

impl ActAt for Rm {
    fn act_at(self, at: &At) -> Outcome {
        let api = at.api()?;
        let mut failed = false;
        for name in &self.images {
            match api.image_remove(name, self.force) {
                Ok(removed) => words::say(removed),
                Err(error) => {
                    words::tell(&error);
                    failed = true;
                }
            }
        }
        if failed { Err(Failure::Told) } else { Ok(0) }
    }
}

/// Removes unfinished transfers, and layers and blobs that neither an image nor a sandbox needs.
#[derive(Debug, Parser)]
#[command(override_usage = "msb image prune [OPTIONS]")]
pub(crate) struct PruneImages {
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

impl ActAt for PruneImages {
    fn act_at(self, at: &At) -> Outcome {
        let older_than = self.older_than.map(|span| span.0);
        let prune = Prune { all: self.all, older_than, dry_run: self.dry_run };
        let pruned = at.api()?.image_prune(&prune)?;
        tell_pruned(&pruned, self.dry_run, self.json);
        if pruned.failed.is_empty() { Ok(0) } else { Err(Failure::Told) }
    }
}

/// Says what was removed, or would be.
pub(crate) fn tell_pruned(pruned: &Pruned, dry_run: bool, json: bool) {
    if json {
        listing::json(pruned);
        return;
    }
    let verb = if dry_run { "would remove" } else { "removed" };
    for name in &pruned.images {
        words::say(format!("{verb} image {name}"));
    }
    for (count, what) in [
        (pruned.layers, "layers"),
        (pruned.blobs, "blobs"),
        (pruned.disks, "disks for microVMs"),
        (pruned.unfinished, "unfinished transfers"),
        (pruned.host_layers, "outdated layers of the host image"),
    ] {
        if count > 0 {
            words::say(format!("{verb} {count} {what}"));
        }
    }
    for failure in &pruned.failed {
        words::note(format!("not removed: {failure}"));
    }
    words::say(format!("{verb} {} in all", Bytes(pruned.bytes)));
}
