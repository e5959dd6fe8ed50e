//! One layer as a tree in memory, and then over those below it.
//!
//! The rules are those of `unpack::tree`, by which overlayfs sees the same: what a layer says is
//! first brought together alone, following only its own links, and then laid over what is there.

use super::marks::Marked;
use super::unwritten;
use crate::unpack::archive::{Archive, Entry, Kind, broken};
use crate::unpack::{
    Bounds, OPAQUE, WHITEOUT, WHITEOUT_META, below_no_directory, clean, exceeded, named, split,
};
use msb_erofs::{Attributes, Node, Pouring, Special, Writer, holds_xattr};
use msb_spec::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::io::BufRead;

/// What names may take in memory, of all layers together. The process has 1 GiB, of which a
/// decompressor may want 128 MiB.
const MEMORY_LIMIT: usize = 640 << 20;
/// About as much as an entry and as a directory take beside their names.
const ENTRY_MEMORY: usize = 160;
const DIRECTORY_MEMORY: usize = 400;
/// Links followed on one way, as the kernel has it.
const LINKS_LIMIT: u32 = 40;
/// An attribute that is longer is none.
const VALUE_LIMIT: usize = u16::MAX as usize;

/// What all layers of a disk share while they are read.
#[derive(Debug)]
pub(super) struct Names {
    memory: usize,
    /// Stands for a name that a layer removes; it is only on disks that lie over others.
    whiteout: Node,
}

impl Names {
    pub(super) fn new(disk: &mut Writer) -> Result<Self> {
        let apart = disk.directory_apart(Attributes::directory()).map_err(unwritten)?;
        let whiteout = Special::CharDevice(0, 0);
        let whiteout = disk.special(apart, b"whiteout", &Attributes::default(), whiteout);
        Ok(Self { memory: 0, whiteout: whiteout.map_err(unwritten)? })
    }

    fn take(&mut self, bytes: usize) -> Result<()> {
        self.memory += bytes;
        match self.memory > MEMORY_LIMIT {
            true => Err(Error::new(msb_spec::Kind::Limit, "the image has too many names")
                .cause("those of all its layers take more memory than the process has")),
            false => Ok(()),
        }
    }
}

/// A layer that was read, and that nothing shows yet.
#[derive(Debug)]
pub(super) struct Layer {
    root: Node,
    whiteout: Node,
    /// Directories that hide what lies below.
    opaque: HashSet<Node>,
    /// Directories that were made for what is in them, and not described so far.
    implied: HashSet<Node>,
}

impl Layer {
    /// Reads a layer; its files go to the disk on the way.
    pub(super) fn read(
        archive: &mut Archive<impl BufRead>,
        disk: &mut Writer,
        names: &mut Names,
        bounds: &Bounds,
    ) -> Result<Self> {
        let root = disk.directory_apart(Attributes::directory()).map_err(unwritten)?;
        let layer = Self {
            root,
            whiteout: names.whiteout,
            opaque: HashSet::new(),
            implied: HashSet::from([root]),
        };
        let targets = HashMap::new();
        let mut reading = Reading { layer, disk, names, bounds, targets, entries: 0, bytes: 0 };
        while let Some(entry) = archive.next()? {
            if let Some((parent, name, attributes)) = reading.put(&entry)? {
                let file = reading.disk.file(parent, &name, attributes).map_err(unwritten)?;
                let mut pieces = Pieces::new(file, &entry);
                archive.data(|data| pieces.write(data))?;
                pieces.end()?;
            }
        }
        Ok(reading.layer)
    }

