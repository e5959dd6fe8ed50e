//! Reads one layer into a tree of EROFS nodes and merges it over the lower layers.
//!
//! The rules are those of `unpack::layer_dir`, so that a disk shows what overlayfs would show. A
//! layer is first read on its own, following only its own symlinks, and then merged.

use super::opaque_marks::OpaqueDirs;
use super::write_error;
use crate::unpack::tar_reader::{TarEntry, TarKind, TarReader, broken};
use crate::unpack::{
    Bounds, OPAQUE, WHITEOUT, WHITEOUT_META, at_path, below_no_directory, clean_path, exceeded,
    split,
};
use msb_erofs::{Attributes, FileWriter, Node, Special, Writer, holds_xattr};
use msb_spec::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::io::BufRead;

/// Limit of all names in memory, over all layers. The process has 1 GiB; a decompressor may use 128
/// MiB of it.
const MEMORY_LIMIT: usize = 640 << 20;
/// Estimated memory of an entry and of a directory, without the name.
const ENTRY_MEMORY: usize = 160;
const DIRECTORY_MEMORY: usize = 400;
/// Most symlinks that a lookup follows, as in the kernel.
const LINKS_LIMIT: u32 = 40;
/// Longest value of an extended attribute.
const VALUE_LIMIT: usize = u16::MAX as usize;

/// State that is shared by all layers of a disk.
#[derive(Debug)]
pub(super) struct MemoryUse {
    memory: usize,
    /// The node of all whiteouts. Only disks that are upper layers contain it.
    whiteout: Node,
}

impl MemoryUse {
    pub(super) fn new(disk: &mut Writer) -> Result<Self> {
        let detached = disk.detached_directory(Attributes::directory()).map_err(write_error)?;
        let whiteout = Special::CharDevice(0, 0);
        let whiteout = disk.special(detached, b"whiteout", &Attributes::default(), whiteout);
        Ok(Self { memory: 0, whiteout: whiteout.map_err(write_error)? })
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        self.memory += bytes;
        match self.memory > MEMORY_LIMIT {
            true => Err(Error::new(msb_spec::Kind::Limit, "the image has too many names")
                .cause("the names of all layers take more memory than the process has")),
            false => Ok(()),
        }
    }
}

/// A layer that was read and is not merged yet.
#[derive(Debug)]
pub(super) struct LayerTree {
    root: Node,
    whiteout: Node,
    /// Directories that hide the lower ones.
    opaque: HashSet<Node>,
    /// Directories without an entry of their own so far.
    implied: HashSet<Node>,
}

impl LayerTree {
    /// Reads a layer. File data is written to the disk at once.
    pub(super) fn read(
        archive: &mut TarReader<impl BufRead>,
        disk: &mut Writer,
        memory_use: &mut MemoryUse,
        bounds: &Bounds,
    ) -> Result<Self> {
        let root = disk.detached_directory(Attributes::directory()).map_err(write_error)?;
        let layer = Self {
            root,
            whiteout: memory_use.whiteout,
            opaque: HashSet::new(),
            implied: HashSet::from([root]),
        };
        let targets = HashMap::new();
        let mut reader =
            LayerReader { layer, disk, memory_use, bounds, targets, entries: 0, bytes: 0 };
        while let Some(entry) = archive.next()? {
            if let Some((parent, name, attributes)) = reader.put(&entry)? {
                let file = reader.disk.file(parent, &name, attributes).map_err(write_error)?;
                let mut writer = SparseFileWriter::new(file, &entry);
                archive.data(|data| writer.write(data))?;
                writer.end()?;
            }
        }
        Ok(reader.layer)
    }

    /// Merges the layer over the disk. Whiteouts remove entries. If the disk is itself an upper
    /// layer, whiteouts and opaque marks are kept.
    pub(super) fn put_over(
        self,
        disk: &mut Writer,
        mut opaque_dirs: Option<&mut OpaqueDirs>,
    ) -> Result<()> {
        let mut left = vec![(disk.root(), self.root)];
        while let Some((below, above)) = left.pop() {
            if !self.implied.contains(&above)
                && let Some(attributes) = disk.attributes(above).cloned()
            {
                disk.describe(below, attributes).map_err(write_error)?;
            }
            if self.opaque.contains(&above) {
                disk.clear(below);
                if let Some(opaque_dirs) = &mut opaque_dirs {
                    opaque_dirs.add(below);
                }
            }
            for (name, node) in disk.take_all(above) {
                let there = disk.find(below, &name);
                if disk.is_directory(node) {
                    let into = match there {
                        Some(there) if disk.is_directory(there) => there,
                        _ => {
                            disk.remove(below, &name);
                            let attributes = disk.attributes(node).cloned().unwrap_or_default();
                            let made = disk.directory(below, &name, attributes);
                            let made = made.map_err(write_error)?;
                            // The replaced entry hid the directory of lower disks.
                            if let (Some(opaque_dirs), Some(_)) = (&mut opaque_dirs, there) {
                                opaque_dirs.add(made);
                            }
                            made
                        }
                    };
                    left.push((into, node));
                    continue;
                }
                disk.remove(below, &name);
                if node != self.whiteout || opaque_dirs.is_some() {
                    disk.attach(below, &name, node).map_err(write_error)?;
                }
            }
        }
        Ok(())
    }
}

