//! Images, and what takes space.

use crate::{Api, Watch};
use msb_spec::{Digest, History, Name, Prune, Pruned, Reference, Result, RunConfig, Space};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How long the commands of a build may take, all together. Package managers need minutes; whoever asked
/// over a network does not wait longer.
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
    /// The same Operations for a client of a server, who is not the operator: registries are
    /// reached at public addresses only, unless the operator trusts them.
    fn for_client(self: Arc<Self>, scope: ClientScope) -> Arc<dyn Api>;

    /// Every image, sorted by name.
    fn image_list(&self) -> Result<Vec<ImageSummary>>;

    /// Everything about one.
    fn image_inspect(&self, name: &Reference) -> Result<ImageInspection>;

    /// Fetches one, whether it is there or not.
    fn image_pull(&self, name: &Reference, watch: &dyn Watch) -> Result<ImageInspection>;

    /// The same, with a way to its registry that holds for this once.
    fn image_pull_from(
        &self,
        name: &Reference,
        registry: &Registry,
        watch: &dyn Watch,
    ) -> Result<ImageInspection>;

    /// Makes one from the text of a Containerfile, which has no directory to take files from. Within
    /// [`BUILD_LIMIT`], or not at all.
    fn image_build(
        &self,
        name: &Reference,
        containerfile: &str,
        watch: &dyn Watch,
    ) -> Result<ImageInspection>;

    /// Removes one; one that sandboxes were made from only with `force`. The name that it had.
    fn image_remove(&self, name: &Reference, force: bool) -> Result<Reference>;

    /// Removes what neither an image nor a sandbox needs.
    fn image_prune(&self, prune: &Prune) -> Result<Pruned>;

    /// What uses the disk, and how much of it could go.
    fn disk_usage(&self) -> Result<DiskUsage>;
}

/// How the registry of an image is reached for one Operation, beyond what the settings say.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Registry {
    /// Plain http, or TLS that nobody vouches for, will do.
    pub insecure: bool,
    /// A file of this host with certificates that vouch for it.
    pub ca: Option<PathBuf>,
    /// Who we are there. It is not kept.
    pub login: Option<Login>,
}

/// A user and a password.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Login {
    /// Who.
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
    /// Its name.
    pub reference: Reference,
    /// Of its manifest.
    pub digest: Digest,
    /// What it is for.
    pub platform: String,
    /// Bytes of its files.
    pub size: u64,
    /// Bytes that no other image has.
    pub own: u64,
    /// Bytes that other images have too.
    pub shared: u64,
    /// How many layers.
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
    /// Its name.
    pub reference: Reference,
    /// Of its manifest.
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
    /// Of the blob.
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
    /// How many sandboxes.
    pub sandboxes: u64,
    /// Bytes of what they have written.
    pub sandbox_bytes: u64,
    /// How many snapshots.
    pub snapshots: u64,
    /// Bytes of layers that snapshots, and sandboxes made from them, lie on.
    pub frozen_bytes: u64,
    /// How many volumes.
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
