//! Where the parts of an image lie: files aside that came out of an archive, or a directory.

use crate::store::{Store, digest_of, make_directories, passing, unusable};
use crate::unpack::archive::{Archive, Kind as Entry};
use crate::unpack::{decompressed, exceeded};
use msb_spec::{Digest, Error, Kind, Result};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Images have some hundred parts.
const PARTS_LIMIT: usize = 10_000;
/// Links to links end here.
const LINKS_LIMIT: usize = 8;

/// The parts of one or more images.
#[derive(Debug)]
pub(crate) enum Layout {
    /// Out of an archive, in a directory of ours that goes when this does.
    Spool { _aside: Aside, parts: HashMap<Vec<u8>, Part>, digests: HashMap<Digest, PathBuf> },
    /// A directory of somebody else's.
    Directory { root: std::os::fd::OwnedFd },
}

/// Something in an archive.
#[derive(Debug)]
pub(crate) enum Part {
    File { path: PathBuf, digest: Digest, size: u64 },
    Link(Vec<u8>),
}

/// A directory that is removed in the end.
#[derive(Debug)]
pub(crate) struct Aside(PathBuf);

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Layout {
    /// Reads an archive to its end.
    pub(crate) fn spool(store: &Store, archive: &mut dyn Read) -> Result<Self> {
        let limit = store.settings().image_limits.bytes;
        let directory = store.partials().join(passing("load"));
        let about = |error| unusable(&directory, error);
        make_directories(&directory).map_err(about)?;
        let aside = Aside(directory.clone());
        let unreadable = |error| Error::host("cannot read the archive", error);
        let stream = decompressed(archive).map_err(unreadable)?;
        let mut archive = Archive::new(BufReader::with_capacity(256 << 10, stream));
        let (mut parts, mut digests, mut total) = (HashMap::new(), HashMap::new(), 0u64);
        let mut entries = 0;
        while let Some(entry) = archive.next().map_err(in_archive)? {
            let name = plain(&entry.path);
            // Whatever they are, or an archive of directories alone would have no end.
            entries += 1;
            if entries > PARTS_LIMIT {
                return Err(Error::new(
                    Kind::Limit,
                    format!("more than {PARTS_LIMIT} files in it"),
                ));
            }
            match entry.kind {
                Entry::File if entry.pieces.is_none() => {}
                Entry::Symlink => {
                    // Relative to where the link is, as docker save writes them.
                    let parent = name.iter().rposition(|byte| *byte == b'/');
                    let parent = parent.map_or(b"".as_slice(), |at| &name[..at]);
                    let target = plain(&[parent, b"/", &entry.link].concat());
                    parts.insert(name, Part::Link(target));
                    continue;
                }
                Entry::HardLink => {
                    parts.insert(name, Part::Link(plain(&entry.link)));
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
            parts.insert(name, Part::File { path, digest, size: entry.size });
        }
        Ok(Self::Spool { _aside: aside, parts, digests })
    }

    pub(crate) fn directory(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| Error::host(format!("cannot read `{}`", path.display()), error))?;
        Ok(Self::Directory { root })
    }

    /// A small file by its name; none if there is none.
    pub(crate) fn text(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
        let file = match self {
            Self::Spool { .. } => match self.part(name) {
                Some((path, ..)) => File::open(&path).map_err(|error| unusable(&path, error))?,
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

    /// A small blob by its digest.
    pub(crate) fn blob_text(&self, digest: &Digest, limit: u64) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        self.blob(digest, 0)?
            .take(limit + 1)
            .read_to_end(&mut text)
            .map_err(|error| Error::host("cannot read a part of the image", error))?;
        if text.len() as u64 > limit {
            return Err(exceeded("manifest", msb_spec::Bytes(limit)));
        }
        if digest_of(&text) != *digest {
            return Err(
                Error::invalid("a part of the image is not what its name says").cause(digest)
            );
        }
        Ok(text)
    }

    /// The bytes of a blob from an offset on.
    pub(crate) fn blob(&self, digest: &Digest, from: u64) -> Result<Box<dyn Read>> {
        let missing = || Error::invalid("a part of the image is not in it").cause(digest);
        let file = match self {
            Self::Spool { digests, .. } => {
                digests.get(digest).and_then(|path| File::open(path).ok()).ok_or_else(missing)?
            }
            Self::Directory { root } => open_below(root, &format!("blobs/sha256/{}", digest.hex()))
                .map_err(|_| missing())?,
        };
        let mut file = file;
        file.seek(SeekFrom::Start(from))
            .map_err(|error| Error::host("cannot read a part of the image", error))?;
        Ok(Box::new(file))
    }

    /// Moves a blob to where it is wanted, if it is ours to move.
    pub(crate) fn give(&self, digest: &Digest, place: &Path) {
        if let Self::Spool { digests, .. } = self
            && let Some(path) = digests.get(digest)
        {
            // A second image may want it too.
            let _ = fs::hard_link(path, place);
        }
    }

    /// The digest and size of a file by its name.
    pub(crate) fn digest(&self, name: &str) -> Option<(Digest, u64)> {
        self.part(name).map(|(_, digest, size)| (digest, size))
    }

    fn part(&self, name: &str) -> Option<(PathBuf, Digest, u64)> {
        let Self::Spool { parts, .. } = self else {
            return None;
        };
        let mut name = plain(name.as_bytes());
        for _ in 0..LINKS_LIMIT {
            match parts.get(&name)? {
                Part::File { path, digest, size } => {
                    return Some((path.clone(), digest.clone(), *size));
                }
                Part::Link(target) => name.clone_from(target),
            }
        }
        None
    }
}

/// A regular file below a directory, through no link.
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

/// A name as a key: without `.`, and with `..` taken back. Nothing is opened by it.
fn plain(name: &[u8]) -> Vec<u8> {
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

/// The archive around the image is wrong, not a layer of it.
fn in_archive(error: Error) -> Error {
    match error.kind() {
        Kind::Invalid => error.under("the archive cannot be read"),
        _ => error,
    }
}
