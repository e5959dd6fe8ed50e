//! Converts an overlay upper directory into an image layer.
//!
//! overlayfs marks a removed file with a character device 0/0 and an opaque directory with an
//! extended attribute. Image layers use file names with the prefix `.wh.` for both.

use super::context_dir::{StatEntry, attributes_of, look, names, open_directory, open_file};
use super::file_tree::{Attributes, FileEntry, FileKind, FileTree, resolve_in, shown};
use super::layer_stack::{LayerStack, OVERLAY, is_opaque};
use super::new_layer::{is_whiteout, unreadable};
use super::tar_writer::{EntryContent, TarWriter};
use msb_spec::{Error, Result};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Directories that the sandbox creates for its mounts if the image has none. Empty ones are left
/// out.
const SANDBOX_DIRS: [&str; 6] = ["dev", "proc", "root", "run", "sys", "tmp"];
/// Directory with files of the sandbox runtime.
const SANDBOX_DIR: &str = ".msb";

/// Writes an upper directory as a tar stream.
pub(crate) struct UpperPacker<'a, W: Write> {
    root: BorrowedFd<'a>,
    /// Path in the image that it is mounted at; empty for the root.
    at: &'a Path,
    below: LayerStack,
    shift: u32,
    writer: TarWriter<W>,
    /// Paths of empty files that the sandbox may have created as mount points, resolved.
    covered: Vec<PathBuf>,
    links: BTreeMap<(u64, u64), PathBuf>,
    any: bool,
}

impl<'a, W: Write> UpperPacker<'a, W> {
    /// `below` are the lower layers, topmost first. Ids in the upper directory are `shift` higher
    /// than in the image. Modification times are at most `latest`.
    pub(crate) fn new(
        root: BorrowedFd<'a>,
        below: Vec<OwnedFd>,
        shift: u32,
        out: W,
        latest: Option<i64>,
    ) -> Self {
        let (below, writer) = (LayerStack::new(below), TarWriter::new(out, latest));
        let (at, covered, links) = (Path::new(""), Vec::new(), BTreeMap::new());
        Self { root, at, below, shift, writer, covered, links, any: false }
    }

    /// Sets the path in the image that the upper directory is mounted at.
    pub(crate) fn at(self, at: &'a Path) -> Self {
        Self { at, ..self }
    }

    /// Writes the whole layer; false if it is empty. `missing` are names in `/` that no layer has.
    /// `covered` are paths that the sandbox has mounted its own files over.
    pub(crate) fn pack(mut self, missing: &[String], covered: &[String]) -> Result<bool> {
        for path in covered.iter().map(Path::new) {
            let directory = path.parent().unwrap_or(path);
            let directory =
                resolve_in(&self.below, directory).map_err(|error| unreadable(path, error))?;
            self.covered.push(directory.join(path.file_name().unwrap_or_default()));
        }
        self.top(missing)?;
        self.writer.finish().map_err(|error| Error::host("cannot write a layer", error))?;
        Ok(self.any)
    }

