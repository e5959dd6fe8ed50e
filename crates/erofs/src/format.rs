//! On-disk structures of EROFS: superblock, inodes, extended attributes and directories, as in
//! fs/erofs/erofs_fs.h of Linux. Only extended inodes and uncompressed data are written.

use crate::{Attributes, BLOCK, Special};
use std::io::{Error, ErrorKind, Result};

/// Offset of the superblock, in bytes.
pub(crate) const SUPER_AT: usize = 1024;
/// Offset of the root inode, after the superblock. Its number has 16 bits, so it must be near the
/// start.
pub(crate) const ROOT_AT: usize = SUPER_AT + 128;
/// Size of an extended inode, in bytes.
pub(crate) const INODE: usize = 64;
/// Offset of the link count in an inode.
pub(crate) const LINKS_AT: u64 = 44;
/// Unit of inode numbers, in bytes.
pub(crate) const SLOT: u64 = 32;

const MAGIC: u32 = 0xe0f5_e1e2;
/// Feature flag: the superblock has a checksum.
const CHECKSUM: u32 = 1;

pub(crate) const S_IFREG: u16 = 0o100_000;
pub(crate) const S_IFDIR: u16 = 0o040_000;
pub(crate) const S_IFLNK: u16 = 0o120_000;

/// File type in a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum InodeType {
    File = 1,
    Directory = 2,
    CharDevice = 3,
    BlockDevice = 4,
    Fifo = 5,
    Socket = 6,
    Symlink = 7,
}

impl Special {
    /// File type, mode bits and device number in the encoding of the kernel.
    pub(crate) fn parts(self) -> (InodeType, u16, u32) {
        let number =
            |major: u32, minor: u32| (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
        match self {
            Self::CharDevice(major, minor) => {
                (InodeType::CharDevice, 0o020_000, number(major, minor))
            }
            Self::BlockDevice(major, minor) => {
                (InodeType::BlockDevice, 0o060_000, number(major, minor))
            }
            Self::Fifo => (InodeType::Fifo, 0o010_000, 0),
            Self::Socket => (InodeType::Socket, 0o140_000, 0),
        }
    }
}

/// Where the data of an inode is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataLayout {
    /// All data is in blocks.
    Plain,
    /// Whole blocks first; the tail follows the inode.
    Inline,
}

/// One inode with its extended attributes, without inline data.
pub(crate) struct ErofsInode<'a> {
    pub(crate) layout: DataLayout,
    /// Mode with the file type bits.
    pub(crate) mode: u16,
    pub(crate) attributes: &'a Attributes,
    pub(crate) size: u64,
    /// First block of the data, or the device number.
    pub(crate) place: u32,
    pub(crate) links: u32,
    /// Encoded extended attributes; empty if there are none.
    pub(crate) xattrs: &'a [u8],
}

impl ErofsInode<'_> {
    pub(crate) fn encode(&self, number: u64) -> Vec<u8> {
        let layout = match self.layout {
            DataLayout::Plain => 0,
            DataLayout::Inline => 2,
        };
        let icount = match self.xattrs.len() {
            0 => 0,
            len => (len - XATTR_HEADER) / 4 + 1,
        };
        let mut bytes = Vec::with_capacity(INODE + self.xattrs.len());
        bytes.extend_from_slice(&(1u16 | layout << 1).to_le_bytes());
        bytes.extend_from_slice(&(icount as u16).to_le_bytes());
        bytes.extend_from_slice(&self.mode.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.size.to_le_bytes());
        bytes.extend_from_slice(&self.place.to_le_bytes());
        // Only systems with 32-bit inode numbers use this one.
        bytes.extend_from_slice(&(number as u32).to_le_bytes());
        bytes.extend_from_slice(&self.attributes.uid.to_le_bytes());
        bytes.extend_from_slice(&self.attributes.gid.to_le_bytes());
        bytes.extend_from_slice(&self.attributes.mtime.0.to_le_bytes());
        bytes.extend_from_slice(&self.attributes.mtime.1.to_le_bytes());
        bytes.extend_from_slice(&self.links.to_le_bytes());
        bytes.resize(INODE, 0);
        bytes.extend_from_slice(self.xattrs);
        bytes
    }
}

/// Size of the header of inline extended attributes.
const XATTR_HEADER: usize = 12;
/// Limit of all attributes of an inode: a 16-bit count of four-byte units.
const XATTRS_LIMIT: usize = XATTR_HEADER + 4 * (u16::MAX as usize - 1);

/// Index of the name prefix, and the rest of the name; none for other prefixes.
pub(crate) fn xattr_index(name: &[u8]) -> Option<(u8, &[u8])> {
    let whole: [(u8, &[u8]); 2] =
        [(2, b"system.posix_acl_access"), (3, b"system.posix_acl_default")];
    let starts: [(u8, &[u8]); 3] = [(1, b"user."), (4, b"trusted."), (6, b"security.")];
    if let Some((index, _)) = whole.iter().find(|(_, known)| *known == name) {
        return Some((*index, b""));
    }
    let found = starts.iter().find_map(|(index, start)| Some((*index, name.strip_prefix(*start)?)));
    found.filter(|(_, rest)| !rest.is_empty() && name.len() <= 255 && !name.contains(&0))
}

