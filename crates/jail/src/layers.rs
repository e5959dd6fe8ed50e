//! The sandbox's root: overlays of read-only layers below private writable directories.

use msb_spec::{Error, Overlay, Result, Upper};
use msb_sys::mount::{Attributes, set_attributes};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// A host directory that becomes a layer.
#[derive(Debug)]
pub(crate) enum Source {
    /// Reached by its path, as ourselves.
    Open(OwnedFd),
    /// A mount made for us outside, with ids that fit, still to be attached.
    Detached(OwnedFd),
    /// The same of a directory that holds several layers, and where in it this one is.
    Holding(OwnedFd, PathBuf),
    /// Another layer in the last such directory.
    InSame(PathBuf),
}

/// A directory that is mounted with shifted ids, and the layer in it that is meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Held<'a> {
    /// What is mounted; none if it is what the layer before this one is in.
    pub(crate) base: Option<&'a Path>,
    /// The layer in it; empty if it is the layer itself.
    pub(crate) rest: &'a Path,
    /// The id on disk that is root inside.
    pub(crate) shift: u32,
}

/// How layers are mounted with few mounts: those of an image lie side by side, two steps below
/// one directory, and each mount costs as much as twenty system calls.
pub(crate) fn held<'a>(owned: &[(&'a Path, u32)]) -> Vec<Held<'a>> {
    // What a sandbox wrote has ids of its own, and is mounted by itself.
    let shelf = |(path, shift): &(&'a Path, u32)| match shift {
        0 => path.parent().and_then(Path::parent),
        _ => None,
    };
    let mut held: Vec<Held<'a>> = Vec::new();
    let mut last = None;
    for (index, layer) in owned.iter().enumerate() {
        let &(path, shift) = layer;
        let own = shelf(layer);
        let next = owned.get(index + 1).and_then(shelf);
        let shared = own.filter(|_| own == last || own == next);
        held.push(match shared {
            Some(shelf) => Held {
                base: (last != Some(shelf)).then_some(shelf),
                rest: path.strip_prefix(shelf).unwrap_or(path),
                shift,
            },
            None => Held { base: Some(path), rest: Path::new(""), shift },
        });
        last = shared;
    }
    held
}

impl Source {
    /// Opens a directory by path, in the mount namespace that it will be used in.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        open_layer(path).map(Self::Open)
    }
}

/// A private tree of mounts that is not part of any namespace yet.
pub(crate) fn detach(path: &Path, recursive: bool) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(CWD, path, flags)
        .map_err(|error| Error::host(format!("cannot take hold of `{}`", path.display()), error))
}

/// Something of the user's by the path in a Plan, where planning has followed every link. One that
/// is in it by now was put there by somebody who can write there, perhaps a sandbox.
pub(crate) fn found(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).map_err(
        |error| {
            let error = Error::host(format!("cannot open `{}`", path.display()), error);
            error.hint("it must be there, and no part of the path may have become a link")
        },
    )
}

/// Something of ours, in a state directory that may lie behind a link.
pub(crate) fn state(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
}

/// A private tree of mounts of what is open.
pub(crate) fn detach_found(found: &OwnedFd, recursive: bool) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(found, "", flags)
        .map_err(|error| Error::host("cannot take hold of a mount", error))
}

/// The same of one directory, which is not found through a link.
pub(crate) fn detach_itself(path: &Path) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    rustix::mount::open_tree(CWD, path, flags)
        .map_err(|error| Error::host(format!("cannot take hold of `{}`", path.display()), error))
}

/// Attaches a detached mount at a path.
pub(crate) fn attach(mount: BorrowedFd<'_>, target: &Path) -> Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(mount, "", CWD, target, flags)
        .map_err(|error| Error::host(format!("cannot mount at `{}`", target.display()), error))
}

/// Where the root is put together. Any directory will do: it is covered by a mount that only
/// this namespace has, and everything that lies below it was opened before.
pub(crate) const STAGE: &str = "/tmp";
/// The root to be.
pub(crate) const ROOT: &str = "/tmp/root";

/// Puts the overlays together, ready to become the root.
///
/// `sources` has the lower directories of each overlay; `writable` is where a persistent
/// sandbox keeps its upper layers.
pub(crate) fn build_root(
    overlays: &[Overlay],
    sources: &[Vec<Source>],
    upper: &Upper,
    writable: Option<&Source>,
) -> Result<()> {
    let stage = Path::new(STAGE);
    let options = match upper {
        Upper::Memory { size } => format!("mode=755,size={size}"),
        Upper::Directory { .. } | Upper::Disk { .. } => "mode=755,size=1m".to_owned(),
    };
    mount_tmpfs(stage, &options)?;
    let mut attached = 0;
    let mut place = |source: &Source| -> Result<OwnedFd> {
        match source {
            Source::Open(fd) => {
                fd.try_clone().map_err(|error| Error::host("cannot open a layer", error))
            }
            Source::Detached(mount) => place_at(stage, &mut attached, mount, Path::new("")),
            Source::Holding(mount, rest) => place_at(stage, &mut attached, mount, rest),
            Source::InSame(rest) => open_layer(&stage.join(format!("layer{attached}")).join(rest)),
        }
    };
    let writable = match writable {
        Some(source) => Some(place(source)?),
        None => None,
    };
    let root = Path::new(ROOT);
    make_dir(root)?;
    for (index, (overlay, sources)) in overlays.iter().zip(sources).enumerate() {
        let lowers = sources.iter().map(&mut place).collect::<Result<Vec<_>>>()?;
        let base = match &writable {
            Some(fd) => format!("/proc/self/fd/{}", fd.as_raw_fd()),
            None => STAGE.to_owned(),
        };
        let (upper, work) = (format!("{base}/upper{index}"), format!("{base}/work{index}"));
        make_dir(Path::new(&upper))?;
        make_dir(Path::new(&work))?;
        // The mount point lies in the overlay below, which is ours: no link of an image is
        // followed, because only the `host` image has more than one overlay.
        let target = root.join(overlay.at.trim_start_matches('/'));
        mount_overlay(&lowers, &upper, &work, writable.is_none(), &target)?;
    }
    Ok(())
}

