//! A workspace: a host directory shown copy-on-write, as the lower layer of an overlay.
//!
//! The child mounts it in its own namespaces, so nothing is left when the sandbox is gone. Only the
//! overlay can be reached from inside, never its two directories.

use crate::rootfs::{self, LayerSource};
use crate::{container_init, idmap};
use msb_spec::{Error, Ids, PlannedWorkspace, Result};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::root_dir::RootDir;
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The two directories of a workspace.
#[derive(Debug)]
pub(crate) struct WorkspaceLayers {
    host: LayerSource,
    changes: LayerSource,
}

/// Opens both directories with shifted ids: that of the host, where the owner appears as `user` and
/// other ids are unmapped, and that of the changes.
pub(crate) fn mount_shifted(
    workspace: &PlannedWorkspace,
    user: (u32, u32),
) -> Result<[OwnedFd; 2]> {
    let mount_error = |error: std::io::Error| mount_error(workspace, error);
    let found = rootfs::open_no_symlinks(&workspace.host)?;
    let owner = rustix::fs::fstat(&found).map_err(|error| mount_error(error.into()))?;
    let namespace = idmap::mapping_namespace((owner.st_uid, user.0, 1), (owner.st_gid, user.1, 1))?;
    // Mounts below it are not part of an overlay's layer.
    let host = rootfs::detach_fd(&found, false)?;
    let attributes = Attributes {
        read_only: true,
        no_suid: true,
        no_dev: true,
        private: true,
        id_map: Some(namespace.as_fd()),
        ..Attributes::default()
    };
    set_attributes(host.as_fd(), &attributes).map_err(|error| {
        mount_error(error)
            .hint("the file system must support idmapped mounts (ext4, xfs, btrfs, tmpfs)")
    })?;
    let changes = rootfs::detach(&workspace.changes, false)?;
    set_attributes(changes.as_fd(), &Attributes { private: true, ..Attributes::default() })
        .map_err(mount_error)?;
    Ok([host, changes])
}

/// Opens the two directories, while the host's root is visible.
pub(crate) fn open(
    workspace: &PlannedWorkspace,
    ids: &Ids,
    outside: &OwnedFd,
) -> Result<WorkspaceLayers> {
    if matches!(ids, Ids::Shifted { .. }) {
        let next =
            || container_init::receive(outside).map(|(_, mount)| LayerSource::Detached(mount));
        return Ok(WorkspaceLayers { host: next()?, changes: next()? });
    }
    let host = LayerSource::Open(rootfs::open_no_symlinks(&workspace.host)?);
    Ok(WorkspaceLayers { host, changes: LayerSource::open(&workspace.changes)? })
}

/// Mounts the overlay in the stage, and returns it as a detached mount.
pub(crate) fn mount(
    stage: &RootDir,
    workspace: &PlannedWorkspace,
    layers: &WorkspaceLayers,
) -> Result<OwnedFd> {
    let host = layer_fd(stage, &layers.host, "workspace-host")?;
    let changes = layer_fd(stage, &layers.changes, "workspace-changes")?;
    let (upper, work) = (PlannedWorkspace::UPPER, PlannedWorkspace::WORK);
    make_upper(&host, &changes, upper)
        .map_err(|error| Error::host("cannot make the directory for the changes", error))?;
    rootfs::make_dir_in(changes.as_fd(), work)?;
    rootfs::make_dir_in(stage.as_fd(), MERGED)?;
    let target = rootfs::in_stage(stage, Path::new(MERGED))?;
    let base = changes.as_fd();
    let uppers = rootfs::OverlayUpper::In { base, upper, work, volatile: false };
    rootfs::mount_overlay(&[host], uppers, &target, workspace.guest.as_str()).map_err(|error| {
        error.under(format!("cannot mount `{}` copy-on-write", workspace.host.display())).hint(
            "overlayfs takes no directory that something else is mounted below; \
             name one of a single local file system",
        )
    })?;
    // Resolved again, to get the overlay that was mounted there.
    let merged = rootfs::in_stage(stage, Path::new(MERGED))?;
    let tree = merged.detach(false).map_err(|error| mount_error(workspace, error))?;
    let attributes = Attributes { no_suid: true, no_dev: true, ..Attributes::default() };
    set_attributes(tree.as_fd(), &attributes).map_err(|error| mount_error(workspace, error))?;
    Ok(tree)
}

/// Mount point of the overlay in the stage.
const MERGED: &str = "workspace";

fn layer_fd(stage: &RootDir, source: &LayerSource, name: &str) -> Result<OwnedFd> {
    match source {
        LayerSource::Open(fd) => {
            fd.try_clone().map_err(|error| Error::host("cannot open the workspace", error))
        }
        LayerSource::Detached(mount) | LayerSource::InMount(mount, _) => {
            rootfs::attach_in_stage(stage, name, mount.as_fd())?;
            rootfs::in_stage(stage, Path::new(name)).map(OwnedFd::from)
        }
        LayerSource::InPreviousMount(_) | LayerSource::Unowned(_) | LayerSource::HostTree(_) => {
            Err(Error::invalid("a workspace needs a directory of its own"))
        }
    }
}

/// Creates the upper directory with the owner and mode of the host's directory as seen from inside,
/// because the root of an overlay takes them from there.
fn make_upper(host: &OwnedFd, changes: &OwnedFd, name: &str) -> std::io::Result<()> {
    match rustix::fs::mkdirat(changes, name, Mode::from_raw_mode(0o700)) {
        Ok(()) => {}
        Err(rustix::io::Errno::EXIST) => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    let stat = rustix::fs::fstat(host)?;
    let made = rustix::fs::statat(changes, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if (stat.st_uid, stat.st_gid) != (made.st_uid, made.st_gid) {
        let (uid, gid) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
        // An unmapped owner cannot be set; then root owns it.
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let _ = rustix::fs::chownat(changes, name, Some(uid), Some(gid), flags);
    }
    let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
    rustix::fs::chmodat(changes, name, mode, AtFlags::empty())?;
    Ok(())
}

fn mount_error(workspace: &PlannedWorkspace, error: std::io::Error) -> Error {
    Error::host(format!("cannot mount `{}` copy-on-write", workspace.host.display()), error)
}