/// Encodes extended attributes as they follow an inode; empty if there are none.
pub(crate) fn xattrs(attributes: &Attributes) -> Result<Vec<u8>> {
    if attributes.xattrs.is_empty() {
        return Ok(Vec::new());
    }
    let wrong = |text: &'static str| Error::new(ErrorKind::InvalidInput, text);
    let mut sorted: Vec<_> = attributes.xattrs.iter().collect();
    sorted.sort();
    if sorted.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(wrong("a duplicate extended attribute"));
    }
    let mut bytes = vec![0; XATTR_HEADER];
    for (name, value) in sorted {
        let (index, rest) = xattr_index(name).ok_or_else(|| {
            wrong("an extended attribute with a prefix that EROFS does not support")
        })?;
        let size = u16::try_from(value.len())
            .map_err(|_| wrong("an extended attribute of more than 64 KiB"))?;
        bytes.extend_from_slice(&[rest.len() as u8, index]);
        bytes.extend_from_slice(&size.to_le_bytes());
        bytes.extend_from_slice(rest);
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }
    match bytes.len() > XATTRS_LIMIT {
        true => Err(wrong("more than 256 KiB of extended attributes")),
        false => Ok(bytes),
    }
}

/// One entry of a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErofsDirent<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) number: u64,
    pub(crate) kind: InodeType,
}

const DIRENT: usize = 12;

/// Splits sorted entries into directory blocks.
pub(crate) fn dirent_blocks<'a, 'b>(
    mut entries: &'b [ErofsDirent<'a>],
) -> impl Iterator<Item = &'b [ErofsDirent<'a>]> {
    std::iter::from_fn(move || {
        let mut used = 0;
        let fits = entries.iter().take_while(|entry| {
            used += DIRENT + entry.name.len();
            used <= BLOCK as usize
        });
        let count = fits.count();
        let (block, rest) = entries.split_at(count);
        entries = rest;
        (count > 0).then_some(block)
    })
}

/// Size of a directory block without padding, in bytes.
pub(crate) fn dirent_bytes(block: &[ErofsDirent<'_>]) -> usize {
    block.iter().map(|entry| DIRENT + entry.name.len()).sum()
}

/// Encodes a directory block without padding.
pub(crate) fn encode_dirents(block: &[ErofsDirent<'_>]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    let mut at = DIRENT * block.len();
    for entry in block {
        bytes.extend_from_slice(&entry.number.to_le_bytes());
        bytes.extend_from_slice(&(at as u16).to_le_bytes());
        bytes.extend_from_slice(&[entry.kind as u8, 0]);
        at += entry.name.len();
    }
    for entry in block {
        bytes.extend_from_slice(entry.name);
    }
    bytes
}

/// Writes the superblock into the first block. The checksum covers the rest of that block, too.
pub(crate) fn put_superblock(first: &mut [u8], inodes: u64, blocks: u32, uuid: [u8; 16]) {
    let root = (ROOT_AT as u64 / SLOT) as u16;
    let mut put = |at: usize, bytes: &[u8]| {
        first[SUPER_AT + at..SUPER_AT + at + bytes.len()].copy_from_slice(bytes);
    };
    put(0, &MAGIC.to_le_bytes());
    put(8, &CHECKSUM.to_le_bytes());
    put(12, &[BLOCK.trailing_zeros() as u8]);
    put(14, &root.to_le_bytes());
    put(16, &inodes.to_le_bytes());
    put(36, &blocks.to_le_bytes());
    put(48, &uuid);
    let sum = crc32c(&first[SUPER_AT..]);
    first[SUPER_AT + 4..SUPER_AT + 8].copy_from_slice(&sum.to_le_bytes());
}

/// CRC32C without the final inversion.
fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            (sum >> 1) ^ (0x82f6_3b78 & 0u32.wrapping_sub(sum & 1))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnolis() {
        assert_eq!(!crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn device_numbers_are_packed_as_the_kernel_packs_them() {
        assert_eq!(Special::CharDevice(1, 3).parts().2, 0x103);
        assert_eq!(Special::BlockDevice(259, 0x12345).parts().2, 0x1231_0345);
    }

    #[test]
    fn only_names_that_have_a_place_are_taken() {
        assert_eq!(xattr_index(b"user.a"), Some((1, b"a".as_slice())));
        assert_eq!(xattr_index(b"security.capability"), Some((6, b"capability".as_slice())));
        assert_eq!(xattr_index(b"system.posix_acl_default"), Some((3, b"".as_slice())));
        for name in [b"system.nfs4_acl".as_slice(), b"user.", b"plain", b"", b"user.a\0b"] {
            assert_eq!(xattr_index(name), None);
        }
    }

    #[test]
    fn names_fill_blocks_and_none_is_lost() {
        let names: Vec<Vec<u8>> = (0..1000).map(|n| format!("{n:0>200}").into_bytes()).collect();
        let entries: Vec<ErofsDirent<'_>> = names
            .iter()
            .map(|name| ErofsDirent { name, number: 1, kind: InodeType::File })
            .collect();
        let blocks: Vec<_> = dirent_blocks(&entries).collect();
        assert!(blocks.iter().all(|block| encode_dirents(block).len() == dirent_bytes(block)));
        assert!(blocks.iter().all(|block| dirent_bytes(block) <= BLOCK as usize));
        assert_eq!(blocks.iter().map(|block| block.len()).sum::<usize>(), 1000);
    }
}
