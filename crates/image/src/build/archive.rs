//! Archives that ADD unpacks: tar, plain or compressed with gzip or zstd.
//!
//! An archive is read as something that anybody wrote, by the reader that layers go through, and
//! its files land within the image, wherever its links and the image's lead.

use super::layer::NewLayer;
use super::tape::Data;
use super::tree::{Entry, Kind, shown};
use crate::unpack::archive::{self, Archive, broken};
use crate::unpack::{Bounds, Compression, clean, decompressed, exceeded};
use msb_spec::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// An archive, at its start.
pub(crate) struct Packed {
    stream: Box<dyn BufRead>,
    path: PathBuf,
}

const BLOCK: usize = 512;
const BUFFER: usize = 256 << 10;

/// Looks whether a file is an archive.
pub(crate) fn recognise(mut file: File, path: &Path) -> Result<Option<Packed>> {
    let about = |error| super::layer::unreadable(path, error);
    let mut start = Vec::new();
    (&file).take(BLOCK as u64).read_to_end(&mut start).map_err(about)?;
    for (magic, name) in [(&b"\xfd7zXZ\0"[..], "xz"), (b"BZh", "bzip2")] {
        if start.starts_with(magic) {
            return Err(Error::unsupported(format!(
                "ADD does not unpack {name}: `{}`",
                shown(path)
            ))
            .hint("compress it with gzip or zstd instead; COPY takes it as it is"));
        }
    }
    if Compression::of(&start) != Compression::None {
        start.clear();
        file.rewind().map_err(about)?;
        // What cannot be decompressed is no archive, whatever its first bytes say.
        let read = decompressed(&file)
            .and_then(|stream| stream.take(BLOCK as u64).read_to_end(&mut start));
        if read.is_err() {
            return Ok(None);
        }
    }
    if !is_tar(&start) {
        return Ok(None);
    }
    file.rewind().map_err(about)?;
    let stream = decompressed(file).map_err(about)?;
    let stream = BufReader::with_capacity(BUFFER, stream);
    Ok(Some(Packed { stream: Box::new(stream), path: path.to_owned() }))
}

/// Whether this is the first block of a tar archive: its checksum is right.
fn is_tar(block: &[u8]) -> bool {
    let Ok(block) = <&[u8; BLOCK]>::try_from(block) else {
        return false;
    };
    let sum = |at: usize, byte: u8| u32::from(if (148..156).contains(&at) { b' ' } else { byte });
    let found: u32 = block.iter().enumerate().map(|(at, byte)| sum(at, *byte)).sum();
    block[0] != 0 && tar::Header::from_byte_slice(block).cksum().is_ok_and(|said| said == found)
}

/// Unpacks an archive into a directory of the layer that is really there.
pub(crate) fn unpack<W: Write>(
    packed: Packed,
    bounds: &Bounds,
    layer: &mut NewLayer<'_, W>,
    target: &Path,
    dress: impl Fn(&mut Entry),
) -> Result<()> {
    let about = format!("cannot unpack `{}`", shown(&packed.path));
    let mut archive = Archive::new(packed.stream);
    let mut unpacking = Unpacking { layer, target, bounds, entries: 0, bytes: 0 };
    let mut all = || -> Result<()> {
        while let Some(entry) = archive.next()? {
            unpacking.put(&mut archive, &entry, &dress)?;
        }
        Ok(())
    };
    all().map_err(|error| error.under(about))
}

struct Unpacking<'a, 'b, W: Write> {
    layer: &'a mut NewLayer<'b, W>,
    target: &'a Path,
    bounds: &'a Bounds,
    entries: u64,
    bytes: u64,
}

impl<W: Write> Unpacking<'_, '_, W> {
    fn put(
        &mut self,
        archive: &mut Archive<Box<dyn BufRead>>,
        packed: &archive::Entry,
        dress: &impl Fn(&mut Entry),
    ) -> Result<()> {
        self.entries += 1;
        self.bytes = self.bytes.saturating_add(packed.size);
        if self.entries > self.bounds.entries {
            return Err(exceeded("entries", self.bounds.entries));
        }
        if self.bytes > self.bounds.bytes {
            return Err(exceeded("bytes", msb_spec::Bytes(self.bounds.bytes)));
        }
        let kind = match packed.kind {
            archive::Kind::File | archive::Kind::HardLink => Kind::File,
            archive::Kind::Directory => Kind::Directory,
            archive::Kind::Symlink => Kind::Link(OsString::from_vec(packed.link.clone())),
            archive::Kind::Fifo => Kind::Fifo,
            // Left out, as from every image.
            archive::Kind::Device => return Ok(()),
        };
        let clean_path = clean(&packed.path, self.bounds.depth)?;
        if clean_path.is_empty() {
            return Ok(());
        }
        if packed.pieces.is_some() {
            return Err(Error::unsupported("the archive holds a sparse file")
                .hint("pack it without `--sparse`"));
        }
        let path = self.target.join(OsStr::from_bytes(&clean_path));
        let mut entry = Entry {
            kind,
            mode: packed.mode & 0o7777,
            uid: packed.uid,
            gid: packed.gid,
            mtime: packed.mtime.0,
            size: packed.size,
            shared: None,
            passage: false,
        };
        dress(&mut entry);
        let attributes = attributes(packed);
        if entry.kind == Kind::Directory {
            self.layer.put_directory(&path, &entry, &attributes)?;
            return Ok(());
        }
        let place = self.place(&path)?;
        match packed.kind {
            archive::Kind::HardLink => {
                let other = clean(&packed.link, self.bounds.depth)?;
                let other = self.place(&self.target.join(OsStr::from_bytes(&other)))?;
                if other == place || !self.layer.has_made(&other) {
                    return Err(broken("a hard link to what is not there"));
                }
                self.layer.put(&place, &entry, &Vec::new(), Data::Same(&other))?;
            }
            archive::Kind::File => {
                let mut data = archive.reader();
                self.layer.put(&place, &entry, &attributes, Data::Bytes(&mut data))?;
            }
            _ => {
                self.layer.put(&place, &entry, &Vec::new(), Data::None)?;
            }
        }
        Ok(())
    }

    /// Where a path really is; its directory is made if need be.
    fn place(&mut self, path: &Path) -> Result<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(broken("an empty name"));
        };
        Ok(self.layer.enter(parent)?.join(name))
    }
}

fn attributes(packed: &archive::Entry) -> super::tree::Attributes {
    let own = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let name = String::from_utf8(name.clone()).ok()?;
        let kept = name.starts_with("user.") && !name.starts_with(super::stack::OVERLAY);
        kept.then(|| (name, value.clone()))
    };
    packed.xattrs.iter().filter_map(own).collect()
}
