//! Makes empty ext4 disks for what a sandbox writes.
//!
//! A disk is a sparse file: of ten gigabytes some tens of kilobytes are written, because everything
//! that a file system must find empty is a hole already, and groups that nothing uses are marked as
//! never touched. There is a journal, so that a disk mounts after whoever wrote it was killed. Only
//! this one kind of disk can be made, and nothing is read (Linux 4.x and newer mount it).

mod bytes;
mod inode;
mod layout;
#[cfg(test)]
mod tests;

use bytes::{Record, crc32c};
use inode::{Inode, directory_block};
use layout::{Group, INODES_PER_BLOCK, Layout};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;

/// The unit of a disk. Others would bring nothing: a page of memory is a block.
pub const BLOCK: u64 = 4096;

/// The smallest disk that can be made: less than the journal and the tables would leave nothing.
pub const SMALLEST: u64 = 8 << 20;

/// The largest disk that can be made: blocks are counted with 32 bits.
pub const LARGEST: u64 = (u32::MAX as u64) * BLOCK;

/// What tells one disk from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// Should be random.
    pub uuid: [u8; 16],
    /// When it was made: seconds since 1970.
    pub made: u32,
}

const ROOT: u32 = 2;
const JOURNAL: u32 = 8;
/// The first that is not reserved; e2fsck wants this directory to be there.
const LOST_AND_FOUND: u32 = 11;

/// Makes an empty file a disk of this size, less what is no whole block.
pub fn format(file: &File, size: u64, identity: Identity) -> Result<()> {
    if !(SMALLEST..=LARGEST).contains(&size) {
        return Err(Error::new(ErrorKind::InvalidInput, "a disk has 8 MiB to 16 TiB"));
    }
    let layout = Layout::new(size);
    let seed = crc32c(u32::MAX, &identity.uuid);
    file.set_len(size - size % BLOCK)?;
    let put = |block: u64, bytes: &[u8]| file.write_all_at(bytes, block * BLOCK);

    let mut descriptors = Vec::with_capacity(layout.groups.len() * 32);
    for group in &layout.groups {
        descriptors.extend_from_slice(&descriptor(&layout, group, seed));
        if let Some(bitmap) = layout.block_bitmap(group) {
            put(group.block_bitmap, &bitmap)?;
        }
    }
    put(layout.groups[0].inode_bitmap, &layout.inode_bitmap(LOST_AND_FOUND))?;
    put(layout.groups[0].inode_table, &first_inodes(&layout, seed, identity.made))?;
    let (names, below) = ([(ROOT, "."), (ROOT, ".."), (LOST_AND_FOUND, "lost+found")], ROOT);
    put(layout.root, &directory_block(&names, below, seed))?;
    let (names, below) = ([(LOST_AND_FOUND, "."), (ROOT, "..")], LOST_AND_FOUND);
    put(layout.lost_and_found, &directory_block(&names, below, seed))?;
    put(layout.journal, &journal_start(&layout, &identity))?;
    put(1, &descriptors)?;
    // Last, so that half a disk is none.
    file.write_all_at(&superblock(&layout, &identity), 1024)
}

/// What is known of one group of blocks.
fn descriptor(layout: &Layout, group: &Group, seed: u32) -> [u8; 32] {
    /// No bitmap of inodes was written, since none is used.
    const INODES_UNTOUCHED: u16 = 1;
    /// No bitmap of blocks was written, since none is used.
    const BLOCKS_UNTOUCHED: u16 = 2;
    /// The table of inodes is zero, so that nobody needs to write that.
    const ZEROED: u16 = 4;

    let first = group.number == 0;
    let mut flags = ZEROED;
    let mut record = Record::<32>::new();
    record.u32(0x00, group.block_bitmap as u32);
    record.u32(0x04, group.inode_bitmap as u32);
    record.u32(0x08, group.inode_table as u32);
    record.u16(0x0c, group.free as u16);
    let used = if first { LOST_AND_FOUND } else { 0 };
    record.u16(0x0e, (layout.inodes_per_group - used) as u16);
    record.u16(0x10, if first { 2 } else { 0 });
    match layout.block_bitmap(group) {
        Some(bitmap) => record.u16(0x18, crc32c(seed, &bitmap) as u16),
        None => flags |= BLOCKS_UNTOUCHED,
    }
    if first {
        let bitmap = layout.inode_bitmap(LOST_AND_FOUND);
        let counts = &bitmap[..layout.inodes_per_group as usize / 8];
        record.u16(0x1a, crc32c(seed, counts) as u16);
    } else {
        flags |= INODES_UNTOUCHED;
    }
    record.u16(0x12, flags);
    record.u16(0x1c, (layout.inodes_per_group - used) as u16);
    // Its own place counts as zero.
    let sum = crc32c(crc32c(seed, &group.number.to_le_bytes()), &record.0);
    record.u16(0x1e, sum as u16);
    record.0
}

