//! Block layout of a disk.
//!
//! Block groups of 128 MiB form flexible groups of sixteen. The first group of each has the bitmaps
//! and inode tables of all sixteen. Group 0 has the superblock before them and the journal after
//! them.

use crate::BLOCK;

/// Blocks that one bitmap block can count.
pub(crate) const BLOCKS_PER_GROUP: u64 = 8 * BLOCK;
/// Number of groups in a flexible group.
pub(crate) const FLEX_GROUP_SIZE: u64 = 16;
/// An inode has 256 bytes.
pub(crate) const INODES_PER_BLOCK: u32 = 16;
/// One inode per 16 KiB, the default of mke2fs.
const BLOCKS_PER_INODE: u64 = 4;
/// A smaller last group is left out: its tables would take most of it.
const SMALLEST_GROUP: u64 = 1024;

pub(crate) struct BlockGroup {
    pub(crate) number: u32,
    /// First block, and number of blocks.
    first: u64,
    blocks: u64,
    pub(crate) block_bitmap: u64,
    pub(crate) inode_bitmap: u64,
    pub(crate) inode_table: u64,
    /// Number of free blocks. The used ones come first.
    pub(crate) free: u64,
    last: bool,
}

pub(crate) struct DiskLayout {
    pub(crate) blocks: u64,
    pub(crate) inodes_per_group: u32,
    pub(crate) groups: Vec<BlockGroup>,
    pub(crate) root: u64,
    pub(crate) lost_and_found: u64,
    pub(crate) journal: u64,
    pub(crate) journal_blocks: u32,
}

impl DiskLayout {
    pub(crate) fn new(size: u64) -> Self {
        let mut blocks = size / BLOCK;
        let rest = blocks % BLOCKS_PER_GROUP;
        if blocks > BLOCKS_PER_GROUP && rest < SMALLEST_GROUP {
            blocks -= rest;
        }
        let count = blocks.div_ceil(BLOCKS_PER_GROUP);
        let inodes = (blocks.min(BLOCKS_PER_GROUP) / BLOCKS_PER_INODE) as u32;
        let inodes_per_group = inodes - inodes % INODES_PER_BLOCK;
        let table = u64::from(inodes_per_group / INODES_PER_BLOCK);
        let descriptors = (count * 32).div_ceil(BLOCK);
        let journal_blocks = journal_blocks(blocks);

        let mut groups = Vec::new();
        let mut behind_tables = 0;
        for number in 0..count {
            let leader = number - number % FLEX_GROUP_SIZE;
            let together = FLEX_GROUP_SIZE.min(count - leader);
            let start = match leader {
                0 => 1 + descriptors,
                _ => leader * BLOCKS_PER_GROUP,
            };
            let (index, tables) = (number - leader, start + 2 * together);
            let first = number * BLOCKS_PER_GROUP;
            let size = BLOCKS_PER_GROUP.min(blocks - first);
            let end = tables + together * table;
            let used = match (number, leader) {
                (0, _) => {
                    behind_tables = end;
                    end + 2 + u64::from(journal_blocks)
                }
                (number, leader) if number == leader => end - first,
                _ => 0,
            };
            groups.push(BlockGroup {
                number: number as u32,
                first,
                blocks: size,
                block_bitmap: start + index,
                inode_bitmap: start + together + index,
                inode_table: tables + index * table,
                free: size - used,
                last: number + 1 == count,
            });
        }
        Self {
            blocks,
            inodes_per_group,
            groups,
            root: behind_tables,
            lost_and_found: behind_tables + 1,
            journal: behind_tables + 2,
            journal_blocks,
        }
    }

    /// The block bitmap of a group; none for unused groups, where the kernel computes it.
    pub(crate) fn block_bitmap(&self, group: &BlockGroup) -> Option<Vec<u8>> {
        debug_assert!(group.first + group.blocks <= self.blocks, "groups are inside of the disk");
        let used = group.blocks - group.free;
        // The bitmap of the last group is written, as in mke2fs: the group may be shorter.
        if used == 0 && !group.last {
            return None;
        }
        let mut bitmap = bits(used);
        let beyond = bits(group.blocks);
        bitmap.iter_mut().zip(beyond).for_each(|(byte, within)| *byte |= !within);
        Some(bitmap)
    }

    /// The inode bitmap of the first group.
    pub(crate) fn inode_bitmap(&self, used: u32) -> Vec<u8> {
        let mut bitmap = bits(used.into());
        let beyond = bits(self.inodes_per_group.into());
        bitmap.iter_mut().zip(beyond).for_each(|(byte, within)| *byte |= !within);
        bitmap
    }
}

/// A bitmap block with the first bits set.
fn bits(count: u64) -> Vec<u8> {
    let count = count as usize;
    let mut bytes = vec![0xff; count / 8];
    if !count.is_multiple_of(8) {
        bytes.push((1u8 << (count % 8)) - 1);
    }
    bytes.resize(BLOCK as usize, 0);
    bytes
}

/// Journal size as in mke2fs, at most 64 MiB: the journal is written completely over time, and
/// fills the holes of the file.
fn journal_blocks(blocks: u64) -> u32 {
    match blocks {
        ..32_768 => 1024,
        32_768..262_144 => 4096,
        262_144..524_288 => 8192,
        _ => 16_384,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_group_has_room_for_what_it_must_hold() {
        for size in [crate::MIN_SIZE, 127 << 20, 128 << 20, 132 << 20, 16 << 30, crate::MAX_SIZE] {
            let layout = DiskLayout::new(size);
            let group = &layout.groups[0];
            assert!(group.free < group.blocks && group.free > 100, "{size}");
            let last = layout.groups.last().unwrap();
            assert!(last.free <= last.blocks && last.blocks >= SMALLEST_GROUP, "{size}");
        }
    }

    #[test]
    fn a_rest_that_holds_no_group_is_left_out() {
        assert_eq!(DiskLayout::new((256 << 20) + BLOCK * 1023).blocks, 65_536);
        assert_eq!(DiskLayout::new((256 << 20) + BLOCK * 1024).blocks, 66_560);
    }
}
