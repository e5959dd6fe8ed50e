//! Translates the names in a Spec to stored names, and those in a Plan back.

use super::ScopedApi;
use super::to_stored::ToStored;
use super::to_visible::ToVisible;
use msb_spec::{
    Error, Hostname, Name, NetworkSpec, Patch, Plan, Result, SecretSource, SpawnPolicy, Spec,
    Workspace,
};
use std::path::PathBuf;

impl ToStored for Spec {
    fn to_stored(spec: &Self, scope: &ScopedApi) -> Result<Self> {
        // Destructures every field, so that a new one has to be handled here.
        let Self {
            name,
            image,
            pull,
            platform,
            isolation,
            security,
            allow_userns,
            command,
            entrypoint,
            default_command,
            init,
            shell,
            env,
            workdir,
            user,
            hostname,
            mut labels,
            cpus,
            memory,
            pids,
            disk,
            rlimits,
            network,
            mounts,
            workspace,
            tmpfs,
            patches,
            scripts,
            max_duration,
            idle_timeout,
            idle_pause,
            restart,
            health,
            timeout,
            ephemeral,
            spawn,
        } = spec.clone();
        let visible = name.map_or_else(random_name, Ok)?;
        scope.add_label(&mut labels);
        Ok(Self {
            name: Some(Name::to_stored(&visible, scope)?),
            image: scope.image(image)?,
            pull,
            platform,
            isolation,
            security,
            allow_userns,
            command,
            entrypoint,
            default_command,
            init,
            shell,
            env,
            workdir,
            user,
            // The host name is the visible name, not the stored one.
            hostname: Some(hostname.unwrap_or_else(|| Hostname::of(&visible))),
            labels,
            cpus,
            memory,
            pids,
            disk,
            rlimits,
            network: network.map(|network| scope.network(network)).transpose()?,
            mounts: mounts.iter().map(|it| scope.mount(it)).collect::<Result<_>>()?,
            workspace: workspace.map(|it| scope.workspace(&it)).transpose()?,
            tmpfs,
            patches: patches.into_iter().map(|it| scope.patch(it)).collect::<Result<_>>()?,
            scripts,
            max_duration,
            idle_timeout,
            idle_pause,
            restart,
            health,
            timeout,
            ephemeral,
            spawn: spawn.map(|policy| scope.spawn(policy)).transpose()?,
        })
    }
}

impl ScopedApi {
    /// Translates the images that children may start from.
    fn spawn(&self, mut policy: SpawnPolicy) -> Result<SpawnPolicy> {
        let images = policy.images.into_iter().map(|image| self.image(image));
        policy.images = images.collect::<Result<_>>()?;
        Ok(policy)
    }

    fn network(&self, mut network: NetworkSpec) -> Result<NetworkSpec> {
        for secret in &network.secrets {
            match secret.source {
                SecretSource::Given => {}
                SecretSource::Variable(_) | SecretSource::File(_) | SecretSource::Command(_) => {
                    return Err(self.denied("must send secret values in the request"));
                }
            }
        }
        network.join = Option::to_stored(network.join.as_ref(), self)?;
        Ok(network)
    }

    fn workspace(&self, workspace: &Workspace) -> Result<Workspace> {
        Ok(Workspace {
            host: PathBuf::to_stored(&workspace.host, self)?,
            guest: workspace.guest.clone(),
        })
    }

    fn patch(&self, patch: Patch) -> Result<Patch> {
        Ok(match patch {
            Patch::Copy { from, to } => Patch::Copy { from: PathBuf::to_stored(&from, self)?, to },
            Patch::Text { .. }
            | Patch::Bytes { .. }
            | Patch::Mode { .. }
            | Patch::Absent { .. }
            | Patch::Mkdir { .. }
            | Patch::Append { .. }
            | Patch::Remove { .. }
            | Patch::Symlink { .. } => patch,
        })
    }
}

impl ToVisible for Plan {
    fn to_visible(self, scope: &ScopedApi) -> Result<Self> {
        visible_plan(self, scope).map_err(|_| foreign_object())
    }
}

fn visible_plan(mut plan: Plan, scope: &ScopedApi) -> Result<Plan> {
    plan.name = plan.name.to_visible(scope)?;
    plan.snapshot = plan.snapshot.and_then(|name| scope.visible_name(&name));
    plan.image = plan.image.to_visible(scope)?;
    for image in plan.spawn.iter_mut().flat_map(|policy| &mut policy.images) {
        *image = image.clone().to_visible(scope)?;
    }
    if let Some(family) = &mut plan.family {
        family.parent = family.parent.clone().to_visible(scope)?;
        if let Some(network) = &mut family.network {
            network.root = network.root.clone().to_visible(scope)?;
        }
    }
    for volume in plan.mounts.iter_mut().filter_map(|mount| mount.volume.as_mut()) {
        volume.name = volume.name.clone().to_visible(scope)?;
    }
    if let Some(network) = &mut plan.network {
        network.join = network.join.take().and_then(|join| scope.visible_name(&join));
    }
    Ok(plan)
}

/// The operator gave a sandbox of this namespace something of another namespace.
fn foreign_object() -> Error {
    Error::new(msb_spec::Kind::Denied, "it uses something of another namespace")
        .hint("the operator of the server can inspect it")
}

/// Generates a name for a sandbox without one; a name from the engine would have no namespace.
fn random_name() -> Result<Name> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::host("cannot read random bytes from the host", error))?;
    Name::parse(&format!("sb-{:08x}", u32::from_ne_bytes(bytes)))
}
