//! One session: requests in, answers out.

use super::attributes::{self, Asked};
use super::extensions;
use super::handles::{Handles, Open};
use super::owners::Owners;
use super::packet::{self, ATTRS, DATA, Fields, HANDLE, MAX_DATA, NAME, Out, VERSION};
use super::paths;
use super::status::{Refused, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most that one answer tells of a directory, in bytes and in entries: OpenSSH's client waits for each answer.
const LISTED: usize = 32 << 10;
const MOST_LISTED: u32 = 256;
/// The version that is spoken.
const THREE: u32 = 3;

#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) handles: Handles,
    pub(super) owners: Owners,
    pub(super) home: PathBuf,
    socket: BorrowedFd<'a>,
    greeted: bool,
}

impl<'a> Session<'a> {
    pub(super) fn new(home: PathBuf, socket: BorrowedFd<'a>) -> Self {
        let (handles, owners) = (Handles::default(), Owners::default());
        Self { handles, owners, home, socket, greeted: false }
    }

    /// Whether nobody waits for an answer any more. The end of what a client says is taken for that: a
    /// connection out of a machine ends in both directions at once.
    pub(super) fn is_left(&self) -> bool {
        let mut wait = [PollFd::from_borrowed_fd(self.socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut wait, Some(&now)).is_ok_and(|happened| happened > 0)
    }

    /// Answers a packet; false if the session is over.
    pub(super) fn answer(&mut self, packet: &[u8], out: &mut Out) -> bool {
        let Some((kind, rest)) = packet.split_first() else { return false };
        let mut fields = Fields(rest);
        if *kind == packet::INIT {
            self.greeted = true;
            let begun = out.begin();
            out.put(&[VERSION]);
            out.u32(THREE);
            extensions::announce(out);
            out.end(begun);
            return true;
        }
        if !self.greeted {
            return false;
        }
        let Ok(id) = fields.u32() else { return false };
        let begun = out.here();
        if let Err(refused) = self.request(*kind, id, fields, out) {
            out.undo(begun);
            out.status(id, refused.status, &refused.text);
        }
        true
    }

    fn request(
        &mut self,
        kind: u8,
        id: u32,
        mut fields: Fields<'_>,
        out: &mut Out,
    ) -> Result<(), Refused> {
        let it = &mut fields;
        match kind {
            packet::OPEN => return self.open(id, it, out),
            packet::READ => return self.read(id, it, out),
            packet::OPENDIR => return self.open_directory(id, it, out),
            packet::READDIR => return self.list(id, it, out),
            packet::LSTAT => return told(id, &rustix::fs::lstat(it.path()?)?, out),
            packet::STAT => return told(id, &rustix::fs::stat(it.path()?)?, out),
            packet::FSTAT => {
                let stat = rustix::fs::fstat(self.handles.descriptor(it.string()?)?)?;
                return told(id, &stat, out);
            }
            packet::REALPATH => {
                out.name(id, paths::real(it.path()?)?.as_os_str().as_bytes());
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
                Asked::read(it)?.set_at(path)?;
            }
            packet::FSETSTAT => {
                let handle = it.string()?;
                let asked = Asked::read(it)?;
                asked.set(self.handles.descriptor(handle)?)?;
            }
            packet::REMOVE => rustix::fs::unlink(it.path()?)?,
            packet::RMDIR => rustix::fs::rmdir(it.path()?)?,
            packet::MKDIR => {
                let path = it.path()?;
                rustix::fs::mkdir(path, Asked::read(it)?.mode_or(0o777))?;
            }
            packet::RENAME => rename(it.path()?, it.path()?)?,
            packet::SYMLINK => {
                // OpenSSH's order, which is not the draft's, is everybody's.
                let (target, link) = (it.path()?, it.path()?);
                rustix::fs::symlink(target, link)?;
            }
            _ => return Err(Refused::unsupported()),
        }
        out.ok(id);
        Ok(())
    }

    fn open(&mut self, id: u32, it: &mut Fields<'_>, out: &mut Out) -> Result<(), Refused> {
        let path = it.path()?;
        let wanted = it.u32()?;
        let asked = Asked::read(it)?;
        self.handles.check_room()?;
        let file = open(path, flags(wanted), asked.mode_or(0o666))?;
        give(id, self.handles.add(Open::File(file)), out);
        Ok(())
    }

    /// Bytes of a file go straight into the answer.
    fn read(&mut self, id: u32, it: &mut Fields<'_>, out: &mut Out) -> Result<(), Refused> {
        let file = self.handles.file(it.string()?)?;
        let (offset, length) = (it.u64()?, it.u32()? as usize);
        let begun = out.answer(DATA, id);
        let data = out.begin();
        let room = out.room(length.min(MAX_DATA));
        let n = again(|| rustix::io::pread(file, &mut *room, offset))?;
        if n == 0 {
            return Err(Refused::eof());
        }
        out.advance(n);
        out.end(data);
        out.end(begun);
        Ok(())
    }

    fn write(&mut self, it: &mut Fields<'_>) -> Result<(), Refused> {
        let file = self.handles.file(it.string()?)?;
        let mut offset = it.u64()?;
        let mut data = it.string()?;
        while !data.is_empty() {
            // Where it was opened to be added to, the kernel does that wherever it is written.
            match again(|| rustix::io::pwrite(file, data, offset))? {
                0 => return Err(Refused::new(Status::Failure, "Failure")),
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
        it: &mut Fields<'_>,
        out: &mut Out,
    ) -> Result<(), Refused> {
        let path = it.path()?;
        self.handles.check_room()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let directory = Dir::new(rustix::fs::open(path, flags, Mode::empty())?)?;
        give(id, self.handles.add(Open::Directory(directory, false)), out);
        Ok(())
    }

    fn list(&mut self, id: u32, it: &mut Fields<'_>, out: &mut Out) -> Result<(), Refused> {
        let (directory, told) = self.handles.directory(it.string()?)?;
        if *told {
            return Err(Refused::eof());
        }
        let now = i64::try_from(msb_spec::clock::now() / 1000).unwrap_or(i64::MAX);
        let begun = out.answer(NAME, id);
        let count_at = out.here();
        out.u32(0);
        let mut count = 0;
        while count < MOST_LISTED && out.since(begun) < LISTED {
            let Some(entry) = directory.read() else {
                *told = true;
                break;
            };
            let entry = entry?;
            let name = entry.file_name();
            // What vanished meanwhile is not there.
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
            return Err(Refused::eof());
        }
        out.set(count_at, count);
        out.end(begun);
        Ok(())
    }
}

fn told(id: u32, stat: &Stat, out: &mut Out) -> Result<(), Refused> {
    let begun = out.answer(ATTRS, id);
    attributes::put(out, stat);
    out.end(begun);
    Ok(())
}

fn give(id: u32, handle: [u8; 8], out: &mut Out) {
    let begun = out.answer(HANDLE, id);
    out.string(&handle);
    out.end(begun);
}

fn again<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// What is wanted of a file, in the kernel's words.
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

/// Opens a file. A pipe or socket would make everybody wait, and a device may do anything when it is
/// opened: only those are that every sandbox has and that hold nothing. What is neither is not even opened,
/// unless it takes the place of a file at this very moment; then it is closed again.
fn open(path: &Path, flags: OFlags, mode: Mode) -> Result<File, Refused> {
    let allowed = |stat: &Stat| match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile | FileType::Directory | FileType::Symlink => true,
        FileType::CharacterDevice => {
            // null, zero, full, random, urandom
            rustix::fs::major(stat.st_rdev) == 1
                && matches!(rustix::fs::minor(stat.st_rdev), 3 | 5 | 7 | 8 | 9)
        }
        _ => false,
    };
    let refused = || Refused::new(Status::Failure, "Not a file");
    if rustix::fs::stat(path).is_ok_and(|stat| !allowed(&stat)) {
        return Err(refused());
    }
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened: OwnedFd = again(|| rustix::fs::open(path, flags, mode))?;
    match allowed(&rustix::fs::fstat(opened.as_fd())?) {
        true => Ok(File::from(opened)),
        false => Err(refused()),
    }
}

/// Version 3 replaces nothing.
fn rename(from: &Path, to: &Path) -> Result<(), Refused> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system can promise it.
        Err(Errno::INVAL | Errno::NOSYS) => match rustix::fs::lstat(to) {
            Ok(_) => Err(Errno::EXIST.into()),
            Err(_) => Ok(rustix::fs::rename(from, to)?),
        },
        done => Ok(done?),
    }
}
