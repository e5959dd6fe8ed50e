//! Trees of files: receiving, sending and copying them.

use crate::files::{
    FileResult, FrameStream, WithContext, as_path, create, kind_of, make_parents, open_regular,
    protocol,
};
use crate::mirror_dir::TempEntry;
use msb_sys::sparse::{self, Run};
use msb_wire::{Entry, EntryKind, FrameKind, MAX_CHUNK, Piece};
use rustix::fs::{Access, AtFlags, CWD, StatxAttributes, StatxFlags, Timespec, Timestamps};
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};

/// Deeper than any real tree; a hostile one must not overflow our stack.
pub(crate) const DEPTH_LIMIT: usize = 512;

/// Smaller files are buffered and written together, larger ones are sent by sendfile(2).
const SENDFILE_MIN: usize = 64 << 10;

/// Entries and bytes of a copy.
type Count = (u64, u64);

/// Receives a tree from the client.
pub(crate) fn receive(
    stream: &mut FrameStream,
    path: &Path,
    into: Option<&[u8]>,
) -> FileResult<Count> {
    let root = target_path(path, into);
    make_parents(&root)?;
    let mut count = (0, 0);
    // Permissions of directories are set last, because they may forbid writing.
    let mut directories: Vec<(PathBuf, Entry)> = Vec::new();
    loop {
        let frame = stream.next()?;
        if frame.kind != FrameKind::Entry {
            return Err(protocol("receive a tree"));
        }
        let entry: Entry = frame.value().map_err(|_| protocol("receive a tree"))?;
        if !entry.is_safe() {
            return Err(protocol("receive a tree"));
        }
        let entry_path = match entry.path.as_slice() {
            b"" => root.clone(),
            below => root.join(as_path(below)),
        };
        count.0 += 1;
        match &entry.kind {
            EntryKind::End => break,
            EntryKind::Directory => {
                if !entry_path.is_dir() {
                    fs::create_dir(&entry_path).doing("make directory", &entry_path)?;
                }
                directories.push((entry_path, entry));
            }
            EntryKind::Symlink(target) => {
                if fs::symlink_metadata(&entry_path).is_ok_and(|meta| !meta.is_dir()) {
                    fs::remove_file(&entry_path).doing("replace", &entry_path)?;
                }
                std::os::unix::fs::symlink(as_path(target), &entry_path)
                    .doing("link", &entry_path)?;
            }
            EntryKind::File => count.1 += receive_file(stream, &entry_path, &entry)?,
            EntryKind::Other => {}
        }
    }
    for (entry_path, entry) in directories.into_iter().rev() {
        finish(&entry_path, entry.mode, entry.modified)?;
    }
    Ok((count.0 - 1, count.1))
}

/// Target of a copy: the path, or a new entry below it if it is a directory.
pub(crate) fn target_path(path: &Path, into: Option<&[u8]>) -> PathBuf {
    match into {
        Some(name) if path.is_dir() => path.join(as_path(name)),
        _ => path.to_owned(),
    }
}

/// Receives a file beside its path and renames it, so that a client that is killed leaves no half
/// of it under that name.
fn receive_file(stream: &mut FrameStream, entry_path: &Path, entry: &Entry) -> FileResult<u64> {
    let Some((draft, file)) = draft_of(entry_path) else {
        let file = create(entry_path, entry.mode, false)?;
        return receive_content(stream, file, entry_path, entry_path, entry);
    };
    let size = receive_content(stream, file, draft.path(), entry_path, entry)?;
    draft.keep(entry_path).doing("write", entry_path)?;
    Ok(size)
}

/// A new file beside a path that is free, or has a regular file with no other name. Everything
/// else is written in place: links are followed, mounts and hard links stay. So is a file in a
/// directory that the user cannot write to.
fn draft_of(entry_path: &Path) -> Option<(TempEntry, File)> {
    let old = match fs::symlink_metadata(entry_path) {
        Ok(meta) if meta.is_file() && meta.nlink() == 1 && !is_mounted(entry_path) => Some(meta),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        _ => return None,
    };
    rustix::fs::access(entry_path.parent()?, Access::WRITE_OK | Access::EXEC_OK).ok()?;
    let (draft, file) = TempEntry::file(entry_path).ok()?;
    if let Some(old) = old {
        let new = file.metadata().ok()?;
        if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
            std::os::unix::fs::fchown(&file, Some(old.uid()), Some(old.gid())).ok()?;
        }
    }
    Some((draft, file))
}

/// Whether a path is a mount of its own, as /etc/resolv.conf is, which nothing can replace.
fn is_mounted(path: &Path) -> bool {
    let stat = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE);
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

fn receive_content(
    stream: &mut FrameStream,
    mut file: File,
    written_path: &Path,
    entry_path: &Path,
    entry: &Entry,
) -> FileResult<u64> {
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
        written.doing("write", entry_path)
    })?;
    if has_holes {
        // A hole at the end must be added by its length.
        file.set_len(entry.size).doing("write", entry_path)?;
    }
    finish(written_path, entry.mode, entry.modified)?;
    Ok(entry.size)
}

pub(crate) fn finish(entry_path: &Path, mode: u32, modified: i64) -> FileResult<()> {
    fs::set_permissions(entry_path, Permissions::from_mode(mode & 0o777))
        .doing("set mode of", entry_path)?;
    let time = Timespec {
        tv_sec: modified.div_euclid(1000),
        tv_nsec: (modified.rem_euclid(1000) * 1_000_000) as _,
    };
    let times = Timestamps { last_access: time, last_modification: time };
    // A file system without times must not fail the copy.
    let _ = rustix::fs::utimensat(CWD, entry_path, &times, AtFlags::SYMLINK_NOFOLLOW);
    Ok(())
}

