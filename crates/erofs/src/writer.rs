//! Makes a disk: inodes of files, links and devices go out with the data; at the end follow the
//! directories and then the first block, so that half a disk is none.

use crate::format::{
    self, Dirent, INODE, Inode, LINKS_AT, Layout, ROOT_AT, S_IFDIR, S_IFLNK, S_IFREG, SLOT, Type,
};
use crate::output::Output;
use crate::tree::{Directory, Item, Leaf, Node, ROOT, Tree};
use crate::{Attributes, BLOCK, Special};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::ops::Range;

/// Blocks for inodes that are being filled. With several of them a large rest of a file that fits
/// nowhere does not close one that still has room for small things.
const OPEN_BLOCKS: usize = 8;

/// A disk that is being made.
#[derive(Debug)]
pub struct Writer {
    out: Output,
    tree: Tree,
    /// Blocks for inodes, with what is in them so far.
    open: Vec<(u32, Vec<u8>)>,
}

/// A disk that was made.
#[derive(Debug)]
pub struct Finished {
    /// The file that it is in. It was not synced.
    pub file: File,
    /// Its size.
    pub size: u64,
    /// Where all directories are: at the end. Only the first block is written after them.
    pub directories: Range<u64>,
    /// Bytes of files that were removed again. They can be made holes.
    pub unused: Vec<Range<u64>>,
}

impl Writer {
    /// Begins a disk in an empty file.
    pub fn new(file: File) -> Result<Self> {
        let mut out = Output::new(file);
        out.reserve()?;
        Ok(Self { out, tree: Tree::new(), open: Vec::new() })
    }

    /// The root, which belongs to root and which everybody may read unless it is described.
    pub fn root(&self) -> Node {
        ROOT
    }

    /// Makes an empty directory.
    pub fn directory(&mut self, parent: Node, name: &[u8], attributes: Attributes) -> Result<Node> {
        self.tree.vacant(parent, name)?;
        let node = self.directory_apart(attributes)?;
        self.tree.name(parent, name, node)?;
        Ok(node)
    }

    /// Makes an empty directory that has no name yet. It is left out if it never gets one.
    pub fn directory_apart(&mut self, attributes: Attributes) -> Result<Node> {
        // What cannot be written must not be found out at the end.
        format::xattrs(&attributes)?;
        self.tree.add(Item::Directory(Box::new(Directory {
            attributes,
            entries: BTreeMap::new(),
            parent: ROOT,
            number: 0,
        })))
    }

    /// Gives a directory other attributes.
    pub fn describe(&mut self, directory: Node, attributes: Attributes) -> Result<()> {
        let xattrs = format::xattrs(&attributes)?;
        if directory == ROOT && ROOT_AT + INODE + xattrs.len() > BLOCK as usize {
            return Err(Error::new(ErrorKind::InvalidInput, "too many attributes of the root"));
        }
        self.tree.directory_mut(directory)?.attributes = attributes;
        Ok(())
    }

