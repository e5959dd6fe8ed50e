//! How much of the host a sandbox may use, and by what each limit is held.

use crate::{Bytes, Cpus, Name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// What holds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// A cgroup: hard.
    Cgroup,
    /// A resource limit that the kernel enforces per user id inside: hard.
    Rlimit,
    /// The set of processors it may run on: hard.
    Affinity,
    /// The size of a memory file system: hard.
    Tmpfs,
    /// The size of a disk image: hard.
    Disk,
    /// The microVM has no more: hard.
    Machine,
    /// The worker looks every few milliseconds and kills what is over: watched.
    Watch,
}

impl By {
    /// Whether the kernel itself refuses to go past the limit.
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

/// One limit: how much and what holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit<T> {
    /// How much.
    pub value: T,
    /// What holds it.
    pub by: By,
}

/// Where the sandbox's cgroup is made.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "version")]
pub enum Cgroup {
    /// No cgroup can be made by this user on this host.
    #[default]
    None,
    /// One directory in each of these v1 hierarchies.
    V1 {
        /// A directory that we may write, by controller. Two may share one.
        controllers: BTreeMap<String, PathBuf>,
    },
    /// One directory below this one of the v2 hierarchy.
    V2 {
        /// A directory that we may write, with its controllers handed down.
        parent: PathBuf,
        /// Whether what is inside can be frozen without its guest.
        #[serde(default)]
        freezes: bool,
    },
}

/// Where everything in a sandbox but its guest can be frozen: a directory below the sandbox's own.
///
/// The guest is in it as well, so that whatever it starts is; it is taken out while the others are
/// frozen, reaps and serves files meanwhile, and comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Freezer {
    /// The directory.
    pub inside: PathBuf,
    /// Where the guest is meanwhile.
    pub outside: PathBuf,
    /// The list of who is in either.
    pub members: &'static str,
    /// The file that is written.
    pub switch: &'static str,
    /// What freezes.
    pub freeze: &'static str,
    /// What thaws.
    pub thaw: &'static str,
    /// The file that tells, and what it has a line of once everything is frozen.
    pub frozen: (&'static str, &'static str),
}

/// The limits of a Plan. What is absent is not limited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Memory of all its processes.
    pub memory: Option<Limit<Bytes>>,
    /// Processors.
    pub cpus: Option<Limit<Cpus>>,
    /// Processes and threads.
    pub pids: Option<Limit<u32>>,
    /// The writable layer.
    pub disk: Option<Limit<Bytes>>,
    /// Where the cgroup is made.
    pub cgroup: Cgroup,
    /// Part of the cgroup's name: two state directories may have a sandbox of the same name.
    pub cgroup_owner: String,
}

impl Limits {
    /// The controller of v1 that freezes.
    pub const FREEZER: &'static str = "freezer";

    /// Where what is inside can be frozen, if it can.
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

    /// Where a sandbox's cgroup is, by controller; v2 has one for all, under no name.
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
