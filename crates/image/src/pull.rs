//! From a name to an image that is here.

use crate::acquire::{Source, Wanted};
use crate::manifest::{Descriptor, ImageConfig, ImageManifest, Manifest, OCI_MANIFEST};
use crate::progress::{Progress, Step};
use crate::registry::{PullFor, Reach, Registry, is_unreachable, unreachable_hint};
use crate::store::{Image, Store, boot, digest_of, now_ms};
use msb_spec::{Digest, Error, Kind, Platform, Reference, Result};
use std::io::Read;

/// What is wanted beyond the name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pull {
    /// For which platform; this machine's if it is not said.
    pub platform: Option<Platform>,
    /// How the registry is reached.
    pub reach: Reach,
}

/// An index may name an index, as some builders make them; more is a loop.
const INDEX_DEPTH: u32 = 3;

/// A manifest that was chosen, as it is.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) text: Vec<u8>,
    pub(crate) digest: Digest,
    pub(crate) manifest: ImageManifest,
    pub(crate) index: Option<Digest>,
}

impl Store {
    /// Fetches an image, or what of it is not here yet. The name is taken as it is: aliases have
    /// been followed.
    pub fn pull(
        &self,
        reference: &Reference,
        pull: &Pull,
        progress: &dyn Progress,
    ) -> Result<Image> {
        let about = |error: Error| {
            unreachable_hint(error, reference).under(format!("cannot pull `{}`", reference.short()))
        };
        self.pull_from_registry(reference, pull, progress).map_err(about)
    }

    fn pull_from_registry(
        &self,
        reference: &Reference,
        pull: &Pull,
        progress: &dyn Progress,
    ) -> Result<Image> {
        let host = reference.registry();
        let credentials = pull.reach.credentials(self.home(), host);
        let places = Registry::places(host, self.settings(), &pull.reach, &credentials)?;
        let mut failure: Option<Error> = None;
        for place in &places {
            progress.step(Step::Asking { registry: place.shown() });
            let error = match self.pull_from(place, reference, pull, progress) {
                Ok(Some(image)) => return Ok(image),
                Ok(None) => {
                    Error::new(Kind::NotFound, format!("{} has no such image", place.shown()))
                        .hint("private images need `msb registry login`")
                }
                Err(error) => error,
            };
            // A mirror may fail in any way; the registry itself only by not being there with one
            // scheme, which leaves the other.
            if !is_unreachable(&error) && (place.is(host) || !may_be_elsewhere(&error)) {
                return Err(error);
            }
            failure = Some(match failure {
                Some(before) if is_unreachable(&error) => with_causes(error, &before),
                _ => error,
            });
        }
        Err(failure.unwrap_or_else(|| Error::new(Kind::NotFound, "no registry to ask")))
    }

    /// Fetches an image from one place; none if it has no such image.
    fn pull_from(
        &self,
        place: &Registry,
        reference: &Reference,
        pull: &Pull,
        progress: &dyn Progress,
    ) -> Result<Option<Image>> {
        let repository = reference.repository();
        let limit = self.settings().image_limits.manifest.0;
        let fetch = |what: &str| place.manifest(repository, what, limit);
        let wanted = match (reference.digest(), reference.tag()) {
            (Some(digest), _) => digest.to_string(),
            (None, tag) => tag.unwrap_or("latest").to_owned(),
        };
        let Some(text) = fetch(&wanted)? else {
            return Ok(None);
        };
        let platform = pull.platform.clone().unwrap_or_else(Platform::host);
        let chosen = self.choose(text, reference.digest(), &platform, |digest| {
            fetch(&digest.to_string())?.ok_or_else(|| {
                Error::invalid(format!("{} lacks a part of the image", place.shown()))
            })
        })?;
        let tags = pull.reach.pull_for;
        self.check_tag(reference, &chosen.digest, tags)?;
        let blob = &chosen.manifest.config;
        let config = match self.read_blob(&blob.digest) {
            Ok(here) => verified(here.as_slice(), blob)?,
            Err(_) => verified(place.blob(repository, &blob.digest, 0)?.1, blob)?,
        };
        let source = Remote { place, repository };
        self.complete(reference, chosen, &config, &source, tags, progress).map(Some)
    }

