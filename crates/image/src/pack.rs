//! All layers of an image in one read-only disk, for microVMs.
//!
//! Runs in a process of its own, as unpacking does: layers that others made are read there and
//! nowhere else. Owners, attributes and devices are on the disk as the image has them; none of
//! them ever exists on the host.

mod layer;
mod marks;

use crate::unpack::archive::broken;
use crate::unpack::{Bounds, streamed};
use layer::{Layer, Names};
use marks::Marked;
pub use marks::Marks;
use msb_erofs::{Finished, Writer};
use msb_spec::{Digest, Error, Kind, Result};
use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::ops::Range;

/// What was packed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packed {
    /// Of each layer, lowest first: the digest of its stream, decompressed.
    pub diff_ids: Vec<Digest>,
    /// Of the disk.
    pub size: u64,
    /// Where on the disk its directories are.
    pub directories: Range<u64>,
}

/// Packs layers, lowest first, into an empty file. With `marks` they lie over others that are not
/// among them, and what they remove from those is marked.
pub fn pack<R: Read + Send>(
    layers: impl IntoIterator<Item = R>,
    into: File,
    bounds: &Bounds,
    uuid: [u8; 16],
    marks: Option<Marks>,
) -> Result<Packed> {
    let mut marked = marks.map(Marked::new);
    let mut disk = Writer::new(into).map_err(unwritten)?;
    let mut names = Names::new(&mut disk)?;
    let mut diff_ids = Vec::new();
    for mut input in layers {
        let (diff_id, layer) = streamed(&mut input, bounds, |archive| {
            Layer::read(archive, &mut disk, &mut names, bounds)
        })?;
        // What compressors put behind their stream belongs to no other layer.
        io::copy(&mut input, &mut io::sink())
            .map_err(|error| Error::host("cannot read a layer", error))?;
        layer.put_over(&mut disk, marked.as_mut())?;
        diff_ids.push(diff_id);
    }
    if let Some(marked) = marked {
        marked.write(&mut disk)?;
    }
    let Finished { file, size, directories, unused } = disk.finish(uuid).map_err(unwritten)?;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for range in unused {
        // What upper layers have replaced; where files have no holes it only takes room.
        let _ = rustix::fs::fallocate(&file, hole, range.start, range.end - range.start);
    }
    Ok(Packed { diff_ids, size, directories })
}

/// The disk cannot be written, or not with this in it.
fn unwritten(error: io::Error) -> Error {
    match error.kind() {
        ErrorKind::InvalidInput | ErrorKind::AlreadyExists | ErrorKind::NotADirectory => {
            broken("what no disk can hold").cause(error)
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
