//! SFTP packets: numbers and strings in wire format.

use super::status::{SftpError, StatusCode};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest packet without its length field: a write of [`MAX_DATA`] plus headers.
pub(super) const MAX_PACKET: usize = 257 << 10;
/// Bytes of file data in one packet, as in OpenSSH, where clients take packets of 256 KiB.
pub(super) const MAX_DATA: usize = (256 << 10) - 1024;

pub(super) const INIT: u8 = 1;
pub(super) const VERSION: u8 = 2;
pub(super) const OPEN: u8 = 3;
pub(super) const CLOSE: u8 = 4;
pub(super) const READ: u8 = 5;
pub(super) const WRITE: u8 = 6;
pub(super) const LSTAT: u8 = 7;
pub(super) const FSTAT: u8 = 8;
pub(super) const SETSTAT: u8 = 9;
pub(super) const FSETSTAT: u8 = 10;
pub(super) const OPENDIR: u8 = 11;
pub(super) const READDIR: u8 = 12;
pub(super) const REMOVE: u8 = 13;
pub(super) const MKDIR: u8 = 14;
pub(super) const RMDIR: u8 = 15;
pub(super) const REALPATH: u8 = 16;
pub(super) const STAT: u8 = 17;
pub(super) const RENAME: u8 = 18;
pub(super) const READLINK: u8 = 19;
pub(super) const SYMLINK: u8 = 20;
pub(super) const STATUS: u8 = 101;
pub(super) const HANDLE: u8 = 102;
pub(super) const DATA: u8 = 103;
pub(super) const NAME: u8 = 104;
pub(super) const ATTRS: u8 = 105;
pub(super) const EXTENDED: u8 = 200;
pub(super) const EXTENDED_REPLY: u8 = 201;

/// The unread rest of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketReader<'a>(pub(super) &'a [u8]);

impl<'a> PacketReader<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SftpError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(SftpError::malformed())?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u32(&mut self) -> Result<u32, SftpError> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, SftpError> {
        self.take().map(u64::from_be_bytes)
    }

    pub(super) fn string(&mut self) -> Result<&'a [u8], SftpError> {
        let length = self.u32()? as usize;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(SftpError::malformed())?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads a path; one with a NUL byte is refused.
    pub(super) fn path(&mut self) -> Result<&'a Path, SftpError> {
        let bytes = self.string()?;
        match bytes.contains(&0) {
            true => Err(SftpError::malformed()),
            false => Ok(Path::new(OsStr::from_bytes(bytes))),
        }
    }
}

/// Encoded replies. The memory is reused.
#[derive(Debug, Default)]
pub(super) struct ReplyBuffer {
    buffer: Vec<u8>,
    filled: usize,
}

/// Offset of a length field that is filled in later.
#[derive(Debug, Clone, Copy)]
pub(super) struct LengthMark(usize);

impl ReplyBuffer {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    pub(super) fn len(&self) -> usize {
        self.filled
    }

    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    /// Begins a value with a length prefix.
    pub(super) fn begin(&mut self) -> LengthMark {
        let mark = LengthMark(self.filled);
        self.u32(0);
        mark
    }

    /// Begins a reply with its type and id.
    pub(super) fn answer(&mut self, kind: u8, id: u32) -> LengthMark {
        let mark = self.begin();
        self.put(&[kind]);
        self.u32(id);
        mark
    }

    pub(super) fn end(&mut self, mark: LengthMark) {
        let length = self.filled - mark.0 - 4;
        let length = u32::try_from(length).expect("answers are cut far below 4 GiB");
        self.set(mark, length);
    }

    /// Discards everything after the mark.
    pub(super) fn undo(&mut self, mark: LengthMark) {
        self.filled = mark.0;
    }

    /// Writes a number at a mark.
    pub(super) fn set(&mut self, at: LengthMark, number: u32) {
        self.buffer[at.0..at.0 + 4].copy_from_slice(&number.to_be_bytes());
    }

    /// Offset of the next byte.
    pub(super) fn here(&self) -> LengthMark {
        LengthMark(self.filled)
    }

    /// Bytes written since the mark.
    pub(super) fn since(&self, mark: LengthMark) -> usize {
        self.filled - mark.0
    }

    /// Room for so many bytes, with arbitrary content.
    pub(super) fn room(&mut self, length: usize) -> &mut [u8] {
        let end = self.filled + length;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        &mut self.buffer[self.filled..end]
    }

    /// Marks so many bytes of the room as filled.
    pub(super) fn advance(&mut self, length: usize) {
        self.filled += length;
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.filled += bytes.len();
    }

    pub(super) fn u32(&mut self, number: u32) {
        self.put(&number.to_be_bytes());
    }

    pub(super) fn u64(&mut self, number: u64) {
        self.put(&number.to_be_bytes());
    }

    pub(super) fn string(&mut self, bytes: &[u8]) {
        let mark = self.begin();
        self.put(bytes);
        self.end(mark);
    }

    pub(super) fn status(&mut self, id: u32, status: StatusCode, text: &str) {
        let mark = self.answer(STATUS, id);
        self.u32(status as u32);
        self.string(text.as_bytes());
        self.string(b"");
        self.end(mark);
    }

    pub(super) fn ok(&mut self, id: u32) {
        self.status(id, StatusCode::Ok, "Success");
    }

    /// A reply with one name and no attributes.
    pub(super) fn name(&mut self, id: u32, name: &[u8]) {
        let mark = self.answer(NAME, id);
        self.u32(1);
        self.string(name);
        self.string(name);
        self.u32(0);
        self.end(mark);
    }
}
