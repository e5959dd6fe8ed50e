//! File operations in a running sandbox or a volume, and copies to and from the host.
//!
//! The guest serves them inside. Its replies are untrusted: entries of a tree are checked and
//! written below one open directory, without following symlinks; see `pull.rs`.

use crate::connection::Connection;
use crate::volumes::VolumeFileServer;
use crate::{pull, push, relay};
pub use msb_api::CopyCount;
use msb_spec::{Error, Kind, Patch, Result};
use msb_wire::{
    EntryKind, FileReply, FileRequest, FrameKind, HEADER, MAX_CHUNK, Meta, encode, header,
};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Called with the byte count of every piece of a copy, for a progress bar.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// The most entries of a listing, and the most bytes of names and symlink targets in it: a hostile
/// guest would send an endless one.
const LIST_ENTRIES: usize = 1 << 20;
const LIST_BYTES: usize = 64 << 20;
/// NAME_MAX and PATH_MAX of Linux.
const NAME_BYTES: usize = 255;
const LINK_BYTES: usize = 4096;

/// One file operation on its own connection.
#[derive(Debug)]
pub struct Files {
    connection: Connection,
    /// The file server process of a volume; `None` for a sandbox. Dropped after the connection,
    /// because it waits for the server to end.
    volume_server: Option<VolumeFileServer>,
    links: SymlinkPolicy,
}

/// What to do with symlinks in a host path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SymlinkPolicy {
    /// The caller has all rights of this process.
    #[default]
    Follow,
    /// The path was resolved and checked before: a symlink in it now is an attack.
    Refuse,
}

impl Files {
    pub(crate) fn over(connection: Connection) -> Self {
        Self { connection, volume_server: None, links: SymlinkPolicy::Follow }
    }

    pub(crate) fn of_volume(connection: Connection, volume_server: VolumeFileServer) -> Self {
        Self { connection, volume_server: Some(volume_server), links: SymlinkPolicy::Follow }
    }

    fn ask(&mut self, request: &FileRequest) -> Result<()> {
        self.connection.set_guest_timeouts()?;
        self.connection.send(&encode(FrameKind::File, request))
    }

    fn answer(&mut self) -> Result<FileReply> {
        let frame = self.connection.next_frame()?.ok_or_else(guest_closed)?;
        match frame.kind {
            FrameKind::Reply => self.understand(frame.value().map_err(|_| malformed_reply())?),
            _ => Err(malformed_reply()),
        }
    }

    fn understand(&self, reply: FileReply) -> Result<FileReply> {
        understand_in(self.place(), reply)
    }

