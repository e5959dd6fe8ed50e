//! Sandboxes that were made for sandboxes.

use crate::sandboxes::Status;
use msb_spec::{Bytes, Cpus, ImageRef, Isolation, Name, Peers, WayOut};
use serde::{Deserialize, Serialize};

/// The Operations on children.
pub trait Children {
    operations!(children trait_method);
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
    /// The number of processors; the default of the policy if absent.
    pub cpus: Option<Cpus>,
    /// The memory limit; the default of the policy if absent.
    pub memory: Option<Bytes>,
}

/// A sandbox that another sandbox has made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Child {
    /// The name of the child.
    pub name: Name,
    /// The name of its parent.
    pub parent: Name,
    /// What it started from.
    pub image: ImageRef,
    /// The isolation tier of the child.
    pub isolation: Isolation,
    /// Where it is in its life.
    pub status: Status,
    /// The number of its processors.
    pub cpus: Cpus,
    /// The limit of its memory.
    pub memory: Bytes,
    /// When it was made, in milliseconds since 1970.
    pub created: u64,
    /// When it ends, likewise; none with its parent.
    pub expires: Option<u64>,
    /// Generations between it and a sandbox without a parent, 1 or more.
    pub generation: u32,
    /// The relatives that it can connect to; empty without a network between them.
    pub peers: Peers,
    /// How it gets out.
    pub net: WayOut,
    /// Whether its ports may be published.
    pub ports: bool,
}

/// The children of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Brood"))]
pub struct ChildListing {
    /// Those there are, by name.
    pub children: Vec<Child>,
    /// How many were ever made.
    pub spawned: u32,
    /// How many may ever be made; none if it may have no children.
    pub max_total: Option<u32>,
}