/// A layer while it is read.
struct LayerReader<'a> {
    layer: LayerTree,
    disk: &'a mut Writer,
    memory_use: &'a mut MemoryUse,
    bounds: &'a Bounds,
    /// Targets of the symlinks of this layer.
    targets: HashMap<Node, Box<[u8]>>,
    entries: u64,
    bytes: u64,
}

/// Result of a path lookup.
enum PathLookup {
    /// A directory, and whether a symlink was followed.
    Directory(Node, bool),
    /// A component does not exist.
    Missing,
    /// A component is not a directory.
    NotDirectory,
}

impl LayerReader<'_> {
    /// Adds one entry. For a file it returns parent, name and attributes.
    fn put(&mut self, entry: &TarEntry) -> Result<Option<(Node, Vec<u8>, Attributes)>> {
        self.count(entry)?;
        let path = clean_path(&entry.path, self.bounds.depth)?;
        let Some((parent, name)) = split(&path) else {
            if entry.kind != TarKind::Directory {
                return Err(broken("its root is not a directory"));
            }
            return self.describe(self.layer.root, entry).map(|()| None);
        };
        let parent = self.enter(parent)?;
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.add_whiteout(parent, name, hidden).map(|()| None);
        }
        self.make(parent, name, &path, entry).map_err(|error| at_path(error, &path))
    }

    fn make(
        &mut self,
        parent: Node,
        name: &[u8],
        path: &[u8],
        entry: &TarEntry,
    ) -> Result<Option<(Node, Vec<u8>, Attributes)>> {
        let attributes = attributes(entry)?;
        match entry.kind {
            TarKind::Directory => self.directory(parent, name, attributes)?,
            TarKind::File => {
                self.remove_existing(parent, name);
                return Ok(Some((parent, name.to_vec(), attributes)));
            }
            TarKind::Symlink => {
                if entry.link.is_empty() {
                    return Err(broken("a symlink without a target"));
                }
                self.remove_existing(parent, name);
                let link = self.disk.symlink(parent, name, &attributes, &entry.link);
                self.memory_use.take(ENTRY_MEMORY + entry.link.len())?;
                self.targets.insert(link.map_err(write_error)?, entry.link.as_slice().into());
            }
            TarKind::HardLink => self.hard_link(parent, name, path, entry)?,
            TarKind::Fifo => {
                self.remove_existing(parent, name);
                let made = self.disk.special(parent, name, &attributes, Special::Fifo);
                made.map_err(write_error)?;
            }
            TarKind::Device => {
                let Some(device) = entry.device else {
                    return Err(broken("a device without a valid number"));
                };
                // Character device 0/0 is a whiteout of overlayfs; images must not contain it.
                if !device.block && (device.major, device.minor) == (0, 0) {
                    return Ok(None);
                }
                // The kernel has 12 bits for the major and 20 for the minor number.
                if device.major >= 1 << 12 || device.minor >= 1 << 20 {
                    return Err(broken("a device number that is out of range"));
                }
                let special = match device.block {
                    true => Special::BlockDevice(device.major, device.minor),
                    false => Special::CharDevice(device.major, device.minor),
                };
                self.remove_existing(parent, name);
                self.disk.special(parent, name, &attributes, special).map_err(write_error)?;
            }
        }
        Ok(None)
    }

    /// Counts one more inode.
    fn count_one(&mut self, memory: usize) -> Result<()> {
        self.entries += 1;
        if self.entries > self.bounds.entries {
            return Err(exceeded("entries", self.bounds.entries));
        }
        self.memory_use.take(memory)
    }

    fn count(&mut self, entry: &TarEntry) -> Result<()> {
        // Only the last component is stored, which has at most 255 bytes.
        let name = entry.path.len().min(255);
        let attributes: usize =
            entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.count_one(match entry.kind {
            TarKind::Directory => DIRECTORY_MEMORY + name + attributes,
            _ => ENTRY_MEMORY + name,
        })?;
        if entry.kind == TarKind::File {
            let bytes = self.bytes.checked_add(entry.size);
            self.bytes = bytes
                .filter(|bytes| *bytes <= self.bounds.bytes)
                .ok_or_else(|| exceeded("bytes", self.bounds.bytes))?;
        }
        Ok(())
    }

    /// The directory for entries of this path. Creates missing parents, which count as entries: one
    /// name can imply hundreds.
    fn enter(&mut self, path: &[u8]) -> Result<Node> {
        if let Some(directory) = self.reach(path)? {
            return Ok(directory);
        }
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let ends: Vec<usize> = ends.map(|(at, _)| at).chain([path.len()]).collect();
        let mut directory = self.layer.root;
        for end in ends {
            directory = match self.reach(&path[..end])? {
                Some(found) => found,
                None => {
                    let (_, name) = split(&path[..end]).ok_or_else(|| broken("an empty name"))?;
                    self.count_one(DIRECTORY_MEMORY + name.len())?;
                    if self.disk.find(directory, name).is_some() {
                        return Err(broken("a name below a dangling symlink"));
                    }
                    let made = self.disk.directory(directory, name, Attributes::directory());
                    let made = made.map_err(write_error)?;
                    self.layer.implied.insert(made);
                    made
                }
            };
        }
        Ok(directory)
    }

    /// Looks a directory up; none if it does not exist. Its real depth is checked, because a chain
    /// of symlinks leads to any depth with short names.
    fn reach(&self, path: &[u8]) -> Result<Option<Node>> {
        match self.walk(path) {
            PathLookup::Directory(directory, true)
                if self.depth_of(directory) >= self.bounds.depth =>
            {
                Err(exceeded("depth", self.bounds.depth))
            }
            PathLookup::Directory(directory, _) => Ok(Some(directory)),
            PathLookup::Missing => Ok(None),
            PathLookup::NotDirectory => Err(below_no_directory()),
        }
    }

    /// Resolves a path as the kernel would, with the layer as root.
    fn walk(&self, path: &[u8]) -> PathLookup {
        let (mut at, mut links) = (self.layer.root, 0);
        let mut left: Vec<&[u8]> = path.split(|byte| *byte == b'/').rev().collect();
        while let Some(component) = left.pop() {
            match component {
                b"" | b"." => continue,
                b".." => {
                    if at != self.layer.root {
                        at = self.disk.parent(at).unwrap_or(self.layer.root);
                    }
                    continue;
                }
                _ => {}
            }
            let Some(next) = self.disk.find(at, component) else { return PathLookup::Missing };
            if self.disk.is_directory(next) {
                at = next;
                continue;
            }
            links += 1;
            let Some(target) = self.targets.get(&next).filter(|_| links <= LINKS_LIMIT) else {
                return PathLookup::NotDirectory;
            };
            if target.starts_with(b"/") {
                at = self.layer.root;
            }
            left.extend(target.split(|byte| *byte == b'/').rev());
        }
        PathLookup::Directory(at, links > 0)
    }

    fn depth_of(&self, mut directory: Node) -> u64 {
        let mut depth = 0;
        while directory != self.layer.root && depth < self.bounds.depth {
            directory = self.disk.parent(directory).unwrap_or(self.layer.root);
            depth += 1;
        }
        depth
    }

    fn describe(&mut self, directory: Node, entry: &TarEntry) -> Result<()> {
        self.disk.describe(directory, attributes(entry)?).map_err(write_error)?;
        self.layer.implied.remove(&directory);
        Ok(())
    }

    fn directory(&mut self, parent: Node, name: &[u8], attributes: Attributes) -> Result<()> {
        match self.disk.find(parent, name) {
            Some(there) if self.disk.is_directory(there) => {
                self.disk.describe(there, attributes).map_err(write_error)?;
                self.layer.implied.remove(&there);
            }
            there => {
                self.remove_existing(parent, name);
                let made = self.disk.directory(parent, name, attributes).map_err(write_error)?;
                // The layer has removed the lower directory and creates a new one: it is opaque.
                if there == Some(self.layer.whiteout) {
                    self.layer.opaque.insert(made);
                }
            }
        }
        Ok(())
    }

    fn hard_link(
        &mut self,
        parent: Node,
        name: &[u8],
        path: &[u8],
        entry: &TarEntry,
    ) -> Result<()> {
        let target = clean_path(&entry.link, self.bounds.depth)?;
        let Some((above, last)) = split(&target) else {
            return Err(broken("a hard link to its root"));
        };
        if path == target {
            return Err(broken("a hard link to itself"));
        }
        let found = |reader: &Self| match reader.walk(above) {
            PathLookup::Directory(directory, _) => reader.disk.find(directory, last),
            _ => None,
        };
        let is_file = |reader: &Self, node: &Node| {
            !reader.disk.is_directory(*node) && *node != reader.layer.whiteout
        };
        found(self)
            .filter(|node| is_file(self, node))
            .ok_or_else(|| broken("a hard link to a missing file"))?;
        self.remove_existing(parent, name);
        // The target may have been inside of what was removed.
        let node = found(self).ok_or_else(|| broken("a hard link to a missing file"))?;
        self.disk.link(parent, name, node).map_err(write_error)
    }

    /// Adds a whiteout for a name of lower layers.
    fn add_whiteout(&mut self, parent: Node, name: &[u8], hidden: &[u8]) -> Result<()> {
        if name == OPAQUE {
            self.layer.opaque.insert(parent);
            return Ok(());
        }
        if name.starts_with(WHITEOUT_META) {
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(broken("a whiteout without a valid name"));
        }
        match self.disk.find(parent, hidden) {
            // A whiteout removes the file of lower layers, not the one of this layer.
            Some(there) if self.disk.is_directory(there) => {
                self.layer.opaque.insert(there);
                Ok(())
            }
            Some(_) => Ok(()),
            None => self.disk.link(parent, hidden, self.layer.whiteout).map_err(write_error),
        }
    }

    /// Removes what a later entry replaces.
    fn remove_existing(&mut self, parent: Node, name: &[u8]) {
        self.disk.remove(parent, name);
    }
}

