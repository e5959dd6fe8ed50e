//! The mirror connection to the guest: many changes, one reply.

use super::source::{FileStamp, SourceKind};
use crate::connection::Connection;
use crate::files::{guest_closed, malformed_reply, understand};
use crate::sandboxes::Engine;
use msb_spec::{Error, Kind, Name, Result};
use msb_wire::{
    Change, Entry, EntryKind, FileReply, FileRequest, FrameKind, HEADER, MAX_CHUNK, Request,
    encode, header,
};
use std::fs::File;
use std::io::{self, Read};

/// The most changes on a connection: the failures of all fit into one reply.
const MAX_CHANGES: usize = 2000;
/// The most bytes on a connection, so that failures are seen in time.
const MAX_BYTES: u64 = 32 << 20;

/// A connection with changes in flight.
#[derive(Debug)]
pub(crate) struct MirrorConnection {
    connection: Connection,
    out: Vec<u8>,
    /// The changes sent, in the order that the guest numbers them.
    sent: Vec<SentChange>,
    bytes: u64,
}

/// A change that was sent to the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SentChange {
    Put(Vec<u8>),
    Touch(Vec<u8>),
    Remove { path: Vec<u8>, directory: bool },
    Rename { from: Vec<u8>, to: Vec<u8> },
}

/// A change that failed in the guest.
#[derive(Debug)]
pub(crate) struct FailedChange {
    /// Its index in the order of sending.
    pub(crate) number: usize,
    pub(crate) errno: i32,
    pub(crate) error: Error,
}

/// The result of sending a file.
#[derive(Debug)]
pub(crate) enum FileTransfer {
    /// The complete file was sent.
    Whole,
    /// The file could not be read; nothing of it was sent.
    Unreadable(io::Error),
}

impl MirrorConnection {
    pub(crate) fn open(engine: &Engine, sandbox: &Name, target: &[u8]) -> Result<Self> {
        let mut connection = engine.connect(sandbox, &Request::Files { user: None })?;
        let request = FileRequest::Mirror { path: target.to_vec() };
        connection.send(&encode(FrameKind::File, &request))?;
        Ok(Self { connection, out: Vec::new(), sent: Vec::new(), bytes: 0 })
    }

    /// Whether the connection has reached a limit and should be finished.
    pub(crate) fn is_full(&self) -> bool {
        self.sent.len() >= MAX_CHANGES || self.bytes >= MAX_BYTES
    }

    /// Sends a directory, or a symlink with its target.
    pub(crate) fn put(&mut self, path: &[u8], kind: EntryKind, stamp: &FileStamp) -> Result<()> {
        self.sent.push(SentChange::Put(path.to_vec()));
        self.change(&Change::Put(entry(path, kind, stamp)))
    }

    pub(crate) fn touch(&mut self, path: &[u8], kind: SourceKind, stamp: &FileStamp) -> Result<()> {
        let kind =
            if kind == SourceKind::Directory { EntryKind::Directory } else { EntryKind::File };
        self.sent.push(SentChange::Touch(path.to_vec()));
        self.change(&Change::Touch(entry(path, kind, stamp)))
    }

    pub(crate) fn remove(&mut self, path: &[u8], directory: bool) -> Result<()> {
        self.sent.push(SentChange::Remove { path: path.to_vec(), directory });
        self.change(&Change::Remove { path: path.to_vec(), directory })
    }

    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (from.to_vec(), to.to_vec());
        self.sent.push(SentChange::Rename { from: from.clone(), to: to.clone() });
        self.change(&Change::Rename { from, to })
    }

    /// Sends a file, up to its size when it was opened: one that grows as fast as it is read has no
    /// end. After an error the connection cannot be used.
    pub(crate) fn file(
        &mut self,
        path: &[u8],
        file: &mut File,
        stamp: &FileStamp,
        progress: &mut dyn FnMut(u64),
    ) -> Result<FileTransfer> {
        let mut left = stamp.size;
        let mut chunk = vec![0; HEADER + (MAX_CHUNK as u64).min(stamp.size) as usize];
        // The first piece is read before the entry is sent: most files have only one.
        let mut length = match fill(file, &mut chunk[HEADER..]) {
            Ok(length) => length,
            Err(error) => return Ok(FileTransfer::Unreadable(error)),
        };
        self.sent.push(SentChange::Put(path.to_vec()));
        self.change(&Change::Put(entry(path, EntryKind::File, stamp)))?;
        while length > 0 {
            chunk[..HEADER].copy_from_slice(&header(FrameKind::Bytes, length));
            self.send(&chunk[..HEADER + length])?;
            progress(length as u64);
            self.bytes += length as u64;
            left -= length as u64;
            let wanted = left.min((chunk.len() - HEADER) as u64) as usize;
            // The guest discards a partial file when the connection ends.
            length = fill(file, &mut chunk[HEADER..HEADER + wanted])
                .map_err(|error| Error::host("cannot read the rest of the file", error))?;
        }
        self.send(&header(FrameKind::Bytes, 0))?;
        Ok(FileTransfer::Whole)
    }

    /// Ends the connection. Returns the changes sent, and those that failed.
    pub(crate) fn finish(mut self) -> (Vec<SentChange>, Result<Vec<FailedChange>>) {
        let failed = self.read_reply();
        (self.sent, failed)
    }

    /// The changes that were sent on a broken connection.
    pub(crate) fn abandon(self) -> Vec<SentChange> {
        self.sent
    }

    fn read_reply(&mut self) -> Result<Vec<FailedChange>> {
        match self.change(&Change::End).and_then(|()| self.flush()) {
            // The reply of the guest says why it stopped reading.
            Err(error) if error.kind() != Kind::Protocol => return Err(error),
            _ => {}
        }
        let frame = self.connection.next_frame()?.ok_or_else(guest_closed)?;
        let reply = match frame.kind {
            FrameKind::Reply => understand(frame.value().map_err(|_| malformed_reply())?)?,
            _ => return Err(malformed_reply()),
        };
        let FileReply::Mirrored { failed } = reply else { return Err(malformed_reply()) };
        let failures = failed.into_iter().map(|failed| {
            let (number, errno) = (failed.number as usize, failed.failure.errno);
            match understand(FileReply::Failed(failed.failure)) {
                Err(error) if number < self.sent.len() => Ok(FailedChange { number, errno, error }),
                _ => Err(malformed_reply()),
            }
        });
        failures.collect()
    }

    fn change(&mut self, change: &Change) -> Result<()> {
        self.send(&encode(FrameKind::Change, change))
    }

    fn send(&mut self, frame: &[u8]) -> Result<()> {
        self.out.extend_from_slice(frame);
        if self.out.len() >= MAX_CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let sent = self.connection.send(&self.out);
        self.out.clear();
        sent
    }
}

fn entry(path: &[u8], kind: EntryKind, stamp: &FileStamp) -> Entry {
    Entry {
        path: path.to_vec(),
        kind,
        mode: stamp.mode,
        size: stamp.size,
        modified: stamp.modified_ms(),
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
