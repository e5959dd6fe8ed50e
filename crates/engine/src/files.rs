//! File operations of a running sandbox, and copies between it and the host.
//!
//! The guest serves them inside. What it sends is hostile: entries of a tree are checked and
//! written below one open directory, through no link; see `pull.rs`.

use crate::connection::Connection;
use crate::volumes::Served;
use crate::{pull, push};
pub use msb_api::Copied;
use msb_spec::{Error, Kind, Patch, Result};
use msb_wire::{
    EntryKind, FileReply, FileRequest, FrameKind, HEADER, MAX_CHUNK, Meta, encode, header,
};
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Told of every piece of a copy, for a progress bar.
pub type Progress<'a> = &'a mut dyn FnMut(u64);

/// The most entries of a directory that are listed, and bytes of their names and links: a hostile
/// guest would go on for ever.
const LIST_ENTRIES: usize = 1 << 20;
const LIST_BYTES: usize = 64 << 20;
/// The longest name and the longest link that Linux has.
const NAME_BYTES: usize = 255;
const LINK_BYTES: usize = 4096;

/// One file operation on a connection made for it.
#[derive(Debug)]
pub struct Files {
    connection: Connection,
    /// Who serves it, if it is no sandbox. Dropped after the connection, whose end it waits for.
    served: Option<Served>,
    links: Links,
}

/// What becomes of links in a path of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// Whoever named it has all the rights that we have.
    Followed,
    /// It was judged by where it leads, and has to lead there still.
    Refused,
}

impl Files {
    pub(crate) fn on(connection: Connection) -> Self {
        Self { connection, served: None, links: Links::Followed }
    }

    pub(crate) fn of_volume(connection: Connection, served: Served) -> Self {
        Self { connection, served: Some(served), links: Links::Followed }
    }

    fn ask(&mut self, request: &FileRequest) -> Result<()> {
        self.connection.limit_silence()?;
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

    /// Where a path leads; a relative one begins at the user's home.
    pub fn real(mut self, path: &[u8]) -> Result<Vec<u8>> {
        self.ask(&FileRequest::Real { path: path.to_vec() })?;
        match self.answer()? {
            FileReply::Path(path) => Ok(path),
            _ => Err(nonsense()),
        }
    }

    /// The entries of a directory, sorted by name.
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
        let mut left = length.unwrap_or(u64::MAX);
        loop {
            let frame = self.connection.next_frame()?.ok_or_else(went_away)?;
            match frame.kind {
                FrameKind::Bytes if frame.payload.is_empty() => return Ok(()),
                FrameKind::Bytes => {
                    // A guest that sends more than it was asked for is not believed.
                    left = left.checked_sub(frame.payload.len() as u64).ok_or_else(nonsense)?;
                    take(&frame.payload)?;
                }
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

    /// The same, for a path of the host that was followed and judged before: if a link is in it by
    /// now, somebody wants to lead us elsewhere, and it is refused.
    #[must_use]
    pub(crate) fn through_no_link(self) -> Self {
        Self { links: Links::Refused, ..self }
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
        let root = match self.links {
            Links::Followed => fs::canonicalize(from).map_err(about)?,
            Links::Refused => from.to_owned(),
        };
        let tree = push::Tree::open(&root)?;
        let name = std::path::absolute(from).map_err(about)?;
        let name = name.file_name().or(root.file_name()).unwrap_or_default().as_bytes().to_vec();
        // `dir/.` means what it holds, as with cp.
        let contents_only = from.as_os_str().as_bytes().ends_with(b"/.");
        let into = (below && !contents_only).then_some(name);
        self.ask(&FileRequest::Push { path: to.to_vec(), into })?;
        let mut copied = Copied::default();
        let sent = tree.send(&mut self.connection, &mut copied, progress);
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
        let to = (to, self.links);
        let copied = pull::receive(&mut self.connection, place, from, to, progress)?;
        match self.answer()? {
            FileReply::Done { .. } => Ok(copied),
            _ => Err(nonsense()),
        }
    }

    /// Makes one change that a Plan asks for.
    pub(crate) fn patch(self, patch: &Patch, links: Links) -> Result<()> {
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
                let files = Self { links, ..self };
                files.push(from, &bytes(to), below, &mut |_| {}).map(drop)
            }
        }
    }
}

/// Bytes that an entry of a listing takes. No file system has longer names or links.
fn weight(entry: &Meta) -> Result<usize> {
    let target = match &entry.kind {
        EntryKind::Symlink(target) => target.len(),
        _ => 0,
    };
    match entry.name.len() <= NAME_BYTES && target <= LINK_BYTES {
        true => Ok(entry.name.len() + target),
        false => Err(nonsense()),
    }
}

fn too_long() -> Error {
    Error::new(Kind::Limit, "the directory has too many entries to be listed")
        .hint(format!("{LIST_ENTRIES} are listed; a command inside can look at the others"))
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
    use std::io::ErrorKind;
    let kind = match cause.kind() {
        ErrorKind::NotFound => Kind::NotFound,
        ErrorKind::AlreadyExists => Kind::Exists,
        // It is the path that is wrong, and nothing of the host's.
        ErrorKind::IsADirectory | ErrorKind::NotADirectory | ErrorKind::InvalidFilename => {
            Kind::Invalid
        }
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

/// Somebody put a link where none was when the path was judged.
pub(crate) fn through_a_link(path: &Path) -> Error {
    Error::new(Kind::Denied, format!("a link is in the way of `{}`", path.display()))
        .hint("it was none a moment ago; somebody may want to lead you elsewhere")
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

    /// What a client makes of a guest that lists these again and again, as long as it is heard.
    fn listed(batch: Vec<Meta>) -> Error {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let guest = std::thread::spawn(move || {
            let frame = encode(FrameKind::Reply, &FileReply::Entries(batch));
            while theirs.write_all(&frame).is_ok() {}
        });
        let error = Files::on(Connection::on(ours)).list(b"/").unwrap_err();
        guest.join().unwrap();
        error
    }

    #[test]
    fn a_listing_without_an_end_is_given_up() {
        assert_eq!(listed(vec![entry(1, 0); 1000]).kind(), Kind::Limit);
        assert_eq!(listed(vec![entry(255, 4096); 20]).kind(), Kind::Limit);
    }

    #[test]
    fn no_name_is_longer_than_a_file_systems() {
        assert_eq!(listed(vec![entry(256, 0)]).kind(), Kind::Protocol);
        assert_eq!(listed(vec![entry(1, 4097)]).kind(), Kind::Protocol);
    }
}
