//! Images, and what takes space.

use crate::Api;
use crate::operation_types::*;
use msb_spec::{Digest, History, Name, PruneReport, Reference, RunConfig, Space};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long the commands of a build may take, all together. Package managers need minutes; a
/// client of a server does not wait longer.
pub const BUILD_LIMIT: Duration = Duration::from_secs(300);

/// Which client of a server asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientScope {
    /// One that has all namespaces.
    AllNamespaces,
    /// One that has a single namespace, and shares images with the others.
    OneNamespace,
}

/// The Operations on images.
pub trait Images {
    operations!(images trait_method);

    /// The Operations as a client of a server may use them, without the operator's rights: registries are
    /// reached at public addresses only, unless the operator trusts them.
    fn for_client(self: Arc<Self>, scope: ClientScope) -> Arc<dyn Api>;
}

/// How the registry of an image is reached for one Operation, beyond what the settings say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Registry {
    /// Accept plain HTTP, and TLS certificates of an unknown CA.
    pub insecure: bool,
    /// A file of this host with CA certificates for the registry.
    pub ca: Option<PathBuf>,
    /// The login for the registry. It is not stored.
    pub login: Option<Login>,
}

/// A user and a password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Login {
    /// The name of the user.
    pub user: String,
    /// The password, or what stands for one.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// One line of a list of images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImageSummary {
    /// The name of the image.
    pub reference: Reference,
    /// The digest of its manifest.
    pub digest: Digest,
    /// What it is for.
    pub platform: String,
    /// Bytes of its files.
    pub size: u64,
    /// Bytes that no other image has.
    pub own: u64,
    /// Bytes that other images have too.
    pub shared: u64,
    /// The number of its layers.
    pub layers: usize,
    /// When it was made, in milliseconds since 1970.
    pub created: Option<u64>,
    /// When it came here.
    pub pulled: u64,
    /// When it was last used.
    pub used: Option<u64>,
    /// Sandboxes made from it.
    pub sandboxes: Vec<Name>,
}

/// Everything about an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ImageInspection {
    /// The name of the image.
    pub reference: Reference,
    /// The digest of its manifest.
    pub digest: Digest,
    /// Of the list of platforms that it was chosen from.
    pub index: Option<Digest>,
    /// What it is for.
    pub platform: String,
    /// Bytes of its files.
    pub size: u64,
    /// Bytes that no other image has.
    pub own: u64,
    /// Bytes that other images have too.
    pub shared: u64,
    /// When it was made, in milliseconds since 1970.
    pub created: Option<u64>,
    /// When it came here.
    pub pulled: u64,
    /// When it was last used.
    pub used: Option<u64>,
    /// Sandboxes made from it.
    pub sandboxes: Vec<Name>,
    /// How it is run.
    pub config: RunConfig,
    /// From the lowest up.
    pub layers: Vec<LayerInspection>,
    /// How it was made.
    pub history: Vec<History>,
}

/// One layer of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LayerInspection {
    /// The digest of the compressed blob.
    pub digest: Digest,
    /// Of what it holds.
    pub diff_id: Digest,
    /// How its manifest calls it.
    pub media_type: String,
    /// Bytes of the blob.
    pub size: u64,
    /// Bytes of its files.
    pub unpacked: u64,
    /// Other images that have it.
    pub shared_with: Vec<Reference>,
}

/// What uses the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskUsage {
    /// Images and what belongs to them.
    pub images: Space,
    /// The number of sandboxes.
    pub sandboxes: u64,
    /// Bytes of what they have written.
    pub sandbox_bytes: u64,
    /// The number of snapshots.
    pub snapshots: u64,
    /// Bytes of layers that snapshots, and sandboxes made from them, lie on.
    pub frozen_bytes: u64,
    /// The number of volumes.
    pub volumes: u64,
    /// Bytes of what they hold.
    pub volume_bytes: u64,
    /// Bytes of the cache of builds.
    pub build_cache: u64,
    /// Bytes that `prune` gives back.
    pub reclaimable: u64,
    /// Bytes that `prune --all` gives back.
    pub reclaimable_all: u64,
}
