//! Merges several overlay layers into one equivalent layer.
//!
//! The layers are in the format of overlayfs: a character device 0/0 is a whiteout, and an opaque
//! directory hides the lower ones. Whiteouts are kept, because an image below may have the file.

use crate::build::{OPAQUE, is_opaque, names, open_directory};
use crate::live_copy::{IdShift, TwoPassCopy, link};
use msb_spec::{Error, Result};
use rustix::fs::{AtFlags, FileType, Mode, XattrFlags};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Longest path for one system call; longer paths are opened component by component.
const PATH_LIMIT: usize = 4000;

/// Merges layers, topmost first, into `into`. Each may have its own id mapping. Returns files and
/// bytes.
pub(crate) fn squash(
    layers: Vec<OwnedFd>,
    shifts: &[Option<IdShift>],
    into: BorrowedFd<'_>,
) -> Result<(u64, u64)> {
    let shifts = shifts.iter().copied().chain(std::iter::repeat(None));
    let layers =
        layers.into_iter().zip(shifts).map(|(root, shift)| (root, TwoPassCopy::new(shift)));
    let mut squash =
        Squasher { layers: layers.collect(), into, links: HashMap::new(), totals: (0, 0) };
    let all = (0..squash.layers.len()).collect();
    let root = MergedDir { path: PathBuf::new(), layers: all, open: true, hidden: false };
    squash.all(root).map_err(|SquashError(path, error)| {
        Error::host(format!("cannot copy `{}`", path.display()), error)
    })?;
    Ok(squash.totals)
}

struct Squasher<'a> {
    layers: Vec<(OwnedFd, TwoPassCopy)>,
    into: BorrowedFd<'a>,
    /// Hard links: path of the first one, by layer and inode.
    links: HashMap<(usize, u64), PathBuf>,
    totals: (u64, u64),
}

/// A directory that several layers contribute to.
struct MergedDir {
    path: PathBuf,
    /// Indexes of these layers, topmost first.
    layers: Vec<usize>,
    /// Whether lower layers and the image below are visible in it.
    open: bool,
    /// Whether a parent directory is not `open`.
    hidden: bool,
}

struct SquashError(PathBuf, io::Error);

impl Squasher<'_> {
    fn all(&mut self, root: MergedDir) -> std::result::Result<(), SquashError> {
        let (mut pending, mut made) = (vec![root], Vec::new());
        while let Some(directory) = pending.pop() {
            let below = self.directory(&directory);
            pending.extend(below.map_err(|error| SquashError(directory.path.clone(), error))?);
            made.push(directory);
        }
        // Adding entries changes the mtime, so metadata is set bottom up.
        for directory in made.iter().rev() {
            self.copy_metadata(directory)
                .map_err(|error| SquashError(directory.path.clone(), error))?;
        }
        Ok(())
    }

    /// Merges the entries of a directory. Returns its subdirectories.
    fn directory(&mut self, at: &MergedDir) -> io::Result<Vec<MergedDir>> {
        let target = open_deep(self.into, &at.path)?;
        let closed = at.hidden || !at.open;
        // `None` is not a directory; it hides everything below.
        let mut found: BTreeMap<OsString, Option<MergedDir>> = BTreeMap::new();
        for &index in &at.layers {
            let source = open_deep(self.layers[index].0.as_fd(), &at.path)?;
            for name in names(source.as_fd(), Path::new(""))? {
                let stat = rustix::fs::statat(&source, &name, AtFlags::SYMLINK_NOFOLLOW)?;
                let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                let opaque = || -> io::Result<bool> {
                    is_opaque(&open_directory(source.as_fd(), Path::new(&name))?)
                };
                match found.get_mut(&name) {
                    Some(Some(merged)) if merged.open && is_directory => {
                        merged.layers.push(index);
                        merged.open = !opaque()?;
                    }
                    Some(Some(merged)) => merged.open = false,
                    Some(None) => {}
                    None if is_directory => {
                        rustix::fs::mkdirat(&target, &name, Mode::RWXU)?;
                        let (path, open) = (at.path.join(&name), !opaque()?);
                        let merged = MergedDir { path, layers: vec![index], open, hidden: closed };
                        found.insert(name, Some(merged));
                    }
                    None => {
                        let whiteout = FileType::from_raw_mode(stat.st_mode)
                            == FileType::CharacterDevice
                            && stat.st_rdev == 0;
                        // No whiteout is needed where nothing below is visible.
                        if !(whiteout && closed) {
                            let path = at.path.join(&name);
                            self.non_directory(
                                index,
                                source.as_fd(),
                                target.as_fd(),
                                &path,
                                &stat,
                            )?;
                        }
                        found.insert(name, None);
                    }
                }
            }
        }
        Ok(found.into_values().flatten().collect())
    }

    fn non_directory(
        &mut self,
        index: usize,
        from: BorrowedFd<'_>,
        into: BorrowedFd<'_>,
        path: &Path,
        stat: &rustix::fs::Stat,
    ) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default();
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if is_file && stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&(index, stat.st_ino)) {
                return Ok(link(first, into, name)?);
            }
            self.links.insert((index, stat.st_ino), path.to_owned());
        }
        self.totals.0 += 1;
        let copy = &self.layers[index].1;
        match is_file {
            true => self.totals.1 += copy.file(from, into, name, stat)?,
            false => copy.special(from, into, name, stat)?,
        }
        Ok(())
    }

    /// Copies the metadata of a directory from its topmost layer.
    fn copy_metadata(&self, at: &MergedDir) -> io::Result<()> {
        let Some(&top) = at.layers.first() else { return Ok(()) };
        let (root, copy) = &self.layers[top];
        let source = open_deep(root.as_fd(), &at.path)?;
        let target = open_deep(self.into, &at.path)?;
        copy.copy_metadata(source.as_fd(), target.as_fd(), &rustix::fs::fstat(&source)?)?;
        if !at.open && !at.hidden {
            rustix::fs::fsetxattr(&target, OPAQUE, b"y", XattrFlags::empty())?;
        }
        Ok(())
    }
}

