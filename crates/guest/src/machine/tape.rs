//! Writes a layer as a tar stream onto a connection, in the format that every tool reads (POSIX).

use crate::files::{Done, Stream, failed, protocol};
use msb_wire::MAX_CHUNK;
use std::fs::File;
use std::io::Read;
use std::path::Path;

const BLOCK: usize = 512;
/// What eight digits of base eight hold, less the one that ends them.
const SMALL: u64 = 0o777_7777;
/// The same of twelve.
const LARGE: u64 = 0o777_7777_7777;
/// The name of a header that says more about the next one. Nobody looks at it.
const MORE: &[u8] = b"pax";

/// What sort of thing an entry is, by the letter that archives have for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Sort {
    File = b'0',
    HardLink = b'1',
    Symlink = b'2',
    CharDevice = b'3',
    BlockDevice = b'4',
    Directory = b'5',
    Fifo = b'6',
    More = b'x',
}

/// One entry, without what it holds.
#[derive(Debug, Clone)]
pub(super) struct Entry<'a> {
    /// Relative, without a slash at its end; empty is the root.
    pub(super) path: &'a [u8],
    pub(super) sort: Sort,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Seconds since 1970.
    pub(super) mtime: u64,
    /// Of a file: the bytes that follow.
    pub(super) size: u64,
    /// Where a link leads.
    pub(super) target: &'a [u8],
    pub(super) device: (u32, u32),
    pub(super) attributes: Vec<(String, Vec<u8>)>,
}

/// A tar stream that is written.
pub(super) struct Tape<'a> {
    stream: &'a mut Stream,
    pending: Vec<u8>,
    entries: u64,
    bytes: u64,
}

impl<'a> Tape<'a> {
    pub(super) fn new(stream: &'a mut Stream) -> Self {
        Self { stream, pending: Vec::with_capacity(MAX_CHUNK), entries: 0, bytes: 0 }
    }

    /// Writes an entry that holds nothing.
    pub(super) fn put(&mut self, entry: &Entry<'_>) -> Done<()> {
        let mut name = entry.path.to_vec();
        if name.is_empty() {
            name.push(b'.');
        }
        if entry.sort == Sort::Directory {
            name.push(b'/');
        }
        let more = more(entry, &name);
        if !more.is_empty() {
            let about = Entry {
                sort: Sort::More,
                mode: 0o644,
                size: more.len() as u64,
                target: b"",
                attributes: Vec::new(),
                ..entry.clone()
            };
            self.write(&header(&about, MORE))?;
            self.write(&more)?;
            self.fill(more.len() as u64)?;
        }
        self.entries += 1;
        self.write(&header(entry, &name))
    }

    /// Writes a file with as many bytes as its entry promises.
    pub(super) fn put_file(&mut self, entry: &Entry<'_>, mut file: &File) -> Done<()> {
        let shown = || Path::new(std::ffi::OsStr::new("/")).join(crate::files::as_path(entry.path));
        self.put(entry)?;
        let mut left = entry.size;
        let mut buffer = vec![0; MAX_CHUNK];
        while left > 0 {
            let wanted = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match file.read(&mut buffer[..wanted]) {
                Ok(0) => return Err(failed("read", &shown(), libc::EIO)),
                Ok(n) => {
                    self.write(&buffer[..n])?;
                    left -= n as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let errno = error.raw_os_error().unwrap_or(libc::EIO);
                    return Err(failed("read", &shown(), errno));
                }
            }
        }
        self.bytes += entry.size;
        self.fill(entry.size)
    }

    /// Ends the stream; nothing at all is written of a layer without entries.
    pub(super) fn finish(mut self) -> Done<()> {
        if self.entries > 0 {
            self.write(&[0; 2 * BLOCK])?;
        }
        self.flush()?;
        let (entries, bytes) = (self.entries, self.bytes);
        self.stream.done(entries, bytes)
    }

    /// Fills up the last block of so many bytes.
    fn fill(&mut self, length: u64) -> Done<()> {
        let over = (length % BLOCK as u64) as usize;
        self.write(&[0; BLOCK][..(BLOCK - over) % BLOCK])
    }

    fn write(&mut self, mut bytes: &[u8]) -> Done<()> {
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

    fn flush(&mut self) -> Done<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let sent = self.stream.bytes(&self.pending);
        self.pending.clear();
        sent.map_err(|_| protocol("tell the client"))
    }
}

/// What does not fit into a header: records of a length, a key and a value.
fn more(entry: &Entry<'_>, name: &[u8]) -> Vec<u8> {
    let mut records = Vec::new();
    let mut add = |key: &str, value: &[u8]| records.extend(record(key, value));
    if name.len() > 100 {
        add("path", name);
    }
    if entry.target.len() > 100 {
        add("linkpath", entry.target);
    }
    let numbers = [
        ("size", entry.size, LARGE),
        ("uid", entry.uid.into(), SMALL),
        ("gid", entry.gid.into(), SMALL),
    ];
    for (key, number, most) in numbers {
        if number > most {
            add(key, number.to_string().as_bytes());
        }
    }
    for (name, value) in &entry.attributes {
        add(&format!("SCHILY.xattr.{name}"), value);
    }
    records
}

/// One record, whose length counts its own digits.
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

fn header(entry: &Entry<'_>, name: &[u8]) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    let octal = |number: u64, digits: usize, most: u64| {
        // What does not fit is in a record before this header.
        let number = if number > most { 0 } else { number };
        format!("{number:0digits$o}\0").into_bytes()
    };
    put(0, &name[..name.len().min(100)]);
    put(100, &octal(u64::from(entry.mode & 0o7777), 7, SMALL));
    put(108, &octal(entry.uid.into(), 7, SMALL));
    put(116, &octal(entry.gid.into(), 7, SMALL));
    put(124, &octal(entry.size, 11, LARGE));
    put(136, &octal(entry.mtime, 11, LARGE));
    put(148, b"        ");
    put(156, &[entry.sort as u8]);
    put(157, &entry.target[..entry.target.len().min(100)]);
    put(257, b"ustar\x0000");
    put(329, &octal(entry.device.0.into(), 7, SMALL));
    put(337, &octal(entry.device.1.into(), 7, SMALL));
    // The sum is taken as if its own field were blanks.
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
            let said: usize = record
                .split(|byte| *byte == b' ')
                .next()
                .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
                .unwrap();
            assert_eq!(said, record.len());
        }
    }
}
