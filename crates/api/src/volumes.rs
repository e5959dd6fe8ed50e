//! Volumes: named storage beyond sandboxes.

use msb_spec::{Name, VolumeKind, VolumeName, VolumeSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The Operations on volumes; their files are read and written through [`crate::Files`].
pub trait Volumes {
    operations!(volumes trait_method);
}

/// Everything there is to know about one volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Volume {
    /// The name of the volume.
    pub name: VolumeName,
    /// Directory or disk image.
    pub kind: VolumeKind,
    /// Bytes that it may hold; none is as much as the host has.
    pub size: Option<u64>,
    /// Bytes of the host's disk that it takes, as far as they can be seen.
    pub used: u64,
    /// Labels that listings are filtered by.
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
    /// The names of the removed volumes.
    pub volumes: Vec<VolumeName>,
    /// Bytes that they took.
    pub volume_bytes: u64,
}
