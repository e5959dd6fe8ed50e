//! File operations. Each runs in a child process that switches to the requested user first.
//!
//! The child is inside the sandbox, under its Landlock and seccomp rules, so no path or symlink can
//! lead out of it.

use crate::users::UserError;
use crate::vm::PACKET;
use crate::{mirror_dir, tree, users};
use msb_spec::UserRef;
use msb_sys::process::Fork;
use msb_wire::{
    EntryKind, FileFailure, FileReply, FileRequest, Frame, FrameError, FrameKind, FramedSocket,
    HEADER, MAX_CHUNK, MAX_REQUEST, Meta, Piece, encode, header,
};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A failed operation: what was being done, and the error of the kernel.
pub(crate) struct FileError {
    pub(crate) doing: String,
    pub(crate) error: io::Error,
}

pub(crate) type FileResult<T> = Result<T, FileError>;

impl From<FrameError> for FileError {
    fn from(_: FrameError) -> Self {
        protocol("read a frame")
    }
}

/// Adds what was being done to an error.
pub(crate) trait WithContext<T> {
    fn doing(self, verb: &str, path: &Path) -> FileResult<T>;
}

impl<T> WithContext<T> for io::Result<T> {
    fn doing(self, verb: &str, path: &Path) -> FileResult<T> {
        self.map_err(|error| FileError { doing: format!("{verb} `{}`", path.display()), error })
    }
}

/// Serves one operation on this descriptor in a child. Returns the child's pid.
pub(crate) fn fork_server(user: Option<&UserRef>, mut fds: Vec<OwnedFd>) -> Option<i32> {
    let socket = fds.pop()?;
    let child = msb_sys::process::fork_child().ok()?;
    if child.is_none() {
        // Values that own a descriptor must not be dropped from here on. The guest's descriptors
        // are closed first, because a path may lead through /proc/self/fd.
        if msb_sys::process::close_others(&[socket.as_fd()]).is_ok() {
            let _ = answer(user, socket, usize::MAX);
        }
        msb_sys::process::leave(0);
    }
    child
}

/// Serves one operation in a microVM. The child closes all other descriptors and must not close the
/// connection first. It is created in `group`, which has no pids limit.
pub(crate) fn fork_vm_server(
    user: Option<&UserRef>,
    socket: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    fork_vm_child(socket, group, |socket| answer(user, socket, PACKET))
}

/// Writes a reply without a request in a microVM, in a child as [`fork_vm_server`] does.
pub(crate) fn fork_vm_writer(
    socket: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
    write: impl FnOnce(&mut FrameStream) -> FileResult<()>,
) -> io::Result<()> {
    fork_vm_child(socket, group, |socket| {
        msb_sys::signal::reset();
        msb_sys::signal::ignore(msb_sys::signal::SIGPIPE);
        let mut stream = FrameStream::new(socket, PACKET);
        let _ = write(&mut stream).or_else(|failure| stream.send_failure(failure));
        let _ = stream.flush();
        stream
    })
}

fn fork_vm_child(
    socket: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
    answer: impl FnOnce(OwnedFd) -> FrameStream,
) -> io::Result<()> {
    if let Fork::Child = msb_sys::process::fork_into(0, group)? {
        // Values that own a descriptor must not be dropped from here on.
        if let Ok(socket) = msb_sys::process::keep_only(socket.as_fd()) {
            let mut stream = answer(socket);
            let socket = stream.socket.socket_mut();
            while socket.read(&mut stream.buffer).is_ok_and(|n| n > 0) {}
        }
        msb_sys::process::leave(0);
    }
    Ok(())
}

/// Runs in the child: switches to the user, serves the request and replies. At most `max_write`
/// bytes are written at once.
fn answer(user: Option<&UserRef>, socket: OwnedFd, max_write: usize) -> FrameStream {
    msb_sys::signal::reset();
    msb_sys::signal::ignore(msb_sys::signal::SIGPIPE);
    let mut stream = FrameStream::new(socket, max_write);
    let _ = become_user(user)
        .and_then(|()| stream.request())
        .and_then(|request| match request {
            FileRequest::Real { path } => resolve_path(&mut stream, user, as_path(&path)),
            other => serve(&mut stream, other),
        })
        .or_else(|failure| stream.send_failure(failure));
    let _ = stream.flush();
    stream
}

fn become_user(user: Option<&UserRef>) -> FileResult<()> {
    let Some(user) = user.filter(|user| !user.is_root()) else {
        return Ok(());
    };
    let fail = |error| FileError { doing: format!("become user {user}"), error };
    let found = users::find(user).map_err(|_| fail(io::ErrorKind::NotFound.into()))?;
    msb_sys::process::become_user(&found.identity).map_err(fail)
}

