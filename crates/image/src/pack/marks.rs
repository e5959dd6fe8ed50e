//! What layers remove from those below, written on a disk as overlayfs wants to find it: a disk of
//! such layers is one layer of an overlay, above a disk of others.

use super::unwritten;
use msb_erofs::{Node, Writer};
use msb_spec::Result;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Which attributes an overlay marks directories with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Marks {
    /// Those that only root of everything may set: of overlays in a machine.
    Trusted,
    /// Those that anybody may set, of overlays that are mounted so.
    User,
}

impl Marks {
    fn opaque(self) -> &'static [u8] {
        match self {
            Self::Trusted => b"trusted.overlay.opaque",
            Self::User => b"user.overlay.opaque",
        }
    }
}

/// Directories of a disk that hide what is below it.
#[derive(Debug)]
pub(super) struct Marked {
    marks: Marks,
    directories: HashSet<Node>,
}

impl Marked {
    pub(super) fn new(marks: Marks) -> Self {
        Self { marks, directories: HashSet::new() }
    }

    pub(super) fn add(&mut self, directory: Node) {
        self.directories.insert(directory);
    }

    /// Marks the directories that are still there.
    pub(super) fn write(self, disk: &mut Writer) -> Result<()> {
        for directory in self.directories {
            let Some(mut attributes) = disk.attributes(directory).cloned() else { continue };
            attributes.xattrs.push((self.marks.opaque().to_vec(), b"y".to_vec()));
            disk.describe(directory, attributes).map_err(unwritten)?;
        }
        Ok(())
    }
}
