//! Named storage.

use msb_spec::{Name, Result, VolumeKind, VolumeName, VolumeSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The Operations on volumes; their files are read and written through [`crate::Files`].
pub trait Volumes {
    /// Makes a volume.
    fn volume_create(&self, spec: &VolumeSpec) -> Result<Volume>;

    /// Every volume, sorted by name.
    fn volume_list(&self) -> Result<Vec<Volume>>;

    /// One volume.
    fn volume_inspect(&self, name: &VolumeName) -> Result<Volume>;

    /// Removes one that no sandbox uses; with `force` one that only stopped sandboxes use.
    fn volume_remove(&self, name: &VolumeName, force: bool) -> Result<()>;

    /// Removes those that no sandbox uses.
    fn volume_prune(&self, dry_run: bool) -> Result<PrunedVolumes>;
}

/// Everything there is to know about one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Volume {
    /// Its name.
    pub name: VolumeName,
    /// What it is.
    pub kind: VolumeKind,
    /// Bytes that it may hold; none is as much as the host has.
    pub size: Option<u64>,
    /// Bytes of the host's disk that it takes, as far as they can be seen.
    pub used: u64,
    /// For finding it.
    pub labels: BTreeMap<String, String>,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
    /// Sandboxes that use it, running or not.
    pub sandboxes: Vec<Name>,
    /// Whether a microVM may have written to it as a disk, so that only microVMs mount it.
    pub by_machine: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PrunedVolumes {
    /// Which.
    pub volumes: Vec<VolumeName>,
    /// Bytes that they took.
    pub volume_bytes: u64,
}