    /// Where the files are, for error messages.
    fn place(&self) -> &'static str {
        if self.volume_server.is_some() { "volume" } else { "sandbox" }
    }

    /// Runs an operation without a result.
    pub fn run(mut self, request: &FileRequest) -> Result<()> {
        self.ask(request)?;
        match self.answer()? {
            FileReply::Done { .. } => Ok(()),
            _ => Err(malformed_reply()),
        }
    }

    /// The metadata of a path.
    pub fn stat(mut self, path: &[u8], follow: bool) -> Result<Meta> {
        self.ask(&FileRequest::Stat { path: path.to_vec(), follow })?;
        match self.answer()? {
            FileReply::Meta(meta) => Ok(meta),
            _ => Err(malformed_reply()),
        }
    }

    /// Resolves a path; a relative one starts at the home directory of the user.
    pub fn real(mut self, path: &[u8]) -> Result<Vec<u8>> {
        self.ask(&FileRequest::Real { path: path.to_vec() })?;
        match self.answer()? {
            FileReply::Path(path) => Ok(path),
            _ => Err(malformed_reply()),
        }
    }

    /// Lists a directory, sorted by name.
    pub fn list(mut self, path: &[u8]) -> Result<Vec<Meta>> {
        self.ask(&FileRequest::List { path: path.to_vec() })?;
        let mut all = Vec::new();
        let mut bytes = 0;
        loop {
            match self.answer()? {
                FileReply::Entries(entries) => {
                    bytes += entries.iter().map(weight).sum::<Result<usize>>()?;
                    all.extend(entries);
                    if all.len() > LIST_ENTRIES || bytes > LIST_BYTES {
                        return Err(too_long());
                    }
                }
                FileReply::Done { .. } => break,
                _ => return Err(malformed_reply()),
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Reads a file, or `length` bytes of it from `offset`, piece by piece.
    pub fn read(
        mut self,
        path: &[u8],
        offset: u64,
        length: Option<u64>,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.ask(&FileRequest::Read { path: path.to_vec(), offset, length })?;
        let mut left = length.unwrap_or(u64::MAX);
        loop {
            let frame = self.connection.next_frame()?.ok_or_else(guest_closed)?;
            match frame.kind {
                FrameKind::Bytes if frame.payload.is_empty() => return Ok(()),
                FrameKind::Bytes => {
                    // A guest that sends more than requested is refused.
                    left =
                        left.checked_sub(frame.payload.len() as u64).ok_or_else(malformed_reply)?;
                    take(&frame.payload)?;
                }
                FrameKind::Reply => {
                    return self
                        .understand(frame.value().map_err(|_| malformed_reply())?)
                        .map(|_| ());
                }
                _ => return Err(malformed_reply()),
            }
        }
    }

    /// Creates, replaces or appends to a file. Returns the bytes written.
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
            _ => Err(malformed_reply()),
        }
    }

    /// Refuses symlinks in the host path, which was resolved and checked before.
    #[must_use]
    pub(crate) fn refusing_symlinks(self) -> Self {
        Self { links: SymlinkPolicy::Refuse, ..self }
    }

    /// Copies a file or tree of the host into the sandbox: to `to`, or below it if that is a
    /// directory and `below` is set.
    pub fn push(
        mut self,
        from: &Path,
        to: &[u8],
        below: bool,
        progress: Progress<'_>,
    ) -> Result<CopyCount> {
        let about = |error| Error::host(format!("cannot copy `{}`", from.display()), error);
        let root = match self.links {
            SymlinkPolicy::Follow => fs::canonicalize(from).map_err(about)?,
            SymlinkPolicy::Refuse => from.to_owned(),
        };
        let tree = push::HostTree::open(&root)?;
        let name = std::path::absolute(from).map_err(about)?;
        let name = name.file_name().or(root.file_name()).unwrap_or_default().as_bytes().to_vec();
        // `dir/.` copies the contents, as with cp.
        let contents_only = from.as_os_str().as_bytes().ends_with(b"/.");
        let into = (below && !contents_only).then_some(name);
        self.ask(&FileRequest::Push { path: to.to_vec(), into })?;
        let mut copied = CopyCount::default();
        let sent = tree.send(&mut self.connection, &mut copied, progress);
        match sent {
            Ok(()) => {}
            // The reply of the guest says why it stopped reading.
            Err(error) if error.kind() == Kind::Protocol => {}
            Err(error) => return Err(error),
        }
        match self.answer()? {
            FileReply::Done { .. } => Ok(copied),
            _ => Err(malformed_reply()),
        }
    }

    /// Copies a file or tree to the host: to `to`, or below it if that is a directory.
    pub fn pull(mut self, from: &[u8], to: &Path, progress: Progress<'_>) -> Result<CopyCount> {
        self.ask(&FileRequest::Pull { path: from.to_vec() })?;
        let place = self.place();
        let to = (to, self.links);
        let copied = pull::receive(&mut self.connection, place, from, to, progress)?;
        match self.answer()? {
            FileReply::Done { .. } => Ok(copied),
            _ => Err(malformed_reply()),
        }
    }

    /// Copies a file or tree to another sandbox: to `to`, or below it if that is a directory. The
    /// bytes pass through this process only.
    pub fn relay(
        mut self,
        from: &[u8],
        mut target: Self,
        to: &[u8],
        progress: Progress<'_>,
    ) -> Result<CopyCount> {
        self.ask(&FileRequest::Pull { path: from.to_vec() })?;
        let name = Path::new(OsStr::from_bytes(from)).file_name();
        let into = (!from.ends_with(b"/.")).then(|| name.unwrap_or(OsStr::new("root")));
        let into = into.map(|name| name.as_bytes().to_vec());
        let place = self.place();
        let request = FileRequest::Push { path: to.to_vec(), into };
        let mut is_asked = false;
        let sent = relay::tree(&mut self.connection, place, progress, &mut |frames| {
            // Only now is it known that the source exists.
            if !std::mem::replace(&mut is_asked, true) {
                target.ask(&request)?;
            }
            target.connection.send(frames)
        });
        let copied = match sent {
            Ok(copied) => copied,
            // The reply of the target says why it stopped reading.
            Err(relay::RelayError::Target(error)) => {
                target.answer()?;
                return Err(error);
            }
            Err(relay::RelayError::Source(error)) => return Err(error),
        };
        match (self.answer()?, target.answer()?) {
            (FileReply::Done { .. }, FileReply::Done { .. }) => Ok(copied),
            _ => Err(malformed_reply()),
        }
    }

    /// Applies one patch of a Plan.
    pub(crate) fn patch(self, patch: &Patch, links: SymlinkPolicy) -> Result<()> {
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
                Ok(_) => Err(Error::new(Kind::Exists, format!("`{path}` already exists"))),
                Err(error) if error.kind() == Kind::NotFound => Ok(()),
                Err(error) => Err(error),
            },
            Patch::Symlink { path, target } => self.run(&FileRequest::Symlink {
                path: bytes(path),
                target: target.as_bytes().to_vec(),
            }),
            Patch::Copy { from, to } => {
                let below = from.is_file();
                let files = Self { links, ..self };
                files.push(from, &bytes(to), below, &mut |_| {}).map(drop)
            }
        }
    }
}

