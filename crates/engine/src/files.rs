//! File operations of a running sandbox, and copies between it and the host.
//!
//! The guest serves them inside. What it sends is hostile: entries of a tree are checked and
//! written below one open directory, through no link; see `pull.rs`.

use crate::connection::Connection;
use crate::pull;
use crate::volumes::Served;
pub use msb_api::Copied;
use msb_spec::{Error, Kind, Patch, Result};
use msb_wire::{
    Entry, EntryKind, FileReply, FileRequest, FrameKind, HEADER, MAX_CHUNK, Meta, encode, header,
};
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Told of every piece of a copy, for a progress bar.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// One file operation on a connection made for it.
#[derive(Debug)]
pub struct Files {
    connection: Connection,
    /// Who serves it, if it is no sandbox. Dropped after the connection, whose end it waits for.
    served: Option<Served>,
}

impl Files {
    pub(crate) fn on(connection: Connection) -> Self {
        Self { connection, served: None }
    }

    pub(crate) fn of_volume(connection: Connection, served: Served) -> Self {
        Self { connection, served: Some(served) }
    }

    fn ask(&mut self, request: &FileRequest) -> Result<()> {
        self.connection.send(&encode(FrameKind::File, request))
    }

    fn answer(&mut self) -> Result<FileReply> {
        let frame = self.connection.next_frame()?.ok_or_else(went_away)?;
        match frame.kind {
            FrameKind::Reply => self.understand(frame.value().map_err(|_| nonsense())?),
            _ => Err(nonsense()),
        }
    }

    fn understand(&self, reply: FileReply) -> Result<FileReply> {
        understand_in(self.place(), reply)
    }

