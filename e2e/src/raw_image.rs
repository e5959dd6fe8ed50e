//! Images byte by byte: layers, configs, manifests and archives, valid in every part but the one
//! that a test changes.
//!
//! Written without the libraries that read images, because none of them will write what must
//! be refused.

mod compression;
mod raw_tar;
mod upload;

pub use compression::{gzip, gzip_bomb, media, zstd, zstd_bomb, zstd_claim, zstd_of, zstd_window};
pub use raw_tar::{BLOCK, RawLayer, TarHeader, base_256, kind, record};
pub use upload::{put_blob, put_manifest};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The media type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The media type of an index.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The media type of a config.
pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// `sha256:` and the digest.
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(bytes))
}

/// The digest alone.
pub fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A layer as it is transferred.
#[derive(Debug, Clone)]
pub struct Blob {
    /// The media type that the manifest claims.
    pub media: String,
    /// The bytes that are transferred.
    pub bytes: Vec<u8>,
    /// The digest of the tar that is in it.
    pub diff_id: String,
}

impl Blob {
    /// A layer that is not compressed.
    pub fn plain(layer: &RawLayer) -> Self {
        Self::of(media::TAR, &layer.tar(), layer.tar())
    }

    /// A layer with gzip.
    pub fn gzip(layer: &RawLayer) -> Self {
        Self::of(media::GZIP, &layer.tar(), gzip(&layer.tar()))
    }

    /// A layer with zstd.
    pub fn zstd(layer: &RawLayer) -> Self {
        Self::of(media::ZSTD, &layer.tar(), zstd(&layer.tar()))
    }

    /// Bytes that are said to be a layer and to become this tar.
    pub fn of(media: &str, tar: &[u8], bytes: impl Into<Vec<u8>>) -> Self {
        Self { media: media.to_owned(), bytes: bytes.into(), diff_id: digest(tar) }
    }

    /// How a manifest speaks of it.
    pub fn descriptor(&self) -> Value {
        descriptor(&self.media, &self.bytes)
    }
}

/// How manifests and indexes speak of a blob.
pub fn descriptor(media: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media, "digest": digest(bytes), "size": bytes.len() })
}

/// An image with parts that match each other, until one is changed.
#[derive(Debug, Clone)]
pub struct RawImage {
    /// The layers, lowest first.
    pub blobs: Vec<Blob>,
    /// The config as it is transferred.
    pub config: Vec<u8>,
    /// The manifest as it is transferred.
    pub manifest: Vec<u8>,
}

impl RawImage {
    /// A valid image of these layers.
    pub fn new(blobs: impl Into<Vec<Blob>>) -> Self {
        Self::with(blobs, &json!({}))
    }

    /// An image of one layer that is not compressed.
    pub fn of(layer: &RawLayer) -> Self {
        Self::new([Blob::plain(layer)])
    }

    /// A valid image with this `config` in its config: Env, Cmd and so on.
    pub fn with(blobs: impl Into<Vec<Blob>>, config: &Value) -> Self {
        let blobs = blobs.into();
        let diff_ids: Vec<&str> = blobs.iter().map(|blob| &*blob.diff_id).collect();
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": config,
            "rootfs": { "type": "layers", "diff_ids": diff_ids },
        });
        Self::with_config(blobs, config.to_string())
    }

    /// An image with any bytes as its config.
    pub fn with_config(blobs: impl Into<Vec<Blob>>, config: impl Into<Vec<u8>>) -> Self {
        let (blobs, config) = (blobs.into(), config.into());
        let layers: Vec<Value> = blobs.iter().map(Blob::descriptor).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, &config),
            "layers": layers,
        });
        Self { blobs, config, manifest: manifest.to_string().into_bytes() }
    }

    /// Changes the manifest as JSON.
    pub fn edit_manifest(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        let mut manifest = serde_json::from_slice(&self.manifest).expect("it was JSON so far");
        edit(&mut manifest);
        self.manifest = manifest.to_string().into_bytes();
        self
    }

    /// All that a registry or a layout keeps as blobs; the manifest comes last.
    pub fn parts(&self) -> Vec<&[u8]> {
        let mut parts: Vec<&[u8]> = self.blobs.iter().map(|blob| &*blob.bytes).collect();
        parts.extend([&*self.config, &*self.manifest]);
        parts
    }

    /// An archive as `docker save` writes it, under this name.
    pub fn docker_archive(&self, name: &str) -> Vec<u8> {
        let config = format!("{}.json", hex(&self.config));
        let mut archive = RawLayer::new().file(&config, &self.config);
        let mut layers = Vec::new();
        for blob in &self.blobs {
            let path = format!("{}/layer.tar", hex(&blob.bytes));
            archive = archive.file(&path, &blob.bytes);
            layers.push(path);
        }
        let manifest = json!([{ "Config": config, "RepoTags": [name], "Layers": layers }]);
        archive.file("manifest.json", manifest.to_string()).tar()
    }

    /// An archive of an OCI layout, with this name.
    pub fn oci_archive(&self, name: &str) -> Vec<u8> {
        layout(&self.parts(), &self.index(name)).tar()
    }

    /// The index of a layout that holds this image under a name.
    pub fn index(&self, name: &str) -> Value {
        let mut manifest = descriptor(MANIFEST, &self.manifest);
        manifest["annotations"] = json!({
            "org.opencontainers.image.ref.name": name,
            "io.containerd.image.name": name,
        });
        json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest] })
    }
}

/// An OCI layout of these blobs, as an archive.
pub fn layout(parts: &[&[u8]], index: &Value) -> RawLayer {
    let mut archive = RawLayer::new()
        .file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#)
        .directory("blobs/")
        .directory("blobs/sha256/");
    for part in parts {
        archive = archive.file(format!("blobs/sha256/{}", hex(part)), part);
    }
    archive.file("index.json", index.to_string())
}

/// This machine in the words of OCI.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