/// The bytes of an entry that count towards the limit; fails if name or target is too long.
fn weight(entry: &Meta) -> Result<usize> {
    let target = match &entry.kind {
        EntryKind::Symlink(target) => target.len(),
        _ => 0,
    };
    match entry.name.len() <= NAME_BYTES && target <= LINK_BYTES {
        true => Ok(entry.name.len() + target),
        false => Err(malformed_reply()),
    }
}

fn too_long() -> Error {
    Error::new(Kind::Limit, "the directory has too many entries to be listed")
        .hint(format!("{LIST_ENTRIES} are listed; a command inside can look at the others"))
}

/// Turns a failure reply of the guest into an error. Its text is escaped, since the guest wrote it.
pub fn understand(reply: FileReply) -> Result<FileReply> {
    understand_in("sandbox", reply)
}

/// Turns a failure reply into an error that names where the files are.
pub(crate) fn understand_in(place: &str, reply: FileReply) -> Result<FileReply> {
    let FileReply::Failed(failure) = reply else {
        return Ok(reply);
    };
    let doing: String = failure.doing.chars().take(300).collect();
    let doing = msb_spec::shown(&doing);
    let cause = std::io::Error::from_raw_os_error(failure.errno);
    use std::io::ErrorKind;
    let kind = match cause.kind() {
        ErrorKind::NotFound => Kind::NotFound,
        ErrorKind::AlreadyExists => Kind::Exists,
        // The path is wrong, not the host.
        ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::InvalidFilename => {
            Kind::Invalid
        }
        _ => Kind::Host,
    };
    let error = Error::new(kind, format!("in the {place}, cannot {doing}"));
    Err(if failure.errno == 0 { error } else { error.cause(cause) })
}

pub(crate) fn malformed_reply() -> Error {
    Error::new(Kind::Protocol, "the guest sent a malformed reply")
}

pub(crate) fn guest_closed() -> Error {
    Error::new(Kind::Protocol, "the guest stopped answering")
        .hint("the sandbox may have been stopped, or be at its limit of processes")
}

/// The error for a symlink that appeared in a host path after it was checked.
pub(crate) fn symlink_in_path(path: &Path) -> Error {
    Error::new(Kind::Denied, format!("a symlink is in the path `{}`", path.display()))
        .hint("the path had no symlink when it was checked; another process may be redirecting it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn entry(name: usize, target: usize) -> Meta {
        Meta {
            name: vec![b'x'; name],
            kind: EntryKind::Symlink(vec![b'y'; target]),
            mode: 0o777,
            size: 0,
            modified: 0,
            created: None,
            uid: 0,
            gid: 0,
        }
    }

    /// The error for a guest that lists these entries without end.
    fn listed(batch: Vec<Meta>) -> Error {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let guest = std::thread::spawn(move || {
            let frame = encode(FrameKind::Reply, &FileReply::Entries(batch));
            while theirs.write_all(&frame).is_ok() {}
        });
        let error = Files::over(Connection::from_stream(ours)).list(b"/").unwrap_err();
        guest.join().unwrap();
        error
    }

    #[test]
    fn an_endless_listing_hits_the_limit() {
        assert_eq!(listed(vec![entry(1, 0); 1000]).kind(), Kind::Limit);
        assert_eq!(listed(vec![entry(255, 4096); 20]).kind(), Kind::Limit);
    }

    #[test]
    fn overlong_names_are_refused() {
        assert_eq!(listed(vec![entry(256, 0)]).kind(), Kind::Protocol);
        assert_eq!(listed(vec![entry(1, 4097)]).kind(), Kind::Protocol);
    }
}
