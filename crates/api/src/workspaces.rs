//! What a sandbox changed in the host's directory that it was given, before it is there.

use crate::change::Change;
use crate::rel_path::RelPath;
use msb_spec::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The Operations on workspaces.
pub trait Workspaces {
    operations!(workspaces trait_method);
}

/// What a [`Workspaces::workspace_diff`] is to find out beside the paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Depth {
    /// The SHA-256 of every file that differs.
    pub digests: bool,
    /// The difference of texts, line by line.
    pub patches: bool,
    /// What `git apply` takes: the whole content of a change, also of binary files and links.
    pub git: bool,
}

/// Which changes are to be brought to the host. Empty means all that need not be named.
///
/// A pattern without a slash is a name anywhere in the tree, one with a slash begins at its root;
/// one that fits a directory means everything below it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Selection {
    /// Only what fits one of these. What has to be named is meant by a pattern that names it.
    pub include: Vec<String>,
    /// Nothing that fits one of these, whatever else says so.
    pub exclude: Vec<String>,
    /// Files that the host's `.gitignore` leaves out are meant, too.
    pub ignored: bool,
    /// What the host has changed since it was seen is lost where one of these fits.
    pub overwrite: Vec<String>,
    /// Exactly these and no others, named one by one; files with the SHA-256 that they had when they
    /// were looked at, so that nothing else is brought to the host.
    pub only: Option<BTreeMap<RelPath, Option<String>>>,
}

/// Why a change is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// The patterns do not mean it.
    NotIncluded,
    /// It would make the host run something, and was not named.
    Risk,
    /// The host's `.gitignore` leaves it out.
    Ignored,
    /// It is none that the host could have.
    Special,
}

/// What was, or would be, brought to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Applied"))]
pub struct ApplyReport {
    /// The changes, in order.
    pub applied: Vec<Change>,
    /// The others, and why.
    pub left_out: Vec<(Change, LeftOut)>,
    /// What was found and mended on the way.
    pub notes: Vec<String>,
}