    /// Lays it over what is on the disk. What it removes is left out; or, where the disk itself
    /// lies over others, marked.
    pub(super) fn put_over(self, disk: &mut Writer, mut marked: Option<&mut Marked>) -> Result<()> {
        let mut left = vec![(disk.root(), self.root)];
        while let Some((below, above)) = left.pop() {
            if !self.implied.contains(&above)
                && let Some(attributes) = disk.attributes(above).cloned()
            {
                disk.describe(below, attributes).map_err(unwritten)?;
            }
            if self.opaque.contains(&above) {
                disk.clear(below);
                if let Some(marked) = &mut marked {
                    marked.add(below);
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
                            let made = made.map_err(unwritten)?;
                            // What was there hid what is below the disk.
                            if let (Some(marked), Some(_)) = (&mut marked, there) {
                                marked.add(made);
                            }
                            made
                        }
                    };
                    left.push((into, node));
                    continue;
                }
                disk.remove(below, &name);
                if node != self.whiteout || marked.is_some() {
                    disk.attach(below, &name, node).map_err(unwritten)?;
                }
            }
        }
        Ok(())
    }
}

/// A layer that is being read.
struct Reading<'a> {
    layer: Layer,
    disk: &'a mut Writer,
    names: &'a mut Names,
    bounds: &'a Bounds,
    /// Where the links of this layer lead.
    targets: HashMap<Node, Box<[u8]>>,
    entries: u64,
    bytes: u64,
}

/// Where a way ends.
enum Way {
    /// In this directory, and whether links led there.
    Directory(Node, bool),
    /// Before its end.
    Missing,
    /// At something that is no directory.
    Elsewhere,
}

