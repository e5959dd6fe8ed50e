//! Files inside a running sandbox.
//!
//! The guest does the work inside, so no path can lead out of the sandbox. What it answers is
//! hostile: nothing of unlimited size is kept in memory.

use crate::file_stream::{FileReader, FileWriter};
use crate::worker::{Link, Worker, gone};
use msb_engine::files::{CopyCount, understand};
use msb_spec::{Error, Kind, Result};
use msb_wire::{EntryKind, FileReply, FileRequest, Frame, FrameKind, Request, encode};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::AsyncWriteExt;

/// The file system of a running sandbox. Paths inside are absolute; root does the work.
#[derive(Debug, Clone, Copy)]
pub struct Fs<'a> {
    worker: &'a Worker,
}

/// What sort of thing a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file, whatever its content.
    File,
    /// A directory, without its entries.
    Directory,
    /// A symbolic link, with what it says.
    Symlink(PathBuf),
    /// A device, socket or pipe.
    Other,
}

/// What a path is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Its name without directories. A guest chose it: check it before using it on the host.
    pub name: OsString,
    /// What sort of thing it is.
    pub kind: FileKind,
    /// The permission bits, such as `0o644`.
    pub mode: u32,
    /// The size in bytes.
    pub size: u64,
    /// When it was changed.
    pub modified: SystemTime,
    /// The owner's uid inside.
    pub uid: u32,
    /// The group's gid inside.
    pub gid: u32,
}

impl Meta {
    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }
}

/// A larger file is read in pieces; in one it is more often an accident, or an attack.
const READ_LIMIT: usize = 256 << 20;
/// More entries than any directory that is worth listing; a hostile guest would send no end.
const LIST_LIMIT: usize = 1 << 20;
/// Permissions of a new file, less what the sandbox's own mask takes away.
const NEW_FILE: u32 = 0o644;

impl<'a> Fs<'a> {
    pub(crate) fn new(worker: &'a Worker) -> Self {
        Self { worker }
    }

