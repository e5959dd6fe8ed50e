//! Paths of the host that whoever asks has judged by where they lead.
//!
//! Planning follows links, as people at a shell expect. A path that comes through the Api was followed
//! and compared with what its client may name; if planning was led elsewhere since, somebody has put a
//! link there meanwhile. From the Plan on, nobody follows any: workers open what it names through none.

use crate::files::through_a_link;
use msb_spec::{ImageRef, Mount, MountSource, Plan, Result, SpawnPolicy, Spec};
use std::path::Path;

/// Refuses a Plan that names other paths than its Spec.
pub(crate) fn check(spec: &Spec, plan: &Plan) -> Result<()> {
    if let (ImageRef::Path(asked), ImageRef::Path(found)) = (&spec.image, &plan.image)
        && without_type(asked) != found
    {
        return Err(through_a_link(asked));
    }
    if let (Some(asked), Some(found)) = (&spec.workspace, &plan.workspace)
        && asked.host != found.host
    {
        return Err(through_a_link(&asked.host));
    }
    // What children may start from is followed once, too.
    let images = |policy: Option<&SpawnPolicy>| -> Vec<ImageRef> {
        policy.map(|policy| policy.images.clone()).unwrap_or_default()
    };
    let found = images(plan.spawn.as_ref());
    for (asked, found) in images(spec.spawn.as_ref()).iter().zip(&found) {
        if let (ImageRef::Path(path), true) = (asked, asked != found) {
            return Err(through_a_link(path));
        }
    }
    check_mounts(&spec.mounts, plan)
}

/// The same of mounts alone.
pub(super) fn check_mounts(asked: &[Mount], plan: &Plan) -> Result<()> {
    for mount in asked {
        let MountSource::Path(path) = &mount.source else { continue };
        let at = |found: &&msb_spec::PlannedMount| found.guest == mount.guest.as_str();
        match plan.mounts.iter().find(at) {
            Some(found) if found.host != *path => return Err(through_a_link(path)),
            _ => {}
        }
    }
    Ok(())
}

/// A disk may be followed by what is on it.
fn without_type(path: &Path) -> &Path {
    let cut = path.to_str().and_then(|text| text.rsplit_once(":fstype="));
    cut.map_or(path, |(path, _)| Path::new(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_known_with_its_type() {
        assert_eq!(without_type(Path::new("/a/b.img:fstype=ext4")), Path::new("/a/b.img"));
        assert_eq!(without_type(Path::new("/a/b.img")), Path::new("/a/b.img"));
    }
}