impl Reading<'_> {
    /// Puts one entry; for a file it returns where it is to be made.
    fn put(&mut self, entry: &Entry) -> Result<Option<(Node, Vec<u8>, Attributes)>> {
        self.count(entry)?;
        let path = clean(&entry.path, self.bounds.depth)?;
        let Some((parent, name)) = split(&path) else {
            if entry.kind != Kind::Directory {
                return Err(broken("its root is not a directory"));
            }
            return self.describe(self.layer.root, entry).map(|()| None);
        };
        let parent = self.enter(parent)?;
        if let Some(hidden) = name.strip_prefix(WHITEOUT) {
            return self.hide(parent, name, hidden).map(|()| None);
        }
        self.make(parent, name, &path, entry).map_err(|error| named(error, &path))
    }

    fn make(
        &mut self,
        parent: Node,
        name: &[u8],
        path: &[u8],
        entry: &Entry,
    ) -> Result<Option<(Node, Vec<u8>, Attributes)>> {
        let attributes = attributes(entry)?;
        match entry.kind {
            Kind::Directory => self.directory(parent, name, attributes)?,
            Kind::File => {
                self.clear(parent, name);
                return Ok(Some((parent, name.to_vec(), attributes)));
            }
            Kind::Symlink => {
                if entry.link.is_empty() {
                    return Err(broken("a link that leads nowhere"));
                }
                self.clear(parent, name);
                let link = self.disk.symlink(parent, name, &attributes, &entry.link);
                self.names.take(ENTRY_MEMORY + entry.link.len())?;
                self.targets.insert(link.map_err(unwritten)?, entry.link.as_slice().into());
            }
            Kind::HardLink => self.hard_link(parent, name, path, entry)?,
            Kind::Fifo => {
                self.clear(parent, name);
                let made = self.disk.special(parent, name, &attributes, Special::Fifo);
                made.map_err(unwritten)?;
            }
            Kind::Device => {
                let Some(device) = entry.device else {
                    return Err(broken("a device without a number"));
                };
                // By this one overlayfs means that a name is removed.
                if !device.block && (device.major, device.minor) == (0, 0) {
                    return Ok(None);
                }
                // The kernel has 12 and 20 bits for these.
                if device.major >= 1 << 12 || device.minor >= 1 << 20 {
                    return Err(broken("a device whose number no system has"));
                }
                let special = match device.block {
                    true => Special::BlockDevice(device.major, device.minor),
                    false => Special::CharDevice(device.major, device.minor),
                };
                self.clear(parent, name);
                self.disk.special(parent, name, &attributes, special).map_err(unwritten)?;
            }
        }
        Ok(None)
    }

    /// One more inode.
    fn count_one(&mut self, memory: usize) -> Result<()> {
        self.entries += 1;
        if self.entries > self.bounds.entries {
            return Err(exceeded("entries", self.bounds.entries));
        }
        self.names.take(memory)
    }

    fn count(&mut self, entry: &Entry) -> Result<()> {
        // The longest name counts: entries have no more than that.
        let name = entry.path.len().min(255);
        let attributes: usize =
            entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.count_one(match entry.kind {
            Kind::Directory => DIRECTORY_MEMORY + name + attributes,
            _ => ENTRY_MEMORY + name,
        })?;
        if entry.kind == Kind::File {
            let bytes = self.bytes.checked_add(entry.size);
            self.bytes = bytes
                .filter(|bytes| *bytes <= self.bounds.bytes)
                .ok_or_else(|| exceeded("bytes", self.bounds.bytes))?;
        }
        Ok(())
    }

    /// The directory that entries of this path go into, making what is missing on the way.
    /// Archives may leave directories out. These count too: one name can bring hundreds.
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
                        return Err(broken("a name below a link that leads nowhere"));
                    }
                    let made = self.disk.directory(directory, name, Attributes::directory());
                    let made = made.map_err(unwritten)?;
                    self.layer.implied.insert(made);
                    made
                }
            };
        }
        Ok(directory)
    }

    /// The directory of this path; none if it is not there. It must not be deeper than its name
    /// says: a chain of links leads to any depth with short names.
    fn reach(&self, path: &[u8]) -> Result<Option<Node>> {
        match self.walk(path) {
            Way::Directory(directory, true) if self.depth_of(directory) >= self.bounds.depth => {
                Err(exceeded("depth", self.bounds.depth))
            }
            Way::Directory(directory, _) => Ok(Some(directory)),
            Way::Missing => Ok(None),
            Way::Elsewhere => Err(below_no_directory()),
        }
    }

    /// Follows a path as the kernel would if the layer were the root of everything.
    fn walk(&self, path: &[u8]) -> Way {
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
            let Some(next) = self.disk.find(at, component) else { return Way::Missing };
            if self.disk.is_directory(next) {
                at = next;
                continue;
            }
            links += 1;
            let Some(target) = self.targets.get(&next).filter(|_| links <= LINKS_LIMIT) else {
                return Way::Elsewhere;
            };
            if target.starts_with(b"/") {
                at = self.layer.root;
            }
            left.extend(target.split(|byte| *byte == b'/').rev());
        }
        Way::Directory(at, links > 0)
    }

    fn depth_of(&self, mut directory: Node) -> u64 {
        let mut depth = 0;
        while directory != self.layer.root && depth < self.bounds.depth {
            directory = self.disk.parent(directory).unwrap_or(self.layer.root);
            depth += 1;
        }
        depth
    }

    fn describe(&mut self, directory: Node, entry: &Entry) -> Result<()> {
        self.disk.describe(directory, attributes(entry)?).map_err(unwritten)?;
        self.layer.implied.remove(&directory);
        Ok(())
    }

    fn directory(&mut self, parent: Node, name: &[u8], attributes: Attributes) -> Result<()> {
        match self.disk.find(parent, name) {
            Some(there) if self.disk.is_directory(there) => {
                self.disk.describe(there, attributes).map_err(unwritten)?;
                self.layer.implied.remove(&there);
            }
            there => {
                self.clear(parent, name);
                let made = self.disk.directory(parent, name, attributes).map_err(unwritten)?;
                // What the layer removed from those below comes back, empty.
                if there == Some(self.layer.whiteout) {
                    self.layer.opaque.insert(made);
                }
            }
        }
        Ok(())
    }

    fn hard_link(&mut self, parent: Node, name: &[u8], path: &[u8], entry: &Entry) -> Result<()> {
        let target = clean(&entry.link, self.bounds.depth)?;
        let Some((above, last)) = split(&target) else {
            return Err(broken("a hard link to its root"));
        };
        if path == target {
            return Err(broken("a hard link to itself"));
        }
        let found = |reading: &Self| match reading.walk(above) {
            Way::Directory(directory, _) => reading.disk.find(directory, last),
            _ => None,
        };
        let is_file = |reading: &Self, node: &Node| {
            !reading.disk.is_directory(*node) && *node != reading.layer.whiteout
        };
        found(self)
            .filter(|node| is_file(self, node))
            .ok_or_else(|| broken("a hard link to what is not there"))?;
        self.clear(parent, name);
        // It may have been in what gave way.
        let node = found(self).ok_or_else(|| broken("a hard link to what is not there"))?;
        self.disk.link(parent, name, node).map_err(unwritten)
    }

    /// Notes that a name of the layers below is gone.
    fn hide(&mut self, parent: Node, name: &[u8], hidden: &[u8]) -> Result<()> {
        if name == OPAQUE {
            self.layer.opaque.insert(parent);
            return Ok(());
        }
        if name.starts_with(WHITEOUT_META) {
            return Ok(());
        }
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(broken("the removal of what is no name"));
        }
        match self.disk.find(parent, hidden) {
            // It removes what lies below, not what this layer brings.
            Some(there) if self.disk.is_directory(there) => {
                self.layer.opaque.insert(there);
                Ok(())
            }
            Some(_) => Ok(()),
            None => self.disk.link(parent, hidden, self.layer.whiteout).map_err(unwritten),
        }
    }

    /// Removes what a later entry replaces.
    fn clear(&mut self, parent: Node, name: &[u8]) {
        self.disk.remove(parent, name);
    }
}

