//! Files of sandboxes and of volumes.

use crate::operation_types::*;
use msb_spec::{Name, Result, UserRef, VolumeName};
use msb_wire::Meta;
use serde::{Deserialize, Serialize};
use std::io::Read;

/// The sandbox or volume that files are in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a running sandbox.
    Sandbox {
        /// The name of the sandbox.
        name: Name,
        /// The user that accesses the files and owns new ones; `None` is root.
        user: Option<UserRef>,
    },
    /// The files of a volume.
    Volume(VolumeName),
}

impl Place {
    /// As root of a sandbox.
    pub fn sandbox(name: &Name) -> Self {
        Self::Sandbox { name: name.clone(), user: None }
    }
}

/// The Operations on files. Paths are those inside, and bytes: a name need not be UTF-8.
pub trait Files {
    operations!(files trait_method);

    /// Gives the bytes of a file, piece by piece.
    fn file_read(
        &self,
        at: &Place,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()>;

    /// Makes or replaces a file, or adds to it. How many bytes were written.
    fn file_write(
        &self,
        at: &Place,
        path: &[u8],
        mode: u32,
        append: bool,
        content: &mut dyn Read,
    ) -> Result<u64>;
}

/// Owner and permissions of a file; what is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attributes {
    /// The permission bits, such as `0o644`.
    pub mode: Option<u32>,
    /// The owner, by name or number, with an optional group.
    pub owner: Option<UserRef>,
    /// Its group, in the place of a user.
    pub group: Option<UserRef>,
}

/// What a copy moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "Copied"))]
pub struct CopyCount {
    /// Files, directories and links.
    pub entries: u64,
    /// The sum of their sizes in bytes.
    pub bytes: u64,
    /// Devices, sockets and pipes that were left out.
    pub left_out: u64,
}
