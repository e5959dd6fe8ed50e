//! Directories that a layer implies and does not describe.
//!
//! A layer may hold `tmp/x` and not `tmp`. Unpacked alone it needs a directory `tmp`, which then
//! hides the owner, mode and time that a layer below gave it. For an image with such layers one
//! more is made, of directories only, that lies on top and shows them as they were described.

use crate::apart::{AtWork, Task};
use crate::store::{Store, passing, unusable};
use crate::unpack::Contents;
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

/// In all layers of an image. Each is looked for in each layer, which takes some seconds for so
/// many; what is lost beyond is only what a layer below said of them.
const IMPLIED_LIMIT: usize = 16_384;
/// All their names, which are told to the process that makes the directories.
const IMPLIED_BYTES: usize = 8 << 20;

/// One layer of the image: its directory, and what it implies.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Described {
    directory: String,
    implied: BTreeSet<Vec<u8>>,
}

impl Store {
    /// The directory of an image's additional layer, whether or not there is one.
    pub(crate) fn mended(&self, diff_ids: &[&Digest]) -> PathBuf {
        let chain: Vec<&str> = diff_ids.iter().map(|digest| digest.hex()).collect();
        let name = crate::store::digest_of(chain.join(" ").as_bytes());
        self.layers().join(format!("dirs-{}", &name.hex()[..32]))
    }

    /// Makes the additional layer of an image whose layers, lowest first, are here. False if it
    /// needs none.
    pub(crate) fn mend(&self, diff_ids: &[&Digest]) -> Result<bool> {
        let place = self.mended(diff_ids);
        if place.is_dir() {
            return Ok(true);
        }
        let (mut left, mut bytes_left) = (IMPLIED_LIMIT, IMPLIED_BYTES);
        let describe = |diff_id: &&Digest| {
            let contents = self.contents(diff_id);
            let mut implied = contents.map_or_else(Vec::new, |contents: Contents| contents.implied);
            implied.truncate(left);
            implied.retain(|path| {
                let rest = bytes_left.checked_sub(path.len());
                bytes_left = rest.unwrap_or(bytes_left);
                rest.is_some()
            });
            left -= implied.len();
            Described {
                directory: diff_id.hex().to_owned(),
                implied: implied.into_iter().collect(),
            }
        };
        let layers: Vec<Described> = diff_ids.iter().map(describe).collect();
        // Mostly nothing is implied but the root, by all alike or not by the topmost.
        let only_root = |layer: &Described| layer.implied.iter().all(|path| path == ROOT);
        let root = |layer: &Described| layer.implied.contains(ROOT);
        let topmost = layers.last().is_none_or(|layer| !root(layer));
        if layers.iter().all(only_root) && (topmost || layers.iter().all(root)) {
            return Ok(false);
        }
        let aside = self.layers().join(passing("making"));
        let about = |error| unusable(&aside, error);
        fs::create_dir(&aside).map_err(about)?;
        let name = aside.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let made = self.apart().start(&self.layers(), Task::Mend { into: name }).and_then(
            |mut work: AtWork| {
                let text = serde_json::to_vec(&layers).expect("our own types always serialise");
                if let Some(stdin) = work.stdin.as_mut() {
                    // Should it have died, its answer says why.
                    let _ = stdin.write_all(&text);
                }
                work.answer::<bool>()
            },
        );
        let made = made.and_then(|needed| {
            if !needed {
                return Ok(false);
            }
            match fs::rename(&aside, &place) {
                Err(_) if place.is_dir() => Ok(true),
                shown => shown.map(|()| true).map_err(about),
            }
        });
        if aside.is_dir() {
            let _ = self.remove_tree(&aside);
        }
        made
    }
}

/// How the root of a layer is called among what it implies.
const ROOT: &[u8] = b".";

