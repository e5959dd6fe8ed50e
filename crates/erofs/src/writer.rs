//! Writes a disk: inodes of files, symlinks and devices together with their data, then the
//! directories, and the first block last. So an incomplete disk has no superblock.

use crate::block_writer::BlockWriter;
use crate::format::{
    self, DataLayout, ErofsDirent, ErofsInode, INODE, InodeType, LINKS_AT, ROOT_AT, S_IFDIR,
    S_IFLNK, S_IFREG, SLOT,
};
use crate::node_tree::{DirNode, LeafNode, Node, NodeTree, ROOT, TreeNode};
use crate::{Attributes, BLOCK, Special};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::ops::Range;

/// Inode blocks that are filled in parallel. A large tail that fits into none does not close a
/// block with room for small inodes.
const OPEN_BLOCKS: usize = 8;

/// A disk that is being written.
#[derive(Debug)]
pub struct Writer {
    out: BlockWriter,
    tree: NodeTree,
    /// Inode blocks with free space, and their content so far.
    open: Vec<(u32, Vec<u8>)>,
}

/// A complete disk and its file.
#[derive(Debug)]
pub struct FinishedDisk {
    /// The file with the disk; not synced.
    pub file: File,
    /// Size of the disk in bytes.
    pub size: u64,
    /// Byte range of all directories, at the end. Only the first block is written after them.
    pub directories: Range<u64>,
    /// Byte ranges of removed files, which can become holes.
    pub unused: Vec<Range<u64>>,
}

impl Writer {
    /// Starts a disk in an empty file.
    pub fn new(file: File) -> Result<Self> {
        let mut out = BlockWriter::new(file);
        out.reserve()?;
        Ok(Self { out, tree: NodeTree::new(), open: Vec::new() })
    }

    /// The root directory: owned by root with mode 0755, unless it is described.
    pub fn root(&self) -> Node {
        ROOT
    }

    /// Creates an empty directory.
    pub fn directory(&mut self, parent: Node, name: &[u8], attributes: Attributes) -> Result<Node> {
        self.tree.check_name(parent, name)?;
        let node = self.detached_directory(attributes)?;
        self.tree.name(parent, name, node)?;
        Ok(node)
    }

    /// Creates an empty directory without a name. It is not written unless it is attached.
    pub fn detached_directory(&mut self, attributes: Attributes) -> Result<Node> {
        // Encode now, so that an invalid attribute fails here and not at the end.
        format::xattrs(&attributes)?;
        self.tree.add(TreeNode::Directory(Box::new(DirNode {
            attributes,
            entries: BTreeMap::new(),
            parent: ROOT,
            number: 0,
        })))
    }

