//! The sandbox's root: overlays of read-only layers below private writable directories.

use msb_spec::{Error, Overlay, Result, Upper};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::process;
use msb_sys::root_dir::{PathInRoot, RootDir};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, OpenTreeFlags, UnmountFlags,
};
use std::ffi::CString;
use std::fmt::Write as _;
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
    /// Reached by its path, and shown as an id that owns nothing there sees it.
    Strange(OwnedFd),
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

/// Attaches a detached mount over what was found in a root; `path` is for the error alone.
pub(crate) fn attach(mount: BorrowedFd<'_>, target: &PathInRoot, path: &str) -> Result<()> {
    let failed = |error| Error::host(format!("cannot mount at `{path}`"), error);
    target.cover_with(mount).map_err(failed)
}

/// Where the root is put together. Any directory will do: it is covered by a mount that only
/// this namespace has, and everything that lies below it was opened before.
const STAGE: &str = "/tmp";
/// The root to be, in the stage.
pub(crate) const ROOT: &str = "root";

/// A memory file system in which a root is put together.
pub(crate) fn make_stage(size: &str) -> Result<RootDir> {
    let stage = file_system("tmpfs", &[("mode", "755"), ("size", size)], PLAIN)?;
    let place = RootDir::current().and_then(|root| root.find(STAGE));
    let place = place.map_err(|error| Error::host(format!("cannot open `{STAGE}`"), error))?;
    attach(stage.as_fd(), &place, STAGE)?;
    Ok(RootDir::of(stage))
}

/// Puts the overlays together in a stage, ready to become the root.
///
/// `sources` has the lower directories of each overlay; `writable` is where a persistent
/// sandbox keeps its upper layers.
pub(crate) fn build_root(
    overlays: &[Overlay],
    sources: &[Vec<Source>],
    upper: &Upper,
    writable: Option<&Source>,
) -> Result<RootDir> {
    let stage = match upper {
        Upper::Memory { size } => make_stage(&size.to_string())?,
        Upper::Directory { .. } | Upper::Disk { .. } => make_stage("1m")?,
    };
    let (mut attached, mut strange) = (0, 0);
    let mut place = |source: &Source| -> Result<OwnedFd> {
        match source {
            Source::Strange(fd) => {
                strange += 1;
                seen_by_stranger(&stage, fd, &format!("strange{strange}"))
            }
            Source::Open(fd) => {
                fd.try_clone().map_err(|error| Error::host("cannot open a layer", error))
            }
            Source::Detached(mount) => place_at(&stage, &mut attached, mount, Path::new("")),
            Source::Holding(mount, rest) => place_at(&stage, &mut attached, mount, rest),
            Source::InSame(rest) => {
                in_stage(&stage, &Path::new(&format!("layer{attached}")).join(rest))
                    .map(OwnedFd::from)
            }
        }
    };
    let writable = match writable {
        Some(source) => Some(place(source)?),
        None => None,
    };
    let base = writable.as_ref().map_or(stage.as_fd(), |writable| writable.as_fd());
    make_dir_in(stage.as_fd(), ROOT)?;
    for (index, (overlay, sources)) in overlays.iter().zip(sources).enumerate() {
        let lowers = sources.iter().map(&mut place).collect::<Result<Vec<_>>>()?;
        let (upper, work) = (format!("upper{index}"), format!("work{index}"));
        make_dir_in(base, &upper)?;
        make_dir_in(base, &work)?;
        // The mount point lies in the overlay below: only the `host` image has more than one. A
        // snapshot of it brings that overlay's upper layer, so a link there is refused.
        let target = Path::new(ROOT).join(overlay.at.trim_start_matches('/'));
        let target = in_stage(&stage, &target)?;
        let volatile = writable.is_none();
        let uppers = Uppers::In { base, upper: &upper, work: &work, volatile };
        mount_overlay(&lowers, uppers, &target, &overlay.at)?;
    }
    Ok(stage)
}

/// Something of ours in the stage. No part of its path is a link.
pub(crate) fn in_stage(stage: &RootDir, path: &Path) -> Result<PathInRoot> {
    stage
        .find_unlinked(path)
        .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
}

/// Attaches a mount where the root is put together, and opens what is meant in it.
fn place_at(
    stage: &RootDir,
    attached: &mut usize,
    mount: &OwnedFd,
    rest: &Path,
) -> Result<OwnedFd> {
    *attached += 1;
    let name = format!("layer{attached}");
    show_in_stage(stage, &name, mount.as_fd())?;
    in_stage(stage, &Path::new(&name).join(rest)).map(OwnedFd::from)
}

/// Attaches a mount at a new directory of the stage.
pub(crate) fn show_in_stage(stage: &RootDir, name: &str, mount: BorrowedFd<'_>) -> Result<()> {
    make_dir_in(stage.as_fd(), name)?;
    attach(mount, &in_stage(stage, Path::new(name))?, name)
}

