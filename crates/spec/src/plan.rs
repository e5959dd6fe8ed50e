//! The Plan: what was decided about a sandbox, complete and printable. A worker needs nothing else.
//!
//! What is absent is closed: no network section, no network; no mounts, no host files; only the
//! environment listed here.

use crate::{
    Command, Digest, Family, FamilyNetwork, Health, Hostname, Ids, ImageRef, Limits, Name, Network,
    Patch, Peers, PlannedInit, PlannedVolume, PlannedWorkspace, Profile, Restart, Result, Rlimit,
    Span, SpawnPolicy, Tmpfs, UserRef,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Version of the Plan format. Incremented whenever a worker of the previous version could misread
/// a Plan.
pub const PLAN_VERSION: u32 = 3;
/// Oldest version that is read; fields that it lacks get their defaults.
const OLDEST_PLAN: u32 = 2;

/// The isolation tier of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Namespaces, seccomp, Landlock and cgroups on the host's kernel.
    Process,
    /// A microVM with its own kernel.
    Vm,
}

impl std::fmt::Display for Isolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Vm => "vm",
        })
    }
}

/// One read-only layer of an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lower {
    /// Directory of the layer on the host.
    pub path: PathBuf,
    /// Whether its file ids are ids of the sandbox. If not, they stay host ids, so that only
    /// world-readable files can be read inside.
    pub owned: bool,
    /// For a frozen writable layer, the host id of its root; `None` for layers of images.
    #[serde(default)]
    pub written_as: Option<u32>,
}

impl Lower {
    /// A layer that belongs to an image.
    pub fn of_image(path: PathBuf) -> Self {
        Self { path, owned: true, written_as: None }
    }
}

/// One overlay: layers, topmost first, below a private writable directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// Mount point inside; the first of a Rootfs is `/`.
    pub at: String,
    /// Read-only layers, topmost first.
    pub lowers: Vec<Lower>,
}

/// Where the writable layer is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Upper {
    /// In a tmpfs, gone with the sandbox.
    Memory {
        /// Size of the tmpfs in bytes.
        size: u64,
    },
    /// In a directory of the state directory.
    Directory {
        /// Path of the directory on the host.
        path: PathBuf,
    },
    /// In a disk image: of the microVM, or mounted through a loop device.
    Disk {
        /// Path of the disk image on the host.
        path: PathBuf,
    },
}

/// A root file system that is ready to mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rootfs {
    /// Overlays in the order they are mounted.
    pub overlays: Vec<Overlay>,
    /// Number of topmost layers in each overlay that are frozen layers of this sandbox.
    #[serde(default)]
    pub own: usize,
    /// Storage of the writable layer.
    pub upper: Upper,
}

impl Rootfs {
    /// Frozen writable layers, topmost of each overlay first.
    pub fn written(&self) -> impl Iterator<Item = &Lower> {
        let lowers = self.overlays.iter().flat_map(|overlay| &overlay.lowers);
        lowers.filter(|lower| lower.written_as.is_some())
    }
}

/// Kernel of a microVM: a flat image that is mapped as it lies on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestKernel {
    /// Path of the image on the host.
    pub path: PathBuf,
    /// Guest-physical address of its first byte.
    pub load: u64,
    /// Guest-physical address of its entry point.
    pub entry: u64,
    /// Version for users, such as `6.12.115`.
    pub version: String,
}

/// Base of the root file system of a microVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum MachineBase {
    /// A read-only disk that all sandboxes of the image share: packed from an OCI image, or the
    /// user's own.
    Image {
        /// Path of the disk on the host.
        path: PathBuf,
        /// File system type of the disk.
        fstype: String,
    },
    /// The overlays of the Rootfs, shared read-only by the host.
    Shares,
}

/// Configuration of the microVM of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The kernel that it boots.
    pub kernel: GuestKernel,
    /// Number of its virtual CPUs.
    pub cpus: u8,
    /// Size of its memory in MiB.
    pub memory_mib: u32,
    /// Base of its root file system.
    pub base: MachineBase,
    /// Frozen writable disks above the base, topmost first.
    #[serde(default)]
    pub written: Vec<PathBuf>,
}

impl Machine {
    /// File system type of a frozen disk: ext4, or erofs if it was packed.
    pub fn fstype_of(written: &std::path::Path) -> &'static str {
        match written.file_name().is_some_and(|name| name == crate::state::PACKED_DISK) {
            true => "erofs",
            false => "ext4",
        }
    }
}

/// A mount of a host path or volume, resolved and checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMount {
    /// Canonical path on the host; of a volume, its directory or image.
    pub host: PathBuf,
    /// Mount point inside the sandbox.
    pub guest: String,
    /// Whether writes to it are refused.
    pub read_only: bool,
    /// Whether its files cannot be executed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_exec: bool,
    /// Whether it is a single file.
    pub file: bool,
    /// The volume, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<PlannedVolume>,
}

/// Security settings of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// Profile of system calls and capabilities.
    pub profile: Profile,
    /// Whether user namespaces may be created inside.
    pub allow_userns: bool,
    /// Whether files may get setuid or setgid bits; not where host paths are writable.
    pub allow_setid: bool,
}

