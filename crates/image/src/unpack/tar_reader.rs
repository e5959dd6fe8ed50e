//! Reads a tar stream entry by entry. The input is hostile.
//!
//! The `tar` crate parses single fields. Entries are put together here, because its own iterator
//! keeps names of any length in memory. Sizes are checked before anything is allocated, and an
//! inconsistency fails the whole archive.

use msb_spec::{Error, Result};
use std::borrow::Cow;
use std::io::{self, BufRead, ErrorKind};
use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// Limit of all extension headers of one entry. Paths have at most 4 KiB and attributes 64 KiB.
const EXTENSION_LIMIT: u64 = 1 << 20;
/// PATH_MAX of the kernel.
const PATH_LIMIT: usize = 4096;
/// Most runs of a sparse file. Real files have some hundreds; each costs memory.
const SPARSE_LIMIT: usize = 100_000;

/// Type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TarKind {
    File,
    Directory,
    Symlink,
    HardLink,
    Fifo,
    /// A device node: skipped on the host, written to EROFS disks.
    Device,
}

/// Type and number of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceNumber {
    /// Whether it is a block device; else a character device.
    pub(crate) block: bool,
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// One entry, with the values of its extension headers.
#[derive(Debug, Clone)]
pub(crate) struct TarEntry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: TarKind,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Modification time: seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    /// Size of the file, including holes.
    pub(crate) size: u64,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Data runs of a sparse file; none for an ordinary one.
    pub(crate) sparse_runs: Option<Vec<SparseRun>>,
    /// Device number, if it is valid.
    pub(crate) device: Option<DeviceNumber>,
}

/// A run of data in a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SparseRun {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// Values of extension headers for the next entry.
#[derive(Debug, Clone, Default)]
struct PaxFields {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: PaxSparse,
}

#[derive(Debug, Clone, Default)]
struct PaxSparse {
    /// Format 1.0: the map precedes the data.
    map_in_data: bool,
    real_size: Option<u64>,
    name: Option<Vec<u8>>,
    /// Formats 0.0 and 0.1: the map is in the header.
    numbers: Vec<u64>,
}

/// The data of one entry, as `Read`.
#[derive(Debug)]
pub(crate) struct EntryData<'a, R> {
    archive: &'a mut TarReader<R>,
}

impl<R: BufRead> io::Read for EntryData<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.archive.left).unwrap_or(usize::MAX);
        let most = buffer.len().min(left);
        let n = io::Read::read(&mut self.archive.input, &mut buffer[..most])?;
        self.archive.left -= n as u64;
        Ok(n)
    }
}

/// A tar stream that is read.
#[derive(Debug)]
pub(crate) struct TarReader<R> {
    input: R,
    /// Unread data of the current entry, and the padding of its last block.
    left: u64,
    padding: u64,
    /// Size of all extension headers of the current entry.
    extended: u64,
    global: PaxFields,
}

