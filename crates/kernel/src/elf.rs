//! Parses an ELF file: segments, entry point and one symbol.
//!
//! The file is untrusted: every offset and size is checked against the file, every count has a
//! limit, and no allocation depends on an unchecked number. Nothing of it is executed here.

use msb_spec::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// A 64-bit ELF file for this architecture.
#[derive(Debug)]
pub(super) struct ElfFile<'a> {
    file: &'a File,
    length: u64,
    kind: u16,
    entry: u64,
    segments: Vec<Segment>,
    sections: HeaderTable,
}

/// A LOAD segment. Its bytes are within the file, and its addresses do not wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    /// Offset in the file.
    pub(super) offset: u64,
    /// The virtual address of its first byte (`p_vaddr`).
    pub(super) address: u64,
    /// The physical address of its first byte (`p_paddr`).
    pub(super) physical: u64,
    /// Size in the file (`p_filesz`).
    pub(super) filled: u64,
    /// Size in memory (`p_memsz`); bytes beyond `filled` are zero.
    pub(super) size: u64,
}

/// The value of a dynamic symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol {
    pub(super) address: u64,
    pub(super) size: u64,
}

/// A table of headers of equal size.
#[derive(Debug, Clone, Copy)]
struct HeaderTable {
    offset: u64,
    count: u64,
}

/// `ET_EXEC`: a program with fixed addresses.
pub(super) const EXECUTABLE: u16 = 2;
/// `ET_DYN`: a shared library.
pub(super) const SHARED: u16 = 3;

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

const HEADER: usize = 64;
const PROGRAM_HEADER: u64 = 56;
const SECTION_HEADER: u64 = 64;
const SYMBOL: u64 = 24;

const LOADED: u32 = 1;
const DYNAMIC_SYMBOLS: u32 = 11;

/// The most segments; a kernel has about five, a library ten.
const SEGMENTS: u64 = 64;
/// The most sections; a large kernel has a few hundred.
const SECTIONS: u64 = 4096;
/// The most dynamic symbols; libkrunfw has eight.
const SYMBOLS: u64 = 4096;
/// The most bytes of symbol names; a few hundred are usual.
const NAMES: u64 = 1 << 20;

impl<'a> ElfFile<'a> {
    /// Reads the headers and checks them.
    pub(super) fn read(file: &'a File) -> Result<Self> {
        let length =
            file.metadata().map_err(|error| Error::host("it cannot be read", error))?.len();
        if length < HEADER as u64 {
            return Err(not_elf());
        }
        let header = bytes_at(file, length, 0, HEADER as u64)?;
        // Magic, 64 bits, little-endian, version 1.
        if header[..7] != [0x7f, b'E', b'L', b'F', 2, 1, 1] {
            return Err(not_elf());
        }
        let machine = u16_at(&header, 18);
        if machine != MACHINE {
            return Err(Error::unsupported(format!(
                "it is for another kind of machine (ELF machine {machine}, here {MACHINE})"
            )));
        }
        let segments = HeaderTable {
            offset: u64_at(&header, 32),
            count: counted(&header, 54, PROGRAM_HEADER, SEGMENTS, "segments")?,
        };
        let sections = HeaderTable {
            offset: u64_at(&header, 40),
            count: counted(&header, 58, SECTION_HEADER, SECTIONS, "sections")?,
        };
        let mut elf = Self {
            file,
            length,
            kind: u16_at(&header, 16),
            entry: u64_at(&header, 24),
            segments: Vec::new(),
            sections,
        };
        elf.segments = elf.loaded(segments)?;
        Ok(elf)
    }

    /// The `e_type`: [`EXECUTABLE`], [`SHARED`] or another.
    pub(super) fn kind(&self) -> u16 {
        self.kind
    }

    /// The entry point (`e_entry`).
    pub(super) fn entry(&self) -> u64 {
        self.entry
    }

    /// The LOAD segments, in the order of the file.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Reads `size` bytes of the file at `offset`.
    pub(super) fn bytes(&self, offset: u64, size: u64) -> Result<Vec<u8>> {
        bytes_at(self.file, self.length, offset, size)
    }

