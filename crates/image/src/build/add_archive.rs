//! Archives that ADD unpacks: tar, uncompressed or with gzip or zstd.
//!
//! Archives are untrusted and are parsed by the same reader as layers. Files stay inside of the
//! image, whatever the symlinks of the archive and of the image say.

use super::file_tree::{FileEntry, FileKind, shown};
use super::new_layer::NewLayer;
use super::tar_writer::EntryContent;
use crate::unpack::tar_reader::{TarEntry, TarKind, TarReader, broken};
use crate::unpack::{Bounds, Compression, clean_path, decompressed, exceeded};
use msb_spec::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A recognized archive, at its start.
pub(crate) struct AddArchive {
    stream: Box<dyn BufRead>,
    path: PathBuf,
}

const BLOCK: usize = 512;
const BUFFER: usize = 256 << 10;

/// Checks whether a file is an archive; none if not.
pub(crate) fn detect(mut file: File, path: &Path) -> Result<Option<AddArchive>> {
    let about = |error| super::new_layer::unreadable(path, error);
    let mut start = Vec::new();
    (&file).take(BLOCK as u64).read_to_end(&mut start).map_err(about)?;
    for (magic, name) in [(&b"\xfd7zXZ\0"[..], "xz"), (b"BZh", "bzip2")] {
        if start.starts_with(magic) {
            return Err(Error::unsupported(format!(
                "ADD does not unpack {name}: `{}`",
                shown(path)
            ))
            .hint("compress it with gzip or zstd instead; COPY copies the file unchanged"));
        }
    }
    if Compression::of(&start) != Compression::None {
        start.clear();
        file.rewind().map_err(about)?;
        // Data that does not decompress is not an archive, whatever its magic number says.
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
    Ok(Some(AddArchive { stream: Box::new(stream), path: path.to_owned() }))
}

/// Whether this is the first block of a tar archive: its checksum is correct.
fn is_tar(block: &[u8]) -> bool {
    let Ok(block) = <&[u8; BLOCK]>::try_from(block) else {
        return false;
    };
    let sum = |at: usize, byte: u8| u32::from(if (148..156).contains(&at) { b' ' } else { byte });
    let found: u32 = block.iter().enumerate().map(|(at, byte)| sum(at, *byte)).sum();
    block[0] != 0 && tar::Header::from_byte_slice(block).cksum().is_ok_and(|said| said == found)
}

/// Unpacks an archive into an existing directory of the layer.
pub(crate) fn unpack<W: Write>(
    packed: AddArchive,
    bounds: &Bounds,
    layer: &mut NewLayer<'_, W>,
    target: &Path,
    adjust: impl Fn(&mut FileEntry),
) -> Result<()> {
    let about = format!("cannot unpack `{}`", shown(&packed.path));
    let mut archive = TarReader::new(packed.stream);
    let mut unpacker = ArchiveUnpacker { layer, target, bounds, entries: 0, bytes: 0 };
    let mut all = || -> Result<()> {
        while let Some(entry) = archive.next()? {
            unpacker.put(&mut archive, &entry, &adjust)?;
        }
        Ok(())
    };
    all().map_err(|error| error.under(about))
}

struct ArchiveUnpacker<'a, 'b, W: Write> {
    layer: &'a mut NewLayer<'b, W>,
    target: &'a Path,
    bounds: &'a Bounds,
    entries: u64,
    bytes: u64,
}

impl<W: Write> ArchiveUnpacker<'_, '_, W> {
    fn put(
        &mut self,
        archive: &mut TarReader<Box<dyn BufRead>>,
        packed: &TarEntry,
        adjust: &impl Fn(&mut FileEntry),
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
            TarKind::File | TarKind::HardLink => FileKind::File,
            TarKind::Directory => FileKind::Directory,
            TarKind::Symlink => FileKind::Link(OsString::from_vec(packed.link.clone())),
            TarKind::Fifo => FileKind::Fifo,
            // Device nodes are skipped, as in every image.
            TarKind::Device => return Ok(()),
        };
        let relative = clean_path(&packed.path, self.bounds.depth)?;
        if relative.is_empty() {
            return Ok(());
        }
        if packed.sparse_runs.is_some() {
            return Err(Error::unsupported("the archive contains a sparse file")
                .hint("pack it without `--sparse`"));
        }
        let path = self.target.join(OsStr::from_bytes(&relative));
        let mut entry = FileEntry {
            kind,
            mode: packed.mode & 0o7777,
            uid: packed.uid,
            gid: packed.gid,
            mtime: packed.mtime.0,
            size: packed.size,
            hard_link_id: None,
            parent_only: false,
        };
        adjust(&mut entry);
        let attributes = attributes(packed);
        if entry.kind == FileKind::Directory {
            self.layer.put_directory(&path, &entry, &attributes)?;
            return Ok(());
        }
        let place = self.place(&path)?;
        match packed.kind {
            TarKind::HardLink => {
                let other = clean_path(&packed.link, self.bounds.depth)?;
                let other = self.place(&self.target.join(OsStr::from_bytes(&other)))?;
                if other == place || !self.layer.has_made(&other) {
                    return Err(broken("a hard link to a missing file"));
                }
                self.layer.put(&place, &entry, &Vec::new(), EntryContent::HardLink(&other))?;
            }
            TarKind::File => {
                let mut data = archive.reader();
                self.layer.put(&place, &entry, &attributes, EntryContent::Bytes(&mut data))?;
            }
            _ => {
                self.layer.put(&place, &entry, &Vec::new(), EntryContent::None)?;
            }
        }
        Ok(())
    }

    /// Resolves the directory of a path, and creates it if it is missing.
    fn place(&mut self, path: &Path) -> Result<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(broken("an empty name"));
        };
        Ok(self.layer.enter(parent)?.join(name))
    }
}

fn attributes(packed: &TarEntry) -> super::file_tree::Attributes {
    let own = |(name, value): &(Vec<u8>, Vec<u8>)| {
        let name = String::from_utf8(name.clone()).ok()?;
        let kept = name.starts_with("user.") && !name.starts_with(super::layer_stack::OVERLAY);
        kept.then(|| (name, value.clone()))
    };
    packed.xattrs.iter().filter_map(own).collect()
}
