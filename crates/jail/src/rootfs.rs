//! Assembles the root of a sandbox: overlays of read-only layers with private writable directories.

use crate::host_submounts::{HostSubmounts, SplitTree};
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

/// Where a layer's directory comes from.
#[derive(Debug)]
pub(crate) enum LayerSource {
    /// Opened by its path, as it is.
    Open(OwnedFd),
    /// A detached mount with matching ids, prepared by the worker.
    Detached(OwnedFd),
    /// A detached mount that holds several layers, and the path of this one in it.
    InMount(OwnedFd, PathBuf),
    /// Another layer in the mount of the previous one.
    InPreviousMount(PathBuf),
    /// Opened by path, and shown as an id sees it that owns nothing there.
    Unowned(OwnedFd),
    /// A tree of the host without the mounts below it, prepared by the worker.
    HostTree(OwnedFd),
}

/// A mount with shifted ids, and the layer in it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LayerMount<'a> {
    /// The mounted directory; none if it is that of the previous layer.
    pub(crate) base: Option<&'a Path>,
    /// Path of the layer below it; empty if it is the layer itself.
    pub(crate) below: &'a Path,
    /// The host id of the layer's root; 0 for layers of an image.
    pub(crate) shift: u32,
}

/// Groups layers into few mounts. Layers of an image lie side by side, two levels below one
/// directory, and each mount costs as much as twenty system calls.
pub(crate) fn plan_layer_mounts<'a>(owned: &[(&'a Path, u32)]) -> Vec<LayerMount<'a>> {
    // A layer that a sandbox wrote has ids of its own, so it is mounted alone.
    let parent = |(path, shift): &(&'a Path, u32)| match shift {
        0 => path.parent().and_then(Path::parent),
        _ => None,
    };
    let mut mounts: Vec<LayerMount<'a>> = Vec::new();
    let mut last = None;
    for (index, layer) in owned.iter().enumerate() {
        let &(path, shift) = layer;
        let own = parent(layer);
        let next = owned.get(index + 1).and_then(parent);
        let shared = own.filter(|_| own == last || own == next);
        mounts.push(match shared {
            Some(parent) => LayerMount {
                base: (last != Some(parent)).then_some(parent),
                below: path.strip_prefix(parent).unwrap_or(path),
                shift,
            },
            None => LayerMount { base: Some(path), below: Path::new(""), shift },
        });
        last = shared;
    }
    mounts
}

impl LayerSource {
    /// Opens a directory by path, in the mount namespace that it will be used in.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        open_layer(path).map(Self::Open)
    }
}

/// Clones a mount as a private tree that is not attached anywhere.
pub(crate) fn detach(path: &Path, recursive: bool) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(CWD, path, flags)
        .map_err(|error| Error::host(format!("cannot open the mount `{}`", path.display()), error))
}

/// Opens a path of the user. Planning has resolved every symlink, so one that is there now was put
/// there later, perhaps by a sandbox, and is refused.
pub(crate) fn open_no_symlinks(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).map_err(
        |error| {
            let error = Error::host(format!("cannot open `{}`", path.display()), error);
            error.hint("it must exist, and no part of the path may have become a symlink")
        },
    )
}

/// Opens a path of our state directory, which may be behind a symlink.
pub(crate) fn open_state_path(path: &Path) -> Result<OwnedFd> {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
}

/// Clones the mount at an open descriptor, detached.
pub(crate) fn detach_fd(fd: &OwnedFd, recursive: bool) -> Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    if recursive {
        flags |= OpenTreeFlags::AT_RECURSIVE;
    }
    rustix::mount::open_tree(fd, "", flags)
        .map_err(|error| Error::host("cannot clone a mount", error))
}

/// Clones the mount at a path, detached. The last component must not be a symlink.
pub(crate) fn detach_nofollow(path: &Path) -> Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    rustix::mount::open_tree(CWD, path, flags)
        .map_err(|error| Error::host(format!("cannot open the mount `{}`", path.display()), error))
}

/// Attaches a detached mount at `target`; `path` is only used in the error.
pub(crate) fn attach(mount: BorrowedFd<'_>, target: &PathInRoot, path: &str) -> Result<()> {
    let failed = |error| Error::host(format!("cannot mount at `{path}`"), error);
    target.cover_with(mount).map_err(failed)
}

/// Where the root is assembled. Any directory will do: it is covered by a mount of this namespace
/// only, and everything below it was opened before.
const STAGE: &str = "/tmp";
/// Name of the future root in the stage.
pub(crate) const ROOT: &str = "root";

/// Mounts the tmpfs in which a root is assembled.
pub(crate) fn make_stage(size: &str) -> Result<RootDir> {
    let stage = new_mount("tmpfs", &[("mode", "755"), ("size", size)], NOSUID_NODEV)?;
    let mount_point = RootDir::current().and_then(|root| root.find(STAGE));
    let mount_point =
        mount_point.map_err(|error| Error::host(format!("cannot open `{STAGE}`"), error))?;
    attach(stage.as_fd(), &mount_point, STAGE)?;
    Ok(RootDir::of(stage))
}

