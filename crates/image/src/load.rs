//! Images from files: what `docker save` writes, OCI archives and OCI layout directories.
//!
//! An archive is read once, so it may come from a pipe: each file in it goes to a place aside
//! under its digest. Names in the archive are keys of a map and never paths.

mod layout;

use crate::acquire::Source;
use crate::manifest::ImageManifest;
use crate::manifest::{
    Descriptor, ImageConfig, Index, Manifest, OCI_CONFIG, OCI_LAYER, OCI_MANIFEST,
};
use crate::progress::Progress;
use crate::pull::{Chosen, check_size, verified};
use crate::registry::PullFor;
use crate::store::{Image, Store, digest_of};
use layout::Layout;
use msb_spec::{Digest, Error, Kind, Platform, Reference, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// How tools note the name of an image in a layout, in the order they are believed.
const NAME: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// What to read, and what to make of it.
#[derive(Debug, Clone, Default)]
pub struct Load {
    /// The name that the image gets, whatever it says itself.
    pub name: Option<Reference>,
    /// For which platform; this machine's if it is not said.
    pub platform: Option<Platform>,
}

/// One image in `manifest.json`, as Docker writes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

impl Store {
    /// Reads every image of an archive, compressed or not.
    pub fn load_archive(
        &self,
        archive: &mut dyn Read,
        load: &Load,
        progress: &dyn Progress,
    ) -> Result<Vec<Image>> {
        let layout = Layout::spool(self, archive)?;
        self.load(&layout, load, progress)
    }

    /// Reads every image of an OCI layout.
    pub fn load_directory(
        &self,
        directory: &Path,
        load: &Load,
        progress: &dyn Progress,
    ) -> Result<Vec<Image>> {
        let layout = Layout::directory(directory)?;
        self.load(&layout, load, progress)
    }

    fn load(&self, layout: &Layout, load: &Load, progress: &dyn Progress) -> Result<Vec<Image>> {
        let limit = self.settings().image_limits.manifest.0;
        if let Some(text) = layout.text("index.json", limit)? {
            return self.load_oci(layout, &text, load, progress);
        }
        if let Some(text) = layout.text("manifest.json", limit)? {
            return self.load_docker(layout, &text, load, progress);
        }
        Err(Error::invalid("there is no image in it")
            .cause("it has neither an `index.json` nor a `manifest.json`")
            .hint("`docker save`, `podman save` and `skopeo copy` write files that can be read"))
    }

    fn load_oci(
        &self,
        layout: &Layout,
        text: &[u8],
        load: &Load,
        progress: &dyn Progress,
    ) -> Result<Vec<Image>> {
        let limits = &self.settings().image_limits;
        let Manifest::Index(index) = Manifest::parse(text, limits)? else {
            return Err(Error::invalid("its `index.json` is not a list of images"));
        };
        let platform = load.platform.clone().unwrap_or_else(Platform::host);
        let named = named(&index, load, &platform)?;
        let mut images = Vec::new();
        for (name, one) in named {
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

    /// Docker's own format: layers by name, not by digest. It gets a manifest like any other.
    fn load_docker(
        &self,
        layout: &Layout,
        text: &[u8],
        load: &Load,
        progress: &dyn Progress,
    ) -> Result<Vec<Image>> {
        let limits = &self.settings().image_limits;
        let listed: Vec<DockerImage> = serde_json::from_slice(text)
            .map_err(|error| Error::invalid("its `manifest.json` cannot be read").cause(error))?;
        if load.name.is_some() && listed.len() != 1 {
            return Err(several(listed.len()));
        }
        let mut images = Vec::new();
        for one in listed {
            let config = layout.text(&one.config, limits.manifest.0)?;
            let config = config.ok_or_else(|| lacking(&one.config))?;
            let parsed = ImageConfig::parse(&config, one.layers.len())?;
            let wanted = load.platform.clone().unwrap_or_else(|| parsed.platform());
            if !parsed.platform().satisfies(&wanted) {
                return Err(Error::new(Kind::NotFound, format!("the image is not for {wanted}")));
            }
            let layers = one.layers.iter().map(|name| {
                let (digest, size) = layout.digest(name).ok_or_else(|| lacking(name))?;
                Ok(descriptor(OCI_LAYER, digest, size))
            });
            let manifest = ImageManifest {
                schema_version: 2,
                media_type: Some(OCI_MANIFEST.to_owned()),
                config: descriptor(OCI_CONFIG, digest_of(&config), config.len() as u64),
                layers: layers.collect::<Result<_>>()?,
            };
            let text = serde_json::to_vec(&manifest).expect("our own types always serialise");
            // Read again, so that the same rules hold for it as for any other.
            let Manifest::Image(manifest) = Manifest::parse(&text, limits)? else {
                return Err(Error::invalid("its `manifest.json` cannot be read"));
            };
            let digest = digest_of(&text);
            let chosen = Chosen { text, digest, manifest, index: None };
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

/// The images of a layout with the names they get.
fn named(index: &Index, load: &Load, platform: &Platform) -> Result<Vec<(Reference, Descriptor)>> {
    let own = |one: &Descriptor| {
        NAME.iter().find_map(|key| Reference::parse(one.annotations.get(*key)?).ok())
    };
    if let Some(name) = &load.name {
        return match index.manifests.as_slice() {
            [one] => Ok(vec![(name.clone(), one.clone())]),
            _ => {
                // One image for several platforms, laid out flat, is still one image.
                let same = |one: &Descriptor| own(one) == own(&index.manifests[0]);
                match !index.manifests.is_empty() && index.manifests.iter().all(same) {
                    true => Ok(vec![(name.clone(), index.choose(platform)?.clone())]),
                    false => Err(several(index.manifests.len())),
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

impl Source for Layout {
    fn open(&self, blob: &Descriptor, from: u64) -> Result<(u64, Box<dyn Read + '_>)> {
        self.blob(&blob.digest, from).map(|stream| (from, stream))
    }

    fn can_resume(&self) -> bool {
        false
    }

    fn offer(&self, digest: &Digest, place: &Path) {
        self.give(digest, place);
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

fn lacking(name: &str) -> Error {
    Error::invalid("a part of the image is not in it").cause(msb_spec::shown(name))
}

fn unnamed() -> Error {
    Error::invalid("the image in it has no name").hint("`-t NAME` gives it one")
}

fn several(count: usize) -> Error {
    Error::invalid(format!("there are {count} images in it, and one name for them"))
        .hint("without `-t` each keeps its own name")
}