fn attributes(entry: &Entry) -> Result<Attributes> {
    let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (name, value) in &entry.xattrs {
        if !may_be_packed(name, value) {
            continue;
        }
        if value.len() > VALUE_LIMIT {
            return Err(broken("an attribute that no file can have"));
        }
        // Of two the last counts.
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

/// Attributes that a layer may bring: what file systems know, and nothing that speaks to
/// overlayfs or to a security module that is not the image's.
fn may_be_packed(name: &[u8], value: &[u8]) -> bool {
    let overlay = [&b"user.overlay."[..], b"trusted.overlay."];
    if !holds_xattr(name) || overlay.iter().any(|start| name.starts_with(start)) {
        return false;
    }
    if name.starts_with(b"security.") {
        return name == b"security.capability";
    }
    // A list of who may what: its version, and entries of eight bytes.
    !name.starts_with(b"system.") || (value.starts_with(&[2, 0, 0, 0]) && value.len() % 8 == 4)
}

/// Writes data where the map of a sparse file says.
struct Pieces<'a, 'b> {
    file: Pouring<'a>,
    entry: &'b Entry,
    next: usize,
    /// Data that belongs to the piece before the next one.
    left: u64,
}

impl<'a, 'b> Pieces<'a, 'b> {
    fn new(file: Pouring<'a>, entry: &'b Entry) -> Self {
        Self { file, entry, next: 0, left: 0 }
    }

    fn write(&mut self, mut data: &[u8]) -> Result<()> {
        let Some(pieces) = &self.entry.pieces else {
            return self.file.write(data).map_err(unwritten);
        };
        while !data.is_empty() {
            while self.left == 0 {
                let piece = pieces.get(self.next).ok_or_else(|| broken("data for no piece"))?;
                self.next += 1;
                // Pieces are in order, and none reaches into another.
                self.file.skip(piece.at - self.file.size()).map_err(unwritten)?;
                self.left = piece.len;
            }
            let most = data.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.file.write(&data[..most]).map_err(unwritten)?;
            self.left -= most as u64;
            data = &data[most..];
        }
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        let rest = self.entry.size - self.file.size();
        self.file.skip(rest).map_err(unwritten)?;
        self.file.end().map(drop).map_err(unwritten)
    }
}