fn attributes(entry: &TarEntry) -> Result<Attributes> {
    let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (name, value) in &entry.xattrs {
        if !may_be_packed(name, value) {
            continue;
        }
        if value.len() > VALUE_LIMIT {
            return Err(broken("an extended attribute with a value over 64 KiB"));
        }
        // Of two equal names the last counts.
        xattrs.retain(|(other, _)| other != name);
        xattrs.push((name.clone(), value.clone()));
    }
    Ok(Attributes {
        mode: (entry.mode & 0o7777) as u16,
        uid: entry.uid,
        gid: entry.gid,
        mtime: entry.mtime,
        xattrs,
    })
}

/// Whether a layer may bring this attribute. Refused are those of overlayfs and of security
/// modules, except capabilities.
fn may_be_packed(name: &[u8], value: &[u8]) -> bool {
    let overlay = [&b"user.overlay."[..], b"trusted.overlay."];
    if !holds_xattr(name) || overlay.iter().any(|start| name.starts_with(start)) {
        return false;
    }
    if name.starts_with(b"security.") {
        return name == b"security.capability";
    }
    // A POSIX ACL: version 2 and entries of eight bytes.
    !name.starts_with(b"system.") || (value.starts_with(&[2, 0, 0, 0]) && value.len() % 8 == 4)
}

