//! The disk as it grows: bytes are appended in large pieces, and blocks that were left out are
//! filled in later.

use crate::BLOCK;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;

/// What is gathered before it is written: few calls, and little memory.
const GATHERED: usize = 1 << 20;

/// Blocks are counted with 32 bits; the last number has a meaning of its own.
const BLOCKS_LIMIT: u64 = u32::MAX as u64 - 1;

#[derive(Debug)]
pub(crate) struct Output {
    file: File,
    /// Where `gathered` belongs. Always a whole number of blocks.
    at: u64,
    gathered: Vec<u8>,
}

impl Output {
    pub(crate) fn new(file: File) -> Self {
        Self { file, at: 0, gathered: Vec::new() }
    }

    /// Where the next byte goes.
    pub(crate) fn position(&self) -> u64 {
        self.at + self.gathered.len() as u64
    }

    /// The block that comes next, behind whatever was appended.
    pub(crate) fn next_block(&mut self) -> Result<u32> {
        self.fill()?;
        let block = self.position() / BLOCK;
        u32::try_from(block).ok().filter(|_| block < BLOCKS_LIMIT).ok_or_else(|| {
            Error::new(ErrorKind::FileTooLarge, "a disk of more than 16 TiB cannot be made")
        })
    }

    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.gathered.len() >= GATHERED {
                self.flush()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(GATHERED - self.gathered.len()));
            self.gathered.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Appends zeros; where they are many, none is written.
    pub(crate) fn skip(&mut self, count: u64) -> Result<()> {
        let end = self.position().checked_add(count).filter(|end| end / BLOCK < BLOCKS_LIMIT);
        let end = end.ok_or_else(|| {
            Error::new(ErrorKind::FileTooLarge, "a disk of more than 16 TiB cannot be made")
        })?;
        if count > GATHERED as u64 {
            self.fill()?;
            self.flush()?;
            self.at = end - end % BLOCK;
        }
        while self.position() < end {
            let zeros = [0; BLOCK as usize];
            let some = (end - self.position()).min(BLOCK) as usize;
            self.append(&zeros[..some])?;
        }
        Ok(())
    }

    /// Fills up to a block.
    pub(crate) fn fill(&mut self) -> Result<()> {
        let missing = self.position().next_multiple_of(BLOCK) - self.position();
        self.append(&[0; BLOCK as usize][..missing as usize])
    }

    /// Takes back what is behind the last whole block.
    pub(crate) fn take_rest(&mut self) -> Vec<u8> {
        // Whole blocks are written only, so the rest is here.
        let rest = (self.position() % BLOCK) as usize;
        self.gathered.split_off(self.gathered.len() - rest)
    }

    /// Leaves room for a block that is written later.
    pub(crate) fn reserve(&mut self) -> Result<u32> {
        let block = self.next_block()?;
        self.append(&[0; BLOCK as usize])?;
        Ok(block)
    }

    /// Writes where there was something, or room, before.
    pub(crate) fn put(&mut self, position: u64, bytes: &[u8]) -> Result<()> {
        if position >= self.at {
            let from = (position - self.at) as usize;
            self.gathered[from..from + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        debug_assert!(position + bytes.len() as u64 <= self.at, "nothing spans both");
        self.file.write_all_at(bytes, position)
    }

    /// Writes the whole blocks that were gathered.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let whole = self.gathered.len() - self.gathered.len() % BLOCK as usize;
        // The file is new: what is not written is a hole, and reads as zeros.
        if self.gathered[..whole].iter().any(|byte| *byte != 0) {
            self.file.write_all_at(&self.gathered[..whole], self.at)?;
        }
        self.at += whole as u64;
        self.gathered.drain(..whole);
        Ok(())
    }

    /// The file, when all is in it.
    pub(crate) fn finish(mut self) -> Result<File> {
        self.fill()?;
        self.flush()?;
        self.file.set_len(self.at)?;
        Ok(self.file)
    }
}