impl<R: BufRead> TarReader<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, extended: 0, global: PaxFields::default() }
    }

    /// Reads the next entry; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<TarEntry>> {
        let mut pax = self.global.clone();
        self.extended = 0;
        loop {
            self.finish_entry()?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let size = header.entry_size().map_err(|_| broken("a size that is not a number"))?;
            self.set_size(size)?;
            match header.entry_type() {
                EntryType::GNULongName => pax.path = Some(trimmed(self.read_extension()?)),
                EntryType::GNULongLink => pax.link = Some(trimmed(self.read_extension()?)),
                EntryType::XHeader => parse_pax(&self.read_extension()?, &mut pax)?,
                EntryType::XGlobalHeader => {
                    let text = self.read_extension()?;
                    let mut global = PaxFields::default();
                    parse_pax(&text, &mut global)?;
                    // A global path or size would apply to every following entry. Ignore them.
                    self.global =
                        PaxFields { path: None, link: None, size: None, ..PaxFields::default() };
                    self.global.mtime = global.mtime;
                    self.global.uid = global.uid;
                    self.global.gid = global.gid;
                }
                _ => return self.entry(&header, pax).map(Some),
            }
        }
    }

    /// Passes the data of the current entry to `take`, in chunks.
    pub(crate) fn data(&mut self, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        while self.left > 0 {
            let left = usize::try_from(self.left).unwrap_or(usize::MAX);
            let buffer = self.input.fill_buf().map_err(|error| unreadable(&error))?;
            if buffer.is_empty() {
                return Err(broken("it ends in the middle of a file"));
            }
            let n = buffer.len().min(left);
            take(&buffer[..n])?;
            self.input.consume(n);
            self.left -= n as u64;
        }
        Ok(())
    }

    /// The data of the current entry as `Read`.
    pub(crate) fn reader(&mut self) -> EntryData<'_, R> {
        EntryData { archive: self }
    }

    /// Reads what follows the last entry. It counts for the digest only.
    pub(crate) fn drain(&mut self) -> Result<()> {
        loop {
            let n = self.input.fill_buf().map_err(|error| unreadable(&error))?.len();
            if n == 0 {
                return Ok(());
            }
            self.input.consume(n);
        }
    }

    fn set_size(&mut self, size: u64) -> Result<()> {
        self.left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        size.checked_add(self.padding).map(drop).ok_or_else(|| broken("a size that overflows"))
    }

    fn finish_entry(&mut self) -> Result<()> {
        self.data(|_| Ok(()))?;
        // Some tools omit the padding of the last block. No data is missing then.
        while self.padding > 0 {
            let padding = usize::try_from(self.padding).unwrap_or(BLOCK);
            let n = self.input.fill_buf().map_err(|error| unreadable(&error))?.len().min(padding);
            if n == 0 {
                self.padding = 0;
                break;
            }
            self.input.consume(n);
            self.padding -= n as u64;
        }
        Ok(())
    }

    /// Reads a header block; none at the end, which is a zero block or the end of the stream.
    fn header(&mut self) -> Result<Option<Header>> {
        let mut block = Header::new_old();
        if !self.block(block.as_mut_bytes())? {
            return Ok(None);
        }
        if block.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let bytes = block.as_bytes();
        let sum = |range: std::ops::Range<usize>| -> u32 {
            bytes[range].iter().map(|byte| u32::from(*byte)).sum()
        };
        // The checksum counts its own field as spaces.
        let sum = sum(0..148) + sum(156..BLOCK) + 8 * u32::from(b' ');
        if block.cksum().ok() != Some(sum) {
            return Err(broken("a header with a wrong checksum"));
        }
        Ok(Some(block))
    }

    /// Reads one block; false at the end of the stream.
    fn block(&mut self, block: &mut [u8; BLOCK]) -> Result<bool> {
        let mut filled = 0;
        while filled < BLOCK {
            let buffer = self.input.fill_buf().map_err(|error| unreadable(&error))?;
            if buffer.is_empty() {
                return match filled {
                    0 => Ok(false),
                    _ => Err(broken("it ends in the middle of a header")),
                };
            }
            let n = buffer.len().min(BLOCK - filled);
            block[filled..filled + n].copy_from_slice(&buffer[..n]);
            self.input.consume(n);
            filled += n;
        }
        Ok(true)
    }

    /// Reads the data of an extension header.
    fn read_extension(&mut self) -> Result<Vec<u8>> {
        // Empty headers count as well, or their number would be unlimited.
        self.extended = self.extended.saturating_add(self.left).saturating_add(BLOCK as u64);
        if self.extended > EXTENSION_LIMIT {
            return Err(broken("names and attributes of more than a megabyte"));
        }
        let mut text = Vec::new();
        self.data(|bytes| {
            text.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(text)
    }

    fn entry(&mut self, header: &Header, pax: PaxFields) -> Result<TarEntry> {
        let path = pax.sparse.name.as_ref().or(pax.path.as_ref());
        let path =
            path.map_or_else(|| header.path_bytes(), |path| Cow::Borrowed(path)).into_owned();
        let kind = kind(header, &path)?;
        if let Some(size) = pax.size {
            self.set_size(size)?;
        }
        if kind != TarKind::File {
            // Only files have data. Old archives give hard links the size of their target.
            self.set_size(0)?;
        }
        let size = self.left;
        let (sparse_runs, size) = match self.sparse_runs(header, &pax.sparse, size)? {
            Some((sparse_runs, real)) => (Some(sparse_runs), real),
            None => (None, size),
        };
        let link =
            pax.link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
        for name in [&path, &link] {
            if name.len() > PATH_LIMIT || name.contains(&0) {
                return Err(broken("a name that no file can have"));
            }
        }
        let number = |pax: Option<u64>, text: &[u8], field: io::Result<u64>| {
            // An empty field is zero, as in other tools.
            let empty = text.iter().all(|byte| matches!(byte, 0 | b' '));
            let pax = pax.or(empty.then_some(0));
            let id =
                pax.map_or_else(|| field.map_err(|_| broken("an owner that is not a number")), Ok)?;
            u32::try_from(id)
                .ok()
                .filter(|id| *id != u32::MAX)
                .ok_or_else(|| broken("an owner that is out of range"))
        };
        let mtime = pax.mtime.unwrap_or_else(|| {
            let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
            (seconds.unwrap_or(0), 0)
        });
        Ok(TarEntry {
            kind,
            mode: header.mode().map_err(|_| broken("a mode that is not a number"))? & 0o7777,
            uid: number(pax.uid, &header.as_old().uid, header.uid())?,
            gid: number(pax.gid, &header.as_old().gid, header.gid())?,
            mtime,
            size,
            xattrs: pax.xattrs,
            sparse_runs,
            device: device(header).filter(|_| kind == TarKind::Device),
            path,
            link,
        })
    }

    /// The runs of a sparse file and its real size, in any of the four formats.
    fn sparse_runs(
        &mut self,
        header: &Header,
        pax: &PaxSparse,
        size: u64,
    ) -> Result<Option<(Vec<SparseRun>, u64)>> {
        let (numbers, real) = if header.entry_type() == EntryType::GNUSparse {
            self.gnu_map(header)?
        } else if pax.map_in_data {
            (self.map_in_data()?, pax.real_size.unwrap_or(size))
        } else if !pax.numbers.is_empty() {
            (pax.numbers.clone(), pax.real_size.unwrap_or(size))
        } else {
            return Ok(None);
        };
        let mut sparse_runs = Vec::new();
        let (mut end, mut data) = (0u64, 0u64);
        for pair in numbers.chunks(2) {
            let [at, len] = *pair else {
                return Err(broken("an incomplete run of a sparse file"));
            };
            let stop = at.checked_add(len).filter(|stop| *stop <= real && at >= end);
            end = stop.ok_or_else(|| broken("a sparse file with overlapping or too long runs"))?;
            data = data.checked_add(len).ok_or_else(|| broken("a size that overflows"))?;
            sparse_runs.push(SparseRun { at, len });
        }
        if data != self.left {
            return Err(broken("a sparse file whose map does not match its data"));
        }
        Ok(Some((sparse_runs, real)))
    }

    /// The old GNU format: four runs in the header, more in the following blocks.
    fn gnu_map(&mut self, header: &Header) -> Result<(Vec<u64>, u64)> {
        let wrong = |_| broken("a sparse map that is not a number");
        let gnu = header.as_gnu().ok_or_else(|| broken("a sparse file in an unknown format"))?;
        let real = gnu.real_size().map_err(wrong)?;
        let mut numbers = Vec::new();
        let mut add = |sparse_runs: &[tar::GnuSparseHeader]| -> Result<()> {
            for piece in sparse_runs.iter().filter(|piece| !piece.is_empty()) {
                numbers.push(piece.offset().map_err(wrong)?);
                numbers.push(piece.length().map_err(wrong)?);
            }
            if numbers.len() > 2 * SPARSE_LIMIT {
                return Err(broken("a sparse file with too many runs"));
            }
            Ok(())
        };
        add(&gnu.sparse)?;
        let mut more = gnu.is_extended();
        while more {
            let mut block = tar::GnuExtSparseHeader::new();
            if !self.block(block.as_mut_bytes())? {
                return Err(broken("it ends in the middle of a sparse map"));
            }
            add(block.sparse())?;
            more = block.is_extended();
        }
        Ok((numbers, real))
    }

    /// PAX 1.0: decimal numbers, one per line, first their count, padded to a block.
    fn map_in_data(&mut self) -> Result<Vec<u64>> {
        let (mut numbers, mut wanted, mut line) = (Vec::new(), None, Vec::new());
        loop {
            if self.left < BLOCK as u64 {
                return Err(broken("it ends in the middle of a sparse map"));
            }
            let mut block = [0; BLOCK];
            self.block(&mut block)?;
            self.left -= BLOCK as u64;
            for byte in block {
                if byte != b'\n' {
                    line.push(byte);
                    if line.len() > 20 {
                        return Err(broken("a sparse map that is not a number"));
                    }
                    continue;
                }
                let number = decimal(&std::mem::take(&mut line))?;
                match wanted {
                    None if number > SPARSE_LIMIT as u64 => {
                        return Err(broken("a sparse file with too many runs"));
                    }
                    None => wanted = Some(2 * number as usize),
                    Some(_) => numbers.push(number),
                }
                if wanted == Some(numbers.len()) {
                    return Ok(numbers);
                }
            }
        }
    }
}

/// Type of an entry. `path` is the complete name; the one in the header may be truncated.
fn kind(header: &Header, path: &[u8]) -> Result<TarKind> {
    Ok(match header.entry_type() {
        // Before POSIX.1-1988 a directory was a file with a trailing slash.
        EntryType::Regular if path.ends_with(b"/") => TarKind::Directory,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => TarKind::File,
        EntryType::Directory => TarKind::Directory,
        EntryType::Symlink => TarKind::Symlink,
        EntryType::Link => TarKind::HardLink,
        EntryType::Fifo => TarKind::Fifo,
        EntryType::Char | EntryType::Block => TarKind::Device,
        _ => return Err(broken("an entry of unknown type")),
    })
}

fn device(header: &Header) -> Option<DeviceNumber> {
    Some(DeviceNumber {
        block: header.entry_type() == EntryType::Block,
        major: header.device_major().ok()??,
        minor: header.device_minor().ok()??,
    })
}

/// Parses records `LENGTH KEY=VALUE
/// `. Values may contain any byte.
fn parse_pax(mut text: &[u8], pax: &mut PaxFields) -> Result<()> {
    let wrong = || broken("an invalid PAX header");
    while !text.is_empty() {
        let blank = text.iter().position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let length = usize::try_from(decimal(&text[..blank])?).map_err(|_| wrong())?;
        let record = text.get(blank + 1..length).ok_or_else(wrong)?;
        let record = record.strip_suffix(b"\n").ok_or_else(wrong)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        text = &text[length..];
        match key {
            b"path" => pax.path = Some(value.to_vec()),
            b"linkpath" => pax.link = Some(value.to_vec()),
            b"size" => pax.size = Some(decimal(value)?),
            b"uid" => pax.uid = Some(decimal(value)?),
            b"gid" => pax.gid = Some(decimal(value)?),
            b"mtime" => pax.mtime = Some(time(value).ok_or_else(wrong)?),
            b"GNU.sparse.major" => pax.sparse.map_in_data = value == b"1",
            b"GNU.sparse.name" => pax.sparse.name = Some(value.to_vec()),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => {
                pax.sparse.real_size = Some(decimal(value)?);
            }
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                pax.sparse.numbers.push(decimal(value)?);
            }
            b"GNU.sparse.map" => {
                let numbers = value.split(|byte| *byte == b',').map(decimal);
                pax.sparse.numbers = numbers.collect::<Result<_>>()?;
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    pax.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        if pax.sparse.numbers.len() > 2 * SPARSE_LIMIT {
            return Err(broken("a sparse file with too many runs"));
        }
    }
    Ok(())
}

/// Parses seconds with a fraction; may be negative.
fn time(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let nanos: u32 = nanos.parse().ok()?;
    Some(match whole.starts_with('-') && nanos > 0 {
        true => (seconds.checked_sub(1)?, 1_000_000_000 - nanos),
        false => (seconds, nanos),
    })
}

fn decimal(text: &[u8]) -> Result<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let number = std::str::from_utf8(text).ok().filter(|_| digits);
    number.and_then(|text| text.parse().ok()).ok_or_else(|| broken("an invalid number"))
}

/// Long names of GNU tar end in a NUL byte.
fn trimmed(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&0) {
        name.pop();
    }
    name
}

/// The error for an invalid archive.
pub(crate) fn broken(what: &str) -> Error {
    Error::invalid("a layer of the image is damaged or hostile").cause(what)
}

/// Converts a read error: decompressors report `InvalidData`, others are I/O errors of the host.
fn unreadable(error: &io::Error) -> Error {
    match error.kind() {
        ErrorKind::FileTooLarge => {
            Error::new(msb_spec::Kind::Limit, "a layer of the image is too large").cause(error)
        }
        ErrorKind::InvalidData
        | ErrorKind::InvalidInput
        | ErrorKind::UnexpectedEof
        | ErrorKind::Other => broken("it cannot be decompressed").cause(error),
        _ => Error::host("cannot read a layer of the image", error),
    }
}