    /// Begins a file, whose data follows.
    pub fn file(
        &mut self,
        parent: Node,
        name: &[u8],
        attributes: Attributes,
    ) -> Result<Pouring<'_>> {
        self.tree.vacant(parent, name)?;
        let xattrs = format::xattrs(&attributes)?;
        let start = self.out.next_block()?;
        Ok(Pouring { writer: self, parent, name: name.to_vec(), attributes, xattrs, start })
    }

    /// Makes a file of all that can be read.
    pub fn file_of(
        &mut self,
        parent: Node,
        name: &[u8],
        attributes: Attributes,
        data: &mut dyn Read,
    ) -> Result<Node> {
        let mut file = self.file(parent, name, attributes)?;
        let mut buffer = vec![0; 64 << 10];
        loop {
            match data.read(&mut buffer) {
                Ok(0) => return file.end(),
                Ok(n) => file.write(&buffer[..n])?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a symbolic link.
    pub fn symlink(
        &mut self,
        parent: Node,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<Node> {
        if target.is_empty() || target.len() >= BLOCK as usize || target.contains(&0) {
            return Err(Error::new(ErrorKind::InvalidInput, "a link that leads nowhere"));
        }
        self.tree.vacant(parent, name)?;
        let xattrs = format::xattrs(attributes)?;
        let start = self.out.next_block()?;
        self.out.append(target)?;
        // Whoever may write a link is decided by its directory.
        let mode = S_IFLNK | 0o777;
        self.leaf(parent, name, Type::Symlink, mode, attributes, &xattrs, start)
    }

    /// Makes a device, a pipe or a socket.
    pub fn special(
        &mut self,
        parent: Node,
        name: &[u8],
        attributes: &Attributes,
        special: Special,
    ) -> Result<Node> {
        self.tree.vacant(parent, name)?;
        let (kind, bits, place) = special.parts();
        let xattrs = format::xattrs(attributes)?;
        let mode = bits | attributes.mode & 0o7777;
        let inode = Inode {
            layout: Layout::Plain,
            mode,
            attributes,
            size: 0,
            place,
            links: 1,
            xattrs: &xattrs,
        };
        let number = self.put_inode(&inode, &[])?;
        let leaf = Leaf { number, kind, links: 1, blocks: (0, 0) };
        let node = self.tree.add(Item::Leaf(leaf))?;
        self.tree.name(parent, name, node)?;
        Ok(node)
    }

    /// Gives something that is no directory one more name.
    pub fn link(&mut self, parent: Node, name: &[u8], node: Node) -> Result<()> {
        self.tree.vacant(parent, name)?;
        let leaf = self
            .tree
            .leaf(node)
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "a hard link to what is no file"))?;
        leaf.links += 1;
        self.tree.name(parent, name, node)
    }

    /// What has this name.
    pub fn find(&self, parent: Node, name: &[u8]) -> Option<Node> {
        self.tree.directory(parent).ok()?.entries.get(name).copied()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self, node: Node) -> bool {
        self.tree.directory(node).is_ok()
    }

    /// The directory that a directory is in; the root is in itself.
    pub fn parent(&self, directory: Node) -> Option<Node> {
        self.tree.directory(directory).ok().map(|directory| directory.parent)
    }

    /// What is in a directory, sorted by name.
    pub fn entries(&self, directory: Node) -> impl Iterator<Item = (&[u8], Node)> {
        let entries = self.tree.directory(directory).ok().map(|directory| &directory.entries);
        entries.into_iter().flatten().map(|(name, node)| (name.as_ref(), *node))
    }

    /// Removes a name, and all below it. Tells whether there was one.
    pub fn remove(&mut self, parent: Node, name: &[u8]) -> bool {
        let taken = self.take(parent, name);
        taken.inspect(|node| self.tree.discard(*node)).is_some()
    }

    /// Removes everything in a directory.
    pub fn clear(&mut self, directory: Node) {
        let Ok(directory) = self.tree.directory_mut(directory) else { return };
        for node in std::mem::take(&mut directory.entries).into_values() {
            self.tree.discard(node);
        }
    }

    /// Takes away a name but not what it leads to, which `attach` gives a new one.
    pub fn take(&mut self, parent: Node, name: &[u8]) -> Option<Node> {
        self.tree.directory_mut(parent).ok()?.entries.remove(name)
    }

    /// Takes away all names in a directory, as `take` does.
    pub fn take_all(&mut self, parent: Node) -> Vec<(Box<[u8]>, Node)> {
        let directory = self.tree.directory_mut(parent);
        directory.map_or_else(
            |_| Vec::new(),
            |directory| std::mem::take(&mut directory.entries).into_iter().collect(),
        )
    }

    /// Gives a name to what has none: made apart or taken. A directory must not come below itself.
    pub fn attach(&mut self, parent: Node, name: &[u8], node: Node) -> Result<()> {
        self.tree.name(parent, name, node)
    }

    /// What a directory is described as.
    pub fn attributes(&self, directory: Node) -> Option<&Attributes> {
        self.tree.directory(directory).ok().map(|directory| &directory.attributes)
    }

    /// An inode with data that was appended from `start` on.
    #[expect(clippy::too_many_arguments, reason = "what an inode is made of")]
    fn leaf(
        &mut self,
        parent: Node,
        name: &[u8],
        kind: Type,
        mode: u16,
        attributes: &Attributes,
        xattrs: &[u8],
        start: u32,
    ) -> Result<Node> {
        let size = self.out.position() - u64::from(start) * BLOCK;
        let mut rest = self.out.take_rest();
        let mut layout = Layout::Inline;
        if rest.is_empty() || INODE + xattrs.len() + rest.len() > BLOCK as usize {
            layout = Layout::Plain;
            self.out.append(&rest)?;
            self.out.fill()?;
            rest.clear();
        }
        let blocks = self.out.next_block()? - start;
        let place = if blocks > 0 { start } else { 0 };
        let inode = Inode { layout, mode, attributes, size, place, links: 1, xattrs };
        let number = self.put_inode(&inode, &rest)?;
        let leaf = Leaf { number, kind, links: 1, blocks: (place, blocks) };
        let node = self.tree.add(Item::Leaf(leaf))?;
        self.tree.name(parent, name, node)?;
        Ok(node)
    }

    /// Finds room for an inode and what follows it; its number.
    fn put_inode(&mut self, inode: &Inode<'_>, rest: &[u8]) -> Result<u64> {
        let length = INODE + inode.xattrs.len() + rest.len();
        if length > BLOCK as usize {
            // Only with attributes that no ordinary file has.
            let number = u64::from(self.out.next_block()?) * BLOCK / SLOT;
            self.out.append(&inode.encode(number))?;
            self.out.fill()?;
            return Ok(number);
        }
        let begin = |used: usize| used.next_multiple_of(SLOT as usize);
        let fits = |(_, used): &(u32, Vec<u8>)| begin(used.len()) + length <= BLOCK as usize;
        let index = match self.open.iter().position(fits) {
            Some(index) => index,
            None => self.open_block()?,
        };
        let (block, used) = &mut self.open[index];
        used.resize(begin(used.len()), 0);
        let number = (u64::from(*block) * BLOCK + used.len() as u64) / SLOT;
        used.extend_from_slice(&inode.encode(number));
        used.extend_from_slice(rest);
        Ok(number)
    }

    fn open_block(&mut self) -> Result<usize> {
        if self.open.len() == OPEN_BLOCKS {
            let fullest = (0..OPEN_BLOCKS).max_by_key(|index| self.open[*index].1.len());
            let (block, used) = self.open.remove(fullest.unwrap_or(0));
            self.out.put(u64::from(block) * BLOCK, &used)?;
        }
        let block = self.out.reserve()?;
        self.open.push((block, Vec::with_capacity(BLOCK as usize)));
        Ok(self.open.len() - 1)
    }

    /// Writes what is left: directories and the first block. The name of the disk, which some
    /// tools show, should be made of what it holds.
    pub fn finish(mut self, uuid: [u8; 16]) -> Result<Finished> {
        for (block, used) in std::mem::take(&mut self.open) {
            self.out.put(u64::from(block) * BLOCK, &used)?;
        }
        let mut inodes = 0;
        for leaf in self.tree.leaves() {
            inodes += 1;
            if leaf.links != 1 {
                self.out.put(leaf.number * SLOT + LINKS_AT, &leaf.links.to_le_bytes())?;
            }
        }
        let directories = u64::from(self.out.next_block()?) * BLOCK;
        let places = self.place_directories()?;
        inodes += places.len() as u64;
        let root = self.put_directories(&places)?;
        let blocks = self.out.next_block()?;
        let mut first = vec![0; BLOCK as usize];
        first[ROOT_AT..ROOT_AT + root.len()].copy_from_slice(&root);
        format::put_superblock(&mut first, inodes, blocks, uuid);
        self.out.flush()?;
        self.out.put(0, &first)?;
        let unused = self.tree.unused.iter().map(|(start, count)| {
            let start = u64::from(*start) * BLOCK;
            start..start + u64::from(*count) * BLOCK
        });
        let (unused, size) = (unused.collect(), u64::from(blocks) * BLOCK);
        Ok(Finished { file: self.out.finish()?, size, directories: directories..size, unused })
    }

    /// Decides where every directory goes: their blocks first, then their inodes. The root comes
    /// first, and its inode is at its own place.
    fn place_directories(&mut self) -> Result<Vec<Place>> {
        let mut places = Vec::new();
        let mut left = vec![ROOT];
        let mut block = u64::from(self.out.next_block()?);
        while let Some(node) = left.pop() {
            let directory = self.tree.directory(node)?;
            let below = directory.entries.values();
            let below = below.copied().filter(|node| self.tree.directory(*node).is_ok());
            let known = left.len();
            left.extend(below);
            let subdirectories = left.len() - known;
            left[known..].reverse();

            let xattrs = format::xattrs(&directory.attributes)?.len();
            let entries = self.dirents(node)?;
            let mut sizes = format::dirent_blocks(&entries).map(format::dirent_bytes);
            let mut count = 0;
            let mut rest = sizes.next().unwrap_or(0);
            for next in sizes {
                count += 1;
                rest = next;
            }
            let size = count * BLOCK + rest as u64;
            let room = if node == ROOT { BLOCK as usize - ROOT_AT } else { BLOCK as usize };
            let layout = match INODE + xattrs + rest <= room {
                true => Layout::Inline,
                false => Layout::Plain,
            };
            if layout == Layout::Plain {
                count += 1;
                rest = 0;
            }
            let length = INODE + xattrs + rest;
            let links = 2 + u32::try_from(subdirectories).unwrap_or(u32::MAX - 2);
            places.push(Place { node, start: block, count, size, layout, length, links });
            block += count;
        }
        let mut at = block * BLOCK;
        for place in &places {
            let directory = self.tree.directory_mut(place.node)?;
            if place.node == ROOT {
                directory.number = ROOT_AT as u64 / SLOT;
                continue;
            }
            at = at.next_multiple_of(SLOT);
            if at % BLOCK + place.length as u64 > BLOCK {
                at = at.next_multiple_of(BLOCK);
            }
            directory.number = at / SLOT;
            at += place.length as u64;
        }
        Ok(places)
    }

    /// Writes directories where they were placed. Returns the inode of the root.
    fn put_directories(&mut self, places: &[Place]) -> Result<Vec<u8>> {
        for place in places {
            let entries = self.dirents(place.node)?;
            let blocks = format::dirent_blocks(&entries).take(place.count as usize);
            let blocks: Vec<Vec<u8>> = blocks.map(format::encode_dirents).collect();
            for bytes in blocks {
                self.out.append(&bytes)?;
                self.out.fill()?;
            }
        }
        let mut root = Vec::new();
        for place in places {
            let directory = self.tree.directory(place.node)?;
            let inode = Inode {
                layout: place.layout,
                mode: S_IFDIR | directory.attributes.mode & 0o7777,
                attributes: &directory.attributes,
                size: place.size,
                place: match place.count {
                    0 => 0,
                    _ => u32::try_from(place.start).unwrap_or(u32::MAX),
                },
                links: place.links,
                xattrs: &format::xattrs(&directory.attributes)?,
            };
            let mut bytes = inode.encode(directory.number);
            if place.layout == Layout::Inline {
                let entries = self.dirents(place.node)?;
                let last = format::dirent_blocks(&entries).last();
                bytes.extend(last.map(format::encode_dirents).unwrap_or_default());
            }
            if place.node == ROOT {
                root = bytes;
                continue;
            }
            let position = directory.number * SLOT;
            self.out.skip(position - self.out.position())?;
            self.out.append(&bytes)?;
        }
        self.out.fill()?;
        Ok(root)
    }

    /// All names of a directory with its own and that of its parent, sorted.
    fn dirents(&self, node: Node) -> Result<Vec<Dirent<'_>>> {
        let number = |node: Node| self.tree.directory(node).map(|directory| directory.number);
        let directory = self.tree.directory(node)?;
        let mut all = Vec::with_capacity(directory.entries.len() + 2);
        let kind = Type::Directory;
        all.push(Dirent { name: b".", number: directory.number, kind });
        all.push(Dirent { name: b"..", number: number(directory.parent)?, kind });
        for (name, node) in &directory.entries {
            all.push(match self.tree.item(*node) {
                Item::Leaf(leaf) => Dirent { name, number: leaf.number, kind: leaf.kind },
                _ => Dirent { name, number: number(*node)?, kind },
            });
        }
        all.sort_by_key(|entry| entry.name);
        Ok(all)
    }
}

