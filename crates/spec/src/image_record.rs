//! Metadata of images: run configuration, history and disk usage.

use crate::Reference;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Run configuration of an image. Empty fields are not set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RunConfig {
    /// Environment variables as `NAME=VALUE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Arguments that are put before each command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// Command that runs if no other is given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// Working directory of all commands.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workdir: String,
    /// User that commands run as.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Labels set by the author of the image.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Ports that its programs listen on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exposed_ports: Vec<String>,
    /// Directories with data that should outlive the sandbox.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// Signal that asks the command to exit.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stop_signal: String,
    /// Shell of instructions in shell form.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shell: Vec<String>,
    /// Health check in Docker's format; stored, not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<serde_json::Value>,
}

/// One build step of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct History {
    /// Time of the step, as its tool wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Instruction that the step ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// Comment of the build tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Author that the step names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Whether it created no layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub empty_layer: bool,
}

/// Options of `msb image prune`.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prune {
    /// Also images that no sandbox uses.
    pub all: bool,
    /// Only images that were not used for this long.
    pub older_than: Option<Duration>,
    /// Only report, remove nothing.
    pub dry_run: bool,
}

/// What `prune` removed, or would remove.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Pruned"))]
pub struct PruneReport {
    /// Names of the removed images.
    pub images: Vec<Reference>,
    /// Number of unpacked layers.
    pub layers: u64,
    /// Number of disks for microVMs.
    pub disks: u64,
    /// Number of blobs from registries.
    pub blobs: u64,
    /// Number of unfinished transfers and leftovers of killed processes.
    pub unfinished: u64,
    /// Number of outdated layers derived from the host.
    pub host_layers: u64,
    /// Bytes of all these together.
    pub bytes: u64,
    /// Paths that could not be removed, with the error.
    pub failed: Vec<String>,
}

/// Disk usage of images, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Space {
    /// Number of images in the store.
    pub images: u64,
    /// Bytes of unpacked layers.
    pub layers: u64,
    /// Bytes of disks for microVMs.
    pub disks: u64,
    /// Bytes of blobs from registries.
    pub blobs: u64,
    /// Bytes of unfinished transfers.
    pub unfinished: u64,
    /// Bytes of layers derived from the host.
    pub host_layers: u64,
}
