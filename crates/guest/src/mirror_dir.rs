//! Applies changes of a synced host directory to a directory inside.
//!
//! A failed change is recorded and the next one is applied: one invalid name or one full directory
//! must not block all others. Only named files are removed.

use crate::files::{FileError, FileResult, FrameStream, WithContext, as_path, protocol};
use crate::tree::finish;
use msb_wire::{Change, Entry, EntryKind, FailedChange, FileFailure, FrameKind};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Failures that are reported with a text; others only with their errno.
const MAX_DETAILED: usize = 32;

/// Applies the changes that the client sends. Returns those that failed.
pub(crate) fn apply_changes(
    stream: &mut FrameStream,
    root: &Path,
) -> FileResult<Vec<FailedChange>> {
    let mut failed = Vec::new();
    for number in 0.. {
        let frame = stream.next()?;
        if frame.kind != FrameKind::Change {
            return Err(protocol("mirror a directory"));
        }
        let change: Change = frame.value().map_err(|_| protocol("mirror a directory"))?;
        if !change.is_safe() {
            return Err(protocol("mirror a directory"));
        }
        let done = match &change {
            Change::End => break,
            Change::Put(entry) if entry.path.is_empty() => put_root(root, entry),
            Change::Put(entry) if entry.kind == EntryKind::File => put_file(stream, root, entry)?,
            Change::Put(entry) => put(root, entry),
            Change::Touch(entry) => touch(&root.join(as_path(&entry.path)), entry),
            Change::Remove { path, directory } => remove(&root.join(as_path(path)), *directory),
            Change::Rename { from, to } => {
                let (from, to) = (root.join(as_path(from)), root.join(as_path(to)));
                with_parent(&to, || with_writable_parent(&from, || fs::rename(&from, &to)))
                    .doing("rename", &from)
            }
        };
        if let Err(FileError { doing, error }) = done {
            let errno = error.raw_os_error().unwrap_or(0);
            // One reply frame has to hold them all.
            let doing =
                if failed.len() < MAX_DETAILED { doing } else { "make a change".to_owned() };
            failed.push(FailedChange { number, failure: FileFailure { doing, errno } });
        }
    }
    Ok(failed)
}

/// Creates the directory itself; an existing one stays as it is.
fn put_root(root: &Path, entry: &Entry) -> FileResult<()> {
    if root.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(root).doing("make directory", root)?;
    fs::set_permissions(root, permissions(entry)).doing("set mode of", root)
}

fn put(root: &Path, entry: &Entry) -> FileResult<()> {
    let path = root.join(as_path(&entry.path));
    match &entry.kind {
        EntryKind::Directory => put_directory(&path, entry),
        EntryKind::Symlink(target) => {
            let make = |draft: &Path| std::os::unix::fs::symlink(as_path(target), draft);
            let (draft, ()) = TempEntry::make(&path, make).doing("link", &path)?;
            draft.keep(&path).doing("link", &path)
        }
        EntryKind::File | EntryKind::Other | EntryKind::End => Err(protocol("mirror an entry")),
    }
}

fn put_directory(path: &Path, entry: &Entry) -> FileResult<()> {
    match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => with_parent(path, || fs::remove_file(path)).doing("replace", path)?,
        Err(_) => {}
    }
    // Private until its permissions are set.
    let make = || match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    with_parent(path, make).doing("make directory", path)?;
    fs::set_permissions(path, permissions(entry)).doing("set mode of", path)
}

/// Writes a file beside its path and renames it, so that readers see the old or the new one. The
/// outer error is that of the connection, the inner one that of this file.
fn put_file(stream: &mut FrameStream, root: &Path, entry: &Entry) -> FileResult<FileResult<()>> {
    let path = root.join(as_path(&entry.path));
    let mut made = TempEntry::file(&path).doing("write", &path);
    loop {
        let frame = stream.next()?;
        if frame.kind != FrameKind::Bytes {
            return Err(protocol("mirror a file"));
        }
        if frame.payload.is_empty() {
            break;
        }
        if let Ok((_, file)) = &mut made
            && let Err(failure) = file.write_all(&frame.payload).doing("write", &path)
        {
            // The rest is still read, because the next change follows.
            made = Err(failure);
        }
    }
    Ok(made.and_then(|(draft, file)| {
        drop(file);
        finish(&draft.path, entry.mode, entry.modified)?;
        draft.keep(&path).doing("write", &path)
    }))
}

