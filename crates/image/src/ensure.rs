//! Resolves an image name to layer directories. Pulls only what is missing.

use crate::PreparedImage;
use crate::progress::Progress;
use crate::pull::PullOptions;
use crate::registry::RegistryOptions;
use crate::store::{Image, Store};
use msb_spec::{
    Error, ImageRef, Kind, Lower, Overlay, Platform, PullWhen, Reference, Result, Stage,
};
use std::path::PathBuf;

/// Options for an image that is to be started, beyond its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EnsureOptions {
    /// When to contact the registry.
    pub when: PullWhen,
    /// Platform to select; the host's by default.
    pub platform: Option<Platform>,
    /// How to connect to the registry.
    pub reach: RegistryOptions,
}

impl Store {
    /// Resolves a name, pulls and unpacks what is missing, and returns what to mount.
    pub fn prepare(
        &self,
        name: &Reference,
        options: &EnsureOptions,
        progress: &dyn Progress,
    ) -> Result<PreparedImage> {
        self.prepare_named(name, options, progress).map_err(|error| error.at(Stage::Image))
    }

    fn prepare_named(
        &self,
        name: &Reference,
        options: &EnsureOptions,
        progress: &dyn Progress,
    ) -> Result<PreparedImage> {
        let (image, layers) = self.ensure(name, options, progress)?;
        if !image.platform.runs_here() {
            return Err(cannot_run(&image));
        }
        self.touch(&image.reference);
        let lowers = layers.into_iter().map(Lower::of_image).collect();
        Ok(PreparedImage {
            overlays: vec![Overlay { at: "/".to_owned(), lowers }],
            image: ImageRef::Name(image.reference),
            digest: Some(image.digest),
            config: image.config,
            owners: image.owners,
            path: Vec::new(),
            layers: image.layers,
        })
    }

    /// The image with this name and its layer directories, topmost first.
    pub fn ensure(
        &self,
        name: &Reference,
        options: &EnsureOptions,
        progress: &dyn Progress,
    ) -> Result<(Image, Vec<PathBuf>)> {
        let name = self.settings().meant(name);
        let matches_platform = |image: &Image| match &options.platform {
            Some(wanted) => image.platform.satisfies(wanted),
            None => true,
        };
        let here = match options.when {
            PullWhen::Always => None,
            PullWhen::IfMissing | PullWhen::Never => self.here(name)?.filter(matches_platform),
        };
        let image = match here {
            Some(image) => {
                if !self.is_checked(&image) {
                    self.recheck_layers(&image)?;
                }
                if let Some(layers) = self.layers_of(&image) {
                    return Ok((image, layers));
                }
                match self.unpack_again(&image, progress) {
                    Ok(()) => image,
                    // The blobs are missing as well.
                    Err(error)
                        if error.kind() == Kind::State && options.when != PullWhen::Never =>
                    {
                        self.pull(name, &pull(options), progress)?
                    }
                    Err(error) => return Err(error),
                }
            }
            None if options.when == PullWhen::Never => return Err(missing(name)),
            None => self.pull(name, &pull(options), progress)?,
        };
        let layers = self.layers_of(&image);
        let layers = layers.ok_or_else(|| Error::new(Kind::State, "an image layer is missing"))?;
        Ok((image, layers))
    }

    /// The stored image with this name. A digest is also found under any tag of the same
    /// repository.
    pub fn here(&self, name: &Reference) -> Result<Option<Image>> {
        let found = self.find(name)?;
        let Some(digest) = name.digest().filter(|_| found.is_none()) else {
            return Ok(found);
        };
        let same = |image: &Image| {
            let place = (image.reference.registry(), image.reference.repository());
            let is = image.digest == *digest || image.index.as_ref() == Some(digest);
            is && place == (name.registry(), name.repository())
        };
        Ok(self.list().into_iter().find(same))
    }
}

fn pull(options: &EnsureOptions) -> PullOptions {
    PullOptions { platform: options.platform.clone(), reach: options.reach.clone() }
}

fn missing(name: &Reference) -> Error {
    let short = name.short();
    Error::new(Kind::NotFound, format!("image `{short}` is not stored on this host")).hint(format!(
        "`msb pull {short}` fetches it, `msb load` reads it from a file, `msb image ls` lists the \
         stored images"
    ))
}

fn cannot_run(image: &Image) -> Error {
    Error::unsupported(format!(
        "image `{}` is for {}, and this host runs {}",
        image.reference.short(),
        msb_spec::shown(&image.platform.to_string()),
        Platform::host()
    ))
    .hint("it can be saved and pushed; `--platform` selects another platform")
}