    fn top(&mut self, missing: &[String]) -> Result<()> {
        let top = Path::new("");
        let made_by_sandbox = |name: &OsString| -> Result<bool> {
            let Some(name) = name.to_str() else { return Ok(false) };
            if name == SANDBOX_DIR {
                return Ok(true);
            }
            let empty = || names(self.root, Path::new(name)).map(|names| names.is_empty());
            let own =
                SANDBOX_DIRS.contains(&name) && missing.iter().any(|entry_at| entry_at == name);
            Ok(own && empty().unwrap_or(false) || self.is_mount_point(Path::new(name))?)
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
        kept.into_iter().try_for_each(|name| self.entry_at(Path::new(&name), 0))
    }

    /// Writes the root with the metadata of the lower layers, unless a command has changed it.
    fn describe_root(&mut self) -> Result<()> {
        /// Mode and owner that the sandbox sets on its root.
        const UNCHANGED: (u32, u32, u32) = (0o755, 0, 0);
        let top = Path::new("");
        let about = |error| unreadable(top, error);
        let Some(own) = look(self.root, top).map_err(about)? else {
            return Ok(());
        };
        let own = self.with_image_ids(own.entry);
        let entry = match self.below.entry(top).map_err(about)? {
            Some(below) if (own.mode, own.uid, own.gid) == UNCHANGED => below,
            _ => own,
        };
        self.write(top, &entry, &Vec::new(), EntryContent::None)
    }

    fn directory(&mut self, path: &Path, depth: usize) -> Result<()> {
        /// Deeper than any path that the kernel accepts at once.
        const DEPTH_LIMIT: usize = 2048;
        if depth > DEPTH_LIMIT {
            return Err(Error::unsupported(format!(
                "the directory tree is too deep: `{}`",
                shown(path)
            )));
        }
        for name in names(self.root, path).map_err(|error| unreadable(path, error))? {
            let path = path.join(name);
            if !self.is_mount_point(&path)? {
                self.entry_at(&path, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Whether a path exists only as mount point of the sandbox: an empty file that no command
    /// could write to, or a directory with only such files and with the metadata of the lower
    /// layers.
    fn is_mount_point(&self, path: &Path) -> Result<bool> {
        if !self.covered.iter().any(|place| place.starts_with(path)) {
            return Ok(false);
        }
        let about = |error| unreadable(path, error);
        let Some(StatEntry { entry, .. }) = look(self.root, path).map_err(about)? else {
            return Ok(false);
        };
        let below = self.below.entry(path).map_err(about)?;
        match (&entry.kind, below) {
            (FileKind::File, below) => Ok(entry.size == 0 && below.is_none()),
            (FileKind::Directory, None) => self.holds_only_mount_points(path),
            (FileKind::Directory, Some(below)) => {
                let entry = self.with_image_ids(entry);
                Ok(self.is_same(path, &entry, &below).map_err(about)?
                    && self.holds_only_mount_points(path)?)
            }
            _ => Ok(false),
        }
    }

    fn holds_only_mount_points(&self, path: &Path) -> Result<bool> {
        for name in names(self.root, path).map_err(|error| unreadable(path, error))? {
            if !self.is_mount_point(&path.join(name))? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a directory has the metadata of the lower layers. The mtime does not count: a mount
    /// point inside changes it.
    fn is_same(&self, path: &Path, own: &FileEntry, below: &FileEntry) -> std::io::Result<bool> {
        let opened = open_directory(self.root, path)?;
        let looks = |entry: &FileEntry| (entry.kind.clone(), entry.mode, entry.uid, entry.gid);
        Ok(looks(own) == looks(below)
            && !is_opaque(&opened)?
            && without_overlay_xattrs(attributes_of(opened.as_fd())?)
                == self.below.attributes(path)?)
    }

    fn entry_at(&mut self, path: &Path, depth: usize) -> Result<()> {
        let about = |error| unreadable(path, error);
        let Some(StatEntry { entry, device }) = look(self.root, path).map_err(about)? else {
            return Ok(());
        };
        let name = path.file_name().unwrap_or_default();
        if is_whiteout(name) {
            return Err(Error::unsupported(format!(
                "an image cannot contain a file named `{}`",
                shown(path)
            ))
            .cause("the prefix `.wh.` marks removed files in layers")
            .hint("remove it in the same RUN"));
        }
        self.any = true;
        let entry = self.with_image_ids(entry);
        match &entry.kind {
            FileKind::Directory => {
                let opened = open_directory(self.root, path).map_err(about)?;
                let attributes =
                    without_overlay_xattrs(attributes_of(opened.as_fd()).map_err(about)?);
                self.write(path, &entry, &attributes, EntryContent::None)?;
                if is_opaque(&opened).map_err(about)? {
                    self.write_whiteout(&path.join(".wh..wh..opq"), &entry)?;
                }
                drop(opened);
                self.directory(path, depth)
            }
            FileKind::File => {
                if let Some(first) = entry.hard_link_id.and_then(|it| self.links.get(&it).cloned())
                {
                    let first = self.at.join(first);
                    return self.write(path, &entry, &Vec::new(), EntryContent::HardLink(&first));
                }
                let mut file = open_file(self.root, path).map_err(about)?;
                let attributes =
                    without_overlay_xattrs(attributes_of(file.as_fd()).map_err(about)?);
                self.write(path, &entry, &attributes, EntryContent::Bytes(&mut file))?;
                if let Some(hard_link_id) = entry.hard_link_id {
                    self.links.insert(hard_link_id, path.to_owned());
                }
                Ok(())
            }
            FileKind::Link(_) | FileKind::Fifo => {
                self.write(path, &entry, &Vec::new(), EntryContent::None)
            }
            FileKind::Device if device == 0 => {
                let mut hidden = OsString::from(".wh.");
                hidden.push(name);
                self.write_whiteout(&path.with_file_name(hidden), &entry)
            }
            // A sandbox cannot create device nodes, and sockets have no listener any more.
            FileKind::Device | FileKind::Socket => Ok(()),
        }
    }

    /// Writes an empty file that is a whiteout.
    fn write_whiteout(&mut self, path: &Path, entry: &FileEntry) -> Result<()> {
        let mark = FileEntry {
            kind: FileKind::File,
            mode: 0o644,
            size: 0,
            hard_link_id: None,
            ..entry.clone()
        };
        self.write(path, &mark, &Vec::new(), EntryContent::Bytes(&mut std::io::empty()))
    }

    /// Subtracts the id shift from an entry.
    fn with_image_ids(&self, mut entry: FileEntry) -> FileEntry {
        entry.uid = entry.uid.saturating_sub(self.shift);
        entry.gid = entry.gid.saturating_sub(self.shift);
        if matches!(entry.kind, FileKind::Link(_)) {
            entry.mode = 0o777;
        }
        entry
    }

    fn write(
        &mut self,
        path: &Path,
        entry: &FileEntry,
        attributes: &Attributes,
        data: EntryContent<'_>,
    ) -> Result<()> {
        self.writer
            .entry(&self.at.join(path), entry, attributes, data)
            .map_err(|error| Error::host(format!("cannot keep `{}`", shown(path)), error))
    }
}

/// Removes attributes that overlayfs uses itself.
fn without_overlay_xattrs(mut attributes: Attributes) -> Attributes {
    attributes.retain(|(name, _)| !name.starts_with(OVERLAY));
    attributes
}
