//! What is asked for, turned into what the state directory knows.

use super::Scoped;
use msb_spec::{
    Error, Hostname, ImageRef, Mount, MountSource, Name, NetworkSpec, Patch, Plan, Result,
    SecretSource, SpawnPolicy, Spec, Workspace,
};

impl Scoped {
    /// The Spec with names turned; the name that its owner knows the sandbox by.
    pub(super) fn spec(&self, spec: &Spec) -> Result<(Spec, Name)> {
        // Every field by name: a new one has to be thought about.
        let Spec {
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
        let outer = name.map_or_else(made_up_name, Ok)?;
        self.mark(&mut labels);
        let asked = Spec {
            name: Some(self.inner(&outer)?),
            image: self.image(image)?,
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
            // By its own name inside, not by the one in the state directory.
            hostname: Some(hostname.unwrap_or_else(|| Hostname::of(&outer))),
            labels,
            cpus,
            memory,
            pids,
            disk,
            rlimits,
            network: network.map(|network| self.network(network)).transpose()?,
            mounts: mounts.into_iter().map(|it| self.mount(it)).collect::<Result<_>>()?,
            workspace: workspace.map(|it| self.workspace(&it)).transpose()?,
            tmpfs,
            patches: patches.into_iter().map(|it| self.patch(it)).collect::<Result<_>>()?,
            scripts,
            max_duration,
            idle_timeout,
            idle_pause,
            restart,
            health,
            timeout,
            ephemeral,
            spawn: spawn.map(|policy| self.spawn(policy)).transpose()?,
        };
        Ok((asked, outer))
    }

    /// What children may start from is asked for, too.
    fn spawn(&self, mut policy: SpawnPolicy) -> Result<SpawnPolicy> {
        let images = policy.images.into_iter().map(|image| self.image(image));
        policy.images = images.collect::<Result<_>>()?;
        Ok(policy)
    }

    pub(super) fn image(&self, image: ImageRef) -> Result<ImageRef> {
        Ok(match image {
            ImageRef::Host => ImageRef::Host,
            ImageRef::Name(reference) => ImageRef::Name(reference),
            ImageRef::Path(path) => ImageRef::Path(self.host(&path)?),
            ImageRef::Snapshot(name) => ImageRef::Snapshot(self.snapshot(&name)?),
        })
    }

    fn network(&self, mut network: NetworkSpec) -> Result<NetworkSpec> {
        for secret in &network.secrets {
            match secret.source {
                SecretSource::Given => {}
                SecretSource::Variable(_) | SecretSource::File(_) | SecretSource::Command(_) => {
                    return Err(self.denied("gives its secrets itself"));
                }
            }
        }
        network.join = network.join.map(|join| self.inner(&join)).transpose()?;
        Ok(network)
    }

    pub(super) fn mount(&self, mount: Mount) -> Result<Mount> {
        let source = match mount.source {
            MountSource::Path(path) => MountSource::Path(self.host(&path)?),
            MountSource::Volume(name) => MountSource::Volume(self.inner_volume(&name)?),
        };
        Ok(Mount { source, ..mount })
    }

    fn workspace(&self, workspace: &Workspace) -> Result<Workspace> {
        Ok(Workspace { host: self.host(&workspace.host)?, guest: workspace.guest.clone() })
    }

    fn patch(&self, patch: Patch) -> Result<Patch> {
        Ok(match patch {
            Patch::Copy { from, to } => Patch::Copy { from: self.host(&from)?, to },
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

    /// An image as its namespace knows it; none if it is of another.
    pub(super) fn outer_image(&self, image: ImageRef) -> Option<ImageRef> {
        match image {
            ImageRef::Snapshot(name) => self.outer(&name).map(ImageRef::Snapshot),
            other => Some(other),
        }
    }

    /// A Plan with names turned back.
    pub(super) fn plan(&self, mut plan: Plan) -> Result<Plan> {
        plan.name = self.outer(&plan.name).ok_or_else(not_ours)?;
        plan.snapshot = plan.snapshot.and_then(|name| self.outer(&name));
        plan.image = self.outer_image(plan.image).ok_or_else(not_ours)?;
        for image in plan.spawn.iter_mut().flat_map(|policy| &mut policy.images) {
            *image = self.outer_image(image.clone()).ok_or_else(not_ours)?;
        }
        if let Some(family) = &mut plan.family {
            family.parent = self.outer(&family.parent).ok_or_else(not_ours)?;
            if let Some(network) = &mut family.network {
                network.root = self.outer(&network.root).ok_or_else(not_ours)?;
            }
        }
        for mount in &mut plan.mounts {
            if let Some(volume) = &mut mount.volume {
                volume.name = self.outer_volume(&volume.name).ok_or_else(not_ours)?;
            }
        }
        if let Some(network) = &mut plan.network {
            network.join = network.join.take().and_then(|join| self.outer(&join));
        }
        Ok(plan)
    }
}

/// Whoever runs the server gave a sandbox of this namespace something of another.
fn not_ours() -> Error {
    Error::new(msb_spec::Kind::Denied, "it uses something of another namespace")
        .hint("whoever runs the server can look at it")
}

/// A name for a sandbox whose owner gave none: the engine's would be in no namespace.
fn made_up_name() -> Result<Name> {
    let mut bytes = [0; 4];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::host("the host gives no random bytes", error))?;
    Name::parse(&format!("sb-{:08x}", u32::from_ne_bytes(bytes)))
}
