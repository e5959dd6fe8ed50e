//! Pulls an image from its registry or a mirror into the store.

use crate::fetch_layers::{BlobSource, LayerRequest};
use crate::manifest::{Descriptor, ImageConfig, ImageManifest, Manifest, OCI_MANIFEST};
use crate::progress::{Progress, ProgressEvent};
use crate::registry::{
    PullFor, RegistryEndpoint, RegistryOptions, is_unreachable, unreachable_hint,
};
use crate::store::{Image, Store, boot_id, digest_of, now_ms};
use msb_spec::{Digest, Error, Kind, Platform, Reference, Result};
use std::io::Read;

/// Options of a pull, beyond the name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullOptions {
    /// Platform to select; the host's by default.
    pub platform: Option<Platform>,
    /// How to connect to the registry.
    pub reach: RegistryOptions,
}

/// Most nested indexes. Some builders write an index of indexes; more is a loop.
const INDEX_DEPTH: u32 = 3;

/// The manifest for the selected platform, with its bytes.
#[derive(Debug)]
pub(crate) struct ChosenManifest {
    pub(crate) text: Vec<u8>,
    pub(crate) digest: Digest,
    pub(crate) manifest: ImageManifest,
    pub(crate) index: Option<Digest>,
}

impl Store {
    /// Pulls an image, or the missing parts of it. `reference` is used as is: the caller has
    /// resolved aliases.
    pub fn pull(
        &self,
        reference: &Reference,
        pull: &PullOptions,
        progress: &dyn Progress,
    ) -> Result<Image> {
        let pull_failed = |error: Error| {
            unreachable_hint(error, reference).under(format!("cannot pull `{}`", reference.short()))
        };
        self.pull_from_registry(reference, pull, progress).map_err(pull_failed)
    }

    fn pull_from_registry(
        &self,
        reference: &Reference,
        pull: &PullOptions,
        progress: &dyn Progress,
    ) -> Result<Image> {
        let host = reference.registry();
        let credentials = pull.reach.credentials(self.home(), host);
        let endpoints = RegistryEndpoint::all(host, self.settings(), &pull.reach, &credentials)?;
        let mut failure: Option<Error> = None;
        for endpoint in &endpoints {
            progress.step(ProgressEvent::Asking { registry: endpoint.url() });
            let error = match self.pull_from(endpoint, reference, pull, progress) {
                Ok(Some(image)) => return Ok(image),
                Ok(None) => {
                    Error::new(Kind::NotFound, format!("{} has no such image", endpoint.url()))
                        .hint("private images need `msb registry login`")
                }
                Err(error) => error,
            };
            // After a mirror fails in any way the next endpoint is tried. For the registry itself
            // only the other scheme is tried, and only if it was unreachable.
            if !is_unreachable(&error) && (endpoint.is_host(host) || !may_try_next(&error)) {
                return Err(error);
            }
            failure = Some(match failure {
                Some(before) if is_unreachable(&error) => with_causes(error, &before),
                _ => error,
            });
        }
        Err(failure.unwrap_or_else(|| Error::new(Kind::NotFound, "no registry to contact")))
    }