/// Serves a file request.
pub(crate) fn serve(stream: &mut FrameStream, request: FileRequest) -> FileResult<()> {
    match request {
        FileRequest::Read { path, offset, length } => read(stream, as_path(&path), offset, length),
        FileRequest::Write { path, mode, append } => write(stream, as_path(&path), mode, append),
        FileRequest::List { path } => list(stream, as_path(&path)),
        FileRequest::Stat { path, follow } => {
            let path = as_path(&path);
            let meta = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
            let meta = describe(path, &meta.doing("stat", path)?);
            stream.send(FrameKind::Reply, &FileReply::Meta(meta))
        }
        FileRequest::Mkdir { path, parents } => {
            let path = as_path(&path);
            let made = if parents { fs::create_dir_all(path) } else { fs::create_dir(path) };
            made.doing("make directory", path)?;
            stream.done(1, 0)
        }
        FileRequest::Remove { path, recursive } => {
            remove(as_path(&path), recursive)?;
            stream.done(1, 0)
        }
        FileRequest::Rename { from, to } => {
            let from = as_path(&from);
            fs::rename(from, as_path(&to)).doing("rename", from)?;
            stream.done(1, 0)
        }
        FileRequest::Copy { from, to } => {
            let (entries, bytes) = tree::copy(as_path(&from), as_path(&to))?;
            stream.done(entries, bytes)
        }
        FileRequest::Symlink { path, target } => {
            let path = as_path(&path);
            make_parents(path)?;
            if fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_dir()) {
                fs::remove_file(path).doing("replace", path)?;
            }
            std::os::unix::fs::symlink(as_path(&target), path).doing("link", path)?;
            stream.done(1, 0)
        }
        FileRequest::Set { path, mode, owner, group } => {
            set(as_path(&path), mode, owner.as_ref(), group.as_ref())?;
            stream.done(1, 0)
        }
        FileRequest::Push { path, into } => {
            let (entries, bytes) = tree::receive(stream, as_path(&path), into.as_deref())?;
            stream.done(entries, bytes)
        }
        FileRequest::Pull { path } => {
            let (entries, bytes) = tree::send(stream, as_path(&path))?;
            stream.done(entries, bytes)
        }
        // A volume has no users; elsewhere this was handled before.
        FileRequest::Real { path } => resolve_path(stream, None, as_path(&path)),
        FileRequest::Mirror { path } => {
            let failed = mirror_dir::apply_changes(stream, as_path(&path))?;
            stream.send(FrameKind::Reply, &FileReply::Mirrored { failed })
        }
    }
}

/// Resolves a path, relative to the user's home. Changing the directory affects only this child.
fn resolve_path(stream: &mut FrameStream, user: Option<&UserRef>, path: &Path) -> FileResult<()> {
    let root = UserRef::parse("root").ok();
    let home = user.or(root.as_ref()).and_then(users::home).unwrap_or_default();
    if path.is_relative() && std::env::set_current_dir(&home).is_err() {
        std::env::set_current_dir("/").doing("enter", Path::new("/"))?;
    }
    let resolved = tree::resolve(path).doing("resolve", path)?;
    let resolved = resolved.into_os_string().into_encoded_bytes();
    stream.send(FrameKind::Reply, &FileReply::Path(resolved))
}

fn read(stream: &mut FrameStream, path: &Path, offset: u64, length: Option<u64>) -> FileResult<()> {
    let mut file = open_regular(path)?;
    file.seek(SeekFrom::Start(offset)).doing("read", path)?;
    let mut left = length.unwrap_or(u64::MAX);
    let mut buffer = vec![0u8; MAX_CHUNK];
    while left > 0 {
        let wanted = left.min(buffer.len() as u64) as usize;
        match file.read(&mut buffer[..wanted]).doing("read", path)? {
            0 => break,
            n => {
                stream.bytes(&buffer[..n])?;
                left -= n as u64;
            }
        }
    }
    stream.bytes(&[])
}

fn write(stream: &mut FrameStream, path: &Path, mode: u32, append: bool) -> FileResult<()> {
    make_parents(path)?;
    let mut file = create(path, mode, append)?;
    let mut total = 0;
    loop {
        let frame = stream.next()?;
        if frame.kind != FrameKind::Bytes {
            return Err(protocol("write the file"));
        }
        if frame.payload.is_empty() {
            return stream.done(1, total);
        }
        file.write_all(&frame.payload).doing("write", path)?;
        total += frame.payload.len() as u64;
    }
}

/// Entries in one frame. A name has at most 255 bytes, so the frame stays small.
const BATCH: usize = 256;

