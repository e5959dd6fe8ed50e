//! `msb pull`: images from a registry.

use super::bare_engine;
use crate::listing;
use crate::output::{self, Outcome};
use crate::pull_progress::{Bars, FetchArgs, Steps};
use crate::target::{RemoteServer, Target};
use crate::verb_table::TargetVerb;
use clap::Parser;
use msb_engine::images;
use msb_spec::{Error, Platform, Reference, Result};

/// Fetches images, so that they start at once and without a network.
#[derive(Debug, Parser)]
#[command(override_usage = "msb pull [OPTIONS] IMAGE...")]
pub(crate) struct PullArgs {
    /// Names, as in `python`, `ghcr.io/team/app:1.2` or `alpine@sha256:…`
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<Reference>,
    /// Platform of the image, as in `linux/arm64`
    #[arg(long, value_name = "PLATFORM")]
    platform: Option<Platform>,
    #[command(flatten)]
    fetch: FetchArgs,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl TargetVerb for PullArgs {
    fn run_on(self, target: &Target) -> Outcome {
        if let Target::Remote(server) = target {
            return self.pull_remote(server);
        }
        let engine = bare_engine()?;
        let store = engine.images()?;
        let pull = images::PullOptions { platform: self.platform, reach: self.fetch.reach() };
        let mut pulled = Vec::new();
        for name in &self.images {
            let name = store.settings().meant(name);
            let image = store.pull(name, &pull, &Bars::new(self.quiet))?;
            if !self.json {
                output::print(image.reference.at(&image.digest));
            }
            pulled.push(image.reference);
        }
        if self.json {
            let shown = pulled.iter().map(|name| engine.image_inspect(name));
            listing::json(&shown.collect::<Result<Vec<_>>>()?);
        }
        Ok(0)
    }
}

impl PullArgs {
    fn pull_remote(self, server: &RemoteServer) -> Outcome {
        if self.platform.is_some() {
            return Err(Error::unsupported("`--platform` cannot be done through a server")
                .hint("the server pulls for its own machine; pull others where it is")
                .into());
        }
        let registry = self.fetch.registry()?;
        let api = server.api()?;
        let mut pulled = Vec::new();
        for name in &self.images {
            let image = api.image_pull(name, Some(&registry), &Steps::new(self.quiet))?;
            if !self.json {
                output::print(image.reference.at(&image.digest));
            }
            pulled.push(image);
        }
        if self.json {
            listing::json(&pulled);
        }
        Ok(0)
    }
}
