//! Whole trees: in, out, and from one place inside to another.

use crate::files::{
    Doing, Done, Stream, as_path, create, kind_of, make_parents, open_regular, protocol,
};
use msb_sys::sparse::{self, Run};
use msb_wire::{Entry, EntryKind, FrameKind, MAX_CHUNK, Piece};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Deeper than any real tree; a hostile one must not use up our stack.
pub(crate) const DEPTH_LIMIT: usize = 512;

/// Below this, gathering many files for one write beats sending each from its own pages.
const SMALL: usize = 64 << 10;

/// Entries and bytes of a copy.
type Count = (u64, u64);

/// Takes a tree in from the client.
pub(crate) fn take_in(stream: &mut Stream, path: &Path, into: Option<&[u8]>) -> Done<Count> {
    let root = place_of(path, into);
    make_parents(&root)?;
    let mut count = (0, 0);
    // A directory's permissions may forbid writing into it, so they are set last.
    let mut directories: Vec<(PathBuf, Entry)> = Vec::new();
    loop {
        let frame = stream.next()?;
        if frame.kind != FrameKind::Entry {
            return Err(protocol("take in a tree"));
        }
        let entry: Entry = frame.value().map_err(|_| protocol("take in a tree"))?;
        if !entry.is_safe() {
            return Err(protocol("take in a tree"));
        }
        let place = match entry.path.as_slice() {
            b"" => root.clone(),
            below => root.join(as_path(below)),
        };
        count.0 += 1;
        match &entry.kind {
            EntryKind::End => break,
            EntryKind::Directory => {
                if !place.is_dir() {
                    fs::create_dir(&place).doing("make directory", &place)?;
                }
                directories.push((place, entry));
            }
            EntryKind::Symlink(target) => {
                if fs::symlink_metadata(&place).is_ok_and(|meta| !meta.is_dir()) {
                    fs::remove_file(&place).doing("replace", &place)?;
                }
                std::os::unix::fs::symlink(as_path(target), &place).doing("link", &place)?;
            }
            EntryKind::File => count.1 += take_in_file(stream, &place, &entry)?,
            EntryKind::Other => {}
        }
    }
    for (place, entry) in directories.into_iter().rev() {
        finish(&place, entry.mode, entry.modified)?;
    }
    Ok((count.0 - 1, count.1))
}

/// Where a copy goes: to the path, or below it by its own name if it is a directory.
pub(crate) fn place_of(path: &Path, into: Option<&[u8]>) -> PathBuf {
    match into {
        Some(name) if path.is_dir() => path.join(as_path(name)),
        _ => path.to_owned(),
    }
}

fn take_in_file(stream: &mut Stream, place: &Path, entry: &Entry) -> Done<u64> {
    let mut file = create(place, entry.mode, false)?;
    let mut has_holes = false;
    stream.stream(entry.size, |piece| {
        let written = match piece {
            Piece::Bytes(bytes) => file.write_all(bytes),
            Piece::Hole(length) => {
                has_holes = true;
                let length = i64::try_from(length).unwrap_or(i64::MAX);
                file.seek(SeekFrom::Current(length)).map(drop)
            }
        };
        written.doing("write", place)
    })?;
    if has_holes {
        // A hole at the end is not part of the file yet.
        file.set_len(entry.size).doing("write", place)?;
    }
    finish(place, entry.mode, entry.modified)?;
    Ok(entry.size)
}

pub(crate) fn finish(place: &Path, mode: u32, modified: i64) -> Done<()> {
    fs::set_permissions(place, Permissions::from_mode(mode & 0o777)).doing("set mode of", place)?;
    let time = Timespec {
        tv_sec: modified.div_euclid(1000),
        tv_nsec: (modified.rem_euclid(1000) * 1_000_000) as _,
    };
    let times = Timestamps { last_access: time, last_modification: time };
    // A time is a nicety; a file system that has none is no reason to fail a copy.
    let _ = rustix::fs::utimensat(CWD, place, &times, AtFlags::SYMLINK_NOFOLLOW);
    Ok(())
}

/// Gives a tree out to the client.
pub(crate) fn give_out(stream: &mut Stream, path: &Path) -> Done<Count> {
    // Only the root is followed if it is a link; what lies below is given as it is.
    let root = fs::canonicalize(path).doing("open", path)?;
    let mut count = (0, 0);
    walk(&root, Path::new(""), 0, &mut |place, below| {
        give_entry(stream, place, below, &mut count)
    })?;
    let end = Entry { path: Vec::new(), kind: EntryKind::End, mode: 0, size: 0, modified: 0 };
    stream.send(FrameKind::Entry, &end)?;
    Ok(count)
}

