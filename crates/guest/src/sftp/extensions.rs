//! SFTP extensions of OpenSSH.

use super::attributes::SetAttrs;
use super::handles;
use super::packet::{EXTENDED_REPLY, MAX_DATA, MAX_PACKET, PacketReader, ReplyBuffer};
use super::paths;
use super::session::SftpSession;
use super::status::{SftpError, StatusCode};
use rustix::fs::{FileType, StatVfs, StatVfsMountFlags};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

const ALL: [(&str, &str); 11] = [
    ("posix-rename@openssh.com", "1"),
    ("statvfs@openssh.com", "2"),
    ("fstatvfs@openssh.com", "2"),
    ("hardlink@openssh.com", "1"),
    ("fsync@openssh.com", "1"),
    ("lsetstat@openssh.com", "1"),
    ("limits@openssh.com", "1"),
    ("expand-path@openssh.com", "1"),
    ("copy-data", "1"),
    ("home-directory", "1"),
    ("users-groups-by-id@openssh.com", "1"),
];
/// Bytes of names in a reply; later names are empty.
const MAX_NAMES: usize = 64 << 10;
/// Large enough that system call overhead does not matter.
const COPY_CHUNK: usize = 128 << 10;

/// Lists the extensions in the version packet.
pub(super) fn announce(out: &mut ReplyBuffer) {
    for (name, version) in ALL {
        out.string(name.as_bytes());
        out.string(version.as_bytes());
    }
}

pub(super) fn serve(
    session: &mut SftpSession<'_>,
    id: u32,
    it: &mut PacketReader<'_>,
    out: &mut ReplyBuffer,
) -> Result<(), SftpError> {
    match it.string()? {
        b"posix-rename@openssh.com" => rustix::fs::rename(it.path()?, it.path()?)?,
        b"hardlink@openssh.com" => rustix::fs::link(it.path()?, it.path()?)?,
        b"fsync@openssh.com" => rustix::fs::fsync(session.handles.file(it.string()?)?)?,
        b"lsetstat@openssh.com" => {
            let path = it.path()?;
            SetAttrs::read(it)?.set_nofollow(path)?;
        }
        b"copy-data" => copy(session, it)?,
        b"statvfs@openssh.com" => {
            put_statvfs(id, &rustix::fs::statvfs(it.path()?)?, out);
            return Ok(());
        }
        b"fstatvfs@openssh.com" => {
            let found = rustix::fs::fstatvfs(session.handles.descriptor(it.string()?)?)?;
            put_statvfs(id, &found, out);
            return Ok(());
        }
        b"limits@openssh.com" => {
            let mark = out.answer(EXTENDED_REPLY, id);
            for limit in [MAX_PACKET, MAX_DATA, MAX_DATA, handles::MAX_HANDLES] {
                out.u64(limit as u64);
            }
            out.end(mark);
            return Ok(());
        }
        b"expand-path@openssh.com" => {
            let path = paths::expand_tilde(it.path()?, &session.home)?;
            out.name(id, path.as_os_str().as_bytes());
            return Ok(());
        }
        b"home-directory" => {
            let home = match it.string()? {
                b"" => session.home.clone(),
                name => paths::home_of(name)?,
            };
            out.name(id, home.as_os_str().as_bytes());
            return Ok(());
        }
        b"users-groups-by-id@openssh.com" => return put_owner_names(session, id, it, out),
        _ => return Err(SftpError::unsupported()),
    }
    out.ok(id);
    Ok(())
}

fn put_statvfs(id: u32, found: &StatVfs, out: &mut ReplyBuffer) {
    let has = |flag, number| if found.f_flag.contains(flag) { number } else { 0 };
    let mark = out.answer(EXTENDED_REPLY, id);
    let read_only = has(StatVfsMountFlags::RDONLY, 1);
    let no_setid = has(StatVfsMountFlags::NOSUID, 2);
    for number in [
        found.f_bsize,
        found.f_frsize,
        found.f_blocks,
        found.f_bfree,
        found.f_bavail,
        found.f_files,
        found.f_ffree,
        found.f_favail,
        found.f_fsid,
        read_only | no_setid,
        found.f_namemax,
    ] {
        out.u64(number);
    }
    out.end(mark);
}

/// Names of users and groups; empty for unknown ids.
fn put_owner_names(
    session: &mut SftpSession<'_>,
    id: u32,
    it: &mut PacketReader<'_>,
    out: &mut ReplyBuffer,
) -> Result<(), SftpError> {
    let (users, groups) = (it.string()?, it.string()?);
    let mark = out.answer(EXTENDED_REPLY, id);
    for (ids, of_users) in [(users, true), (groups, false)] {
        let list = out.begin();
        for id in ids.chunks_exact(4) {
            let id = id.iter().fold(0, |id, byte| id << 8 | u32::from(*byte));
            let name = match of_users {
                true => session.owners.user(id),
                false => session.owners.group(id),
            };
            let name = name.filter(|_| out.since(list) < MAX_NAMES).unwrap_or_default();
            out.string(name.as_bytes());
        }
        out.end(list);
    }
    out.end(mark);
    Ok(())
}

/// Copies between open files on the server, until the client disconnects.
fn copy(session: &mut SftpSession<'_>, it: &mut PacketReader<'_>) -> Result<(), SftpError> {
    let (source, mut from, length) = (it.string()?, it.u64()?, it.u64()?);
    let (target, mut to) = (it.string()?, it.u64()?);
    if source == target {
        return Err(SftpError::new(StatusCode::Failure, "Cannot copy a handle to itself"));
    }
    let again = |file: &File| file.try_clone();
    let source = again(session.handles.file(source)?)?;
    let target = again(session.handles.file(target)?)?;
    let (one, other) = (rustix::fs::fstat(&source)?, rustix::fs::fstat(&target)?);
    // A device has no end.
    if FileType::from_raw_mode(one.st_mode) != FileType::RegularFile {
        return Err(SftpError::new(StatusCode::Failure, "Not a file"));
    }
    // Otherwise the copy would extend its own source for ever.
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
        return Err(SftpError::new(StatusCode::Failure, "Cannot copy a file to itself"));
    }
    let mut left = if length == 0 { u64::MAX } else { length };
    let mut buffer = vec![0; COPY_CHUNK];
    while left > 0 {
        let wanted = left.min(buffer.len() as u64) as usize;
        let n = rustix::io::pread(&source, &mut buffer[..wanted], from)?;
        let mut piece = &buffer[..n];
        if piece.is_empty() {
            break;
        }
        while !piece.is_empty() {
            match rustix::io::pwrite(&target, piece, to)? {
                0 => return Err(SftpError::new(StatusCode::Failure, "Failure")),
                written => {
                    piece = &piece[written..];
                    to = to.saturating_add(written as u64);
                }
            }
        }
        from = from.saturating_add(n as u64);
        left -= n as u64;
        // A copy may take very long, so stop when the client has disconnected.
        if session.is_disconnected() {
            return Err(SftpError::new(StatusCode::Failure, "Failure"));
        }
    }
    Ok(())
}
