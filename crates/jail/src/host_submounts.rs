//! Mounts of the host below the trees of the `host` image, such as a disk at /usr/local or the
//! driver files of a GPU below /usr.
//!
//! overlayfs takes no lower directory with mounts below it that a user namespace may not remove.
//! Root clones each tree without these mounts and attaches them again, read-only. An ordinary user
//! cannot: such a tree is mounted read-only as it is, with overlays over the directories of it that
//! installers write into and that have no mounts below.

use crate::rootfs::{
    self, LayerSource, OverlayUpper, ROOT, in_stage, make_dir_in, mount_as_unowned, mount_overlay,
};
use msb_spec::{Error, Overlay, Plan, Result};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::root_dir::RootDir;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags};
use std::ffi::OsString;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The mount points below the host's trees in a Plan. Read once, before the fork, so that the
/// worker and its child agree about them.
#[derive(Debug, Default)]
pub(crate) struct HostSubmounts {
    trees: Vec<PathBuf>,
    points: Vec<PathBuf>,
}

impl HostSubmounts {
    /// Reads the mount points of this mount namespace. Costs nothing for other images.
    pub(crate) fn find(plan: &Plan) -> Self {
        let lowers = plan.rootfs.overlays.iter().flat_map(|overlay| &overlay.lowers);
        let trees: Vec<PathBuf> =
            lowers.filter(|lower| !lower.owned).map(|lower| lower.path.clone()).collect();
        if trees.is_empty() {
            return Self::default();
        }
        Self::parse(&fs::read("/proc/self/mountinfo").unwrap_or_default(), trees)
    }

    fn parse(mountinfo: &[u8], trees: Vec<PathBuf>) -> Self {
        let lines = mountinfo.split(|byte| *byte == b'\n');
        let points = lines.filter_map(|line| line.split(|byte| *byte == b' ').nth(4)).map(unescape);
        let below = |point: &PathBuf| trees.iter().any(|tree| is_below(point, tree));
        let mut points: Vec<PathBuf> = points.filter(below).collect();
        points.sort();
        points.dedup();
        Self { trees, points }
    }

    /// Whether mounts lie below this directory.
    pub(crate) fn any_below(&self, directory: &Path) -> bool {
        self.points.iter().any(|point| is_below(point, directory))
    }

    /// The trees with mounts below them, in the order of the Plan.
    fn split_trees(&self) -> impl Iterator<Item = &Path> {
        self.trees.iter().map(PathBuf::as_path).filter(|tree| self.any_below(tree))
    }

    /// The topmost mounts that no overlay of the Plan shows.
    fn topmost(&self) -> impl Iterator<Item = &Path> {
        let hidden = |point: &&PathBuf| {
            let covers = |other: &&PathBuf| !self.trees.contains(other) && is_below(point, other);
            !self.trees.contains(point) && !self.points.iter().any(|other| covers(&other))
        };
        self.points.iter().filter(hidden).map(PathBuf::as_path)
    }

    /// As root: the trees without their mounts, in the order in which [`Self::receive_trees`] expects
    /// them.
    pub(crate) fn clone_trees(&self) -> Result<Vec<OwnedFd>> {
        self.split_trees().map(|tree| rootfs::detach(tree, false)).collect()
    }

    /// As root: the mounts below the trees, read-only, each with its path.
    pub(crate) fn clone_mounts(&self) -> Result<Vec<OwnedFd>> {
        let clone = |point: &Path| {
            let mount = rootfs::detach(point, true)?;
            read_only(&mount, point)?;
            Ok(mount)
        };
        self.topmost().map(clone).collect()
    }

    /// In the child of root's worker: receives what [`Self::clone_trees`] made.
    pub(crate) fn receive_trees(
        &self,
        receive: impl Fn() -> Result<OwnedFd>,
    ) -> Result<Vec<(PathBuf, OwnedFd)>> {
        self.split_trees().map(|tree| Ok((tree.to_owned(), receive()?))).collect()
    }

