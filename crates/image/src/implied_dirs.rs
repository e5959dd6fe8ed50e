//! Restores the metadata of implied parent directories.
//!
//! A layer may have an entry `tmp/x` and none for `tmp`. Unpacking creates `tmp` with default
//! metadata, and in the overlay that hides the owner, mode and mtime that a lower layer gave to
//! `tmp`. For images with such layers this module creates one more layer on top. It has only
//! directories, with the metadata of the topmost layer that has an entry for them.

use crate::helper_process::{HelperTask, RunningHelper};
use crate::store::{Store, storage_error, temp_name};
use crate::unpack::LayerContents;
use msb_spec::{Digest, Error, Result};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Most implied directories of all layers of an image. Each is looked up in each layer, which takes
/// seconds for this many. Beyond the limit only metadata of lower layers is lost.
const IMPLIED_LIMIT: usize = 16_384;
/// Most bytes of all their names, which are sent to the helper process.
const IMPLIED_BYTES: usize = 8 << 20;

/// One layer: the name of its directory, and the paths that it implies.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LayerDirs {
    directory: String,
    implied: BTreeSet<Vec<u8>>,
}

impl Store {
    /// Path of the additional layer of an image, whether or not it exists.
    pub(crate) fn implied_dirs_path(&self, diff_ids: &[&Digest]) -> PathBuf {
        let chain: Vec<&str> = diff_ids.iter().map(|digest| digest.hex()).collect();
        let name = crate::store::digest_of(chain.join(" ").as_bytes());
        self.layers().join(format!("dirs-{}", &name.hex()[..32]))
    }

    /// Creates the additional layer of an image with these layers, lowest first. Returns false if
    /// none is needed.
    pub(crate) fn make_implied_dirs(&self, diff_ids: &[&Digest]) -> Result<bool> {
        let target = self.implied_dirs_path(diff_ids);
        if target.is_dir() {
            return Ok(true);
        }
        let (mut left, mut bytes_left) = (IMPLIED_LIMIT, IMPLIED_BYTES);
        let describe = |diff_id: &&Digest| {
            let contents = self.contents(diff_id);
            let mut implied =
                contents.map_or_else(Vec::new, |contents: LayerContents| contents.implied);
            implied.truncate(left);
            implied.retain(|path| {
                let rest = bytes_left.checked_sub(path.len());
                bytes_left = rest.unwrap_or(bytes_left);
                rest.is_some()
            });
            left -= implied.len();
            LayerDirs {
                directory: diff_id.hex().to_owned(),
                implied: implied.into_iter().collect(),
            }
        };
        let layers: Vec<LayerDirs> = diff_ids.iter().map(describe).collect();
        // In most images only the root is implied: by all layers, or not by the topmost.
        let only_root = |layer: &LayerDirs| layer.implied.iter().all(|path| path == ROOT);
        let root = |layer: &LayerDirs| layer.implied.contains(ROOT);
        let topmost = layers.last().is_none_or(|layer| !root(layer));
        if layers.iter().all(only_root) && (topmost || layers.iter().all(root)) {
            return Ok(false);
        }
        let temp = self.layers().join(temp_name("making"));
        let storage_failed = |error| storage_error(&temp, error);
        fs::create_dir(&temp).map_err(storage_failed)?;
        let name = temp.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let made = self
            .helper()
            .start(&self.layers(), HelperTask::ImpliedDirs { into: name })
            .and_then(|mut running: RunningHelper| {
                let text = serde_json::to_vec(&layers).expect("our own types always serialise");
                if let Some(stdin) = running.stdin.as_mut() {
                    // If the helper has died, its reply says why.
                    let _ = stdin.write_all(&text);
                }
                running.reply::<bool>()
            });
        let made = made.and_then(|needed| {
            if !needed {
                return Ok(false);
            }
            match fs::rename(&temp, &target) {
                Err(_) if target.is_dir() => Ok(true),
                shown => shown.map(|()| true).map_err(storage_failed),
            }
        });
        if temp.is_dir() {
            msb_log::debug_on_failure!(self.remove_tree(&temp), "cannot remove a partial layer");
        }
        made
    }
}

/// The root among the implied paths of a layer.
const ROOT: &[u8] = b".";