    /// Pulls an image from one endpoint; none if that has no such image.
    fn pull_from(
        &self,
        endpoint: &RegistryEndpoint,
        reference: &Reference,
        pull: &PullOptions,
        progress: &dyn Progress,
    ) -> Result<Option<Image>> {
        let repository = reference.repository();
        let limit = self.settings().image_limits.manifest.0;
        let fetch = |what: &str| endpoint.manifest(repository, what, limit);
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
                Error::invalid(format!("{} does not have a blob of the image", endpoint.url()))
            })
        })?;
        let pull_for = pull.reach.pull_for;
        self.check_tag(reference, &chosen.digest, pull_for)?;
        let blob = &chosen.manifest.config;
        let config = match self.read_blob(&blob.digest) {
            Ok(here) => verified(here.as_slice(), blob)?,
            Err(_) => verified(endpoint.blob(repository, &blob.digest, 0)?.1, blob)?,
        };
        let source = RegistrySource { endpoint, repository };
        self.complete(reference, chosen, &config, &source, pull_for, progress).map(Some)
    }

    /// Selects the manifest for a platform, through indexes. `expected` is the digest that the
    /// caller named. `fetch` gets further manifests.
    pub(crate) fn choose(
        &self,
        text: Vec<u8>,
        expected: Option<&Digest>,
        platform: &Platform,
        fetch: impl Fn(&Digest) -> Result<Vec<u8>>,
    ) -> Result<ChosenManifest> {
        let limits = &self.settings().image_limits;
        let (mut text, mut digest, mut index) = (text, None, None);
        if let Some(expected) = expected {
            check_digest(&text, expected)?;
        }
        for _ in 0..INDEX_DEPTH {
            let found = digest.take().unwrap_or_else(|| digest_of(&text));
            match Manifest::parse(&text, limits)? {
                Manifest::Image(manifest) => {
                    return Ok(ChosenManifest { text, digest: found, manifest, index });
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
        Err(Error::invalid("the image is an index that is nested too deep"))
    }

    /// Fetches all layers of the chosen image and stores its record under the name.
    pub(crate) fn complete(
        &self,
        reference: &Reference,
        chosen: ChosenManifest,
        config: &[u8],
        source: &dyn BlobSource,
        pull_for: PullFor,
        progress: &dyn Progress,
    ) -> Result<Image> {
        let ChosenManifest { text, digest, manifest, index } = chosen;
        let parsed = ImageConfig::parse(config, manifest.layers.len())?;
        let platform = parsed.platform();
        check_config(&parsed)?;
        let wanted: Vec<LayerRequest> = manifest
            .layers
            .iter()
            .zip(&parsed.rootfs.diff_ids)
            .map(|(blob, diff_id)| LayerRequest { blob: blob.clone(), diff_id: diff_id.clone() })
            .collect();
        let _adding = self.adding()?;
        let layers = self.acquire(&wanted, source, progress)?;
        let config_digest = self.put_blob(config)?;
        self.put_blob(&text)?;
        let owners = layers
            .iter()
            .any(|layer| self.contents(&layer.diff_id).is_none_or(|contents| contents.owners));
        let diff_ids: Vec<&Digest> = parsed.rootfs.diff_ids.iter().collect();
        let implied_dirs = self.make_implied_dirs(&diff_ids)?;
        let image = Image {
            version: crate::store::RECORD_VERSION,
            implied_dirs,
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
            boot: Some(boot_id()),
        };
        // Check again: fetching the layers may have taken minutes.
        self.check_tag(reference, &image.digest, pull_for)?;
        self.write_record(&image)?;
        Ok(image)
    }

    /// Fails if this caller must not move the tag to another image.
    fn check_tag(&self, name: &Reference, digest: &Digest, pull_for: PullFor) -> Result<()> {
        if pull_for.may_replace_tags() || name.digest().is_some() {
            return Ok(());
        }
        match self.find(name)? {
            Some(here) if here.digest != *digest => Err(Error::new(
                Kind::Denied,
                format!("image `{}` is stored already, and other clients use it", name.short()),
            )
            .cause(format!("the registry has {digest} now"))
            .hint("pull it by digest; the operator of the server can pull the tag again")),
            _ => Ok(()),
        }
    }

    /// Unpacks the layers of a stored image from its blobs, for the id mapping of this user.
    pub fn unpack_again(&self, image: &Image, progress: &dyn Progress) -> Result<()> {
        let wanted: Vec<LayerRequest> = image
            .layers
            .iter()
            .map(|layer| LayerRequest {
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
        self.acquire(&wanted, &StoredOnly, progress)?;
        self.make_implied_dirs(&image.diff_ids()).map(drop)
    }
}

/// Blobs of one repository at a registry.
struct RegistrySource<'a> {
    endpoint: &'a RegistryEndpoint,
    repository: &'a str,
}

impl BlobSource for RegistrySource<'_> {
    fn open(&self, blob: &Descriptor, from: u64) -> Result<(u64, Box<dyn Read + '_>)> {
        let (start, stream) = self.endpoint.blob(self.repository, &blob.digest, from)?;
        Ok((start, stream))
    }

    fn can_resume(&self) -> bool {
        true
    }
}

/// A source for images whose blobs must be stored already.
struct StoredOnly;

impl BlobSource for StoredOnly {
    fn open(&self, blob: &Descriptor, _: u64) -> Result<(u64, Box<dyn Read + '_>)> {
        Err(Error::new(Kind::State, "a blob of the image is missing")
            .cause(&blob.digest)
            .hint("`msb pull` fetches it again"))
    }

    fn can_resume(&self) -> bool {
        false
    }
}

/// Reads a small blob and compares its size and digest with the descriptor.
pub(crate) fn verified(stream: impl Read, blob: &Descriptor) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    stream
        .take(blob.size + 1)
        .read_to_end(&mut text)
        .map_err(|error| Error::host("cannot read the config of the image", error))?;
    if text.len() as u64 != blob.size || digest_of(&text) != blob.digest {
        return Err(Error::invalid("the config of the image does not match its manifest")
            .cause(format!("wanted {}", blob.digest)));
    }
    Ok(text)
}

fn check_digest(text: &[u8], wanted: &Digest) -> Result<()> {
    let found = digest_of(text);
    if found == *wanted {
        return Ok(());
    }
    Err(Error::invalid("the manifest of the image does not have the requested digest")
        .cause(format!("wanted {wanted}"))
        .cause(format!("got {found}")))
}

pub(crate) fn check_size(text: &[u8], wanted: &Descriptor) -> Result<()> {
    if text.len() as u64 == wanted.size {
        return Ok(());
    }
    Err(Error::invalid("a manifest of the image does not have the size in the index")
        .cause(format!("wanted {}", wanted.digest)))
}

/// Checks that environment and arguments can be passed to execve(2).
fn check_config(config: &ImageConfig) -> Result<()> {
    let run = config.run();
    let texts = run.env.iter().chain(&run.entrypoint).chain(&run.cmd).chain(&run.shell);
    if texts.chain([&run.workdir, &run.user]).any(|text| text.contains('\0')) {
        return Err(Error::invalid("the image has a bad config")
            .cause("an argument or variable contains a NUL byte"));
    }
    for variable in &run.env {
        if variable.starts_with('=') || !variable.contains('=') {
            return Err(Error::invalid("the image has a bad config").cause(format!(
                "not an environment variable: `{}`",
                msb_spec::shown(&variable.chars().take(64).collect::<String>())
            )));
        }
    }
    Ok(())
}

/// Whether another endpoint may succeed. Invalid data is invalid everywhere.
fn may_try_next(error: &Error) -> bool {
    matches!(error.kind(), Kind::Host | Kind::NotFound | Kind::Protocol)
}

fn with_causes(error: Error, before: &Error) -> Error {
    let error = error.cause(before.message());
    before.causes().iter().fold(error, Error::cause)
}

/// Parses `2024-05-01T12:00:00.5Z` to milliseconds since 1970, in whole seconds; none if it is
/// malformed or before 1970.
pub(crate) fn milliseconds(text: &str) -> Option<u64> {
    let ms = u64::try_from(msb_spec::clock::read(text)?).ok()?;
    Some(ms / 1000 * 1000)
}

/// The media type that a manifest is sent with.
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