/// Assembles the overlays in a stage, ready to become the root.
///
/// `sources` has the lower directories of each overlay; `writable` is where a persistent sandbox
/// keeps its upper directories. `submounts` says which trees of the host have to be split.
pub(crate) fn build_root(
    overlays: &[Overlay],
    sources: &[Vec<LayerSource>],
    upper: &Upper,
    writable: Option<&LayerSource>,
    submounts: &HostSubmounts,
) -> Result<RootDir> {
    let stage = match upper {
        Upper::Memory { size } => make_stage(&size.to_string())?,
        Upper::Directory { .. } | Upper::Disk { .. } => make_stage("1m")?,
    };
    let (mut attached, mut unowned, mut host_trees) = (0, 0, 0);
    let mut layer_fd = |source: &LayerSource| -> Result<OwnedFd> {
        match source {
            LayerSource::Unowned(fd) => {
                unowned += 1;
                mount_as_unowned(&stage, fd, &format!("unowned{unowned}"))
            }
            LayerSource::HostTree(mount) => {
                host_trees += 1;
                let name = format!("host{host_trees}");
                attach_in_stage(&stage, &name, mount.as_fd())?;
                in_stage(&stage, Path::new(&name)).map(OwnedFd::from)
            }
            LayerSource::Open(fd) => {
                fd.try_clone().map_err(|error| Error::host("cannot open a layer", error))
            }
            LayerSource::Detached(mount) => {
                attach_layer(&stage, &mut attached, mount, Path::new(""))
            }
            LayerSource::InMount(mount, below) => attach_layer(&stage, &mut attached, mount, below),
            LayerSource::InPreviousMount(below) => {
                in_stage(&stage, &Path::new(&format!("layer{attached}")).join(below))
                    .map(OwnedFd::from)
            }
        }
    };
    let writable = match writable {
        Some(source) => Some(layer_fd(source)?),
        None => None,
    };
    let base = writable.as_ref().map_or(stage.as_fd(), |writable| writable.as_fd());
    make_dir_in(stage.as_fd(), ROOT)?;
    let volatile = writable.is_none();
    for (index, (overlay, sources)) in overlays.iter().zip(sources).enumerate() {
        if let Some(host) = SplitTree::host_tree(submounts, overlay, sources) {
            let split = SplitTree { submounts, overlay, sources, base, index, volatile };
            split.mount(&stage, host)?;
            continue;
        }
        let lowers = sources.iter().map(&mut layer_fd).collect::<Result<Vec<_>>>()?;
        let (upper, work) = (format!("upper{index}"), format!("work{index}"));
        make_dir_in(base, &upper)?;
        make_dir_in(base, &work)?;
        // The mount point is in the previous overlay; only the `host` image has several. A snapshot
        // may provide that overlay's upper layer, so a symlink is refused.
        let target = Path::new(ROOT).join(overlay.at.trim_start_matches('/'));
        let target = in_stage(&stage, &target)?;
        let uppers = OverlayUpper::In { base, upper: &upper, work: &work, volatile };
        mount_overlay(&lowers, uppers, &target, &overlay.at)?;
    }
    Ok(stage)
}

/// Resolves a path in the stage without following symlinks.
pub(crate) fn in_stage(stage: &RootDir, path: &Path) -> Result<PathInRoot> {
    stage
        .find_unlinked(path)
        .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
}

/// Attaches a layer's mount in the stage and opens the layer in it.
fn attach_layer(
    stage: &RootDir,
    attached: &mut usize,
    mount: &OwnedFd,
    below: &Path,
) -> Result<OwnedFd> {
    *attached += 1;
    let name = format!("layer{attached}");
    attach_in_stage(stage, &name, mount.as_fd())?;
    in_stage(stage, &Path::new(&name).join(below)).map(OwnedFd::from)
}

/// Attaches a mount at a new directory of the stage.
pub(crate) fn attach_in_stage(stage: &RootDir, name: &str, mount: BorrowedFd<'_>) -> Result<()> {
    make_dir_in(stage.as_fd(), name)?;
    attach(mount, &in_stage(stage, Path::new(name))?, name)
}

