//! Snapshots: saved filesystems of sandboxes.

use crate::operation_types::*;
use msb_spec::{Digest, ImageRef, Isolation, Mount, Name, PublishedPort, Result, Tmpfs, UserRef};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// The Operations on snapshots, and the ways back.
pub trait Snapshots {
    operations!(snapshots trait_method);

    /// Writes it as an OCI archive; with `whole` its image as well.
    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()>;

    /// Reads one from an archive, under the name it was saved with or another.
    fn snapshot_load(&self, name: Option<&Name>, archive: &mut dyn Read) -> Result<Snapshot>;
}

/// How a sandbox is to differ from the one that a snapshot was taken of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Changes {
    /// The default user of Execs.
    pub user: Option<UserRef>,
    /// Host paths and volumes shown inside as well.
    pub mounts: Vec<Mount>,
    /// Memory file systems inside as well.
    pub tmpfs: Vec<Tmpfs>,
    /// Ports of the host that lead inside.
    pub ports: Vec<PublishedPort>,
    /// For finding it, as well.
    pub labels: BTreeMap<String, String>,
    /// Whether host paths and volumes that are not there any more are left out.
    pub lenient: bool,
}

/// A saved filesystem to start many sandboxes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Snapshot {
    /// Its id, which never changes.
    pub id: String,
    /// The names of the snapshot, sorted.
    pub names: Vec<Name>,
    /// When it was taken, in milliseconds since 1970.
    pub created: u64,
    /// The sandbox that it was taken of.
    pub sandbox: Name,
    /// What that sandbox was started from.
    pub image: ImageRef,
    /// Which image was behind the name.
    pub image_digest: Option<Digest>,
    /// The isolation tier of the saved sandbox.
    pub isolation: Isolation,
    /// What its maker wrote about it.
    pub note: Option<String>,
    /// The snapshot that it lies on.
    pub parent: Option<String>,
    /// Snapshots that lie on it.
    pub children: Vec<String>,
    /// How long the sandbox was stopped for it, in microseconds; it was not running if none.
    pub paused_us: Option<u64>,
    /// Of everything that its layers hold above the image, once that is written down.
    pub digest: Option<String>,
    /// Files in those layers.
    pub files: Option<u64>,
    /// The size of its layers in bytes.
    pub bytes: Option<u64>,
}

/// What came of comparing a snapshot with what was written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Verified"))]
pub struct VerifyReport {
    /// The id of the snapshot.
    pub id: String,
    /// Whether everything is as it was.
    pub intact: bool,
    /// Layers that were compared.
    pub layers: usize,
    /// Layers that nothing was written down about yet; that was done now.
    pub recorded: usize,
    /// Everything in the layers.
    pub files: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// What is different, the first of it.
    pub differences: Vec<String>,
}
