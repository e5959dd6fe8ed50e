//! A layer that is written over others: where its files land is decided by what is below.
//!
//! A link of an image such as `/bin` to `usr/bin` is followed, within the image. Every directory
//! on the way, the root too, is written with what it is below: an overlay shows the topmost's.

use super::tape::{Data, Tape};
use super::tree::{Attributes, Entry, Kind, LINK_LIMIT, Tree, name, resolve, shown, steps};
use msb_spec::{Error, Kind as ErrorKind, Result};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// How layers write that something is gone: no file can be called so.
const WHITEOUT: &[u8] = b".wh.";

/// A layer that is written.
pub(crate) struct NewLayer<'a, W: Write> {
    tape: Tape<W>,
    below: &'a dyn Tree,
    made: BTreeMap<PathBuf, Kind>,
    /// For directories that nobody has described.
    new: Entry,
}

impl<'a, W: Write> NewLayer<'a, W> {
    /// `owner` is who directories belong to that are made on the way, `time` how old they are.
    pub(crate) fn new(tape: Tape<W>, below: &'a dyn Tree, owner: (u32, u32), time: i64) -> Self {
        let (uid, gid) = owner;
        let kind = Kind::Directory;
        let new = Entry {
            kind,
            mode: 0o755,
            uid,
            gid,
            mtime: time,
            size: 0,
            shared: None,
            passage: false,
        };
        Self { tape, below, made: BTreeMap::new(), new }
    }

    /// What is at a path without links, in this layer or below.
    pub(crate) fn kind(&self, path: &Path) -> Result<Option<Kind>> {
        self.look(path).map_err(|error| unreadable(path, error))
    }

    fn look(&self, path: &Path) -> io::Result<Option<Kind>> {
        if path.as_os_str().is_empty() {
            return Ok(Some(Kind::Directory));
        }
        if let Some(kind) = self.made.get(path) {
            return Ok(Some(kind.clone()));
        }
        // What this layer has put in the place of a directory hides what that held.
        for above in path.ancestors().skip(1) {
            match self.made.get(above) {
                Some(Kind::Directory) | None => {}
                Some(_) => return Ok(None),
            }
        }
        Ok(self.below.entry(path)?.map(|entry| entry.kind))
    }

    /// Follows every link of a path.
    pub(crate) fn resolve(&self, path: &Path) -> Result<PathBuf> {
        resolve(path, &|path| self.look(path)).map_err(|error| unreadable(path, error))
    }

    /// Makes a directory with those above it, and writes those that are there already. Returns
    /// where it really is.
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
                Some(Kind::Link(target)) => {
                    links += 1;
                    if links > LINK_LIMIT {
                        let looped = io::Error::from(rustix::io::Errno::LOOP);
                        return Err(unreadable(path, looped));
                    }
                    if target.as_bytes().starts_with(b"/") {
                        at = PathBuf::new();
                    }
                    left.extend(steps(Path::new(&target)).into_iter().rev());
                }
                Some(Kind::Directory) => {
                    self.show(&next)?;
                    at = next;
                }
                None => {
                    let new = self.new.clone();
                    self.write(&next, &new, &Vec::new(), Data::None)?;
                    at = next;
                }
                Some(_) => {
                    return Err(Error::invalid(format!("not a directory: `{}`", shown(&next))));
                }
            }
        }
        Ok(at)
    }

    /// Puts something at a path whose directory is there and has no links in it. A directory
    /// that is there already stays as it is. Returns where it really is.
    pub(crate) fn put(
        &mut self,
        path: &Path,
        entry: &Entry,
        attributes: &Attributes,
        data: Data<'_>,
    ) -> Result<PathBuf> {
        if name(path).is_some_and(|name| name.as_bytes().starts_with(WHITEOUT)) {
            return Err(Error::unsupported(format!(
                "no file of an image can be called `{}`",
                shown(path)
            ))
            .cause("layers write so that something is gone"));
        }
        let there = self.kind(path)?;
        if entry.kind != Kind::Directory {
            if there == Some(Kind::Directory) {
                return Err(Error::invalid(format!(
                    "a directory is there already: `{}`",
                    shown(path)
                )));
            }
            self.write(path, entry, attributes, data)?;
            return Ok(path.to_owned());
        }
        match there {
            None => {
                self.write(path, entry, attributes, Data::None)?;
                Ok(path.to_owned())
            }
            Some(Kind::Directory) => {
                self.show(path)?;
                Ok(path.to_owned())
            }
            Some(_) => self.enter(path),
        }
    }

    /// Puts a directory and what it is like, also where one is already.
    pub(crate) fn put_directory(
        &mut self,
        path: &Path,
        entry: &Entry,
        attributes: &Attributes,
    ) -> Result<()> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Ok(());
        };
        let path = self.enter(parent)?.join(name);
        let path = match self.kind(&path)? {
            Some(Kind::Link(_)) => self.enter(&path)?,
            Some(Kind::Directory) | None => path,
            Some(_) => {
                return Err(Error::invalid(format!("not a directory: `{}`", shown(&path))));
            }
        };
        self.write(&path, entry, attributes, Data::None)
    }

    /// Whether this layer has put a file at a path.
    pub(crate) fn has_made(&self, path: &Path) -> bool {
        self.made.get(path) == Some(&Kind::File)
    }

    /// Writes a directory of the layers below as it is there.
    fn show(&mut self, path: &Path) -> Result<()> {
        if self.made.contains_key(path) {
            return Ok(());
        }
        let about = |error| unreadable(path, error);
        let (entry, attributes) = match self.below.entry(path).map_err(about)? {
            Some(entry) => (entry, self.below.attributes(path).map_err(about)?),
            // The root of an image without layers, which belongs to root whoever is asked for.
            None => (Entry { uid: 0, gid: 0, ..self.new.clone() }, Vec::new()),
        };
        self.write(path, &entry, &attributes, Data::None)
    }

    fn write(
        &mut self,
        path: &Path,
        entry: &Entry,
        attributes: &Attributes,
        data: Data<'_>,
    ) -> Result<()> {
        let root = Path::new("");
        if path != root && !self.made.contains_key(root) {
            self.show(root)?;
        }
        self.tape
            .entry(path, entry, attributes, data)
            .map_err(|error| Error::host(format!("cannot copy to `{}`", shown(path)), error))?;
        self.made.insert(path.to_owned(), entry.kind.clone());
        Ok(())
    }

    /// Ends the layer: what it holds, times apart, and how new its newest file is.
    pub(crate) fn finish(self) -> Result<([u8; 32], i64)> {
        let newest = self.tape.newest;
        let ended = self.tape.finish();
        ended.map(|hash| (hash, newest)).map_err(|error| Error::host("cannot write a layer", error))
    }
}

/// Something below cannot be read.
pub(crate) fn unreadable(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound => ErrorKind::NotFound,
        _ => ErrorKind::Host,
    };
    Error::new(kind, format!("cannot read `{}`", shown(path))).cause(error)
}

/// Whether a name can be one of a file in a layer.
pub(crate) fn is_whiteout(name: &OsStr) -> bool {
    name.as_bytes().starts_with(WHITEOUT)
}
