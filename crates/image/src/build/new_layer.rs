//! Writes a new layer over existing ones. Lower layers decide where a path leads.
//!
//! Symlinks of the image, such as `/bin` to `usr/bin`, are followed inside of the image. Every
//! parent directory, the root too, is written with its existing metadata, because overlayfs shows
//! that of the topmost layer.

use super::file_tree::{
    Attributes, FileEntry, FileKind, FileTree, SYMLINK_LIMIT, name, resolve, shown, steps,
};
use super::tar_writer::{EntryContent, TarWriter};
use msb_spec::{Error, Kind as ErrorKind, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Prefix of a whiteout; no file can have such a name.
const WHITEOUT: &[u8] = b".wh.";

/// A layer that is being written.
pub(crate) struct NewLayer<'a, W: Write> {
    writer: TarWriter<W>,
    below: &'a dyn FileTree,
    written: BTreeMap<PathBuf, FileKind>,
    /// Metadata of parent directories that do not exist yet.
    default_dir: FileEntry,
}

impl<'a, W: Write> NewLayer<'a, W> {
    /// `owner` and `time` are for parent directories that do not exist yet.
    pub(crate) fn new(
        writer: TarWriter<W>,
        below: &'a dyn FileTree,
        owner: (u32, u32),
        time: i64,
    ) -> Self {
        let (uid, gid) = owner;
        let kind = FileKind::Directory;
        let default_dir = FileEntry {
            kind,
            mode: 0o755,
            uid,
            gid,
            mtime: time,
            size: 0,
            hard_link_id: None,
            parent_only: false,
        };
        Self { writer, below, written: BTreeMap::new(), default_dir }
    }

    /// Type of a path without symlinks, in this layer or a lower one.
    pub(crate) fn kind(&self, path: &Path) -> Result<Option<FileKind>> {
        self.look(path).map_err(|error| unreadable(path, error))
    }

    fn look(&self, path: &Path) -> io::Result<Option<FileKind>> {
        if path.as_os_str().is_empty() {
            return Ok(Some(FileKind::Directory));
        }
        if let Some(kind) = self.written.get(path) {
            return Ok(Some(kind.clone()));
        }
        // A file in this layer hides the directory of lower layers.
        for above in path.ancestors().skip(1) {
            match self.written.get(above) {
                Some(FileKind::Directory) | None => {}
                Some(_) => return Ok(None),
            }
        }
        Ok(self.below.entry(path)?.map(|entry| entry.kind))
    }

    /// Resolves all symlinks of a path.
    pub(crate) fn resolve(&self, path: &Path) -> Result<PathBuf> {
        resolve(path, &|path| self.look(path)).map_err(|error| unreadable(path, error))
    }

    /// Creates a directory and its parents, and writes existing ones with their metadata. Returns
    /// the resolved path.
    pub(crate) fn enter(&mut self, path: &Path) -> Result<PathBuf> {
        let mut left = steps(path);
        left.reverse();
        let (mut at, mut links) = (PathBuf::new(), 0);
        while let Some(step) = left.pop() {
            if step == ".." {
                at.pop();
                continue;
            }
            let next = at.join(&step);
            match self.kind(&next)? {
                Some(FileKind::Link(target)) => {
                    links += 1;
                    if links > SYMLINK_LIMIT {
                        let looped = io::Error::from(rustix::io::Errno::LOOP);
                        return Err(unreadable(path, looped));
                    }
                    if target.as_bytes().starts_with(b"/") {
                        at = PathBuf::new();
                    }
                    left.extend(steps(Path::new(&target)).into_iter().rev());
                }
                Some(FileKind::Directory) => {
                    self.write_existing(&next)?;
                    at = next;
                }
                None => {
                    let new = self.default_dir.clone();
                    self.write(&next, &new, &Vec::new(), EntryContent::None)?;
                    at = next;
                }
                Some(_) => {
                    return Err(Error::invalid(format!("not a directory: `{}`", shown(&next))));
                }
            }
        }
        Ok(at)
    }