/// Makes the directories, apart, where all layers lie below `root`. False if none is needed.
pub(crate) fn perform(root: BorrowedFd<'_>, into: &str, text: &[u8]) -> Result<bool> {
    let layers: Vec<Described> = serde_json::from_slice(text)
        .map_err(|error| Error::invalid("not a description of layers").cause(error))?;
    let mut wanted: BTreeMap<&[u8], ()> = BTreeMap::new();
    for path in layers.iter().flat_map(|layer| &layer.implied) {
        // Whatever lies above is needed to hold it.
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        for end in ends.map(|(at, _)| at).chain([path.len()]) {
            wanted.insert(&path[..end], ());
        }
    }
    let failed = |error: Errno| Error::host("cannot mend directories of the image", error);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let open = |path: &str| rustix::fs::openat(root, path, flags, Mode::empty()).map_err(failed);
    let trees = layers.iter().map(|layer| open(&format!("{}/fs", layer.directory)));
    let trees = trees.collect::<Result<Vec<OwnedFd>>>()?;
    let found = |path: &[u8]| described(layers.iter().zip(&trees).rev(), path);
    let paths: Vec<&[u8]> = [ROOT].into_iter().chain(wanted.into_keys()).collect();
    if !paths.iter().any(|path| found(path).is_some_and(|(_, hidden)| hidden)) {
        return Ok(false);
    }
    let aside = open(into)?;
    rustix::fs::mkdirat(&aside, "fs", Mode::from_raw_mode(0o755)).map_err(failed)?;
    let aside = open(&format!("{into}/fs"))?;
    let mut times = Vec::new();
    for path in paths {
        let Some((source, _)) = found(path) else { continue };
        let stat = rustix::fs::fstat(&source).map_err(failed)?;
        match rustix::fs::mkdirat(&aside, os(path), Mode::from_raw_mode(0o700)) {
            Ok(()) => {}
            Err(Errno::EXIST) if path == ROOT => {}
            // What holds it is a link or a file by now, and so it is not to be seen.
            Err(Errno::NOENT | Errno::NOTDIR) => continue,
            Err(error) => return Err(failed(error)),
        }
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        let itself = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::chownat(&aside, os(path), Some(uid), Some(gid), itself).map_err(failed)?;
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        rustix::fs::chmodat(&aside, os(path), mode, AtFlags::empty()).map_err(failed)?;
        let made = rustix::fs::openat(&aside, os(path), flags, Mode::empty()).map_err(failed)?;
        copy_attributes(source.as_fd(), made.as_fd()).map_err(failed)?;
        let time = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ };
        times.push((path, Timestamps { last_access: time, last_modification: time }));
    }
    for (path, times) in times {
        let itself = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(&aside, os(path), &times, itself).map_err(failed)?;
    }
    Ok(true)
}

/// What the topmost layer that describes a directory says of it; what one implies if none does.
/// Whether an implied one hides a described one is the second. None if it is not to be seen.
fn described<'a>(
    stack: impl Iterator<Item = (&'a Described, &'a OwnedFd)>,
    path: &[u8],
) -> Option<(OwnedFd, bool)> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let mut implied = None;
    for (layer, tree) in stack {
        match rustix::fs::openat2(tree.as_fd(), os(path), flags, Mode::empty(), within) {
            Ok(found) => {
                if !layer.implied.contains(path) {
                    return Some((found, implied.is_some()));
                }
                implied.get_or_insert(found);
            }
            Err(Errno::NOENT) => {}
            // A file, a link or a removal in between: what lies below is not to be seen.
            Err(_) => break,
        }
    }
    implied.map(|found| (found, false))
}

/// What the layer said of a directory beyond the usual; not what overlayfs keeps there.
fn copy_attributes(from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> rustix::io::Result<()> {
    /// The kernel's own limit of a list and of a value.
    const LIMIT: usize = 64 << 10;
    let mut names = vec![0; LIMIT];
    let length = rustix::fs::flistxattr(from, &mut names)?;
    for name in names[..length].split(|byte| *byte == 0) {
        if name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") {
            let mut value = vec![0; LIMIT];
            let length = rustix::fs::fgetxattr(from, os(name), &mut value)?;
            rustix::fs::fsetxattr(to, os(name), &value[..length], XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn os(path: &[u8]) -> &OsStr {
    OsStr::from_bytes(path)
}
