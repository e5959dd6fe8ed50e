//! Parses and checks manifests, indexes and configs of images.
//!
//! Media types of Docker and of OCI are accepted; the formats are the same otherwise. Unknown media
//! types are refused here, before anything is downloaded.

use crate::settings::ImageLimits;
use crate::unpack::exceeded;
use msb_spec::{Digest, Error, History, Kind, Platform, Result, RunConfig};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const OCI_CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const OCI_LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const OCI_LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// Media types of layers. The compression is detected from the data.
const LAYERS: [&str; 8] = [
    OCI_LAYER,
    OCI_LAYER_GZIP,
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
];

/// A blob as a manifest names it. `urls` of other hosts are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

/// A manifest, or an index of manifests for several platforms.
#[derive(Debug, Clone)]
pub(crate) enum Manifest {
    Image(ImageManifest),
    Index(Index),
}

/// The manifest of one image.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageManifest {
    pub(crate) schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// An index: manifests for several platforms, or of several images in a layout.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) media_type: Option<String>,
    pub(crate) manifests: Vec<Descriptor>,
}

impl Manifest {
    /// Parses a manifest or an index; its fields decide which.
    pub(crate) fn parse(text: &[u8], limits: &ImageLimits) -> Result<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Either {
            schema_version: u32,
            media_type: Option<String>,
            config: Option<serde::de::IgnoredAny>,
            layers: Option<serde::de::IgnoredAny>,
            manifests: Option<serde::de::IgnoredAny>,
        }
        let either: Either = read(text)?;
        if either.schema_version != 2 {
            return Err(Error::unsupported(format!(
                "the image has a manifest of schema version {}",
                either.schema_version
            ))
            .hint("it was pushed with a tool from before 2017; push it again with a newer one"));
        }
        let image = either.config.is_some() && either.layers.is_some();
        let media_type = either.media_type.unwrap_or_default();
        match (image, either.manifests.is_some(), media_type.as_str()) {
            (true, false, "" | OCI_MANIFEST | DOCKER_MANIFEST) => {
                let manifest: ImageManifest = read(text)?;
                manifest.check(limits)?;
                Ok(Self::Image(manifest))
            }
            (false, true, "" | OCI_INDEX | DOCKER_INDEX) => Ok(Self::Index(read(text)?)),
            // A document that is both would mean one thing to msb and another to other tools.
            _ => Err(Error::invalid("the manifest is neither an image nor an index")),
        }
    }
}

impl ImageManifest {
    fn check(&self, limits: &ImageLimits) -> Result<()> {
        let most = limits.layers.get();
        if self.layers.len() as u64 > most {
            return Err(exceeded("layers", most));
        }
        if self.layers.is_empty() {
            return Err(Error::invalid("the image has no layers"));
        }
        for layer in &self.layers {
            if !LAYERS.contains(&layer.media_type.as_str()) {
                let shown = msb_spec::shown(&layer.media_type);
                return Err(Error::unsupported(format!(
                    "the image has a layer with the media type `{shown}`"
                ))
                .cause("it holds something other than files")
                .hint("this is an artifact or an encrypted image, which cannot be run"));
            }
            if layer.digest == self.config.digest {
                return Err(Error::invalid("a layer of the image is its own config"));
            }
            if layer.size > limits.bytes.0 {
                return Err(exceeded("bytes", limits.bytes));
            }
        }
        if self.config.size > limits.manifest.0 {
            return Err(exceeded("manifest", limits.manifest));
        }
        Ok(())
    }
}

impl Index {
    /// The manifest for a platform.
    pub(crate) fn choose(&self, wanted: &Platform) -> Result<&Descriptor> {
        let images: Vec<(&Descriptor, Option<&Platform>)> = self
            .manifests
            .iter()
            .filter(|one| {
                matches!(
                    one.media_type.as_str(),
                    OCI_MANIFEST | DOCKER_MANIFEST | OCI_INDEX | DOCKER_INDEX
                )
            })
            .map(|one| (one, one.platform.as_ref()))
            .collect();
        let fits = |platform: Option<&Platform>| platform.is_some_and(|one| one.satisfies(wanted));
        if let Some((one, _)) = images.iter().find(|(_, platform)| fits(*platform)) {
            return Ok(one);
        }
        // A single manifest without a platform fits all.
        if let [(one, None)] = images.as_slice() {
            return Ok(one);
        }
        let mut there: Vec<String> = images
            .iter()
            .filter_map(|(_, platform)| Some(msb_spec::shown(&(*platform)?.to_string())))
            .filter(|platform| !platform.starts_with("unknown/"))
            .collect();
        there.dedup();
        there.truncate(16);
        Err(Error::new(Kind::NotFound, format!("the image does not exist for {wanted}"))
            .hint(format!("it exists for {}", there.join(", "))))
    }
}