    /// Replaces the metadata of a directory.
    pub fn describe(&mut self, directory: Node, attributes: Attributes) -> Result<()> {
        let xattrs = format::xattrs(&attributes)?;
        if directory == ROOT && ROOT_AT + INODE + xattrs.len() > BLOCK as usize {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "too many extended attributes on the root",
            ));
        }
        self.tree.directory_mut(directory)?.attributes = attributes;
        Ok(())
    }

    /// Starts a file; its data follows.
    pub fn file(
        &mut self,
        parent: Node,
        name: &[u8],
        attributes: Attributes,
    ) -> Result<FileWriter<'_>> {
        self.tree.check_name(parent, name)?;
        let xattrs = format::xattrs(&attributes)?;
        let start = self.out.next_block()?;
        Ok(FileWriter { writer: self, parent, name: name.to_vec(), attributes, xattrs, start })
    }

    /// Creates a file with all data of a reader.
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

    /// Creates a symbolic link.
    pub fn symlink(
        &mut self,
        parent: Node,
        name: &[u8],
        attributes: &Attributes,
        target: &[u8],
    ) -> Result<Node> {
        if target.is_empty() || target.len() >= BLOCK as usize || target.contains(&0) {
            return Err(Error::new(ErrorKind::InvalidInput, "an empty or too long symlink target"));
        }
        self.tree.check_name(parent, name)?;
        let xattrs = format::xattrs(attributes)?;
        let start = self.out.next_block()?;
        self.out.append(target)?;
        // The mode of a symlink is not used for access checks.
        let mode = S_IFLNK | 0o777;
        self.leaf(parent, name, InodeType::Symlink, mode, attributes, &xattrs, start)
    }

    /// Creates a device node, FIFO or socket.
    pub fn special(
        &mut self,
        parent: Node,
        name: &[u8],
        attributes: &Attributes,
        special: Special,
    ) -> Result<Node> {
        self.tree.check_name(parent, name)?;
        let (kind, bits, place) = special.parts();
        let xattrs = format::xattrs(attributes)?;
        let mode = bits | attributes.mode & 0o7777;
        let inode = ErofsInode {
            layout: DataLayout::Plain,
            mode,
            attributes,
            size: 0,
            place,
            links: 1,
            xattrs: &xattrs,
        };
        let number = self.put_inode(&inode, &[])?;
        let leaf = LeafNode { number, kind, links: 1, blocks: (0, 0) };
        let node = self.tree.add(TreeNode::Leaf(leaf))?;
        self.tree.name(parent, name, node)?;
        Ok(node)
    }

    /// Creates a hard link to a file.
    pub fn link(&mut self, parent: Node, name: &[u8], node: Node) -> Result<()> {
        self.tree.check_name(parent, name)?;
        let leaf = self
            .tree
            .leaf(node)
            .ok_or_else(|| Error::new(ErrorKind::InvalidInput, "a hard link to a directory"))?;
        leaf.links += 1;
        self.tree.name(parent, name, node)
    }

    /// The node with this name in a directory.
    pub fn find(&self, parent: Node, name: &[u8]) -> Option<Node> {
        self.tree.directory(parent).ok()?.entries.get(name).copied()
    }

    /// Whether the node is a directory.
    pub fn is_directory(&self, node: Node) -> bool {
        self.tree.directory(node).is_ok()
    }

    /// Parent of a directory; the root is its own parent.
    pub fn parent(&self, directory: Node) -> Option<Node> {
        self.tree.directory(directory).ok().map(|directory| directory.parent)
    }

    /// Entries of a directory, sorted by name.
    pub fn entries(&self, directory: Node) -> impl Iterator<Item = (&[u8], Node)> {
        let entries = self.tree.directory(directory).ok().map(|directory| &directory.entries);
        entries.into_iter().flatten().map(|(name, node)| (name.as_ref(), *node))
    }

    /// Removes an entry with everything below it. Returns whether it existed.
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

    /// Removes a name but keeps the node, for `attach`.
    pub fn take(&mut self, parent: Node, name: &[u8]) -> Option<Node> {
        self.tree.directory_mut(parent).ok()?.entries.remove(name)
    }

    /// Removes all names of a directory but keeps their nodes, like `take`.
    pub fn take_all(&mut self, parent: Node) -> Vec<(Box<[u8]>, Node)> {
        let directory = self.tree.directory_mut(parent);
        directory.map_or_else(
            |_| Vec::new(),
            |directory| std::mem::take(&mut directory.entries).into_iter().collect(),
        )
    }

    /// Names a detached node. A directory must not be attached below itself.
    pub fn attach(&mut self, parent: Node, name: &[u8], node: Node) -> Result<()> {
        self.tree.name(parent, name, node)
    }

    /// The metadata of a directory.
    pub fn attributes(&self, directory: Node) -> Option<&Attributes> {
        self.tree.directory(directory).ok().map(|directory| &directory.attributes)
    }

    /// Writes the inode of data that was appended from block `start` on.
    #[expect(clippy::too_many_arguments, reason = "what an inode is made of")]
    fn leaf(
        &mut self,
        parent: Node,
        name: &[u8],
        kind: InodeType,
        mode: u16,
        attributes: &Attributes,
        xattrs: &[u8],
        start: u32,
    ) -> Result<Node> {
        let size = self.out.position() - u64::from(start) * BLOCK;
        let mut rest = self.out.take_tail();
        let mut layout = DataLayout::Inline;
        if rest.is_empty() || INODE + xattrs.len() + rest.len() > BLOCK as usize {
            layout = DataLayout::Plain;
            self.out.append(&rest)?;
            self.out.fill()?;
            rest.clear();
        }
        let blocks = self.out.next_block()? - start;
        let place = if blocks > 0 { start } else { 0 };
        let inode = ErofsInode { layout, mode, attributes, size, place, links: 1, xattrs };
        let number = self.put_inode(&inode, &rest)?;
        let leaf = LeafNode { number, kind, links: 1, blocks: (place, blocks) };
        let node = self.tree.add(TreeNode::Leaf(leaf))?;
        self.tree.name(parent, name, node)?;
        Ok(node)
    }

    /// Finds space for an inode and its inline data. Returns the inode number.
    fn put_inode(&mut self, inode: &ErofsInode<'_>, rest: &[u8]) -> Result<u64> {
        let length = INODE + inode.xattrs.len() + rest.len();
        if length > BLOCK as usize {
            // Only with unusually large extended attributes.
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

    /// Writes the directories and the first block. `uuid` is shown by some tools, and should depend
    /// on the content.
    pub fn finish(mut self, uuid: [u8; 16]) -> Result<FinishedDisk> {
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
        let placements = self.place_directories()?;
        inodes += placements.len() as u64;
        let root = self.put_directories(&placements)?;
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
        Ok(FinishedDisk { file: self.out.finish()?, size, directories: directories..size, unused })
    }

    /// Assigns blocks and inode numbers to all directories: first all blocks, then all inodes. The
    /// root is first; its inode is in the first block.
    fn place_directories(&mut self) -> Result<Vec<DirPlacement>> {
        let mut placements = Vec::new();
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
                true => DataLayout::Inline,
                false => DataLayout::Plain,
            };
            if layout == DataLayout::Plain {
                count += 1;
                rest = 0;
            }
            let length = INODE + xattrs + rest;
            let links = 2 + u32::try_from(subdirectories).unwrap_or(u32::MAX - 2);
            placements.push(DirPlacement {
                node,
                start: block,
                count,
                size,
                layout,
                length,
                links,
            });
            block += count;
        }
        let mut at = block * BLOCK;
        for place in &placements {
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
        Ok(placements)
    }

    /// Writes the directories to their blocks. Returns the encoded root inode.
    fn put_directories(&mut self, placements: &[DirPlacement]) -> Result<Vec<u8>> {
        for place in placements {
            let entries = self.dirents(place.node)?;
            let blocks = format::dirent_blocks(&entries).take(place.count as usize);
            let blocks: Vec<Vec<u8>> = blocks.map(format::encode_dirents).collect();
            for bytes in blocks {
                self.out.append(&bytes)?;
                self.out.fill()?;
            }
        }
        let mut root = Vec::new();
        for place in placements {
            let directory = self.tree.directory(place.node)?;
            let inode = ErofsInode {
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
            if place.layout == DataLayout::Inline {
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

    /// All entries of a directory with `.` and `..`, sorted.
    fn dirents(&self, node: Node) -> Result<Vec<ErofsDirent<'_>>> {
        let number = |node: Node| self.tree.directory(node).map(|directory| directory.number);
        let directory = self.tree.directory(node)?;
        let mut all = Vec::with_capacity(directory.entries.len() + 2);
        let kind = InodeType::Directory;
        all.push(ErofsDirent { name: b".", number: directory.number, kind });
        all.push(ErofsDirent { name: b"..", number: number(directory.parent)?, kind });
        for (name, node) in &directory.entries {
            all.push(match self.tree.item(*node) {
                TreeNode::Leaf(leaf) => ErofsDirent { name, number: leaf.number, kind: leaf.kind },
                _ => ErofsDirent { name, number: number(*node)?, kind },
            });
        }
        all.sort_by_key(|entry| entry.name);
        Ok(all)
    }
}

/// Blocks and inode space of a directory.
#[derive(Debug)]
struct DirPlacement {
    node: Node,
    /// First block, and number of blocks.
    start: u64,
    count: u64,
    size: u64,
    layout: DataLayout,
    /// Size of the inode with inline data, in bytes.
    length: usize,
    links: u32,
}

/// A file whose data is being written. It exists once `end` is called.
#[derive(Debug)]
pub struct FileWriter<'a> {
    writer: &'a mut Writer,
    parent: Node,
    name: Vec<u8>,
    attributes: Attributes,
    xattrs: Vec<u8>,
    start: u32,
}

impl FileWriter<'_> {
    /// Appends data to the file.
    pub fn write(&mut self, data: &[u8]) -> Result<()> {
        self.writer.out.append(data)
    }

    /// Appends zeros. Many of them become a hole in the disk file.
    pub fn skip(&mut self, count: u64) -> Result<()> {
        self.writer.out.skip(count)
    }

    /// Number of bytes written so far.
    pub fn size(&self) -> u64 {
        self.writer.out.position() - u64::from(self.start) * BLOCK
    }

    /// Completes the file and creates its entry.
    pub fn end(self) -> Result<Node> {
        let mode = S_IFREG | self.attributes.mode & 0o7777;
        self.writer.leaf(
            self.parent,
            &self.name,
            InodeType::File,
            mode,
            &self.attributes,
            &self.xattrs,
            self.start,
        )
    }
}