fn list(stream: &mut FrameStream, path: &Path) -> FileResult<()> {
    let mut batch = Vec::new();
    let mut total = 0;
    for entry in fs::read_dir(path).doing("list", path)? {
        let entry = entry.doing("list", path)?;
        // The file was removed meanwhile.
        let Ok(meta) = entry.metadata() else { continue };
        batch.push(describe(&entry.path(), &meta));
        total += 1;
        if batch.len() == BATCH {
            stream.send(FrameKind::Reply, &FileReply::Entries(std::mem::take(&mut batch)))?;
        }
    }
    stream.send(FrameKind::Reply, &FileReply::Entries(batch))?;
    stream.done(total, 0)
}

fn remove(path: &Path, recursive: bool) -> FileResult<()> {
    let meta = match fs::symlink_metadata(path) {
        Err(error) if recursive && error.kind() == io::ErrorKind::NotFound => return Ok(()),
        meta => meta.doing("remove", path)?,
    };
    match (meta.is_dir(), recursive) {
        (true, true) => fs::remove_dir_all(path),
        (true, false) => fs::remove_dir(path),
        (false, _) => fs::remove_file(path),
    }
    .doing("remove", path)
}

fn set(
    path: &Path,
    mode: Option<u32>,
    owner: Option<&UserRef>,
    group: Option<&UserRef>,
) -> FileResult<()> {
    let uid = owner.map(|owner| users::find(owner).map(|user| user.identity.uid));
    let gid = group.map(|group| users::group(group.user()));
    let resolved = |found: Option<Result<u32, UserError>>, name: Option<&UserRef>| {
        let name = name.map(ToString::to_string).unwrap_or_default();
        let why = |none| match none {
            UserError::Unknown => format!("set the owner to unknown user or group `{name}` of"),
            UserError::OnlyRoot => {
                format!("set the owner to `{name}`, as only root exists here, of")
            }
        };
        found.transpose().map_err(|none| failed(&why(none), path, libc::EINVAL))
    };
    let (uid, gid) = (resolved(uid, owner)?, resolved(gid, group)?);
    // chown comes first, because it clears set-id bits.
    if uid.is_some() || gid.is_some() {
        std::os::unix::fs::chown(path, uid, gid).doing("change the owner of", path)?;
    }
    match mode {
        Some(mode) => {
            let mode = fs::Permissions::from_mode(mode & 0o7777);
            fs::set_permissions(path, mode).doing("set the permissions of", path)
        }
        None => Ok(()),
    }
}

/// Opens a regular file for reading. Reading a FIFO would block and a device may never end, so
/// these are refused before opening, and again after, in case the file was replaced meanwhile.
pub(crate) fn open_regular(path: &Path) -> FileResult<File> {
    let found = fs::metadata(path).doing("open", path)?;
    if !found.is_file() && !found.is_dir() {
        return Err(failed("read (not a file)", path, libc::EINVAL));
    }
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .doing("open", path)?;
    let meta = file.metadata().doing("open", path)?;
    match meta.is_file() {
        true => Ok(file),
        false if meta.is_dir() => {
            Err(io::Error::from_raw_os_error(libc::EISDIR)).doing("read", path)
        }
        false => Err(io::Error::from_raw_os_error(libc::EINVAL)).doing("read (not a file)", path),
    }
}

/// Creates or truncates a file.
pub(crate) fn create(path: &Path, mode: u32, append: bool) -> FileResult<File> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .append(append)
        .truncate(!append)
        .mode(mode & 0o777)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(path)
        .doing("write", path)
}

pub(crate) fn make_parents(path: &Path) -> FileResult<()> {
    match path.parent() {
        Some(parent) if !parent.exists() => {
            fs::create_dir_all(parent).doing("make directory", parent)
        }
        _ => Ok(()),
    }
}

pub(crate) fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

pub(crate) fn kind_of(path: &Path, meta: &Metadata) -> EntryKind {
    let kind = meta.file_type();
    if kind.is_file() {
        EntryKind::File
    } else if kind.is_dir() {
        EntryKind::Directory
    } else if kind.is_symlink() {
        let target = fs::read_link(path).unwrap_or_default();
        EntryKind::Symlink(target.as_os_str().as_bytes().to_vec())
    } else {
        debug_assert!(
            kind.is_fifo() || kind.is_socket() || kind.is_char_device() || kind.is_block_device()
        );
        EntryKind::Other
    }
}

fn describe(path: &Path, meta: &Metadata) -> Meta {
    Meta {
        name: path.file_name().unwrap_or_default().as_bytes().to_vec(),
        kind: kind_of(path, meta),
        mode: meta.permissions().mode() & 0o7777,
        size: meta.len(),
        modified: meta.mtime().saturating_mul(1000) + meta.mtime_nsec() / 1_000_000,
        created: meta.created().ok().map(milliseconds),
        uid: meta.uid(),
        gid: meta.gid(),
    }
}

