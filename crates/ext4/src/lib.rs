//! Creates empty ext4 disks for the writable layer of microVMs.
//!
//! A disk is a sparse file: of 10 GiB some tens of KiB are written. Zeroed structures are holes,
//! and unused block groups are flagged as uninitialized. A journal lets the disk mount after its VM
//! was killed. Only this layout is supported, and nothing is read. Linux 4.x and newer mount it.

mod bytes;
mod inode;
mod layout;
#[cfg(test)]
mod tests;

use bytes::{FieldBuffer, crc32c};
use inode::{Ext4Inode, directory_block};
use layout::{BlockGroup, DiskLayout, INODES_PER_BLOCK};
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;

/// Block size in bytes; equal to the page size.
pub const BLOCK: u64 = 4096;

/// Smallest disk in bytes. Journal and tables would fill a smaller one.
pub const MIN_SIZE: u64 = 8 << 20;

/// Largest disk in bytes: block numbers have 32 bits.
pub const MAX_SIZE: u64 = (u32::MAX as u64) * BLOCK;

/// What distinguishes one disk from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskIdentity {
    /// UUID; should be random.
    pub uuid: [u8; 16],
    /// Time of creation, in seconds since 1970.
    pub created: u32,
}

const ROOT: u32 = 2;
const JOURNAL: u32 = 8;
/// First inode that is not reserved. e2fsck expects `lost+found` there.
const LOST_AND_FOUND: u32 = 11;

/// Formats an empty file as ext4 with this size, rounded down to blocks.
pub fn format(file: &File, size: u64, identity: DiskIdentity) -> Result<()> {
    if !(MIN_SIZE..=MAX_SIZE).contains(&size) {
        return Err(Error::new(ErrorKind::InvalidInput, "a disk has 8 MiB to 16 TiB"));
    }
    let layout = DiskLayout::new(size);
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
    put(layout.groups[0].inode_table, &first_inodes(&layout, seed, identity.created))?;
    let (names, below) = ([(ROOT, "."), (ROOT, ".."), (LOST_AND_FOUND, "lost+found")], ROOT);
    put(layout.root, &directory_block(&names, below, seed))?;
    let (names, below) = ([(LOST_AND_FOUND, "."), (ROOT, "..")], LOST_AND_FOUND);
    put(layout.lost_and_found, &directory_block(&names, below, seed))?;
    put(layout.journal, &journal_start(&layout, &identity))?;
    put(1, &descriptors)?;
    // The superblock is last, so that an incomplete disk does not mount.
    file.write_all_at(&superblock(&layout, &identity), 1024)
}

/// The descriptor of a block group.
fn descriptor(layout: &DiskLayout, group: &BlockGroup, seed: u32) -> [u8; 32] {
    /// Flag: the inode bitmap is not initialized.
    const INODES_UNTOUCHED: u16 = 1;
    /// Flag: the block bitmap is not initialized.
    const BLOCKS_UNTOUCHED: u16 = 2;
    /// Flag: the inode table is zeroed, so that the kernel need not do it.
    const ZEROED: u16 = 4;

    let first = group.number == 0;
    let mut flags = ZEROED;
    let mut fields = FieldBuffer::<32>::new();
    fields.u32(0x00, group.block_bitmap as u32);
    fields.u32(0x04, group.inode_bitmap as u32);
    fields.u32(0x08, group.inode_table as u32);
    fields.u16(0x0c, group.free as u16);
    let used = if first { LOST_AND_FOUND } else { 0 };
    fields.u16(0x0e, (layout.inodes_per_group - used) as u16);
    fields.u16(0x10, if first { 2 } else { 0 });
    match layout.block_bitmap(group) {
        Some(bitmap) => fields.u16(0x18, crc32c(seed, &bitmap) as u16),
        None => flags |= BLOCKS_UNTOUCHED,
    }
    if first {
        let bitmap = layout.inode_bitmap(LOST_AND_FOUND);
        let counts = &bitmap[..layout.inodes_per_group as usize / 8];
        fields.u16(0x1a, crc32c(seed, counts) as u16);
    } else {
        flags |= INODES_UNTOUCHED;
    }
    fields.u16(0x12, flags);
    fields.u16(0x1c, (layout.inodes_per_group - used) as u16);
    // The checksum counts its own field as zero.
    let sum = crc32c(crc32c(seed, &group.number.to_le_bytes()), &fields.0);
    fields.u16(0x1e, sum as u16);
    fields.0
}

/// The first block of the inode table, with all used inodes.
fn first_inodes(layout: &DiskLayout, seed: u32, created: u32) -> Vec<u8> {
    let directory =
        |block: u64, links| Ext4Inode { mode: 0o040_755, links, start: block, blocks: 1 };
    let journal = Ext4Inode {
        mode: 0o100_600,
        links: 1,
        start: layout.journal,
        blocks: layout.journal_blocks,
    };
    let private = Ext4Inode { mode: 0o040_700, ..directory(layout.lost_and_found, 2) };
    let mut table = vec![0; BLOCK as usize];
    let size = BLOCK as usize / INODES_PER_BLOCK as usize;
    for (number, inode) in
        [(ROOT, directory(layout.root, 3)), (JOURNAL, journal), (LOST_AND_FOUND, private)]
    {
        let at = (number as usize - 1) * size;
        table[at..at + size].copy_from_slice(&inode.encode(number, seed, created));
    }
    table
}

