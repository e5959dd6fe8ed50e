//! Sends a tree of the host to a guest.
//!
//! The root is opened by a path without symlinks, everything else below that descriptor and without
//! following symlinks. A sandbox that writes to the directory during the copy cannot redirect it to
//! other files of the host.

use crate::connection::Connection;
use crate::files::{CopyCount, Progress, symlink_in_path};
use crate::sync::{FileStamp, SourceDir, SourceKind};
use msb_spec::{Error, Kind, Result};
use msb_sys::sparse::{self, Run};
use msb_wire::{Entry, EntryKind, FrameKind, HEADER, MAX_CHUNK, encode, header};
use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, openat2};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Below this size, many files are gathered in one write; above it `sendfile(2)` is faster.
const SENDFILE_MIN: usize = 64 << 10;

/// A file or directory of the host, opened.
pub(crate) struct HostTree {
    path: PathBuf,
    root: TreeRoot,
}

enum TreeRoot {
    File(File, FileStamp),
    Directory(SourceDir, FileStamp),
    /// A device, socket or FIFO, which is not copied.
    Other,
}

impl HostTree {
    /// Opens a path that has no symlink in it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let about = |error: std::io::Error| {
            let loops = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
            if loops { symlink_in_path(path) } else { failed(path, error) }
        };
        let opened = |flags: OFlags| -> std::io::Result<_> {
            let flags = flags | OFlags::CLOEXEC;
            Ok(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?)
        };
        // O_PATH first: opening a device may have side effects.
        let (kind, _) =
            SourceDir::described(&opened(OFlags::PATH).map_err(about)?).map_err(about)?;
        let root = match kind {
            SourceKind::Directory => {
                let directory = opened(OFlags::RDONLY | OFlags::DIRECTORY).map_err(about)?;
                let (_, stamp) = SourceDir::described(&directory).map_err(about)?;
                TreeRoot::Directory(SourceDir::from_open(path, directory, stamp), stamp)
            }
            SourceKind::File => {
                let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                let file = opened(flags).map_err(about)?;
                match SourceDir::described(&file).map_err(about)? {
                    (SourceKind::File, stamp) => TreeRoot::File(File::from(file), stamp),
                    _ => TreeRoot::Other,
                }
            }
            SourceKind::Symlink => return Err(symlink_in_path(path)),
            SourceKind::Other => TreeRoot::Other,
        };
        Ok(Self { path: path.to_owned(), root })
    }

    /// Sends the tree and the end marker.
    pub(crate) fn send(
        self,
        connection: &mut Connection,
        copied: &mut CopyCount,
        progress: Progress<'_>,
    ) -> Result<()> {
        let Self { path, root } = self;
        let mut sender = TreeSender { connection, out: Vec::new(), progress, copied, root: path };
        match root {
            TreeRoot::File(file, stamp) => sender.file(&[], file, &stamp)?,
            TreeRoot::Directory(source, stamp) => sender.directory(&source, &[], &stamp)?,
            TreeRoot::Other => sender.copied.left_out += 1,
        }
        sender.end()
    }
}

struct TreeSender<'a, 'p> {
    connection: &'a mut Connection,
    out: Vec<u8>,
    progress: Progress<'p>,
    copied: &'a mut CopyCount,
    /// The path of the root, for error messages.
    root: PathBuf,
}

