//! One file operation on a volume that no sandbox has to run for.
//!
//! The root is the volume. What is copied in is gathered aside first and then renamed, so that
//! whoever uses the volume sees a file whole or not at all, also if we are killed.

use crate::files::{Doing, Done, Stream, as_path, failed, serve};
use crate::tree;
use msb_wire::FileRequest;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What a copy in is called until it is whole. Whoever makes one holds a lock on it.
const ASIDE: &str = ".msb-copying-";

/// Serves one operation of this client. Returns the exit code of the process.
pub fn serve_volume(client: OwnedFd) -> i32 {
    msb_sys::signal::reset();
    msb_sys::signal::ignore(msb_sys::signal::SIGPIPE);
    sweep();
    let mut stream = Stream::new(client, usize::MAX);
    let served = stream.request().and_then(|request| match request {
        FileRequest::Push { path, into } => {
            let (entries, bytes) = take_in(&mut stream, as_path(&path), into.as_deref())?;
            stream.done(entries, bytes)
        }
        other => serve(&mut stream, other),
    });
    let told = served.or_else(|failure| stream.tell_failure(failure));
    i32::from(told.and_then(|()| stream.flush()).is_err())
}

/// Removes what copies have left whose makers were killed.
fn sweep() {
    let entries = fs::read_dir("/").into_iter().flatten().filter_map(Result::ok);
    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(ASIDE.as_bytes())
            && let Ok(aside) = open_directory(&entry.path())
            && rustix::fs::flock(&aside, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            remove(&aside, &entry.path());
        }
    }
}

/// Whoever shares the volume may have put anything there.
fn remove(directory: &OwnedFd, path: &Path) {
    let _ = msb_sys::tree::clear(directory.as_fd());
    let _ = fs::remove_dir(path);
}

/// A directory that a copy is gathered in, gone when it is dropped.
struct Aside {
    path: PathBuf,
    lock: OwnedFd,
}

impl Aside {
    fn make() -> Done<Self> {
        let mut random = [0; 8];
        let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        filled.map_err(io::Error::from).doing("name", Path::new("a copy"))?;
        let path = PathBuf::from(format!("/{ASIDE}{:016x}", u64::from_le_bytes(random)));
        fs::create_dir(&path).doing("make directory", &path)?;
        let made = fs::set_permissions(&path, Permissions::from_mode(0o700))
            .and_then(|()| open_directory(&path))
            .and_then(|lock| {
                rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
                Ok(lock)
            });
        match made {
            Ok(lock) => Ok(Self { path, lock }),
            Err(error) => {
                let _ = fs::remove_dir(&path);
                Err(error).doing("make directory", &path)
            }
        }
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        remove(&self.lock, &self.path);
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Takes a tree in, aside, and puts it where it belongs.
fn take_in(stream: &mut Stream, path: &Path, into: Option<&[u8]>) -> Done<(u64, u64)> {
    let target = tree::place_of(path, into);
    let aside = Aside::make()?;
    let gathered = aside.path.join("x");
    let count = tree::take_in(stream, &gathered, None)?;
    crate::files::make_parents(&target)?;
    put(&gathered, &target, 0)?;
    Ok(count)
}

/// Renames to the target; where both are directories, what the one holds into the other.
fn put(from: &Path, to: &Path, depth: usize) -> Done<()> {
    let there = fs::symlink_metadata(to);
    let gathered = fs::symlink_metadata(from).doing("look at", from)?;
    let merges = gathered.is_dir() && there.as_ref().is_ok_and(fs::Metadata::is_dir);
    if !merges {
        // The kernel refuses a directory over a file and a file over a directory.
        return fs::rename(from, to).doing("write", to);
    }
    if depth == tree::DEPTH_LIMIT {
        return Err(failed("descend into", to, libc::ELOOP));
    }
    for entry in fs::read_dir(from).doing("list", from)? {
        let name = entry.doing("list", from)?.file_name();
        put(&from.join(&name), &to.join(&name), depth + 1)?;
    }
    let modified = gathered.mtime().saturating_mul(1000) + gathered.mtime_nsec() / 1_000_000;
    tree::finish(to, gathered.mode(), modified)
}
