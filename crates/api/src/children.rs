//! Sandboxes that were made for sandboxes.

use crate::Watch;
use crate::sandboxes::Status;
use msb_spec::{Bytes, Cpus, ImageRef, Isolation, Name, Peers, Result, WayOut};
use serde::{Deserialize, Serialize};

/// The Operations on children.
pub trait Children {
    /// Makes a child of a running sandbox, within the budget of that.
    fn child_spawn(&self, parent: &Name, ask: &ChildSpec, watch: &dyn Watch) -> Result<Child>;

    /// The children of a sandbox, and what its policy leaves.
    fn child_list(&self, parent: &Name) -> Result<Brood>;

    /// Ends a child, and those of its own.
    fn child_remove(&self, parent: &Name, name: &Name) -> Result<()>;
}

/// A child as asked for. It gets no more than its parent's policy gives to each.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ChildSpec {
    /// What it starts from, one of those that the policy names; the first of them if it is not said.
    pub image: Option<ImageRef>,
    /// Its name; one is made of its parent's if none is given.
    pub name: Option<Name>,
    /// Processors.
    pub cpus: Option<Cpus>,
    /// Memory.
    pub memory: Option<Bytes>,
}

/// A child.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Child {
    /// Its name.
    pub name: Name,
    /// Whose it is.
    pub parent: Name,
    /// What it started from.
    pub image: ImageRef,
    /// The tier.
    pub isolation: Isolation,
    /// Where it is in its life.
    pub status: Status,
    /// Its processors.
    pub cpus: Cpus,
    /// Its memory.
    pub memory: Bytes,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
    /// When it ends, likewise; none with its parent.
    pub expires: Option<u64>,
    /// How far it is from a sandbox that is nobody's child.
    pub generation: u32,
    /// Who of its family reach it, and it them: nobody where there is no network between them.
    pub peers: Peers,
    /// How it gets out.
    pub net: WayOut,
    /// Whether its ports may be published.
    pub ports: bool,
}

/// The children of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Brood {
    /// Those there are, by name.
    pub children: Vec<Child>,
    /// How many were ever made.
    pub spawned: u32,
    /// How many may ever be made; none if it may have no children.
    pub max_total: Option<u32>,
}
