//! Encodes inodes and directory blocks.

use crate::BLOCK;
use crate::bytes::{FieldBuffer, crc32c};

/// An inode of root with a single extent.
pub(crate) struct Ext4Inode {
    pub(crate) mode: u16,
    pub(crate) links: u16,
    pub(crate) start: u64,
    /// Number of blocks; at most 32768, the limit of an extent.
    pub(crate) blocks: u32,
}

impl Ext4Inode {
    pub(crate) fn encode(&self, number: u32, seed: u32, created: u32) -> [u8; 256] {
        /// Inode flag: the data is mapped by extents.
        const EXTENTS: u32 = 0x8_0000;
        let mut fields = FieldBuffer::<256>::new();
        fields.u16(0x00, self.mode);
        fields.u32(0x04, self.blocks * BLOCK as u32);
        for time in [0x08, 0x0c, 0x10, 0x90] {
            fields.u32(time, created);
        }
        fields.u16(0x1a, self.links);
        // Block count in 512-byte sectors.
        fields.u32(0x1c, self.blocks * (BLOCK / 512) as u32);
        fields.u32(0x20, EXTENTS);
        // Extent header: magic, one of four entries, depth 0. Then the extent.
        fields.u16(0x28, 0xf30a);
        fields.u16(0x2a, 1);
        fields.u16(0x2c, 4);
        fields.u16(0x38, self.blocks as u16);
        fields.u32(0x3c, self.start as u32);
        fields.u16(0x80, 32);
        // The checksum counts its own fields as zero.
        let sum = crc32c(inode_seed(number, seed), &fields.0);
        fields.u16(0x7c, sum as u16);
        fields.u16(0x82, (sum >> 16) as u16);
        fields.0
    }
}

/// Seed of all checksums of an inode. Its generation is 0.
fn inode_seed(number: u32, seed: u32) -> u32 {
    crc32c(crc32c(seed, &number.to_le_bytes()), &[0; 4])
}

/// A one-block directory with subdirectories only.
pub(crate) fn directory_block(names: &[(u32, &str)], number: u32, seed: u32) -> Vec<u8> {
    /// Size of the checksum tail, which looks like an unused entry.
    const TAIL: usize = 12;
    const DIRECTORY: u8 = 2;
    let end = BLOCK as usize - TAIL;
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    for (index, (inode, name)) in names.iter().enumerate() {
        let whole = (8 + name.len()).next_multiple_of(4);
        // The last entry extends to the tail.
        let length = if index + 1 == names.len() { end - bytes.len() } else { whole };
        let next = bytes.len() + length;
        bytes.extend_from_slice(&inode.to_le_bytes());
        bytes.extend_from_slice(&(length as u16).to_le_bytes());
        bytes.extend_from_slice(&[name.len() as u8, DIRECTORY]);
        bytes.extend_from_slice(name.as_bytes());
        bytes.resize(next, 0);
    }
    let sum = crc32c(inode_seed(number, seed), &bytes);
    bytes.extend_from_slice(&[0, 0, 0, 0, TAIL as u8, 0, 0, 0xde]);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}