    /// In the child of root's worker: receives what [`Self::clone_mounts`] made.
    pub(crate) fn receive_mounts(
        &self,
        receive: impl Fn() -> Result<OwnedFd>,
    ) -> Result<Vec<(PathBuf, OwnedFd)>> {
        self.topmost().map(|point| Ok((point.to_owned(), receive()?))).collect()
    }
}

/// Attaches mounts below the overlays of a root. A persistent sandbox may have removed or replaced
/// the mount point in its writable layer; then it is left alone.
pub(crate) fn attach_mounts(stage: &RootDir, mounts: &[(PathBuf, OwnedFd)]) -> Result<()> {
    for (path, mount) in mounts {
        let target = Path::new(ROOT).join(path.strip_prefix("/").unwrap_or(path));
        let Ok(target) = stage.find_unlinked(&target) else { continue };
        match target.cover_with(mount.as_fd()) {
            // A directory where a file is to be mounted, or the other way round.
            Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => {}
            result => result.map_err(|error| {
                Error::host(format!("cannot mount at `{}`", path.display()), error)
            })?,
        }
    }
    Ok(())
}

/// Without root: mounts a host tree read-only with everything below it, and overlays over the
/// directories of it that are the sandbox's to write.
pub(crate) struct SplitTree<'a> {
    pub(crate) submounts: &'a HostSubmounts,
    pub(crate) overlay: &'a Overlay,
    pub(crate) sources: &'a [LayerSource],
    /// Holds the upper and work directories.
    pub(crate) base: BorrowedFd<'a>,
    /// Number of the overlay in the Plan, in the names of its upper and work directory.
    pub(crate) index: usize,
    pub(crate) volatile: bool,
}

impl SplitTree<'_> {
    /// The host tree of an overlay that must be split; none for others.
    pub(crate) fn host_tree<'o>(
        submounts: &HostSubmounts,
        overlay: &'o Overlay,
        sources: &[LayerSource],
    ) -> Option<&'o Path> {
        let local = matches!(sources.last(), Some(LayerSource::Open(_) | LayerSource::Unowned(_)));
        let host = overlay.lowers.last().filter(|lower| local && !lower.owned)?;
        submounts.any_below(&host.path).then_some(host.path.as_path())
    }

    pub(crate) fn mount(&self, stage: &RootDir, host: &Path) -> Result<()> {
        let Some((host_source, own)) = self.sources.split_last() else { return Ok(()) };
        let (tree, unowned) = match host_source {
            LayerSource::Unowned(fd) => (fd, true),
            LayerSource::Open(fd) => (fd, false),
            _ => return Ok(()),
        };
        let whole = rootfs::detach_fd(tree, true)?;
        read_only(&whole, host)?;
        let target = Path::new(ROOT).join(self.overlay.at.trim_start_matches('/'));
        rootfs::attach(whole.as_fd(), &in_stage(stage, &target)?, &self.overlay.at)?;
        let own: Vec<&OwnedFd> = own
            .iter()
            .filter_map(|source| match source {
                LayerSource::Open(fd) => Some(fd),
                _ => None,
            })
            .collect();
        let Some(skeleton) = own.last() else { return Ok(()) };
        for (number, part) in self.writable_parts(skeleton, host)?.iter().enumerate() {
            let name = format!("part{}-{number}", self.index);
            let mut lowers: Vec<OwnedFd> =
                own.iter().filter_map(|layer| open_below(layer.as_fd(), part).ok()).collect();
            let programs = open_below(tree.as_fd(), part)?;
            lowers.push(match unowned {
                true => mount_as_unowned(stage, &programs, &name)?,
                false => programs,
            });
            let upper =
                make_dirs(self.base, &Path::new(&format!("upper{}", self.index)).join(part))?;
            let work = make_dirs(self.base, Path::new(&format!("work{}/{number}", self.index)))?;
            let uppers = OverlayUpper::Open {
                upper: upper.as_fd(),
                work: work.as_fd(),
                volatile: self.volatile,
            };
            let shown = Path::new(&self.overlay.at).join(part);
            mount_overlay(
                &lowers,
                uppers,
                &in_stage(stage, &target.join(part))?,
                &shown.to_string_lossy(),
            )?;
        }
        Ok(())
    }

    /// The topmost directories of the skeleton layer without mounts at or below them.
    fn writable_parts(&self, skeleton: &OwnedFd, host: &Path) -> Result<Vec<PathBuf>> {
        let mut parts = Vec::new();
        let mut spines = vec![PathBuf::new()];
        while let Some(spine) = spines.pop() {
            for name in directories(skeleton.as_fd(), &spine)? {
                let part = spine.join(name);
                let path = host.join(&part);
                if self.submounts.points.contains(&path) {
                    continue;
                }
                match self.submounts.any_below(&path) {
                    true => spines.push(part),
                    // A directory that only the skeleton has is no mount point in the tree.
                    false if path.is_dir() => parts.push(part),
                    false => {}
                }
            }
        }
        Ok(parts)
    }
}

