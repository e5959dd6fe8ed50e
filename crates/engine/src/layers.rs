//! Writable layers of sandboxes that do not run: made, replaced and frozen.
//!
//! A layer is replaced together with the Plan. The next Plan is written beside the one in force;
//! that the layer gets another name is the moment when it happens. What is left to do then is
//! done by whoever takes the sandbox's lock next, so that nobody ever sees half of it.

use crate::host::User;
use crate::store::{self, Claim};
use crate::{disk, workspace};
use msb_spec::{Error, Isolation, Plan, Result, Upper, state};
use msb_sys::files;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Makes the writable layer of a new sandbox in its directory; it is there once it is whole.
pub(crate) fn make(plan: &Plan, directory: &Path) -> Result<()> {
    if let Upper::Memory { .. } = plan.rootfs.upper {
        return Ok(());
    }
    let about = |error: io::Error| Error::host("cannot make the writable layer", error);
    let aside = directory.join(NEW_LAYER);
    // Of one who died here.
    match fs::symlink_metadata(&aside) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(&aside).map_err(about)?,
        Ok(_) => remove_file(&aside).map_err(about)?,
        Err(_) => {}
    }
    let (uid, gid) = plan.ids.root();
    let size = plan.limits.disk.map_or(msb_spec::Bytes::mib(8), |limit| limit.value);
    match &plan.rootfs.upper {
        Upper::Memory { .. } | Upper::Directory { .. } => {
            fs::create_dir(&aside).map_err(about)?;
            if User::current().is_root() {
                std::os::unix::fs::chown(&aside, Some(uid), Some(gid)).map_err(about)?;
            }
        }
        Upper::Disk { .. } if plan.isolation == Isolation::Vm => {
            msb_image::blank_disk(&aside, size.0)?;
        }
        Upper::Disk { .. } => disk::make(&aside, size, uid)?,
    }
    fs::rename(aside, directory.join(names(plan).0)).map_err(about)
}

/// What a writable layer is called until it is whole.
const NEW_LAYER: &str = "layer.new";

/// Brings the next Plan into force with a new, empty writable layer. The one that was goes to
/// where the next Plan has its topmost layer, or is left for [`old`]. With `forget` the changes in
/// the workspace go as well.
pub(crate) fn replace(claim: &Claim, next: &Plan, forget: bool) -> Result<()> {
    let about = |error: io::Error| {
        let text = format!("cannot change the layers of sandbox `{}`", next.name);
        let full =
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let error = Error::host(text, error);
        if full { error.hint("free some space and try again") } else { error }
    };
    let beside = claim.directory.join(state::NEXT_PLAN);
    let write = || -> io::Result<()> {
        // Of one who died before it happened.
        remove_file(&beside)?;
        let mut file = store::create_private(&beside)?;
        file.write_all(&serde_json::to_vec(next).expect("our own types always serialise"))?;
        files::write_before_rename(&file)?;
        if forget && next.workspace.is_some() {
            store::create_private(&claim.directory.join(state::FORGET_WORKSPACE))?;
        }
        let (layer, old) = names(next);
        fs::rename(claim.directory.join(layer), claim.directory.join(old))
    };
    write().map_err(|error| {
        let _ = settle(claim);
        about(error)
    })?;
    settle(claim)
}

/// Finishes what somebody has begun, or forgets it if it has not happened.
pub(crate) fn settle(claim: &Claim) -> Result<()> {
    let beside = claim.directory.join(state::NEXT_PLAN);
    let at = |name: &str| claim.directory.join(name);
    let old = if exists(&at(state::OLD_DISK)) { at(state::OLD_DISK) } else { at(state::OLD_LAYER) };
    let about = |error: io::Error| {
        Error::host(format!("cannot finish a change in `{}`", claim.directory.display()), error)
    };
    if !exists(&old) {
        let forget = claim.directory.join(state::FORGET_WORKSPACE);
        return remove_file(&beside).and_then(|()| remove_file(&forget)).map_err(about);
    }
    let name = claim.directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let name = msb_spec::Name::parse(name)?;
    if let Some(next) = store::read_plan(&beside, &name)? {
        if !exists(&at(names(&next).0)) {
            make(&next, &claim.directory)?;
        }
        forget_workspace(claim, &next)?;
        fs::rename(&beside, claim.directory.join(state::PLAN)).map_err(about)?;
    }
    let plan = store::read_plan(&claim.directory.join(state::PLAN), &name)?;
    match plan.as_ref().and_then(topmost).filter(|frozen| !exists(frozen)) {
        Some(frozen) => {
            // A disk lies in a directory of its own, as a layer is one.
            if let Some(parent) = frozen.parent().filter(|parent| !exists(parent)) {
                store::make_private(parent).map_err(about)?;
            }
            fs::rename(&old, frozen).map_err(about)
        }
        None => Ok(()),
    }
}

/// What the writable layer is called, and what it is called once it is no more.
fn names(plan: &Plan) -> (&'static str, &'static str) {
    match plan.rootfs.upper {
        Upper::Disk { .. } => (state::DISK, state::OLD_DISK),
        Upper::Directory { .. } | Upper::Memory { .. } => (state::LAYER, state::OLD_LAYER),
    }
}

/// Puts the changes in the workspace aside, if they are to go, and begins anew.
fn forget_workspace(claim: &Claim, next: &Plan) -> Result<()> {
    let about = |error: io::Error| Error::host("cannot forget the changes", error);
    let at = |name: &str| claim.directory.join(name);
    if !exists(&at(state::FORGET_WORKSPACE)) {
        return Ok(());
    }
    let (changes, old) = (at(state::WORKSPACE), at(state::OLD_WORKSPACE));
    if exists(&changes) && !exists(&old) {
        fs::rename(&changes, &old).map_err(about)?;
    }
    if let Some(planned) = &next.workspace {
        // Of one who died here; what is known of the host's files is known anew.
        for begun in [&changes, &at(state::REVIEW)] {
            store::remove_tree(begun).map_err(about)?;
        }
        workspace::fill(next, planned, &claim.directory)?;
    }
    remove_file(&at(state::FORGET_WORKSPACE)).map_err(about)
}

/// What the last change put aside and is to be removed.
pub(crate) fn old(claim: &Claim) -> Vec<PathBuf> {
    let names = [state::OLD_LAYER, state::OLD_DISK, state::OLD_WORKSPACE];
    names.iter().map(|name| claim.directory.join(name)).filter(|old| exists(old)).collect()
}

/// Where the topmost layer is that the sandbox has written itself.
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