impl TreeSender<'_, '_> {
    fn directory(&mut self, source: &SourceDir, below: &[u8], stamp: &FileStamp) -> Result<()> {
        self.entry(below, EntryKind::Directory, stamp, 0)?;
        for (name, kind) in listed(source, below).map_err(|error| self.failed(below, error))? {
            let mut path = below.to_vec();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&name);
            self.one(source, &path, kind)?;
        }
        Ok(())
    }

    fn one(&mut self, source: &SourceDir, path: &[u8], kind: FileType) -> Result<()> {
        // Most entries are files, which need no fstat before they are opened.
        if kind == FileType::RegularFile
            && let Ok(Some((file, stamp))) = source.file(path)
        {
            return self.file(path, file, &stamp);
        }
        let entry = source.look_up(path).map_err(|error| self.failed(path, error))?;
        match entry.kind {
            SourceKind::Directory => self.directory(source, path, &entry.stamp),
            SourceKind::Symlink => {
                let target = entry.link().map_err(|error| self.failed(path, error))?;
                self.entry(path, EntryKind::Symlink(target), &entry.stamp, 0)
            }
            SourceKind::File => {
                match source.file(path).map_err(|error| self.failed(path, error))? {
                    Some((file, stamp)) => self.file(path, file, &stamp),
                    None => self.left_out(),
                }
            }
            SourceKind::Other => self.left_out(),
        }
    }

    fn left_out(&mut self) -> Result<()> {
        self.copied.left_out += 1;
        Ok(())
    }

    fn entry(&mut self, below: &[u8], kind: EntryKind, stamp: &FileStamp, size: u64) -> Result<()> {
        let (mode, modified) = (stamp.mode, stamp.modified_ms());
        let entry = Entry { path: below.to_vec(), kind, mode, size, modified };
        self.copied.entries += 1;
        self.send(&encode(FrameKind::Entry, &entry))
    }

    fn file(&mut self, below: &[u8], mut file: File, stamp: &FileStamp) -> Result<()> {
        self.entry(below, EntryKind::File, stamp, stamp.size)?;
        let has_holes = stamp.size >= SENDFILE_MIN as u64
            && sparse::has_holes(&file).map_err(|error| self.failed(below, error))?;
        let mut at = 0;
        while at < stamp.size {
            let run = match has_holes {
                true => sparse::run_at(&file, at, stamp.size)
                    .map_err(|error| self.failed(below, error))?,
                false => Run::Data { end: stamp.size },
            };
            match run {
                Run::Data { end } => self.bytes(below, &mut file, end - at)?,
                Run::Hole { end } => {
                    self.send(&encode(FrameKind::Hole, &(end - at)))?;
                    self.copied.bytes += end - at;
                    (self.progress)(end - at);
                }
            }
            at = run.end();
        }
        Ok(())
    }

    /// Sends `length` bytes of a file from its position on.
    fn bytes(&mut self, below: &[u8], file: &mut File, length: u64) -> Result<()> {
        let mut left = length;
        while left > 0 {
            let wanted = left.min(MAX_CHUNK as u64) as usize;
            if wanted < SENDFILE_MIN {
                let at = self.out.len();
                self.out.extend_from_slice(&header(FrameKind::Bytes, wanted));
                self.out.resize(at + HEADER + wanted, 0);
                read_fully(file, &mut self.out[at + HEADER..])
                    .map_err(|error| self.failed(below, error))?;
                self.flush_if_full()?;
            } else {
                self.flush()?;
                let sent = self.connection.send_file(FrameKind::Bytes, file, wanted)?;
                // A file that has shrunk is padded with zeroes: its size was announced.
                self.connection.send(&vec![0; wanted - sent])?;
            }
            left -= wanted as u64;
            self.copied.bytes += wanted as u64;
            (self.progress)(wanted as u64);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let end = Entry { path: Vec::new(), kind: EntryKind::End, mode: 0, size: 0, modified: 0 };
        self.send(&encode(FrameKind::Entry, &end))?;
        self.flush()
    }

    fn send(&mut self, frame: &[u8]) -> Result<()> {
        self.out.extend_from_slice(frame);
        self.flush_if_full()
    }

    fn flush_if_full(&mut self) -> Result<()> {
        if self.out.len() >= MAX_CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        let sent = self.connection.send(&self.out);
        self.out.clear();
        sent
    }

    fn failed(&self, below: &[u8], error: std::io::Error) -> Error {
        failed(&self.root.join(OsStr::from_bytes(below)), error)
    }
}

/// The entries of a directory. It is closed before they are opened, since trees are deep.
fn listed(source: &SourceDir, below: &[u8]) -> std::io::Result<Vec<(Vec<u8>, FileType)>> {
    let mut all = Vec::new();
    for entry in Dir::new(source.directory(below)?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            all.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(all)
}

/// Fills a buffer from a file; bytes beyond its end stay as they are.
fn read_fully(file: &mut File, mut buffer: &mut [u8]) -> std::io::Result<()> {
    while !buffer.is_empty() {
        match file.read(buffer)? {
            0 => return Ok(()),
            n => buffer = &mut buffer[n..],
        }
    }
    Ok(())
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    let text = format!("cannot read `{}`", path.display());
    match error.kind() {
        std::io::ErrorKind::NotFound => Error::new(Kind::NotFound, text).cause(error),
        _ => Error::host(text, error),
    }
}
