//! File operations, each in a process of its own that becomes the asking user first.
//!
//! Everything happens inside the sandbox, under its Landlock and seccomp rules, so no path can
//! lead out of it whatever links it meets.

use crate::machine::PACKET;
use crate::users::NoUser;
use crate::{mirror, tree, users};
use msb_spec::UserRef;
use msb_sys::process::Fork;
use msb_wire::{
    Decoder, EntryKind, FileFailure, FileReply, FileRequest, Frame, FrameKind, HEADER, MAX_CHUNK,
    MAX_REQUEST, Malformed, Meta, Piece, encode, header,
};
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An operation that failed: what was being done, and what the kernel said.
pub(crate) struct Failure {
    pub(crate) doing: String,
    pub(crate) error: io::Error,
}

pub(crate) type Done<T> = Result<T, Failure>;

impl From<Malformed> for Failure {
    fn from(_: Malformed) -> Self {
        protocol("read a frame")
    }
}

/// Names what was being done when a call fails.
pub(crate) trait Doing<T> {
    fn doing(self, verb: &str, path: &Path) -> Done<T>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, verb: &str, path: &Path) -> Done<T> {
        self.map_err(|error| Failure { doing: format!("{verb} `{}`", path.display()), error })
    }
}

/// Serves one operation on this descriptor in a child, whose pid is returned.
pub(crate) fn serve_apart(user: Option<&UserRef>, mut fds: Vec<OwnedFd>) -> Option<i32> {
    let socket = fds.pop()?;
    let child = msb_sys::process::fork_child().ok()?;
    if child.is_none() {
        // Nothing that owns a descriptor is dropped from here on. What the guest holds is closed first:
        // a path may lead through /proc/self/fd.
        if msb_sys::process::close_others(&[socket.as_fd()]).is_ok() {
            let _ = answer(user, socket, usize::MAX);
        }
        msb_sys::process::leave(0);
    }
    child
}

/// The same for a guest that holds descriptors which a child must not keep open, on a connection
/// that must not be closed first. The child is made in `group`, where no limit holds.
pub(crate) fn serve_aside(
    user: Option<&UserRef>,
    socket: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    aside(socket, group, |socket| answer(user, socket, PACKET))
}

/// The same for what is asked for without a request.
pub(crate) fn give_aside(
    socket: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
    give: impl FnOnce(&mut Stream) -> Done<()>,
) -> io::Result<()> {
    aside(socket, group, |socket| {
        msb_sys::signal::reset();
        msb_sys::signal::ignore(msb_sys::signal::SIGPIPE);
        let mut stream = Stream::new(socket, PACKET);
        let _ = give(&mut stream).or_else(|failure| stream.tell_failure(failure));
        let _ = stream.flush();
        stream
    })
}

fn aside(
    socket: &OwnedFd,
    group: Option<BorrowedFd<'_>>,
    answer: impl FnOnce(OwnedFd) -> Stream,
) -> io::Result<()> {
    if let Fork::Child = msb_sys::process::fork_into(0, group)? {
        // Nothing that owns a descriptor is dropped from here on.
        if let Ok(socket) = msb_sys::process::keep_only(socket.as_fd()) {
            let mut stream = answer(socket);
            while stream.socket.read(&mut stream.buffer).is_ok_and(|n| n > 0) {}
        }
        msb_sys::process::leave(0);
    }
    Ok(())
}

/// Becomes the user, does what is asked and tells how it went, at most so many bytes at once. For
/// a child.
fn answer(user: Option<&UserRef>, socket: OwnedFd, most: usize) -> Stream {
    msb_sys::signal::reset();
    msb_sys::signal::ignore(msb_sys::signal::SIGPIPE);
    let mut stream = Stream::new(socket, most);
    let _ = become_user(user)
        .and_then(|()| stream.request())
        .and_then(|request| match request {
            FileRequest::Real { path } => real(&mut stream, user, as_path(&path)),
            other => serve(&mut stream, other),
        })
        .or_else(|failure| stream.tell_failure(failure));
    let _ = stream.flush();
    stream
}

fn become_user(user: Option<&UserRef>) -> Done<()> {
    let Some(user) = user.filter(|user| !user.is_root()) else {
        return Ok(());
    };
    let fail = |error| Failure { doing: format!("become user {user}"), error };
    let found = users::find(user).map_err(|_| fail(io::ErrorKind::NotFound.into()))?;
    msb_sys::process::become_user(&found.identity).map_err(fail)
}