    /// A whole file, of at most 256 MiB. For larger ones see [`Fs::reader`].
    pub async fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let mut reader = self.reader(path).await?;
        let mut content = Vec::new();
        while let Some(piece) = reader.next().await? {
            if content.len() + piece.len() > READ_LIMIT {
                let message = format!("the file has more than {READ_LIMIT} bytes");
                return Err(Error::new(Kind::Limit, message).hint("`reader` reads it in pieces"));
            }
            content.extend_from_slice(&piece);
        }
        Ok(content)
    }

    /// A whole file that is UTF-8.
    pub async fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        String::from_utf8(self.read(path).await?).map_err(|error| {
            Error::invalid("the file is not UTF-8").cause(error).hint("`read` gives it as it is")
        })
    }

    /// Makes or replaces a file, with the directories above it.
    pub async fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let mut writer = self.writer(path).await?;
        send_all(&mut writer, content.as_ref()).await?;
        writer.finish().await.map(drop)
    }

    /// Adds to the end of a file, which is made if need be.
    pub async fn append(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let mut writer = self.open_writer(path.as_ref(), true).await?;
        send_all(&mut writer, content.as_ref()).await?;
        writer.finish().await.map(drop)
    }

    /// Reads a file of any size in pieces.
    pub async fn reader(&self, path: impl AsRef<Path>) -> Result<FileReader> {
        self.reader_at(path, 0, None).await
    }

    /// Reads a part of a file in pieces: from an offset, and at most so many bytes.
    pub async fn reader_at(
        &self,
        path: impl AsRef<Path>,
        offset: u64,
        length: Option<u64>,
    ) -> Result<FileReader> {
        let path = inside(path.as_ref())?;
        FileReader::open(self.ask(&FileRequest::Read { path, offset, length }).await?).await
    }

    /// Makes or replaces a file of any size in pieces, with the directories above it. That it
    /// cannot be written is told by [`FileWriter::finish`].
    pub async fn writer(&self, path: impl AsRef<Path>) -> Result<FileWriter> {
        self.open_writer(path.as_ref(), false).await
    }

    async fn open_writer(&self, path: &Path, append: bool) -> Result<FileWriter> {
        let path = inside(path)?;
        let request = FileRequest::Write { path, mode: NEW_FILE, append };
        Ok(FileWriter::new(self.ask(&request).await?))
    }

    /// The entries of a directory, sorted by name.
    pub async fn list(&self, path: impl AsRef<Path>) -> Result<Vec<Meta>> {
        let mut link = self.ask(&FileRequest::List { path: inside(path.as_ref())? }).await?;
        let mut all = Vec::new();
        loop {
            match answer(&mut link).await? {
                FileReply::Entries(entries) if all.len() + entries.len() <= LIST_LIMIT => {
                    all.extend(entries.into_iter().map(Meta::from));
                }
                FileReply::Done { .. } => break,
                _ => return Err(nonsense()),
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(all)
    }

    /// Makes a directory with those above it; one that is there already is fine.
    pub async fn mkdir(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run(&FileRequest::Mkdir { path: inside(path.as_ref())?, parents: true }).await
    }

    /// Removes a file, a link or an empty directory.
    pub async fn remove(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run(&FileRequest::Remove { path: inside(path.as_ref())?, recursive: false }).await
    }

    /// Removes whatever is there with all it holds; nothing there is fine.
    pub async fn remove_all(&self, path: impl AsRef<Path>) -> Result<()> {
        self.run(&FileRequest::Remove { path: inside(path.as_ref())?, recursive: true }).await
    }

    /// Copies a file or tree inside the sandbox.
    pub async fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (inside(from.as_ref())?, inside(to.as_ref())?);
        self.run(&FileRequest::Copy { from, to }).await
    }

    /// Renames, replacing a file that is there.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (inside(from.as_ref())?, inside(to.as_ref())?);
        self.run(&FileRequest::Rename { from, to }).await
    }

    /// Makes a symbolic link that says `target`.
    pub async fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<()> {
        let target = target.as_ref().as_os_str().as_bytes().to_vec();
        self.run(&FileRequest::Symlink { path: inside(path.as_ref())?, target }).await
    }

    /// What a path is; a symbolic link is followed.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<Meta> {
        self.look(path.as_ref(), true).await
    }

    /// What a path is; a symbolic link is told as one.
    pub async fn stat_link(&self, path: impl AsRef<Path>) -> Result<Meta> {
        self.look(path.as_ref(), false).await
    }

    /// Whether something is there; a link that leads nowhere is not.
    pub async fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        match self.look(path.as_ref(), true).await {
            Ok(_) => Ok(true),
            Err(error) if is_missing_file(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Copies a file or tree of the host in, streamed. Into a directory that is there, below it
    /// by its own name, as `cp` does.
    pub async fn copy_from_host(
        &self,
        from: impl Into<PathBuf>,
        to: impl AsRef<Path>,
    ) -> Result<CopyCount> {
        let (from, to) = (from.into(), inside(to.as_ref())?);
        self.worker
            .blocking(move |engine, name| engine.files(name)?.push(&from, &to, true, &mut |_| {}))
            .await
    }

    /// Copies a file or tree out to the host, streamed. Into a directory that is there, below it
    /// by its own name. No path or link in the sandbox can lead it elsewhere.
    pub async fn copy_to_host(
        &self,
        from: impl AsRef<Path>,
        to: impl Into<PathBuf>,
    ) -> Result<CopyCount> {
        let (from, to) = (inside(from.as_ref())?, to.into());
        self.worker
            .blocking(move |engine, name| engine.files(name)?.pull(&from, &to, &mut |_| {}))
            .await
    }

    async fn look(&self, path: &Path, follow: bool) -> Result<Meta> {
        let mut link = self.ask(&FileRequest::Stat { path: inside(path)?, follow }).await?;
        match answer(&mut link).await? {
            FileReply::Meta(meta) => Ok(Meta::from(meta)),
            _ => Err(nonsense()),
        }
    }

    async fn run(&self, request: &FileRequest) -> Result<()> {
        match answer(&mut self.ask(request).await?).await? {
            FileReply::Done { .. } => Ok(()),
            _ => Err(nonsense()),
        }
    }

    async fn ask(&self, request: &FileRequest) -> Result<Link> {
        let link = self.worker.connect(Request::Files { user: None }).await?;
        link.socket.send(&encode(FrameKind::File, request)).await.map_err(gone)?;
        Ok(link)
    }
}

impl From<msb_wire::Meta> for Meta {
    fn from(meta: msb_wire::Meta) -> Self {
        let since = Duration::from_millis(meta.modified.unsigned_abs());
        let modified = match meta.modified {
            0.. => UNIX_EPOCH.checked_add(since),
            _ => UNIX_EPOCH.checked_sub(since),
        };
        Self {
            name: OsString::from_vec(meta.name),
            kind: match meta.kind {
                EntryKind::File => FileKind::File,
                EntryKind::Directory => FileKind::Directory,
                EntryKind::Symlink(target) => FileKind::Symlink(OsString::from_vec(target).into()),
                EntryKind::Other | EntryKind::End => FileKind::Other,
            },
            mode: meta.mode,
            size: meta.size,
            modified: modified.unwrap_or(UNIX_EPOCH),
            uid: meta.uid,
            gid: meta.gid,
        }
    }
}

/// The guest's answer; a failure is an error.
pub(crate) async fn answer(link: &mut Link) -> Result<FileReply> {
    understood(link.next_frame().await?)
}

pub(crate) fn understood(frame: Option<Frame>) -> Result<FileReply> {
    match frame {
        Some(frame) if frame.kind == FrameKind::Reply => {
            understand(frame.value().map_err(|_| nonsense())?)
        }
        Some(_) => Err(nonsense()),
        None => Err(Error::new(Kind::Protocol, "the guest stopped answering")
            .hint("the sandbox may have been stopped, or be at its limit of processes")),
    }
}

pub(crate) fn nonsense() -> Error {
    Error::new(Kind::Protocol, "the guest answered something that makes no sense")
}

/// No sandbox is an error of the same kind, but its message has no cause from the kernel.
fn is_missing_file(error: &Error) -> bool {
    error.kind() == Kind::NotFound && !error.causes().is_empty()
}

async fn send_all(writer: &mut FileWriter, content: &[u8]) -> Result<()> {
    match writer.write_all(content).await {
        Ok(()) => Ok(()),
        // The guest has said why before it closed.
        Err(_) => Err(writer.refusal().await),
    }
}

/// A path as the guest takes it. A relative one would depend on where the guest stands.
pub(crate) fn inside(path: &Path) -> Result<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    if !path.is_absolute() || bytes.contains(&0) {
        let shown = path.display().to_string();
        let message = format!("not an absolute path inside: `{}`", shown);
        return Err(Error::invalid(message));
    }
    Ok(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_go_inside() {
        assert_eq!(inside(Path::new("/a/b")).unwrap(), b"/a/b");
        for bad in ["", "a", "./a", "../a", "/a\0b"] {
            assert_eq!(inside(Path::new(bad)).unwrap_err().kind(), Kind::Invalid, "{bad:?}");
        }
    }

    #[test]
    fn a_guest_cannot_choose_a_time_that_panics() {
        for modified in [i64::MIN, -1, 0, i64::MAX] {
            let (name, kind) = (Vec::new(), EntryKind::End);
            let (mode, size, uid, gid, created) = (0, 0, 0, 0, None);
            let meta = msb_wire::Meta { name, kind, mode, size, modified, created, uid, gid };
            assert_eq!(Meta::from(meta).kind, FileKind::Other);
        }
    }
}
