//! Sparse files: where their data lies, and how to write one without filling the file system.
//!
//! A file of a few kilobytes on disk can claim exabytes. Readers skip its holes by `SEEK_DATA`;
//! writers leave holes where the source has them and are limited by a [`Budget`].

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

/// A run of bytes of a file, ending before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Run {
    /// Bytes that are allocated on disk.
    Data {
        /// Offset of the first byte behind the run.
        end: u64,
    },
    /// Bytes that take no space on disk and read as zeros.
    Hole {
        /// Offset of the first byte behind the run.
        end: u64,
    },
}

impl Run {
    /// Offset of the first byte behind the run.
    pub fn end(self) -> u64 {
        match self {
            Self::Data { end } | Self::Hole { end } => end,
        }
    }
}

/// The run that begins at `at`, which is below `size`. What is missing of a file that has shrunk
/// counts as a hole. The file position is `at` afterwards.
pub fn run_at(file: impl AsFd, at: u64, size: u64) -> io::Result<Run> {
    let file = file.as_fd();
    let run = match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(data) if data > at => Run::Hole { end: data.min(size) },
        Ok(_) => match rustix::fs::seek(file, SeekFrom::Hole(at)) {
            Ok(hole) if hole > at => Run::Data { end: hole.min(size) },
            _ => Run::Data { end: size },
        },
        // Nothing but a hole is left.
        Err(Errno::NXIO) => Run::Hole { end: size },
        // A file system without holes.
        Err(_) => Run::Data { end: size },
    };
    rustix::fs::seek(file, SeekFrom::Start(at))?;
    Ok(run)
}

/// Whether fewer bytes are allocated than the size says.
pub fn has_holes(file: &File) -> io::Result<bool> {
    let meta = file.metadata()?;
    Ok(meta.blocks().saturating_mul(512) < meta.len())
}

/// Bytes of one operation that are written without a look at the reserve: a small copy succeeds
/// even on a disk that is nearly full.
const UNCHECKED: u64 = 16 << 20;
/// Free space is read by `statvfs` once for this many bytes.
const STEP: u64 = 64 << 20;
/// Space that a copy leaves free: 5 % of the file system, at most this many bytes.
const LARGEST_RESERVE: u64 = 1 << 30;
/// Holes that all files of one operation may have together, in bytes: more than usual disk images
/// have, and few enough that a backup which reads them as zeros ends.
pub const HOLES_LIMIT: u64 = 1 << 40;

/// What one operation (a copy, an apply) may still write.
#[derive(Debug, Default)]
pub struct Budget {
    written: u64,
    /// Bytes for which the file system was found to have space.
    checked: u64,
    holes: u64,
}

impl Budget {
    /// Takes space for `bytes` on the file system of `file`.
    fn take(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        self.written = self.written.saturating_add(bytes);
        if self.written <= UNCHECKED {
            return Ok(());
        }
        if bytes > self.checked {
            let stat = rustix::fs::fstatvfs(file)?;
            let free = stat.f_bavail.saturating_mul(stat.f_frsize);
            let total = stat.f_blocks.saturating_mul(stat.f_frsize);
            let usable = free.saturating_sub((total / 20).min(LARGEST_RESERVE));
            if usable < bytes {
                return Err(OverBudget::Space.into());
            }
            self.checked = usable.min(STEP.max(bytes));
        }
        self.checked -= bytes;
        Ok(())
    }

    fn take_hole(&mut self, bytes: u64) -> io::Result<()> {
        self.holes = self.holes.saturating_add(bytes);
        if self.holes > HOLES_LIMIT { Err(OverBudget::Holes.into()) } else { Ok(()) }
    }
}

/// Why a [`Budget`] stops a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverBudget {
    /// The file system would have less free space than its reserve.
    Space,
    /// More holes than [`HOLES_LIMIT`].
    Holes,
}

impl OverBudget {
    /// The reason, if this error comes from a [`Budget`].
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Space => "the file system would be left with less free space than its reserve",
            Self::Holes => "more than 1 TiB of holes in sparse files",
        })
    }
}

impl std::error::Error for OverBudget {}

impl From<OverBudget> for io::Error {
    fn from(why: OverBudget) -> Self {
        let kind = match why {
            OverBudget::Space => io::ErrorKind::StorageFull,
            OverBudget::Holes => io::ErrorKind::FileTooLarge,
        };
        Self::new(kind, why)
    }
}

/// Writes a new and empty file from its start to its end.
#[derive(Debug)]
pub struct SparseWriter<'a> {
    file: &'a File,
    budget: &'a mut Budget,
    at: u64,
}

/// Zeros are detected in blocks of this size, that of most file systems.
const BLOCK: u64 = 4096;

impl<'a> SparseWriter<'a> {
    /// A writer at the start of an empty file.
    pub fn new(file: &'a File, budget: &'a mut Budget) -> Self {
        Self { file, budget, at: 0 }
    }

    /// Writes bytes as they are, zeros too.
    pub fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.budget.take(self.file, bytes.len() as u64)?;
        self.file.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Leaves a hole of `length` bytes.
    pub fn hole(&mut self, length: u64) -> io::Result<()> {
        self.budget.take_hole(length)?;
        self.at = self.at.checked_add(length).ok_or(OverBudget::Holes)?;
        Ok(())
    }

