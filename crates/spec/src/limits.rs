//! Resource limits of a sandbox, and the mechanism that enforces each.

use crate::{Bytes, Cpus, Name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Mechanism that enforces a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A cgroup controller: a hard limit.
    Cgroup,
    /// A resource limit for each user id inside: a hard limit.
    Rlimit,
    /// The CPU affinity mask: a hard limit.
    Affinity,
    /// The size of a tmpfs: a hard limit.
    Tmpfs,
    /// The size of a disk image: a hard limit.
    Disk,
    /// The size of the microVM: a hard limit.
    Machine,
    /// The worker polls every few milliseconds and kills what exceeds it: a watched limit.
    Watch,
}

impl By {
    /// Whether the kernel itself enforces the limit.
    pub fn is_hard(self) -> bool {
        self != Self::Watch
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cgroup => "hard, by cgroup",
            Self::Rlimit => "hard, by rlimit",
            Self::Affinity => "hard, by affinity",
            Self::Tmpfs => "hard, by tmpfs size",
            Self::Disk => "hard, by disk size",
            Self::Machine => "hard, by the microVM",
            Self::Watch => "watched",
        })
    }
}

/// One limit: its value and what enforces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit<T> {
    /// Amount, in the unit of its type.
    pub value: T,
    /// Mechanism that enforces it.
    pub by: By,
}

/// Parent of the sandbox's cgroup.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "version")]
pub enum Cgroup {
    /// This user cannot create cgroups on this host.
    #[default]
    None,
    /// One directory in each of these v1 hierarchies.
    V1 {
        /// Writable parent directory by controller. Two controllers may share one.
        controllers: BTreeMap<String, PathBuf>,
    },
    /// One directory below `parent` in the v2 hierarchy.
    V2 {
        /// Writable parent directory with delegated controllers.
        parent: PathBuf,
        /// Whether the sandbox can be frozen without its guest.
        #[serde(default)]
        freezes: bool,
    },
}

/// The cgroup in which all processes of a sandbox but its guest are frozen: a directory below the
/// sandbox's own.
///
/// The guest is in it as well, so that the processes it starts are. It moves out while the others
/// are frozen, reaps and serves files meanwhile, and moves back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freezer {
    /// Directory of the cgroup that is frozen.
    pub inside: PathBuf,
    /// Directory of the cgroup in which the guest is meanwhile.
    pub outside: PathBuf,
    /// File that lists the members of a cgroup.
    pub members: &'static str,
    /// File that freezes and thaws.
    pub switch: &'static str,
    /// Text that freezes, written to `switch`.
    pub freeze: &'static str,
    /// Text that thaws, written to `switch`.
    pub thaw: &'static str,
    /// File with the state, and the line it contains once all members are frozen.
    pub frozen: (&'static str, &'static str),
}

/// The limits of a Plan. `None` is unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all its processes.
    pub memory: Option<Limit<Bytes>>,
    /// CPU time of all its processes, in CPUs.
    pub cpus: Option<Limit<Cpus>>,
    /// Number of processes and threads.
    pub pids: Option<Limit<u32>>,
    /// Size of the writable layer.
    pub disk: Option<Limit<Bytes>>,
    /// Parent of the sandbox's cgroup.
    pub cgroup: Cgroup,
    /// Part of the cgroup's name: two state directories may have a sandbox of the same name.
    pub cgroup_owner: String,
}

impl Limits {
    /// The v1 controller that freezes processes.
    pub const FREEZER: &'static str = "freezer";

    /// The cgroup that can be frozen; `None` if the host has no freezer.
    pub fn freezer(&self, name: &Name) -> Option<Freezer> {
        let mut directories = self.cgroup_directories(name);
        let at = |outside: PathBuf| (outside.join("inside"), outside);
        match &self.cgroup {
            Cgroup::None | Cgroup::V2 { freezes: false, .. } => None,
            Cgroup::V1 { .. } => {
                let (inside, outside) = at(directories.remove(Self::FREEZER)?);
                Some(Freezer {
                    inside,
                    outside,
                    members: "tasks",
                    switch: "freezer.state",
                    freeze: "FROZEN",
                    thaw: "THAWED",
                    frozen: ("freezer.state", "FROZEN"),
                })
            }
            Cgroup::V2 { freezes: true, .. } => {
                let (inside, outside) = at(directories.remove("")?);
                Some(Freezer {
                    inside,
                    outside,
                    members: "cgroup.procs",
                    switch: "cgroup.freeze",
                    freeze: "1",
                    thaw: "0",
                    frozen: ("cgroup.events", "frozen 1"),
                })
            }
        }
    }

    /// The sandbox's cgroup directories by controller; v2 has one, with an empty name.
    pub fn cgroup_directories(&self, name: &Name) -> BTreeMap<String, PathBuf> {
        let below = |parent: &PathBuf| parent.join(format!("msb-{}-{name}", self.cgroup_owner));
        match &self.cgroup {
            Cgroup::None => BTreeMap::new(),
            Cgroup::V1 { controllers } => {
                controllers.iter().map(|(name, root)| (name.clone(), below(root))).collect()
            }
            Cgroup::V2 { parent, .. } => BTreeMap::from([(String::new(), below(parent))]),
        }
    }
}
