//! Names and what they lead to. What can be written at once is written; of that only its number is
//! kept here. Directories are kept whole, because their bytes depend on all the others.

use crate::Attributes;
use crate::format::Type;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};

/// One entry of a disk that is being made. It has one name or, if it is no directory, several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Node(pub(crate) u32);

#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) attributes: Attributes,
    /// As bytes, which is the order that the kernel searches in.
    pub(crate) entries: BTreeMap<Box<[u8]>, Node>,
    pub(crate) parent: Node,
    /// Known when everything is.
    pub(crate) number: u64,
}

/// What is written already.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaf {
    pub(crate) number: u64,
    pub(crate) kind: Type,
    pub(crate) links: u32,
    /// Its blocks, if it has some: the first and how many.
    pub(crate) blocks: (u32, u32),
}

#[derive(Debug)]
pub(crate) enum Item {
    Directory(Box<Directory>),
    Leaf(Leaf),
    /// Was removed.
    Gone,
}

#[derive(Debug)]
pub(crate) struct Tree {
    items: Vec<Item>,
    /// Blocks that nothing leads to any more.
    pub(crate) unused: Vec<(u32, u32)>,
}

pub(crate) const ROOT: Node = Node(0);

impl Tree {
    pub(crate) fn new() -> Self {
        let mut tree = Self { items: Vec::new(), unused: Vec::new() };
        tree.items.push(Item::Directory(Box::new(Directory {
            attributes: Attributes::directory(),
            entries: BTreeMap::new(),
            parent: ROOT,
            number: 0,
        })));
        tree
    }

    pub(crate) fn add(&mut self, item: Item) -> Result<Node> {
        let node = u32::try_from(self.items.len())
            .map_err(|_| Error::new(ErrorKind::FileTooLarge, "a disk of too many files"))?;
        self.items.push(item);
        Ok(Node(node))
    }

    pub(crate) fn item(&self, node: Node) -> &Item {
        &self.items[node.0 as usize]
    }

    pub(crate) fn leaf(&mut self, node: Node) -> Option<&mut Leaf> {
        match &mut self.items[node.0 as usize] {
            Item::Leaf(leaf) => Some(leaf),
            _ => None,
        }
    }

    pub(crate) fn leaves(&self) -> impl Iterator<Item = &Leaf> {
        self.items.iter().filter_map(|item| match item {
            Item::Leaf(leaf) if leaf.links > 0 => Some(leaf),
            _ => None,
        })
    }

    pub(crate) fn directory(&self, node: Node) -> Result<&Directory> {
        match self.item(node) {
            Item::Directory(directory) => Ok(directory),
            _ => Err(Error::new(ErrorKind::NotADirectory, "a name below what is no directory")),
        }
    }

    pub(crate) fn directory_mut(&mut self, node: Node) -> Result<&mut Directory> {
        match &mut self.items[node.0 as usize] {
            Item::Directory(directory) => Ok(directory),
            _ => Err(Error::new(ErrorKind::NotADirectory, "a name below what is no directory")),
        }
    }

    /// Whether something can have this name here.
    pub(crate) fn vacant(&self, parent: Node, name: &[u8]) -> Result<()> {
        let wrong = name.is_empty()
            || name.len() > 255
            || matches!(name, b"." | b"..")
            || name.iter().any(|byte| matches!(byte, b'/' | 0));
        if wrong {
            return Err(Error::new(ErrorKind::InvalidInput, "a name that no file can have"));
        }
        match self.directory(parent)?.entries.contains_key(name) {
            true => Err(Error::new(ErrorKind::AlreadyExists, "a name that is taken")),
            false => Ok(()),
        }
    }

    pub(crate) fn name(&mut self, parent: Node, name: &[u8], node: Node) -> Result<()> {
        self.vacant(parent, name)?;
        if let Item::Directory(directory) = &mut self.items[node.0 as usize] {
            directory.parent = parent;
        }
        self.directory_mut(parent)?.entries.insert(name.into(), node);
        Ok(())
    }

    /// Gives up one name of a node, and with the last one all that was only below it.
    pub(crate) fn discard(&mut self, node: Node) {
        let mut left = vec![node];
        while let Some(node) = left.pop() {
            let item = &mut self.items[node.0 as usize];
            match item {
                Item::Directory(directory) => {
                    left.extend(directory.entries.values());
                    *item = Item::Gone;
                }
                Item::Leaf(leaf) if leaf.links > 1 => leaf.links -= 1,
                Item::Leaf(leaf) => {
                    if leaf.blocks.1 > 0 {
                        self.unused.push(leaf.blocks);
                    }
                    *item = Item::Gone;
                }
                Item::Gone => {}
            }
        }
    }
}