/// Does what is asked.
pub(crate) fn serve(stream: &mut Stream, request: FileRequest) -> Done<()> {
    match request {
        FileRequest::Read { path, offset, length } => read(stream, as_path(&path), offset, length),
        FileRequest::Write { path, mode, append } => write(stream, as_path(&path), mode, append),
        FileRequest::List { path } => list(stream, as_path(&path)),
        FileRequest::Stat { path, follow } => {
            let path = as_path(&path);
            let meta = if follow { fs::metadata(path) } else { fs::symlink_metadata(path) };
            let meta = describe(path, &meta.doing("look at", path)?);
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
            let (entries, bytes) = tree::take_in(stream, as_path(&path), into.as_deref())?;
            stream.done(entries, bytes)
        }
        FileRequest::Pull { path } => {
            let (entries, bytes) = tree::give_out(stream, as_path(&path))?;
            stream.done(entries, bytes)
        }
        // A volume has no users; elsewhere it was answered before.
        FileRequest::Real { path } => real(stream, None, as_path(&path)),
        FileRequest::Mirror { path } => {
            let failed = mirror::mirror(stream, as_path(&path))?;
            stream.send(FrameKind::Reply, &FileReply::Mirrored { failed })
        }
    }
}

/// Nobody else does anything in this process, so it can go to the user's home first.
fn real(stream: &mut Stream, user: Option<&UserRef>, path: &Path) -> Done<()> {
    let root = UserRef::parse("root").ok();
    let home = user.or(root.as_ref()).and_then(users::home).unwrap_or_default();
    if path.is_relative() && std::env::set_current_dir(&home).is_err() {
        std::env::set_current_dir("/").doing("enter", Path::new("/"))?;
    }
    let real = tree::real(path).doing("follow", path)?;
    let real = real.into_os_string().into_encoded_bytes();
    stream.send(FrameKind::Reply, &FileReply::Path(real))
}