/// Creates the directories in `into`; runs in the helper, with all layers below `root`. Returns
/// false if none is needed.
pub(crate) fn make_tree(root: BorrowedFd<'_>, into: &str, text: &[u8]) -> Result<bool> {
    let layers: Vec<LayerDirs> = serde_json::from_slice(text)
        .map_err(|error| Error::invalid("not a list of layers").cause(error))?;
    let mut wanted: BTreeMap<&[u8], ()> = BTreeMap::new();
    for path in layers.iter().flat_map(|layer| &layer.implied) {
        // Parent directories are needed as well.
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for end in ends.map(|(at, _)| at).chain([path.len()]) {
            wanted.insert(&path[..end], ());
        }
    }
    let failed =
        |error: Errno| Error::host("cannot create the implied directories of the image", error);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &str| rustix::fs::openat(root, path, flags, Mode::empty()).map_err(failed);
    let trees = layers.iter().map(|layer| open(&format!("{}/fs", layer.directory)));
    let trees = trees.collect::<Result<Vec<OwnedFd>>>()?;
    let found = |path: &[u8]| visible_directory(layers.iter().zip(&trees).rev(), path);
    let paths: Vec<&[u8]> = [ROOT].into_iter().chain(wanted.into_keys()).collect();
    if !paths.iter().any(|path| found(path).is_some_and(|(_, hidden)| hidden)) {
        return Ok(false);
    }
    let temp = open(into)?;
    rustix::fs::mkdirat(&temp, "fs", Mode::from_raw_mode(0o755)).map_err(failed)?;
    let temp = open(&format!("{into}/fs"))?;
    let mut times = Vec::new();
    for path in paths {
        let Some((source, _)) = found(path) else { continue };
        let stat = rustix::fs::fstat(&source).map_err(failed)?;
        match rustix::fs::mkdirat(&temp, os_str(path), Mode::from_raw_mode(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) if path == ROOT => {}
            // The parent is a symlink or a file in an upper layer, so this path is not visible.
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(error) => return Err(failed(error)),
        }
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        let itself = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&temp, os_str(path), Some(uid), Some(gid), itself).map_err(failed)?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        rustix::fs::chmodat(&temp, os_str(path), mode, AtFlags::empty()).map_err(failed)?;
        let made = rustix::fs::openat(&temp, os_str(path), flags, Mode::empty()).map_err(failed)?;
        copy_attributes(source.as_fd(), made.as_fd()).map_err(failed)?;
        let time = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ };
        times.push((path, Timestamps { last_access: time, last_modification: time }));
    }
    for (path, times) in times {
        let itself = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(&temp, os_str(path), &times, itself).map_err(failed)?;
    }
    Ok(true)
}

/// The directory of the topmost layer that has an entry for this path, or else the topmost implied
/// one. The flag says whether an implied directory hides one with an entry. None if the path is not
/// visible.
fn visible_directory<'a>(
    stack: impl Iterator<Item = (&'a LayerDirs, &'a OwnedFd)>,
    path: &[u8],
) -> Option<(OwnedFd, bool)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let mut implied = None;
    for (layer, tree) in stack {
        match rustix::fs::openat2(tree.as_fd(), os_str(path), flags, Mode::empty(), within) {
            Ok(found) => {
                if !layer.implied.contains(path) {
                    return Some((found, implied.is_some()));
                }
                implied.get_or_insert(found);
            }
            Err(Errno::NOENT) => {}
            // A file, a symlink or a whiteout on the way hides everything below it.
            Err(_) => break,
        }
    }
    implied.map(|found| (found, false))
}

/// Copies `user.` attributes, except those of overlayfs.
fn copy_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> rustix::io::Result<()> {
    /// Limit of the kernel for a list of names and for a value.
    const LIMIT: usize = 64 << 10;
    let mut names = vec![0; LIMIT];
    let length = rustix::fs::flistxattr(from, &mut names)?;
    for name in names[..length].split(|byte| *byte == 0) {
        if name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") {
            let mut value = vec![0; LIMIT];
            let length = rustix::fs::fgetxattr(from, os_str(name), &mut value)?;
            rustix::fs::fsetxattr(to, os_str(name), &value[..length], XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn os_str(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(path)
}
