//! Makes a directory inside more like one outside, change by change.
//!
//! A change that fails is noted and the next one is made: one odd name or one full directory is
//! no reason to hold up ten thousand others. Nothing is removed but what is named.

use crate::files::{Doing, Done, Failure, Stream, as_path, protocol};
use crate::tree::finish;
use msb_wire::{Change, Entry, EntryKind, FailedChange, FileFailure, FrameKind};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// So many failures are told in full; of the others, that they failed and the errno.
const TOLD: usize = 32;

/// Makes the changes that the client sends, and gives those that failed.
pub(crate) fn mirror(stream: &mut Stream, root: &Path) -> Done<Vec<FailedChange>> {
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
                in_directory(&to, || in_directory_that_is(&from, || fs::rename(&from, &to)))
                    .doing("rename", &from)
            }
        };
        if let Err(Failure { doing, error }) = done {
            let errno = error.raw_os_error().unwrap_or(0);
            // One answer has to hold them all.
            let doing = if failed.len() < TOLD { doing } else { "make a change".to_owned() };
            failed.push(FailedChange { number, failure: FileFailure { doing, errno } });
        }
    }
    Ok(failed)
}

/// The directory itself is made if need be; one that is there stays as it is.
fn put_root(root: &Path, entry: &Entry) -> Done<()> {
    if root.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(root).doing("make directory", root)?;
    fs::set_permissions(root, permissions(entry)).doing("set mode of", root)
}

fn put(root: &Path, entry: &Entry) -> Done<()> {
    let place = root.join(as_path(&entry.path));
    match &entry.kind {
        EntryKind::Directory => put_directory(&place, entry),
        EntryKind::Symlink(target) => {
            let make = |draft: &Path| std::os::unix::fs::symlink(as_path(target), draft);
            let (draft, ()) = Draft::make(&place, make).doing("link", &place)?;
            draft.keep(&place).doing("link", &place)
        }
        EntryKind::File | EntryKind::Other | EntryKind::End => Err(protocol("mirror an entry")),
    }
}

fn put_directory(place: &Path, entry: &Entry) -> Done<()> {
    match fs::symlink_metadata(place) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => in_directory(place, || fs::remove_file(place)).doing("replace", place)?,
        Err(_) => {}
    }
    // Nobody else looks into it before its own permissions are set.
    let make = || match fs::DirBuilder::new().mode(0o700).create(place) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    };
    in_directory(place, make).doing("make directory", place)?;
    fs::set_permissions(place, permissions(entry)).doing("set mode of", place)
}

/// Takes a file in beside its place, so that whoever reads there sees the old one or the new one.
/// The outer failure is the connection's, the inner one that of this file alone.
fn put_file(stream: &mut Stream, root: &Path, entry: &Entry) -> Done<Done<()>> {
    let place = root.join(as_path(&entry.path));
    let make = |draft: &Path| -> io::Result<File> {
        let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC;
        OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(flags).open(draft)
    };
    let mut made = Draft::make(&place, make).doing("write", &place);
    loop {
        let frame = stream.next()?;
        if frame.kind != FrameKind::Bytes {
            return Err(protocol("mirror a file"));
        }
        if frame.payload.is_empty() {
            break;
        }
        if let Ok((_, file)) = &mut made
            && let Err(failure) = file.write_all(&frame.payload).doing("write", &place)
        {
            // The rest is listened to all the same: the next change comes behind it.
            made = Err(failure);
        }
    }
    Ok(made.and_then(|(draft, file)| {
        drop(file);
        finish(&draft.path, entry.mode, entry.modified)?;
        draft.keep(&place).doing("write", &place)
    }))
}

fn touch(place: &Path, entry: &Entry) -> Done<()> {
    let meta = fs::symlink_metadata(place).doing("look at", place)?;
    let same = match &entry.kind {
        EntryKind::Directory => meta.is_dir(),
        EntryKind::File => meta.is_file(),
        _ => false,
    };
    if !same {
        return Err(io::Error::from_raw_os_error(libc::EINVAL)).doing("set mode of", place);
    }
    if meta.is_dir() {
        return fs::set_permissions(place, permissions(entry)).doing("set mode of", place);
    }
    finish(place, entry.mode, entry.modified)
}

/// Removes what is still what it was; a directory that holds more than that stays.
fn remove(place: &Path, directory: bool) -> Done<()> {
    let is_gone =
        |error: &io::Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    let meta = match fs::symlink_metadata(place) {
        Err(error) if is_gone(&error) => return Ok(()),
        meta => meta.doing("remove", place)?,
    };
    let removed = match (meta.is_dir(), directory) {
        (true, true) => in_directory_that_is(place, || fs::remove_dir(place)),
        (false, false) => in_directory_that_is(place, || fs::remove_file(place)),
        _ => Ok(()),
    };
    match removed {
        Err(error) if is_gone(&error) || error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => removed.doing("remove", place),
    }
}

fn permissions(entry: &Entry) -> Permissions {
    Permissions::from_mode(entry.mode & 0o777)
}

/// Does something in the directory above `place`, which is made if it is missing.
fn in_directory<T>(place: &Path, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match (in_directory_that_is(place, &act), place.parent()) {
        (Err(error), Some(parent)) if error.kind() == ErrorKind::NotFound && !parent.exists() => {
            fs::create_dir_all(parent)?;
            act()
        }
        (done, _) => done,
    }
}

/// Does something in the directory above `place`. Outside, its permissions may forbid writing to
/// nobody, and a sandbox whose root has no privileges must not be stopped by them.
fn in_directory_that_is<T>(place: &Path, act: impl Fn() -> io::Result<T>) -> io::Result<T> {
    let writable = |meta: &Metadata| meta.permissions().mode() & 0o300 == 0o300;
    match (act(), place.parent()) {
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

/// Something beside its place that is not whole yet; removed unless it is kept.
struct Draft {
    /// Empty once it is.
    path: PathBuf,
}

impl Draft {
    /// Makes it by a name that nobody has.
    fn make<T>(place: &Path, make: impl Fn(&Path) -> io::Result<T>) -> io::Result<(Self, T)> {
        let pid = std::process::id();
        let mut number = 0;
        loop {
            let path = place.with_file_name(format!(".msb-sync-{pid}-{number}"));
            match in_directory(&path, || make(&path)) {
                // Somebody was killed here before.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < 1000 => {
                    number += 1;
                }
                made => return made.map(|made| (Self { path }, made)),
            }
        }
    }

    fn keep(mut self, place: &Path) -> io::Result<()> {
        let put = || fs::rename(&self.path, place);
        let put = match in_directory_that_is(place, put) {
            // An empty directory makes way; one that holds something of the sandbox does not.
            Err(error) if error.kind() == ErrorKind::IsADirectory => {
                in_directory_that_is(place, || fs::remove_dir(place))
                    .map_err(|_| error)
                    .and_then(|()| in_directory_that_is(place, put))
            }
            put => put,
        };
        if put.is_ok() {
            self.path.clear();
        }
        put
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        let _ = in_directory_that_is(&self.path, || fs::remove_file(&self.path));
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
mod tests;
