//! Writes a layer as a tar stream, and hashes its content.

use super::file_tree::{Attributes, FileEntry, FileKind};
use sha2::{Digest as _, Sha256};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// Content of an entry, besides its metadata.
pub(crate) enum EntryContent<'a> {
    /// No content: a directory, symlink or FIFO.
    None,
    /// Data of a regular file.
    Bytes(&'a mut dyn Read),
    /// A hard link to an earlier entry.
    HardLink(&'a Path),
}

/// A tar stream that is being written.
pub(crate) struct TarWriter<W: Write> {
    out: Builder<W>,
    /// Hash of all entries without times: a change of times alone is no change.
    hash: Sha256,
    /// Latest modification time; newer ones are set to it.
    latest: Option<i64>,
    /// Newest modification time so far.
    pub(crate) newest: i64,
}

impl<W: Write> TarWriter<W> {
    pub(crate) fn new(out: W, latest: Option<i64>) -> Self {
        Self { out: Builder::new(out), hash: Sha256::new(), latest, newest: 0 }
    }

    /// Writes one entry. `path` is relative and has no symlinks.
    pub(crate) fn entry(
        &mut self,
        path: &Path,
        entry: &FileEntry,
        attributes: &Attributes,
        data: EntryContent<'_>,
    ) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_mode(entry.mode);
        header.set_uid(entry.uid.into());
        header.set_gid(entry.gid.into());
        let mtime = self.latest.map_or(entry.mtime, |latest| entry.mtime.min(latest)).max(0);
        self.newest = self.newest.max(mtime);
        header.set_mtime(mtime.unsigned_abs());
        header.set_size(0);
        self.hash_entry(path, entry, attributes);
        let (sort, target) = match (&entry.kind, &data) {
            (_, EntryContent::HardLink(other)) => (EntryType::Link, other.as_os_str()),
            (FileKind::File, EntryContent::Bytes(_)) => (EntryType::Regular, OsStr::new("")),
            (FileKind::Directory, _) => (EntryType::Directory, OsStr::new("")),
            (FileKind::Link(target), _) => (EntryType::Symlink, target.as_os_str()),
            (FileKind::Fifo, _) => (EntryType::Fifo, OsStr::new("")),
            _ => return Err(io::Error::other("a file type that a layer cannot contain")),
        };
        header.set_entry_type(sort);
        let mut name = path.as_os_str().as_bytes().to_vec();
        if name.is_empty() {
            name.push(b'.');
        }
        if sort == EntryType::Directory {
            name.push(b'/');
        }
        self.extend(&mut header, &name, target.as_bytes(), attributes)?;
        match data {
            EntryContent::Bytes(bytes) => {
                header.set_size(entry.size);
                header.set_cksum();
                let exact = ExactReader { from: bytes, left: entry.size, hash: &mut self.hash };
                self.out.append(&header, exact)
            }
            EntryContent::HardLink(other) => {
                self.hash.update(other.as_os_str().as_bytes());
                header.set_cksum();
                self.out.append(&header, io::empty())
            }
            EntryContent::None => {
                header.set_cksum();
                self.out.append(&header, io::empty())
            }
        }
    }

    /// Writes long names and attributes to a PAX header. The `tar` crate would normalize the target
    /// of a symlink.
    fn extend(
        &mut self,
        header: &mut Header,
        name: &[u8],
        target: &[u8],
        attributes: &Attributes,
    ) -> io::Result<()> {
        let mut more: Vec<(String, Vec<u8>)> = Vec::new();
        let old = header.as_old_mut();
        for (slot, bytes, key) in
            [(&mut old.name, name, "path"), (&mut old.linkname, target, "linkpath")]
        {
            let fits = bytes.len().min(slot.len());
            slot[..fits].copy_from_slice(&bytes[..fits]);
            if fits < bytes.len() {
                more.push((key.to_owned(), bytes.to_vec()));
            }
        }
        for (name, value) in attributes {
            more.push((format!("SCHILY.xattr.{name}"), value.clone()));
        }
        if more.is_empty() {
            return Ok(());
        }
        let more = more.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
        self.out.append_pax_extensions(more)
    }

    /// Ends the stream. Returns the hash of its entries without times.
    pub(crate) fn finish(self) -> io::Result<[u8; 32]> {
        self.out.into_inner()?.flush()?;
        Ok(self.hash.finalize().into())
    }

    fn hash_entry(&mut self, path: &Path, entry: &FileEntry, attributes: &Attributes) {
        let mut field = |bytes: &[u8]| {
            self.hash.update((bytes.len() as u64).to_le_bytes());
            self.hash.update(bytes);
        };
        let (kind, target): (u8, &OsStr) = match &entry.kind {
            FileKind::File => (0, OsStr::new("")),
            FileKind::Directory => (1, OsStr::new("")),
            FileKind::Link(target) => (2, target),
            FileKind::Fifo => (3, OsStr::new("")),
            FileKind::Socket | FileKind::Device => (4, OsStr::new("")),
        };
        field(path.as_os_str().as_bytes());
        field(&[kind]);
        field(target.as_bytes());
        for number in [entry.mode, entry.uid, entry.gid] {
            field(&number.to_le_bytes());
        }
        field(&entry.size.to_le_bytes());
        for (name, value) in attributes {
            field(name.as_bytes());
            field(value);
        }
    }
}

/// Reads exactly as many bytes as the header says: a file may change while it is read.
struct ExactReader<'a> {
    from: &'a mut dyn Read,
    left: u64,
    hash: &'a mut Sha256,
}

impl Read for ExactReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let n = self.from.read(&mut buffer[..most])?;
        if n == 0 {
            return Err(io::Error::other("a file became shorter while it was read"));
        }
        self.hash.update(&buffer[..n]);
        self.left -= n as u64;
        Ok(n)
    }
}