/// Where a directory goes.
#[derive(Debug)]
struct Place {
    node: Node,
    /// Its first block and how many.
    start: u64,
    count: u64,
    size: u64,
    layout: Layout,
    /// Of its inode with all that follows it.
    length: usize,
    links: u32,
}

/// A file whose data is being written. It is there when `end` was called.
#[derive(Debug)]
pub struct Pouring<'a> {
    writer: &'a mut Writer,
    parent: Node,
    name: Vec<u8>,
    attributes: Attributes,
    xattrs: Vec<u8>,
    start: u32,
}

impl Pouring<'_> {
    /// Appends to the file.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        self.writer.out.append(data)
    }

    /// Appends zeros, which take no room in the file of the disk where they are many.
    pub fn skip(&mut self, count: u64) -> Result<()> {
        self.writer.out.skip(count)
    }

    /// How many bytes it has so far.
    pub fn size(&self) -> u64 {
        self.writer.out.position() - u64::from(self.start) * BLOCK
    }

    /// The file is complete.
    pub fn end(self) -> Result<Node> {
        let mode = S_IFREG | self.attributes.mode & 0o7777;
        self.writer.leaf(
            self.parent,
            &self.name,
            Type::File,
            mode,
            &self.attributes,
            &self.xattrs,
            self.start,
        )
    }
}