fn touch(path: &Path, entry: &Entry) -> FileResult<()> {
    let meta = fs::symlink_metadata(path).doing("stat", path)?;
    let same = match &entry.kind {
        EntryKind::Directory => meta.is_dir(),
        EntryKind::File => meta.is_file(),
        _ => false,
    };
    if !same {
        return Err(io::Error::from_raw_os_error(libc::EINVAL)).doing("set mode of", path);
    }
    if meta.is_dir() {
        return fs::set_permissions(path, permissions(entry)).doing("set mode of", path);
    }
    finish(path, entry.mode, entry.modified)
}

/// Removes a file or an empty directory, if it still has that type.
fn remove(path: &Path, directory: bool) -> FileResult<()> {
    let is_gone =
        |error: &io::Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    let meta = match fs::symlink_metadata(path) {
        Err(error) if is_gone(&error) => return Ok(()),
        meta => meta.doing("remove", path)?,
    };
    let removed = match (meta.is_dir(), directory) {
        (true, true) => with_writable_parent(path, || fs::remove_dir(path)),
        (false, false) => with_writable_parent(path, || fs::remove_file(path)),
        _ => Ok(()),
    };
    match removed {
        Err(error) if is_gone(&error) || error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => removed.doing("remove", path),
    }
}

fn permissions(entry: &Entry) -> Permissions {
    Permissions::from_mode(entry.mode & 0o777)
}

/// Runs `act` in the parent directory of `path`, which is created if it is missing.
fn with_parent<T>(path: &Path, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match (with_writable_parent(path, &act), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == ErrorKind::NotFound && !parent.exists() => {
            fs::create_dir_all(parent)?;
            act()
        }
        (done, _) => done,
    }
}

/// Runs `act` in the parent directory of `path`, made writable for it if needed. A read-only host
/// directory must not block a sandbox with an unprivileged root.
fn with_writable_parent<T>(path: &Path, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let writable = |meta: &Metadata| meta.permissions().mode() & 0o300 == 0o300;
    match (act(), path.parent()) {
        (Err(error), Some(parent)) if error.kind() == ErrorKind::PermissionDenied => {
            let Some(meta) = fs::symlink_metadata(parent).ok().filter(|meta| !writable(meta))
            else {
                return Err(error);
            };
            let mode = meta.permissions().mode();
            fs::set_permissions(parent, Permissions::from_mode(mode | 0o700))?;
            let done = act();
            fs::set_permissions(parent, meta.permissions())?;
            done
        }
        (done, _) => done,
    }
}

/// A temporary file or symlink beside its path; removed unless it is kept.
pub(crate) struct TempEntry {
    /// Empty once it is kept.
    path: PathBuf,
}

impl TempEntry {
    /// Creates an empty file, private until its permissions are set.
    pub(crate) fn file(path: &Path) -> io::Result<(Self, File)> {
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).custom_flags(flags);
        Self::make(path, |draft| options.open(draft))
    }

    /// The path until it is kept.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates it under an unused name.
    fn make<T>(path: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(Self, T)> {
        let pid = std::process::id();
        let mut number = 0;
        loop {
            let path = path.with_file_name(format!(".msb-sync-{pid}-{number}"));
            match with_parent(&path, || make(&path)) {
                // Left behind by a process that was killed.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < 1000 => {
                    number += 1;
                }
                made => return made.map(|made| (Self { path }, made)),
            }
        }
    }

    pub(crate) fn keep(mut self, path: &Path) -> io::Result<()> {
        let put = || fs::rename(&self.path, path);
        let put = match with_writable_parent(path, put) {
            // An empty directory is replaced; one with files of the sandbox is not.
            Err(error) if error.kind() == ErrorKind::IsADirectory => {
                with_writable_parent(path, || fs::remove_dir(path))
                    .map_err(|_| error)
                    .and_then(|()| with_writable_parent(path, put))
            }
            put => put,
        };
        if put.is_ok() {
            self.path.clear();
        }
        put
    }
}

impl Drop for TempEntry {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        let _ = with_writable_parent(&self.path, || fs::remove_file(&self.path));
    }
}

#[cfg(test)]
#[path = "mirror_dir_tests.rs"]
mod tests;
