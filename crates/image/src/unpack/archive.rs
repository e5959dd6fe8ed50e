//! Reads a tar stream entry by entry, as something that an attacker wrote.
//!
//! The `tar` crate reads single fields; what they add up to is decided here, because its own
//! iterator keeps names of any length in memory. Nothing is believed: sizes are checked before
//! anything is allocated, and what does not add up ends the whole archive.

use msb_spec::{Error, Result};
use std::borrow::Cow;
use std::io::{self, BufRead, ErrorKind};
use tar::{EntryType, Header};

const BLOCK: usize = 512;
/// Names end at 4 KiB and attributes at 64 KiB; headers that say more about one entry are an
/// attack.
const EXTENSION_LIMIT: u64 = 1 << 20;
/// The kernel's limit of a path.
const PATH_LIMIT: usize = 4096;
/// A sparse file has some hundreds of pieces; each costs memory.
const SPARSE_LIMIT: usize = 100_000;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    Directory,
    Symlink,
    HardLink,
    Fifo,
    /// A device: known, and made nowhere but on a disk.
    Device,
}

/// Which device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Device {
    /// A block device, or else a character device.
    pub(crate) block: bool,
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// One entry, complete with what headers before it have said.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    pub(crate) link: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Seconds and nanoseconds.
    pub(crate) mtime: (i64, u32),
    /// How large the file is in the end.
    pub(crate) size: u64,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where the data of a sparse file belongs; none for an ordinary one.
    pub(crate) pieces: Option<Vec<Piece>>,
    /// Which device, if it is one whose numbers can be read.
    pub(crate) device: Option<Device>,
}

/// A run of data in a sparse file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) at: u64,
    pub(crate) len: u64,
}

/// What extension headers have said about the next entry.
#[derive(Debug, Clone, Default)]
struct Said {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<(i64, u32)>,
    xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    sparse: Sparse,
}

#[derive(Debug, Clone, Default)]
struct Sparse {
    /// 1.0: the map stands before the data.
    map_in_data: bool,
    real_size: Option<u64>,
    name: Option<Vec<u8>>,
    /// 0.0 and 0.1: the map stands in the header.
    numbers: Vec<u64>,
}

/// The data of one entry as a stream.
#[derive(Debug)]
pub(crate) struct EntryData<'a, R> {
    archive: &'a mut Archive<R>,
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

/// A tar stream.
#[derive(Debug)]
pub(crate) struct Archive<R> {
    input: R,
    /// Data of the current entry that nobody has read yet, and what fills its last block.
    left: u64,
    padding: u64,
    /// How long the extension headers of the current entry are together.
    extended: u64,
    global: Said,
}