/// A sandbox as it was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_VERSION`] of the `msb` that wrote it.
    pub version: u32,
    /// Name of the sandbox, unique on the host.
    pub name: Name,
    /// Time of the decision in milliseconds since 1970.
    pub created: u64,
    /// Isolation tier that was chosen.
    pub isolation: Isolation,
    /// Why it is not the microVM that `auto` prefers.
    pub isolation_reason: Option<String>,
    /// Image as requested; for a snapshot, the image below it.
    pub image: ImageRef,
    /// Snapshot that it starts from.
    #[serde(default)]
    pub snapshot: Option<Name>,
    /// Digest of the image behind the name.
    #[serde(default)]
    pub image_digest: Option<Digest>,
    /// Root file system, ready to mount.
    pub rootfs: Rootfs,
    /// The microVM, on the `vm` tier.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// Mapping of its ids to host ids.
    pub ids: Ids,
    /// Host name of the sandbox.
    pub hostname: Hostname,
    /// Labels by which it is found.
    pub labels: BTreeMap<String, String>,
    /// Environment variables of all Execs.
    pub env: BTreeMap<String, String>,
    /// Working directory of all Execs.
    pub workdir: String,
    /// User that all Execs run as; `None` is root.
    pub user: Option<UserRef>,
    /// Path of the shell inside.
    pub shell: String,
    /// The image's own init as PID 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<PlannedInit>,
    /// Its network; `None` has only loopback.
    #[serde(default)]
    pub network: Option<Network>,
    /// Mounts of host paths and volumes.
    pub mounts: Vec<PlannedMount>,
    /// A host directory that is mounted copy-on-write.
    #[serde(default)]
    pub workspace: Option<PlannedWorkspace>,
    /// Tmpfs mounts inside the sandbox.
    pub tmpfs: Vec<Tmpfs>,
    /// Limits and what enforces them.
    pub limits: Limits,
    /// Resource limits of all Execs.
    pub rlimits: Vec<Rlimit>,
    /// Security settings of the sandbox.
    pub security: Security,
    /// Time after its start at which it stops.
    pub max_duration: Option<Span>,
    /// Time without a running command after which it stops.
    pub idle_timeout: Option<Span>,
    /// Time without activity after which it is paused, until the next activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_pause: Option<Span>,
    /// Restart policy of its first command. With one, the command runs at each start.
    #[serde(default)]
    pub restart: Restart,
    /// Health check of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Whether it is removed when it stops.
    pub ephemeral: bool,
    /// Policy for child sandboxes; `None` allows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawn: Option<SpawnPolicy>,
    /// Its parent, if it is a child.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// Changes before the first command, applied once.
    pub patches: Vec<Patch>,
    /// The first command, if any.
    pub command: Option<Command>,
}

impl Plan {
    /// Paths of the frozen writable layers: directories, or disks of microVMs.
    pub fn written(&self) -> impl Iterator<Item = &std::path::Path> {
        let disks = self.machine.iter().flat_map(|machine| &machine.written);
        let layers = self.rootfs.written().map(|lower| &lower.path);
        disks.chain(layers).map(PathBuf::as_path)
    }

    /// Network that it shares with its family. A sandbox that joined a named network is in no
    /// other.
    pub fn family_network(&self) -> Option<FamilyNetwork> {
        self.network.as_ref().filter(|network| network.join.is_none())?;
        if let Some(family) = &self.family {
            return family.network.clone();
        }
        let shares = self.spawn.as_ref().is_some_and(|policy| policy.peers != Peers::None);
        (shares && FamilyNetwork::admits(&self.name))
            .then(|| FamilyNetwork { root: self.name.clone(), since: self.created })
    }

    /// Checks a Plan that was read from disk, where other programs could have written it.
    pub fn check(&self) -> Result<()> {
        if !(OLDEST_PLAN..=PLAN_VERSION).contains(&self.version) {
            return Err(crate::Error::unsupported(format!(
                "sandbox `{}` was made by another version of msb (plan {}, here {PLAN_VERSION})",
                self.name, self.version
            ))
            .hint("use that version, or remove the sandbox and create it again"));
        }
        for name in self.env.keys() {
            crate::spec::check_env_name(name)?;
        }
        let depth = match &self.machine {
            Some(machine) => Some(machine.written.len()),
            None => self.rootfs.overlays.iter().map(|overlay| overlay.lowers.len()).min(),
        };
        if self.rootfs.own > depth.unwrap_or(0) {
            let message =
                format!("the Plan of sandbox `{}` counts more layers than it has", self.name);
            return Err(crate::Error::new(crate::Kind::State, message));
        }
        Ok(())
    }
}

/// The schema is opaque: a Plan is for msb itself, and its parts change.
#[cfg(feature = "schema")]
impl schemars::JsonSchema for Plan {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Plan".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "object",
            "description": "Everything that was decided about a sandbox. Its parts may change.",
        })
    }
}
