//! The layers of a stage merged into one tree, as overlayfs would show them.
//!
//! Nothing is mounted: the helper process must not mount, and reads only some paths. Layers are
//! untrusted; their symlinks are never followed by the kernel.

use super::context_dir::{StatEntry, attributes_of, look, names, open_directory, open_file};
use super::file_tree::{Attributes, FileEntry, FileKind, FileTree};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Extended attribute of an opaque directory, which hides the lower ones.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";
/// Prefix of extended attributes that overlayfs uses itself.
pub(crate) const OVERLAY: &str = "user.overlay.";

/// Layers of an overlay.
#[derive(Debug)]
pub(crate) struct LayerStack {
    /// Open layer directories, topmost first.
    layers: Vec<OwnedFd>,
    directories: RefCell<HashMap<PathBuf, Rc<Vec<usize>>>>,
}

/// Layers that a path is visible in: one for a file, several for a directory.
enum StackLookup {
    Nothing,
    Directory(Rc<Vec<usize>>),
    Other(usize, FileEntry),
}

impl LayerStack {
    /// Takes the open layer directories, topmost first.
    pub(crate) fn new(layers: Vec<OwnedFd>) -> Self {
        Self { layers, directories: RefCell::default() }
    }

    fn lookup(&self, path: &Path) -> io::Result<StackLookup> {
        if let Some(known) = self.directories.borrow().get(path) {
            return Ok(StackLookup::Directory(Rc::clone(known)));
        }
        let above = match path.parent() {
            None => (0..self.layers.len()).collect(),
            Some(parent) => match self.lookup(parent)? {
                StackLookup::Directory(layers) => layers.to_vec(),
                StackLookup::Nothing | StackLookup::Other(..) => return Ok(StackLookup::Nothing),
            },
        };
        let mut holding = Vec::new();
        for layer in above {
            let root = self.layers[layer].as_fd();
            match look(root, path)? {
                None => {}
                Some(StatEntry { entry: FileEntry { kind: FileKind::Directory, .. }, .. }) => {
                    holding.push(layer);
                    if is_opaque(&open_directory(root, path)?)? {
                        break;
                    }
                }
                Some(StatEntry { entry: FileEntry { kind: FileKind::Device, .. }, device: 0 }) => {
                    break;
                }
                Some(found) if holding.is_empty() => {
                    return Ok(StackLookup::Other(layer, found.entry));
                }
                Some(_) => break,
            }
        }
        if holding.is_empty() {
            return Ok(StackLookup::Nothing);
        }
        let holding = Rc::new(holding);
        self.directories.borrow_mut().insert(path.to_owned(), Rc::clone(&holding));
        Ok(StackLookup::Directory(holding))
    }

    /// The topmost layer in which a path is visible.
    fn layer(&self, path: &Path) -> io::Result<&OwnedFd> {
        let layer = match self.lookup(path)? {
            StackLookup::Directory(layers) => layers.first().copied(),
            StackLookup::Other(layer, _) => Some(layer),
            StackLookup::Nothing => None,
        };
        layer.map(|layer| &self.layers[layer]).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl FileTree for LayerStack {
    fn entry(&self, path: &Path) -> io::Result<Option<FileEntry>> {
        match self.lookup(path)? {
            StackLookup::Nothing => Ok(None),
            StackLookup::Other(_, entry) => Ok(Some(entry)),
            StackLookup::Directory(layers) => {
                let top = layers.first().map(|layer| look(self.layers[*layer].as_fd(), path));
                Ok(top.transpose()?.flatten().map(|found| found.entry))
            }
        }
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let StackLookup::Directory(layers) = self.lookup(path)? else {
            return Err(rustix::io::Errno::NOTDIR.into());
        };
        let mut all = BTreeSet::new();
        for layer in layers.iter() {
            all.extend(names(self.layers[*layer].as_fd(), path)?);
        }
        let mut seen = Vec::new();
        for name in all {
            if !matches!(self.lookup(&path.join(&name))?, StackLookup::Nothing) {
                seen.push(name);
            }
        }
        Ok(seen)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        open_file(self.layer(path)?.as_fd(), path)
    }

    fn attributes(&self, path: &Path) -> io::Result<Attributes> {
        let root = self.layer(path)?.as_fd();
        let opened = match self.entry(path)?.map(|entry| entry.kind) {
            Some(FileKind::Directory) => open_directory(root, path)?,
            Some(FileKind::File) => open_file(root, path)?.into(),
            _ => return Ok(Vec::new()),
        };
        let mut attributes = attributes_of(opened.as_fd())?;
        attributes.retain(|(name, _)| !name.starts_with(OVERLAY));
        Ok(attributes)
    }
}

/// Whether a directory hides those of lower layers.
pub(crate) fn is_opaque(directory: &OwnedFd) -> io::Result<bool> {
    let mut value = [0u8; 2];
    match rustix::fs::fgetxattr(directory, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(false),
        // A longer value is not `y`.
        Err(rustix::io::Errno::RANGE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
