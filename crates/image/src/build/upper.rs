//! What a sandbox has written, as a layer.
//!
//! An overlay keeps it in a directory: what is gone is a device with number zero, and a
//! directory that hides what is below it has an attribute. Layers of images say both by names.

use super::folder::{Found, attributes_of, look, names, open_directory, open_file};
use super::layer::{is_whiteout, unreadable};
use super::stack::{OVERLAY, Stack, is_opaque};
use super::tape::{Data, Tape};
use super::tree::{Attributes, Entry, Kind, Tree, resolve_in, shown};
use msb_spec::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Directories that the sandbox itself makes where an image has none, or mounts over. Nothing
/// that a command left is in those that are empty.
const SANDBOX_OWN: [&str; 6] = ["dev", "proc", "root", "run", "sys", "tmp"];
/// Where the sandbox keeps what is its own.
const SANDBOX_PLACE: &str = ".msb";

/// Writes a sandbox's writable directory.
pub(crate) struct Packer<'a, W: Write> {
    root: BorrowedFd<'a>,
    /// Where it lies in the image; empty at its top.
    at: &'a Path,
    below: Stack,
    shift: u32,
    tape: Tape<W>,
    /// Where the sandbox itself may have made an empty file, links followed.
    covered: Vec<PathBuf>,
    links: BTreeMap<(u64, u64), PathBuf>,
    any: bool,
}

impl<'a, W: Write> Packer<'a, W> {
    /// `below` are the layers that the directory lay over, topmost first; owners are `shift` higher
    /// in it than there; no file is written as newer than `latest`.
    pub(crate) fn new(
        root: BorrowedFd<'a>,
        below: Vec<OwnedFd>,
        shift: u32,
        out: W,
        latest: Option<i64>,
    ) -> Self {
        let (below, tape) = (Stack::new(below), Tape::new(out, latest));
        let (at, covered, links) = (Path::new(""), Vec::new(), BTreeMap::new());
        Self { root, at, below, shift, tape, covered, links, any: false }
    }

    /// The same for what lies elsewhere than at the top of the image.
    pub(crate) fn at(self, at: &'a Path) -> Self {
        Self { at, ..self }
    }

    /// Writes all of it; false if it holds nothing. `missing` are the names at the top that none of
    /// the layers has, `covered` the paths that the sandbox had shown its own files over.
    pub(crate) fn pack(mut self, missing: &[String], covered: &[String]) -> Result<bool> {
        for path in covered.iter().map(Path::new) {
            let directory = path.parent().unwrap_or(path);
            let directory =
                resolve_in(&self.below, directory).map_err(|error| unreadable(path, error))?;
            self.covered.push(directory.join(path.file_name().unwrap_or_default()));
        }
        self.top(missing)?;
        self.tape.finish().map_err(|error| Error::host("cannot write a layer", error))?;
        Ok(self.any)
    }

    fn top(&mut self, missing: &[String]) -> Result<()> {
        let top = Path::new("");
        let made_by_sandbox = |name: &OsString| -> Result<bool> {
            let Some(name) = name.to_str() else { return Ok(false) };
            if name == SANDBOX_PLACE {
                return Ok(true);
            }
            let empty = || names(self.root, Path::new(name)).map(|names| names.is_empty());
            let own = SANDBOX_OWN.contains(&name) && missing.iter().any(|one| one == name);
            Ok(own && empty().unwrap_or(false) || self.is_place(Path::new(name))?)
        };
        let all = names(self.root, top).map_err(|error| unreadable(top, error))?;
        let mut kept = Vec::new();
        for name in all {
            if !made_by_sandbox(&name)? {
                kept.push(name);
            }
        }
        if !kept.is_empty() {
            self.describe_root()?;
        }
        kept.into_iter().try_for_each(|name| self.one(Path::new(&name), 0))
    }

    /// The root, as the layers below have it unless the command has changed that.
    fn describe_root(&mut self) -> Result<()> {
        /// How every sandbox finds its own.
        const UNCHANGED: (u32, u32, u32) = (0o755, 0, 0);
        let top = Path::new("");
        let about = |error| unreadable(top, error);
        let Some(own) = look(self.root, top).map_err(about)? else {
            return Ok(());
        };
        let own = self.inside(own.entry);
        let entry = match self.below.entry(top).map_err(about)? {
            Some(below) if (own.mode, own.uid, own.gid) == UNCHANGED => below,
            _ => own,
        };
        self.write(top, &entry, &Vec::new(), Data::None)
    }

