//! Packs all layers of an image into one read-only EROFS disk for microVMs.
//!
//! Runs in the helper process: untrusted layers are parsed only there. Owners, extended attributes
//! and device nodes are written to the disk as in the image. They never exist on the host.

mod layer_tree;
mod opaque_marks;

use crate::unpack::tar_reader::broken;
use crate::unpack::{Bounds, read_layer};
use layer_tree::{LayerTree, MemoryUse};
use msb_erofs::{FinishedDisk, Writer};
use msb_spec::{Digest, Error, Kind, Result};
use opaque_marks::OpaqueDirs;
pub use opaque_marks::OverlayXattrs;
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;

/// Result of packing a disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedDisk {
    /// Diff id of each layer, lowest first.
    pub diff_ids: Vec<Digest>,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Byte range of the directories on the disk.
    pub directories: Range<u64>,
}

/// Packs layers, lowest first, into an empty file. With `marks` the disk is an upper layer of an
/// overlay: files and directories that it removes from lower layers get whiteouts and opaque marks.
pub fn pack<R: Read + Send>(
    layers: impl IntoIterator<Item = R>,
    into: File,
    bounds: &Bounds,
    uuid: [u8; 16],
    marks: Option<OverlayXattrs>,
) -> Result<PackedDisk> {
    let mut opaque_dirs = marks.map(OpaqueDirs::new);
    let mut disk = Writer::new(into).map_err(write_error)?;
    let mut memory = MemoryUse::new(&mut disk)?;
    let mut diff_ids = Vec::new();
    for mut input in layers {
        let (diff_id, layer) = read_layer(&mut input, bounds, |archive| {
            LayerTree::read(archive, &mut disk, &mut memory, bounds)
        })?;
        // Reads trailing data of the compressor, which is not part of the next layer.
        io::copy(&mut input, &mut io::sink())
            .map_err(|error| Error::host("cannot read a layer", error))?;
        layer.put_over(&mut disk, opaque_dirs.as_mut())?;
        diff_ids.push(diff_id);
    }
    if let Some(opaque_dirs) = opaque_dirs {
        opaque_dirs.write(&mut disk)?;
    }
    let FinishedDisk { file, size, directories, unused } =
        disk.finish(uuid).map_err(write_error)?;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for range in unused {
        // Data that upper layers have replaced. Without support for holes it only takes space.
        let _ = rustix::fs::fallocate(&file, hole, range.start, range.end - range.start);
    }
    Ok(PackedDisk { diff_ids, size, directories })
}

/// Converts an error of the EROFS writer: invalid content, size limit or I/O.
fn write_error(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidInput | ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            broken("an entry that a disk cannot hold").cause(error)
        }
        ErrorKind::FileTooLarge => Error::new(Kind::Limit, "the image is too large").cause(error),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            Error::host("cannot write the disk of the image", error)
                .hint("`msb prune` makes room; MSB_HOME can name a directory on another disk")
        }
        _ => Error::host("cannot write the disk of the image", error),
    }
}

#[cfg(test)]
mod tests;
