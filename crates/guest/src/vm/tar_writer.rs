//! Writes a layer as a POSIX tar stream to a connection.

use crate::files::{FileResult, FrameStream, failed, protocol};
use msb_wire::MAX_CHUNK;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const BLOCK: usize = 512;
/// The largest number in an eight-byte octal field with its terminator.
const MAX_OCTAL7: u64 = 0o777_7777;
/// The largest number in a twelve-byte octal field with its terminator.
const MAX_OCTAL11: u64 = 0o777_7777_7777;
/// File name of a PAX header; readers ignore it.
const PAX_NAME: &[u8] = b"pax";

/// Type flag of a tar entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum TarType {
    File = b'0',
    HardLink = b'1',
    Symlink = b'2',
    CharDevice = b'3',
    BlockDevice = b'4',
    Directory = b'5',
    Fifo = b'6',
    Pax = b'x',
}

/// A tar entry without its content.
#[derive(Debug, Clone)]
pub(super) struct TarEntry<'a> {
    /// Relative, without a trailing slash; empty for the root.
    pub(super) path: &'a [u8],
    pub(super) kind: TarType,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Modification time in seconds since 1970.
    pub(super) mtime: u64,
    /// Bytes of content that follow, for a file.
    pub(super) size: u64,
    /// Target of a link; empty for others.
    pub(super) target: &'a [u8],
    pub(super) device: (u32, u32),
    pub(super) xattrs: Vec<(String, Vec<u8>)>,
}

/// A tar stream that is being written.
pub(super) struct TarWriter<'a> {
    stream: &'a mut FrameStream,
    pending: Vec<u8>,
    entries: u64,
    bytes: u64,
}

impl<'a> TarWriter<'a> {
    pub(super) fn new(stream: &'a mut FrameStream) -> Self {
        Self { stream, pending: Vec::with_capacity(MAX_CHUNK), entries: 0, bytes: 0 }
    }

    /// Writes an entry without content.
    pub(super) fn put(&mut self, entry: &TarEntry<'_>) -> FileResult<()> {
        let mut name = entry.path.to_vec();
        if name.is_empty() {
            name.push(b'.');
        }
        if entry.kind == TarType::Directory {
            name.push(b'/');
        }
        let pax_records = pax_records(entry, &name);
        if !pax_records.is_empty() {
            let about = TarEntry {
                kind: TarType::Pax,
                mode: 0o644,
                size: pax_records.len() as u64,
                target: b"",
                xattrs: Vec::new(),
                ..entry.clone()
            };
            self.write(&header(&about, PAX_NAME))?;
            self.write(&pax_records)?;
            self.pad(pax_records.len() as u64)?;
        }
        self.entries += 1;
        self.write(&header(entry, &name))
    }

    /// Writes a file with as many bytes as its entry announces.
    pub(super) fn put_file(&mut self, entry: &TarEntry<'_>, mut file: &File) -> FileResult<()> {
        let display_path =
            || Path::new(std::ffi::OsStr::new("/")).join(crate::files::as_path(entry.path));
        self.put(entry)?;
        let mut left = entry.size;
        let mut buffer = vec![0; MAX_CHUNK];
        while left > 0 {
            let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match file.read(&mut buffer[..wanted]) {
                Ok(0) => return Err(failed("read", &display_path(), libc::EIO)),
                Ok(n) => {
                    self.write(&buffer[..n])?;
                    left -= n as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return Err(failed("read", &display_path(), errno));
                }
            }
        }
        self.bytes += entry.size;
        self.pad(entry.size)
    }

    /// Ends the stream. A layer without entries is empty.
    pub(super) fn finish(mut self) -> FileResult<()> {
        if self.entries > 0 {
            self.write(&[0; 2 * BLOCK])?;
        }
        self.flush()?;
        let (entries, bytes) = (self.entries, self.bytes);
        self.stream.done(entries, bytes)
    }

    /// Pads the last block after `length` bytes.
    fn pad(&mut self, length: u64) -> FileResult<()> {
        let over = (length % BLOCK as u64) as usize;
        self.write(&[0; BLOCK][..(BLOCK - over) % BLOCK])
    }

    fn write(&mut self, mut bytes: &[u8]) -> FileResult<()> {
        while !bytes.is_empty() {
            let room = MAX_CHUNK - self.pending.len();
            let some = bytes.len().min(room);
            self.pending.extend_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            if self.pending.len() == MAX_CHUNK {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> FileResult<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let sent = self.stream.bytes(&self.pending);
        self.pending.clear();
        sent.map_err(|_| protocol("write to the client"))
    }
}

/// PAX records for what does not fit into a header.
fn pax_records(entry: &TarEntry<'_>, name: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    let mut add = |key: &str, value: &[u8]| records.extend(record(key, value));
    if name.len() > 100 {
        add("path", name);
    }
    if entry.target.len() > 100 {
        add("linkpath", entry.target);
    }
    let numbers = [
        ("size", entry.size, MAX_OCTAL11),
        ("uid", entry.uid.into(), MAX_OCTAL7),
        ("gid", entry.gid.into(), MAX_OCTAL7),
    ];
    for (key, number, most) in numbers {
        if number > most {
            add(key, number.to_string().as_bytes());
        }
    }
    for (name, value) in &entry.xattrs {
        add(&format!("SCHILY.xattr.{name}"), value);
    }
    records
}

/// A PAX record: its length includes its own digits.
fn record(key: &str, value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    let mut record = format!("{length} {key}=").into_bytes();
    record.extend_from_slice(value);
    record.push(b'\n');
    record
}

fn header(entry: &TarEntry<'_>, name: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    let octal = |number: u64, digits: usize, most: u64| {
        // A larger number is in a PAX record.
        let number = if number > most { 0 } else { number };
        format!("{number:0digits$o}\0").into_bytes()
    };
    put(0, &name[..name.len().min(100)]);
    put(100, &octal(u64::from(entry.mode & 0o7777), 7, MAX_OCTAL7));
    put(108, &octal(entry.uid.into(), 7, MAX_OCTAL7));
    put(116, &octal(entry.gid.into(), 7, MAX_OCTAL7));
    put(124, &octal(entry.size, 11, MAX_OCTAL11));
    put(136, &octal(entry.mtime, 11, MAX_OCTAL11));
    put(148, b"        ");
    put(156, &[entry.kind as u8]);
    put(157, &entry.target[..entry.target.len().min(100)]);
    put(257, b"ustar\x0000");
    put(329, &octal(entry.device.0.into(), 7, MAX_OCTAL7));
    put(337, &octal(entry.device.1.into(), 7, MAX_OCTAL7));
    // The checksum counts its own field as blanks.
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..155].copy_from_slice(&format!("{sum:06o}\0").into_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_digits() {
        assert_eq!(record("path", b"abc"), b"12 path=abc\n");
        for length in 0..1200 {
            let record = record("k", &vec![b'x'; length]);
            let length: usize = record
                .split(|byte| *byte == b' ')
                .next()
                .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
                .unwrap();
            assert_eq!(length, record.len());
        }
    }
}