/// A file of the host's that is not for everybody may belong to the user who runs msb, and root inside
/// is that user. So the tree is seen through an overlay whose mounter is another id of the sandbox, one
/// that owns nothing of the host: the kernel opens the files below as that one.
///
/// Not where the tree is an overlay itself, as in a container: the kernel stacks two and no more.
pub(crate) fn seen_by_stranger(stage: &RootDir, tree: &OwnedFd, name: &str) -> Result<OwnedFd> {
    /// The first that is granted beside the user's own.
    const STRANGER: u32 = 1;
    /// An overlay without an upper directory has two lower ones.
    const EMPTY: &str = "empty";
    let about = |error| Error::host("cannot show the host's files", error);
    let again = || tree.try_clone().map_err(about);
    if rustix::fs::fstatfs(tree).map_err(|error| about(error.into()))?.f_type == OVERLAY_MAGIC {
        return again();
    }
    make_dir_in(stage.as_fd(), EMPTY)?;
    make_dir_in(stage.as_fd(), name)?;
    let lowers = [again()?, in_stage(stage, Path::new(EMPTY))?.into()];
    let target = in_stage(stage, Path::new(name))?;
    let mount = || mount_overlay(&lowers, Uppers::None, &target, name);
    process::with_file_ids(STRANGER, mount).map_err(about)??;
    in_stage(stage, Path::new(name)).map(OwnedFd::from)
}

/// The number by which the kernel knows overlayfs.
const OVERLAY_MAGIC: rustix::fs::FsWord = 0x794c_7630;

fn open_layer(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
}

/// What an overlay writes to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Uppers<'a> {
    /// Nothing: it is only read.
    None,
    /// Two directories of an open one, where what is written need not survive a power cut if it is
    /// `volatile`.
    In { base: BorrowedFd<'a>, upper: &'a str, work: &'a str, volatile: bool },
}

/// Mounts an overlay; `at` is for the error alone.
pub(crate) fn mount_overlay(
    lowers: &[OwnedFd],
    uppers: Uppers<'_>,
    target: &PathInRoot,
    at: &str,
) -> Result<()> {
    // The kernel takes one page of options and cuts the rest off. Seen from here a layer is a
    // number, so that as many fit as an image may have.
    let here = |path: &str| {
        rustix::process::chdir(path).map_err(|error| Error::host("cannot open a layer", error))
    };
    here("/proc/self/fd")?;
    let lowers: Vec<String> = lowers.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let mut options = format!("userxattr,lowerdir={}", lowers.join(":"));
    let mut flags = MountFlags::NODEV;
    match uppers {
        Uppers::None => flags |= MountFlags::RDONLY,
        Uppers::In { base, upper, work, volatile } => {
            let base = base.as_raw_fd();
            let _ = write!(options, ",upperdir={base}/{upper},workdir={base}/{work}");
            options.push_str(if volatile { ",volatile" } else { "" });
        }
    }
    let options = CString::new(options).expect("made of numbers and constants");
    let target = target.as_fd().as_raw_fd().to_string();
    rustix::mount::mount("overlay", target, "overlay", flags, options.as_c_str()).map_err(
        |error| {
            Error::host(format!("cannot mount the root filesystem at `{at}`"), error)
                .hint("`msb doctor` tells whether this host allows overlay mounts")
        },
    )?;
    here("/")
}

/// An empty directory that cannot be written, to cover others with.
pub(crate) fn nothing(stage: &RootDir) -> Result<OwnedFd> {
    make_dir_in(stage.as_fd(), "nothing")?;
    let failed = |error| Error::host("cannot close an empty directory", error);
    let mount = in_stage(stage, Path::new("nothing"))?.detach(false).map_err(failed)?;
    let closed = Attributes { read_only: true, ..Attributes::default() };
    set_attributes(mount.as_fd(), &closed).map_err(failed)?;
    Ok(mount)
}

/// Makes what was put together the root. The old one is gone afterwards.
pub(crate) fn enter_root(stage: RootDir) -> Result<()> {
    let failed = |error| Error::host("cannot change the root", error);
    in_stage(&stage, Path::new(ROOT))?
        .enter()
        .map_err(|error| Error::host("cannot change the root", error))?;
    // It is part of the old one.
    drop(stage);
    // Stacks the old root on the new one, so that no directory is needed to put it.
    rustix::process::pivot_root(".", ".").map_err(failed)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)
}

/// How a memory file system is mounted.
pub(crate) const PLAIN: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// A new mount of a file system, not attached yet.
pub(crate) fn file_system(
    name: &str,
    options: &[(&str, &str)],
    attributes: MountAttrFlags,
) -> Result<OwnedFd> {
    let make = || -> rustix::io::Result<OwnedFd> {
        let context = rustix::mount::fsopen(name, FsOpenFlags::FSOPEN_CLOEXEC)?;
        rustix::mount::fsconfig_set_string(context.as_fd(), "source", name)?;
        for (key, value) in options {
            rustix::mount::fsconfig_set_string(context.as_fd(), *key, *value)?;
        }
        rustix::mount::fsconfig_create(context.as_fd())?;
        rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    };
    make().map_err(|error| Error::host(format!("cannot mount {name}"), error))
}

/// Makes a directory that may be there already, in one of ours.
pub(crate) fn make_dir_in(directory: BorrowedFd<'_>, name: &str) -> Result<()> {
    match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(Error::host(format!("cannot make `{name}`"), error)),
    }
}

/// Makes a mount point for a directory or a file, with what is above it, in the sandbox's own root.
pub(crate) fn make_mount_point(root: &RootDir, path: &str, file: bool) -> Result<PathInRoot> {
    let made = if file { root.make_file(path) } else { root.make_directories(path) };
    made.map_err(|error| Error::host(format!("cannot make the mount point `{path}`"), error))
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
