//! Saved filesystems.

use msb_spec::{Digest, ImageRef, Isolation, Mount, Name, Published, Result, Tmpfs, UserRef};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// The Operations on snapshots, and the ways back.
pub trait Snapshots {
    /// Saves the filesystem of a sandbox under a name.
    fn snapshot_create(&self, name: &Name, of: &Name, note: Option<&str>) -> Result<Snapshot>;

    /// Every snapshot, the oldest first.
    fn snapshot_list(&self) -> Result<Vec<Snapshot>>;

    /// One, by a name or its id.
    fn snapshot_inspect(&self, name: &Name) -> Result<Snapshot>;

    /// Compares it with what was written down when it was taken.
    fn snapshot_verify(&self, name: &Name) -> Result<Verified>;

    /// Gives it one more name.
    fn snapshot_tag(&self, snapshot: &Name, name: &Name) -> Result<()>;

    /// Takes a name from it, and removes it with the last one.
    fn snapshot_remove(&self, name: &Name, force: bool) -> Result<()>;

    /// Writes it as an OCI archive; with `whole` its image as well.
    fn snapshot_save(&self, name: &Name, whole: bool, out: &mut dyn Write) -> Result<()>;

    /// Reads one from an archive, under the name it was saved with or another.
    fn snapshot_load(&self, name: Option<&Name>, archive: &mut dyn Read) -> Result<Snapshot>;

    /// Makes a sandbox from a snapshot, with the settings of the one it was taken of. It is not
    /// started.
    fn snapshot_restore(&self, snapshot: &Name, name: &Name) -> Result<()>;

    /// The same, but for some of its settings.
    fn snapshot_restore_with(&self, snapshot: &Name, name: &Name, changes: &Changes) -> Result<()>;

    /// Makes a second sandbox of one. It is not started.
    fn sandbox_clone(&self, of: &Name, name: &Name) -> Result<()>;

    /// Puts the files of a stopped sandbox back to what a snapshot holds.
    fn sandbox_rollback(&self, name: &Name, snapshot: &Name) -> Result<()>;

    /// Puts the files of a stopped sandbox back to what its image holds.
    fn sandbox_reset(&self, name: &Name, keep_workspace: bool) -> Result<()>;
}

/// How a sandbox is to differ from the one that a snapshot was taken of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Changes {
    /// Who runs every Exec.
    pub user: Option<UserRef>,
    /// Host paths and volumes shown inside as well.
    pub mounts: Vec<Mount>,
    /// Memory file systems inside as well.
    pub tmpfs: Vec<Tmpfs>,
    /// Ports of the host that lead inside.
    pub ports: Vec<Published>,
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
    /// Its names, sorted.
    pub names: Vec<Name>,
    /// When it was taken, in milliseconds since 1970.
    pub created: u64,
    /// The sandbox that it was taken of.
    pub sandbox: Name,
    /// What that sandbox was started from.
    pub image: ImageRef,
    /// Which image was behind the name.
    pub image_digest: Option<Digest>,
    /// Its tier.
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
    /// Their bytes.
    pub bytes: Option<u64>,
}

/// What came of comparing a snapshot with what was written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Verified {
    /// Its id.
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