/// Names of the directories in one of our own layers.
fn directories(layer: BorrowedFd<'_>, path: &Path) -> Result<Vec<OsString>> {
    let list = || -> rustix::io::Result<Vec<OsString>> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(layer, path, flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if entry.file_type() == FileType::Directory && name != b"." && name != b".." {
                names.push(OsString::from_vec(name.to_vec()));
            }
        }
        Ok(names)
    };
    list().map_err(|error| Error::host("cannot read a layer of the host image", error))
}

/// Opens a directory of a layer. A sandbox may have written the layer, so no symlink is followed.
fn open_below(layer: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat2(layer, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
        .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
}

/// Creates directories below `base` where they are missing, and opens the last one.
fn make_dirs(base: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd> {
    let mut made = None::<OwnedFd>;
    for part in path.iter() {
        let above = made.as_ref().map_or(base, |made| made.as_fd());
        make_dir_in(above, &part.to_string_lossy())?;
        made = Some(open_below(above, Path::new(part))?);
    }
    made.ok_or_else(|| Error::host("cannot make a directory", std::io::ErrorKind::InvalidInput))
}

fn read_only(mount: &OwnedFd, path: &Path) -> Result<()> {
    let attributes = Attributes {
        read_only: true,
        no_suid: true,
        no_dev: true,
        private: true,
        recursive: true,
        ..Attributes::default()
    };
    set_attributes(mount.as_fd(), &attributes)
        .map_err(|error| Error::host(format!("cannot mount `{}` read-only", path.display()), error))
}

fn is_below(path: &Path, directory: &Path) -> bool {
    path != directory && path.starts_with(directory)
}

/// Resolves the octal escapes of a path in mountinfo.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            digits.iter().try_fold(0u32, |value, digit| {
                digit.is_ascii_digit().then(|| value * 8 + u32::from(digit - b'0'))
            })
        };
        match after.get(..3).filter(|_| *first == b'\\').and_then(octal) {
            Some(value) => {
                bytes.push(value as u8);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_below_the_trees_are_found_once_and_by_their_real_names() {
        let mountinfo = b"22 1 8:1 / / rw - ext4 /dev/a rw\n\
            30 22 0:5 / /usr/lib/wsl\\040x rw - 9p d rw\n\
            31 30 0:6 / /usr/lib/wsl\\040x/lib rw - 9p d rw\n\
            32 22 0:7 / /usr/local rw - tmpfs t rw\n\
            33 32 0:7 / /usr/local/a rw - tmpfs t rw\n\
            34 32 0:8 / /usr/local/a rw - tmpfs t rw\n\
            35 22 0:9 / /usrlocal rw - tmpfs t rw\n";
        let trees = ["/usr", "/opt", "/usr/local"].map(PathBuf::from).to_vec();
        let found = HostSubmounts::parse(mountinfo, trees);
        let topmost: Vec<&Path> = found.topmost().collect();
        assert_eq!(topmost, ["/usr/lib/wsl x", "/usr/local/a"].map(Path::new));
        let split: Vec<&Path> = found.split_trees().collect();
        assert_eq!(split, ["/usr", "/usr/local"].map(Path::new));
        assert!(found.any_below(Path::new("/usr/lib")));
        assert!(!found.any_below(Path::new("/usr/share")));
    }
}