    /// Writes an entry below an existing directory whose path has no symlinks. An existing
    /// directory keeps its metadata. Returns the resolved path.
    pub(crate) fn put(
        &mut self,
        path: &Path,
        entry: &FileEntry,
        attributes: &Attributes,
        data: EntryContent<'_>,
    ) -> Result<PathBuf> {
        if name(path).is_some_and(|name| name.as_bytes().starts_with(WHITEOUT)) {
            return Err(Error::unsupported(format!(
                "an image cannot contain a file named `{}`",
                shown(path)
            ))
            .cause("the prefix `.wh.` marks removed files in layers"));
        }
        let there = self.kind(path)?;
        if entry.kind != FileKind::Directory {
            if there == Some(FileKind::Directory) {
                return Err(Error::invalid(format!(
                    "a directory exists already: `{}`",
                    shown(path)
                )));
            }
            self.write(path, entry, attributes, data)?;
            return Ok(path.to_owned());
        }
        match there {
            None => {
                self.write(path, entry, attributes, EntryContent::None)?;
                Ok(path.to_owned())
            }
            Some(FileKind::Directory) => {
                self.write_existing(path)?;
                Ok(path.to_owned())
            }
            Some(_) => self.enter(path),
        }
    }

    /// Writes a directory with its metadata, also if it exists already.
    pub(crate) fn put_directory(
        &mut self,
        path: &Path,
        entry: &FileEntry,
        attributes: &Attributes,
    ) -> Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(());
        };
        let path = self.enter(parent)?.join(name);
        let path = match self.kind(&path)? {
            Some(FileKind::Link(_)) => self.enter(&path)?,
            Some(FileKind::Directory) | None => path,
            Some(_) => {
                return Err(Error::invalid(format!("not a directory: `{}`", shown(&path))));
            }
        };
        self.write(&path, entry, attributes, EntryContent::None)
    }

    /// Whether this layer has a regular file at a path.
    pub(crate) fn has_made(&self, path: &Path) -> bool {
        self.written.get(path) == Some(&FileKind::File)
    }

    /// Writes a directory of the lower layers with its metadata.
    fn write_existing(&mut self, path: &Path) -> Result<()> {
        if self.written.contains_key(path) {
            return Ok(());
        }
        let about = |error| unreadable(path, error);
        let (entry, attributes) = match self.below.entry(path).map_err(about)? {
            Some(entry) => (entry, self.below.attributes(path).map_err(about)?),
            // The root of an image without layers belongs to root, whatever owner was requested.
            None => (FileEntry { uid: 0, gid: 0, ..self.default_dir.clone() }, Vec::new()),
        };
        self.write(path, &entry, &attributes, EntryContent::None)
    }

    fn write(
        &mut self,
        path: &Path,
        entry: &FileEntry,
        attributes: &Attributes,
        data: EntryContent<'_>,
    ) -> Result<()> {
        let root = Path::new("");
        if path != root && !self.written.contains_key(root) {
            self.write_existing(root)?;
        }
        self.writer
            .entry(path, entry, attributes, data)
            .map_err(|error| Error::host(format!("cannot copy to `{}`", shown(path)), error))?;
        self.written.insert(path.to_owned(), entry.kind.clone());
        Ok(())
    }

    /// Ends the layer. Returns its hash without times, and the newest modification time.
    pub(crate) fn finish(self) -> Result<([u8; 32], i64)> {
        let newest = self.writer.newest;
        let ended = self.writer.finish();
        ended.map(|hash| (hash, newest)).map_err(|error| Error::host("cannot write a layer", error))
    }
}

/// Converts a read error of a lower layer or source.
pub(crate) fn unreadable(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Host,
    };
    Error::new(kind, format!("cannot read `{}`", shown(path))).cause(error)
}

/// Whether a name is a whiteout.
pub(crate) fn is_whiteout(name: &OsStr) -> bool {
    name.as_bytes().starts_with(WHITEOUT)
}
