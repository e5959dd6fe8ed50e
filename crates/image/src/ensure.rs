//! From a name to layers that can be mounted, fetching only what is missing.

use crate::Prepared;
use crate::progress::Progress;
use crate::pull::Pull;
use crate::registry::Reach;
use crate::store::{Image, Store};
use msb_spec::{
    Error, ImageRef, Kind, Lower, Overlay, Platform, PullWhen, Reference, Result, Stage,
};
use std::path::PathBuf;

/// What is wanted of an image beyond its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    /// When it is fetched.
    pub when: PullWhen,
    /// For which platform.
    pub platform: Option<Platform>,
    /// How its registry is reached.
    pub reach: Reach,
}

impl Store {
    /// Makes an image ready to mount.
    pub fn prepare(
        &self,
        name: &Reference,
        wish: &Wish,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        self.prepare_named(name, wish, progress).map_err(|error| error.at(Stage::Image))
    }

    fn prepare_named(
        &self,
        name: &Reference,
        wish: &Wish,
        progress: &dyn Progress,
    ) -> Result<Prepared> {
        let (image, layers) = self.ensure(name, wish, progress)?;
        if !image.platform.runs_here() {
            return Err(cannot_run(&image));
        }
        self.touch(&image.reference);
        let lowers = layers.into_iter().map(Lower::of_image).collect();
        Ok(Prepared {
            overlays: vec![Overlay { at: "/".to_owned(), lowers }],
            image: ImageRef::Name(image.reference),
            digest: Some(image.digest),
            config: image.config,
            owners: image.owners,
            path: Vec::new(),
            layers: image.layers,
        })
    }

    /// The image of a name and the directories of its layers, topmost first.
    pub fn ensure(
        &self,
        name: &Reference,
        wish: &Wish,
        progress: &dyn Progress,
    ) -> Result<(Image, Vec<PathBuf>)> {
        let name = self.settings().meant(name);
        let suits = |image: &Image| match &wish.platform {
            Some(wanted) => image.platform.satisfies(wanted),
            None => true,
        };
        let here = match wish.when {
            PullWhen::Always => None,
            PullWhen::IfMissing | PullWhen::Never => self.here(name)?.filter(suits),
        };
        let image = match here {
            Some(image) => {
                if !self.is_settled(&image) {
                    self.settle(&image)?;
                }
                if let Some(layers) = self.layers_of(&image) {
                    return Ok((image, layers));
                }
                match self.unpack_again(&image, progress) {
                    Ok(()) => image,
                    // Its blobs are gone too.
                    Err(error) if error.kind() == Kind::State && wish.when != PullWhen::Never => {
                        self.pull(name, &pull(wish), progress)?
                    }
                    Err(error) => return Err(error),
                }
            }
            None if wish.when == PullWhen::Never => return Err(missing(name)),
            None => self.pull(name, &pull(wish), progress)?,
        };
        let layers = self.layers_of(&image);
        let layers =
            layers.ok_or_else(|| Error::new(Kind::State, "a layer of the image is missing"))?;
        Ok((image, layers))
    }

    /// The image of a name if it is here, also under a tag of the same repository.
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

fn pull(wish: &Wish) -> Pull {
    Pull { platform: wish.platform.clone(), reach: wish.reach.clone() }
}

fn missing(name: &Reference) -> Error {
    let short = name.short();
    Error::new(Kind::NotFound, format!("image `{short}` is not here")).hint(format!(
        "`msb pull {short}` fetches it, `msb load` reads it from a file, `msb image ls` lists \
         what is here"
    ))
}

fn cannot_run(image: &Image) -> Error {
    Error::unsupported(format!(
        "image `{}` is for {}, and this machine runs {}",
        image.reference.short(),
        msb_spec::shown(&image.platform.to_string()),
        Platform::host()
    ))
    .hint("it can be saved and pushed; `--platform` asks for one that runs here")
}