    /// The file offset of `size` bytes at a virtual address.
    pub(super) fn offset_of(&self, address: u64, size: u64) -> Result<u64> {
        let holds = |segment: &&Segment| {
            let inside = address.checked_sub(segment.address);
            inside.is_some_and(|inside| {
                inside.checked_add(size).is_some_and(|end| end <= segment.filled)
            })
        };
        let segment = self.segments.iter().find(holds);
        segment.map(|segment| segment.offset + (address - segment.address)).ok_or_else(|| {
            Error::invalid(format!("no segment of it holds {size} bytes at {address:#x}"))
        })
    }

    /// Finds a dynamic symbol by name.
    pub(super) fn symbol(&self, name: &str) -> Result<Option<Symbol>> {
        for section in 0..self.sections.count {
            let header = self.section(section)?;
            if u32_at(&header, 4) != DYNAMIC_SYMBOLS {
                continue;
            }
            let names = u64::from(u32_at(&header, 40));
            if names >= self.sections.count {
                return Err(Error::invalid("its symbols have no names"));
            }
            let names = self.section(names)?;
            let names = limited(u64_at(&names, 32), NAMES, "bytes of names")
                .and_then(|size| self.bytes(u64_at(&names, 24), size))?;
            let count = limited(u64_at(&header, 32) / SYMBOL, SYMBOLS, "symbols")?;
            let symbols = self.bytes(u64_at(&header, 24), count * SYMBOL)?;
            let named = |symbol: &&[u8]| {
                let from = names.get(u32_at(symbol, 0) as usize..).unwrap_or_default();
                from.strip_prefix(name.as_bytes()).is_some_and(|rest| rest.first() == Some(&0))
            };
            if let Some(symbol) = symbols.chunks_exact(SYMBOL as usize).find(named) {
                return Ok(Some(Symbol { address: u64_at(symbol, 8), size: u64_at(symbol, 16) }));
            }
        }
        Ok(None)
    }

    fn section(&self, index: u64) -> Result<Vec<u8>> {
        let offset = self.sections.offset.checked_add(index * SECTION_HEADER);
        self.bytes(offset.ok_or_else(cut_short)?, SECTION_HEADER)
    }

    fn loaded(&self, table: HeaderTable) -> Result<Vec<Segment>> {
        let headers = self.bytes(table.offset, table.count * PROGRAM_HEADER)?;
        let headers = headers.chunks_exact(PROGRAM_HEADER as usize);
        let loaded = headers.filter(|header| u32_at(header, 0) == LOADED);
        loaded
            .map(|header| {
                let segment = Segment {
                    offset: u64_at(header, 8),
                    address: u64_at(header, 16),
                    physical: u64_at(header, 24),
                    filled: u64_at(header, 32),
                    size: u64_at(header, 40),
                };
                self.check(segment).map(|()| segment)
            })
            .collect()
    }

    fn check(&self, segment: Segment) -> Result<()> {
        let Segment { offset, address, physical, filled, size } = segment;
        if filled > size {
            return Err(Error::invalid("a segment of it has more bytes than room"));
        }
        if offset.checked_add(filled).is_none_or(|end| end > self.length) {
            return Err(cut_short());
        }
        if address.checked_add(size).is_none() || physical.checked_add(size).is_none() {
            return Err(Error::invalid("a segment of it ends beyond all addresses"));
        }
        Ok(())
    }
}

/// Reads the number of entries; their size must be the expected one.
fn counted(header: &[u8], at: usize, size: u64, limit: u64, what: &str) -> Result<u64> {
    let count = u64::from(u16_at(header, at + 2));
    if count > 0 && u64::from(u16_at(header, at)) != size {
        return Err(Error::invalid(format!("its list of {what} is not one we can read")));
    }
    limited(count, limit, what)
}

fn limited(count: u64, limit: u64, what: &str) -> Result<u64> {
    if count > limit {
        return Err(Error::invalid(format!("it has {count} {what}, more than {limit}")));
    }
    Ok(count)
}

fn bytes_at(file: &File, length: u64, offset: u64, size: u64) -> Result<Vec<u8>> {
    if offset.checked_add(size).is_none_or(|end| end > length) {
        return Err(cut_short());
    }
    let size = usize::try_from(size).map_err(|_| cut_short())?;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, offset)
        .map_err(|error| Error::host("it cannot be read", error))?;
    Ok(bytes)
}

fn not_elf() -> Error {
    Error::invalid("it is not an ELF file of 64 bits")
}

fn cut_short() -> Error {
    Error::invalid("it is cut short: it says that it is longer than it is")
}

/// Reads a little-endian number. The caller guarantees that the slice is long enough.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes are eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes are four bytes"))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes are two bytes"))
}
