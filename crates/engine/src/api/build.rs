//! Builds an image for a remote client, which sends the text of a Containerfile and no directory.

use super::pull_progress::PullProgress;
use crate::Engine;
use crate::build::{Build, BuildEvent, ContainerfileSource, Watcher};
use crate::host::random;
use crate::images::Fetching;
use msb_api::{BUILD_LIMIT, ImageInspection, Part, Watch};
use msb_image::RegistryOptions;
use msb_spec::encoding::hex;
use msb_spec::{Error, PullWhen, Reference, Result};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// Bytes at the end of a command's output that an error contains.
const OUTPUT_TAIL: usize = 2 << 10;

impl Engine {
    pub(super) fn build_text(
        &self,
        name: &Reference,
        containerfile: &str,
        watch: &dyn Watch,
    ) -> Result<ImageInspection> {
        let context = EmptyDir::make()?;
        let defaults = crate::conf::defaults()?;
        let build = Build {
            directory: context.0.clone(),
            recipe: Some(ContainerfileSource::Text(containerfile.to_owned())),
            names: vec![name.clone()],
            arguments: BTreeMap::new(),
            target: None,
            no_cache: false,
            pull: PullWhen::IfMissing,
            platform: None,
            network: Some(defaults.network(defaults.network_base(), false)?),
            epoch: None,
            until: Some(Instant::now() + BUILD_LIMIT),
        };
        let progress = PullProgress::new(watch);
        let fetching = Fetching { reach: RegistryOptions::default(), progress: &progress };
        let mut steps = BuildProgress { watch, output_tail: Vec::new() };
        let built = self.build(&build, &fetching, &mut steps);
        let images = built.map_err(|error| match steps.output_tail.trim_ascii() {
            [] => error,
            // The client has not seen the output of the command.
            output_tail => error.cause(String::from_utf8_lossy(output_tail)),
        })?;
        let image = images.first().map_or(name, |image| &image.reference);
        self.image_inspect(image)
    }
}

/// An empty build context in the temporary directory, removed on drop.
struct EmptyDir(PathBuf);

impl EmptyDir {
    fn make() -> Result<Self> {
        let digits = hex(random::<8>());
        let path = std::env::temp_dir().join(format!("msb-build-{digits}"));
        std::fs::create_dir(&path)
            .map_err(|error| Error::host(format!("cannot make `{}`", path.display()), error))?;
        Ok(Self(path))
    }
}

impl Drop for EmptyDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Reports the steps of a build and keeps the end of the last command's output.
struct BuildProgress<'a> {
    watch: &'a dyn Watch,
    output_tail: Vec<u8>,
}

impl Watcher for BuildProgress<'_> {
    fn told(&mut self, what: BuildEvent<'_>) {
        match what {
            BuildEvent::Step { number, count, text, .. } => {
                self.output_tail.clear();
                let part = Part { done: number as u64, of: count as u64 };
                self.watch.step(text, Some(part));
            }
            BuildEvent::Output(bytes) => {
                self.output_tail.extend_from_slice(bytes);
                let more = self.output_tail.len().saturating_sub(OUTPUT_TAIL);
                self.output_tail.drain(..more);
                self.watch.step("building", None);
            }
            BuildEvent::Note(text) => self.watch.step(&text, None),
        }
    }
}
