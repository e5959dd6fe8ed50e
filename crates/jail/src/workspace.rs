//! A host directory shown copy-on-write: an overlay whose lower layer is that directory.
//!
//! It is put together by the child, in its own namespaces, so that nothing of it is left when the
//! sandbox is gone. Only the overlay can be reached from inside, never the two directories that it
//! is made of.

use crate::layers::{self, Source};
use crate::{idmap, inside};
use msb_spec::{Error, Ids, PlannedWorkspace, Result};
use msb_sys::mount::{Attributes, set_attributes};
use msb_sys::root_dir::RootDir;
use rustix::fs::{AtFlags, Gid, Mode, Uid};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// The two directories that a workspace is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    host: Source,
    changes: Source,
}

/// What only the outside can do where ids are shifted: the host's directory, whose owner is `user`
/// inside and where nobody else exists, and the one that holds the changes.
pub(crate) fn shifted(workspace: &PlannedWorkspace, user: (u32, u32)) -> Result<[OwnedFd; 2]> {
    let about = |error: std::io::Error| about(workspace, error);
    let found = layers::found(&workspace.host)?;
    let owner = rustix::fs::fstat(&found).map_err(|error| about(error.into()))?;
    let namespace = idmap::carrier((owner.st_uid, user.0, 1), (owner.st_gid, user.1, 1))?;
    // What is mounted below it is not part of an overlay's layer.
    let host = layers::detach_found(&found, false)?;
    let closed = Attributes {
        read_only: true,
        no_suid: true,
        no_dev: true,
        private: true,
        id_map: Some(namespace.as_fd()),
        ..Attributes::default()
    };
    set_attributes(host.as_fd(), &closed).map_err(|error| {
        about(error).hint("the file system must support idmapped mounts (ext4, xfs, btrfs, tmpfs)")
    })?;
    let changes = layers::detach(&workspace.changes, false)?;
    set_attributes(changes.as_fd(), &Attributes { private: true, ..Attributes::default() })
        .map_err(about)?;
    Ok([host, changes])
}

/// Takes hold of the two directories, while the host can still be seen.
pub(crate) fn take(workspace: &PlannedWorkspace, ids: &Ids, outside: &OwnedFd) -> Result<Parts> {
    if matches!(ids, Ids::Shifted { .. }) {
        let next = || inside::receive(outside).map(|(_, mount)| Source::Detached(mount));
        return Ok(Parts { host: next()?, changes: next()? });
    }
    let host = Source::Open(layers::found(&workspace.host)?);
    Ok(Parts { host, changes: Source::open(&workspace.changes)? })
}

/// Mounts the overlay where the root is put together, and gives it to be attached anywhere.
pub(crate) fn mount(
    stage: &RootDir,
    workspace: &PlannedWorkspace,
    parts: &Parts,
) -> Result<OwnedFd> {
    let host = place(stage, &parts.host, "workspace-host")?;
    let changes = place(stage, &parts.changes, "workspace-changes")?;
    let (upper, work) = (PlannedWorkspace::UPPER, PlannedWorkspace::WORK);
    make_upper(&host, &changes, upper)
        .map_err(|error| Error::host("cannot make a place for the changes", error))?;
    layers::make_dir_in(changes.as_fd(), work)?;
    layers::make_dir_in(stage.as_fd(), MERGED)?;
    let target = layers::in_stage(stage, Path::new(MERGED))?;
    let base = changes.as_fd();
    let uppers = layers::Uppers::In { base, upper, work, volatile: false };
    layers::mount_overlay(&[host], uppers, &target, workspace.guest.as_str()).map_err(|error| {
        error.under(format!("cannot show `{}` copy-on-write", workspace.host.display())).hint(
            "overlayfs takes no directory that something else is mounted below; \
             name one of a single local file system",
        )
    })?;
    // What was mounted there since.
    let merged = layers::in_stage(stage, Path::new(MERGED))?;
    let tree = merged.detach(false).map_err(|error| about(workspace, error))?;
    let closed = Attributes { no_suid: true, no_dev: true, ..Attributes::default() };
    set_attributes(tree.as_fd(), &closed).map_err(|error| about(workspace, error))?;
    Ok(tree)
}

/// The overlay, in the stage.
const MERGED: &str = "workspace";

fn place(stage: &RootDir, source: &Source, name: &str) -> Result<OwnedFd> {
    match source {
        Source::Open(fd) => {
            fd.try_clone().map_err(|error| Error::host("cannot open the workspace", error))
        }
        Source::Detached(mount) | Source::Holding(mount, _) => {
            layers::show_in_stage(stage, name, mount.as_fd())?;
            layers::in_stage(stage, Path::new(name)).map(OwnedFd::from)
        }
        Source::InSame(_) | Source::Strange(_) => {
            Err(Error::invalid("a workspace is a directory of its own"))
        }
    }
}

/// The root of an overlay has the owner and the mode of its upper directory, which is made as the
/// host's directory is seen from inside.
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
        // A directory of somebody else's belongs to nobody inside, and then this is root's.
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let _ = rustix::fs::chownat(changes, name, Some(uid), Some(gid), flags);
    }
    let mode = Mode::from_raw_mode(stat.st_mode & 0o777);
    rustix::fs::chmodat(changes, name, mode, AtFlags::empty())?;
    Ok(())
}

fn about(workspace: &PlannedWorkspace, error: std::io::Error) -> Error {
    Error::host(format!("cannot show `{}` copy-on-write", workspace.host.display()), error)
}