/// The superblock of an empty journal.
fn journal_start(layout: &DiskLayout, identity: &DiskIdentity) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    let mut put = |at: usize, number: u32| {
        bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
    };
    put(0x00, 0xc03b_3998);
    // Superblock version 2.
    put(0x04, 4);
    put(0x0c, BLOCK as u32);
    put(0x10, layout.journal_blocks);
    // First block of the log and first transaction id. The start of the log stays 0: nothing to
    // replay.
    put(0x14, 1);
    put(0x18, 1);
    // Number of file systems that use the journal.
    put(0x40, 1);
    bytes[0x30..0x40].copy_from_slice(&identity.uuid);
    bytes
}

/// Features that older kernels may ignore.
mod compat {
    pub(super) const JOURNAL: u32 = 0x4;
    pub(super) const XATTR: u32 = 0x8;
    pub(super) const DIR_INDEX: u32 = 0x20;
    /// Backup superblocks only where listed, which is nowhere: the disk is a file.
    pub(super) const SPARSE_SUPER2: u32 = 0x200;
}

/// Features without which a kernel must not mount the disk.
mod incompat {
    pub(super) const FILETYPE: u32 = 0x2;
    pub(super) const EXTENTS: u32 = 0x40;
    pub(super) const FLEX_BG: u32 = 0x200;
}

/// Features without which a kernel must not write to the disk.
mod ro_compat {
    pub(super) const LARGE_FILE: u32 = 0x2;
    pub(super) const HUGE_FILE: u32 = 0x8;
    pub(super) const DIR_NLINK: u32 = 0x20;
    pub(super) const EXTRA_ISIZE: u32 = 0x40;
    pub(super) const METADATA_CSUM: u32 = 0x400;
}

fn superblock(layout: &DiskLayout, identity: &DiskIdentity) -> [u8; 1024] {
    let groups = layout.groups.len() as u32;
    let free: u64 = layout.groups.iter().map(|group| group.free).sum();
    let mut fields = FieldBuffer::<1024>::new();
    fields.u32(0x00, layout.inodes_per_group * groups);
    fields.u32(0x04, layout.blocks as u32);
    fields.u32(0x0c, free as u32);
    fields.u32(0x10, layout.inodes_per_group * groups - LOST_AND_FOUND);
    // Block and cluster size: 1024 << 2.
    fields.u32(0x18, 2);
    fields.u32(0x1c, 2);
    fields.u32(0x20, layout::BLOCKS_PER_GROUP as u32);
    fields.u32(0x24, layout::BLOCKS_PER_GROUP as u32);
    fields.u32(0x28, layout.inodes_per_group);
    fields.u32(0x30, identity.created);
    // No check after a number of mounts.
    fields.u16(0x36, u16::MAX);
    fields.u16(0x38, 0xef53);
    // Clean; continue on errors, as in mke2fs.
    fields.u16(0x3a, 1);
    fields.u16(0x3c, 1);
    fields.u32(0x40, identity.created);
    fields.u32(0x4c, 1);
    fields.u32(0x54, LOST_AND_FOUND);
    fields.u16(0x58, (BLOCK / u64::from(INODES_PER_BLOCK)) as u16);
    use {compat as c, incompat as i, ro_compat as r};
    fields.u32(0x5c, c::JOURNAL | c::XATTR | c::DIR_INDEX | c::SPARSE_SUPER2);
    fields.u32(0x60, i::FILETYPE | i::EXTENTS | i::FLEX_BG);
    let ro = r::LARGE_FILE | r::HUGE_FILE | r::DIR_NLINK | r::EXTRA_ISIZE | r::METADATA_CSUM;
    fields.u32(0x64, ro);
    fields.bytes(0x68, &identity.uuid);
    fields.u32(0xe0, JOURNAL);
    // Seed of directory hashes, so that colliding names cannot be chosen.
    fields.bytes(0xec, &hash_seed(identity));
    // Hash version: half MD4.
    fields.bytes(0xfc, &[1]);
    // Default mount options: user_xattr and acl.
    fields.u32(0x100, 0xc);
    fields.u32(0x108, identity.created);
    // Extra size of inodes beyond 128 bytes.
    fields.u16(0x15c, 32);
    fields.u16(0x15e, 32);
    // Directory hashes use signed chars.
    fields.u32(0x160, 1);
    fields.bytes(0x174, &[layout::FLEX_GROUP_SIZE.trailing_zeros() as u8]);
    // Checksum type: CRC32C.
    fields.bytes(0x175, &[1]);
    fields.u32(0x3fc, crc32c(u32::MAX, &fields.0[..0x3fc]));
    fields.0
}

/// The hash seed, derived from the random UUID.
fn hash_seed(identity: &DiskIdentity) -> [u8; 16] {
    let mut seed = [0; 16];
    for (index, word) in seed.chunks_mut(4).enumerate() {
        let start = 0x6d73_6221u32.wrapping_add(index as u32);
        word.copy_from_slice(&crc32c(start, &identity.uuid).to_le_bytes());
    }
    seed
}
