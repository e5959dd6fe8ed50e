//! What OpenSSH's clients ask for beyond version 3.

use super::attributes::Asked;
use super::handles;
use super::packet::{EXTENDED_REPLY, Fields, MAX_DATA, MAX_PACKET, Out};
use super::paths;
use super::session::Session;
use super::status::{Refused, Status};
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
/// Names in an answer get no more than this; who comes later has none.
const NAMES: usize = 64 << 10;
/// Enough that copying costs more than asking.
const PIECE: usize = 128 << 10;

/// Says what there is.
pub(super) fn announce(out: &mut Out) {
    for (name, version) in ALL {
        out.string(name.as_bytes());
        out.string(version.as_bytes());
    }
}

pub(super) fn serve(
    session: &mut Session<'_>,
    id: u32,
    it: &mut Fields<'_>,
    out: &mut Out,
) -> Result<(), Refused> {
    match it.string()? {
        b"posix-rename@openssh.com" => rustix::fs::rename(it.path()?, it.path()?)?,
        b"hardlink@openssh.com" => rustix::fs::link(it.path()?, it.path()?)?,
        b"fsync@openssh.com" => rustix::fs::fsync(session.handles.file(it.string()?)?)?,
        b"lsetstat@openssh.com" => {
            let path = it.path()?;
            Asked::read(it)?.set_itself(path)?;
        }
        b"copy-data" => copy(session, it)?,
        b"statvfs@openssh.com" => {
            room(id, &rustix::fs::statvfs(it.path()?)?, out);
            return Ok(());
        }
        b"fstatvfs@openssh.com" => {
            let found = rustix::fs::fstatvfs(session.handles.descriptor(it.string()?)?)?;
            room(id, &found, out);
            return Ok(());
        }
        b"limits@openssh.com" => {
            let begun = out.answer(EXTENDED_REPLY, id);
            for limit in [MAX_PACKET, MAX_DATA, MAX_DATA, handles::MOST] {
                out.u64(limit as u64);
            }
            out.end(begun);
            return Ok(());
        }
        b"expand-path@openssh.com" => {
            let path = paths::expanded(it.path()?, &session.home)?;
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
        b"users-groups-by-id@openssh.com" => return named(session, id, it, out),
        _ => return Err(Refused::unsupported()),
    }
    out.ok(id);
    Ok(())
}

fn room(id: u32, found: &StatVfs, out: &mut Out) {
    let has = |flag, number| if found.f_flag.contains(flag) { number } else { 0 };
    let begun = out.answer(EXTENDED_REPLY, id);
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
    out.end(begun);
}

/// Names of users and groups, empty where nobody has that number.
fn named(
    session: &mut Session<'_>,
    id: u32,
    it: &mut Fields<'_>,
    out: &mut Out,
) -> Result<(), Refused> {
    let (users, groups) = (it.string()?, it.string()?);
    let begun = out.answer(EXTENDED_REPLY, id);
    for (ids, of_users) in [(users, true), (groups, false)] {
        let list = out.begin();
        for id in ids.chunks_exact(4) {
            let id = id.iter().fold(0, |id, byte| id << 8 | u32::from(*byte));
            let name = match of_users {
                true => session.owners.user(id),
                false => session.owners.group(id),
            };
            let name = name.filter(|_| out.since(list) < NAMES).unwrap_or_default();
            out.string(name.as_bytes());
        }
        out.end(list);
    }
    out.end(begun);
    Ok(())
}

/// Copies from one file that is open to another, without the client in between, and no longer than it
/// waits for that.
fn copy(session: &mut Session<'_>, it: &mut Fields<'_>) -> Result<(), Refused> {
    let (source, mut from, length) = (it.string()?, it.u64()?, it.u64()?);
    let (target, mut to) = (it.string()?, it.u64()?);
    if source == target {
        return Err(Refused::new(Status::Failure, "Cannot copy a handle to itself"));
    }
    let again = |file: &File| file.try_clone();
    let source = again(session.handles.file(source)?)?;
    let target = again(session.handles.file(target)?)?;
    let (one, other) = (rustix::fs::fstat(&source)?, rustix::fs::fstat(&target)?);
    // A device has no end.
    if FileType::from_raw_mode(one.st_mode) != FileType::RegularFile {
        return Err(Refused::new(Status::Failure, "Not a file"));
    }
    // Else it would never come to the end of what it writes.
    if (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
        return Err(Refused::new(Status::Failure, "Cannot copy a file to itself"));
    }
    let mut left = if length == 0 { u64::MAX } else { length };
    let mut buffer = vec![0; PIECE];
    while left > 0 {
        let wanted = left.min(buffer.len() as u64) as usize;
        let n = rustix::io::pread(&source, &mut buffer[..wanted], from)?;
        let mut piece = &buffer[..n];
        if piece.is_empty() {
            break;
        }
        while !piece.is_empty() {
            match rustix::io::pwrite(&target, piece, to)? {
                0 => return Err(Refused::new(Status::Failure, "Failure")),
                written => {
                    piece = &piece[written..];
                    to = to.saturating_add(written as u64);
                }
            }
        }
        from = from.saturating_add(n as u64);
        left -= n as u64;
        // A file may be longer than anybody lives.
        if session.is_left() {
            return Err(Refused::new(Status::Failure, "Failure"));
        }
    }
    Ok(())
}
