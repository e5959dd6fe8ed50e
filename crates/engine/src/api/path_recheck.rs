//! Re-checks host paths after planning (TOCTOU).
//!
//! The server resolves a path of a client and compares it with the allowlist. Planning resolves
//! symlinks again. A Plan that names another path than its Spec means that a symlink was put there
//! in between, so it is rejected. From the Plan on, workers open host paths without following
//! symlinks.

use crate::files::symlink_in_path;
use msb_spec::{ImageRef, Mount, MountSource, Plan, Result, SpawnPolicy, Spec};
use std::path::Path;

/// Rejects a Plan that names other host paths than its Spec.
pub(crate) fn check(spec: &Spec, plan: &Plan) -> Result<()> {
    if let (ImageRef::Path(asked), ImageRef::Path(found)) = (&spec.image, &plan.image)
        && without_type(asked) != found
    {
        return Err(symlink_in_path(asked));
    }
    if let (Some(asked), Some(found)) = (&spec.workspace, &plan.workspace)
        && asked.host != found.host
    {
        return Err(symlink_in_path(&asked.host));
    }
    // Image paths of the spawn policy are resolved during planning as well.
    let images = |policy: Option<&SpawnPolicy>| -> Vec<ImageRef> {
        policy.map(|policy| policy.images.clone()).unwrap_or_default()
    };
    let found = images(plan.spawn.as_ref());
    for (asked, found) in images(spec.spawn.as_ref()).iter().zip(&found) {
        if let (ImageRef::Path(path), true) = (asked, asked != found) {
            return Err(symlink_in_path(path));
        }
    }
    check_mounts(&spec.mounts, plan)
}

/// Rejects a Plan that has another host path for one of these mounts.
pub(super) fn check_mounts(asked: &[Mount], plan: &Plan) -> Result<()> {
    for mount in asked {
        let MountSource::Path(path) = &mount.source else { continue };
        let at = |found: &&msb_spec::PlannedMount| found.guest == mount.guest.as_str();
        match plan.mounts.iter().find(at) {
            Some(found) if found.host != *path => return Err(symlink_in_path(path)),
            _ => {}
        }
    }
    Ok(())
}

/// A disk image without its `:fstype=` suffix.
fn without_type(path: &Path) -> &Path {
    let cut = path.to_str().and_then(|text| text.rsplit_once(":fstype="));
    cut.map_or(path, |(path, _)| Path::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fstype_suffix_is_removed() {
        assert_eq!(without_type(Path::new("/a/b.img:fstype=ext4")), Path::new("/a/b.img"));
        assert_eq!(without_type(Path::new("/a/b.img")), Path::new("/a/b.img"));
    }
}