/// Writes the data of a file to the disk, at the offsets of its sparse map.
struct SparseFileWriter<'a, 'b> {
    file: FileWriter<'a>,
    entry: &'b TarEntry,
    next: usize,
    /// Bytes that are missing in the current run.
    left: u64,
}

impl<'a, 'b> SparseFileWriter<'a, 'b> {
    fn new(file: FileWriter<'a>, entry: &'b TarEntry) -> Self {
        Self { file, entry, next: 0, left: 0 }
    }

    fn write(&mut self, mut data: &[u8]) -> Result<()> {
        let Some(writer) = &self.entry.sparse_runs else {
            return self.file.write(data).map_err(write_error);
        };
        while !data.is_empty() {
            while self.left == 0 {
                let piece = writer
                    .get(self.next)
                    .ok_or_else(|| broken("data outside of the sparse map"))?;
                self.next += 1;
                // Runs are sorted and do not overlap.
                self.file.skip(piece.at - self.file.size()).map_err(write_error)?;
                self.left = piece.len;
            }
            let most = data.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.file.write(&data[..most]).map_err(write_error)?;
            self.left -= most as u64;
            data = &data[most..];
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        let rest = self.entry.size - self.file.size();
        self.file.skip(rest).map_err(write_error)?;
        self.file.end().map(drop).map_err(write_error)
    }
}
