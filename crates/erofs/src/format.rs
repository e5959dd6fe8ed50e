//! The bytes of superblock, inodes, attributes and directories, as Linux defines them in
//! fs/erofs/erofs_fs.h. Only the long form of inodes, and only what is not compressed.

use crate::{Attributes, BLOCK, Special};
use std::io::{Error, ErrorKind, Result};

/// Where the superblock is.
pub(crate) const SUPER_AT: usize = 1024;
/// Where the root is: behind the superblock. Its number has 16 bits, so it must be near the start.
pub(crate) const ROOT_AT: usize = SUPER_AT + 128;
/// An inode of the long form.
pub(crate) const INODE: usize = 64;
/// Where the number of its names is in an inode.
pub(crate) const LINKS_AT: u64 = 44;
/// Inodes are counted in units of this.
pub(crate) const SLOT: u64 = 32;

const MAGIC: u32 = 0xe0f5_e1e2;
/// The superblock has a checksum.
const CHECKSUM: u32 = 1;

pub(crate) const S_IFREG: u16 = 0o100_000;
pub(crate) const S_IFDIR: u16 = 0o040_000;
pub(crate) const S_IFLNK: u16 = 0o120_000;

/// What kind of entry it is, as directories tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Type {
    File = 1,
    Directory = 2,
    CharDevice = 3,
    BlockDevice = 4,
    Fifo = 5,
    Socket = 6,
    Symlink = 7,
}

impl Special {
    /// Its type, the bits of its mode and its device number, as the kernel packs that.
    pub(crate) fn parts(self) -> (Type, u16, u32) {
        let number =
            |major: u32, minor: u32| (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
        match self {
            Self::CharDevice(major, minor) => (Type::CharDevice, 0o020_000, number(major, minor)),
            Self::BlockDevice(major, minor) => (Type::BlockDevice, 0o060_000, number(major, minor)),
            Self::Fifo => (Type::Fifo, 0o010_000, 0),
            Self::Socket => (Type::Socket, 0o140_000, 0),
        }
    }
}

/// Where the data of an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All in blocks.
    Plain,
    /// Whole blocks, if there are any; the rest follows the inode.
    Inline,
}

/// One inode with its attributes, without the data that may follow it.
pub(crate) struct Inode<'a> {
    pub(crate) layout: Layout,
    /// With the bits for the type.
    pub(crate) mode: u16,
    pub(crate) attributes: &'a Attributes,
    pub(crate) size: u64,
    /// The first block of the data, or the number of a device.
    pub(crate) place: u32,
    pub(crate) links: u32,
    /// Already encoded.
    pub(crate) xattrs: &'a [u8],
}

impl Inode<'_> {
    pub(crate) fn encode(&self, number: u64) -> Vec<u8> {
        let layout = match self.layout {
            Layout::Plain => 0,
            Layout::Inline => 2,
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
        // Only systems with short inode numbers look at this one.
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

/// What precedes the attributes of an inode.
const XATTR_HEADER: usize = 12;
/// They are counted with 16 bits, in units of four bytes.
const XATTRS_LIMIT: usize = XATTR_HEADER + 4 * (u16::MAX as usize - 1);

/// The number of a known start of a name, and the rest of the name.
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

/// Attributes as they follow an inode; nothing if there are none.
pub(crate) fn xattrs(attributes: &Attributes) -> Result<Vec<u8>> {
    if attributes.xattrs.is_empty() {
        return Ok(Vec::new());
    }
    let wrong = |text: &'static str| Error::new(ErrorKind::InvalidInput, text);
    let mut sorted: Vec<_> = attributes.xattrs.iter().collect();
    sorted.sort();
    if sorted.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(wrong("an extended attribute that is given twice"));
    }
    let mut bytes = vec![0; XATTR_HEADER];
    for (name, value) in sorted {
        let (index, rest) = xattr_index(name)
            .ok_or_else(|| wrong("an extended attribute that EROFS has no place for"))?;
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

/// One name in a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dirent<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) number: u64,
    pub(crate) kind: Type,
}

const DIRENT: usize = 12;

/// Names by the block that they are in. They must be sorted.
pub(crate) fn dirent_blocks<'a, 'b>(
    mut entries: &'b [Dirent<'a>],
) -> impl Iterator<Item = &'b [Dirent<'a>]> {
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

/// How many bytes a block of names takes.
pub(crate) fn dirent_bytes(block: &[Dirent<'_>]) -> usize {
    block.iter().map(|entry| DIRENT + entry.name.len()).sum()
}

/// A block of names, as long as it is; the rest of the block is to be zero.
pub(crate) fn encode_dirents(block: &[Dirent<'_>]) -> Vec<u8> {
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

/// Puts the superblock into the first block, whose other bytes its checksum covers too.
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

/// Castagnoli's checksum, without the last inversion.
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
        let entries: Vec<Dirent<'_>> =
            names.iter().map(|name| Dirent { name, number: 1, kind: Type::File }).collect();
        let blocks: Vec<_> = dirent_blocks(&entries).collect();
        assert!(blocks.iter().all(|block| encode_dirents(block).len() == dirent_bytes(block)));
        assert!(blocks.iter().all(|block| dirent_bytes(block) <= BLOCK as usize));
        assert_eq!(blocks.iter().map(|block| block.len()).sum::<usize>(), 1000);
    }
}
