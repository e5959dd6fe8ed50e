//! Inodes and directories.

use crate::BLOCK;
use crate::bytes::{Record, crc32c};

/// An inode of root whose data is in one piece.
pub(crate) struct Inode {
    pub(crate) mode: u16,
    pub(crate) links: u16,
    pub(crate) start: u64,
    /// No more than one piece can have, which is 32768.
    pub(crate) blocks: u32,
}

impl Inode {
    pub(crate) fn encode(&self, number: u32, seed: u32, made: u32) -> [u8; 256] {
        /// Its data is found by extents.
        const EXTENTS: u32 = 0x8_0000;
        let mut record = Record::<256>::new();
        record.u16(0x00, self.mode);
        record.u32(0x04, self.blocks * BLOCK as u32);
        for time in [0x08, 0x0c, 0x10, 0x90] {
            record.u32(time, made);
        }
        record.u16(0x1a, self.links);
        // Counted in sectors.
        record.u32(0x1c, self.blocks * (BLOCK / 512) as u32);
        record.u32(0x20, EXTENTS);
        // A header: its mark, one of four pieces, no tree. Then the piece.
        record.u16(0x28, 0xf30a);
        record.u16(0x2a, 1);
        record.u16(0x2c, 4);
        record.u16(0x38, self.blocks as u16);
        record.u32(0x3c, self.start as u32);
        record.u16(0x80, 32);
        // The places of the sum count as zero.
        let sum = crc32c(inode_seed(number, seed), &record.0);
        record.u16(0x7c, sum as u16);
        record.u16(0x82, (sum >> 16) as u16);
        record.0
    }
}

/// What all checksums of an inode begin with. Its generation is zero.
fn inode_seed(number: u32, seed: u32) -> u32 {
    crc32c(crc32c(seed, &number.to_le_bytes()), &[0; 4])
}

/// A directory whose entries are all directories, in one block.
pub(crate) fn directory_block(names: &[(u32, &str)], number: u32, seed: u32) -> Vec<u8> {
    /// Behind the entries, looking like one that is not used.
    const TAIL: usize = 12;
    const DIRECTORY: u8 = 2;
    let end = BLOCK as usize - TAIL;
    let mut bytes = Vec::with_capacity(BLOCK as usize);
    for (index, (inode, name)) in names.iter().enumerate() {
        let whole = (8 + name.len()).next_multiple_of(4);
        // The last one reaches up to the end.
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
