//! One file operation on a volume, without a sandbox.
//!
//! The root is the volume. Received files are staged in a directory and then renamed, so that other
//! users of the volume see a file completely or not at all, even if this process is killed.

use crate::files::{FileResult, FrameStream, WithContext, as_path, failed, serve};
use crate::tree;
use msb_wire::FileRequest;
use rustix::fs::{FlockOperation, Mode, OFlags};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Prefix of a staging directory. Its creator holds a lock on it.
const STAGING_PREFIX: &str = ".msb-copying-";

/// Serves one operation of this client. Returns the exit code of the process.
pub fn serve_volume(client: OwnedFd) -> i32 {
    msb_sys::signal::reset();
    msb_sys::signal::ignore(msb_sys::signal::SIGPIPE);
    remove_stale();
    let mut stream = FrameStream::new(client, usize::MAX);
    let served = stream.request().and_then(|request| match request {
        FileRequest::Push { path, into } => {
            let (entries, bytes) = receive(&mut stream, as_path(&path), into.as_deref())?;
            stream.done(entries, bytes)
        }
        other => serve(&mut stream, other),
    });
    let replied = served.or_else(|failure| stream.send_failure(failure));
    i32::from(replied.and_then(|()| stream.flush()).is_err())
}

/// Removes staging directories of killed processes.
fn remove_stale() {
    let entries = fs::read_dir("/").into_iter().flatten().filter_map(Result::ok);
    for entry in entries {
        if entry.file_name().as_encoded_bytes().starts_with(STAGING_PREFIX.as_bytes())
            && let Ok(staging) = open_directory(&entry.path())
            && rustix::fs::flock(&staging, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            remove(&staging, &entry.path());
        }
    }
}

/// Removes a directory that other users of the volume may have filled with anything.
fn remove(directory: &OwnedFd, path: &Path) {
    let _ = msb_sys::tree::clear(directory.as_fd());
    let _ = fs::remove_dir(path);
}

/// A directory for received files, removed on drop.
struct StagingDir {
    path: PathBuf,
    lock: OwnedFd,
}

impl StagingDir {
    fn make() -> FileResult<Self> {
        let mut random = [0; 8];
        let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        filled.map_err(io::Error::from).doing("name", Path::new("a staging directory"))?;
        let path = PathBuf::from(format!("/{STAGING_PREFIX}{:016x}", u64::from_le_bytes(random)));
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

impl Drop for StagingDir {
    fn drop(&mut self) {
        remove(&self.lock, &self.path);
    }
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

/// Receives a tree in a staging directory and moves it to its path.
fn receive(stream: &mut FrameStream, path: &Path, into: Option<&[u8]>) -> FileResult<(u64, u64)> {
    let target = tree::target_path(path, into);
    let staging = StagingDir::make()?;
    let staged = staging.path.join("x");
    let count = tree::receive(stream, &staged, None)?;
    crate::files::make_parents(&target)?;
    move_into(&staged, &target, 0)?;
    Ok(count)
}

/// Renames to the target, merging directories.
fn move_into(from: &Path, to: &Path, depth: usize) -> FileResult<()> {
    let there = fs::symlink_metadata(to);
    let staged = fs::symlink_metadata(from).doing("stat", from)?;
    let merges = staged.is_dir() && there.as_ref().is_ok_and(fs::Metadata::is_dir);
    if !merges {
        // The kernel refuses a directory over a file and a file over a directory.
        return fs::rename(from, to).doing("write", to);
    }
    if depth == tree::DEPTH_LIMIT {
        return Err(failed("descend into", to, libc::ELOOP));
    }
    for entry in fs::read_dir(from).doing("list", from)? {
        let name = entry.doing("list", from)?.file_name();
        move_into(&from.join(&name), &to.join(&name), depth + 1)?;
    }
    let modified = staged.mtime().saturating_mul(1000) + staged.mtime_nsec() / 1_000_000;
    tree::finish(to, staged.mode(), modified)
}
