//! Block output of a disk: data is appended in large writes, and reserved blocks are filled in
//! later.

use crate::BLOCK;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;

/// Size of the write buffer in bytes: few system calls, and little memory.
const BUFFER_SIZE: usize = 1 << 20;

/// Most blocks of a disk. Block numbers have 32 bits, and the last one is reserved.
const BLOCKS_LIMIT: u64 = u32::MAX as u64 - 1;

#[derive(Debug)]
pub(crate) struct BlockWriter {
    file: File,
    /// Offset of the buffer in the file; a multiple of the block size.
    at: u64,
    buffer: Vec<u8>,
}

impl BlockWriter {
    pub(crate) fn new(file: File) -> Self {
        Self { file, at: 0, buffer: Vec::new() }
    }

    /// Offset of the next byte.
    pub(crate) fn position(&self) -> u64 {
        self.at + self.buffer.len() as u64
    }

    /// Number of the next block, after padding the current one.
    pub(crate) fn next_block(&mut self) -> Result<u32> {
        self.fill()?;
        let block = self.position() / BLOCK;
        u32::try_from(block).ok().filter(|_| block < BLOCKS_LIMIT).ok_or_else(|| {
            Error::new(ErrorKind::FileTooLarge, "a disk cannot be larger than 16 TiB")
        })
    }

    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.buffer.len() >= BUFFER_SIZE {
                self.flush()?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(BUFFER_SIZE - self.buffer.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Appends zeros. Many of them become a hole.
    pub(crate) fn skip(&mut self, count: u64) -> Result<()> {
        let end = self.position().checked_add(count).filter(|end| end / BLOCK < BLOCKS_LIMIT);
        let end = end.ok_or_else(|| {
            Error::new(ErrorKind::FileTooLarge, "a disk cannot be larger than 16 TiB")
        })?;
        if count > BUFFER_SIZE as u64 {
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

    /// Pads with zeros up to a block.
    pub(crate) fn fill(&mut self) -> Result<()> {
        let missing = self.position().next_multiple_of(BLOCK) - self.position();
        self.append(&[0; BLOCK as usize][..missing as usize])
    }

    /// Removes the incomplete last block from the buffer and returns it.
    pub(crate) fn take_tail(&mut self) -> Vec<u8> {
        // Only whole blocks are flushed, so the tail is in the buffer.
        let rest = (self.position() % BLOCK) as usize;
        self.buffer.split_off(self.buffer.len() - rest)
    }

    /// Reserves a block that is written later.
    pub(crate) fn reserve(&mut self) -> Result<u32> {
        let block = self.next_block()?;
        self.append(&[0; BLOCK as usize])?;
        Ok(block)
    }

    /// Overwrites bytes that were appended or reserved before.
    pub(crate) fn put(&mut self, position: u64, bytes: &[u8]) -> Result<()> {
        if position >= self.at {
            let from = (position - self.at) as usize;
            self.buffer[from..from + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        debug_assert!(
            position + bytes.len() as u64 <= self.at,
            "a write never spans file and buffer"
        );
        self.file.write_all_at(bytes, position)
    }

    /// Writes the whole blocks in the buffer.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let whole = self.buffer.len() - self.buffer.len() % BLOCK as usize;
        // The file was empty: blocks that are not written are holes and read as zeros.
        if self.buffer[..whole].iter().any(|byte| *byte != 0) {
            self.file.write_all_at(&self.buffer[..whole], self.at)?;
        }
        self.at += whole as u64;
        self.buffer.drain(..whole);
        Ok(())
    }

    /// Pads and flushes, and returns the file.
    pub(crate) fn finish(mut self) -> Result<File> {
        self.fill()?;
        self.flush()?;
        self.file.set_len(self.at)?;
        Ok(self.file)
    }
}
