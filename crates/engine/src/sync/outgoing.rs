//! The way in: many changes on one connection, answered once.

use super::source::{Sort, Stamp};
use crate::connection::Connection;
use crate::files::{nonsense, understand, went_away};
use crate::sandboxes::Engine;
use msb_spec::{Error, Kind, Name, Result};
use msb_wire::{
    Change, Entry, EntryKind, FileReply, FileRequest, FrameKind, HEADER, MAX_CHUNK, Request,
    encode, header,
};
use std::fs::File;
use std::io::{self, Read};

/// One connection has no more changes than this: the failures of all fit into one answer.
const MOST_CHANGES: usize = 2000;
/// And no more bytes, so that what the guest says is heard now and then.
const MOST_BYTES: u64 = 32 << 20;

/// Changes on their way.
#[derive(Debug)]
pub(crate) struct Outgoing {
    connection: Connection,
    out: Vec<u8>,
    /// What was sent, in the order that the guest counts in.
    sent: Vec<Sent>,
    bytes: u64,
}

/// A change that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sent {
    Put(Vec<u8>),
    Touch(Vec<u8>),
    Remove { path: Vec<u8>, directory: bool },
    Rename { from: Vec<u8>, to: Vec<u8> },
}

/// A change that could not be made.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Which, in the order of sending.
    pub(crate) number: usize,
    pub(crate) errno: i32,
    pub(crate) error: Error,
}

/// How sending a file went.
#[derive(Debug)]
pub(crate) enum FileSent {
    /// All that it had.
    Whole,
    /// It could not be read; nothing of it was sent.
    Unreadable(io::Error),
}

impl Outgoing {
    pub(crate) fn open(engine: &Engine, sandbox: &Name, target: &[u8]) -> Result<Self> {
        let mut connection = engine.connect(sandbox, &Request::Files { user: None })?;
        let request = FileRequest::Mirror { path: target.to_vec() };
        connection.send(&encode(FrameKind::File, &request))?;
        Ok(Self { connection, out: Vec::new(), sent: Vec::new(), bytes: 0 })
    }

    /// Whether it should be finished before more is sent.
    pub(crate) fn is_full(&self) -> bool {
        self.sent.len() >= MOST_CHANGES || self.bytes >= MOST_BYTES
    }

    /// Sends a directory, or a link with what it says.
    pub(crate) fn put(&mut self, path: &[u8], kind: EntryKind, stamp: &Stamp) -> Result<()> {
        self.sent.push(Sent::Put(path.to_vec()));
        self.change(&Change::Put(entry(path, kind, stamp)))
    }

    pub(crate) fn touch(&mut self, path: &[u8], sort: Sort, stamp: &Stamp) -> Result<()> {
        let kind = if sort == Sort::Directory { EntryKind::Directory } else { EntryKind::File };
        self.sent.push(Sent::Touch(path.to_vec()));
        self.change(&Change::Touch(entry(path, kind, stamp)))
    }

    pub(crate) fn remove(&mut self, path: &[u8], directory: bool) -> Result<()> {
        self.sent.push(Sent::Remove { path: path.to_vec(), directory });
        self.change(&Change::Remove { path: path.to_vec(), directory })
    }

    pub(crate) fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        let (from, to) = (from.to_vec(), to.to_vec());
        self.sent.push(Sent::Rename { from: from.clone(), to: to.clone() });
        self.change(&Change::Rename { from, to })
    }

    /// Sends a file, at most as much as it had when it was opened: one that grows as fast as it
    /// is read has no end. An error means that the connection is of no more use.
    pub(crate) fn file(
        &mut self,
        path: &[u8],
        file: &mut File,
        stamp: &Stamp,
        progress: &mut dyn FnMut(u64),
    ) -> Result<FileSent> {
        let mut left = stamp.size;
        let mut chunk = vec![0; HEADER + (MAX_CHUNK as u64).min(stamp.size) as usize];
        // The first piece is read before anything is promised: most files have no other.
        let mut length = match fill(file, &mut chunk[HEADER..]) {
            Ok(length) => length,
            Err(error) => return Ok(FileSent::Unreadable(error)),
        };
        self.sent.push(Sent::Put(path.to_vec()));
        self.change(&Change::Put(entry(path, EntryKind::File, stamp)))?;
        while length > 0 {
            chunk[..HEADER].copy_from_slice(&header(FrameKind::Bytes, length));
            self.send(&chunk[..HEADER + length])?;
            progress(length as u64);
            self.bytes += length as u64;
            left -= length as u64;
            let wanted = left.min((chunk.len() - HEADER) as u64) as usize;
            // Half a file is worse than none: the guest forgets it when the connection ends.
            length = fill(file, &mut chunk[HEADER..HEADER + wanted])
                .map_err(|error| Error::host("cannot read on", error))?;
        }
        self.send(&header(FrameKind::Bytes, 0))?;
        Ok(FileSent::Whole)
    }

    /// Hears which changes could not be made, and why.
    pub(crate) fn finish(mut self) -> (Vec<Sent>, Result<Vec<Refused>>) {
        let failed = self.hear();
        (self.sent, failed)
    }

    /// What was sent on a connection that broke.
    pub(crate) fn abandon(self) -> Vec<Sent> {
        self.sent
    }

    fn hear(&mut self) -> Result<Vec<Refused>> {
        match self.change(&Change::End).and_then(|()| self.flush()) {
            // The guest says why it stopped listening.
            Err(error) if error.kind() != Kind::Protocol => return Err(error),
            _ => {}
        }
        let frame = self.connection.next_frame()?.ok_or_else(went_away)?;
        let reply = match frame.kind {
            FrameKind::Reply => understand(frame.value().map_err(|_| nonsense())?)?,
            _ => return Err(nonsense()),
        };
        let FileReply::Mirrored { failed } = reply else { return Err(nonsense()) };
        let told = failed.into_iter().map(|failed| {
            let (number, errno) = (failed.number as usize, failed.failure.errno);
            match understand(FileReply::Failed(failed.failure)) {
                Err(error) if number < self.sent.len() => Ok(Refused { number, errno, error }),
                _ => Err(nonsense()),
            }
        });
        told.collect()
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

fn entry(path: &[u8], kind: EntryKind, stamp: &Stamp) -> Entry {
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
