//! What is different about a sandbox that is made from a snapshot.

use crate::planning;
use crate::store::Home;
use crate::volumes;
use msb_api::Changes;
use msb_spec::{Error, Plan, PlannedMount, Result, Spec};

/// Changes what was decided for the sandbox that the snapshot was taken of.
pub(super) fn apply(home: &Home, plan: &mut Plan, changes: &Changes) -> Result<()> {
    if changes.lenient {
        plan.mounts.retain(|mount| is_there(home, plan.isolation, mount));
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
    let taken = |place: &str| {
        plan.mounts.iter().any(|mount| mount.guest == place)
            || plan.tmpfs.iter().any(|tmpfs| tmpfs.guest.as_str() == place)
            || plan.workspace.as_ref().is_some_and(|workspace| workspace.guest == place)
    };
    let places = mounts.iter().map(|mount| mount.guest.as_str());
    let places = places.chain(changes.tmpfs.iter().map(|tmpfs| tmpfs.guest.as_str()));
    if let Some(place) = { places }.find(|place| taken(place)) {
        return Err(Error::invalid(format!("two mounts at `{place}`")));
    }
    plan.security.allow_setid &=
        mounts.iter().all(|mount| mount.read_only || mount.volume.is_some());
    plan.mounts.extend(mounts);
    // A mount below another one comes after it.
    plan.mounts.sort_by(|a, b| a.guest.cmp(&b.guest));
    plan.tmpfs.extend(changes.tmpfs.clone());
    Ok(())
}

fn is_there(home: &Home, isolation: msb_spec::Isolation, mount: &PlannedMount) -> bool {
    match &mount.volume {
        Some(volume) => volumes::planned(home, &volume.name, isolation).is_ok(),
        None => mount.host.exists(),
    }
}