/// Shows a host tree without the private files of the user that runs msb.
///
/// Root inside is that user outside. So the tree is mounted through an overlay by another id of the
/// sandbox that owns no host files; the kernel opens lower files with the mounter's credentials.
///
/// An overlay (as the root in a container) is returned as it is, because the kernel stacks at most
/// two.
pub(crate) fn mount_as_unowned(stage: &RootDir, tree: &OwnedFd, name: &str) -> Result<OwnedFd> {
    /// The first subordinate id.
    const UNOWNED_ID: u32 = 1;
    /// An overlay without an upper directory needs two lower ones.
    const EMPTY: &str = "empty";
    let about = |error| Error::host("cannot mount the host's files", error);
    let again = || tree.try_clone().map_err(about);
    if rustix::fs::fstatfs(tree).map_err(|error| about(error.into()))?.f_type == OVERLAY_MAGIC {
        return again();
    }
    make_dir_in(stage.as_fd(), EMPTY)?;
    make_dir_in(stage.as_fd(), name)?;
    let lowers = [again()?, in_stage(stage, Path::new(EMPTY))?.into()];
    let target = in_stage(stage, Path::new(name))?;
    let mount = || mount_overlay(&lowers, OverlayUpper::None, &target, name);
    process::with_file_ids(UNOWNED_ID, mount).map_err(about)??;
    in_stage(stage, Path::new(name)).map(OwnedFd::from)
}

/// `f_type` of overlayfs, from statfs(2).
const OVERLAY_MAGIC: rustix::fs::FsWord = 0x794c_7630;

fn open_layer(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Error::host(format!("cannot open `{}`", path.display()), error))
}

/// Where an overlay stores its changes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum OverlayUpper<'a> {
    /// A read-only overlay without an upper directory.
    None,
    /// `upper` and `work` below `base`. A `volatile` overlay skips syncs and may be lost in a power
    /// cut.
    In { base: BorrowedFd<'a>, upper: &'a str, work: &'a str, volatile: bool },
    /// Directories that are open already, with the same meaning as in `In`.
    Open { upper: BorrowedFd<'a>, work: BorrowedFd<'a>, volatile: bool },
}

/// Mounts an overlay; `at` is only used in the error.
pub(crate) fn mount_overlay(
    lowers: &[OwnedFd],
    uppers: OverlayUpper<'_>,
    target: &PathInRoot,
    at: &str,
) -> Result<()> {
    // The kernel truncates mount options at one page. With /proc/self/fd as working directory a
    // layer is just a number, so that all layers of an image fit.
    let here = |path: &str| {
        rustix::process::chdir(path).map_err(|error| Error::host("cannot open a layer", error))
    };
    here("/proc/self/fd")?;
    let lowers: Vec<String> = lowers.iter().map(|fd| fd.as_raw_fd().to_string()).collect();
    let mut options = format!("userxattr,lowerdir={}", lowers.join(":"));
    let mut flags = MountFlags::NODEV;
    match uppers {
        OverlayUpper::None => flags |= MountFlags::RDONLY,
        OverlayUpper::In { base, upper, work, volatile } => {
            let base = base.as_raw_fd();
            let _ = write!(options, ",upperdir={base}/{upper},workdir={base}/{work}");
            options.push_str(if volatile { ",volatile" } else { "" });
        }
        OverlayUpper::Open { upper, work, volatile } => {
            let (upper, work) = (upper.as_raw_fd(), work.as_raw_fd());
            let _ = write!(options, ",upperdir={upper},workdir={work}");
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

/// A read-only empty directory, for masking others.
pub(crate) fn empty_dir(stage: &RootDir) -> Result<OwnedFd> {
    make_dir_in(stage.as_fd(), "nothing")?;
    let failed = |error| Error::host("cannot mount an empty directory", error);
    let mount = in_stage(stage, Path::new("nothing"))?.detach(false).map_err(failed)?;
    let read_only = Attributes { read_only: true, ..Attributes::default() };
    set_attributes(mount.as_fd(), &read_only).map_err(failed)?;
    Ok(mount)
}

/// Pivots to the assembled root. The old root is unmounted.
pub(crate) fn enter_root(stage: RootDir) -> Result<()> {
    let failed = |error| Error::host("cannot change the root", error);
    in_stage(&stage, Path::new(ROOT))?
        .enter()
        .map_err(|error| Error::host("cannot change the root", error))?;
    // The stage is part of the old root.
    drop(stage);
    // Stacks the old root on the new one, so that no directory is needed for it.
    rustix::process::pivot_root(".", ".").map_err(failed)?;
    rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)
}

/// Attributes of tmpfs mounts.
pub(crate) const NOSUID_NODEV: MountAttrFlags =
    MountAttrFlags::MOUNT_ATTR_NOSUID.union(MountAttrFlags::MOUNT_ATTR_NODEV);

/// Creates a mount of a new file system, detached.
pub(crate) fn new_mount(
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

/// Creates a directory in one of ours; it may exist.
pub(crate) fn make_dir_in(directory: BorrowedFd<'_>, name: &str) -> Result<()> {
    match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(error) => Err(Error::host(format!("cannot make `{name}`"), error)),
    }
}

/// Creates a mount point with its parents in the sandbox's root.
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
        let actual: Vec<(Option<&str>, &str)> = plan_layer_mounts(&paths)
            .iter()
            .map(|mount| (mount.base.and_then(Path::to_str), mount.below.to_str().unwrap()))
            .collect();
        assert_eq!(
            actual,
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