    /// Finds the image of a platform behind a manifest, whose digest must be this one if it was
    /// asked for. `fetch` gets further manifests.
    pub(crate) fn choose(
        &self,
        text: Vec<u8>,
        asked: Option<&Digest>,
        platform: &Platform,
        fetch: impl Fn(&Digest) -> Result<Vec<u8>>,
    ) -> Result<Chosen> {
        let limits = &self.settings().image_limits;
        let (mut text, mut digest, mut index) = (text, None, None);
        if let Some(asked) = asked {
            check_digest(&text, asked)?;
        }
        for _ in 0..INDEX_DEPTH {
            let found = digest.take().unwrap_or_else(|| digest_of(&text));
            match Manifest::parse(&text, limits)? {
                Manifest::Image(manifest) => {
                    return Ok(Chosen { text, digest: found, manifest, index });
                }
                Manifest::Index(list) => {
                    let one = list.choose(platform)?;
                    if one.size > limits.manifest.0 {
                        return Err(crate::unpack::exceeded("manifest", limits.manifest));
                    }
                    let below = fetch(&one.digest)?;
                    check_digest(&below, &one.digest)?;
                    check_size(&below, one)?;
                    index.get_or_insert(found);
                    digest = Some(one.digest.clone());
                    text = below;
                }
            }
        }
        Err(Error::invalid("the image is a list of lists without end"))
    }

    /// Brings everything of a chosen image here and gives it its name.
    pub(crate) fn complete(
        &self,
        reference: &Reference,
        chosen: Chosen,
        config: &[u8],
        source: &dyn Source,
        tags: PullFor,
        progress: &dyn Progress,
    ) -> Result<Image> {
        let Chosen { text, digest, manifest, index } = chosen;
        let parsed = ImageConfig::parse(config, manifest.layers.len())?;
        let platform = parsed.platform();
        check_config(&parsed)?;
        let wanted: Vec<Wanted> = manifest
            .layers
            .iter()
            .zip(&parsed.rootfs.diff_ids)
            .map(|(blob, diff_id)| Wanted { blob: blob.clone(), diff_id: diff_id.clone() })
            .collect();
        let _adding = self.adding()?;
        let layers = self.acquire(&wanted, source, progress)?;
        let config_digest = self.put_blob(config)?;
        self.put_blob(&text)?;
        let owners = layers
            .iter()
            .any(|layer| self.contents(&layer.diff_id).is_none_or(|contents| contents.owners));
        let diff_ids: Vec<&Digest> = parsed.rootfs.diff_ids.iter().collect();
        let mended = self.mend(&diff_ids)?;
        let image = Image {
            version: crate::store::RECORD_VERSION,
            mended,
            reference: reference.clone(),
            digest,
            index,
            platform,
            config_digest,
            config: parsed.run(),
            layers,
            owners,
            created: parsed.created.as_deref().and_then(milliseconds),
            pulled: now_ms(),
            boot: Some(boot()),
        };
        // Once more: the layers may have taken minutes.
        self.check_tag(reference, &image.digest, tags)?;
        self.write_record(&image)?;
        Ok(image)
    }

    /// Whether this caller's pull may give the name to this image.
    fn check_tag(&self, name: &Reference, digest: &Digest, tags: PullFor) -> Result<()> {
        if tags.may_replace_tags() || name.digest().is_some() {
            return Ok(());
        }
        match self.find(name)? {
            Some(here) if here.digest != *digest => Err(Error::new(
                Kind::Denied,
                format!("image `{}` is here already, and others use it", name.short()),
            )
            .cause(format!("the registry has {digest} now"))
            .hint("pull it by its digest; the operator of the server can pull the tag again")),
            _ => Ok(()),
        }
    }

    /// Unpacks the layers of an image that is here for other owners, from its blobs.
    pub fn unpack_again(&self, image: &Image, progress: &dyn Progress) -> Result<()> {
        let wanted: Vec<Wanted> = image
            .layers
            .iter()
            .map(|layer| Wanted {
                blob: Descriptor {
                    media_type: layer.media_type.clone(),
                    digest: layer.digest.clone(),
                    size: layer.size,
                    platform: None,
                    annotations: Default::default(),
                },
                diff_id: layer.diff_id.clone(),
            })
            .collect();
        let _adding = self.adding()?;
        self.acquire(&wanted, &Nowhere, progress)?;
        self.mend(&image.diff_ids()).map(drop)
    }
}

