//! Builds images from Containerfiles: each RUN in its own sandbox, each layer through the image
//! store.

mod context;
mod run_step;
mod stages;

pub use context::ContainerfileSource;
pub use msb_image::build::CONTAINERFILE_LIMIT as LIMIT;

use crate::Engine;
use crate::images::Fetching;
use msb_image::Image;
use msb_image::build::Containerfile;
use msb_spec::{Error, NetworkSpec, Platform, PullWhen, Reference, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// The options of a build.
#[derive(Debug, Clone)]
pub struct Build {
    /// The build context: COPY and ADD take files from here.
    pub directory: PathBuf,
    /// The Containerfile; `None` uses that of the context.
    pub recipe: Option<ContainerfileSource>,
    /// The names of the image; at least one.
    pub names: Vec<Reference>,
    /// The values of ARG variables (`--build-arg`).
    pub arguments: BTreeMap<String, String>,
    /// The stage to build; `None` is the last one.
    pub target: Option<String>,
    /// Whether cached steps are ignored.
    pub no_cache: bool,
    /// When base images are fetched.
    pub pull: PullWhen,
    /// The target platform; `None` is that of the host.
    pub platform: Option<Platform>,
    /// The network of RUN; `None` has no network.
    pub network: Option<NetworkSpec>,
    /// The creation time in seconds since 1970, for reproducible builds (`SOURCE_DATE_EPOCH`).
    pub epoch: Option<i64>,
    /// When running commands are killed; `None` is never.
    pub until: Option<Instant>,
}

/// An event of a build.
#[derive(Debug, Clone)]
pub enum BuildEvent<'a> {
    /// A step starts, or is taken from the cache.
    Step {
        /// The name or number of the stage, if there are several.
        stage: Option<String>,
        /// The number of the step, from 1.
        number: usize,
        /// The number of steps of the stage.
        count: usize,
        /// The instruction as written in the Containerfile.
        text: &'a str,
        /// Whether the step came from the cache.
        cached: bool,
    },
    /// A command has written output.
    Output(&'a [u8]),
    /// A note for the user.
    Note(String),
}

/// Receives the events of a build.
pub trait Watcher {
    /// Called for each event.
    fn told(&mut self, what: BuildEvent<'_>);
}

impl Engine {
    /// Builds an image and adds it to the store under its names.
    pub fn build(
        &self,
        build: &Build,
        fetching: &Fetching<'_>,
        watcher: &mut dyn Watcher,
    ) -> Result<Vec<Image>> {
        if let Some(name) = build.names.iter().find(|name| name.digest().is_some()) {
            return Err(Error::invalid(format!("an image cannot be given a digest: `{name}`"))
                .hint("the digest follows from what is built; `-t` takes a name and a tag"));
        }
        // Checked before the first step, even if no RUN needs it.
        build.network.iter().try_for_each(NetworkSpec::validate)?;
        let context = context::find(build)?;
        let file = Containerfile::parse(&context.name, &context.text)?;
        let store = self.images()?;
        // Keeps layers without a name from being pruned.
        let _adding = store.adding()?;
        let mut stages = stages::Stages::new(self, &store, build, &context, &file, fetching)?;
        let finished = stages.build(watcher)?;
        let names = build.names.iter();
        names.map(|name| store.add_image(name, &finished.image, &finished.layers)).collect()
    }
}
