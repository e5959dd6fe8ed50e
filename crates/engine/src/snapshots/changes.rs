//! Applies changed settings to a sandbox that is restored from a snapshot.

use crate::planning;
use crate::store::Home;
use crate::volumes;
use msb_api::Changes;
use msb_spec::{Error, Plan, PlannedMount, Result, Spec};

/// Changes labels, user, ports, mounts and tmpfs of a restored Plan.
pub(super) fn apply(home: &Home, plan: &mut Plan, changes: &Changes) -> Result<()> {
    if changes.lenient {
        plan.mounts.retain(|mount| source_exists(home, plan.isolation, mount));
    }
    plan.labels.extend(changes.labels.clone());
    if let Some(user) = &changes.user {
        if !plan.ids.many() && plan.machine.is_none() && !user.is_root() {
            return Err(planning::only_root(user, false));
        }
        plan.user = Some(user.clone());
    }
    if !changes.ports.is_empty() {
        let network = plan.network.as_mut().ok_or_else(|| {
            Error::invalid("a sandbox without a network has no ports to publish")
                .hint("the snapshot is of one without; make a sandbox from it as an image")
        })?;
        network.ports.clone_from(&changes.ports);
    }
    let own = Spec {
        mounts: changes.mounts.clone(),
        tmpfs: changes.tmpfs.clone(),
        labels: changes.labels.clone(),
        ..Spec::default()
    };
    own.validate()?;
    let mounts = planning::mounts(home, &own, plan.isolation)?;
    let is_mount_point = |target: &str| {
        plan.mounts.iter().any(|mount| mount.guest == target)
            || plan.tmpfs.iter().any(|tmpfs| tmpfs.guest.as_str() == target)
            || plan.workspace.as_ref().is_some_and(|workspace| workspace.guest == target)
    };
    let targets = mounts.iter().map(|mount| mount.guest.as_str());
    let targets = targets.chain(changes.tmpfs.iter().map(|tmpfs| tmpfs.guest.as_str()));
    if let Some(target) = { targets }.find(|target| is_mount_point(target)) {
        return Err(Error::invalid(format!("two mounts at `{target}`")));
    }
    plan.security.allow_setid &=
        mounts.iter().all(|mount| mount.read_only || mount.volume.is_some());
    plan.mounts.extend(mounts);
    // A mount below another one comes after it.
    plan.mounts.sort_by(|a, b| a.guest.cmp(&b.guest));
    plan.tmpfs.extend(changes.tmpfs.clone());
    Ok(())
}

fn source_exists(home: &Home, isolation: msb_spec::Isolation, mount: &PlannedMount) -> bool {
    match &mount.volume {
        Some(volume) => volumes::planned(home, &volume.name, isolation).is_ok(),
        None => mount.host.exists(),
    }
}