/// Attaches a mount where the root is put together, and opens what is meant in it.
fn place_at(stage: &Path, attached: &mut usize, mount: &OwnedFd, rest: &Path) -> Result<OwnedFd> {
    *attached += 1;
    let target = stage.join(format!("layer{attached}"));
    make_dir(&target)?;
    attach(mount.as_fd(), &target)?;
    open_layer(&target.join(rest))
}

pub(crate) fn open_layer(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
}

pub(crate) fn mount_overlay(
    lowers: &[OwnedFd],
    upper: &str,
    work: &str,
    volatile: bool,
    target: &Path,
) -> Result<()> {
    // The kernel takes one page of options and cuts the rest off. Seen from here a layer is a
    // number, so that as many fit as an image may have.
    let here = |path: &str| {
        rustix::process::chdir(path).map_err(|error| Error::host("cannot open a layer", error))
    };
    here("/proc/self/fd")?;
    let lowers: Vec<String> = lowers.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let volatile = if volatile { ",volatile" } else { "" };
    let options = format!(
        "userxattr,lowerdir={},upperdir={upper},workdir={work}{volatile}",
        lowers.join(":")
    );
    let options = CString::new(options).expect("made of numbers and constants");
    rustix::mount::mount("overlay", target, "overlay", MountFlags::NODEV, options.as_c_str())
        .map_err(|error| {
            Error::host(
                format!("cannot mount the root filesystem at `{}`", target.display()),
                error,
            )
            .hint("`msb doctor` tells whether this host allows overlay mounts")
        })?;
    here("/")
}

/// An empty directory that cannot be written, to cover others with.
pub(crate) fn nothing() -> Result<OwnedFd> {
    let empty = Path::new(STAGE).join("nothing");
    make_dir(&empty)?;
    let mount = detach(&empty, false)?;
    let closed = Attributes { read_only: true, ..Attributes::default() };
    set_attributes(mount.as_fd(), &closed)
        .map_err(|error| Error::host("cannot close an empty directory", error))?;
    Ok(mount)
}

/// Makes what was put together the root. The old one is gone afterwards.
pub(crate) fn enter_root() -> Result<()> {
    let failed = |error| Error::host("cannot change the root", error);
    rustix::process::chdir(ROOT).map_err(failed)?;
    // Stacks the old root on the new one, so that no directory is needed to put it.
    rustix::process::pivot_root(".", ".").map_err(failed)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)
}

/// Mounts a memory file system.
pub(crate) fn mount_tmpfs(target: &Path, options: &str) -> Result<()> {
    let options = CString::new(options).expect("made of numbers and constants");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", target, "tmpfs", flags, options.as_c_str()).map_err(|error| {
        Error::host(format!("cannot mount a tmpfs at `{}`", target.display()), error)
    })
}

/// Makes a directory that may be there already.
pub(crate) fn make_dir(path: &Path) -> Result<()> {
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(Error::host(format!("cannot make `{}`", path.display()), error)),
    }
}

/// Makes a mount point, with its parents, below the sandbox's own root.
pub(crate) fn make_mount_point(path: &Path, file: bool) -> Result<()> {
    let failed = |error: std::io::Error| {
        Error::host(format!("cannot make the mount point `{}`", path.display()), error)
    };
    let parent = path.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent).map_err(failed)?;
    if !file {
        return std::fs::create_dir_all(path).map_err(failed);
    }
    match rustix::fs::statat(CWD, path, AtFlags::empty()) {
        Ok(_) => Ok(()),
        Err(_) => std::fs::File::create(path).map(drop).map_err(failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_of_one_image_share_a_mount() {
        let paths = [
            ("/f/1/upper0", 7),
            ("/f/2/upper0", 7),
            ("/h/dirs/etc", 0),
            ("/l/root/a/fs", 0),
            ("/l/root/b/fs", 0),
            ("/l/root/c/fs", 0),
            ("/x", 0),
        ];
        let paths: Vec<(&Path, u32)> = paths.map(|(path, shift)| (Path::new(path), shift)).to_vec();
        let shown: Vec<(Option<&str>, &str)> = held(&paths)
            .iter()
            .map(|held| (held.base.and_then(Path::to_str), held.rest.to_str().unwrap()))
            .collect();
        assert_eq!(
            shown,
            [
                (Some("/f/1/upper0"), ""),
                (Some("/f/2/upper0"), ""),
                (Some("/h/dirs/etc"), ""),
                (Some("/l/root"), "a/fs"),
                (None, "b/fs"),
                (None, "c/fs"),
                (Some("/x"), ""),
            ]
        );
    }
}