    /// Writes bytes, and leaves a hole for each block of zeros: for a source that cannot say where
    /// its holes are.
    pub fn data_or_holes(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let is_hole = is_zero(block(bytes, self.at));
            let (mut length, mut at) = (0, self.at);
            while length < bytes.len() {
                let next = block(&bytes[length..], at);
                if is_zero(next) != is_hole {
                    break;
                }
                length += next.len();
                at += next.len() as u64;
            }
            match is_hole {
                true => self.hole(length as u64)?,
                false => self.data(&bytes[..length])?,
            }
            bytes = &bytes[length..];
        }
        Ok(())
    }

    /// Sets the file's size, which a hole at its end does not, and returns it.
    pub fn finish(self) -> io::Result<u64> {
        if self.file.metadata()?.len() != self.at {
            self.file.set_len(self.at)?;
        }
        Ok(self.at)
    }
}

/// The leading bytes that lie in one block of the file.
fn block(bytes: &[u8], at: u64) -> &[u8] {
    let left = usize::try_from(BLOCK - at % BLOCK).unwrap_or(usize::MAX);
    &bytes[..bytes.len().min(left)]
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Copies a file into a new and empty one, with its holes. Returns its size.
pub fn copy(from: &File, to: &File) -> io::Result<u64> {
    const PIECE: u64 = 256 << 10;
    let size = from.metadata()?.len();
    let mut piece = vec![0; PIECE as usize];
    let mut at = 0;
    while at < size {
        match run_at(from, at, size)? {
            Run::Hole { end } => at = end,
            Run::Data { end } => {
                while at < end {
                    let most = (end - at).min(PIECE) as usize;
                    let read = match from.read_at(&mut piece[..most], at) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        read => read?,
                    };
                    // Truncated meanwhile: the rest is a hole.
                    if read == 0 {
                        at = size;
                        break;
                    }
                    to.write_all_at(&piece[..read], at)?;
                    at += read as u64;
                }
            }
        }
    }
    to.set_len(size)?;
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        File::from(rustix::fs::memfd_create("sparse", flags).unwrap())
    }

    fn content(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn runs(file: &File) -> Vec<Run> {
        let size = file.metadata().unwrap().len();
        let (mut at, mut all) = (0, Vec::new());
        while at < size {
            let run = run_at(file, at, size).unwrap();
            assert!(run.end() > at && run.end() <= size);
            at = run.end();
            all.push(run);
        }
        all
    }

    #[test]
    fn runs_are_data_and_holes_in_turn() {
        let sparse = file();
        sparse.write_all_at(b"x", 1 << 20).unwrap();
        sparse.set_len(1 << 40).unwrap();
        let (page, size) = (4096, 1 << 40);
        let end = (1 << 20) + page;
        let expected = [Run::Hole { end: 1 << 20 }, Run::Data { end }, Run::Hole { end: size }];
        assert_eq!(runs(&sparse), expected);
        // It was longer when its size was read.
        assert_eq!(run_at(&sparse, size, size + 7).unwrap(), Run::Hole { end: size + 7 });
        let copied = file();
        assert_eq!(copy(&sparse, &copied).unwrap(), size);
        assert_eq!(runs(&copied), expected);
    }

    /// Pieces of any size and alignment, with and without zeros.
    #[test]
    fn what_is_written_is_what_came() {
        let mut seed = 1u64;
        let mut random = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let (target, mut expected) = (file(), Vec::new());
            let mut budget = Budget::default();
            let mut writer = SparseWriter::new(&target, &mut budget);
            for _ in 0..random(8) {
                let length = random(20_000) as usize;
                let byte = u8::from(random(2) == 0);
                let mut piece = vec![byte; length];
                if let Some(one) = piece.get_mut(random(20_000) as usize) {
                    *one = 7;
                }
                match random(3) {
                    0 => {
                        writer.hole(length as u64).unwrap();
                        piece.fill(0);
                    }
                    1 => writer.data(&piece).unwrap(),
                    _ => writer.data_or_holes(&piece).unwrap(),
                }
                expected.extend(piece);
            }
            assert_eq!(writer.finish().unwrap(), expected.len() as u64);
            assert_eq!(content(&target), expected);
        }
    }

    #[test]
    fn zeros_from_a_source_without_holes_take_no_space() {
        let target = file();
        let mut budget = Budget::default();
        let mut writer = SparseWriter::new(&target, &mut budget);
        for _ in 0..64 {
            writer.data_or_holes(&[0; 1 << 20]).unwrap();
        }
        assert_eq!(writer.finish().unwrap(), 64 << 20);
        assert_eq!(target.metadata().unwrap().blocks(), 0);
    }

    #[test]
    fn holes_and_space_are_bounded() {
        let target = file();
        let mut budget = Budget::default();
        let mut writer = SparseWriter::new(&target, &mut budget);
        writer.hole(HOLES_LIMIT).unwrap();
        let refused = writer.hole(1).unwrap_err();
        assert_eq!(OverBudget::of(&refused), Some(OverBudget::Holes));
        let refused = writer.hole(u64::MAX).unwrap_err();
        assert_eq!(OverBudget::of(&refused), Some(OverBudget::Holes));
        // More than any machine has; a small copy is not held by the reserve.
        budget.take(&target, UNCHECKED).unwrap();
        let here = File::open(".").unwrap();
        let refused = budget.take(&here, 1 << 60).unwrap_err();
        assert_eq!(OverBudget::of(&refused), Some(OverBudget::Space));
        assert_eq!(OverBudget::of(&io::Error::from(Errno::NOSPC)), None);
    }
}