/// Opens a directory at any depth.
fn open_deep(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    if path.as_os_str().len() <= PATH_LIMIT {
        return open_directory(root, path);
    }
    let mut at = open_directory(root, Path::new(""))?;
    for step in path.iter() {
        at = open_directory(at.as_fd(), Path::new(step))?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, OFlags};
    use std::fs;

    struct Layers(PathBuf);

    impl Layers {
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("msb-squash-{}-{name}", std::process::id()));
            msb_log::debug_on_failure!(
                fs::remove_dir_all(&path),
                "cannot remove a temporary directory"
            );
            fs::create_dir_all(path.join("into")).unwrap();
            Self(path)
        }

        fn file(&self, path: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, path.strip_prefix(&self.0).unwrap().to_str().unwrap()).unwrap();
        }

        fn whiteout(&self, path: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }

        fn opaque(&self, path: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(&path).unwrap();
            rustix::fs::setxattr(&path, OPAQUE, b"y", XattrFlags::empty()).unwrap();
        }

        /// The result for layers `1`, `2` and `3`: origin of each file, and whiteouts.
        fn squashed(&self) -> Vec<String> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let open =
                |name: &str| rustix::fs::open(self.0.join(name), flags, Mode::empty()).unwrap();
            squash(["1", "2", "3"].map(open).into(), &[], open("into").as_fd()).unwrap();
            let root = self.0.join("into");
            let (mut lines, mut pending) = (Vec::new(), vec![root.clone()]);
            while let Some(path) = pending.pop() {
                let name = path.strip_prefix(&root).unwrap().display().to_string();
                let meta = fs::symlink_metadata(&path).unwrap();
                if meta.is_dir() {
                    let mark = rustix::fs::getxattr(&path, OPAQUE, &mut [0; 4][..]);
                    lines.push(format!("{name}/{}", if mark.is_ok() { " opaque" } else { "" }));
                    pending.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
                } else if meta.is_file() {
                    lines.push(format!("{name} = {}", fs::read_to_string(&path).unwrap()));
                } else {
                    lines.push(format!("{name} hides"));
                }
            }
            lines.sort();
            lines
        }
    }

    impl Drop for Layers {
        fn drop(&mut self) {
            msb_log::debug_on_failure!(
                fs::remove_dir_all(&self.0),
                "cannot remove a temporary directory"
            );
        }
    }

    #[test]
    fn the_topmost_wins_and_what_is_hidden_stays_so() {
        let layers = Layers::new("wins");
        for path in ["1/a", "2/a", "3/a", "3/b", "2/d/x", "3/d/y", "3/gone", "3/o/old", "3/t"] {
            layers.file(path);
        }
        layers.whiteout("1/gone");
        layers.whiteout("2/d/z");
        layers.opaque("2/o");
        layers.file("1/o/new");
        layers.whiteout("1/o/less");
        // A file replaces a directory, and a directory a file.
        layers.file("1/t/in");
        layers.file("1/f");
        layers.file("2/f/in");
        assert_eq!(
            layers.squashed(),
            [
                "/",
                "a = 1/a",
                "b = 3/b",
                "d/",
                "d/x = 2/d/x",
                "d/y = 3/d/y",
                "d/z hides",
                "f = 1/f",
                "gone hides",
                "o/ opaque",
                "o/new = 1/o/new",
                "t/ opaque",
                "t/in = 1/t/in",
            ]
        );
    }
}
