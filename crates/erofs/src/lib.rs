//! Writes EROFS disks: read-only file systems that a guest's kernel mounts (Linux 5.15 and newer).
//!
//! Nothing is compressed, so that a page of a file is a page of the disk. Data of files goes out as
//! it comes; only names and what they lead to are held in memory until the end. The same calls give
//! the same bytes. This crate does not read disks, and knows nothing of images: who may bring what
//! is decided before.
//!
//! ```no_run
//! # let file = std::fs::File::create("disk.erofs")?;
//! use msb_erofs::{Attributes, Writer};
//!
//! let mut disk = Writer::new(file)?;
//! let bin = disk.directory(disk.root(), b"bin", Attributes::directory())?;
//! disk.file_of(bin, b"init", Attributes::program(), &mut b"#!/bin/sh\n".as_slice())?;
//! disk.finish([0; 16])?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod format;
mod output;
#[cfg(test)]
mod tests;
mod tree;
mod writer;

pub use tree::Node;
pub use writer::{Finished, Pouring, Writer};

/// The unit that disks are made of.
pub const BLOCK: u64 = 4096;

/// What an entry has beside its name and its contents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Permissions, with the bits for other users and groups: the lowest twelve bits count.
    pub mode: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// When it was changed: seconds since 1970 and nanoseconds.
    pub mtime: (i64, u32),
    /// Extended attributes with their full names, each once.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// A directory of root that everybody may read.
    pub fn directory() -> Self {
        Self { mode: 0o755, ..Self::default() }
    }

    /// A program of root that everybody may run.
    pub fn program() -> Self {
        Self { mode: 0o755, ..Self::default() }
    }

    /// A file of root that everybody may read.
    pub fn file() -> Self {
        Self { mode: 0o644, ..Self::default() }
    }
}

/// What is neither a file nor a directory nor a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// A character device: its major and minor number.
    CharDevice(u32, u32),
    /// A block device: its major and minor number.
    BlockDevice(u32, u32),
    /// A named pipe.
    Fifo,
    /// A socket that nobody listens at.
    Socket,
}

/// Whether a disk can hold an extended attribute of this name.
pub fn holds_xattr(name: &[u8]) -> bool {
    format::xattr_index(name).is_some()
}