/// The first block of inodes, which holds all that are used.
fn first_inodes(layout: &Layout, seed: u32, made: u32) -> Vec<u8> {
    let directory = |block: u64, links| Inode { mode: 0o040_755, links, start: block, blocks: 1 };
    let journal =
        Inode { mode: 0o100_600, links: 1, start: layout.journal, blocks: layout.journal_blocks };
    let private = Inode { mode: 0o040_700, ..directory(layout.lost_and_found, 2) };
    let mut table = vec![0; BLOCK as usize];
    let size = BLOCK as usize / INODES_PER_BLOCK as usize;
    for (number, inode) in
        [(ROOT, directory(layout.root, 3)), (JOURNAL, journal), (LOST_AND_FOUND, private)]
    {
        let at = (number as usize - 1) * size;
        table[at..at + size].copy_from_slice(&inode.encode(number, seed, made));
    }
    table
}

/// The superblock of an empty journal.
fn journal_start(layout: &Layout, identity: &Identity) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    let mut put = |at: usize, number: u32| {
        bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
    };
    put(0x00, 0xc03b_3998);
    // A superblock, in its second form.
    put(0x04, 4);
    put(0x0c, BLOCK as u32);
    put(0x10, layout.journal_blocks);
    // The first block of the log and the first transaction; where none began, nothing is replayed.
    put(0x14, 1);
    put(0x18, 1);
    // One file system uses it.
    put(0x40, 1);
    bytes[0x30..0x40].copy_from_slice(&identity.uuid);
    bytes
}

/// Features that old kernels may ignore.
mod compat {
    pub(super) const JOURNAL: u32 = 0x4;
    pub(super) const XATTR: u32 = 0x8;
    pub(super) const DIR_INDEX: u32 = 0x20;
    /// Copies of the superblock only where it says, which is nowhere: this disk is a file.
    pub(super) const SPARSE_SUPER2: u32 = 0x200;
}

/// Features that whoever does not know them must not mount.
mod incompat {
    pub(super) const FILETYPE: u32 = 0x2;
    pub(super) const EXTENTS: u32 = 0x40;
    pub(super) const FLEX_BG: u32 = 0x200;
}

/// Features that whoever does not know them must not write.
mod ro_compat {
    pub(super) const LARGE_FILE: u32 = 0x2;
    pub(super) const HUGE_FILE: u32 = 0x8;
    pub(super) const DIR_NLINK: u32 = 0x20;
    pub(super) const EXTRA_ISIZE: u32 = 0x40;
    pub(super) const METADATA_CSUM: u32 = 0x400;
}

fn superblock(layout: &Layout, identity: &Identity) -> [u8; 1024] {
    let groups = layout.groups.len() as u32;
    let free: u64 = layout.groups.iter().map(|group| group.free).sum();
    let mut record = Record::<1024>::new();
    record.u32(0x00, layout.inodes_per_group * groups);
    record.u32(0x04, layout.blocks as u32);
    record.u32(0x0c, free as u32);
    record.u32(0x10, layout.inodes_per_group * groups - LOST_AND_FOUND);
    // Two powers of two above 1024, for blocks and for clusters.
    record.u32(0x18, 2);
    record.u32(0x1c, 2);
    record.u32(0x20, layout::BLOCKS_PER_GROUP as u32);
    record.u32(0x24, layout::BLOCKS_PER_GROUP as u32);
    record.u32(0x28, layout.inodes_per_group);
    record.u32(0x30, identity.made);
    // Never to be checked for having been mounted often.
    record.u16(0x36, u16::MAX);
    record.u16(0x38, 0xef53);
    // Clean; goes on after errors, as mke2fs has it.
    record.u16(0x3a, 1);
    record.u16(0x3c, 1);
    record.u32(0x40, identity.made);
    record.u32(0x4c, 1);
    record.u32(0x54, LOST_AND_FOUND);
    record.u16(0x58, (BLOCK / u64::from(INODES_PER_BLOCK)) as u16);
    use {compat as c, incompat as i, ro_compat as r};
    record.u32(0x5c, c::JOURNAL | c::XATTR | c::DIR_INDEX | c::SPARSE_SUPER2);
    record.u32(0x60, i::FILETYPE | i::EXTENTS | i::FLEX_BG);
    let ro = r::LARGE_FILE | r::HUGE_FILE | r::DIR_NLINK | r::EXTRA_ISIZE | r::METADATA_CSUM;
    record.u32(0x64, ro);
    record.bytes(0x68, &identity.uuid);
    record.u32(0xe0, JOURNAL);
    // What directories hash names with, so that nobody can choose names that collide.
    record.bytes(0xec, &hash_seed(identity));
    // Half of MD4.
    record.bytes(0xfc, &[1]);
    // Extended attributes and access lists without asking for them.
    record.u32(0x100, 0xc);
    record.u32(0x108, identity.made);
    // What is behind the fixed part of inodes.
    record.u16(0x15c, 32);
    record.u16(0x15e, 32);
    // Names are hashed as signed bytes.
    record.u32(0x160, 1);
    record.bytes(0x174, &[layout::FLEX.trailing_zeros() as u8]);
    // Checksums are CRC32C.
    record.bytes(0x175, &[1]);
    record.u32(0x3fc, crc32c(u32::MAX, &record.0[..0x3fc]));
    record.0
}

/// Made of the identity, which is random already.
fn hash_seed(identity: &Identity) -> [u8; 16] {
    let mut seed = [0; 16];
    for (index, word) in seed.chunks_mut(4).enumerate() {
        let start = 0x6d73_6221u32.wrapping_add(index as u32);
        word.copy_from_slice(&crc32c(start, &identity.uuid).to_le_bytes());
    }
    seed
}
