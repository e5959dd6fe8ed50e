//! Packets: numbers and strings as they travel.

use super::status::{Refused, Status};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Longest packet, without its length: a write of [`MAX_DATA`] and more than any header.
pub(super) const MAX_PACKET: usize = 257 << 10;
/// Most bytes of a file in one packet: what OpenSSH has, whose client takes packets of 256 KiB.
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

/// What is left of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Refused> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Refused::malformed())?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Refused> {
        self.take().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Refused> {
        self.take().map(u64::from_be_bytes)
    }

    pub(super) fn string(&mut self) -> Result<&'a [u8], Refused> {
        let length = self.u32()? as usize;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Refused::malformed())?;
        self.0 = rest;
        Ok(taken)
    }

    /// A path; none has a zero byte.
    pub(super) fn path(&mut self) -> Result<&'a Path, Refused> {
        let bytes = self.string()?;
        match bytes.contains(&0) {
            true => Err(Refused::malformed()),
            false => Ok(Path::new(OsStr::from_bytes(bytes))),
        }
    }
}

/// Answers, one behind the other. Its memory is used again, and cleared only once.
#[derive(Debug, Default)]
pub(super) struct Out {
    buffer: Vec<u8>,
    filled: usize,
}

/// Where an answer or a string begins, whose length is not known yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun(usize);

impl Out {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    pub(super) fn len(&self) -> usize {
        self.filled
    }

    pub(super) fn clear(&mut self) {
        self.filled = 0;
    }

    /// Begins something that has its length before it.
    pub(super) fn begin(&mut self) -> Begun {
        let begun = Begun(self.filled);
        self.u32(0);
        begun
    }

    /// Begins an answer.
    pub(super) fn answer(&mut self, kind: u8, id: u32) -> Begun {
        let begun = self.begin();
        self.put(&[kind]);
        self.u32(id);
        begun
    }

    pub(super) fn end(&mut self, begun: Begun) {
        let length = self.filled - begun.0 - 4;
        let length = u32::try_from(length).expect("answers are cut far below 4 GiB");
        self.set(begun, length);
    }

    /// Takes back what was begun.
    pub(super) fn undo(&mut self, begun: Begun) {
        self.filled = begun.0;
    }

    /// Writes a number where one was left open.
    pub(super) fn set(&mut self, at: Begun, number: u32) {
        self.buffer[at.0..at.0 + 4].copy_from_slice(&number.to_be_bytes());
    }

    /// Where the next byte comes.
    pub(super) fn here(&self) -> Begun {
        Begun(self.filled)
    }

    /// How much was written since.
    pub(super) fn since(&self, begun: Begun) -> usize {
        self.filled - begun.0
    }

    /// Room for so many bytes, which hold anything.
    pub(super) fn room(&mut self, length: usize) -> &mut [u8] {
        let end = self.filled + length;
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        &mut self.buffer[self.filled..end]
    }

    /// So many bytes of the room were filled.
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
        let begun = self.begin();
        self.put(bytes);
        self.end(begun);
    }

    pub(super) fn status(&mut self, id: u32, status: Status, text: &str) {
        let begun = self.answer(STATUS, id);
        self.u32(status as u32);
        self.string(text.as_bytes());
        self.string(b"");
        self.end(begun);
    }

    pub(super) fn ok(&mut self, id: u32) {
        self.status(id, Status::Ok, "Success");
    }

    /// An answer of one name, and nothing said about it.
    pub(super) fn name(&mut self, id: u32, name: &[u8]) {
        let begun = self.answer(NAME, id);
        self.u32(1);
        self.string(name);
        self.string(name);
        self.u32(0);
        self.end(begun);
    }
}