/// Sends a tree to the client.
pub(crate) fn send(stream: &mut FrameStream, path: &Path) -> FileResult<Count> {
    // Only the root is resolved if it is a symlink; symlinks below are sent as such.
    let root = fs::canonicalize(path).doing("open", path)?;
    let mut count = (0, 0);
    walk(&root, Path::new(""), 0, &mut |entry_path, below| {
        send_entry(stream, entry_path, below, &mut count)
    })?;
    let end = Entry { path: Vec::new(), kind: EntryKind::End, mode: 0, size: 0, modified: 0 };
    stream.send(FrameKind::Entry, &end)?;
    Ok(count)
}

fn send_entry(
    stream: &mut FrameStream,
    entry_path: &Path,
    below: &Path,
    count: &mut Count,
) -> FileResult<()> {
    let meta = fs::symlink_metadata(entry_path).doing("stat", entry_path)?;
    let kind = kind_of(entry_path, &meta);
    let mut file = match kind {
        EntryKind::File => Some(open_regular(entry_path)?),
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
    let has_holes =
        size >= SENDFILE_MIN as u64 && sparse::has_holes(file).doing("read", entry_path)?;
    let mut at = 0;
    while at < size {
        let run = match has_holes {
            true => sparse::run_at(&*file, at, size).doing("read", entry_path)?,
            false => Run::Data { end: size },
        };
        match run {
            Run::Hole { end } => stream.send(FrameKind::Hole, &(end - at))?,
            Run::Data { end } => send_bytes(stream, file, entry_path, end - at)?,
        }
        at = run.end();
    }
    Ok(())
}

/// Sends `length` bytes of a file from its position.
fn send_bytes(
    stream: &mut FrameStream,
    file: &mut File,
    entry_path: &Path,
    length: u64,
) -> FileResult<()> {
    let mut left = length;
    while left > 0 {
        let wanted = left.min(MAX_CHUNK as u64) as usize;
        // The file may shrink meanwhile. Its size was announced, so the rest is sent as zeroes.
        let missing = if wanted < SENDFILE_MIN {
            let mut bytes = vec![0; wanted];
            let mut filled = 0;
            while filled < wanted {
                match file.read(&mut bytes[filled..]).doing("read", entry_path)? {
                    0 => break,
                    n => filled += n,
                }
            }
            stream.bytes(&bytes)?;
            0
        } else {
            wanted - stream.send_file(file, wanted)?
        };
        stream.zero_fill(missing)?;
        left -= wanted as u64;
    }
    Ok(())
}

/// Copies a file or tree inside the sandbox.
pub(crate) fn copy(from: &Path, to: &Path) -> FileResult<Count> {
    let from = fs::canonicalize(from).doing("open", from)?;
    if to.starts_with(&from) && from.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL)).doing("copy into itself", to);
    }
    make_parents(to)?;
    let mut count = (0, 0);
    walk(&from, Path::new(""), 0, &mut |entry_path, below| {
        let target = if below.as_os_str().is_empty() { to.to_owned() } else { to.join(below) };
        let meta = fs::symlink_metadata(entry_path).doing("stat", entry_path)?;
        match kind_of(entry_path, &meta) {
            EntryKind::Directory if target.is_dir() => {}
            EntryKind::Directory => fs::create_dir(&target).doing("make directory", &target)?,
            EntryKind::Symlink(link) => {
                std::os::unix::fs::symlink(as_path(&link), &target).doing("link", &target)?;
            }
            EntryKind::File => {
                let out = create(&target, meta.permissions().mode(), false)?;
                count.1 += copy_file(&open_regular(entry_path)?, out).doing("copy", entry_path)?;
            }
            EntryKind::Other | EntryKind::End => {}
        }
        count.0 += 1;
        Ok(())
    })?;
    Ok(count)
}

fn copy_file(mut from: &File, mut to: File) -> io::Result<u64> {
    // The target may be a device; only a regular file can have holes.
    match sparse::has_holes(from)? && to.metadata()?.is_file() {
        true => sparse::copy(from, &to),
        false => io::copy(&mut from, &mut to),
    }
}

/// Visits a directory before its entries. Symlinks are not followed.
fn walk(
    entry_path: &Path,
    below: &Path,
    depth: usize,
    visit: &mut dyn FnMut(&Path, &Path) -> FileResult<()>,
) -> FileResult<()> {
    visit(entry_path, below)?;
    let meta = fs::symlink_metadata(entry_path).doing("stat", entry_path)?;
    if !meta.is_dir() {
        return Ok(());
    }
    if depth == DEPTH_LIMIT {
        return Err(io::Error::from_raw_os_error(libc::ELOOP)).doing("descend into", entry_path);
    }
    for entry in fs::read_dir(entry_path).doing("list", entry_path)? {
        let name = entry.doing("list", entry_path)?.file_name();
        walk(&entry_path.join(&name), &below.join(&name), depth + 1, visit)?;
    }
    Ok(())
}

/// Resolves the existing part of a path; the rest is normalised as written.
pub(crate) fn resolve(path: &Path) -> io::Result<PathBuf> {
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
