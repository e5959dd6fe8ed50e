//! What is known of images: how to run them, how they were made, what they take.

use crate::Reference;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What an image says about how to run it. Empty fields say nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RunConfig {
    /// `NAME=VALUE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// What is put before every command.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    /// What runs if nothing else is asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmd: Vec<String>,
    /// Where commands start.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub workdir: String,
    /// Who runs them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// What its makers noted.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Ports that its programs listen on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exposed_ports: Vec<String>,
    /// Directories that hold what should outlive it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<String>,
    /// What ends it gently.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stop_signal: String,
    /// What shell forms were written for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shell: Vec<String>,
    /// How to tell that it is well; kept, not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub healthcheck: Option<serde_json::Value>,
}

/// One step in the making of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct History {
    /// When, as its tool wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// By which instruction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// What its tool noted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// By whom.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
    /// Whether it made no layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub empty_layer: bool,
}

/// What is to be removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Prune {
    /// Also images that no sandbox uses.
    pub all: bool,
    /// Only images that were not used for this long.
    pub older_than: Option<Duration>,
    /// Only tell.
    pub dry_run: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Pruned {
    /// Names of images.
    pub images: Vec<Reference>,
    /// Unpacked layers.
    pub layers: u64,
    /// Disks for microVMs.
    pub disks: u64,
    /// Blobs.
    pub blobs: u64,
    /// Unfinished transfers and what died on the way.
    pub unfinished: u64,
    /// Layers derived from the host that are out of date.
    pub host_layers: u64,
    /// Bytes of all these.
    pub bytes: u64,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
}

/// What images take, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Space {
    /// How many images.
    pub images: u64,
    /// Bytes of unpacked layers.
    pub layers: u64,
    /// Bytes of disks for microVMs.
    pub disks: u64,
    /// Bytes of blobs.
    pub blobs: u64,
    /// Bytes of unfinished transfers.
    pub unfinished: u64,
    /// Bytes of layers derived from the host.
    pub host_layers: u64,
}
