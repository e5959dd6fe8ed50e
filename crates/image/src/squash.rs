//! Several layers become one that shows the same.
//!
//! Layers are as overlayfs writes them: a device of no number hides what lies below, and so does a
//! directory that is marked opaque. Whatever the layers hide may be in an image below all of them,
//! so that the one hides it as well.

use crate::build::{OPAQUE, is_opaque, names, open_directory};
use crate::twin::{Shift, Twin, link};
use msb_spec::{Error, Result};
use rustix::fs::{AtFlags, FileType, Mode, XattrFlags};
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Longer paths are walked step by step: the kernel takes no more than a page at once.
const LONGEST: usize = 4000;

/// Makes one layer of several, topmost first, each with the ids that it was written with.
pub(crate) fn squash(
    layers: Vec<OwnedFd>,
    shifts: &[Option<Shift>],
    into: BorrowedFd<'_>,
) -> Result<(u64, u64)> {
    let shifts = shifts.iter().copied().chain(std::iter::repeat(None));
    let layers = layers.into_iter().zip(shifts).map(|(root, shift)| (root, Twin::new(shift)));
    let mut squash =
        Squash { layers: layers.collect(), into, links: HashMap::new(), copied: (0, 0) };
    let all = (0..squash.layers.len()).collect();
    let root = Merged { path: PathBuf::new(), layers: all, open: true, hidden: false };
    squash.all(root).map_err(|Broken(path, error)| {
        Error::host(format!("cannot copy `{}`", path.display()), error)
    })?;
    Ok(squash.copied)
}

struct Squash<'a> {
    layers: Vec<(OwnedFd, Twin)>,
    into: BorrowedFd<'a>,
    /// Files that have several names: the layer, the file, and the first of its names.
    links: HashMap<(usize, u64), PathBuf>,
    copied: (u64, u64),
}

/// A directory that shows what it is in several layers.
struct Merged {
    path: PathBuf,
    /// Those that it is in, topmost first.
    layers: Vec<usize>,
    /// Whether what lower layers have there shows through.
    open: bool,
    /// Whether it lies in one that nothing shows through.
    hidden: bool,
}

struct Broken(PathBuf, io::Error);

impl Squash<'_> {
    fn all(&mut self, root: Merged) -> std::result::Result<(), Broken> {
        let (mut pending, mut made) = (vec![root], Vec::new());
        while let Some(directory) = pending.pop() {
            let below = self.directory(&directory);
            pending.extend(below.map_err(|error| Broken(directory.path.clone(), error))?);
            made.push(directory);
        }
        // What is put into a directory stamps it: those that hold others come last.
        for directory in made.iter().rev() {
            self.describe(directory).map_err(|error| Broken(directory.path.clone(), error))?;
        }
        Ok(())
    }

    /// Copies what is in a directory; the directories in it are left for later.
    fn directory(&mut self, at: &Merged) -> io::Result<Vec<Merged>> {
        let target = reach(self.into, &at.path)?;
        let closed = at.hidden || !at.open;
        // None is something else than a directory, which hides all that is below.
        let mut found: BTreeMap<OsString, Option<Merged>> = BTreeMap::new();
        for &index in &at.layers {
            let source = reach(self.layers[index].0.as_fd(), &at.path)?;
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
                        let merged = Merged { path, layers: vec![index], open, hidden: closed };
                        found.insert(name, Some(merged));
                    }
                    None => {
                        let nothing = FileType::from_raw_mode(stat.st_mode)
                            == FileType::CharacterDevice
                            && stat.st_rdev == 0;
                        // Where nothing shows through there is nothing to hide.
                        if !(nothing && closed) {
                            let path = at.path.join(&name);
                            self.leaf(index, source.as_fd(), target.as_fd(), &path, &stat)?;
                        }
                        found.insert(name, None);
                    }
                }
            }
        }
        Ok(found.into_values().flatten().collect())
    }

    fn leaf(
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
        self.copied.0 += 1;
        let twin = &self.layers[index].1;
        match is_file {
            true => self.copied.1 += twin.file(from, into, name, stat)?,
            false => twin.special(from, into, name, stat)?,
        }
        Ok(())
    }

    /// A directory is as its topmost layer has it.
    fn describe(&self, at: &Merged) -> io::Result<()> {
        let Some(&top) = at.layers.first() else { return Ok(()) };
        let (root, twin) = &self.layers[top];
        let source = reach(root.as_fd(), &at.path)?;
        let target = reach(self.into, &at.path)?;
        twin.describe(source.as_fd(), target.as_fd(), &rustix::fs::fstat(&source)?)?;
        if !at.open && !at.hidden {
            rustix::fs::fsetxattr(&target, OPAQUE, b"y", XattrFlags::empty())?;
        }
        Ok(())
    }
}

/// Opens a directory however deep it lies.
fn reach(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    if path.as_os_str().len() <= LONGEST {
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
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(path.join("into")).unwrap();
            Self(path)
        }

        fn file(&self, path: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, path.strip_prefix(&self.0).unwrap().to_str().unwrap()).unwrap();
        }

        fn nothing(&self, path: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0).unwrap();
        }

        fn opaque(&self, path: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(&path).unwrap();
            rustix::fs::setxattr(&path, OPAQUE, b"y", XattrFlags::empty()).unwrap();
        }

        /// What came of layers `1` on `2` on `3`: where each file is from, and what hides.
        fn squashed(&self) -> Vec<String> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let open =
                |name: &str| rustix::fs::open(self.0.join(name), flags, Mode::empty()).unwrap();
            squash(["1", "2", "3"].map(open).into(), &[], open("into").as_fd()).unwrap();
            let root = self.0.join("into");
            let (mut told, mut pending) = (Vec::new(), vec![root.clone()]);
            while let Some(path) = pending.pop() {
                let name = path.strip_prefix(&root).unwrap().display().to_string();
                let meta = fs::symlink_metadata(&path).unwrap();
                if meta.is_dir() {
                    let mark = rustix::fs::getxattr(&path, OPAQUE, &mut [0; 4][..]);
                    told.push(format!("{name}/{}", if mark.is_ok() { " opaque" } else { "" }));
                    pending.extend(fs::read_dir(&path).unwrap().map(|it| it.unwrap().path()));
                } else if meta.is_file() {
                    told.push(format!("{name} = {}", fs::read_to_string(&path).unwrap()));
                } else {
                    told.push(format!("{name} hides"));
                }
            }
            told.sort();
            told
        }
    }

    impl Drop for Layers {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_topmost_wins_and_what_is_hidden_stays_so() {
        let layers = Layers::new("wins");
        for path in ["1/a", "2/a", "3/a", "3/b", "2/d/x", "3/d/y", "3/gone", "3/o/old", "3/t"] {
            layers.file(path);
        }
        layers.nothing("1/gone");
        layers.nothing("2/d/z");
        layers.opaque("2/o");
        layers.file("1/o/new");
        layers.nothing("1/o/less");
        // A file became a directory, and a directory a file.
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
