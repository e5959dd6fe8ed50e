//! The directory tree in memory. Files are written at once, and only their inode numbers are kept.
//! Directories are kept completely, because their bytes depend on all inode numbers.

use crate::Attributes;
use crate::format::InodeType;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};

/// A file or directory of a disk that is being written. Files can have several hard links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub(crate) u32);

#[derive(Debug)]
pub(crate) struct DirNode {
    pub(crate) attributes: Attributes,
    /// Entries sorted as bytes, which is the order of the kernel's binary search.
    pub(crate) entries: BTreeMap<Box<[u8]>, Node>,
    pub(crate) parent: Node,
    /// Inode number; set when all directories are placed.
    pub(crate) number: u64,
}

/// A file that is written already.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafNode {
    pub(crate) number: u64,
    pub(crate) kind: InodeType,
    pub(crate) links: u32,
    /// First block and number of blocks; zero blocks if all data is inline.
    pub(crate) blocks: (u32, u32),
}

#[derive(Debug)]
pub(crate) enum TreeNode {
    Directory(Box<DirNode>),
    Leaf(LeafNode),
    /// Removed; its index is not reused.
    Removed,
}

#[derive(Debug)]
pub(crate) struct NodeTree {
    items: Vec<TreeNode>,
    /// Blocks of removed files.
    pub(crate) unused: Vec<(u32, u32)>,
}

pub(crate) const ROOT: Node = Node(0);

impl NodeTree {
    pub(crate) fn new() -> Self {
        let mut tree = Self { items: Vec::new(), unused: Vec::new() };
        tree.items.push(TreeNode::Directory(Box::new(DirNode {
            attributes: Attributes::directory(),
            entries: BTreeMap::new(),
            parent: ROOT,
            number: 0,
        })));
        tree
    }

    pub(crate) fn add(&mut self, item: TreeNode) -> Result<Node> {
        let node = u32::try_from(self.items.len())
            .map_err(|_| Error::new(ErrorKind::FileTooLarge, "a disk with too many files"))?;
        self.items.push(item);
        Ok(Node(node))
    }

    pub(crate) fn item(&self, node: Node) -> &TreeNode {
        &self.items[node.0 as usize]
    }

    pub(crate) fn leaf(&mut self, node: Node) -> Option<&mut LeafNode> {
        match &mut self.items[node.0 as usize] {
            TreeNode::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    pub(crate) fn leaves(&self) -> impl Iterator<Item = &LeafNode> {
        self.items.iter().filter_map(|item| match item {
            TreeNode::Leaf(leaf) if leaf.links > 0 => Some(leaf),
            _ => None,
        })
    }

    pub(crate) fn directory(&self, node: Node) -> Result<&DirNode> {
        match self.item(node) {
            TreeNode::Directory(directory) => Ok(directory),
            _ => Err(Error::new(
                ErrorKind::NotADirectory,
                "an entry below something that is not a directory",
            )),
        }
    }

    pub(crate) fn directory_mut(&mut self, node: Node) -> Result<&mut DirNode> {
        match &mut self.items[node.0 as usize] {
            TreeNode::Directory(directory) => Ok(directory),
            _ => Err(Error::new(
                ErrorKind::NotADirectory,
                "an entry below something that is not a directory",
            )),
        }
    }

    /// Fails if the name is invalid or exists already.
    pub(crate) fn check_name(&self, parent: Node, name: &[u8]) -> Result<()> {
        let wrong = name.is_empty()
            || name.len() > 255
            || matches!(name, b"." | b"..")
            || name.iter().any(|byte| matches!(byte, b'/' | 0));
        if wrong {
            return Err(Error::new(ErrorKind::InvalidInput, "an invalid file name"));
        }
        match self.directory(parent)?.entries.contains_key(name) {
            true => Err(Error::new(ErrorKind::AlreadyExists, "the name exists already")),
            false => Ok(()),
        }
    }

    pub(crate) fn name(&mut self, parent: Node, name: &[u8], node: Node) -> Result<()> {
        self.check_name(parent, name)?;
        if let TreeNode::Directory(directory) = &mut self.items[node.0 as usize] {
            directory.parent = parent;
        }
        self.directory_mut(parent)?.entries.insert(name.into(), node);
        Ok(())
    }

    /// Removes one link of a node; with the last one, everything below it.
    pub(crate) fn discard(&mut self, node: Node) {
        let mut left = vec![node];
        while let Some(node) = left.pop() {
            let item = &mut self.items[node.0 as usize];
            match item {
                TreeNode::Directory(directory) => {
                    left.extend(directory.entries.values());
                    *item = TreeNode::Removed;
                }
                TreeNode::Leaf(leaf) if leaf.links > 1 => leaf.links -= 1,
                TreeNode::Leaf(leaf) => {
                    if leaf.blocks.1 > 0 {
                        self.unused.push(leaf.blocks);
                    }
                    *item = TreeNode::Removed;
                }
                TreeNode::Removed => {}
            }
        }
    }
}