    fn directory(&mut self, path: &Path, depth: usize) -> Result<()> {
        /// Deeper than what the kernel lets anybody name in one path.
        const DEPTH_LIMIT: usize = 2048;
        if depth > DEPTH_LIMIT {
            return Err(Error::unsupported(format!("too deep a tree: `{}`", shown(path))));
        }
        for name in names(self.root, path).map_err(|error| unreadable(path, error))? {
            let path = path.join(name);
            if !self.is_place(&path)? {
                self.one(&path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Whether it is only there because the sandbox needed a place to show a file at: the place
    /// itself, which no command could write to, or a directory that holds nothing else and is
    /// otherwise as the layers below have it.
    fn is_place(&self, path: &Path) -> Result<bool> {
        if !self.covered.iter().any(|place| place.starts_with(path)) {
            return Ok(false);
        }
        let about = |error| unreadable(path, error);
        let Some(Found { entry, .. }) = look(self.root, path).map_err(about)? else {
            return Ok(false);
        };
        let below = self.below.entry(path).map_err(about)?;
        match (&entry.kind, below) {
            (Kind::File, below) => Ok(entry.size == 0 && below.is_none()),
            (Kind::Directory, None) => self.holds_only_places(path),
            (Kind::Directory, Some(below)) => {
                let entry = self.inside(entry);
                Ok(self.is_same(path, &entry, &below).map_err(about)?
                    && self.holds_only_places(path)?)
            }
            _ => Ok(false),
        }
    }

    fn holds_only_places(&self, path: &Path) -> Result<bool> {
        for name in names(self.root, path).map_err(|error| unreadable(path, error))? {
            if !self.is_place(&path.join(name))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a directory is as the layers below have it. Not its time, which others may change too:
    /// a directory that nothing was done to but that is none worth a layer.
    fn is_same(&self, path: &Path, own: &Entry, below: &Entry) -> std::io::Result<bool> {
        let opened = open_directory(self.root, path)?;
        let looks = |entry: &Entry| (entry.kind.clone(), entry.mode, entry.uid, entry.gid);
        Ok(looks(own) == looks(below)
            && !is_opaque(&opened)?
            && of_file(attributes_of(opened.as_fd())?) == self.below.attributes(path)?)
    }

    fn one(&mut self, path: &Path, depth: usize) -> Result<()> {
        let about = |error| unreadable(path, error);
        let Some(Found { entry, device }) = look(self.root, path).map_err(about)? else {
            return Ok(());
        };
        let name = path.file_name().unwrap_or_default();
        if is_whiteout(name) {
            return Err(Error::unsupported(format!(
                "no file of an image can be called `{}`",
                shown(path)
            ))
            .cause("layers write so that something is gone")
            .hint("remove it in the same RUN"));
        }
        self.any = true;
        let entry = self.inside(entry);
        match &entry.kind {
            Kind::Directory => {
                let opened = open_directory(self.root, path).map_err(about)?;
                let attributes = of_file(attributes_of(opened.as_fd()).map_err(about)?);
                self.write(path, &entry, &attributes, Data::None)?;
                if is_opaque(&opened).map_err(about)? {
                    self.hide(&path.join(".wh..wh..opq"), &entry)?;
                }
                drop(opened);
                self.directory(path, depth)
            }
            Kind::File => {
                if let Some(first) = entry.shared.and_then(|it| self.links.get(&it).cloned()) {
                    let first = self.at.join(first);
                    return self.write(path, &entry, &Vec::new(), Data::Same(&first));
                }
                let mut file = open_file(self.root, path).map_err(about)?;
                let attributes = of_file(attributes_of(file.as_fd()).map_err(about)?);
                self.write(path, &entry, &attributes, Data::Bytes(&mut file))?;
                if let Some(shared) = entry.shared {
                    self.links.insert(shared, path.to_owned());
                }
                Ok(())
            }
            Kind::Link(_) | Kind::Fifo => self.write(path, &entry, &Vec::new(), Data::None),
            Kind::Device if device == 0 => {
                let mut hidden = OsString::from(".wh.");
                hidden.push(name);
                self.hide(&path.with_file_name(hidden), &entry)
            }
            // Nobody inside can make a device, and nobody listens on a socket any more.
            Kind::Device | Kind::Socket => Ok(()),
        }
    }

    /// Notes that something of the layers below is gone.
    fn hide(&mut self, path: &Path, entry: &Entry) -> Result<()> {
        let mark = Entry { kind: Kind::File, mode: 0o644, size: 0, shared: None, ..entry.clone() };
        self.write(path, &mark, &Vec::new(), Data::Bytes(&mut std::io::empty()))
    }

    /// An entry as the image has it.
    fn inside(&self, mut entry: Entry) -> Entry {
        entry.uid = entry.uid.saturating_sub(self.shift);
        entry.gid = entry.gid.saturating_sub(self.shift);
        if matches!(entry.kind, Kind::Link(_)) {
            entry.mode = 0o777;
        }
        entry
    }

    fn write(
        &mut self,
        path: &Path,
        entry: &Entry,
        attributes: &Attributes,
        data: Data<'_>,
    ) -> Result<()> {
        self.tape
            .entry(&self.at.join(path), entry, attributes, data)
            .map_err(|error| Error::host(format!("cannot keep `{}`", shown(path)), error))
    }
}

/// Without those that are the overlay's.
fn of_file(mut attributes: Attributes) -> Attributes {
    attributes.retain(|(name, _)| !name.starts_with(OVERLAY));
    attributes
}
