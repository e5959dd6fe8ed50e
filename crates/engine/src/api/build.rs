//! Building an image for whoever asks from elsewhere: a text, and no directory.

use super::watched::Watched;
use crate::Engine;
use crate::build::{Build, Recipe, Told, Watcher};
use crate::host::random;
use crate::images::Fetching;
use msb_api::{BUILD_LIMIT, ImageInspection, Part, Watch};
use msb_image::Reach;
use msb_spec::{Error, NetworkSpec, PullWhen, Reference, Result, env};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// As much of a command's last words as an error holds.
const LAST_LIMIT: usize = 2 << 10;

impl Engine {
    pub(super) fn build_text(
        &self,
        name: &Reference,
        containerfile: &str,
        watch: &dyn Watch,
    ) -> Result<ImageInspection> {
        let nothing = Nothing::make()?;
        let net = std::env::var(env::NET).ok();
        let build = Build {
            directory: nothing.0.clone(),
            recipe: Some(Recipe::Text(containerfile.to_owned())),
            names: vec![name.clone()],
            arguments: BTreeMap::new(),
            target: None,
            no_cache: false,
            pull: PullWhen::IfMissing,
            platform: None,
            network: Some(NetworkSpec::default().or_usual(net.as_deref())?),
            epoch: None,
            until: Some(Instant::now() + BUILD_LIMIT),
        };
        let progress = Watched::new(watch);
        let fetching = Fetching { reach: Reach::default(), progress: &progress };
        let mut told = Steps { watch, last: Vec::new() };
        let built = self.build(&build, &fetching, &mut told);
        let images = built.map_err(|error| match told.last.trim_ascii() {
            [] => error,
            // Whoever asked has seen nothing of what the command said.
            last => error.cause(String::from_utf8_lossy(last)),
        })?;
        let image = images.first().map_or(name, |image| &image.reference);
        self.image_inspect(image)
    }
}

/// An empty directory to build from, gone when this is.
struct Nothing(PathBuf);

impl Nothing {
    fn make() -> Result<Self> {
        let digits: String = random::<8>().iter().map(|byte| format!("{byte:02x}")).collect();
        let path = std::env::temp_dir().join(format!("msb-build-{digits}"));
        std::fs::create_dir(&path)
            .map_err(|error| Error::host(format!("cannot make `{}`", path.display()), error))?;
        Ok(Self(path))
    }
}

impl Drop for Nothing {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Tells the steps of a build, and keeps what the last command said.
struct Steps<'a> {
    watch: &'a dyn Watch,
    last: Vec<u8>,
}

impl Watcher for Steps<'_> {
    fn told(&mut self, what: Told<'_>) {
        match what {
            Told::Step { number, count, text, .. } => {
                self.last.clear();
                let part = Part { done: number as u64, of: count as u64 };
                self.watch.step(text, Some(part));
            }
            Told::Output(bytes) => {
                self.last.extend_from_slice(bytes);
                let more = self.last.len().saturating_sub(LAST_LIMIT);
                self.last.drain(..more);
                self.watch.step("building", None);
            }
            Told::Note(text) => self.watch.step(&text, None),
        }
    }
}