/// The config blob of an image: how to run it and how it was built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageConfig {
    /// Time of the build in RFC 3339, as the builder wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Name of the author, free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// CPU architecture, as in `amd64`.
    pub architecture: String,
    /// Operating system, as in `linux`.
    pub os: String,
    /// Variant of the architecture, as in `v7`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Command, environment and other settings to run it.
    #[serde(default)]
    pub config: WireConfig,
    /// The layers by diff id.
    pub rootfs: RootfsIds,
    /// One entry for each build step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<History>,
}

/// The layers of an image by diff id: the digest of the uncompressed tar.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootfsIds {
    /// The constant text `layers`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Diff ids, from the lowest layer up.
    pub diff_ids: Vec<Digest>,
}

/// Run settings of an image, with the field names of the specification. Any of them may be null.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct WireConfig {
    /// User that runs commands, as `USER[:GROUP]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Ports, as keys such as `80/tcp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposed_ports: Option<BTreeMap<String, serde_json::Value>>,
    /// Environment variables as `NAME=VALUE`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<String>>,
    /// Arguments that precede every command.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<Vec<String>>,
    /// Command that runs by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cmd: Option<Vec<String>>,
    /// Mount points of volumes, as keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<BTreeMap<String, serde_json::Value>>,
    /// Working directory of commands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Labels of the image author.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, String>>,
    /// Signal that asks the main process to stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_signal: Option<String>,
    /// Shell for shell forms; an extension of Docker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<Vec<String>>,
    /// Health check of the image; an extension of Docker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<serde_json::Value>,
    /// ONBUILD instructions for derived images; an extension of Docker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_build: Option<Vec<String>>,
}

impl ImageConfig {
    /// Parses a config. Fails if it does not have this number of layers.
    pub(crate) fn parse(text: &[u8], layers: usize) -> Result<Self> {
        let config: Self = read(text).map_err(|error| error.under("the image has a bad config"))?;
        if config.rootfs.diff_ids.len() != layers {
            return Err(Error::invalid("the image has a bad config").cause(format!(
                "it has {} layers and the manifest has {layers}",
                config.rootfs.diff_ids.len()
            )));
        }
        Ok(config)
    }

    /// The platform that the image was built for.
    pub fn platform(&self) -> Platform {
        Platform {
            os: self.os.clone(),
            architecture: self.architecture.clone(),
            variant: self.variant.clone().filter(|variant| !variant.is_empty()),
        }
    }

    /// The run settings, with null as empty.
    pub fn run(&self) -> RunConfig {
        let config = self.config.clone();
        let keys = |map: Option<BTreeMap<String, serde_json::Value>>| {
            map.unwrap_or_default().into_keys().collect()
        };
        RunConfig {
            env: config.env.unwrap_or_default(),
            entrypoint: config.entrypoint.unwrap_or_default(),
            cmd: config.cmd.unwrap_or_default(),
            workdir: config.working_dir.unwrap_or_default(),
            user: config.user.unwrap_or_default(),
            labels: config.labels.unwrap_or_default(),
            exposed_ports: keys(config.exposed_ports),
            volumes: keys(config.volumes),
            stop_signal: config.stop_signal.unwrap_or_default(),
            shell: config.shell.unwrap_or_default(),
            healthcheck: config.healthcheck,
        }
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T> {
    serde_json::from_slice(text)
        .map_err(|error| Error::invalid("the manifest of the image cannot be read").cause(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn parse(text: &str) -> Result<Manifest> {
        Manifest::parse(text.replace("DIGEST", DIGEST).as_bytes(), &ImageLimits::default())
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        let config = r#""config":{"mediaType":"c","digest":"DIGEST","size":1}"#;
        let both = format!(r#"{{"schemaVersion":2,{config},"layers":[],"manifests":[]}}"#);
        assert!(parse(&both).is_err());
        let none = format!(r#"{{"schemaVersion":2,{config},"layers":[]}}"#);
        assert_eq!(parse(&none).unwrap_err().message(), "the image has no layers");
        assert!(parse(r#"{"schemaVersion":1,"fsLayers":[]}"#).is_err());
    }

    #[test]
    fn an_index_gives_the_image_for_the_platform_asked_for() {
        let text = format!(
            r#"{{"schemaVersion":2,"manifests":[
            {{"mediaType":"{OCI_MANIFEST}","digest":"DIGEST","size":1,"platform":{{"os":"linux","architecture":"s390x"}}}},
            {{"mediaType":"{OCI_MANIFEST}","digest":"DIGEST","size":2,"platform":{{"os":"linux","architecture":"arm","variant":"v7"}}}}]}}"#
        );
        let Manifest::Index(index) = parse(&text).unwrap() else { panic!("not an index") };
        let size = |text: &str| index.choose(&Platform::parse(text).unwrap()).map(|one| one.size);
        assert_eq!((size("s390x").unwrap(), size("linux/arm").unwrap()), (1, 2));
        let error = size("linux/arm/v6").unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        assert!(error.advice().unwrap().contains("linux/arm/v7"));
    }
}
