//! Files of sandboxes and of volumes.

use msb_spec::{Name, Result, UserRef, VolumeName};
use msb_wire::Meta;
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::Path;

/// Where files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a running sandbox.
    Sandbox {
        /// Which.
        name: Name,
        /// Who looks at them and owns what is made; none is root.
        user: Option<UserRef>,
    },
    /// In a volume.
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

    /// What a path is.
    fn file_stat(&self, at: &Place, path: &[u8], follow: bool) -> Result<Meta>;

    /// Where a path leads: absolute and without links. What is not there is taken as it is
    /// written, and a relative path begins at the user's home.
    fn file_real(&self, at: &Place, path: &[u8]) -> Result<Vec<u8>>;

    /// The entries of a directory, sorted by name.
    fn file_list(&self, at: &Place, path: &[u8]) -> Result<Vec<Meta>>;

    /// Makes a directory; with `parents` those above as well, and it may be there.
    fn file_mkdir(&self, at: &Place, path: &[u8], parents: bool) -> Result<()>;

    /// Removes a file or an empty directory; with `recursive` whatever it is and holds, if it is
    /// there.
    fn file_remove(&self, at: &Place, path: &[u8], recursive: bool) -> Result<()>;

    /// Renames, replacing what is there.
    fn file_rename(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()>;

    /// Copies a file or tree within the place.
    fn file_copy(&self, at: &Place, from: &[u8], to: &[u8]) -> Result<()>;

    /// Makes a symbolic link, replacing a link or file that is there.
    fn file_symlink(&self, at: &Place, path: &[u8], target: &[u8]) -> Result<()>;

    /// Changes whose a file or directory is and what its permissions are; a link is followed.
    fn file_set(&self, at: &Place, path: &[u8], attributes: &Attributes) -> Result<()>;

    /// Copies a file or tree of this host in. If `to` is a directory there, below it by its name.
    /// The path of the host is taken as it is written: a link in it is refused, so that whoever
    /// judged it by where it leads has judged what is used.
    fn file_push(&self, at: &Place, from: &Path, to: &[u8]) -> Result<Copied>;

    /// Copies a file or tree out to this host. If `to` is a directory here, below it by its name.
    /// The path of the host is taken as it is written, as above.
    fn file_pull(&self, at: &Place, from: &[u8], to: &Path) -> Result<Copied>;
}

/// Whose a file is and who may use it; what is absent stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Attributes {
    /// Its permissions.
    pub mode: Option<u32>,
    /// Its owner.
    pub owner: Option<UserRef>,
    /// Its group, in the place of a user.
    pub group: Option<UserRef>,
}

/// What a copy moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Copied {
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Devices, sockets and pipes that were left out.
    pub left_out: u64,
}