    /// What the files are in.
    fn place(&self) -> &'static str {
        if self.served.is_some() { "volume" } else { "sandbox" }
    }

    /// Runs an operation that answers with nothing but success.
    pub fn run(mut self, request: &FileRequest) -> Result<()> {
        self.ask(request)?;
        match self.answer()? {
            FileReply::Done { .. } => Ok(()),
            _ => Err(nonsense()),
        }
    }

    /// What a path is.
    pub fn stat(mut self, path: &[u8], follow: bool) -> Result<Meta> {
        self.ask(&FileRequest::Stat { path: path.to_vec(), follow })?;
        match self.answer()? {
            FileReply::Meta(meta) => Ok(meta),
            _ => Err(nonsense()),
        }
    }

    /// The entries of a directory, sorted by name.
    pub fn list(mut self, path: &[u8]) -> Result<Vec<Meta>> {
        self.ask(&FileRequest::List { path: path.to_vec() })?;
        let mut all = Vec::new();
        loop {
            match self.answer()? {
                FileReply::Entries(entries) => all.extend(entries),
                FileReply::Done { .. } => break,
                _ => return Err(nonsense()),
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Reads a file piece by piece.
    pub fn read(
        mut self,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.ask(&FileRequest::Read { path: path.to_vec(), offset, length })?;
        loop {
            let frame = self.connection.next_frame()?.ok_or_else(went_away)?;
            match frame.kind {
                FrameKind::Bytes if frame.payload.is_empty() => return Ok(()),
                FrameKind::Bytes => take(&frame.payload)?,
                FrameKind::Reply => {
                    return self.understand(frame.value().map_err(|_| nonsense())?).map(|_| ());
                }
                _ => return Err(nonsense()),
            }
        }
    }

    /// Makes or replaces a file, or adds to it.
    pub fn write(
        mut self,
        path: &[u8],
        mode: u32,
        append: bool,
        mut content: impl Read,
    ) -> Result<u64> {
        self.ask(&FileRequest::Write { path: path.to_vec(), mode, append })?;
        let mut buffer = vec![0u8; HEADER + MAX_CHUNK];
        loop {
            let n = content
                .read(&mut buffer[HEADER..])
                .map_err(|error| Error::host("cannot read what is to be written", error))?;
            buffer[..HEADER].copy_from_slice(&header(FrameKind::Bytes, n));
            if self.connection.send(&buffer[..HEADER + n]).is_err() || n == 0 {
                break;
            }
        }
        match self.answer()? {
            FileReply::Done { bytes, .. } => Ok(bytes),
            _ => Err(nonsense()),
        }
    }

    /// Copies a file or tree of the host in. If `to` is a directory inside, below it.
    pub fn push(
        mut self,
        from: &Path,
        to: &[u8],
        below: bool,
        progress: Progress<'_>,
    ) -> Result<Copied> {
        let about = |error| Error::host(format!("cannot copy `{}`", from.display()), error);
        let root = fs::canonicalize(from).map_err(about)?;
        let name = std::path::absolute(from).map_err(about)?;
        let name = name.file_name().or(root.file_name()).unwrap_or_default().as_bytes().to_vec();
        // `dir/.` means what it holds, as with cp.
        let contents_only = from.as_os_str().as_bytes().ends_with(b"/.");
        let into = (below && !contents_only).then_some(name);
        self.ask(&FileRequest::Push { path: to.to_vec(), into })?;
        let mut sender = Sender {
            connection: &mut self.connection,
            out: Vec::new(),
            progress,
            copied: Copied::default(),
        };
        let sent = sender.tree(&root, Path::new("")).and_then(|()| sender.end());
        let copied = sender.copied;
        match sent {
            Ok(()) => {}
            // The guest says why it stopped listening.
            Err(error) if error.kind() == Kind::Protocol => {}
            Err(error) => return Err(error),
        }
        match self.answer()? {
            FileReply::Done { .. } => Ok(copied),
            _ => Err(nonsense()),
        }
    }

    /// Copies a file or tree out to the host. If `to` is a directory there, below it.
    pub fn pull(mut self, from: &[u8], to: &Path, progress: Progress<'_>) -> Result<Copied> {
        self.ask(&FileRequest::Pull { path: from.to_vec() })?;
        let place = self.place();
        let copied = pull::receive(&mut self.connection, place, (from, to), progress)?;
        match self.answer()? {
            FileReply::Done { .. } => Ok(copied),
            _ => Err(nonsense()),
        }
    }

    /// Makes one change that a Plan asks for.
    pub(crate) fn patch(self, patch: &Patch) -> Result<()> {
        let bytes = |path: &msb_spec::GuestPath| path.as_str().as_bytes().to_vec();
        match patch {
            Patch::Text { path, content, mode } => {
                let mode = mode.unwrap_or(0o644);
                self.write(&bytes(path), mode, false, content.as_bytes()).map(drop)
            }
            Patch::Bytes { path, content } => {
                self.write(&bytes(path), 0o644, false, content.as_slice()).map(drop)
            }
            Patch::Mode { path, mode } => {
                let (path, mode) = (bytes(path), Some(*mode));
                self.run(&FileRequest::Set { path, mode, owner: None, group: None })
            }
            Patch::Append { path, content } => {
                self.write(&bytes(path), 0o644, true, content.as_bytes()).map(drop)
            }
            Patch::Mkdir { path } => {
                self.run(&FileRequest::Mkdir { path: bytes(path), parents: true })
            }
            Patch::Remove { path } => {
                self.run(&FileRequest::Remove { path: bytes(path), recursive: true })
            }
            Patch::Absent { path } => match self.stat(&bytes(path), false) {
                Ok(_) => Err(Error::new(Kind::Exists, format!("`{path}` is there already"))),
                Err(error) if error.kind() == Kind::NotFound => Ok(()),
                Err(error) => Err(error),
            },
            Patch::Symlink { path, target } => self.run(&FileRequest::Symlink {
                path: bytes(path),
                target: target.as_bytes().to_vec(),
            }),
            Patch::Copy { from, to } => {
                let below = from.is_file();
                self.push(from, &bytes(to), below, &mut |_| {}).map(drop)
            }
        }
    }
}

/// Below this, gathering many files for one write beats sending each from its own pages.
const SMALL: usize = 64 << 10;

/// Fills a buffer from a file; what a shrunken one does not have stays as it is.
fn read_fully(file: &mut File, mut buffer: &mut [u8]) -> std::io::Result<()> {
    while !buffer.is_empty() {
        match file.read(buffer)? {
            0 => return Ok(()),
            n => buffer = &mut buffer[n..],
        }
    }
    Ok(())
}

/// Sends a tree of the host.
struct Sender<'a, 'p> {
    connection: &'a mut Connection,
    out: Vec<u8>,
    progress: Progress<'p>,
    copied: Copied,
}

impl Sender<'_, '_> {
    fn tree(&mut self, place: &Path, below: &Path) -> Result<()> {
        let about = |error| Error::host(format!("cannot read `{}`", place.display()), error);
        let meta = fs::symlink_metadata(place).map_err(about)?;
        let kind = if meta.is_file() {
            return self.file(place, below, &meta);
        } else if meta.is_dir() {
            EntryKind::Directory
        } else if meta.is_symlink() {
            EntryKind::Symlink(fs::read_link(place).map_err(about)?.as_os_str().as_bytes().to_vec())
        } else {
            self.copied.left_out += 1;
            return Ok(());
        };
        self.entry(below, kind, &meta, 0)?;
        if meta.is_dir() {
            for entry in fs::read_dir(place).map_err(about)? {
                let name = entry.map_err(about)?.file_name();
                self.tree(&place.join(&name), &below.join(&name))?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, below: &Path, kind: EntryKind, meta: &Metadata, size: u64) -> Result<()> {
        let entry = Entry {
            path: below.as_os_str().as_bytes().to_vec(),
            kind,
            mode: meta.permissions().mode() & 0o777,
            size,
            modified: meta.mtime().saturating_mul(1000) + meta.mtime_nsec() / 1_000_000,
        };
        self.copied.entries += 1;
        self.send(&encode(FrameKind::Entry, &entry))
    }

    fn file(&mut self, place: &Path, below: &Path, meta: &Metadata) -> Result<()> {
        let about = |error| Error::host(format!("cannot read `{}`", place.display()), error);
        let mut file = File::open(place).map_err(about)?;
        self.entry(below, EntryKind::File, meta, meta.len())?;
        let mut left = meta.len();
        while left > 0 {
            let wanted = left.min(MAX_CHUNK as u64) as usize;
            if wanted < SMALL {
                let at = self.out.len();
                self.out.extend_from_slice(&header(FrameKind::Bytes, wanted));
                self.out.resize(at + HEADER + wanted, 0);
                read_fully(&mut file, &mut self.out[at + HEADER..]).map_err(about)?;
                self.flush_if_full()?;
            } else {
                self.flush()?;
                let sent = self.connection.send_file(FrameKind::Bytes, &file, wanted)?;
                // A file that shrinks meanwhile is filled up with zeroes: its size was promised.
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
}

/// A failure that the guest reports, as an error. Its words are escaped: they are a guest's.
pub fn understand(reply: FileReply) -> Result<FileReply> {
    understand_in("sandbox", reply)
}

/// The same for what is in another place.
pub(crate) fn understand_in(place: &str, reply: FileReply) -> Result<FileReply> {
    let FileReply::Failed(failure) = reply else {
        return Ok(reply);
    };
    let doing: String = failure.doing.chars().take(300).collect();
    let doing = msb_spec::shown(&doing);
    let cause = std::io::Error::from_raw_os_error(failure.errno);
    let kind = match cause.kind() {
        std::io::ErrorKind::NotFound => Kind::NotFound,
        std::io::ErrorKind::AlreadyExists => Kind::Exists,
        _ => Kind::Host,
    };
    let error = Error::new(kind, format!("in the {place}, cannot {doing}"));
    Err(if failure.errno == 0 { error } else { error.cause(cause) })
}

pub(crate) fn nonsense() -> Error {
    Error::new(Kind::Protocol, "the guest answered something that makes no sense")
}

pub(crate) fn went_away() -> Error {
    Error::new(Kind::Protocol, "the guest stopped answering")
        .hint("the sandbox may have been stopped, or be at its limit of processes")
}
