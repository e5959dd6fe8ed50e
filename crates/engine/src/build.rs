//! Builds images from Containerfiles: every RUN in a sandbox of its own, every layer through the
//! store like any other.

mod running;
mod sources;
mod stages;

pub use msb_image::build::CONTAINERFILE_LIMIT as LIMIT;
pub use sources::Recipe;

use crate::Engine;
use crate::images::Fetching;
use msb_image::Image;
use msb_image::build::Containerfile;
use msb_spec::{Error, NetworkSpec, Platform, PullWhen, Reference, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// What is to be built.
#[derive(Debug, Clone)]
pub struct Build {
    /// What COPY and ADD take files from.
    pub directory: PathBuf,
    /// What says how; none is the directory's own.
    pub recipe: Option<Recipe>,
    /// What the image is to be called; at least one.
    pub names: Vec<Reference>,
    /// Values for ARG.
    pub arguments: BTreeMap<String, String>,
    /// The stage that is wanted; none is the last.
    pub target: Option<String>,
    /// Whether every step is done again.
    pub no_cache: bool,
    /// When images below are fetched.
    pub pull: PullWhen,
    /// For which platform.
    pub platform: Option<Platform>,
    /// Whom RUN reaches; none is nobody.
    pub network: Option<NetworkSpec>,
    /// The time that the image is to bear, in seconds since 1970, so that it is the same whenever
    /// it is built.
    pub epoch: Option<i64>,
    /// When commands that still run are killed; none is never.
    pub until: Option<Instant>,
}

/// What happens during a build.
#[derive(Debug, Clone)]
pub enum Told<'a> {
    /// A step begins, or was done before.
    Step {
        /// The stage's name or number, if there are several.
        stage: Option<String>,
        /// Which step.
        number: usize,
        /// Of how many.
        count: usize,
        /// As written.
        text: &'a str,
        /// Whether it was done before.
        cached: bool,
    },
    /// A command says something.
    Output(&'a [u8]),
    /// Something to know.
    Note(String),
}

/// Whoever watches a build.
pub trait Watcher {
    /// Something happened.
    fn told(&mut self, what: Told<'_>);
}

impl Engine {
    /// Builds an image and gives it its names.
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
        // Before the first step, and not only if there is one that needs it.
        build.network.iter().try_for_each(NetworkSpec::validate)?;
        let sources = sources::find(build)?;
        let file = Containerfile::parse(&sources.name, &sources.text)?;
        let store = self.images()?;
        // What is not named yet must not be taken for rubbish.
        let _adding = store.adding()?;
        let mut stages = stages::Stages::new(self, &store, build, &sources, &file, fetching)?;
        let finished = stages.build(watcher)?;
        let names = build.names.iter();
        names.map(|name| store.add_image(name, &finished.image, &finished.layers)).collect()
    }
}
