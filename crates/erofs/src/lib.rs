//! Writes EROFS disks: read-only file systems for the kernel of a guest (Linux 5.15 and newer).
//!
//! Data is not compressed, so that a page of a file is a page of the disk. File data is written at
//! once; names and directories stay in memory until the end. Equal calls give equal bytes. The
//! crate does not read disks, and does not know about images: its caller decides what may be
//! written.
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

mod block_writer;
mod format;
mod node_tree;
#[cfg(test)]
mod tests;
mod writer;

pub use node_tree::Node;
pub use writer::{FileWriter, FinishedDisk, Writer};

/// Block size in bytes.
pub const BLOCK: u64 = 4096;

/// Metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Permission, set-id and sticky bits: the lowest twelve bits.
    pub mode: u16,
    /// User id of the owner.
    pub uid: u32,
    /// Group id of the owner.
    pub gid: u32,
    /// Modification time: seconds since 1970, and nanoseconds.
    pub mtime: (i64, u32),
    /// Extended attributes with full names; each name once.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Attributes {
    /// A directory of root with mode 0755.
    pub fn directory() -> Self {
        Self { mode: 0o755, ..Self::default() }
    }

    /// An executable file of root with mode 0755.
    pub fn program() -> Self {
        Self { mode: 0o755, ..Self::default() }
    }

    /// A regular file of root with mode 0644.
    pub fn file() -> Self {
        Self { mode: 0o644, ..Self::default() }
    }
}

/// A file that is not a regular file, directory or symlink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// A character device: its major and minor number.
    CharDevice(u32, u32),
    /// A block device: its major and minor number.
    BlockDevice(u32, u32),
    /// A FIFO (named pipe).
    Fifo,
    /// A Unix socket without a listener.
    Socket,
}

/// Whether EROFS can store an extended attribute with this name.
pub fn holds_xattr(name: &[u8]) -> bool {
    format::xattr_index(name).is_some()
}
