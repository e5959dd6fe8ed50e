//! What was decided: complete, printable, and all that a worker needs to know.
//!
//! Empty means closed: no network section, no network; no mounts, no host files; only the environment listed here.

use crate::{
    Command, Digest, Family, FamilyNetwork, Health, Hostname, Ids, ImageRef, Limits, Name, Network,
    Patch, Peers, PlannedInit, PlannedVolume, PlannedWorkspace, Profile, Restart, Result, Rlimit,
    Span, SpawnPolicy, Tmpfs, UserRef,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Raised whenever a worker of the previous number could misread a Plan.
pub const PLAN_VERSION: u32 = 3;
/// Plans from this number on are read: what they lack is left out.
const OLDEST_PLAN: u32 = 2;

/// The tier that was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Namespaces, seccomp, Landlock and cgroups on the host's kernel.
    Process,
    /// A microVM with a kernel of its own.
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

/// One read-only layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lower {
    /// Its directory on the host.
    pub path: PathBuf,
    /// Whether the ids in it are ids of the sandbox. If not, they stay the host's, so that only
    /// what everybody may read can be read inside.
    pub owned: bool,
    /// For a layer that a sandbox wrote, the host id behind its root; layers of images have none.
    #[serde(default)]
    pub written_as: Option<u32>,
}

impl Lower {
    /// A layer of an image.
    pub fn of_image(path: PathBuf) -> Self {
        Self { path, owned: true, written_as: None }
    }
}

/// One overlay: layers, topmost first, below a private writable directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    /// Where it appears inside; the first of a Rootfs is `/`.
    pub at: String,
    /// The layers, topmost first.
    pub lowers: Vec<Lower>,
}

/// Where what the sandbox writes is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Upper {
    /// In memory, gone with the sandbox.
    Memory {
        /// Size in bytes.
        size: u64,
    },
    /// In a directory of the state directory.
    Directory {
        /// Which.
        path: PathBuf,
    },
    /// In a disk image: of the microVM, or mounted through a loop device.
    Disk {
        /// The image.
        path: PathBuf,
    },
}

/// A root filesystem that is ready to mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rootfs {
    /// In the order they are mounted.
    pub overlays: Vec<Overlay>,
    /// How many of the topmost layers of each overlay the sandbox has written itself.
    #[serde(default)]
    pub own: usize,
    /// What the sandbox writes.
    pub upper: Upper,
}

impl Rootfs {
    /// The layers that sandboxes wrote, the topmost of each overlay first.
    pub fn written(&self) -> impl Iterator<Item = &Lower> {
        let lowers = self.overlays.iter().flat_map(|overlay| &overlay.lowers);
        lowers.filter(|lower| lower.written_as.is_some())
    }
}

/// The kernel of a microVM: a flat image that is mapped as it lies on disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestKernel {
    /// The image.
    pub path: PathBuf,
    /// The guest's physical address that its first byte is at.
    pub load: u64,
    /// Where it is entered.
    pub entry: u64,
    /// As people know it, such as `6.12.115`.
    pub version: String,
}

/// What the root of a microVM is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum MachineBase {
    /// A read-only disk that every sandbox of the image shares: packed from an OCI image, or the
    /// user's own.
    Image {
        /// The disk.
        path: PathBuf,
        /// Its file system.
        fstype: String,
    },
    /// The overlays of the Rootfs, shared read-only by the host.
    Shares,
}

/// The microVM of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its kernel.
    pub kernel: GuestKernel,
    /// Its processors.
    pub cpus: u8,
    /// Its memory, in MiB.
    pub memory_mib: u32,
    /// What its root is made of.
    pub base: MachineBase,
    /// Disks that sandboxes wrote before over that, the topmost first.
    #[serde(default)]
    pub written: Vec<PathBuf>,
}

impl Machine {
    /// The file system of a disk that sandboxes wrote before: their own, or a packed one.
    pub fn fstype_of(written: &std::path::Path) -> &'static str {
        match written.file_name().is_some_and(|name| name == crate::state::PACKED_DISK) {
            true => "erofs",
            false => "ext4",
        }
    }
}

/// A host path or a volume shown inside, found and checked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMount {
    /// The canonical path outside; of a volume, the directory or image that holds it.
    pub host: PathBuf,
    /// Where it appears.
    pub guest: String,
    /// Whether writing is refused.
    pub read_only: bool,
    /// Whether it is a single file.
    pub file: bool,
    /// Which volume it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<PlannedVolume>,
}

/// How tight the sandbox is closed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Security {
    /// Which list of system calls and capabilities.
    pub profile: Profile,
    /// Whether user namespaces may be made inside.
    pub allow_userns: bool,
    /// Whether files may be made setuid or setgid; not where host paths can be written.
    pub allow_setid: bool,
}

