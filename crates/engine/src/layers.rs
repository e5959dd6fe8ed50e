//! Writable layers of sandboxes that do not run: create, replace, freeze.
//!
//! A layer is replaced together with the Plan. The next Plan is written to a file beside the
//! present one; the `rename(2)` of the layer is the commit point. The next holder of the lock
//! completes the remaining steps, so a partial change is never visible.

use crate::host::HostUser;
use crate::store::{self, LockedSandbox};
use crate::{disk, workspace};
use msb_spec::{Error, Isolation, Plan, Result, Upper, state};
use msb_sys::files;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Creates the writable layer in the directory of a sandbox. It is renamed into place when it is
/// complete.
pub(crate) fn make(plan: &Plan, directory: &Path) -> Result<()> {
    if let Upper::Memory { .. } = plan.rootfs.upper {
        return Ok(());
    }
    let about = |error: io::Error| Error::host("cannot make the writable layer", error);
    let temp = directory.join(NEW_LAYER);
    // Left by a process that was killed here.
    match fs::symlink_metadata(&temp) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(&temp).map_err(about)?,
        Ok(_) => remove_file(&temp).map_err(about)?,
        Err(_) => {}
    }
    let (uid, gid) = plan.ids.root();
    let size = plan.limits.disk.map_or(msb_spec::Bytes::mib(8), |limit| limit.value);
    match &plan.rootfs.upper {
        Upper::Memory { .. } | Upper::Directory { .. } => {
            fs::create_dir(&temp).map_err(about)?;
            if HostUser::current().is_root() {
                std::os::unix::fs::chown(&temp, Some(uid), Some(gid)).map_err(about)?;
            }
        }
        Upper::Disk { .. } if plan.isolation == Isolation::Vm => {
            msb_image::blank_disk(&temp, size.0)?;
        }
        Upper::Disk { .. } => disk::make(&temp, size, uid)?,
    }
    fs::rename(temp, directory.join(layer_names(plan).0)).map_err(about)
}

/// The name of a writable layer while it is being created.
const NEW_LAYER: &str = "layer.new";

/// Replaces the Plan and the writable layer; the new layer is empty. The old layer moves to the
/// topmost layer path of the next Plan, or stays for [`leftovers`]. `discard_workspace` removes the
/// changes in the workspace as well.
pub(crate) fn replace(claim: &LockedSandbox, next: &Plan, discard_workspace: bool) -> Result<()> {
    let about = |error: io::Error| {
        let text = format!("cannot change the layers of sandbox `{}`", next.name);
        let full =
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let error = Error::host(text, error);
        if full { error.hint("free some space and try again") } else { error }
    };
    let pending = claim.directory.join(state::NEXT_PLAN);
    let write = || -> io::Result<()> {
        // Left by a process that was killed before the commit point.
        remove_file(&pending)?;
        let mut file = store::create_private_file(&pending)?;
        file.write_all(&serde_json::to_vec(next).expect("our own types always serialise"))?;
        files::write_before_rename(&file)?;
        if discard_workspace && next.workspace.is_some() {
            store::create_private_file(&claim.directory.join(state::FORGET_WORKSPACE))?;
        }
        let (layer, old) = layer_names(next);
        fs::rename(claim.directory.join(layer), claim.directory.join(old))
    };
    write().map_err(|error| {
        msb_log::warn_on_failure!(finish_pending(claim), "cannot finish a pending snapshot");
        about(error)
    })?;
    finish_pending(claim)
}

/// Completes an interrupted [`replace`], or removes its pending Plan if the commit point was not
/// reached.
pub(crate) fn finish_pending(claim: &LockedSandbox) -> Result<()> {
    let pending = claim.directory.join(state::NEXT_PLAN);
    let at = |name: &str| claim.directory.join(name);
    let old = if exists(&at(state::OLD_DISK)) { at(state::OLD_DISK) } else { at(state::OLD_LAYER) };
    let about = |error: io::Error| {
        Error::host(format!("cannot finish a change in `{}`", claim.directory.display()), error)
    };
    if !exists(&old) {
        let discard_workspace = claim.directory.join(state::FORGET_WORKSPACE);
        return remove_file(&pending).and_then(|()| remove_file(&discard_workspace)).map_err(about);
    }
    let name = claim.directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = msb_spec::Name::parse(name)?;
    if let Some(next) = store::read_plan(&pending, &name)? {
        if !exists(&at(layer_names(&next).0)) {
            make(&next, &claim.directory)?;
        }
        discard_workspace_changes(claim, &next)?;
        fs::rename(&pending, claim.directory.join(state::PLAN)).map_err(about)?;
    }
    let plan = store::read_plan(&claim.directory.join(state::PLAN), &name)?;
    match plan.as_ref().and_then(topmost).filter(|frozen| !exists(frozen)) {
        Some(frozen) => {
            // A disk is a file in a frozen directory; a layer is that directory itself.
            if let Some(parent) = frozen.parent().filter(|parent| !exists(parent)) {
                store::create_private_dir(parent).map_err(about)?;
            }
            fs::rename(&old, frozen).map_err(about)
        }
        None => Ok(()),
    }
}

/// The names of the writable layer and of a replaced one.
fn layer_names(plan: &Plan) -> (&'static str, &'static str) {
    match plan.rootfs.upper {
        Upper::Disk { .. } => (state::DISK, state::OLD_DISK),
        Upper::Directory { .. } | Upper::Memory { .. } => (state::LAYER, state::OLD_LAYER),
    }
}

/// Moves the changes in the workspace away, if the marker file asks for it, and starts with none.
fn discard_workspace_changes(claim: &LockedSandbox, next: &Plan) -> Result<()> {
    let about = |error: io::Error| Error::host("cannot discard the workspace changes", error);
    let at = |name: &str| claim.directory.join(name);
    if !exists(&at(state::FORGET_WORKSPACE)) {
        return Ok(());
    }
    let (changes, old) = (at(state::WORKSPACE), at(state::OLD_WORKSPACE));
    if exists(&changes) && !exists(&old) {
        fs::rename(&changes, &old).map_err(about)?;
    }
    if let Some(planned) = &next.workspace {
        // Left by a process that was killed here. The baseline of the host files is taken anew.
        for begun in [&changes, &at(state::REVIEW)] {
            store::remove_tree(begun).map_err(about)?;
        }
        workspace::fill(next, planned, &claim.directory)?;
    }
    remove_file(&at(state::FORGET_WORKSPACE)).map_err(about)
}

/// The layers and workspace changes that the last replacement has left to be removed.
pub(crate) fn leftovers(claim: &LockedSandbox) -> Vec<PathBuf> {
    let layer_names = [state::OLD_LAYER, state::OLD_DISK, state::OLD_WORKSPACE];
    layer_names.iter().map(|name| claim.directory.join(name)).filter(|old| exists(old)).collect()
}

/// The path of the topmost layer that this sandbox has written itself.
fn topmost(plan: &Plan) -> Option<PathBuf> {
    let own = plan.rootfs.own > 0;
    if let Some(machine) = &plan.machine {
        return machine.written.first().filter(|_| own).cloned();
    }
    let lower = plan.rootfs.overlays.first()?.lowers.first().filter(|_| own)?;
    lower.path.parent().map(Path::to_owned)
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