fn read(stream: &mut Stream, path: &Path, offset: u64, length: Option<u64>) -> Done<()> {
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

fn write(stream: &mut Stream, path: &Path, mode: u32, append: bool) -> Done<()> {
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

/// Entries in one frame; a name has at most 255 bytes, so the frame stays small.
const BATCH: usize = 256;

fn list(stream: &mut Stream, path: &Path) -> Done<()> {
    let mut batch = Vec::new();
    let mut total = 0;
    for entry in fs::read_dir(path).doing("list", path)? {
        let entry = entry.doing("list", path)?;
        // What vanished meanwhile is not there.
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

fn remove(path: &Path, recursive: bool) -> Done<()> {
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
) -> Done<()> {
    let uid = owner.map(|owner| users::find(owner).map(|user| user.identity.uid));
    let gid = group.map(|group| users::group(group.user()));
    let known = |found: Option<Result<u32, NoUser>>, name: Option<&UserRef>| {
        let name = name.map(ToString::to_string).unwrap_or_default();
        let why = |none| match none {
            NoUser::Unknown => format!("give it to `{name}`, whom nobody knows:"),
            NoUser::OnlyRoot => format!("give it to `{name}`, as only root exists here:"),
        };
        found.transpose().map_err(|none| failed(&why(none), path, libc::EINVAL))
    };
    let (uid, gid) = (known(uid, owner)?, known(gid, group)?);
    // First, because it takes setuid away.
    if uid.is_some() || gid.is_some() {
        std::os::unix::fs::chown(path, uid, gid).doing("give away", path)?;
    }
    match mode {
        Some(mode) => {
            let mode = fs::Permissions::from_mode(mode & 0o7777);
            fs::set_permissions(path, mode).doing("set the permissions of", path)
        }
        None => Ok(()),
    }
}

/// Opens a file for reading; a pipe would make us wait, a device never end. What is neither is not
/// even opened, unless it takes the place of a file at this very moment.
pub(crate) fn open_regular(path: &Path) -> Done<File> {
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

/// Makes or replaces a file.
pub(crate) fn create(path: &Path, mode: u32, append: bool) -> Done<File> {
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

pub(crate) fn make_parents(path: &Path) -> Done<()> {
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

/// Since 1970.
fn milliseconds(time: SystemTime) -> i64 {
    let of = |span: Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => of(after),
        Err(before) => -of(before.duration()),
    }
}

/// A failure that we find ourselves, in the kernel's words.
pub(crate) fn failed(verb: &str, path: &Path, errno: i32) -> Failure {
    let doing = format!("{verb} `{}`", path.display());
    Failure { doing, error: io::Error::from_raw_os_error(errno) }
}

pub(crate) fn protocol(doing: &str) -> Failure {
    Failure { doing: doing.to_owned(), error: io::ErrorKind::InvalidData.into() }
}

/// Frames on a connection, gathered so that many small files are few writes.
pub(crate) struct Stream {
    socket: File,
    decoder: Decoder,
    out: Vec<u8>,
    buffer: Vec<u8>,
    /// The connection takes no more than this at once.
    most: usize,
}

impl Stream {
    pub(crate) fn new(socket: OwnedFd, most: usize) -> Self {
        Self {
            most,
            socket: File::from(socket),
            decoder: Decoder::new(MAX_REQUEST),
            out: Vec::with_capacity(MAX_CHUNK + HEADER),
            buffer: vec![0; MAX_CHUNK],
        }
    }

    /// What the client asks for.
    pub(crate) fn request(&mut self) -> Done<FileRequest> {
        self.next()?.value().map_err(|_| protocol("read the request"))
    }

    pub(crate) fn tell_failure(&mut self, failure: Failure) -> Done<()> {
        let errno = failure.error.raw_os_error().unwrap_or(0);
        let failed = FileFailure { doing: failure.doing, errno };
        self.send(FrameKind::Reply, &FileReply::Failed(failed))
    }

    pub(crate) fn next(&mut self) -> Done<Frame> {
        loop {
            if let Some(frame) = self.decoder.next_frame().map_err(|_| protocol("read a frame"))? {
                return Ok(frame);
            }
            let n = self.socket.read(&mut self.buffer).doing("hear", Path::new("the client"))?;
            if n == 0 {
                return Err(protocol("hear the client"));
            }
            self.decoder.push(&self.buffer[..n]);
        }
    }

    /// Takes bytes that were promised, piece by piece.
    pub(crate) fn stream(
        &mut self,
        left: u64,
        take: impl FnMut(Piece<'_>) -> Done<()>,
    ) -> Done<()> {
        let socket = &mut self.socket;
        let read = |buffer: &mut [u8]| socket.read(buffer).doing("hear", Path::new("the client"));
        self.decoder.stream(left, &mut self.buffer, read, take)
    }

    /// Sends bytes of a file that go through no memory of ours. Returns how many there were.
    pub(crate) fn send_file(&mut self, file: &File, length: usize) -> Done<usize> {
        self.out.extend_from_slice(&header(FrameKind::Bytes, length));
        self.flush()?;
        let mut sent = 0;
        while sent < length {
            match rustix::fs::sendfile(&self.socket, file, None, self.most.min(length - sent)) {
                Ok(0) => break,
                Ok(n) => sent += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()).doing("tell", Path::new("the client")),
            }
        }
        Ok(sent)
    }

    /// Zeroes for what was promised and is not there, inside a frame that has begun.
    pub(crate) fn fill_up(&mut self, missing: usize) -> Done<()> {
        self.out.resize(self.out.len() + missing, 0);
        self.flush_if_full()
    }

    pub(crate) fn send<T: serde::Serialize>(&mut self, kind: FrameKind, value: &T) -> Done<()> {
        self.out.extend_from_slice(&encode(kind, value));
        self.flush_if_full()
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Done<()> {
        self.out.extend_from_slice(&header(FrameKind::Bytes, bytes.len()));
        self.out.extend_from_slice(bytes);
        self.flush_if_full()
    }

    pub(crate) fn done(&mut self, entries: u64, bytes: u64) -> Done<()> {
        self.send(FrameKind::Reply, &FileReply::Done { entries, bytes })
    }

    fn flush_if_full(&mut self) -> Done<()> {
        if self.out.len() >= MAX_CHUNK { self.flush() } else { Ok(()) }
    }

    pub(crate) fn flush(&mut self) -> Done<()> {
        let mut pieces = self.out.chunks(self.most);
        let sent = pieces.try_for_each(|piece| self.socket.write_all(piece));
        self.out.clear();
        sent.doing("tell", Path::new("the client"))
    }
}