/// A sandbox as decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`PLAN_VERSION`] of the `msb` that wrote it.
    pub version: u32,
    /// Its name.
    pub name: Name,
    /// When it was decided, in milliseconds since 1970.
    pub created: u64,
    /// The tier.
    pub isolation: Isolation,
    /// Why it is not the microVM that `auto` prefers.
    pub isolation_reason: Option<String>,
    /// What it starts from, as asked; of a snapshot, what that lies on.
    pub image: ImageRef,
    /// The snapshot that it starts from.
    #[serde(default)]
    pub snapshot: Option<Name>,
    /// Which image was behind the name.
    #[serde(default)]
    pub image_digest: Option<Digest>,
    /// What it starts from, found.
    pub rootfs: Rootfs,
    /// The machine it runs in, on the `vm` tier.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// Which host ids stand behind its ids.
    pub ids: Ids,
    /// Its host name.
    pub hostname: Hostname,
    /// For finding it again.
    pub labels: BTreeMap<String, String>,
    /// Environment of every Exec.
    pub env: BTreeMap<String, String>,
    /// Where every Exec starts.
    pub workdir: String,
    /// Who runs every Exec; none is root.
    pub user: Option<UserRef>,
    /// The shell of the sandbox.
    pub shell: String,
    /// The image's own init as PID 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<PlannedInit>,
    /// Its network; none has only loopback.
    #[serde(default)]
    pub network: Option<Network>,
    /// Host paths and volumes shown inside.
    pub mounts: Vec<PlannedMount>,
    /// A host directory shown copy-on-write.
    #[serde(default)]
    pub workspace: Option<PlannedWorkspace>,
    /// Memory file systems inside.
    pub tmpfs: Vec<Tmpfs>,
    /// How much it may use.
    pub limits: Limits,
    /// Resource limits of every Exec.
    pub rlimits: Vec<Rlimit>,
    /// How tight it is closed.
    pub security: Security,
    /// It ends after this.
    pub max_duration: Option<Span>,
    /// It ends when nothing ran for this long.
    pub idle_timeout: Option<Span>,
    /// It is paused when nothing happened for this long, until something does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_pause: Option<Span>,
    /// When its first command is begun again; one that is, runs at every start.
    #[serde(default)]
    pub restart: Restart,
    /// What tells whether it is well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Health>,
    /// Removed when it ends.
    pub ephemeral: bool,
    /// What it may have made for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawn: Option<SpawnPolicy>,
    /// Whose child it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// Changes before the first command, made once.
    pub patches: Vec<Patch>,
    /// The first command.
    pub command: Option<Command>,
}

impl Plan {
    /// Where the layers are that sandboxes wrote: directories, or disks of machines.
    pub fn written(&self) -> impl Iterator<Item = &std::path::Path> {
        let disks = self.machine.iter().flat_map(|machine| &machine.written);
        let layers = self.rootfs.written().map(|lower| &lower.path);
        disks.chain(layers).map(PathBuf::as_path)
    }

    /// The network that it shares with its family. Whoever joined one by name is in no other.
    pub fn family_network(&self) -> Option<FamilyNetwork> {
        self.network.as_ref().filter(|network| network.join.is_none())?;
        if let Some(family) = &self.family {
            return family.network.clone();
        }
        let shares = self.spawn.as_ref().is_some_and(|policy| policy.peers != Peers::None);
        (shares && FamilyNetwork::admits(&self.name))
            .then(|| FamilyNetwork { root: self.name.clone(), since: self.created })
    }

    /// Checks a Plan that was read back from disk, where anybody could have written it.
    pub fn check(&self) -> Result<()> {
        if !(OLDEST_PLAN..=PLAN_VERSION).contains(&self.version) {
            return Err(crate::Error::unsupported(format!(
                "sandbox `{}` was made by another version of msb (plan {}, here {PLAN_VERSION})",
                self.name, self.version
            ))
            .hint("use that version, or remove the sandbox and make it again"));
        }
        for name in self.env.keys() {
            crate::spec::check_env_name(name)?;
        }
        let depth = match &self.machine {
            Some(machine) => Some(machine.written.len()),
            None => self.rootfs.overlays.iter().map(|overlay| overlay.lowers.len()).min(),
        };
        if self.rootfs.own > depth.unwrap_or(0) {
            let message = format!("sandbox `{}` has fewer layers than it says", self.name);
            return Err(crate::Error::new(crate::Kind::State, message));
        }
        Ok(())
    }
}

/// What is decided is for msb itself: it is shown, and its parts change.
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
