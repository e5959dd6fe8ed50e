//! Loads images from files: archives of `docker save`, OCI archives and OCI layout directories.
//!
//! An archive is read once, so it may come from a pipe. Each file in it is written to a temporary
//! directory and found by digest. Names in the archive are map keys and never paths of the host.

mod image_layout;

use crate::fetch_layers::BlobSource;
use crate::manifest::ImageManifest;
use crate::manifest::{
    Descriptor, ImageConfig, Index, Manifest, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST,
};
use crate::progress::Progress;
use crate::pull::{ChosenManifest, check_size, verified};
use crate::registry::PullFor;
use crate::store::{Image, Store, digest_of};
use image_layout::ImageLayout;
use msb_spec::{Digest, Error, Kind, Platform, Reference, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Annotations with the name of an image, in order of preference.
const NAME: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// Options of `msb load`.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Name for the image, instead of the one in the archive.
    pub name: Option<Reference>,
    /// Platform to select; the host's by default.
    pub platform: Option<Platform>,
}

/// One image in `manifest.json` of Docker.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Store {
    /// Loads every image of an archive, compressed or not.
    pub fn load_archive(
        &self,
        archive: &mut dyn Read,
        load: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Vec<Image>> {
        let layout = ImageLayout::spool(self, archive)?;
        self.load(&layout, load, progress)
    }

    /// Loads every image of an OCI layout directory.
    pub fn load_directory(
        &self,
        directory: &Path,
        load: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Vec<Image>> {
        let layout = ImageLayout::directory(directory)?;
        self.load(&layout, load, progress)
    }

    fn load(
        &self,
        layout: &ImageLayout,
        load: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Vec<Image>> {
        let limit = self.settings().image_limits.manifest.0;
        if let Some(text) = layout.text("index.json", limit)? {
            return self.load_oci(layout, &text, load, progress);
        }
        if let Some(text) = layout.text("manifest.json", limit)? {
            return self.load_docker(layout, &text, load, progress);
        }
        Err(Error::invalid("no image found")
            .cause("there is neither an `index.json` nor a `manifest.json`")
            .hint("`docker save`, `podman save` and `skopeo copy` write readable archives"))
    }

    fn load_oci(
        &self,
        layout: &ImageLayout,
        text: &[u8],
        load: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Vec<Image>> {
        let limits = &self.settings().image_limits;
        let Manifest::Index(index) = Manifest::parse(text, limits)? else {
            return Err(Error::invalid("`index.json` is not a list of images"));
        };
        let platform = load.platform.clone().unwrap_or_else(Platform::host);
        let named_images = named_images(&index, load, &platform)?;
        let mut images = Vec::new();
        for (name, one) in named_images {
            let fetch = |digest: &Digest| layout.blob_text(digest, limits.manifest.0);
            let text = fetch(&one.digest)?;
            check_size(&text, &one)?;
            let chosen = self.choose(text, Some(&one.digest), &platform, fetch)?;
            let config = &chosen.manifest.config;
            let config = verified(fetch(&config.digest)?.as_slice(), config)?;
            images.push(self.complete(
                &name,
                chosen,
                &config,
                layout,
                PullFor::Operator,
                progress,
            )?);
        }
        Ok(images)
    }

    /// Loads the format of `docker save`: layers by name, not by digest. Writes an OCI manifest for
    /// it.
    fn load_docker(
        &self,
        layout: &ImageLayout,
        text: &[u8],
        load: &LoadOptions,
        progress: &dyn Progress,
    ) -> Result<Vec<Image>> {
        let limits = &self.settings().image_limits;
        let listed: Vec<DockerImage> = serde_json::from_slice(text)
            .map_err(|error| Error::invalid("`manifest.json` cannot be read").cause(error))?;
        if load.name.is_some() && listed.len() != 1 {
            return Err(one_name_for_many(listed.len()));
        }
        let mut images = Vec::new();
        for one in listed {
            let config = layout.text(&one.config, limits.manifest.0)?;
            let config = config.ok_or_else(|| missing_part(&one.config))?;
            let parsed = ImageConfig::parse(&config, one.layers.len())?;
            let wanted = load.platform.clone().unwrap_or_else(|| parsed.platform());
            if !parsed.platform().satisfies(&wanted) {
                return Err(Error::new(Kind::NotFound, format!("the image is not for {wanted}")));
            }
            let layers = one.layers.iter().map(|name| {
                let (digest, size) = layout.digest(name).ok_or_else(|| missing_part(name))?;
                Ok(descriptor(OCI_LAYER, digest, size))
            });
            let manifest = ImageManifest {
                schema_version: 2,
                media_type: Some(OCI_MANIFEST.to_owned()),
                config: descriptor(OCI_CONFIG, digest_of(&config), config.len() as u64),
                layers: layers.collect::<Result<_>>()?,
            };
            let text = serde_json::to_vec(&manifest).expect("our own types always serialise");
            // Parse it again, so that the limits for manifests apply.
            let Manifest::Image(manifest) = Manifest::parse(&text, limits)? else {
                return Err(Error::invalid("`manifest.json` cannot be read"));
            };
            let digest = digest_of(&text);
            let chosen = ChosenManifest { text, digest, manifest, index: None };
            let tags = one.repo_tags.unwrap_or_default();
            let names = match &load.name {
                Some(name) => vec![name.clone()],
                None => tags.iter().map(|tag| Reference::parse(tag)).collect::<Result<_>>()?,
            };
            let (first, others) = names.split_first().ok_or_else(unnamed)?;
            let image =
                self.complete(first, chosen, &config, layout, PullFor::Operator, progress)?;
            for other in others {
                images.push(self.tag(&image, other)?);
            }
            images.push(image);
        }
        Ok(images)
    }
}

/// The images of a layout and the names that they get.
fn named_images(
    index: &Index,
    load: &LoadOptions,
    platform: &Platform,
) -> Result<Vec<(Reference, Descriptor)>> {
    let own = |one: &Descriptor| {
        NAME.iter().find_map(|key| Reference::parse(one.annotations.get(*key)?).ok())
    };
    if let Some(name) = &load.name {
        return match index.manifests.as_slice() {
            [one] => Ok(vec![(name.clone(), one.clone())]),
            _ => {
                // Several manifests with one name are one image for several platforms.
                let same = |one: &Descriptor| own(one) == own(&index.manifests[0]);
                match !index.manifests.is_empty() && index.manifests.iter().all(same) {
                    true => Ok(vec![(name.clone(), index.choose(platform)?.clone())]),
                    false => Err(one_name_for_many(index.manifests.len())),
                }
            }
        };
    }
    let mut images: BTreeMap<Reference, Vec<&Descriptor>> = BTreeMap::new();
    for one in &index.manifests {
        if let Some(name) = own(one) {
            images.entry(name).or_default().push(one);
        }
    }
    if images.is_empty() {
        return Err(unnamed());
    }
    let pick = |(name, all): (Reference, Vec<&Descriptor>)| match all.as_slice() {
        [one] => Ok((name, (*one).clone())),
        _ => {
            let manifests = all.into_iter().cloned().collect();
            let list = Index { schema_version: 2, media_type: None, manifests };
            Ok((name, list.choose(platform)?.clone()))
        }
    };
    images.into_iter().map(pick).collect()
}

impl BlobSource for ImageLayout {
    fn open(&self, blob: &Descriptor, from: u64) -> Result<(u64, Box<dyn Read + '_>)> {
        self.blob(&blob.digest, from).map(|stream| (from, stream))
    }

    fn can_resume(&self) -> bool {
        false
    }

    fn offer(&self, digest: &Digest, place: &Path) {
        self.link_blob(digest, place);
    }
}

fn descriptor(media_type: &str, digest: Digest, size: u64) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest,
        size,
        platform: None,
        annotations: BTreeMap::new(),
    }
}

fn missing_part(name: &str) -> Error {
    Error::invalid("a file of the image is missing in the archive").cause(msb_spec::shown(name))
}

fn unnamed() -> Error {
    Error::invalid("the image in the archive has no name").hint("`-t NAME` gives it one")
}

fn one_name_for_many(count: usize) -> Error {
    Error::invalid(format!("{count} images were found, and only one name is given"))
        .hint("without `-t` each image keeps its own name")
}