/// Milliseconds since 1970; negative before.
fn milliseconds(time: SystemTime) -> i64 {
    let of = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => of(after),
        Err(before) => -of(before.duration()),
    }
}

/// An error that we detect ourselves, with an errno.
pub(crate) fn failed(verb: &str, path: &Path, errno: i32) -> FileError {
    let doing = format!("{verb} `{}`", path.display());
    FileError { doing, error: io::Error::from_raw_os_error(errno) }
}

pub(crate) fn protocol(doing: &str) -> FileError {
    FileError { doing: doing.to_owned(), error: io::ErrorKind::InvalidData.into() }
}

/// Frames on a connection, buffered so that many small files need few writes.
pub(crate) struct FrameStream {
    socket: FramedSocket<File>,
    out: Vec<u8>,
    buffer: Vec<u8>,
    /// Bytes that the connection takes in one write.
    max_write: usize,
}

impl FrameStream {
    pub(crate) fn new(socket: OwnedFd, max_write: usize) -> Self {
        Self {
            max_write,
            socket: FramedSocket::new(File::from(socket), MAX_REQUEST),
            out: Vec::with_capacity(MAX_CHUNK + HEADER),
            buffer: vec![0; MAX_CHUNK],
        }
    }

    /// Reads the client's request.
    pub(crate) fn request(&mut self) -> FileResult<FileRequest> {
        self.next()?.value().map_err(|_| protocol("read the request"))
    }

    pub(crate) fn send_failure(&mut self, failure: FileError) -> FileResult<()> {
        let errno = failure.error.raw_os_error().unwrap_or(0);
        let failed = FileFailure { doing: failure.doing, errno };
        self.send(FrameKind::Reply, &FileReply::Failed(failed))
    }

    pub(crate) fn next(&mut self) -> FileResult<Frame> {
        match self.socket.read_frame(&mut self.buffer) {
            Ok(frame) => frame.ok_or_else(|| protocol("read from the client")),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(protocol("read a frame"))
            }
            Err(error) => Err(error).doing("read from", Path::new("the client")),
        }
    }

    /// Reads `left` bytes that the client has announced, in pieces.
    pub(crate) fn stream(
        &mut self,
        left: u64,
        take: impl FnMut(Piece<'_>) -> FileResult<()>,
    ) -> FileResult<()> {
        let failed = |error| FileError { doing: "read from `the client`".to_owned(), error };
        self.socket.stream(left, &mut self.buffer, failed, take)
    }

    /// Sends bytes of a file by sendfile(2). Returns how many there were.
    pub(crate) fn send_file(&mut self, file: &File, length: usize) -> FileResult<usize> {
        self.out.extend_from_slice(&header(FrameKind::Bytes, length));
        self.flush()?;
        let mut sent = 0;
        while sent < length {
            let most = self.max_write.min(length - sent);
            match rustix::fs::sendfile(self.socket.socket(), file, None, most) {
                Ok(0) => break,
                Ok(n) => sent += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()).doing("write to", Path::new("the client")),
            }
        }
        Ok(sent)
    }

    /// Pads a frame with zeroes, if a file is shorter than announced.
    pub(crate) fn zero_fill(&mut self, missing: usize) -> FileResult<()> {
        self.out.resize(self.out.len() + missing, 0);
        self.flush_if_full()
    }

    pub(crate) fn send<T: serde::Serialize>(
        &mut self,
        kind: FrameKind,
        value: &T,
    ) -> FileResult<()> {
        self.out.extend_from_slice(&encode(kind, value));
        self.flush_if_full()
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> FileResult<()> {
        self.out.extend_from_slice(&header(FrameKind::Bytes, bytes.len()));
        self.out.extend_from_slice(bytes);
        self.flush_if_full()
    }

    pub(crate) fn done(&mut self, entries: u64, bytes: u64) -> FileResult<()> {
        self.send(FrameKind::Reply, &FileReply::Done { entries, bytes })
    }

    fn flush_if_full(&mut self) -> FileResult<()> {
        if self.out.len() >= MAX_CHUNK { self.flush() } else { Ok(()) }
    }

    pub(crate) fn flush(&mut self) -> FileResult<()> {
        let mut pieces = self.out.chunks(self.max_write);
        let sent = pieces.try_for_each(|piece| self.socket.socket_mut().write_all(piece));
        self.out.clear();
        sent.doing("write to", Path::new("the client"))
    }
}
