//! The layers of a stage as one tree, as an overlay would show them.
//!
//! Nothing is mounted: this is asked for some paths only, by a process that must not mount. The
//! layers came from anywhere, so no link of theirs is followed outside of what they show.

use super::folder::{Found, attributes_of, look, names, open_directory, open_file};
use super::tree::{Attributes, Entry, Kind, Tree};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The attribute that an overlay keeps on a directory that hides what lies below.
pub(crate) const OPAQUE: &str = "user.overlay.opaque";
/// Attributes that are the overlay's and nobody's.
pub(crate) const OVERLAY: &str = "user.overlay.";

/// Layers, one above the other.
#[derive(Debug)]
pub(crate) struct Stack {
    /// Topmost first.
    layers: Vec<OwnedFd>,
    directories: RefCell<HashMap<PathBuf, Rc<Vec<usize>>>>,
}

/// Which layers show something at a path: one for a file, several for a directory.
enum Shown {
    Nothing,
    Directory(Rc<Vec<usize>>),
    Other(usize, Entry),
}

impl Stack {
    /// The topmost layer first.
    pub(crate) fn new(layers: Vec<OwnedFd>) -> Self {
        Self { layers, directories: RefCell::default() }
    }

    fn shown(&self, path: &Path) -> io::Result<Shown> {
        if let Some(known) = self.directories.borrow().get(path) {
            return Ok(Shown::Directory(Rc::clone(known)));
        }
        let above = match path.parent() {
            None => (0..self.layers.len()).collect(),
            Some(parent) => match self.shown(parent)? {
                Shown::Directory(layers) => layers.to_vec(),
                Shown::Nothing | Shown::Other(..) => return Ok(Shown::Nothing),
            },
        };
        let mut holding = Vec::new();
        for layer in above {
            let root = self.layers[layer].as_fd();
            match look(root, path)? {
                None => {}
                Some(Found { entry: Entry { kind: Kind::Directory, .. }, .. }) => {
                    holding.push(layer);
                    if is_opaque(&open_directory(root, path)?)? {
                        break;
                    }
                }
                Some(Found { entry: Entry { kind: Kind::Device, .. }, device: 0 }) => break,
                Some(found) if holding.is_empty() => return Ok(Shown::Other(layer, found.entry)),
                Some(_) => break,
            }
        }
        if holding.is_empty() {
            return Ok(Shown::Nothing);
        }
        let holding = Rc::new(holding);
        self.directories.borrow_mut().insert(path.to_owned(), Rc::clone(&holding));
        Ok(Shown::Directory(holding))
    }

    /// The layer whose file or directory is seen at a path.
    fn layer(&self, path: &Path) -> io::Result<&OwnedFd> {
        let layer = match self.shown(path)? {
            Shown::Directory(layers) => layers.first().copied(),
            Shown::Other(layer, _) => Some(layer),
            Shown::Nothing => None,
        };
        layer.map(|layer| &self.layers[layer]).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Tree for Stack {
    fn entry(&self, path: &Path) -> io::Result<Option<Entry>> {
        match self.shown(path)? {
            Shown::Nothing => Ok(None),
            Shown::Other(_, entry) => Ok(Some(entry)),
            Shown::Directory(layers) => {
                let top = layers.first().map(|layer| look(self.layers[*layer].as_fd(), path));
                Ok(top.transpose()?.flatten().map(|found| found.entry))
            }
        }
    }

    fn names(&self, path: &Path) -> io::Result<Vec<OsString>> {
        let Shown::Directory(layers) = self.shown(path)? else {
            return Err(rustix::io::Errno::NOTDIR.into());
        };
        let mut all = BTreeSet::new();
        for layer in layers.iter() {
            all.extend(names(self.layers[*layer].as_fd(), path)?);
        }
        let mut seen = Vec::new();
        for name in all {
            if !matches!(self.shown(&path.join(&name))?, Shown::Nothing) {
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
            Some(Kind::Directory) => open_directory(root, path)?,
            Some(Kind::File) => open_file(root, path)?.into(),
            _ => return Ok(Vec::new()),
        };
        let mut attributes = attributes_of(opened.as_fd())?;
        attributes.retain(|(name, _)| !name.starts_with(OVERLAY));
        Ok(attributes)
    }
}

/// Whether a directory hides what the layers below have there.
pub(crate) fn is_opaque(directory: &OwnedFd) -> io::Result<bool> {
    let mut value = [0u8; 2];
    match rustix::fs::fgetxattr(directory, OPAQUE, &mut value[..]) {
        Ok(length) => Ok(&value[..length] == b"y"),
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => Ok(false),
        // A longer value is not the one.
        Err(rustix::io::Errno::RANGE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