fn give_entry(stream: &mut Stream, place: &Path, below: &Path, count: &mut Count) -> Done<()> {
    let meta = fs::symlink_metadata(place).doing("look at", place)?;
    let kind = kind_of(place, &meta);
    let mut file = match kind {
        EntryKind::File => Some(open_regular(place)?),
        _ => None,
    };
    let size = if file.is_some() { meta.len() } else { 0 };
    let entry = Entry {
        path: below.as_os_str().as_bytes().to_vec(),
        kind,
        mode: meta.permissions().mode() & 0o777,
        size,
        modified: meta.mtime().saturating_mul(1000) + meta.mtime_nsec() / 1_000_000,
    };
    stream.send(FrameKind::Entry, &entry)?;
    count.0 += 1;
    count.1 += size;
    let Some(file) = &mut file else { return Ok(()) };
    let has_holes = size >= SMALL as u64 && sparse::has_holes(file).doing("read", place)?;
    let mut at = 0;
    while at < size {
        let run = match has_holes {
            true => sparse::run_at(&*file, at, size).doing("read", place)?,
            false => Run::Data { end: size },
        };
        match run {
            Run::Hole { end } => stream.send(FrameKind::Hole, &(end - at))?,
            Run::Data { end } => give_bytes(stream, file, place, end - at)?,
        }
        at = run.end();
    }
    Ok(())
}

/// Sends so many bytes of a file, from its position on.
fn give_bytes(stream: &mut Stream, file: &mut File, place: &Path, length: u64) -> Done<()> {
    let mut left = length;
    while left > 0 {
        let wanted = left.min(MAX_CHUNK as u64) as usize;
        // It may shrink while we read: the size was promised, so the rest is zeroes.
        let missing = if wanted < SMALL {
            let mut bytes = vec![0; wanted];
            let mut filled = 0;
            while filled < wanted {
                match file.read(&mut bytes[filled..]).doing("read", place)? {
                    0 => break,
                    n => filled += n,
                }
            }
            stream.bytes(&bytes)?;
            0
        } else {
            wanted - stream.send_file(file, wanted)?
        };
        stream.fill_up(missing)?;
        left -= wanted as u64;
    }
    Ok(())
}

/// Copies a file or tree inside.
pub(crate) fn copy(from: &Path, to: &Path) -> Done<Count> {
    let from = fs::canonicalize(from).doing("open", from)?;
    if to.starts_with(&from) && from.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL)).doing("copy into itself", to);
    }
    make_parents(to)?;
    let mut count = (0, 0);
    walk(&from, Path::new(""), 0, &mut |place, below| {
        let target = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
        let meta = fs::symlink_metadata(place).doing("look at", place)?;
        match kind_of(place, &meta) {
            EntryKind::Directory if target.is_dir() => {}
            EntryKind::Directory => fs::create_dir(&target).doing("make directory", &target)?,
            EntryKind::Symlink(link) => {
                std::os::unix::fs::symlink(as_path(&link), &target).doing("link", &target)?;
            }
            EntryKind::File => {
                let out = create(&target, meta.permissions().mode(), false)?;
                count.1 += copy_file(&open_regular(place)?, out).doing("copy", place)?;
            }
            EntryKind::Other | EntryKind::End => {}
        }
        count.0 += 1;
        Ok(())
    })?;
    Ok(count)
}

fn copy_file(mut from: &File, mut to: File) -> io::Result<u64> {
    // What is there may be a device: only a file has holes.
    match sparse::has_holes(from)? && to.metadata()?.is_file() {
        true => sparse::copy(from, &to),
        false => io::copy(&mut from, &mut to),
    }
}

/// Visits a directory before what it holds. Links are not followed.
fn walk(
    place: &Path,
    below: &Path,
    depth: usize,
    visit: &mut dyn FnMut(&Path, &Path) -> Done<()>,
) -> Done<()> {
    visit(place, below)?;
    let meta = fs::symlink_metadata(place).doing("look at", place)?;
    if !meta.is_dir() {
        return Ok(());
    }
    if depth == DEPTH_LIMIT {
        return Err(io::Error::from_raw_os_error(libc::ELOOP)).doing("descend into", place);
    }
    for entry in fs::read_dir(place).doing("list", place)? {
        let name = entry.doing("list", place)?.file_name();
        walk(&place.join(&name), &below.join(&name), depth + 1, visit)?;
    }
    Ok(())
}

/// Where a path leads, as far as there is something; what follows is taken as it is written.
pub(crate) fn real(path: &Path) -> io::Result<PathBuf> {
    let mut missing: Vec<Component<'_>> = Vec::new();
    let mut there = path.components();
    let mut real = loop {
        let rest = there.as_path();
        let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
        match fs::canonicalize(rest) {
            Ok(real) => break real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                missing.push(there.next_back().ok_or(error)?);
            }
            Err(error) => return Err(error),
        }
    };
    for part in missing.into_iter().rev() {
        match part {
            Component::ParentDir => drop(real.pop()),
            Component::Normal(name) => real.push(name),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(real)
}