impl<R: BufRead> Archive<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, extended: 0, global: Said::default() }
    }

    /// The next entry; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Entry>> {
        let mut said = self.global.clone();
        self.extended = 0;
        loop {
            self.finish_entry()?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let size = header.entry_size().map_err(|_| broken("a size that is no number"))?;
            self.expect(size)?;
            match header.entry_type() {
                EntryType::GNULongName => said.path = Some(trimmed(self.extension()?)),
                EntryType::GNULongLink => said.link = Some(trimmed(self.extension()?)),
                EntryType::XHeader => parse_pax(&self.extension()?, &mut said)?,
                EntryType::XGlobalHeader => {
                    let text = self.extension()?;
                    let mut global = Said::default();
                    parse_pax(&text, &mut global)?;
                    // A name or a size for every entry that follows makes sense to nobody.
                    self.global = Said { path: None, link: None, size: None, ..Said::default() };
                    self.global.mtime = global.mtime;
                    self.global.uid = global.uid;
                    self.global.gid = global.gid;
                }
                _ => return self.entry(&header, said).map(Some),
            }
        }
    }

    /// Gives the data of the current entry to `take`, in pieces as they come.
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

    /// The data of the current entry, for whoever reads streams.
    pub(crate) fn reader(&mut self) -> EntryData<'_, R> {
        EntryData { archive: self }
    }

    /// Reads what follows the end, which counts for the digest and for nothing else.
    pub(crate) fn drain(&mut self) -> Result<()> {
        loop {
            let n = self.input.fill_buf().map_err(|error| unreadable(&error))?.len();
            if n == 0 {
                return Ok(());
            }
            self.input.consume(n);
        }
    }

    fn expect(&mut self, size: u64) -> Result<()> {
        self.left = size;
        self.padding = (BLOCK as u64 - size % BLOCK as u64) % BLOCK as u64;
        size.checked_add(self.padding).map(drop).ok_or_else(|| broken("a size beyond all bounds"))
    }

    fn finish_entry(&mut self) -> Result<()> {
        self.data(|_| Ok(()))?;
        // Some tools end an archive without filling the last block; that lacks no byte of a file.
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

    /// One header block; none at the end, which is two empty blocks or simply the end.
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
        // The sum is taken as if its own field were blanks.
        let sum = sum(0..148) + sum(156..BLOCK) + 8 * u32::from(b' ');
        if block.cksum().ok() != Some(sum) {
            return Err(broken("a header with a wrong checksum"));
        }
        Ok(Some(block))
    }

    /// Fills one block; false if the stream ends before it.
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

    /// The whole data of an extension header.
    fn extension(&mut self) -> Result<Vec<u8>> {
        // An empty one counts too, or there could be any number of them.
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

    fn entry(&mut self, header: &Header, said: Said) -> Result<Entry> {
        let path = said.sparse.name.as_ref().or(said.path.as_ref());
        let path =
            path.map_or_else(|| header.path_bytes(), |path| Cow::Borrowed(path)).into_owned();
        let kind = kind(header, &path)?;
        if let Some(size) = said.size {
            self.expect(size)?;
        }
        if kind != Kind::File {
            // Only files have data; old archives give links the size of what they link to.
            self.expect(0)?;
        }
        let size = self.left;
        let (pieces, size) = match self.pieces(header, &said.sparse, size)? {
            Some((pieces, real)) => (Some(pieces), real),
            None => (None, size),
        };
        let link =
            said.link.unwrap_or_else(|| header.link_name_bytes().unwrap_or_default().into_owned());
        for name in [&path, &link] {
            if name.len() > PATH_LIMIT || name.contains(&0) {
                return Err(broken("a name that no file can have"));
            }
        }
        let number = |said: Option<u64>, text: &[u8], field: io::Result<u64>| {
            // A field that was left empty is zero, as other tools read it.
            let empty = text.iter().all(|byte| matches!(byte, 0 | b' '));
            let said = said.or(empty.then_some(0));
            let id =
                said.map_or_else(|| field.map_err(|_| broken("an owner that is no number")), Ok)?;
            u32::try_from(id)
                .ok()
                .filter(|id| *id != u32::MAX)
                .ok_or_else(|| broken("an owner that no system has"))
        };
        let mtime = said.mtime.unwrap_or_else(|| {
            let seconds = header.mtime().ok().and_then(|seconds| i64::try_from(seconds).ok());
            (seconds.unwrap_or(0), 0)
        });
        Ok(Entry {
            kind,
            mode: header.mode().map_err(|_| broken("a mode that is no number"))? & 0o7777,
            uid: number(said.uid, &header.as_old().uid, header.uid())?,
            gid: number(said.gid, &header.as_old().gid, header.gid())?,
            mtime,
            size,
            xattrs: said.xattrs,
            pieces,
            device: device(header).filter(|_| kind == Kind::Device),
            path,
            link,
        })
    }

    /// Where the data of a sparse file belongs, in any of the four ways to write it.
    fn pieces(
        &mut self,
        header: &Header,
        said: &Sparse,
        size: u64,
    ) -> Result<Option<(Vec<Piece>, u64)>> {
        let (numbers, real) = if header.entry_type() == EntryType::GNUSparse {
            self.gnu_map(header)?
        } else if said.map_in_data {
            (self.map_in_data()?, said.real_size.unwrap_or(size))
        } else if !said.numbers.is_empty() {
            (said.numbers.clone(), said.real_size.unwrap_or(size))
        } else {
            return Ok(None);
        };
        let mut pieces = Vec::new();
        let (mut end, mut data) = (0u64, 0u64);
        for pair in numbers.chunks(2) {
            let [at, len] = *pair else {
                return Err(broken("half a piece of a sparse file"));
            };
            let stop = at.checked_add(len).filter(|stop| *stop <= real && at >= end);
            end = stop.ok_or_else(|| broken("a sparse file whose pieces overlap or go beyond"))?;
            data = data.checked_add(len).ok_or_else(|| broken("a size beyond all bounds"))?;
            pieces.push(Piece { at, len });
        }
        if data != self.left {
            return Err(broken("a sparse file whose pieces are not its data"));
        }
        Ok(Some((pieces, real)))
    }

    /// The old GNU form: four pieces in the header, more in blocks behind it.
    fn gnu_map(&mut self, header: &Header) -> Result<(Vec<u64>, u64)> {
        let wrong = |_| broken("a sparse map that is no number");
        let gnu = header.as_gnu().ok_or_else(|| broken("a sparse file in a foreign format"))?;
        let real = gnu.real_size().map_err(wrong)?;
        let mut numbers = Vec::new();
        let mut add = |pieces: &[tar::GnuSparseHeader]| -> Result<()> {
            for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
                numbers.push(piece.offset().map_err(wrong)?);
                numbers.push(piece.length().map_err(wrong)?);
            }
            if numbers.len() > 2 * SPARSE_LIMIT {
                return Err(broken("a sparse file of too many pieces"));
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

    /// PAX 1.0: decimal numbers, a line each, first how many, padded to a block.
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
                        return Err(broken("a sparse map that is no number"));
                    }
                    continue;
                }
                let number = decimal(&std::mem::take(&mut line))?;
                match wanted {
                    None if number > SPARSE_LIMIT as u64 => {
                        return Err(broken("a sparse file of too many pieces"));
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

/// What an entry is. Its whole name counts: where that is too long for the header, what stands
/// there may end anywhere.
fn kind(header: &Header, path: &[u8]) -> Result<Kind> {
    Ok(match header.entry_type() {
        // Before 1988 a directory was a file whose name ends in a slash.
        EntryType::Regular if path.ends_with(b"/") => Kind::Directory,
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => Kind::File,
        EntryType::Directory => Kind::Directory,
        EntryType::Symlink => Kind::Symlink,
        EntryType::Link => Kind::HardLink,
        EntryType::Fifo => Kind::Fifo,
        EntryType::Char | EntryType::Block => Kind::Device,
        _ => return Err(broken("an entry of unknown type")),
    })
}

fn device(header: &Header) -> Option<Device> {
    Some(Device {
        block: header.entry_type() == EntryType::Block,
        major: header.device_major().ok()??,
        minor: header.device_minor().ok()??,
    })
}

/// Records of the form `LENGTH KEY=VALUE\n`; values may hold anything.
fn parse_pax(mut text: &[u8], said: &mut Said) -> Result<()> {
    let wrong = || broken("an extended header that cannot be read");
    while !text.is_empty() {
        let blank = text.iter().position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let length = usize::try_from(decimal(&text[..blank])?).map_err(|_| wrong())?;
        let record = text.get(blank + 1..length).ok_or_else(wrong)?;
        let record = record.strip_suffix(b"\n").ok_or_else(wrong)?;
        let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(wrong)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        text = &text[length..];
        match key {
            b"path" => said.path = Some(value.to_vec()),
            b"linkpath" => said.link = Some(value.to_vec()),
            b"size" => said.size = Some(decimal(value)?),
            b"uid" => said.uid = Some(decimal(value)?),
            b"gid" => said.gid = Some(decimal(value)?),
            b"mtime" => said.mtime = Some(time(value).ok_or_else(wrong)?),
            b"GNU.sparse.major" => said.sparse.map_in_data = value == b"1",
            b"GNU.sparse.name" => said.sparse.name = Some(value.to_vec()),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => {
                said.sparse.real_size = Some(decimal(value)?);
            }
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                said.sparse.numbers.push(decimal(value)?);
            }
            b"GNU.sparse.map" => {
                let numbers = value.split(|byte| *byte == b',').map(decimal);
                said.sparse.numbers = numbers.collect::<Result<_>>()?;
            }
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    said.xattrs.push((name.to_vec(), value.to_vec()));
                }
            }
        }
        if said.sparse.numbers.len() > 2 * SPARSE_LIMIT {
            return Err(broken("a sparse file of too many pieces"));
        }
    }
    Ok(())
}

/// Seconds with a fraction, perhaps before 1970.
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
    number.and_then(|text| text.parse().ok()).ok_or_else(|| broken("a number that is none"))
}

/// GNU's long names end in a zero byte.
fn trimmed(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&0) {
        name.pop();
    }
    name
}

/// The archive itself is wrong.
pub(crate) fn broken(what: &str) -> Error {
    Error::invalid("a layer of the image is damaged or hostile").cause(what)
}

/// Reading failed: what decompresses says `InvalidData`, everything else is the host's matter.
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
