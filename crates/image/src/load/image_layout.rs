//! Files of an image that is loaded: spooled from an archive, or in an OCI layout directory.

use crate::store::{Store, digest_of, make_directories, storage_error, temp_name};
use crate::unpack::tar_reader::{TarKind, TarReader};
use crate::unpack::{decompressed, exceeded};
use msb_spec::{Digest, Error, Kind, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most files in an archive. Images have some hundred.
const PARTS_LIMIT: usize = 10_000;
/// Longest chain of links in an archive.
const LINKS_LIMIT: usize = 8;

/// Access to the files of one or more images.
#[derive(Debug)]
pub(crate) enum ImageLayout {
    /// Spooled from an archive into a temporary directory.
    Spool { _dir: SpoolDir, parts: HashMap<Vec<u8>, SpoolEntry>, digests: HashMap<Digest, PathBuf> },
    /// An OCI layout directory of the user.
    Directory { root: std::os::fd::OwnedFd },
}

/// A file or link in an archive.
#[derive(Debug)]
pub(crate) enum SpoolEntry {
    File { path: PathBuf, digest: Digest, size: u64 },
    Link(Vec<u8>),
}

/// A temporary directory that is removed when dropped.
#[derive(Debug)]
pub(crate) struct SpoolDir(PathBuf);

impl Drop for SpoolDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl ImageLayout {
    /// Reads a whole archive and writes its files to a temporary directory.
    pub(crate) fn spool(store: &Store, archive: &mut dyn Read) -> Result<Self> {
        let limit = store.settings().image_limits.bytes;
        let directory = store.partials().join(temp_name("load"));
        let about = |error| storage_error(&directory, error);
        make_directories(&directory).map_err(about)?;
        let dir = SpoolDir(directory.clone());
        let unreadable = |error| Error::host("cannot read the archive", error);
        let stream = decompressed(archive).map_err(unreadable)?;
        let mut archive = TarReader::new(BufReader::with_capacity(256 << 10, stream));
        let (mut parts, mut digests, mut total) = (HashMap::new(), HashMap::new(), 0u64);
        let mut entries = 0;
        while let Some(entry) = archive.next().map_err(in_archive)? {
            let name = normalized_key(&entry.path);
            // All entries count, or an archive of directories would never end.
            entries += 1;
            if entries > PARTS_LIMIT {
                return Err(Error::new(
                    Kind::Limit,
                    format!("more than {PARTS_LIMIT} files in the archive"),
                ));
            }
            match entry.kind {
                TarKind::File if entry.sparse_runs.is_none() => {}
                TarKind::Symlink => {
                    // Symlinks of `docker save` are relative to their directory.
                    let parent = name.iter().rposition(|byte| *byte == b'/');
                    let parent = parent.map_or(b"".as_slice(), |at| &name[..at]);
                    let target = normalized_key(&[parent, b"/", &entry.link].concat());
                    parts.insert(name, SpoolEntry::Link(target));
                    continue;
                }
                TarKind::HardLink => {
                    parts.insert(name, SpoolEntry::Link(normalized_key(&entry.link)));
                    continue;
                }
                _ => continue,
            }
            total = total.saturating_add(entry.size);
            if total > limit.0 {
                return Err(exceeded("bytes", limit));
            }
            let path = directory.join(entries.to_string());
            let mut file = File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .map_err(about)?;
            let mut hash = Sha256::new();
            archive
                .data(|bytes| {
                    hash.update(bytes);
                    file.write_all(bytes).map_err(about)
                })
                .map_err(in_archive)?;
            let digest = Digest::of_bytes(hash.finalize().into());
            digests.insert(digest.clone(), path.clone());
            parts.insert(name, SpoolEntry::File { path, digest, size: entry.size });
        }
        Ok(Self::Spool { _dir: dir, parts, digests })
    }

    pub(crate) fn directory(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| Error::host(format!("cannot read `{}`", path.display()), error))?;
        Ok(Self::Directory { root })
    }

    /// Reads a small file by name; none if it does not exist.
    pub(crate) fn text(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let file = match self {
            Self::Spool { .. } => match self.part(name) {
                Some((path, ..)) => {
                    File::open(&path).map_err(|error| storage_error(&path, error))?
                }
                None => return Ok(None),
            },
            Self::Directory { root } => match open_below(root, name) {
                Ok(file) => file,
                Err(rustix::io::Errno::NOENT) => return Ok(None),
                Err(error) => return Err(Error::host(format!("cannot read `{name}`"), error)),
            },
        };
        let mut text = Vec::new();
        file.take(limit + 1).read_to_end(&mut text).map_err(|error| {
            Error::host(format!("cannot read `{}`", msb_spec::shown(name)), error)
        })?;
        if text.len() as u64 > limit {
            return Err(exceeded("manifest", msb_spec::Bytes(limit)));
        }
        Ok(Some(text))
    }

    /// Reads a small blob by digest, and verifies it.
    pub(crate) fn blob_text(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        self.blob(digest, 0)?
            .take(limit + 1)
            .read_to_end(&mut text)
            .map_err(|error| Error::host("cannot read a blob of the image", error))?;
        if text.len() as u64 > limit {
            return Err(exceeded("manifest", msb_spec::Bytes(limit)));
        }
        if digest_of(&text) != *digest {
            return Err(
                Error::invalid("a blob of the image does not match its digest").cause(digest)
            );
        }
        Ok(text)
    }

    /// Opens a blob at an offset.
    pub(crate) fn blob(&self, digest: &Digest, from: u64) -> Result<Box<dyn Read>> {
        let missing =
            || Error::invalid("a blob of the image is missing in the archive").cause(digest);
        let file = match self {
            Self::Spool { digests, .. } => {
                digests.get(digest).and_then(|path| File::open(path).ok()).ok_or_else(missing)?
            }
            Self::Directory { root } => open_below(root, &format!("blobs/sha256/{}", digest.hex()))
                .map_err(|_| missing())?,
        };
        let mut file = file;
        file.seek(SeekFrom::Start(from))
            .map_err(|error| Error::host("cannot read a blob of the image", error))?;
        Ok(Box::new(file))
    }

    /// Hard-links a spooled blob to a path.
    pub(crate) fn link_blob(&self, digest: &Digest, place: &Path) {
        if let Self::Spool { digests, .. } = self
            && let Some(path) = digests.get(digest)
        {
            // Not renamed: another image may need it, too.
            let _ = fs::hard_link(path, place);
        }
    }

    /// Digest and size of a spooled file by name.
    pub(crate) fn digest(&self, name: &str) -> Option<(Digest, u64)> {
        self.part(name).map(|(_, digest, size)| (digest, size))
    }

    fn part(&self, name: &str) -> Option<(PathBuf, Digest, u64)> {
        let Self::Spool { parts, .. } = self else {
            return None;
        };
        let mut name = normalized_key(name.as_bytes());
        for _ in 0..LINKS_LIMIT {
            match parts.get(&name)? {
                SpoolEntry::File { path, digest, size } => {
                    return Some((path.clone(), digest.clone(), *size));
                }
                SpoolEntry::Link(target) => name.clone_from(target),
            }
        }
        None
    }
}

/// Opens a regular file below a directory without following links.
fn open_below(root: &std::os::fd::OwnedFd, name: &str) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let file = rustix::fs::openat2(root, name, flags, Mode::empty(), within)?;
    let stat = rustix::fs::fstat(&file)?;
    match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
        rustix::fs::FileType::RegularFile => Ok(file.into()),
        _ => Err(rustix::io::Errno::NOENT),
    }
}

/// Normalizes a name to a map key: resolves `.` and `..`. It is never used as a path.
fn normalized_key(name: &[u8]) -> Vec<u8> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join(&b'/')
}

/// Says that the archive is invalid, and not a layer of the image.
fn in_archive(error: Error) -> Error {
    match error.kind() {
        Kind::Invalid => error.under("the archive cannot be read"),
        _ => error,
    }
}
