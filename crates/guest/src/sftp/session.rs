//! An SFTP session: requests in, replies out.

use super::attributes::{self, SetAttrs};
use super::extensions;
use super::handles::{Handles, OpenHandle};
use super::owners::OwnerNames;
use super::packet::{
    self, ATTRS, DATA, HANDLE, MAX_DATA, NAME, PacketReader, ReplyBuffer, VERSION,
};
use super::paths;
use super::status::{SftpError, StatusCode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Limits of one directory reply, in bytes and entries: OpenSSH's client waits for each reply.
const MAX_LIST_BYTES: usize = 32 << 10;
const MAX_ENTRIES: u32 = 256;
/// The protocol version of this server.
const SFTP_VERSION: u32 = 3;

#[derive(Debug)]
pub(super) struct SftpSession<'a> {
    pub(super) handles: Handles,
    pub(super) owners: OwnerNames,
    pub(super) home: PathBuf,
    socket: BorrowedFd<'a>,
    initialized: bool,
}

impl<'a> SftpSession<'a> {
    pub(super) fn new(home: PathBuf, socket: BorrowedFd<'a>) -> Self {
        let (handles, owners) = (Handles::default(), OwnerNames::default());
        Self { handles, owners, home, socket, initialized: false }
    }

    /// Whether the client has disconnected. A half-closed connection counts, because vsock
    /// connections close in both directions at once.
    pub(super) fn is_disconnected(&self) -> bool {
        let mut wait = [PollFd::from_borrowed_fd(self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut wait, Some(&now)).is_ok_and(|happened| happened > 0)
    }

    /// Handles a packet; false if the session has to end.
    pub(super) fn answer(&mut self, packet: &[u8], out: &mut ReplyBuffer) -> bool {
        let Some((kind, rest)) = packet.split_first() else { return false };
        let mut fields = PacketReader(rest);
        if *kind == packet::INIT {
            self.initialized = true;
            let mark = out.begin();
            out.put(&[VERSION]);
            out.u32(SFTP_VERSION);
            extensions::announce(out);
            out.end(mark);
            return true;
        }
        if !self.initialized {
            return false;
        }
        let Ok(id) = fields.u32() else { return false };
        let mark = out.here();
        if let Err(refused) = self.request(*kind, id, fields, out) {
            out.undo(mark);
            out.status(id, refused.status, &refused.text);
        }
        true
    }

    fn request(
        &mut self,
        kind: u8,
        id: u32,
        mut fields: PacketReader<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<(), SftpError> {
        let it = &mut fields;
        match kind {
            packet::OPEN => return self.open(id, it, out),
            packet::READ => return self.read(id, it, out),
            packet::OPENDIR => return self.open_directory(id, it, out),
            packet::READDIR => return self.list(id, it, out),
            packet::LSTAT => return put_attrs(id, &rustix::fs::lstat(it.path()?)?, out),
            packet::STAT => return put_attrs(id, &rustix::fs::stat(it.path()?)?, out),
            packet::FSTAT => {
                let stat = rustix::fs::fstat(self.handles.descriptor(it.string()?)?)?;
                return put_attrs(id, &stat, out);
            }
            packet::REALPATH => {
                out.name(id, paths::resolve(it.path()?)?.as_os_str().as_bytes());
                return Ok(());
            }
            packet::READLINK => {
                out.name(id, fs::read_link(it.path()?)?.as_os_str().as_bytes());
                return Ok(());
            }
            packet::EXTENDED => return extensions::serve(self, id, it, out),
            packet::CLOSE => drop(self.handles.remove(it.string()?)?),
            packet::WRITE => self.write(it)?,
            packet::SETSTAT => {
                let path = it.path()?;
                SetAttrs::read(it)?.set_at(path)?;
            }
            packet::FSETSTAT => {
                let handle = it.string()?;
                let attrs = SetAttrs::read(it)?;
                attrs.set(self.handles.descriptor(handle)?)?;
            }
            packet::REMOVE => rustix::fs::unlink(it.path()?)?,
            packet::RMDIR => rustix::fs::rmdir(it.path()?)?,
            packet::MKDIR => {
                let path = it.path()?;
                rustix::fs::mkdir(path, SetAttrs::read(it)?.mode_or(0o777))?;
            }
            packet::RENAME => rename(it.path()?, it.path()?)?,
            packet::SYMLINK => {
                // The order of OpenSSH, which all clients use; the draft has it the other way.
                let (target, link) = (it.path()?, it.path()?);
                rustix::fs::symlink(target, link)?;
            }
            _ => return Err(SftpError::unsupported()),
        }
        out.ok(id);
        Ok(())
    }

    fn open(
        &mut self,
        id: u32,
        it: &mut PacketReader<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<(), SftpError> {
        let path = it.path()?;
        let wanted = it.u32()?;
        let attrs = SetAttrs::read(it)?;
        self.handles.check_room()?;
        let file = open(path, flags(wanted), attrs.mode_or(0o666))?;
        put_handle(id, self.handles.add(OpenHandle::File(file)), out);
        Ok(())
    }

    /// Reads file data directly into the reply.
    fn read(
        &mut self,
        id: u32,
        it: &mut PacketReader<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<(), SftpError> {
        let file = self.handles.file(it.string()?)?;
        let (offset, length) = (it.u64()?, it.u32()? as usize);
        let mark = out.answer(DATA, id);
        let data = out.begin();
        let room = out.room(length.min(MAX_DATA));
        let n = retry_eintr(|| rustix::io::pread(file, &mut *room, offset))?;
        if n == 0 {
            return Err(SftpError::eof());
        }
        out.advance(n);
        out.end(data);
        out.end(mark);
        Ok(())
    }

    fn write(&mut self, it: &mut PacketReader<'_>) -> Result<(), SftpError> {
        let file = self.handles.file(it.string()?)?;
        let mut offset = it.u64()?;
        let mut data = it.string()?;
        while !data.is_empty() {
            // With O_APPEND the kernel ignores the offset.
            match retry_eintr(|| rustix::io::pwrite(file, data, offset))? {
                0 => return Err(SftpError::new(StatusCode::Failure, "Failure")),
                n => {
                    data = &data[n..];
                    offset = offset.saturating_add(n as u64);
                }
            }
        }
        Ok(())
    }

    fn open_directory(
        &mut self,
        id: u32,
        it: &mut PacketReader<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<(), SftpError> {
        let path = it.path()?;
        self.handles.check_room()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let directory = Dir::new(rustix::fs::open(path, flags, Mode::empty())?)?;
        put_handle(id, self.handles.add(OpenHandle::Directory(directory, false)), out);
        Ok(())
    }

    fn list(
        &mut self,
        id: u32,
        it: &mut PacketReader<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<(), SftpError> {
        let (directory, at_end) = self.handles.directory(it.string()?)?;
        if *at_end {
            return Err(SftpError::eof());
        }
        let now = i64::try_from(msb_spec::clock::now() / 1000).unwrap_or(i64::MAX);
        let mark = out.answer(NAME, id);
        let count_at = out.here();
        out.u32(0);
        let mut count = 0;
        while count < MAX_ENTRIES && out.since(mark) < MAX_LIST_BYTES {
            let Some(entry) = directory.read() else {
                *at_end = true;
                break;
            };
            let entry = entry?;
            let name = entry.file_name();
            // The file was removed meanwhile.
            let found = directory
                .fd()
                .and_then(|fd| rustix::fs::statat(fd, name, AtFlags::SYMLINK_NOFOLLOW));
            let Ok(stat) = found else { continue };
            out.string(name.to_bytes());
            let long = out.begin();
            out.put(self.owners.line(&stat, now).as_bytes());
            out.put(name.to_bytes());
            out.end(long);
            attributes::put(out, &stat);
            count += 1;
        }
        if count == 0 {
            return Err(SftpError::eof());
        }
        out.set(count_at, count);
        out.end(mark);
        Ok(())
    }
}

fn put_attrs(id: u32, stat: &Stat, out: &mut ReplyBuffer) -> Result<(), SftpError> {
    let mark = out.answer(ATTRS, id);
    attributes::put(out, stat);
    out.end(mark);
    Ok(())
}

fn put_handle(id: u32, handle: [u8; 8], out: &mut ReplyBuffer) {
    let mark = out.answer(HANDLE, id);
    out.string(&handle);
    out.end(mark);
}

fn retry_eintr<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Converts SFTP open flags.
fn flags(wanted: u32) -> OFlags {
    const READ: u32 = 1;
    const WRITE: u32 = 2;
    let mut flags = match (wanted & READ != 0, wanted & WRITE != 0) {
        (true, true) => OFlags::RDWR,
        (false, true) => OFlags::WRONLY,
        (_, false) => OFlags::RDONLY,
    };
    let all = [(4, OFlags::APPEND), (8, OFlags::CREATE), (16, OFlags::TRUNC), (32, OFlags::EXCL)];
    for (bit, flag) in all {
        flags.set(flag, wanted & bit != 0);
    }
    flags
}

/// Opens a file. A FIFO or socket would block, and opening a device may have effects, so only
/// harmless devices are allowed. The type is checked before opening, and again after, in case the
/// file was replaced.
fn open(path: &Path, flags: OFlags, mode: Mode) -> Result<File, SftpError> {
    let allowed = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory | FileType::Symlink => true,
        FileType::CharacterDevice => {
            // null, zero, full, random, urandom
            rustix::fs::major(stat.st_rdev) == 1
                && matches!(rustix::fs::minor(stat.st_rdev), 3 | 5 | 7 | 8 | 9)
        }
        _ => false,
    };
    let refused = || SftpError::new(StatusCode::Failure, "Not a file");
    if rustix::fs::stat(path).is_ok_and(|stat| !allowed(&stat)) {
        return Err(refused());
    }
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened: OwnedFd = retry_eintr(|| rustix::fs::open(path, flags, mode))?;
    match allowed(&rustix::fs::fstat(opened.as_fd())?) {
        true => Ok(File::from(opened)),
        false => Err(refused()),
    }
}

/// Renames without replacing, as version 3 requires.
fn rename(from: &Path, to: &Path) -> Result<(), SftpError> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system supports RENAME_NOREPLACE.
        Err(Errno::INVAL | Errno::NOSYS) => match rustix::fs::lstat(to) {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(_) => Ok(rustix::fs::rename(from, to)?),
        },
        done => Ok(done?),
    }
}
