//! Keeps the state directory out of the host paths that clients may name.
//!
//! `MSB_HOME` holds the secret that signs API keys and the files of every sandbox. It is excluded
//! whatever directories are allowed: the directory itself, its contents, and its parents, because
//! their trees contain it. It is held by a descriptor, so a rename does not hide it. It is compared
//! by its location in the file system, so a bind mount of it, of a part of it, or of a parent is
//! recognised.

use msb_spec::{Error, Result};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A descriptor of the state directory.
#[derive(Debug, Clone)]
pub(crate) struct StateDir(Arc<OwnedFd>);

impl StateDir {
    /// Opens the state directory by `O_PATH`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        opened.map(|it| Self(Arc::new(it))).map_err(|error| cannot(error.into()))
    }

    /// Whether a path overlaps the state directory. The path has no symbolic links in it.
    pub(crate) fn is_shown_by(&self, real: &Path) -> Result<bool> {
        let own = std::fs::read_link(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        let own = own.map_err(cannot)?;
        let mounts = std::fs::read("/proc/self/mountinfo").map_err(cannot)?;
        Ok(overlap(&own, real) || shows(&MountTable::parse(&mounts), &own, real))
    }
}

impl PartialEq for StateDir {
    fn eq(&self, other: &Self) -> bool {
        let id = |it: &Self| rustix::fs::fstat(&*it.0).map(|meta| (meta.st_dev, meta.st_ino)).ok();
        id(self) == id(other)
    }
}

impl Eq for StateDir {}

fn cannot(error: std::io::Error) -> Error {
    Error::host("cannot locate the state directory", error)
}

/// Whether one of two paths is the other or is inside it.
fn overlap(one: &Path, other: &Path) -> bool {
    one.starts_with(other) || other.starts_with(one)
}

/// Whether a path, or a mount below it, overlaps `own` in the same file system.
fn shows(mounts: &MountTable, own: &Path, real: &Path) -> bool {
    let Some(own) = mounts.location(own) else { return false };
    let same = |other: &FsLocation| other.device == own.device && overlap(&other.path, &own.path);
    let below = mounts.0.iter().filter(|mount| mount.point.starts_with(real));
    let mut below = below.map(|mount| mount.root.clone());
    mounts.location(real).as_ref().is_some_and(same) || below.any(|root| same(&root))
}

/// A path in a file system, independent of where that is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FsLocation {
    /// The device number, `MAJOR:MINOR`.
    device: String,
    /// The path from the root of the file system.
    path: PathBuf,
}

#[derive(Debug)]
struct MountEntry {
    point: PathBuf,
    /// The directory of the file system that is mounted.
    root: FsLocation,
}

/// Every mount; later ones cover earlier ones.
#[derive(Debug)]
struct MountTable(Vec<MountEntry>);

impl MountTable {
    /// Parses `/proc/self/mountinfo`: `ID PARENT MAJOR:MINOR ROOT POINT …`.
    fn parse(text: &[u8]) -> Self {
        let line = |line: &[u8]| {
            let mut words = line.split(|byte| *byte == b' ').skip(2);
            let device = String::from_utf8(words.next()?.to_vec()).ok()?;
            let (path, point) = (unescaped(words.next()?), unescaped(words.next()?));
            Some(MountEntry { point, root: FsLocation { device, path } })
        };
        Self(text.split(|byte| *byte == b'\n').filter_map(line).collect())
    }

    /// The location of a path in its file system.
    fn location(&self, path: &Path) -> Option<FsLocation> {
        let over = self.0.iter().filter(|mount| path.starts_with(&mount.point));
        let mount = over.max_by_key(|mount| mount.point.components().count())?;
        let rest = path.strip_prefix(&mount.point).ok()?;
        let root = &mount.root;
        Some(FsLocation { device: root.device.clone(), path: root.path.join(rest) })
    }
}

/// Decodes octal escapes, such as `\040` for a space.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, more)) = rest.split_first() {
        let octal = more
            .get(..3)
            .filter(|_| *first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(*first));
        rest = if octal.is_some() { &more[3..] } else { more };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bind_mounts_of_it_are_the_same_thing() {
        let mounts = MountTable::parse(
            b"1 0 8:1 / / rw\n\
              2 1 8:1 /home/u/.msb /mnt/whole rw\n\
              3 1 8:1 /home/u/.msb/keys /mnt/part rw\n\
              4 1 8:1 /home /mnt/above rw\n\
              5 1 8:2 / /data rw\n\
              6 5 8:1 /home/u/.msb /data/with\\040blank rw\n\
              7 1 8:1 /srv /mnt/other rw\n",
        );
        for (path, shown) in [
            ("/home/u/.msb", true),
            ("/home/u/.msb/server.key", true),
            ("/home/u", true),
            ("/", true),
            ("/home/u/.msbx", false),
            ("/home/u/work", false),
            ("/mnt/whole", true),
            ("/mnt/whole/server.key", true),
            ("/mnt/part/x", true),
            ("/mnt/above", true),
            ("/mnt/above/u", true),
            ("/mnt/above/u/.msb/x", true),
            ("/mnt/above/u/work", false),
            ("/mnt/above/v", false),
            ("/mnt", true),
            ("/mnt/other", false),
            ("/data", true),
            ("/data/with blank/x", true),
            ("/data/free", false),
            ("/srv", false),
        ] {
            assert_eq!(shows(&mounts, Path::new("/home/u/.msb"), Path::new(path)), shown, "{path}");
        }
    }

    #[test]
    fn it_is_found_after_a_rename() {
        let place = std::env::temp_dir().join(format!("msb-state-{}", std::process::id()));
        let (home, moved) = (place.join("home"), place.join("moved/home"));
        std::fs::create_dir_all(&home).unwrap();
        std::fs::create_dir_all(moved.parent().unwrap()).unwrap();
        let place = place.canonicalize().unwrap();
        let state = StateDir::open(&home).unwrap();
        assert!(state.is_shown_by(&place.join("home/x")).unwrap());
        assert!(!state.is_shown_by(&place.join("moved")).unwrap());
        std::fs::rename(&home, &moved).unwrap();
        assert!(state.is_shown_by(&place.join("moved")).unwrap());
        assert!(state.is_shown_by(&place.join("moved/home/x")).unwrap());
        assert!(!state.is_shown_by(&place.join("home/x")).unwrap());
        std::fs::remove_dir_all(place).unwrap();
    }
}
