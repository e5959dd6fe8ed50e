//! Opaque marks on an EROFS disk that is an upper layer of an overlay: they hide directories of
//! lower disks.

use super::write_error;
use msb_erofs::{Node, Writer};
use msb_spec::Result;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Namespace of the extended attributes that overlayfs reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverlayXattrs {
    /// `trusted.overlay.*`, for overlays that root mounts in a microVM.
    Trusted,
    /// `user.overlay.*`, for overlays that are mounted with `userxattr`.
    User,
}

impl OverlayXattrs {
    fn opaque(self) -> &'static [u8] {
        match self {
            Self::Trusted => b"trusted.overlay.opaque",
            Self::User => b"user.overlay.opaque",
        }
    }
}

/// Directories of the disk that hide those of lower disks.
#[derive(Debug)]
pub(super) struct OpaqueDirs {
    marks: OverlayXattrs,
    directories: HashSet<Node>,
}

impl OpaqueDirs {
    pub(super) fn new(marks: OverlayXattrs) -> Self {
        Self { marks, directories: HashSet::new() }
    }

    pub(super) fn add(&mut self, directory: Node) {
        self.directories.insert(directory);
    }

    /// Writes the mark of each directory that still exists.
    pub(super) fn write(self, disk: &mut Writer) -> Result<()> {
        for directory in self.directories {
            let Some(mut attributes) = disk.attributes(directory).cloned() else { continue };
            attributes.xattrs.push((self.marks.opaque().to_vec(), b"y".to_vec()));
            disk.describe(directory, attributes).map_err(write_error)?;
        }
        Ok(())
    }
}