/// The registry that has an image's blobs.
struct Remote<'a> {
    place: &'a Registry,
    repository: &'a str,
}

impl Source for Remote<'_> {
    fn open(&self, blob: &Descriptor, from: u64) -> Result<(u64, Box<dyn Read + '_>)> {
        let (start, stream) = self.place.blob(self.repository, &blob.digest, from)?;
        Ok((start, stream))
    }

    fn can_resume(&self) -> bool {
        true
    }
}

/// Blobs that must be here already.
struct Nowhere;

impl Source for Nowhere {
    fn open(&self, blob: &Descriptor, _: u64) -> Result<(u64, Box<dyn Read + '_>)> {
        Err(Error::new(Kind::State, "a part of the image is missing")
            .cause(&blob.digest)
            .hint("`msb pull` fetches it again"))
    }

    fn can_resume(&self) -> bool {
        false
    }
}

/// Reads a small blob that must be what its descriptor says.
pub(crate) fn verified(stream: impl Read, blob: &Descriptor) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    stream
        .take(blob.size + 1)
        .read_to_end(&mut text)
        .map_err(|error| Error::host("cannot read the config of the image", error))?;
    if text.len() as u64 != blob.size || digest_of(&text) != blob.digest {
        return Err(Error::invalid("the config of the image is not what its manifest says")
            .cause(format!("wanted {}", blob.digest)));
    }
    Ok(text)
}

fn check_digest(text: &[u8], wanted: &Digest) -> Result<()> {
    let found = digest_of(text);
    if found == *wanted {
        return Ok(());
    }
    Err(Error::invalid("the manifest of the image is not the one asked for")
        .cause(format!("wanted {wanted}"))
        .cause(format!("got {found}")))
}

pub(crate) fn check_size(text: &[u8], wanted: &Descriptor) -> Result<()> {
    if text.len() as u64 == wanted.size {
        return Ok(());
    }
    Err(Error::invalid("a manifest of the image is not as large as its list says")
        .cause(format!("wanted {}", wanted.digest)))
}

/// What becomes environment and arguments must be able to.
fn check_config(config: &ImageConfig) -> Result<()> {
    let run = config.run();
    let texts = run.env.iter().chain(&run.entrypoint).chain(&run.cmd).chain(&run.shell);
    if texts.chain([&run.workdir, &run.user]).any(|text| text.contains('\0')) {
        return Err(Error::invalid("the image has a bad config")
            .cause("a word in it has a zero byte, which no program can be given"));
    }
    for variable in &run.env {
        if variable.starts_with('=') || !variable.contains('=') {
            return Err(Error::invalid("the image has a bad config").cause(format!(
                "not a variable: `{}`",
                msb_spec::shown(&variable.chars().take(64).collect::<String>())
            )));
        }
    }
    Ok(())
}

/// What a mirror could not give is asked of the next place; what is wrong is wrong everywhere.
fn may_be_elsewhere(error: &Error) -> bool {
    matches!(error.kind(), Kind::Host | Kind::NotFound | Kind::Protocol)
}

fn with_causes(error: Error, before: &Error) -> Error {
    let error = error.cause(before.message());
    before.causes().iter().fold(error, Error::cause)
}

/// `2024-05-01T12:00:00.5Z` as milliseconds since 1970; none for what cannot be read.
pub(crate) fn milliseconds(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || day > 31 {
        return None;
    }
    // Days since 1970 in a calendar whose years begin in March, so that February is last.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1;
    let seconds = ((days.checked_sub(719_468)? * 24 + hour) * 60 + minute) * 60 + second;
    seconds.checked_mul(1000)
}

/// The media type that an image's manifest is sent with.
pub(crate) fn manifest_type(manifest: &ImageManifest) -> &str {
    manifest.media_type.as_deref().unwrap_or(OCI_MANIFEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_tools_write_them() {
        assert_eq!(milliseconds("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(milliseconds("2024-02-29T12:30:15.123456Z"), Some(1_709_209_815_000));
        assert_eq!(milliseconds("0001-01-01T00:00:00Z"), None);
        assert_eq!(milliseconds("yesterday"), None);
    }
}
